"""What passes between the agent and the enforcer's process: a few messages in MessagePack, each with its length before it.

The enforcer believes nothing because of where it comes from: what an agent says is decoded into these types or the line is
cut, and a grant has to pass the enforcer's own checks.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

import msgspec
from flyball_api.gpu_node import Acknowledgement
from flyball_api.power_brake import PowerBrake
from msgspec import Meta, Struct

from flyball_agent.energy.attribution import EnergyAccounts
from flyball_agent.energy.observations import ClockAsked, StepReport
from flyball_agent.energy.record import JobObservation
from flyball_agent.enforce.adoption import MAX_REPORTED
from flyball_agent.enforce.gpu_state import PodName
from flyball_agent.enforce.records import FoundGpu
from flyball_agent.enforce.state import EnforcerState
from flyball_agent.gpu.gpu import GpuError
from flyball_agent.gpu.messages import decode_error, encode_error
from flyball_agent.pods.resources import PodDevices
from flyball_agent.state import RoundCounts

T = TypeVar("T")

LENGTH_BYTES = 4
# etcd takes no object above 1.5 MiB, and a GPUNode with 64 jobs has a fiftieth of that; 250 pods with their GPUs a fifth.
MAX_TO_ENFORCER_BYTES = 512 * 1024
# 256 GPUs with all that is known of them are half of this.
MAX_TO_AGENT_BYTES = 2 * 1024 * 1024


class SpecSeen(Struct, frozen=True, tag=True):
    """GPUNode.spec, as it stood at the API server at `seen_ns` of CLOCK_BOOTTIME.

    `acknowledged` is what had been acknowledged there before this line; None where that is not known yet.
    """

    spec: Any
    seen_ns: int
    acknowledged: tuple[Acknowledgement, ...] | None = ()


class GpusReported(Struct, frozen=True, tag=True):
    """The GPUs that the node's status had before this line."""

    gpus: Annotated[tuple[FoundGpu, ...], Meta(max_length=MAX_REPORTED)]


class SpecGone(Struct, frozen=True, tag=True):
    """The GPUNode was deleted."""


class OperatorSeen(Struct, frozen=True, tag=True):
    """The operator's Lease was seen to be renewed under this epoch at `seen_ns` of CLOCK_BOOTTIME."""

    epoch: int
    seen_ns: int


class BrakesSeen(Struct, frozen=True, tag=True):
    """Every PowerBrake as the API server has it, by the cap's name."""

    brakes: dict[str, PowerBrake]


class PodsListed(Struct, frozen=True, tag=True):
    """Which pods hold which GPUs: all of them."""

    pods: tuple[PodDevices, ...]


class StepsReported(Struct, frozen=True, tag=True):
    """A training process has reported."""

    pod: PodName
    report: StepReport


class ClockWanted(Struct, frozen=True, tag=True):
    """A training process wants its GPUs no faster than that for a while."""

    pod: PodName
    asked: ClockAsked


class ReadingWanted(Struct, frozen=True, tag=True):
    """Somebody waits for a reading of the GPUs."""


class StatusPublished(Struct, frozen=True, tag=True):
    """What was known after that round is in the status."""

    round_number: int


ToEnforcer = (
    SpecSeen
    | GpusReported
    | SpecGone
    | OperatorSeen
    | BrakesSeen
    | PodsListed
    | StepsReported
    | ClockWanted
    | ReadingWanted
    | StatusPublished
)


class PodShown(Struct, frozen=True, array_like=True):
    """A pod that holds GPUs, or did until `ended_ns`."""

    name: PodName
    energy_key: str
    gpus: int
    uid: str | None
    shared: bool
    ended_ns: int | None = None


class Snapshot(Struct, frozen=True):
    """Everything that the governor knows after a round."""

    node: str
    enforced: EnforcerState
    accounts: EnergyAccounts
    jobs: tuple[JobObservation, ...]
    pods: tuple[PodShown, ...]
    pods_listed: bool
    pods_unresolved: str | None
    accounted: bool
    round_error: str | None
    last_round_ns: int | None
    counts: RoundCounts


def _decode(kind: type, value: Any) -> Any:
    return decode_error(GpuError, value) if kind is GpuError else value


_to_enforcer: msgspec.msgpack.Decoder[ToEnforcer] = msgspec.msgpack.Decoder(ToEnforcer)
_snapshots = msgspec.msgpack.Decoder(Snapshot, dec_hook=_decode)
_encoder = msgspec.msgpack.Encoder(enc_hook=encode_error)


class InvalidMessage(Exception):
    """What came is no message of these; the line is of no use any more."""


def packed(message: ToEnforcer | Snapshot) -> bytes:
    """The message as it is sent."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


class Incoming(Generic[T]):
    """The messages out of bytes that come in any pieces."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[T], most_bytes: int) -> None:
        self._decoder = decoder
        self._most_bytes = most_bytes
        self._bytes = bytearray()

    @property
    def begun(self) -> bool:
        """Whether something has come of a message that was not taken."""
        return bool(self._bytes)

    def add(self, data: bytes) -> None:
        self._bytes += data

    def next(self) -> T | None:
        """The next message; None where it has not come whole yet. Raises InvalidMessage."""
        if len(self._bytes) < LENGTH_BYTES:
            return None
        length = int.from_bytes(self._bytes[:LENGTH_BYTES], "big")
        if length > self._most_bytes:
            raise InvalidMessage(f"a message of {length} bytes, at most {self._most_bytes} are taken")
        end = LENGTH_BYTES + length
        if len(self._bytes) < end:
            return None
        body = bytes(self._bytes[LENGTH_BYTES:end])
        del self._bytes[:end]
        try:
            return self._decoder.decode(body)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise InvalidMessage(str(error)) from error


def from_agent() -> Incoming[ToEnforcer]:
    """What an agent tells the enforcer."""
    return Incoming(_to_enforcer, MAX_TO_ENFORCER_BYTES)


def from_enforcer() -> Incoming[Snapshot]:
    """What the enforcer shows the agent."""
    return Incoming(_snapshots, MAX_TO_AGENT_BYTES)
