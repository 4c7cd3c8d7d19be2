"""What an agent must not forget when it dies: a small write-ahead journal, one checksummed line a record.

- the last accepted spec, whole: a restart under an API outage goes on where it was, and a lower pair stays refused;
- the lease's deadline with the boot it belongs to: a restart does not extend it;
- each set of a limit before it is made {uuid, old, new, epoch, generation};
- the limits that the boards had when Flyball first saw them;
- the energy totals.

A record is `<crc32 of the rest, 8 hex digits> <JSON>\\n`. A torn tail, or any line that does not check, is skipped and
counted; later lines still hold. Where the file outgrows its bound it is written anew beside and renamed over. Where the
disk fails, the state is kept in memory, `degraded` says why, and the next write that succeeds writes it whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from flyball_agent.desired import DesiredSpec, InvalidSpec, parse_spec

DEFAULT_MAX_BYTES = 256 * 1024
MAX_BOARDS = 256

Record = dict[str, Any]


class JournalError(Exception):
    """The journal could not be written: nothing that needs it first may be done (no limit may be raised)."""


class JournalHeld(Exception):
    """Another agent of this node has the journal open."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Until when the grant holds: nanoseconds of CLOCK_BOOTTIME, in the boot of `boot_id` only."""

    boot_id: str
    deadline_ns: int

    def valid(self, boot_id: str, now_ns: int) -> bool:
        return boot_id == self.boot_id and now_ns < self.deadline_ns


@dataclass(frozen=True, slots=True)
class Intent:
    """One set of a power limit, as it was meant."""

    uuid: str
    old_milliwatts: int
    new_milliwatts: int


@dataclass(frozen=True, slots=True)
class KnownBoard:
    """A board as it was when the agent first saw it: what a release gives back, and what a missing one may draw."""

    uuid: str
    model: str
    min_milliwatts: int
    max_milliwatts: int
    default_milliwatts: int
    found_milliwatts: int


@dataclass(slots=True)
class JournalState:
    """Everything that the records add up to."""

    spec: DesiredSpec | None = None
    lease: Lease | None = None
    boards: dict[str, KnownBoard] = field(default_factory=dict)
    intents: dict[str, Intent] = field(default_factory=dict)  # the last of each board
    intent_pair: tuple[int, int] = (0, 0)
    driver: Record = field(default_factory=dict)
    energy: Record = field(default_factory=dict)

    def apply(self, record: Record) -> None:
        """Add one record. Raises KeyError, TypeError or ValueError for one that is none."""
        kind = record["t"]
        if kind == "accept":
            self.spec = parse_spec(record["spec"])
            self.lease = Lease(str(record["boot"]), int(record["deadline"]))
        elif kind == "lease":
            self.lease = Lease(str(record["boot"]), int(record["deadline"]))
        elif kind == "intent":
            self.intent_pair = (int(record["e"]), int(record["g"]))
            for uuid, old, new in record["sets"]:
                self.intents[str(uuid)] = Intent(str(uuid), int(old), int(new))
        elif kind == "boards":
            for uuid, model, *limits in record["boards"]:
                low, high, default, found = (int(limit) for limit in limits)
                self.boards[str(uuid)] = KnownBoard(str(uuid), str(model), low, high, default, found)
        elif kind == "driver":
            self.driver = dict(record["driver"])
        elif kind == "energy":
            self.energy = dict(record["energy"])
        else:
            raise ValueError(f"record of unknown kind {kind!r}")

    def records(self) -> list[Record]:
        """The fewest records that add up to this state."""
        records: list[Record] = []
        if self.boards:
            records.append(boards_record(list(self.boards.values())))
        if self.driver:
            records.append(driver_record(self.driver))
        if self.spec is not None and self.lease is not None:
            records.append(accept_record(self.spec, self.lease))
        if self.intents:
            records.append(intent_record(self.intent_pair, list(self.intents.values())))
        if self.energy:
            records.append(energy_record(self.energy))
        return records


def accept_record(spec: DesiredSpec, lease: Lease) -> Record:
    return {"t": "accept", "spec": spec.to_json(), "boot": lease.boot_id, "deadline": lease.deadline_ns}


def lease_record(lease: Lease) -> Record:
    return {"t": "lease", "boot": lease.boot_id, "deadline": lease.deadline_ns}


def intent_record(pair: tuple[int, int], intents: Sequence[Intent]) -> Record:
    sets = [[intent.uuid, intent.old_milliwatts, intent.new_milliwatts] for intent in intents]
    return {"t": "intent", "e": pair[0], "g": pair[1], "sets": sets}


def boards_record(boards: Sequence[KnownBoard]) -> Record:
    return {"t": "boards", "boards": [list(astuple(board)) for board in boards[:MAX_BOARDS]]}


def driver_record(driver: Mapping[str, Any]) -> Record:
    return {"t": "driver", "driver": dict(driver)}


def energy_record(energy: Mapping[str, Any]) -> Record:
    return {"t": "energy", "energy": dict(energy)}


def encode(record: Record) -> bytes:
    payload = json.dumps(record, separators=(",", ":"), ensure_ascii=True).encode()
    return b"%08x %s\n" % (zlib.crc32(payload), payload)


def decode(line: bytes) -> Record | None:
    """The record of one line (without its newline), or None where it does not check."""
    if len(line) < 10 or line[8:9] != b" ":
        return None
    try:
        if int(line[:8], 16) != zlib.crc32(line[9:]):
            return None
        record = json.loads(line[9:])
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


class Disk:
    """The system calls that the journal makes; tests put a failing disk in its place."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def write(self, descriptor: int, data: bytes) -> int:
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        """Rename, and see the new name onto the disk."""
        source.replace(target)
        folder = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class Journal:
    """The journal of one node's agent: `<folder>/<node>.journal`. One agent at a time.

    Not thread-safe: one control loop owns it. Raises JournalHeld where another agent has it; a disk that cannot even be
    read or made leaves an empty, degraded journal.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        node: str,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        disk: Disk | None = None,
    ) -> None:
        self.path = Path(folder) / f"{node}.journal"
        self.state = JournalState()
        self.degraded: str | None = None
        self.unreadable_records = 0
        self.rewrites = 0
        self._max_bytes = max_bytes
        self._disk = disk or Disk()
        self._descriptor = -1
        self._lock = -1
        self._size = 0
        self._unsynced = False
        self._hold()
        try:
            self._read()
        except OSError as error:
            self._degrade("read", error)
        # Always a fresh file: it repairs a torn tail, and shows at once whether the disk takes writes.
        with contextlib.suppress(JournalError):
            self._rewrite()

    def commit(self, *records: Record, durable: bool = True) -> None:
        """Add the records; with `durable`, they and all before them are on the disk when this returns.

        The state has them in any case. Raises JournalError where the disk has not.
        """
        for record in records:
            self.state.apply(record)
        data = b"".join(encode(record) for record in records)
        if self.degraded is not None or self._size + len(data) > self._max_bytes:
            self._rewrite()
            return
        try:
            self._write(self._descriptor, data)
            self._size += len(data)
            self._unsynced = True
        except OSError as error:
            raise self._degrade("write", error) from error
        if durable:
            self.sync()

    def sync(self) -> None:
        """Put everything committed so far onto the disk. Raises JournalError."""
        if self.degraded is not None:
            self._rewrite()
        elif self._unsynced:
            try:
                self._disk.sync(self._descriptor)
            except OSError as error:
                raise self._degrade("sync", error) from error
            self._unsynced = False

    def retry(self) -> bool:
        """Where the disk had failed, try to write the state whole; True where the journal is sound."""
        if self.degraded is not None:
            with contextlib.suppress(JournalError):
                self._rewrite()
        return self.degraded is None

    def close(self) -> None:
        for descriptor in (self._descriptor, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._lock = -1

    def _hold(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._degrade("open", error)
            return
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            self._lock = -1
            raise JournalHeld(f"{self.path}: another agent of this node has the journal open") from error

    def _read(self) -> None:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return
        for line in content.split(b"\n"):
            if not line:
                continue
            record = decode(line)
            try:
                if record is None:
                    raise ValueError("checksum")
                self.state.apply(record)
            except (KeyError, TypeError, ValueError, InvalidSpec):
                self.unreadable_records += 1

    def _write(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._disk.write(descriptor, bytes(view)) :]

    def _rewrite(self) -> None:
        """Write the state whole, beside the old file, and rename it over: a crash leaves the one or the other."""
        data = b"".join(encode(record) for record in self.state.records())
        fresh = self.path.with_suffix(".new")
        descriptor = -1
        try:
            descriptor = self._disk.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            self._write(descriptor, data)
            self._disk.sync(descriptor)
            self._disk.replace(fresh, self.path)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise self._degrade("rewrite", error) from error
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._size, self._unsynced = descriptor, len(data), False
        self.degraded = None
        self.rewrites += 1

    def _degrade(self, doing: str, error: OSError) -> JournalError:
        self.degraded = f"{self.path}: {doing}: {error.strerror or error}"
        return JournalError(self.degraded)
