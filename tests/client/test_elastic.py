"""Whole jobs that are resized, stopped and killed at any step: every sample of an epoch once, in the order of the seed."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from flyball.environment import Environment
from flyball.job import Job
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples

Batches = list[tuple[int, ...]]


@dataclass(frozen=True)
class Start:
    """One incarnation: so many processes, how many steps they make, and whether they are asked to leave or killed."""

    world_size: int
    steps: int
    is_killed: bool
    max_local_batch_size: int | None
    saves_after: int


class Clock:
    """Time that passes only where a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Model:
    """What is trained: its state is the list of the global batches that it has seen."""

    def __init__(self) -> None:
        self.seen: Batches = []

    def state_dict(self) -> Batches:
        return list(self.seen)

    def load_state_dict(self, state: Batches) -> None:
        self.seen = list(state)


def processes(start: Start, incarnation: int, directory: str, clock: Clock, batch: int, **more: Any) -> list[Job]:
    return [
        Job(
            Environment(
                rank=rank,
                world_size=start.world_size,
                incarnation=incarnation,
                run=f"{incarnation:06d}.0",
                checkpoint_directory=directory,
                global_batch_size=batch,
                max_local_batch_size=start.max_local_batch_size,
                **more,
            ),
            seed=11,
            monotonic=clock,
        )
        for rank in range(start.world_size)
    ]


def in_step(jobs: Sequence[Job], size: int, epochs: int | None) -> Iterator[list[tuple[Job, list[int]]]]:
    """What each process has to compute next, all of them together as synchronous training does; ends with the training."""
    epoch_iterators = [job.epochs(epochs) for job in jobs]
    while True:
        begun = [next(iterator, None) for iterator in epoch_iterators]
        assert len(set(begun)) == 1, "all processes are in the same epoch"
        if begun[0] is None:
            return
        loaders = [job.loader(range(size)) for job in jobs]
        while True:
            batches = [next(loader, None) for loader in loaders]
            assert len({batch is None for batch in batches}) == 1, "all processes have as many parts"
            if batches[0] is None:
                break
            yield list(zip(jobs, batches, strict=True))


class Looking:
    """What each process does beside its training, in a thread for all of them."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._ended.wait(0.001):
            for job in self._jobs:
                job.stopping.look()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def train(
    start: Start, incarnation: int, directory: str, size: int, batch: int, epochs: int | None, **more: Any
) -> tuple[bool, Batches]:
    """One incarnation: whether it came to the end of the training, and what its model has seen."""
    with contextlib.ExitStack() as looking:
        return _train(looking, start, incarnation, directory, size, batch, epochs, **more)


def _train(
    looking: contextlib.ExitStack,
    start: Start,
    incarnation: int,
    directory: str,
    size: int,
    batch: int,
    epochs: int | None,
    **more: Any,
) -> tuple[bool, Batches]:
    clock = Clock()
    jobs = processes(start, incarnation, directory, clock, batch, **more)
    models = [Model() for _ in jobs]
    for job, model in zip(jobs, models, strict=True):
        job.register(model.state_dict, model.load_state_dict, every_seconds=10.0)
    assert len({job.position for job in jobs}) == 1
    done = 0
    gathered: list[int] = []
    for work in in_step(jobs, size, epochs):
        left = []
        steps = []
        for job, indices in work:
            step = job.step()
            gathered += indices if step.samples else []
            steps.append(step)
        if steps[0].completes_batch:
            for model in models:
                model.seen.append(tuple(sorted(gathered)))
            gathered = []
            done += 1
            if done == start.saves_after:
                clock.now += 10.0
            if done == start.steps and not start.is_killed:
                looking.enter_context(Looking(jobs))
                for job in jobs:
                    job.stopping.ask()
        for step in steps:
            try:
                with step:
                    pass
            except SystemExit as error:
                left.append(error.code)
        if left:
            assert left == [143] * len(jobs), "all processes leave after the same step"
            return False, models[0].seen
        if done == start.steps and start.is_killed:
            return False, models[0].seen
    return True, models[0].seen


def undisturbed(size: int, batch: int, epochs: int) -> Batches:
    with tempfile.TemporaryDirectory() as directory:
        ended, seen = train(Start(1, 10**9, False, None, 10**9), 1, directory, size, batch, epochs)
    assert ended
    return seen


starts = st.builds(
    Start,
    world_size=st.integers(1, 5),
    steps=st.integers(1, 9),
    is_killed=st.booleans(),
    max_local_batch_size=st.none() | st.integers(1, 6),
    saves_after=st.integers(1, 9),
)


@given(
    size=st.integers(1, 60),
    batch=st.integers(1, 20),
    epochs=st.integers(1, 3),
    ways=st.lists(starts, max_size=8),
    final=st.integers(1, 6),
)
@settings(max_examples=examples(150), deadline=None)
def test_whatever_the_sizes_kills_and_stops_the_samples_are_those_of_an_undisturbed_run(
    size: int, batch: int, epochs: int, ways: list[Start], final: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for incarnation, start in enumerate([*ways, Start(final, 10**9, False, None, 10**9)], 1):
            ended, seen = train(start, incarnation, directory, size, batch, epochs)
            if ended:
                break
        assert ended
    assert seen == undisturbed(size, batch, epochs)
    whole = [index for step in seen for index in step]
    assert sorted(whole) == sorted(list(range(size)) * epochs)


def test_a_job_ends_with_its_iterations_in_the_middle_of_an_epoch(tmp_path: Any) -> None:
    ended, seen = train(Start(2, 10**9, False, None, 10**9), 1, str(tmp_path), 20, 4, None, iterations=7)
    assert ended
    assert seen == undisturbed(20, 4, 2)[:7]
    # Started once more, there is nothing to do, and that is no failure.
    ended, again = train(Start(3, 10**9, False, None, 10**9), 2, str(tmp_path), 20, 4, None, iterations=7)
    assert (ended, again) == (True, seen)


def test_a_checkpoint_that_cannot_be_loaded_costs_the_steps_since_the_one_before(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    train(Start(1, 4, False, None, 2), 1, str(tmp_path), 50, 5, 1)
    found = sorted((tmp_path / "flyball").glob("checkpoint-*"))
    assert [path.name[-2:] for path in found] == ["02", "04"]
    size = (found[1] / "state").stat().st_size
    (found[1] / "state").write_bytes(b"\0" * size)
    ended, seen = train(Start(2, 10**9, False, None, 10**9), 2, str(tmp_path), 50, 5, 1)
    assert ended
    assert seen == undisturbed(50, 5, 1)
    assert "an older one is tried" in caplog.text
