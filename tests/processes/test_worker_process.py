"""A process that may die at any moment: what is asked of it, how it ends, and that it outlives nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flyball_processes import WorkerProcess

from tests.support.process_tasks import echo
from tests.support.waiting import PATIENCE_SECONDS, wait_until


def is_running(pid: int) -> bool:
    """Whether the process exists and has not ended, unreaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until_gone(pid: int) -> None:
    wait_until(lambda: not is_running(pid), f"process {pid} has ended")


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    made = WorkerProcess(echo, "test-worker")
    assert made.pipe.recv() == made.pid != os.getpid()
    yield made
    made.close()


def test_it_answers_until_it_is_closed(worker: WorkerProcess) -> None:
    for request in ("one", {"two": 2}):
        worker.pipe.send(request)
        assert worker.pipe.recv() == request
    assert worker.alive
    worker.close()
    assert not worker.alive
    assert not is_running(worker.pid)


@pytest.mark.parametrize(("request_", "end"), [("die", "signal SIGKILL"), ("leave", "status 3")])
def test_its_end_is_the_end_of_its_pipe(worker: WorkerProcess, request_: str, end: str) -> None:
    worker.pipe.send(request_)
    with pytest.raises(EOFError):
        worker.pipe.recv()
    assert worker.how_it_ended() == end


def test_an_interrupt_does_not_reach_it(worker: WorkerProcess) -> None:
    worker.pipe.send("interrupt")
    assert worker.pipe.recv() == "interrupt"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())


def test_a_killed_process_leaves_its_pipe_open_for_who_reads(worker: WorkerProcess) -> None:
    worker.kill()
    with pytest.raises(EOFError):
        worker.pipe.recv()


def test_one_that_is_told_no_more_ends_in_order() -> None:
    worker = WorkerProcess(echo)
    worker.pipe.recv()
    worker.pipe.close()
    assert worker.how_it_ended(PATIENCE_SECONDS) == "status 0"


def test_it_does_not_outlive_a_parent_that_is_killed() -> None:
    command = [sys.executable, "-m", "tests.support.process_tasks"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
    until_gone(pid)
