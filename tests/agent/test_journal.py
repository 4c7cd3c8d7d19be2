"""The journal: nothing is lost at a crash in any write, whatever is torn is skipped, a failing disk is survived."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest
from flyball_agent.desired import DesiredSpec, JobGrant
from flyball_agent.journal import (
    Disk,
    Intent,
    Journal,
    JournalError,
    JournalHeld,
    KnownBoard,
    Lease,
    accept_record,
    boards_record,
    decode,
    driver_record,
    encode,
    energy_record,
    intent_record,
    lease_record,
)

JOB = JobGrant("research", "gpt2", "u-1", 1, "gpt2-1-0", 2, 250_000, 900, 1005)
HISTORY = [
    boards_record([KnownBoard("GPU-a", "A100", 100_000, 400_000, 400_000, 400_000)]),
    driver_record({"boot": "boot-1", "driver": "1", "resets": 0}),
    accept_record(DesiredSpec(1, 1, 30, 200_000), Lease("boot-1", 30)),
    intent_record((1, 1), [Intent("GPU-a", 400_000, 100_000)]),
    lease_record(Lease("boot-1", 60)),
    accept_record(DesiredSpec(1, 2, 30, 500_000, jobs=(JOB,)), Lease("boot-1", 90)),
    intent_record((1, 2), [Intent("GPU-a", 100_000, 250_000)]),
    energy_record({"idle": 5}),
]


def states(records):
    """The state after each number of records."""
    from flyball_agent.journal import JournalState

    state, after = JournalState(), [repr(JournalState())]
    for record in records:
        state.apply(record)
        after.append(repr(state))
    return after


def test_everything_comes_back(tmp_path):
    journal = Journal(tmp_path, "node-0")
    for record in HISTORY:
        journal.commit(record)
    journal.close()
    again = Journal(tmp_path, "node-0")
    assert repr(again.state) == states(HISTORY)[-1]
    assert again.state.spec.jobs == (JOB,)
    assert again.state.lease == Lease("boot-1", 90)
    assert again.state.intents == {"GPU-a": Intent("GPU-a", 100_000, 250_000)}
    assert again.unreadable_records == 0
    again.close()


def test_a_lease_holds_in_its_boot_only():
    lease = Lease("boot-1", 100)
    assert lease.valid("boot-1", 99)
    assert not lease.valid("boot-1", 100)
    assert not lease.valid("boot-2", 5)


class Crash(BaseException):
    pass


class QuickDisk(Disk):
    """Without the waiting: what a process wrote survives its own death, synced or not."""

    def sync(self, descriptor):
        pass

    def replace(self, source, target):
        source.replace(target)


class CrashingDisk(QuickDisk):
    """Dies at its n-th byte written, or at its n-th other call; what was written before is on the disk."""

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def spend(self, amount: int = 1) -> None:
        if self.budget < amount:
            self.budget = 0
            raise Crash
        self.budget -= amount

    def write(self, descriptor, data):
        affordable = min(len(data), self.budget)
        super().write(descriptor, data[:affordable])
        self.budget -= affordable
        if affordable < len(data):
            raise Crash
        return len(data)

    def sync(self, descriptor):
        self.spend()
        super().sync(descriptor)

    def replace(self, source, target):
        self.spend()
        super().replace(source, target)


def run_until_crash(folder, budget: int, max_bytes: int) -> int | None:
    """How many records were committed before the crash; None where there was none."""
    committed = 0
    disk = CrashingDisk(10**9)
    journal = Journal(folder, "node-0", disk=disk, max_bytes=max_bytes)
    disk.budget = budget
    try:
        for record in HISTORY:
            journal.commit(record)
            committed += 1
    except Crash:
        return committed
    finally:
        journal.close()
    return None


@pytest.mark.parametrize("max_bytes", [100_000, 700], ids=["append", "compact"])
def test_a_crash_at_any_byte_and_any_call_loses_nothing_that_was_committed(tmp_path, max_bytes):
    after = states(HISTORY)
    budget, crashes = 0, 0
    while True:
        folder = tmp_path / str(budget)
        committed = run_until_crash(folder, budget, max_bytes)
        if committed is None:
            break
        crashes += 1
        found = Journal(folder, "node-0", max_bytes=max_bytes, disk=QuickDisk())
        # The record in flight may have got there whole; nothing else, and never less.
        assert repr(found.state) in (after[committed], after[committed + 1])
        assert found.unreadable_records <= 1
        assert found.degraded is None
        found.commit(*HISTORY)  # and it can be used
        found.close()
        budget += 1
    assert crashes > 900


def test_a_spoilt_line_in_the_middle_is_skipped_and_counted(tmp_path):
    path = tmp_path / "node-0.journal"
    lines = [encode(record) for record in HISTORY]
    lines[3] = lines[3].replace(b"100000", b"999999")  # no longer what was summed
    path.write_bytes(b"".join(lines[:4]) + b"\n\xff\xfe garbage\n12345678 {}\n" + b"".join(lines[4:]))
    journal = Journal(tmp_path, "node-0")
    assert journal.unreadable_records == 3
    assert repr(journal.state) == states(HISTORY[:3] + HISTORY[4:])[-1]
    journal.close()
    clean = Journal(tmp_path, "node-0")
    assert clean.unreadable_records == 0
    clean.close()


def test_lines_that_check_but_are_no_records_are_refused():
    assert decode(encode({"t": "lease"})[:-1]) == {"t": "lease"}
    assert decode(b"") is None
    assert decode(b"zzzzzzzz {}") is None
    assert decode(encode([1, 2])[:-1]) is None  # type: ignore[arg-type]


def test_the_file_stays_within_its_bound(tmp_path):
    journal = Journal(tmp_path, "node-0", max_bytes=4000)
    for number in range(500):
        journal.commit(lease_record(Lease("boot-1", number)), durable=False)
        assert journal.path.stat().st_size <= 4000
    assert journal.rewrites > 2
    journal.close()
    again = Journal(tmp_path, "node-0")
    assert again.state.lease == Lease("boot-1", 499)
    again.close()


class FailingDisk(Disk):
    """Refuses one kind of call while `failing` names it."""

    def __init__(self) -> None:
        self.failing: str | None = None
        self.code = errno.ENOSPC

    def _maybe(self, name: str) -> None:
        if self.failing in (name, "all"):
            raise OSError(self.code, os.strerror(self.code))

    def open(self, path, flags):
        self._maybe("open")
        return super().open(path, flags)

    def write(self, descriptor, data):
        if self.failing in ("write", "all") and len(data) > 1:
            super().write(descriptor, data[: len(data) // 2])  # a full disk takes what fits
        self._maybe("write")
        return super().write(descriptor, data)

    def sync(self, descriptor):
        self._maybe("sync")
        super().sync(descriptor)

    def replace(self, source, target):
        self._maybe("replace")
        super().replace(source, target)


@pytest.mark.parametrize("kind", ["write", "sync", "all"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_failing_disk_degrades_keeps_the_state_and_heals(tmp_path, kind, code):
    disk = FailingDisk()
    journal = Journal(tmp_path, "node-0", disk=disk)
    journal.commit(HISTORY[2])
    disk.failing, disk.code = kind, code
    with pytest.raises(JournalError, match=os.strerror(code)):
        journal.commit(HISTORY[5])
    assert journal.degraded is not None
    assert journal.state.spec.pair == (1, 2)  # remembered in memory: a lower pair stays refused
    with pytest.raises(JournalError):
        journal.commit(HISTORY[6])
    assert not journal.retry()
    disk.failing = None
    assert journal.retry()
    assert journal.degraded is None
    journal.close()
    again = Journal(tmp_path, "node-0")
    assert again.state.spec.pair == (1, 2)
    assert again.state.intents["GPU-a"].new_milliwatts == 250_000
    again.close()


def test_a_folder_that_cannot_be_made_degrades_from_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "below", "node-0")
    assert journal.degraded is not None
    with pytest.raises(JournalError):
        journal.commit(HISTORY[0])
    journal.close()


def test_one_agent_at_a_time(tmp_path):
    journal = Journal(tmp_path, "node-0")
    with pytest.raises(JournalHeld, match="another agent"):
        Journal(tmp_path, "node-0")
    Journal(tmp_path, "node-1").close()
    journal.close()
    Journal(tmp_path, "node-0").close()


WRITER = """
import sys
from flyball_agent.desired import DesiredSpec
from flyball_agent.journal import Journal, Lease, accept_record
journal = Journal(sys.argv[1], "node-0", max_bytes=2000)
generation = journal.state.spec.generation if journal.state.spec else 0
while True:
    generation += 1
    journal.commit(accept_record(DesiredSpec(1, generation, 30, 1), Lease("b", generation)))
    sys.stdout.write(f"{generation}\\n")
    sys.stdout.flush()
"""


def test_a_process_that_is_killed_forgets_no_pair_that_it_announced(tmp_path):
    on_disk = 0
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        lines = [process.stdout.readline() for _ in range(40)]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.read().splitlines(keepends=True)
        process.wait()
        announced = [int(line) for line in lines if line.endswith("\n")]
        assert announced == list(range(on_disk + 1, announced[-1] + 1))
        journal = Journal(tmp_path, "node-0")
        on_disk = journal.state.spec.generation
        journal.close()
        assert on_disk in (announced[-1], announced[-1] + 1)  # one may be written and not announced yet
