"""What was trained, read back from journals: whole steps only, the last of what was made again, and how two runs differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from flyball_testbed.training.journals import compare, history, read_steps
from flyball_testbed.training.picture import Event, draw, labelled


def write(folder: Path, start: int, rank: int, world_size: int, steps: Sequence[tuple[int, list[int], float]]) -> None:
    lines = [
        {
            "iteration": iteration,
            "time": 100.0 * start + iteration,
            "worldSize": world_size,
            "samples": samples,
            "loss": loss,
        }
        for iteration, samples, loss in steps
    ]
    path = folder / f"{start:06d}.0-{rank:05d}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def resized(folder: Path, last_loss: float = 1.0) -> None:
    """Two processes, of which one is killed in step 3; then one that goes on after step 2."""
    folder.mkdir()
    write(folder, 1, 0, 2, [(1, [4, 1], 3.0), (2, [0], 2.0), (3, [5], 9.0)])
    write(folder, 1, 1, 2, [(1, [2], 5.0), (2, [3, 7], 2.5)])
    with (folder / "000001.0-00001.jsonl").open("a") as file:
        file.write('{"iteration": 3, "ti')
    write(folder, 2, 0, 1, [(3, [5, 6, 8], last_loss)])


def alone(folder: Path) -> None:
    folder.mkdir()
    write(folder, 1, 0, 1, [(1, [4, 1, 2], 4.0), (2, [0, 3, 7], 2.25), (3, [5, 6, 8], 1.0)])


def test_a_resized_run_is_the_one_that_was_left_alone(tmp_path: Path) -> None:
    resized(tmp_path / "resized")
    alone(tmp_path / "alone")
    steps = read_steps(tmp_path / "resized")
    assert [(step.iteration, step.world_size, step.loss) for step in steps] == [(1, 2, 4.0), (2, 2, 2.25), (3, 1, 1.0)]
    result = compare(history(steps), history(read_steps(tmp_path / "alone")))
    assert (result.steps, result.same_samples, result.worst_loss_difference) == (3, True, 0.0)


def test_a_step_that_was_made_again_counts_as_the_last_start_made_it(tmp_path: Path) -> None:
    write(tmp_path, 1, 0, 1, [(1, [0], 1.0), (2, [1], 2.0), (3, [2], 3.0)])
    write(tmp_path, 2, 0, 1, [(2, [1], 2.5), (3, [2], 3.5)])
    assert len(read_steps(tmp_path)) == 5
    assert [step.loss for step in history(read_steps(tmp_path))] == [1.0, 2.5, 3.5]


def test_differences_are_seen(tmp_path: Path) -> None:
    resized(tmp_path / "resized", last_loss=1.01)
    alone(tmp_path / "alone")
    one, other = (history(read_steps(tmp_path / name)) for name in ("resized", "alone"))
    assert compare(one, other).worst_loss_difference == pytest.approx(0.01)
    with pytest.raises(ValueError, match="2 and 3 steps"):
        compare(one[:2], other)
    write(tmp_path / "alone", 1, 0, 1, [(1, [4, 1, 2], 4.0), (2, [0, 7, 3], 2.25), (3, [5, 6, 8], 1.0)])
    assert not compare(one, history(read_steps(tmp_path / "alone"))).same_samples


@pytest.mark.slow
def test_the_picture_shows_both_and_the_sizes(tmp_path: Path) -> None:
    resized(tmp_path / "resized")
    alone(tmp_path / "alone")
    one, other = (history(read_steps(tmp_path / name)) for name in ("alone", "resized"))
    draw(one, other, [Event(2, "one rank killed")], tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_what_befell_it_is_written_side_by_side() -> None:
    events = [Event(84, "4 GPUs"), Event(82, "one is killed"), Event(82, "the cap falls"), Event(0, "submitted")]
    placed = labelled(events, 5.0)
    assert placed == [
        (Event(0, "submitted"), 0.0),
        (Event(82, "one is killed; the cap falls"), 82.0),
        (Event(84, "4 GPUs"), 87.0),
    ]
    assert labelled([], 5.0) == []
