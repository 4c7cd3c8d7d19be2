"""Processes that cannot outlive their owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from flyball_testbed.controlplane.ports import free_port, is_free
from flyball_testbed.controlplane.processes import (
    Process,
    ProcessIdentity,
    log_tail,
    pause_seconds,
    processor_seconds,
    resident_bytes,
    uninterrupted,
    wait_until,
)
from hypothesis import given
from hypothesis import strategies as st

SLEEP = "/bin/sleep"


def spawn(tmp_path: Path, *argv: str, **keywords: Any) -> Process:
    return Process.spawn("test", argv or (SLEEP, "600"), log_path=tmp_path / "log", **keywords)


def test_output_is_kept_and_the_status_told(tmp_path: Path) -> None:
    process = spawn(tmp_path, "/bin/sh", "-c", "echo one; echo two >&2; exit 7")
    assert process.wait(30)
    assert process.exit_status == 7
    assert not process.is_running()
    assert process.log_tail() == "one\ntwo"
    assert process.log_tail(1) == "two"


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = spawn(tmp_path, "/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    assert wait_until(lambda: process.log_tail() == "ready", 30)
    assert process.stop(0.3) is False
    assert not process.is_running()
    assert process.exit_status == -signal.SIGKILL


def test_a_paused_process_can_be_stopped(tmp_path: Path) -> None:
    process = spawn(tmp_path)
    process.pause()
    assert not process.wait(0.1)
    assert process.stop(30) is True
    assert process.exit_status == -signal.SIGTERM


def test_it_is_in_a_process_group_of_its_own(tmp_path: Path) -> None:
    process = spawn(tmp_path)
    try:
        assert os.getpgid(process.pid) == process.pid
        assert os.getsid(process.pid) == os.getsid(0)
    finally:
        process.kill()


def test_a_daemon_is_in_a_session_of_its_own(tmp_path: Path) -> None:
    process = spawn(tmp_path, die_with_parent=False)
    try:
        assert os.getsid(process.pid) == process.pid
    finally:
        process.kill()


def test_it_outlives_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    """The kernel's signal comes with the end of the forking thread: an event loop's workers end before the process."""
    started: list[Process] = []
    thread = threading.Thread(target=lambda: started.append(spawn(tmp_path)))
    thread.start()
    thread.join()
    assert not started[0].wait(0.3)
    started[0].kill()


@pytest.mark.parametrize(("dies", "detached"), [(True, False), (False, True)])
def test_only_a_daemon_outlives_a_killed_owner(tmp_path: Path, dies: bool, detached: bool) -> None:
    program = (
        "import sys, signal, pathlib\n"
        "from flyball_testbed.controlplane.processes import Process\n"
        f"process = Process.spawn('x', ['{SLEEP}', '600'], log_path=pathlib.Path(sys.argv[1]), die_with_parent={dies})\n"
        "print(process.identity.pid, process.identity.started_ticks, flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        identity = ProcessIdentity(*map(int, owner.stdout.readline().split()))
        owner.kill()
    found_again = Process("x", identity, tmp_path / "log")
    assert found_again.wait(1.0 if detached else 30.0) is dies
    assert found_again.is_running() is detached
    found_again.kill()
    assert not identity.is_running()


def test_a_recycled_process_id_is_not_signalled(tmp_path: Path) -> None:
    other = spawn(tmp_path)
    try:
        stale = Process("gone", ProcessIdentity(other.pid, other.identity.started_ticks - 1), tmp_path / "log")
        assert not stale.is_running()
        assert stale.signal(signal.SIGKILL) is False
        assert stale.stop() is True
        assert other.is_running()
    finally:
        other.kill()


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="test: there is no program /no/such"):
        spawn(tmp_path, "/no/such")


def test_an_interruption_waits_for_the_end_of_the_block() -> None:
    reached = []

    def interrupted_block() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            reached.append("the end")
        reached.append("what follows")

    with pytest.raises(KeyboardInterrupt):
        interrupted_block()
    assert reached == ["the end"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_memory_of_a_process() -> None:
    assert resident_bytes(os.getpid()) > 1 << 20
    assert resident_bytes(2**22 + 1) == 0


def test_processor_time_of_a_process_and_its_children(tmp_path: Path) -> None:
    work = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ntime.sleep(600)"
    before = processor_seconds(os.getpid())
    process = spawn(tmp_path, "/bin/sh", "-c", f'{sys.executable} -c "$0" & wait', work)
    try:
        assert wait_until(lambda: process.log_tail() == "done", 30)
        # The clock has ticks of a hundredth, and each process' is cut off to them.
        assert processor_seconds(process.pid) >= 0.25  # the shell's child
        assert processor_seconds(os.getpid()) - before >= 0.25  # started by another thread of ours
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the child too
    assert process.wait(30)
    assert processor_seconds(process.pid) == 0


def test_a_long_log_is_read_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    assert log_tail(log, 2) == "line 99998\nline 99999"
    assert log_tail(tmp_path / "none") == ""


def test_a_free_port_can_be_bound_and_is_not_an_outgoing_one() -> None:
    import socket

    from flyball_testbed.controlplane import ports

    port = free_port()
    assert port < ports._ephemeral_start()
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        assert not is_free(port)


@given(st.floats(0.0, 1000.0), st.floats(0.001, 1.0))
def test_what_takes_long_to_answer_is_asked_for_a_tenth_of_the_time_and_still_often(
    answer: float, every: float
) -> None:
    pause = pause_seconds(answer, every)
    assert every <= pause <= max(every, 0.5)
    assert answer <= (answer + pause) / 10 * (1 + 1e-9) or pause == max(every, 0.5)
