"""Processes that are asked to stop leave after one and the same step, whoever was asked, and whoever is gone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from flyball.shared_values import SharedValues
from flyball.stopping import Stopping

from tests.support.waiting import PATIENCE_SECONDS, wait_until

CLIENT = Path(__file__).parents[2] / "client"


def test_whoever_looks_for_a_value_makes_its_file_first(tmp_path: Path) -> None:
    """A network file system may remember for half a minute that a file was not there."""
    first, second = SharedValues(str(tmp_path)), SharedValues(str(tmp_path))
    Stopping(1, 2, second)
    assert {path.name for path in tmp_path.iterdir()} == {"asked", "stop", "after"}
    assert second.wait("restored", 0.0) is None
    assert (tmp_path / "restored").exists()
    first.put("restored", "nothing")
    assert second.get("restored") == "nothing"
    Stopping(0, 2, first)
    assert second.get("restored") == "nothing"


class Gang:
    """Threads that train in step: none ends a step before all have begun it, as by an all-reduce.

    Those that only queue their steps may be `ahead` by so many more; rank 0 is the slowest then.
    """

    def __init__(self, folder: Path, world_size: int, ahead: int = 0) -> None:
        self.stoppings = [
            Stopping(rank, world_size, SharedValues(str(folder)) if world_size > 1 else None)
            for rank in range(world_size)
        ]
        self._ahead = ahead
        self._begun = [0] * world_size
        self._begins = threading.Condition()
        self._ended = threading.Event()
        self.left_after: dict[int, int] = {}
        self.steps = [0] * world_size
        self._threads = [threading.Thread(target=self._train, args=(rank,), daemon=True) for rank in range(world_size)]
        self._threads += [threading.Thread(target=self._look, args=(each,), daemon=True) for each in self.stoppings]
        for thread in self._threads:
            thread.start()

    def _train(self, rank: int) -> None:
        chance = random.Random(rank)
        while True:
            with self._begins:
                self._begun[rank] += 1
                self._begins.notify_all()
                reduced = self._begins.wait_for(
                    lambda: min(self._begun) >= self._begun[rank] - self._ahead, PATIENCE_SECONDS
                )
                if not reduced:
                    return
            for _ in range(chance.randint(0, 2000) * (10 if self._ahead and rank == 0 else 1)):
                pass
            self.steps[rank] += 1
            if self.stoppings[rank].due(self.steps[rank]):
                self.left_after[rank] = self.steps[rank]
                return

    def _look(self, stopping: Stopping) -> None:
        while not self._ended.wait(0.005):
            stopping.look()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), "nobody waits for one that has left"


@pytest.mark.parametrize("world_size", [1, 2, 5])
@pytest.mark.parametrize("asked", ["all", "first", "last"])
@pytest.mark.parametrize("ahead", [0, 1, 20])
def test_all_leave_after_the_same_step(tmp_path: Path, world_size: int, asked: str, ahead: int) -> None:
    gang = Gang(tmp_path, world_size, ahead)
    wait_until(lambda: min(gang.steps) >= 3, "training has begun")
    who = {"all": gang.stoppings, "first": gang.stoppings[:1], "last": gang.stoppings[-1:]}[asked]
    for stopping in who:
        stopping.ask()
    wait_until(lambda: len(gang.left_after) == world_size, "everybody has left")
    gang.end()
    assert len(set(gang.left_after.values())) == 1


def test_rank_0_does_not_wait_for_ever_for_one_that_is_gone(tmp_path: Path) -> None:
    times = iter(range(0, 1000, 2))
    stopping = Stopping(0, 3, SharedValues(str(tmp_path)), lambda: float(next(times)))
    stopping.ask()
    assert stopping.due(7), "its own state is whole after step 7"


def test_who_hears_nothing_from_rank_0_leaves_by_itself(tmp_path: Path) -> None:
    times = iter(range(0, 1000, 2))
    values = SharedValues(str(tmp_path))
    stopping = Stopping(1, 2, values, lambda: float(next(times)))
    assert not stopping.due(7)
    values.put("stop", "yes")
    stopping.look()
    assert values.get("answer-1") == "8"
    assert not stopping.due(7), "the step that it may be in the middle of is done"
    assert stopping.due(8)
    assert not stopping.agreed


def test_nobody_is_asked_by_an_earlier_start(tmp_path: Path) -> None:
    first = Stopping(0, 2, SharedValues(str(tmp_path / ".run-1")))
    first.ask()
    second = Stopping(0, 2, SharedValues(str(tmp_path / ".run-2")))
    second.look()
    assert not second.due(1)


PROGRAM = """
import flyball, pathlib, pickle, sys, time
job = flyball.join(checkpoint_directory=sys.argv[1])
seen = []
job.register(lambda: seen, seen.extend, every_seconds=1e9)
print("from", job.position.iteration, flush=True)
for epoch in job.epochs(1):
    for batch in job.loader(range(int(sys.argv[2])), 2):
        with job.step():
            time.sleep(0.005)
            seen.extend(batch)
        print(job.position.iteration, flush=True)
print("trained", sorted(seen) == list(range(int(sys.argv[2]))), flush=True)
"""


def test_a_script_that_is_terminated_saves_leaves_with_143_and_goes_on_there(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("FLYBALL", "RANK", "WORLD"))}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "checkpoints")]
    said = tmp_path / "said"
    with said.open("w") as out:
        process = subprocess.Popen([*command, "100000"], stdout=out, env={**environment, "PYTHONPATH": str(CLIENT)})
        try:
            wait_until(lambda: "\n3\n" in said.read_text(), "the third step is done")
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM
        finally:
            process.kill()
            process.wait()
    done = int(said.read_text().split()[-1])
    second = subprocess.Popen(
        [*command, "100000"], stdout=subprocess.PIPE, env={**environment, "PYTHONPATH": str(CLIENT)}, text=True
    )
    assert second.stdout is not None
    try:
        assert second.stdout.readline() in (f"from {done}\n", f"from {done + 1}\n")
    finally:
        second.kill()
        second.wait()
        second.stdout.close()


FORKING = """
import flyball, multiprocessing, time
def run(running):
    running.set()
    while True:
        time.sleep(0.01)  # a signal just before a sleep does not shorten it
flyball.join()
forking = multiprocessing.get_context("fork")
running = forking.Event()
child = forking.Process(target=run, args=(running,))
child.start()
running.wait()  # Python forgets signals that come while it forks
child.terminate()
child.join(30)
print(child.exitcode, flush=True)
child.kill()
"""


def test_a_fork_is_ended_by_sigterm_as_ever() -> None:
    """Who ends a `multiprocessing.Pool` sends SIGTERM to its workers and waits for them."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("FLYBALL", "RANK", "WORLD"))}
    done = subprocess.run(
        [sys.executable, "-c", FORKING],
        env={**environment, "PYTHONPATH": str(CLIENT)},
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.stdout.split() == [str(-signal.SIGTERM)]


def test_a_handler_that_was_there_is_called_too() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        stopping = Stopping()
        assert stopping.on_sigterm()
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: stopping.is_asked, "SIGTERM has come")
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
