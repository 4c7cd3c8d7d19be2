"""One process' job: what it says of wrong use, and what it does where the disk or environment is not as it should be."""

from __future__ import annotations

import json
import os
import pickle
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import flyball
import pytest
from flyball.environment import Environment, InvalidEnvironment, start_token
from flyball.job import Job

from tests.support.waiting import PATIENCE_SECONDS

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
JAX = {"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2"}


def test_torchrun_is_believed_before_what_flyball_says_for_jax() -> None:
    read = Environment.read({**TORCHRUN, **JAX, "FLYBALL_INCARNATION": "4"}, 77)
    assert (read.rank, read.world_size, read.local_rank, read.run) == (3, 8, 1, "000004.0")
    read = Environment.read(JAX, 77)
    assert (read.rank, read.world_size, read.local_rank, read.run) == (1, 2, 0, "local77.0")
    assert Environment.read({}, 77) == Environment(run="local77.0")
    assert Environment.read({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "2"}, 77).run == "local77.2"
    assert Job(Environment.read({**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}, 77)).local_world_size == 4
    assert Job(Environment.read(JAX, 77)).local_world_size is None


def test_a_start_is_known_by_its_incarnation_or_else_by_the_token_of_rank_0() -> None:
    first, second = start_token(), start_token()
    assert first < second
    assert len(first) == len(second)
    assert Environment(run="local77.0").begun_as(first).run == f"local{first}"
    assert Environment(run="000004.0", incarnation=4).begun_as(first).run == "000004.0"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({**TORCHRUN, "RANK": "8"}, "RANK=8 is not below WORLD_SIZE=8"),
        ({**TORCHRUN, "WORLD_SIZE": "many"}, "WORLD_SIZE='many' is not a whole number of 1 or more"),
        ({"FLYBALL_INCARNATION": "-1"}, "FLYBALL_INCARNATION='-1'"),
        ({"FLYBALL_GLOBAL_BATCH_SIZE": "0"}, "FLYBALL_GLOBAL_BATCH_SIZE='0'"),
        ({"FLYBALL_JOB_UID": "../../another"}, "FLYBALL_JOB_UID='../../another' is no UID"),
        ({"FLYBALL_TARGET_METRIC": "as good as it gets"}, "'as good as it gets' is not like accuracy >= 0.75"),
    ],
)
def test_an_environment_that_nobody_can_train_by_is_refused(variables: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidEnvironment, match=words):
        Environment.read(variables, 1)


@pytest.mark.parametrize(
    ("target", "reached", "missed"),
    [("accuracy >= 0.75", 0.75, 0.7499), ("val/loss<=-2", -2.0, -1.99), ("loss <= 2.1", 1.0, float("nan"))],
)
def test_a_run_knows_what_it_trains_to(target: str, reached: float, missed: float) -> None:
    job = Job(Environment.read({"FLYBALL_TARGET_METRIC": target}, 1))
    assert job.target_reached(reached)
    assert not job.target_reached(missed)
    assert not Job(Environment()).target_reached(reached), "without a target it is trained to the end"


def test_what_fails_beside_the_training_keeps_nothing_else_from_being_looked_at(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume that cannot be read for a while is no reason to report no steps, nor to skip the looks after it."""
    monkeypatch.setattr("flyball.on_node.TICK_SECONDS", 0.001)
    looked, reported = threading.Event(), threading.Event()
    monkeypatch.setattr("flyball.node.reporting.Reporter.report_if_due", lambda reporter: reported.set())
    job = Job(Environment(socket="/nowhere/flyball.sock"))

    def stale() -> None:
        raise OSError("stale file handle")

    monkeypatch.setattr(job.stopping, "look", stale)
    job._look_beside(stale)
    job._look_beside(looked.set)
    job._started = True
    job._go_on_beside()
    assert reported.wait(PATIENCE_SECONDS)
    assert looked.wait(PATIENCE_SECONDS)
    job._ended.set()
    assert caplog.text.count("training goes on without Flyball's help: stale file handle") == 1


def test_a_run_knows_by_how_much_its_batch_size_was_changed() -> None:
    variables = {"FLYBALL_GLOBAL_BATCH_SIZE": "64", "FLYBALL_BASE_BATCH_SIZE": "256"}
    assert Job(Environment.read(variables, 1)).batch_size_ratio == 0.25
    assert Job(Environment()).batch_size_ratio == 1.0


@pytest.mark.parametrize(
    ("batch", "processes", "most", "expected"),
    [(24, 1, None, (24, 1)), (24, 2, None, (12, 1)), (24, 2, 5, (4, 3)), (7, 1, 3, (1, 7)), (6, 6, 1, (1, 1))],
)
def test_a_framework_is_told_how_to_make_the_global_batch(
    batch: int, processes: int, most: int | None, expected: tuple[int, int]
) -> None:
    job = Job(Environment(world_size=processes, global_batch_size=batch, max_local_batch_size=most))
    assert job.split_batch() == expected
    assert expected[0] * expected[1] * processes == batch


def test_a_batch_that_cannot_be_shared_evenly_is_refused() -> None:
    with pytest.raises(ValueError, match="a global batch of 10 samples cannot be shared evenly by 4 processes"):
        Job(Environment(world_size=4)).split_batch(10)
    with pytest.raises(ValueError, match="the global batch size is not known"):
        Job(Environment()).split_batch()
    with pytest.raises(ValueError, match="a global batch has 1 sample or more, not -4"):
        Job(Environment()).loader(range(10), -4)


def test_a_frameworks_loop_is_told_once_that_it_has_to_end() -> None:
    job = Job(Environment(iterations=50))
    assert job.iterations == 50
    assert not job.step_done(1, 8)
    job.stopping.ask()
    assert job.step_done(2, 8)
    assert job.position.iteration == 2
    with pytest.raises(SystemExit) as left:
        job.leave()
    assert left.value.code == 143


def trained(job: Job, size: int = 20, batch: int = 4, epochs: int = 1) -> list[int]:
    seen: list[int] = []
    for _ in job.epochs(epochs):
        for samples in job.loader(range(size), batch):
            with job.step():
                seen += samples
    return seen


def test_a_batch_without_a_step_is_an_error_at_once() -> None:
    job = Job(Environment())
    with pytest.raises(RuntimeError, match=r"without `with job\.step\(\):`"):
        list(job.loader(range(10), 2))


def test_a_step_that_fails_counts_for_nothing() -> None:
    job = Job(Environment())
    loader = job.loader(range(10), 2)
    next(loader)
    with pytest.raises(ArithmeticError), job.step():
        raise ArithmeticError
    assert job.position.iteration == 0


def test_what_is_not_known_is_asked_for() -> None:
    job = Job(Environment())
    with pytest.raises(ValueError, match=r"training\.globalBatchSize"):
        job.loader(range(10))
    with pytest.raises(ValueError, match=r"training\.iterations"):
        next(job.epochs())


def test_steps_without_a_loader_are_counted(tmp_path: Path) -> None:
    job = Job(Environment(checkpoint_directory=str(tmp_path)))
    state: list[int] = []
    job.register(lambda: state, state.extend)
    for number in range(5):
        with job.step() as step:
            assert (step.weight, step.completes_batch) == (1.0, True)
            state.append(number)
    job.finish()
    again = Job(Environment(checkpoint_directory=str(tmp_path)))
    restored: list[int] = []
    assert again.register(lambda: restored, restored.extend)
    assert (restored, again.position.iteration) == ([0, 1, 2, 3, 4], 5)


def stopped(directory: Path, **environment: Any) -> None:
    """Two steps of an epoch, then the end by SIGTERM."""
    job = Job(Environment(checkpoint_directory=str(directory), incarnation=1, **environment), seed=3)
    job.register(lambda: None, lambda _: None)
    loader = job.loader(range(20), 4)
    next(loader)
    with job.step():
        pass
    next(loader)
    job.stopping.ask()
    with pytest.raises(SystemExit) as left, job.step():
        pass
    assert left.value.code == 143


def test_another_dataset_in_the_middle_of_an_epoch_is_refused(tmp_path: Path) -> None:
    stopped(tmp_path)
    job = Job(Environment(checkpoint_directory=str(tmp_path), incarnation=2))
    assert job.register(lambda: None, lambda _: None)
    with pytest.raises(ValueError, match="epoch 0 was begun on 20 samples, the dataset has 21 now"):
        job.loader(range(21), 4)
    assert len(list(job.parts(20, 4))) == 3


def test_the_seed_of_the_checkpoint_is_gone_on_with(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stopped(tmp_path)
    job = Job(Environment(checkpoint_directory=str(tmp_path), incarnation=2), seed=4)
    job.register(lambda: None, lambda _: None)
    assert "seed 3 of its checkpoint, not 4" in caplog.text
    whole = Job(Environment(), seed=3)
    assert trained(job) == trained(whole)[8:]


def test_a_rank_that_does_not_see_what_rank_0_has_loaded_says_so(tmp_path: Path) -> None:
    stopped(tmp_path)
    first, second = (
        Environment(rank=rank, world_size=2, incarnation=2, run="000002.0", checkpoint_directory=str(tmp_path))
        for rank in range(2)
    )
    assert Job(first).register(lambda: None, lambda _: None)
    for found in (tmp_path / "flyball").glob("checkpoint-*"):
        found.rename(tmp_path / found.name)
    with pytest.raises(RuntimeError, match="rank 0 has loaded checkpoint checkpoint-000001-000000000002"):
        Job(second).register(lambda: None, lambda _: None)


def test_checkpoints_of_which_none_can_be_loaded_are_not_begun_anew_over(tmp_path: Path) -> None:
    """A volume that is away for a moment, or a GPU out of memory, must not cost all that was trained."""
    stopped(tmp_path)
    there = sorted((tmp_path / "flyball").glob("checkpoint-*"))

    def unreadable(path: str) -> None:
        raise OSError(5, "the volume is away")

    job = Job(Environment(checkpoint_directory=str(tmp_path), incarnation=2))
    with pytest.raises(RuntimeError, match=r"none of the checkpoints in .* can be loaded; .*the volume is away"):
        job.register(lambda: None, lambda _: None, read=unreadable)
    assert sorted((tmp_path / "flyball").glob("checkpoint-*")) == there
    assert Job(Environment(checkpoint_directory=str(tmp_path), incarnation=3)).register(lambda: None, lambda _: None)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_folder_that_cannot_be_written_costs_one_warning(
    tmp_path: Path, world_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "flyball").write_text("a file where the folder should be")
    environment = Environment(world_size=world_size, checkpoint_directory=str(tmp_path), incarnation=1, run="000001.0")
    job = Job(environment)
    assert not job.register(lambda: None, lambda _: None, every_seconds=1e9)
    assert len(trained(job)) == 20 // world_size
    assert caplog.text.count("no checkpoints are written") == 1


@pytest.mark.parametrize(("rank", "warnings"), [(0, 1), (1, 0)])
def test_that_there_is_no_folder_for_checkpoints_is_said_by_one_process(
    rank: int, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(Environment(rank=rank, world_size=2))
    assert not caplog.records, "a script that has checkpoints of its own registers nothing"
    assert not job.register(lambda: None, lambda _: None)
    assert [record.getMessage() for record in caplog.records] == warnings * [
        "no checkpoints are written: there is no volume `checkpoint` ($FLYBALL_CHECKPOINT_DIR)"
    ]


def test_a_state_that_cannot_be_written_does_not_end_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(Environment(checkpoint_directory=str(tmp_path), incarnation=1))
    job.register(lambda: lambda: None, lambda _: None, every_seconds=0.0)
    assert len(trained(job)) == 20
    assert "no checkpoint of step 1, training goes on" in caplog.text


def test_a_process_that_was_superseded_leaves(tmp_path: Path) -> None:
    old = Job(Environment(checkpoint_directory=str(tmp_path), incarnation=1))
    old.register(lambda: None, lambda _: None, every_seconds=0.0)
    Job(Environment(checkpoint_directory=str(tmp_path), incarnation=2)).register(lambda: None, lambda _: None)
    loader = old.loader(range(10), 2)
    next(loader)
    with pytest.raises(SystemExit) as left, old.step():
        pass
    assert left.value.code == 143


def test_a_job_that_is_made_again_begins_anew_in_the_volume_of_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its incarnations begin anew, too: the other's last one would have superseded them, and asked them to stop."""
    before = Environment(checkpoint_directory=str(tmp_path), job_uid="a", incarnation=3, run="000003.0", world_size=2)
    old = Job(before)
    old.register(lambda: "the old job's", lambda _: None)
    assert len(trained(old)) == 10
    (tmp_path / "flyball" / ".run-000003.0" / "asked").write_text("yes\n")
    found: list[str] = []
    for incarnation in (1, 2, 3):
        new = replace(before, job_uid="b", incarnation=incarnation, run=f"{incarnation:06d}.0")
        jobs = [Job(replace(new, rank=rank)) for rank in range(2)]
        assert [job.register(lambda: "the new job's", found.append) for job in jobs] == [incarnation > 1] * 2
        assert len(trained(jobs[0], epochs=incarnation)) == 10
        assert not jobs[0].stopping.is_asked
    assert found == ["the new job's"] * 4
    assert caplog.text.count("are another job's, this one's are beside it") == 3, "by rank 0 of each start"
    again = Job(replace(before, incarnation=4, run="000004.0", world_size=1))
    assert again.register(lambda: None, found.append)
    assert found[4:] == ["the old job's"], "which is still there"


def test_checkpoints_of_a_version_that_knew_no_jobs_are_gone_on_from(tmp_path: Path) -> None:
    earlier = Job(Environment(checkpoint_directory=str(tmp_path), incarnation=1))
    earlier.register(lambda: None, lambda _: None)
    trained(earlier)
    for incarnation in (2, 3):
        job = Job(Environment(checkpoint_directory=str(tmp_path), job_uid="a", incarnation=incarnation))
        assert job.register(lambda: None, lambda _: None)


def test_the_journal_has_what_each_step_was_trained_on(tmp_path: Path) -> None:
    for rank in range(2):
        job = Job(
            Environment(
                rank=rank, world_size=2, run="000001.0", max_local_batch_size=1, journal_directory=str(tmp_path)
            )
        )
        for _ in job.epochs(1):
            for samples in job.loader(range(6), 4, shuffle=False):
                with job.step() as step:
                    step.weighted(float(samples[0]))
    lines = [[json.loads(line) for line in path.read_text().splitlines()] for path in sorted(tmp_path.iterdir())]
    assert [[line["samples"] for line in process] for process in lines] == [[[0, 1], [4]], [[2, 3], [5]]]
    means = [sum(line["loss"] for line in step) / 2 for step in zip(*lines, strict=True)]
    assert means == [1.5, 4.5], "the mean over the global batch"


def test_a_journal_that_cannot_be_written_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no folder can be made here")
    job = Job(Environment(journal_directory=str(tmp_path / "file")))
    assert len(trained(job)) == 20
    assert caplog.text.count("the journal of steps ends here") == 1


def test_the_folder_of_the_journal_is_made(tmp_path: Path) -> None:
    trained(Job(Environment(run="000001.0", journal_directory=str(tmp_path / "a" / "journal"))))
    assert len((tmp_path / "a" / "journal" / "000001.0-00000.jsonl").read_text().splitlines()) == 5


def test_the_public_names_are_these() -> None:
    assert set(flyball.__all__) == {
        "Budget",
        "GpuCapabilities",
        "InvalidEnvironment",
        "Job",
        "Kernels",
        "Measurement",
        "Part",
        "Pipeline",
        "Plan",
        "Position",
        "SetLatency",
        "Step",
        "join",
    }


def test_join_reads_this_process_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("FLYBALL_", "RANK", "WORLD_SIZE", "LOCAL_RANK")):
            monkeypatch.delenv(name)
    job = flyball.join(checkpoint_directory=str(tmp_path))
    try:
        assert (job.rank, job.world_size, job.clock_megahertz, job.power_limit_milliwatts) == (0, 1, None, None)
        job.register(lambda: "state", lambda _: None)
        assert len(trained(job)) == 20
    finally:
        job.finish()
    found = next((tmp_path / "flyball").glob("checkpoint-*"))
    assert pickle.loads((found / "state").read_bytes()) == "state"  # noqa: S301
