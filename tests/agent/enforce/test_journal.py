"""The journal: nothing is lost at a crash in any write, whatever is torn is skipped, a failing disk is survived."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from flyball_agent import off_loop
from flyball_agent.enforce.journal import Disk, Journal, JournalError, JournalHeld, JournalOfAnotherNode
from flyball_agent.enforce.records import (
    MAX_GPUS,
    MAX_UNKNOWN_KINDS,
    Accepted,
    DriverLoad,
    DriverSeen,
    EnergyTotals,
    Forgotten,
    FoundGpu,
    FoundGpus,
    Gaps,
    GrantLease,
    Intent,
    Intents,
    JournalState,
    Record,
    VersionBefore,
    decode,
    encode,
    found_gpus,
)
from flyball_api.grant import Grant, JobGrant, PowerBound
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts
from msgspec.structs import replace

from tests.support.agent_doubles import QuickDisk
from tests.support.examples import examples

JOB = JobGrant("research", "gpt2", "u-1", 1, "gpt2-1-0", 2, MilliwattsPerGpu(250_000), 900, 1005)


def grant(generation: int, bound: int, *jobs: JobGrant) -> Grant:
    return Grant(1, generation, 30, PowerBound(NodeMilliwatts(bound)), jobs=jobs)


def intent(uuid: str, old: int, new: int) -> Intent:
    return Intent(uuid, MilliwattsPerGpu(old), MilliwattsPerGpu(new))


LIMITS = tuple(MilliwattsPerGpu(limit) for limit in (100_000, 400_000, 400_000, 400_000))
HISTORY: list[Record] = [
    FoundGpus((FoundGpu("GPU-a", "A100", *LIMITS),)),
    DriverSeen(DriverLoad("boot-1", "1", 0)),
    Accepted.of(grant(1, 200_000), GrantLease("boot-1", 30)),
    Intents(1, 1, (intent("GPU-a", 400_000, 100_000),)),
    GrantLease("boot-1", 60),
    Accepted.of(grant(2, 500_000, JOB), GrantLease("boot-1", 90)),
    Intents(1, 2, (intent("GPU-a", 100_000, 250_000),)),
    VersionBefore((1, 1)),
    EnergyTotals({"idle": 5}),
]


def commit(journal: Journal, *records: Record, run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run) -> None:
    """Add records and see them onto the disk."""

    async def work() -> None:
        journal.note(*records)
        await journal.sync()

    run(work())


def tidy(journal: Journal) -> bool:
    return asyncio.run(journal.tidy())


def states(records: Sequence[Record]) -> list[str]:
    """The state after each number of records."""
    state, after = JournalState("node-0"), [repr(JournalState("node-0"))]
    for record in records:
        state.apply(record)
        after.append(repr(state))
    return after


def test_everything_comes_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "node-0")
    for record in HISTORY:
        commit(journal, record)
    journal.close()
    again = Journal(tmp_path, "node-0")
    assert repr(again.state) == states(HISTORY)[-1]
    assert again.state.grant == grant(2, 500_000, JOB)
    assert again.state.lease == GrantLease("boot-1", 90)
    assert again.state.intents == {"GPU-a": intent("GPU-a", 100_000, 250_000)}
    assert again.unreadable_records == 0
    again.close()


def test_a_lease_holds_in_its_boot_only() -> None:
    lease = GrantLease("boot-1", 100)
    assert lease.valid("boot-1", 99)
    assert not lease.valid("boot-1", 100)
    assert not lease.valid("boot-2", 5)


class Crash(BaseException):
    pass


class CrashingDisk(QuickDisk):
    """Dies at its n-th byte written, or at its n-th other call; what was written before is on the disk."""

    def __init__(self, budget: int) -> None:
        self.budget = budget

    def spend(self, amount: int = 1) -> None:
        if self.budget < amount:
            self.budget = 0
            raise Crash
        self.budget -= amount

    def write(self, descriptor: int, data: bytes) -> int:
        affordable = min(len(data), self.budget)
        super().write(descriptor, data[:affordable])
        self.budget -= affordable
        if affordable < len(data):
            raise Crash
        return len(data)

    def sync(self, descriptor: int) -> None:
        self.spend()
        super().sync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self.spend()
        super().rename(source, target)

    def sync_folder(self, path: Path) -> None:
        self.spend()


def run_until_crash(folder: Path, budget: int, max_bytes: int, runner: asyncio.Runner) -> int | None:
    """How many records were committed before the crash; None where there was none."""
    committed = 0
    disk = CrashingDisk(10**9)
    journal = Journal(folder, "node-0", disk=disk, max_bytes=max_bytes)
    disk.budget = budget
    try:
        for record in HISTORY:
            commit(journal, record, run=runner.run)
            committed += 1
    except Crash:
        return committed
    finally:
        journal.close()
    return None


EVERY = 100 // examples(100)
"""Each byte in the full profile of examples, each tenth in the fast one."""


def at_once(call: Callable[[], Any], name: str) -> Future[Any]:
    """In the place of a thread, of which there would be tens of thousands."""
    future: Future[Any] = Future()
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)
    return future


# Where the journal is made anew with each record, the same few lines are written again and again.
@pytest.mark.parametrize(("max_bytes", "every"), [(100_000, EVERY), (700, 7 * EVERY)], ids=["append", "compact"])
def test_a_crash_at_any_byte_and_any_call_loses_nothing_that_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: int, every: int
) -> None:
    monkeypatch.setattr(off_loop, "begin", at_once)
    after = states(HISTORY)
    budget, crashes = 0, 0
    with asyncio.Runner() as runner:  # an event loop for each commit would take longer than all the rest
        while (committed := run_until_crash(folder := tmp_path / str(budget), budget, max_bytes, runner)) is not None:
            crashes += 1
            found = Journal(folder, "node-0", max_bytes=max_bytes, disk=QuickDisk())
            assert found.state.gaps is (found.state.driver is None)
            if found.state.gaps:
                commit(found, Gaps(False), run=runner.run)
            # The record in flight may have got there whole; nothing else, and never less.
            kept = committed + (repr(found.state) == after[committed + 1])
            assert repr(found.state) == after[kept]
            assert found.unreadable_records <= 1
            assert found.degraded is None
            for record in HISTORY[kept:]:  # and it goes on from there
                commit(found, record, run=runner.run)
            assert repr(found.state) == after[-1]
            found.close()
            budget += every
    assert crashes > 900 // every


def test_a_spoilt_line_in_the_middle_is_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "node-0.journal"
    lines = [encode(record) for record in HISTORY]
    lines[3] = lines[3].replace(b"100000", b"999999")  # no longer what was summed
    path.write_bytes(b"".join(lines[:4]) + b"\n\xff\xfe garbage\n12345678 {}\n" + b"".join(lines[4:]))
    journal = Journal(tmp_path, "node-0")
    assert journal.unreadable_records == 3
    assert repr(journal.state) == states([*HISTORY[:3], *HISTORY[4:], Gaps(True)])[-1]
    journal.close()
    clean = Journal(tmp_path, "node-0")
    assert clean.unreadable_records == 0
    clean.close()


def line(record: object) -> bytes:
    """A line whose checksum is right, whatever it holds."""
    payload = json.dumps(record).encode()
    return b"%08x %s" % (zlib.crc32(payload), payload)


def test_the_names_on_the_disk_stay_what_they_are() -> None:
    """Journals outlive versions: whoever changes these must be able to read the old ones."""
    spec = {"epoch": 1, "generation": 2, "leaseSeconds": 30, "boundMilliwatts": 5}
    for raw, record in (
        ({"t": "lease", "boot": "b", "deadline": 7}, GrantLease("b", 7)),
        ({"t": "accept", "spec": spec, "boot": "b", "deadline": 7}, Accepted(spec, "b", 7)),
        (
            {"t": "intent", "e": 1, "g": 2, "sets": [["GPU-a", 4, 3, [5]]]},
            Intents(1, 2, (replace(intent("GPU-a", 4, 3), coming_milliwatts=(MilliwattsPerGpu(5),)),)),
        ),
        (
            {"t": "boards", "boards": [["GPU-a", "A100", 1, 2, 3, 4]]},
            FoundGpus((FoundGpu("GPU-a", "A100", *(MilliwattsPerGpu(limit) for limit in (1, 2, 3, 4))),)),
        ),
        (
            {"t": "driver", "driver": {"boot": "b", "driver": "580", "resets": 1, "counters": {"GPU-a": 9}}},
            DriverSeen(DriverLoad("b", "580", 1, {"GPU-a": 9})),
        ),
        ({"t": "gaps", "there": True}, Gaps(True)),
        ({"t": "energy", "energy": {"idle": 5}}, EnergyTotals({"idle": 5})),
    ):
        assert decode(line(raw)) == record
        assert json.loads(encode(record)[9:]) == raw
    newer = {"t": "lease", "boot": "b", "deadline": 7, "fromTheFuture": True}
    assert decode(line(newer)) == GrantLease("b", 7)
    older = {"t": "intent", "e": 1, "g": 2, "sets": [["GPU-a", 4, 3]]}
    assert decode(line(older)) == Intents(1, 2, (intent("GPU-a", 4, 3),))


def test_which_sets_were_made_before_the_present_load_of_the_driver_is_known_however_often_the_file_is_written_anew(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path, "node-0", disk=QuickDisk())
    journal.note(DriverSeen(DriverLoad("b", "580", 0)), Intents(1, 1, (intent("GPU-a", 4, 3), intent("GPU-b", 4, 3))))
    journal.note(DriverSeen(DriverLoad("b", "580", 0, {"GPU-a": 9})))
    assert journal.state.past == set()
    journal.note(DriverSeen(DriverLoad("b", "580", 1)))
    assert journal.state.past == {"GPU-a", "GPU-b"}
    journal.note(Intents(1, 2, (intent("GPU-b", 3, 5),)))
    for _ in range(3):
        journal.close()
        journal = Journal(tmp_path, "node-0", disk=QuickDisk())
        assert journal.state.past == {"GPU-a"}
        assert journal.state.intents == {"GPU-a": intent("GPU-a", 4, 3), "GPU-b": intent("GPU-b", 3, 5)}
    journal.note(Forgotten(("GPU-a",)))
    assert journal.state.past == set()
    journal.close()


def test_lines_that_check_but_are_no_records_are_refused() -> None:
    assert decode(b"") is None
    assert decode(b"zzzzzzzz {}") is None
    for raw in ([1, 2], {}, {"t": "lease"}, {"t": "unheard-of"}, {"t": "lease", "boot": "b", "deadline": "7"}):
        assert decode(line(raw)) is None


def test_what_another_version_has_written_is_kept_for_it_through_a_rollback(tmp_path: Path) -> None:
    future = [line({"t": "future", "number": number}) + b"\n" for number in (1, 2)]
    other = line({"t": "other", "x": "y"}) + b"\n"
    shape = line({"t": "lease", "until": "tomorrow"}) + b"\n"  # of a kind that is known, and not to be read
    (tmp_path / "node-0.journal").write_bytes(future[0] + encode(HISTORY[2]) + other + shape + future[1])
    for _ in range(2):
        journal = Journal(tmp_path, "node-0")
        assert journal.state.grant is not None
        commit(journal, HISTORY[5])
        journal.close()
    content = (tmp_path / "node-0.journal").read_bytes()
    assert content.startswith((future[1] + other, other + future[1]))
    assert future[0] not in content
    assert shape not in content
    many = [line({"t": f"kind-{number}"}) + b"\n" for number in range(1000)]
    (tmp_path / "node-1.journal").write_bytes(b"".join(many))
    bounded = Journal(tmp_path, "node-1")
    assert len(bounded.state.unknown) == MAX_UNKNOWN_KINDS
    bounded.close()


def test_an_accepted_grant_that_cannot_be_followed_is_skipped_and_counted(tmp_path: Path) -> None:
    good = encode(HISTORY[2])
    bad = line({"t": "accept", "spec": {"epoch": 1}, "boot": "boot-1", "deadline": 90}) + b"\n"
    (tmp_path / "node-0.journal").write_bytes(good + bad)
    journal = Journal(tmp_path, "node-0")
    assert (journal.state.grant, journal.unreadable_records) == (grant(1, 200_000), 1)
    journal.close()


def test_the_file_stays_within_its_bound(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "node-0", max_bytes=4000)
    for number in range(500):
        journal.note(GrantLease("boot-1", number))
        assert journal.path.stat().st_size <= 2 * 4000
        if number % 7 == 0:
            tidy(journal)
            assert journal.path.stat().st_size <= 4000
    journal.close()
    again = Journal(tmp_path, "node-0")
    assert again.state.lease == GrantLease("boot-1", 499)
    again.close()


class FailingDisk(Disk):
    """Refuses one kind of call while `failing` names it."""

    def __init__(self) -> None:
        self.failing: str | None = None
        self.code = errno.ENOSPC

    def _maybe(self, name: str) -> None:
        if self.failing in (name, "all"):
            raise OSError(self.code, os.strerror(self.code))

    def open(self, path: Path, flags: int) -> int:
        self._maybe("open")
        return super().open(path, flags)

    def write(self, descriptor: int, data: bytes) -> int:
        if self.failing in ("write", "all") and len(data) > 1:
            super().write(descriptor, data[: len(data) // 2])  # a full disk takes what fits
        self._maybe("write")
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self._maybe("sync")
        super().sync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        self._maybe("rename")
        super().rename(source, target)


@pytest.mark.parametrize("kind", ["write", "sync", "all"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_failing_disk_degrades_keeps_the_state_and_heals(tmp_path: Path, kind: str, code: int) -> None:
    disk = FailingDisk()
    journal = Journal(tmp_path, "node-0", disk=disk)
    commit(journal, HISTORY[2])
    disk.failing, disk.code = kind, code
    with pytest.raises(JournalError, match=os.strerror(code)):
        commit(journal, HISTORY[5])
    assert journal.degraded is not None
    assert journal.state.grant.version == (1, 2)  # remembered in memory: an older grant stays refused
    with pytest.raises(JournalError):
        commit(journal, HISTORY[6])
    assert not tidy(journal)
    disk.failing = None
    assert tidy(journal)
    assert journal.degraded is None
    journal.close()
    again = Journal(tmp_path, "node-0")
    assert again.state.grant.version == (1, 2)
    assert again.state.intents["GPU-a"].new_milliwatts == 250_000
    again.close()


def test_a_folder_that_cannot_be_made_degrades_from_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "below", "node-0")
    assert journal.degraded is not None
    with pytest.raises(JournalError):
        commit(journal, HISTORY[0])
    journal.close()


def test_one_agent_at_a_time(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "node-0")
    with pytest.raises(JournalHeld, match="another agent"):
        Journal(tmp_path, "node-0")
    Journal(tmp_path, "node-1").close()
    journal.close()
    Journal(tmp_path, "node-0").close()


WRITER = """
import asyncio, sys
from flyball_agent.enforce.journal import Journal
from flyball_agent.enforce.records import Accepted, GrantLease
from flyball_api.grant import Grant, PowerBound
journal = Journal(sys.argv[1], "node-0", max_bytes=2000)
generation = journal.state.grant.generation if journal.state.grant else 0
while True:
    generation += 1
    journal.note(Accepted.of(Grant(1, generation, 30, PowerBound(1)), GrantLease("b", generation)))
    asyncio.run(journal.sync())
    sys.stdout.write(f"{generation}\\n")
    sys.stdout.flush()
"""


def test_a_process_that_is_killed_forgets_no_grant_that_it_announced(tmp_path: Path) -> None:
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
        assert journal.state.grant is not None
        on_disk = journal.state.grant.generation
        journal.close()
        assert on_disk in (announced[-1], announced[-1] + 1)  # one may be written and not announced yet


def test_the_journal_of_another_node_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "node-0")
    commit(journal, found_gpus([FoundGpu("GPU-1", "A100", *[MilliwattsPerGpu(100_000)] * 4)]))
    journal.close()
    (tmp_path / "node-0.journal").rename(tmp_path / "node-1.journal")
    before = (tmp_path / "node-1.journal").read_bytes()
    with pytest.raises(
        JournalOfAnotherNode, match=r"was written on node node-0, and this is node node-1.*Move it away"
    ):
        Journal(tmp_path, "node-1")
    assert (tmp_path / "node-1.journal").read_bytes() == before


class WaitingDisk(Disk):
    """A disk on which the file that is written anew is opened only once it `may`."""

    def __init__(self) -> None:
        self.begun, self.may = threading.Event(), threading.Event()
        self.waits = False

    def open(self, path: Path, flags: int) -> int:
        if self.waits:
            self.begun.set()
            self.may.wait(10.0)
        return super().open(path, flags)


def test_what_is_noted_while_the_file_is_written_anew_is_in_it(tmp_path: Path) -> None:
    disk = WaitingDisk()
    journal = Journal(tmp_path, "node-0", max_bytes=500, disk=disk, disk_seconds=10.0)

    async def work() -> None:
        while journal.path.stat().st_size <= 500:
            journal.note(EnergyTotals({"idle": 5}))
        disk.waits = True
        tidying = asyncio.create_task(journal.tidy())
        await asyncio.to_thread(disk.begun.wait, 10.0)
        journal.note(Accepted.of(grant(7, 200_000), GrantLease("boot-1", 30)))
        disk.may.set()
        assert await tidying

    asyncio.run(work())
    journal.close()
    again = Journal(tmp_path, "node-0")
    assert again.state.grant == grant(7, 200_000)
    again.close()


def test_a_journal_that_nobody_tidies_stops_growing_and_is_whole_with_the_next_sync(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "node-0", max_bytes=500)
    joules = 0

    def go_on() -> None:
        nonlocal joules
        while joules < 1000:
            joules += 1
            journal.note(EnergyTotals({"idle": joules}))

    with pytest.raises(JournalError, match="more than 500 bytes came at once"):
        go_on()
    assert journal.path.stat().st_size <= 2 * 500
    asyncio.run(journal.sync())
    assert journal.degraded is None
    journal.close()
    again = Journal(tmp_path, "node-0")
    assert again.state.energy == {"idle": joules}
    again.close()


async def test_a_journal_that_could_not_be_made_is_written_only_by_who_holds_it_then(tmp_path: Path) -> None:
    """Two agents may begin on a disk that is not there yet: of these, one alone may raise limits once it is."""
    folder = tmp_path / "disk" / "journal"
    (tmp_path / "disk").touch()
    first, second = Journal(folder, "node-0"), Journal(folder, "node-0")
    assert first.degraded is not None
    (tmp_path / "disk").unlink()
    assert await first.tidy()
    first.note(HISTORY[0])
    assert not await second.tidy()
    assert "another agent of this node has the journal open" in str(second.degraded)
    with pytest.raises(JournalError):
        await second.sync()
    with pytest.raises(JournalHeld):
        Journal(folder, "node-0")
    first.close()
    assert await second.tidy()
    second.close()


async def test_a_journal_that_is_closed_while_it_waits_for_the_disk_takes_its_lock_no_more(tmp_path: Path) -> None:
    """The next agent of the node would wait for it for ever."""
    folder = tmp_path / "disk" / "journal"
    (tmp_path / "disk").touch()
    closed = Journal(folder, "node-0")
    (tmp_path / "disk").unlink()
    closed.close()
    assert not await closed.tidy()
    assert "closed" in str(closed.degraded)
    Journal(folder, "node-0").close()


def test_what_agents_before_have_asked_for_is_known_where_all_that_they_wrote_can_be_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "node-0")
    assert not journal.state.gaps, "no agent has been here"
    journal.close()
    journal = Journal(tmp_path, "node-0")
    assert journal.state.gaps, "one was, and has not got as far as to say of which driver it asked something"
    journal.note(Gaps(False), *HISTORY)
    for content, gaps in (
        (b"", False),
        (b"torn as it was written", False),
        (b"spoilt\n", True),
        (b"", True),  # until nothing of that may come any more
    ):
        journal.close()
        journal.path.write_bytes(journal.path.read_bytes() + content)
        journal = Journal(tmp_path, "node-0")
        assert journal.state.gaps is gaps
        assert journal.state.past == ({"GPU-a"} if gaps else set())
    journal.note(Gaps(False), intent_of_another := Intents(1, 3, (intent("GPU-a", 250_000, 200_000),)))
    journal.close()
    journal = Journal(tmp_path, "node-0")
    assert not journal.state.gaps
    assert (journal.state.intents["GPU-a"], journal.state.past) == (*intent_of_another.sets, set())
    journal.close()
    journal.path.unlink()
    journal = Journal(tmp_path, "node-0")
    assert journal.state.gaps, "its lock is there"
    journal.close()


def test_the_last_gpus_that_were_forgotten_are_known_until_they_are_found_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "node-0")
    journal.note(
        Forgotten(tuple(f"GPU-{number}" for number in range(MAX_GPUS + 2))), Forgotten(("GPU-a",)), *HISTORY[:2]
    )
    known = [f"GPU-{number}" for number in range(3, MAX_GPUS + 2)]
    for _ in range(3):
        assert list(journal.state.forgotten) == known
        journal.close()
        journal = Journal(tmp_path, "node-0")
    assert set(journal.state.gpus) == {"GPU-a"}
    journal.close()
