"""Places that cannot be written are refused before anything is computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from flyball_cli.terminal.endings import Ended
from flyball_cli.terminal.files import check_output_file, check_output_folder

from tests.support.command_line import flyball

NOWHERE = Path("/proc/flyball")  # nobody can make anything here, and the folder's mode lets root


@pytest.mark.parametrize("check", [check_output_file, check_output_folder])
def test_a_place_in_which_nothing_can_be_made_is_refused_also_for_root(
    check: Callable[[str, Path], None],
) -> None:
    with pytest.raises(Ended) as ended:
        check("--output", NOWHERE)
    assert ended.value.exit_code == 2
    assert "may not be written" in ended.value.line


def test_checking_leaves_nothing_behind(tmp_path: Path) -> None:
    check_output_folder("--output", tmp_path / "a" / "b")
    check_output_file("--report", tmp_path / "report.json")
    check_output_file("--report", None)
    check_output_folder("--output", None)
    assert not list(tmp_path.iterdir())


def test_a_file_where_a_folder_is_wanted_and_the_other_way_round(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file, missing = tmp_path / "file", tmp_path / "missing"
    for check, path, said in (
        (check_output_folder, file / "below", f"{file} is a file; wanted a folder, or the name of one to make"),
        (check_output_file, tmp_path, "that is a folder; wanted the name of a file in it"),
        (
            check_output_file,
            missing / "report.json",
            f"there is no folder {missing}; make it first (mkdir -p {missing})",
        ),
    ):
        with pytest.raises(Ended) as ended:
            check("--output", path)
        assert ended.value.line == f"--output {path}: {said}"


@pytest.mark.parametrize(
    ("arguments", "kinds"),
    [
        ("report --png", ".png, .svg or .pdf"),
        ("report --would-have-saved --png", ".png, .svg or .pdf"),
        ("calibrate {csv} --limits 100,250,250 --output {csv}.yaml --plot", ".png"),
        ("frontier --profile {csv} --microbatches 6 --blocking-power 80 --plot", ".png"),
        ("schedule-plot {csv} --output", ".png"),
    ],
)
@pytest.mark.parametrize("name", ["picture.foo", "picture"])
def test_a_kind_of_picture_that_is_not_drawn_is_refused_before_any_work(
    arguments: str, kinds: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / "input.csv").write_text("read too early\n")
    words = arguments.format(csv=tmp_path / "input.csv").split()
    ended = flyball(*words, tmp_path / name)
    assert ended.exit_code == 2, ended.output
    ending = "no ending" if name == "picture" else ".foo"
    assert ended.output.splitlines() == [
        f"flyball {words[0]}: {words[-1]} {tmp_path / name}: {ending} is no kind of picture that it draws; "
        f"wanted a name in {kinds}"
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["input.csv"]


@pytest.mark.parametrize(
    "arguments",
    [
        "simulate --trace {csv} --policy fifo --gpus 8 --output",
        "compare --trace {csv} --policies fifo --gpus 8 --output",
        "report --png",
        "support-bundle --output",
        "calibrate {csv} --limits 100,250,250 --output",
        "calibrate {csv} --limits 100,250,250 --output {csv}.yaml --plot",
    ],
)
def test_a_command_refuses_the_place_before_it_reads_its_input(arguments: str, tmp_path: Path) -> None:
    (tmp_path / "input.csv").write_text("read too early\n")
    words = arguments.format(csv=tmp_path / "input.csv").split()
    place = NOWHERE.with_suffix(".png") if words[-1] in ("--png", "--plot") else NOWHERE
    ended = flyball(*words, str(place))
    assert ended.exit_code == 2, ended.output
    assert f"{words[-1]} {place}: " in ended.output
    assert "may not be written" in ended.output
    assert "read too early" not in ended.output
