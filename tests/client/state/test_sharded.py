"""State in shards: whatever the sizes, kills and failures, what is loaded is whole, and the newest that is."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from flyball.environment import Environment
from flyball.job import Job
from flyball.shared_values import SharedValues
from flyball.state import sharded as sharded_state
from flyball.state.checkpoints import Disk
from flyball.state.sharded import STATE_FOLDER, ShardedState
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.waiting import PATIENCE_SECONDS

PARAMETERS = 7
STEPS = 24


class Killed(BaseException):
    """The process is gone: no handler runs."""


class Cluster:
    """All processes of one start, as threads; at a call of the file system, or of a writer, all of them are killed."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.calls = 0
        self.is_dead = threading.Event()
        self.barrier = threading.Barrier(1)
        self._dies_at = dies_at
        self._lock = threading.Lock()

    def call(self, undone: Callable[[], object] = lambda: None) -> None:
        """Something that may be the last that happens, done in part by `undone`."""
        with self._lock:
            self.check()
            self.calls += 1
            if self.calls - 1 == self._dies_at:
                undone()
                self.is_dead.set()
                self.barrier.abort()
                raise Killed

    def check(self) -> None:
        if self.is_dead.is_set():
            raise Killed

    def all_reduce(self) -> None:
        try:
            self.barrier.wait(PATIENCE_SECONDS)
        except threading.BrokenBarrierError:
            raise Killed from None

    @contextmanager
    def at_every_call(self) -> Iterator[None]:
        """Have the disk's calls, and what waits for other processes, in reach."""
        cluster = self

        class Calls(Disk):
            def make(self, folder: str) -> None:
                cluster.call()
                super().make(folder)

            def write(self, path: str, data: bytes) -> None:
                cluster.call(lambda: Path(path).write_bytes(data[: len(data) // 2]))
                super().write(path, data)

            def sync(self, path: str) -> None:
                cluster.call()
                os.stat(path)

            def rename(self, source: str, target: str) -> None:
                cluster.call()
                super().rename(source, target)

            def remove(self, folder: str) -> None:
                cluster.call()
                super().remove(folder)

        def pause(_: SharedValues) -> None:
            cluster.check()
            threading.Event().wait(0.0002)

        with mock.patch.object(sharded_state, "Disk", Calls), mock.patch.object(SharedValues, "pause", pause):
            yield


def value(index: int, step: int) -> int:
    """What a parameter is after a step: each step makes another of it."""
    return index * 1_000_003 + step * (step + 1) // 2


@dataclass
class Shard:
    """One process' part of the parameters: every `world_size`-th."""

    rank: int
    world_size: int
    cluster: Cluster
    values: dict[int, int] = field(default_factory=dict)
    broken: bool = False

    def __post_init__(self) -> None:
        self.values = {index: value(index, 0) for index in range(self.rank, PARAMETERS, self.world_size)}

    def train(self, step: int) -> None:
        self.values = {index: before + step for index, before in self.values.items()}

    def write(self, folder: str) -> None:
        path = Path(folder, f"shard-{self.rank}")
        text = json.dumps({"of": self.world_size, "values": list(self.values.items())})
        self.cluster.call()
        self.cluster.call(lambda: path.write_text(text[: len(text) // 2]))
        if self.broken:
            raise OSError("no space left on device")
        path.write_text(text)
        self.cluster.call()

    def read(self, folder: str) -> None:
        shards = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
        assert {shard["of"] for shard in shards} == {len(shards)}, "of one save, and all of them"
        whole = {index: number for shard in shards for index, number in shard["values"]}
        self.values = {index: whole[index] for index in self.values}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Ran:
    """What one start came to."""

    begun_at: int
    saved: list[int]
    ended: bool
    shards: list[Shard]


def run(
    folder: str,
    incarnation: int,
    world_size: int,
    dies_at: int | None = None,
    breaks: tuple[int, int] | None = None,
    stops_after: int | None = None,
) -> Ran:
    """One start, to its end or until it is killed. `breaks`: at which step which rank cannot write its shard."""
    cluster, clock = Cluster(dies_at), Clock()
    cluster.barrier = threading.Barrier(world_size)
    shards = [Shard(rank, world_size, cluster) for rank in range(world_size)]
    saved: list[int] = []
    positions: dict[int, int] = {}
    ends: list[object] = []
    jobs: dict[int, Job] = {}

    def train(rank: int) -> None:
        job = jobs[rank] = Job(
            Environment(
                rank=rank, world_size=world_size, incarnation=incarnation, run=f"{incarnation:06d}.0",
                checkpoint_directory=folder, global_batch_size=world_size, iterations=STEPS,
            ),
            monotonic=clock,
        )  # fmt: skip
        shard = shards[rank]
        job.register_sharded(shard.write, shard.read, every_seconds=2.0)
        positions[rank] = job.position.iteration
        for index, number in shard.values.items():
            assert number == value(index, positions[rank]), "a whole checkpoint, of the step that it says"
        for _ in job.epochs():
            for _ in job.loader(range(1000)):
                cluster.all_reduce()
                step = job.position.iteration + 1
                shard.train(step)
                shard.broken = breaks is not None and breaks[0] <= step < breaks[0] + 9 and breaks[1] == rank
                if stops_after is not None and step - positions[rank] >= stops_after:
                    job.stopping.ask()
                for look in (*job._looks, job.stopping.look):
                    look()
                before = job._saved.iteration  # type: ignore[union-attr]
                clock.now += 1.0 / world_size  # less than what a process waits for another to answer
                with job.step():
                    pass
                if rank == 0 and job._saved.iteration != before:  # type: ignore[union-attr]
                    saved.append(job._saved.iteration)  # type: ignore[union-attr]

    def process(rank: int) -> None:
        try:
            train(rank)
            ends.append("end")
        except Killed:
            ends.append("killed")
        except SystemExit as error:
            ends.append(error.code)
        except BaseException as error:
            ends.append(error)
            cluster.is_dead.set()
            cluster.barrier.abort()

    def look() -> None:
        while any(thread.is_alive() for thread in threads):
            for job in list(jobs.values()):
                job.stopping.look()
            threading.Event().wait(0.0005)

    with cluster.at_every_call():
        threads = [threading.Thread(target=process, args=(rank,), daemon=True) for rank in range(world_size)]
        looking = threading.Thread(target=look, daemon=True)
        for thread in (*threads, looking):
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), "nobody waits for ever"
        looking.join(PATIENCE_SECONDS)
    wrong = [end for end in ends if end not in ("end", "killed", 143)]
    assert not wrong, wrong
    if dies_at is None:
        assert len(set(ends)) == 1, "all leave, or all come to the end"
        if ends == ["end"] * world_size or 143 in ends:
            saved.append(jobs[0]._saved.iteration)  # type: ignore[union-attr]
            assert {job.position.iteration for job in jobs.values()} == {jobs[0].position.iteration}
    assert len(set(positions.values())) <= 1, "all go on from one step"
    return Ran(positions.get(0, 0), saved, set(ends) == {"end"}, shards)


starts = st.tuples(
    st.integers(1, 4),  # processes
    st.none() | st.integers(0, 160),  # the call at which they are killed
    st.none() | st.tuples(st.integers(1, STEPS), st.integers(0, 3)),  # a step, and whose shard cannot be written then
    st.none() | st.integers(1, 12),  # steps until they are asked to leave
)


@given(ways=st.lists(starts, max_size=5), final=st.integers(1, 4))
@settings(max_examples=examples(60), deadline=None)
def test_whatever_the_sizes_kills_and_failures_no_half_checkpoint_is_loaded_and_none_is_lost(
    ways: list[tuple[int, int | None, tuple[int, int] | None, int | None]], final: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        newest = 0
        for incarnation, (world_size, *how) in enumerate(ways, 1):
            ran = run(folder, incarnation, world_size, *how)  # type: ignore[arg-type]
            if not (how[0] is not None and ran.begun_at == 0):  # one that was killed before it knew where to begin
                assert ran.begun_at >= newest, "nothing is lost but what came after the last whole one"
            newest = max([newest, *ran.saved])
        ran = run(folder, len(ways) + 1, final)
        assert ran.begun_at >= newest
        assert ran.ended
        for shard in ran.shards:
            assert shard.values == {index: value(index, STEPS) for index in shard.values}


@pytest.mark.slow
def test_killed_at_every_single_call_the_next_start_goes_on_from_a_whole_one(tmp_path: Path) -> None:
    whole = run(str(tmp_path / "whole"), 1, 3)
    assert whole.ended
    assert len(whole.saved) >= 3
    calls = 0
    while True:
        folder = str(tmp_path / f"killed-{calls}")
        first = run(folder, 1, 3, dies_at=calls)
        then = run(folder, 2, 2)
        assert then.begun_at >= max([0, *first.saved])
        assert then.ended
        if first.ended:
            break
        calls += 1
    assert calls > 60, "every write, sync and rename of its checkpoints was one"


def test_a_shard_that_cannot_be_written_costs_that_checkpoint_and_one_warning_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ran = run(str(tmp_path), 1, 3, breaks=(1, 2))
    assert ran.ended
    assert ran.saved
    assert min(ran.saved) > 9
    assert "the shard of rank 2 cannot be written, training goes on: no space left on device" in caplog.text
    assert "training goes on: rank 2 has failed" in caplog.text
    found = sorted(path.name for path in (tmp_path / "flyball").glob("checkpoint-*"))
    assert len(found) == 2
    assert sorted(path.name for path in (tmp_path / "flyball" / found[1] / STATE_FOLDER).iterdir()) == [
        "shard-0", "shard-1", "shard-2",
    ]  # fmt: skip


def test_one_that_some_process_cannot_read_is_passed_over_by_all(tmp_path: Path) -> None:
    first = run(str(tmp_path), 1, 3)
    newest, before = sorted((tmp_path / "flyball").glob("checkpoint-*"), reverse=True)[:2]
    shard = newest / STATE_FOLDER / "shard-1"
    shard.write_text("x" * len(shard.read_text()))
    then = run(str(tmp_path), 2, 2)
    assert then.begun_at == int(before.name[-12:]) < max(first.saved)
    assert then.ended


def test_where_none_can_be_read_nobody_begins_anew(tmp_path: Path) -> None:
    run(str(tmp_path), 1, 2)
    for shard in (tmp_path / "flyball").glob("checkpoint-*/*/shard-0"):
        shard.write_text("x" * len(shard.read_text()))
    with pytest.raises(AssertionError, match="none of the checkpoints"):
        run(str(tmp_path), 2, 2)
    assert len(list((tmp_path / "flyball").glob("checkpoint-*"))) == 2, "they are there for somebody to look at"


def test_a_process_that_does_not_come_costs_the_checkpoint_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sharded_state, "HERE_SECONDS", 0.05)
    values = SharedValues(str(tmp_path / "values"))
    shard = Shard(0, 2, Cluster())
    alone: Any = ShardedState(
        str(tmp_path / "flyball"), Environment(rank=0, world_size=2), values, shard.write, shard.read,
        every_seconds=10.0, kept=2,
    )  # fmt: skip
    assert alone.restore() is None
    assert not alone.save(Job(Environment()).position, 10, 0)
    assert "training goes on: rank 1 did not answer within 0.05 s" in caplog.text
    assert not list((tmp_path / "flyball").glob("*checkpoint*"))


def test_without_a_volume_there_are_no_checkpoints() -> None:
    shard = Shard(0, 1, Cluster())
    assert not Job(Environment()).register_sharded(shard.write, shard.read)
