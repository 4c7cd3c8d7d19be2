"""What an agent must not forget when it dies: a small write-ahead journal, one checksummed line a record.

- the last accepted grant, whole: a restart under an API outage goes on where it was, and an older grant stays refused;
- the lease's deadline with the boot it belongs to: a restart does not extend it;
- each set of a limit before it is made {uuid, old, new, epoch, generation};
- the limits that the GPUs had when Flyball first saw them;
- the energy totals;
- the node's name: limits and energy of one node mean nothing on another.

A record is `<crc32 of the rest, 8 hex digits> <JSON>\\n`. A torn tail, or any line that does not check or is no record, is
skipped and counted; later lines still hold. Where the file outgrows its bound it is written anew beside and renamed over.
Where the disk fails, the state is kept in memory, `degraded` says why, and the next write that succeeds writes it whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from flyball_api.grant import Grant, GrantVersion, grant_spec
from flyball_api.reading import InvalidObject
from flyball_api.units import MilliwattsPerGpu
from msgspec import Struct

from flyball_agent.enforce.grant import accepted_grant

DEFAULT_MAX_BYTES = 256 * 1024
FORGET_SUFFIX = ".forget"
MAX_GPUS = 256


class JournalError(Exception):
    """The journal could not be written: nothing that needs it first may be done (no limit may be raised)."""


class JournalHeld(Exception):
    """Another agent of this node has the journal open."""


class JournalOfAnotherNode(Exception):
    """The journal was written on another node."""


# ---- the records: their fields' names on the disk are part of the format ------------------------------------------


class GrantLease(Struct, frozen=True, tag_field="t", tag="lease"):
    """Until when the grant holds: nanoseconds of CLOCK_BOOTTIME, in the boot of `boot_id` only."""

    boot_id: str = msgspec.field(name="boot")
    deadline_ns: int = msgspec.field(name="deadline")

    def valid(self, boot_id: str, now_ns: int) -> bool:
        return boot_id == self.boot_id and now_ns < self.deadline_ns


class Accepted(Struct, frozen=True, tag_field="t", tag="accept"):
    """A grant was accepted, as GPUNode.spec has it, and a lease with it."""

    spec: dict[str, Any]
    boot_id: str = msgspec.field(name="boot")
    deadline_ns: int = msgspec.field(name="deadline")

    @classmethod
    def of(cls, grant: Grant, lease: GrantLease) -> Accepted:
        return cls(grant_spec(grant), lease.boot_id, lease.deadline_ns)


class Intent(Struct, frozen=True, array_like=True):
    """One set of a power limit, as it was meant."""

    uuid: str
    old_milliwatts: MilliwattsPerGpu
    new_milliwatts: MilliwattsPerGpu


class Intents(Struct, frozen=True, tag_field="t", tag="intent"):
    """The limits that are about to be set under one grant."""

    epoch: int = msgspec.field(name="e")
    generation: int = msgspec.field(name="g")
    sets: tuple[Intent, ...]


class FoundGpu(Struct, frozen=True, array_like=True):
    """A GPU as it was when the agent first saw it: what a release gives back, and what a missing one may draw."""

    uuid: str
    model: str
    min_milliwatts: MilliwattsPerGpu
    max_milliwatts: MilliwattsPerGpu
    default_milliwatts: MilliwattsPerGpu
    found_milliwatts: MilliwattsPerGpu


class FoundGpus(Struct, frozen=True, tag_field="t", tag="boards"):
    """GPUs that the agent had not seen before."""

    gpus: tuple[FoundGpu, ...] = msgspec.field(name="boards")


class Forgotten(Struct, frozen=True, tag_field="t", tag="forget"):
    """GPUs that are gone for good, by UUID."""

    uuids: tuple[str, ...]


class OfNode(Struct, frozen=True, tag_field="t", tag="node"):
    """The node that this is the journal of."""

    node: str


class DriverLoad(Struct, frozen=True):
    """Which load of the driver the GPUs' limits belong to, and what their energy counters were in it (millijoules)."""

    boot_id: str = msgspec.field(name="boot")
    driver_load: str = msgspec.field(name="driver")
    resets: int = 0
    counters_millijoules: dict[str, int] = msgspec.field(name="counters", default_factory=dict)


class DriverSeen(Struct, frozen=True, tag_field="t", tag="driver"):
    """The driver as it is now."""

    driver: DriverLoad


class EnergyTotals(Struct, frozen=True, tag_field="t", tag="energy"):
    """The energy accounts, which alone know what their record means (`flyball_agent.energy.record`)."""

    energy: dict[str, Any]


Record = Accepted | GrantLease | Intents | FoundGpus | Forgotten | OfNode | DriverSeen | EnergyTotals

_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
_ENCODER = msgspec.json.Encoder()


@dataclass(slots=True)
class JournalState:
    """Everything that the records add up to."""

    node: str = ""
    grant: Grant | None = None
    lease: GrantLease | None = None
    gpus: dict[str, FoundGpu] = field(default_factory=dict)
    intents: dict[str, Intent] = field(default_factory=dict)  # the last of each GPU
    intent_version: GrantVersion = field(default_factory=GrantVersion)
    driver: DriverLoad | None = None
    energy: dict[str, Any] = field(default_factory=dict)

    def apply(self, record: Record) -> None:
        """Add one record. Raises InvalidObject where it holds no grant."""
        match record:
            case Accepted():
                self.grant = accepted_grant(record.spec)
                self.lease = GrantLease(record.boot_id, record.deadline_ns)
            case GrantLease():
                self.lease = record
            case Intents():
                self.intent_version = GrantVersion(record.epoch, record.generation)
                self.intents.update((intent.uuid, intent) for intent in record.sets)
            case FoundGpus():
                self.gpus.update((gpu.uuid, gpu) for gpu in record.gpus)
            case Forgotten():
                for uuid in record.uuids:
                    self.gpus.pop(uuid, None)
                    self.intents.pop(uuid, None)
            case OfNode():
                self.node = record.node
            case DriverSeen():
                self.driver = record.driver
            case EnergyTotals():
                self.energy = record.energy

    def records(self) -> list[Record]:
        """The fewest records that add up to this state."""
        records: list[Record] = [OfNode(self.node)] if self.node else []
        if self.gpus:
            records.append(found_gpus(self.gpus.values()))
        if self.driver is not None:
            records.append(DriverSeen(self.driver))
        if self.grant is not None and self.lease is not None:
            records.append(Accepted.of(self.grant, self.lease))
        if self.intents:
            records.append(Intents(*self.intent_version, tuple(self.intents.values())))
        if self.energy:
            records.append(EnergyTotals(self.energy))
        return records


def found_gpus(gpus: Iterable[FoundGpu]) -> FoundGpus:
    return FoundGpus(tuple(gpus)[:MAX_GPUS])


def encode(record: Record) -> bytes:
    payload = _ENCODER.encode(record)
    return b"%08x %s\n" % (zlib.crc32(payload), payload)


def decode(line: bytes) -> Record | None:
    """The record of one line (without its newline), or None where it does not check or is none."""
    if len(line) < 10 or line[8:9] != b" ":
        return None
    try:
        if int(line[:8], 16) != zlib.crc32(line[9:]):
            return None
        return _DECODER.decode(line[9:])
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None


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

    Not thread-safe: one control loop owns it. Raises JournalHeld where another agent has it, and JournalOfAnotherNode for
    a file that was brought here from another node, which it leaves as it is; a disk that cannot even be read or made
    leaves an empty, degraded journal.
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
        if self.state.node not in ("", node):
            self.close()
            raise JournalOfAnotherNode(
                f"{self.path} was written on node {self.state.node}, and this is node {node}: its grant, limits and energy "
                "are another node's. Move it away (the agent then begins a journal of its own), or put the right one there."
            )
        self.state.node = node
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

    def note(self, *records: Record) -> None:
        """Add the records without waiting for the disk: a kill of this process does not lose them, `sync` makes sure.

        The state has them in any case. Raises JournalError where they could not be written.
        """
        for record in records:
            self.state.apply(record)
        if self.degraded is not None:
            raise JournalError(self.degraded)
        data = b"".join(encode(record) for record in records)
        try:
            self._write(self._descriptor, data)
        except OSError as error:
            raise self._degrade("write", error) from error
        self._size += len(data)
        self._unsynced = True

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

    def take_forget_requests(self) -> list[str]:
        """The UUIDs of GPUs that `request_forget` named since the last call."""
        path = self.path.with_suffix(FORGET_SUFFIX)
        try:
            uuids = path.read_text().split()
            path.unlink()
        except (OSError, ValueError):
            return []
        return uuids

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
                    raise InvalidObject("no record")
                self.state.apply(record)
            except InvalidObject:
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


def request_forget(folder: str | os.PathLike[str], node: str, uuid: str) -> None:
    """Ask the node's agent, running now or later, to forget a GPU that is gone for good.

    Raises FileNotFoundError where the node has no journal there, and ValueError for a GPU that it does not remember.
    """
    path = Path(folder) / f"{node}.journal"
    state = JournalState()
    for line in path.read_bytes().split(b"\n"):
        record = decode(line)
        if isinstance(record, FoundGpus | Forgotten):
            state.apply(record)
    if uuid not in state.gpus:
        known = ", ".join(sorted(state.gpus)) or "none"
        raise ValueError(f"{path}: GPU {uuid} is not remembered (remembered: {known})")
    with path.with_suffix(FORGET_SUFFIX).open("a") as requests:
        requests.write(f"{uuid}\n")
