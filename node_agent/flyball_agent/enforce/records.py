"""What the journal remembers: its records, one checksummed JSON line each, and what they add up to.

A record is `<crc32 of the rest, 8 hex digits> <JSON>\n`. The names of fields and tags are part of the format.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec
from flyball_api.grant import Grant, GrantVersion, grant_spec
from flyball_api.values.units import MilliwattsPerGpu
from msgspec import Struct

from flyball_agent.enforce.grant import accepted_grant

MAX_GPUS = 256


class GrantLease(Struct, frozen=True, tag_field="t", tag="lease"):
    """Until when the grant holds: nanoseconds of CLOCK_BOOTTIME, in the boot of `boot_id` only."""

    boot_id: str = msgspec.field(name="boot")
    deadline_ns: int = msgspec.field(name="deadline")

    def valid(self, boot_id: str, now_ns: int, grace_ns: int = 0) -> bool:
        """Whether it is this boot's, and ended no longer than `grace_ns` ago."""
        return boot_id == self.boot_id and now_ns < self.deadline_ns + grace_ns


class Accepted(Struct, frozen=True, tag_field="t", tag="accept"):
    """A grant was accepted, as GPUNode.spec has it, and a lease with it."""

    spec: dict[str, Any]
    boot_id: str = msgspec.field(name="boot")
    deadline_ns: int = msgspec.field(name="deadline")

    @classmethod
    def of(cls, grant: Grant, lease: GrantLease) -> Accepted:
        return cls(grant_spec(grant), lease.boot_id, lease.deadline_ns)


class FollowedBrake(Struct, frozen=True, array_like=True):
    """A PowerBrake that is followed: the latest version of it that was seen, and the smallest share of any."""

    cap: str
    epoch: int
    sequence: int
    kept_millionths: int
    everything: bool


class BrakesFollowed(Struct, frozen=True, tag_field="t", tag="brakes"):
    """All PowerBrakes that are followed now."""

    followed: tuple[FollowedBrake, ...]


class Intent(Struct, frozen=True, array_like=True):
    """One set of a power limit, as it was meant, and what the GPU had yet to take of the sets before it, in their order."""

    uuid: str
    old_milliwatts: MilliwattsPerGpu
    new_milliwatts: MilliwattsPerGpu
    coming_milliwatts: tuple[MilliwattsPerGpu, ...] = ()


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


_UNNAMED = "GPU-00000000-0000-0000-0000-"


def unnamed_uuid(index: int) -> str:
    """A name in place of the UUID of a GPU whose own cannot be read."""
    return f"{_UNNAMED}{index:012d}"


def is_unnamed(uuid: str) -> bool:
    return uuid.startswith(_UNNAMED)


class FoundGpus(Struct, frozen=True, tag_field="t", tag="boards"):
    """GPUs that the agent had not seen before."""

    gpus: tuple[FoundGpu, ...] = msgspec.field(name="boards")


class Forgotten(Struct, frozen=True, tag_field="t", tag="forget"):
    """GPUs that are gone for good by somebody's word; or, `renamed`, that are taken for others which say their UUID now."""

    uuids: tuple[str, ...]
    renamed: bool = False


class Gaps(Struct, frozen=True, tag_field="t", tag="gaps"):
    """Whether agents have asked the driver for what no record has, and may come of it yet."""

    there: bool


class VersionBefore(Struct, frozen=True, tag_field="t", tag="before"):
    """Of the last grant before those that are taken while nobody knows what was acknowledged; None: it is known by now."""

    version: tuple[int, int] | None


class OfNode(Struct, frozen=True, tag_field="t", tag="node"):
    """The node that this is the journal of."""

    node: str


class DriverLoad(Struct, frozen=True):
    """Which load of the driver the GPUs' limits belong to, and what their energy counters were in it (millijoules)."""

    boot_id: str = msgspec.field(name="boot")
    driver_load: str = msgspec.field(name="driver")
    resets: int = 0
    counters_millijoules: dict[str, int] = msgspec.field(name="counters", default_factory=dict)

    @property
    def session(self) -> tuple[str, str, int]:
        """The identity of the driver's session: boot, load of the driver, and how often its counters began anew."""
        return self.boot_id, self.driver_load, self.resets


class DriverSeen(Struct, frozen=True, tag_field="t", tag="driver"):
    """The driver as it is now."""

    driver: DriverLoad


class EnergyTotals(Struct, frozen=True, tag_field="t", tag="energy"):
    """The energy accounts, which alone know what their record means (`flyball_agent.energy.record`)."""

    energy: dict[str, Any]


Record = (
    Accepted
    | BrakesFollowed
    | GrantLease
    | Intents
    | FoundGpus
    | Forgotten
    | Gaps
    | VersionBefore
    | OfNode
    | DriverSeen
    | EnergyTotals
)

_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
_KINDS = frozenset(str(kind.__struct_config__.tag) for kind in get_args(Record))
_ENCODER = msgspec.json.Encoder()


@dataclass(slots=True)
class JournalState:
    """Everything that the records add up to."""

    node: str = ""
    grant: Grant | None = None
    brakes: tuple[FollowedBrake, ...] = ()
    lease: GrantLease | None = None
    gpus: dict[str, FoundGpu] = field(default_factory=dict)
    forgotten: dict[str, None] = field(default_factory=dict)  # the last that were, and were not found since
    intents: dict[str, Intent] = field(default_factory=dict)  # the last of each GPU
    past: set[str] = field(
        default_factory=set
    )  # of those, the GPUs of which it says nothing in the present driver session
    intent_version: GrantVersion = field(default_factory=GrantVersion)
    gaps: bool = False
    version_before: GrantVersion | None = None  # where nobody has compared it with what was acknowledged yet
    driver: DriverLoad | None = None
    energy: dict[str, Any] = field(default_factory=dict)
    unknown: dict[str, bytes] = field(default_factory=dict)  # the last line of each kind that only other versions know

    def apply(self, record: Record) -> None:
        """Add one record. Raises InvalidObject where it holds no grant."""
        match record:
            case Accepted():
                self.grant = accepted_grant(record.spec)
                self.lease = GrantLease(record.boot_id, record.deadline_ns)
            case BrakesFollowed():
                self.brakes = record.followed
            case GrantLease():
                self.lease = record
            case Intents():
                self.intent_version = GrantVersion(record.epoch, record.generation)
                self.intents.update((intent.uuid, intent) for intent in record.sets)
                self.past.difference_update(intent.uuid for intent in record.sets)
            case FoundGpus():
                self.gpus.update((gpu.uuid, gpu) for gpu in record.gpus)
                for gpu in record.gpus:
                    self.forgotten.pop(gpu.uuid, None)
            case Forgotten():
                for uuid in record.uuids:
                    self.gpus.pop(uuid, None)
                    self.intents.pop(uuid, None)
                    self.past.discard(uuid)
                    if not record.renamed:
                        self.forgotten[uuid] = None
                for uuid in list(self.forgotten)[:-MAX_GPUS]:
                    del self.forgotten[uuid]
            case Gaps():
                self.gaps = record.there
                self.past = set(self.intents)  # what is missing may be later than each, or have come after it
            case VersionBefore():
                self.version_before = None if record.version is None else GrantVersion(*record.version)
            case OfNode():
                self.node = record.node
            case DriverSeen():
                if self.driver is None or self.driver.session != record.driver.session:
                    self.past = set(self.intents)
                self.driver = record.driver
            case EnergyTotals():
                self.energy = record.energy

    def records(self) -> list[Record]:
        """The fewest records that add up to this state."""
        records: list[Record] = [OfNode(self.node)] if self.node else []
        if self.forgotten:
            records.append(Forgotten(tuple(self.forgotten)))
        if self.gpus:
            records.append(found_gpus(self.gpus.values()))
        past = tuple(intent for uuid, intent in self.intents.items() if uuid in self.past)
        if past:  # the driver's session, or gaps, come between them and the others
            records.append(Intents(*self.intent_version, past))
        if self.driver is not None:
            records.append(DriverSeen(self.driver))
        if self.gaps:
            records.append(Gaps(there=True))
        if self.version_before is not None:
            records.append(VersionBefore(self.version_before))
        if self.grant is not None and self.lease is not None:
            records.append(Accepted.of(self.grant, self.lease))
        if self.brakes:
            records.append(BrakesFollowed(self.brakes))
        if len(self.intents) > len(past):
            present = tuple(intent for uuid, intent in self.intents.items() if uuid not in self.past)
            records.append(Intents(*self.intent_version, present))
        if self.energy:
            records.append(EnergyTotals(self.energy))
        return records


MAX_UNKNOWN_KINDS = 16
MAX_UNKNOWN_BYTES = 4096


class _AnyRecord(Struct, frozen=True):
    kind: str = msgspec.field(name="t")


def unknown_kind(line: bytes) -> str | None:
    """The kind of a line that checks and is of a kind that this version does not know; None for any other line."""
    payload = _checked(line) if len(line) <= MAX_UNKNOWN_BYTES else None
    try:
        kind = None if payload is None else msgspec.json.decode(payload, type=_AnyRecord).kind
    except (ValueError, RecursionError):
        return None
    return None if kind in _KINDS else kind


def found_gpus(gpus: Iterable[FoundGpu]) -> FoundGpus:
    return FoundGpus(tuple(gpus)[:MAX_GPUS])


def encode(record: Record) -> bytes:
    payload = _ENCODER.encode(record)
    return b"%08x %s\n" % (zlib.crc32(payload), payload)


def decode(line: bytes) -> Record | None:
    """The record of one line (without its newline), or None where it does not check or is none."""
    payload = _checked(line)
    try:
        return None if payload is None else _DECODER.decode(payload)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None


def _checked(line: bytes) -> bytes | None:
    if len(line) < 10 or line[8:9] != b" ":
        return None
    try:
        return line[9:] if int(line[:8], 16) == zlib.crc32(line[9:]) else None
    except ValueError:
        return None
