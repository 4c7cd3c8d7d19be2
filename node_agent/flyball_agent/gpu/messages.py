"""What passes between an agent and its driver's worker process: one packet of MessagePack a message."""

from __future__ import annotations

import socket
from typing import Any

import msgspec
from msgspec import Struct

from flyball_agent.gpu.gpu import (
    CallTimedOut,
    DriverUnavailable,
    GpuError,
    GpuLimits,
    GpuLost,
    GpuNotFound,
    GpuReading,
    ImplausibleReading,
    InvalidArgument,
    LibraryMismatch,
    LimitUnsupported,
    NoPermission,
    NotSupported,
    PowerLimitReading,
    ResetRequired,
    UnknownDriverError,
    UnopenedGpu,
    XidError,
)
from flyball_agent.gpu.operations import AnyGpuCall

# 256 GPUs with all their clocks are a third of this.
MAX_PACKET_BYTES = 160 * 1024


class Request(Struct, frozen=True):
    """One call on one GPU; the answer has its `number`."""

    number: int
    uuid: str
    call: AnyGpuCall


class ShownGpu(Struct, frozen=True):
    """One GPU that the driver opened."""

    uuid: str
    index: int
    model: str
    limits: GpuLimits


class Opened(Struct, frozen=True, tag=True):
    """The driver is open: the worker's first message, unless it is `Failed`."""

    boot_id: str
    driver_load: str
    version: str
    gpus: tuple[ShownGpu, ...]
    unopened: tuple[UnopenedGpu, ...]


class Done(Struct, frozen=True, tag=True):
    """What a call returned."""

    number: int
    reading: GpuReading | None = None
    limit: PowerLimitReading | None = None

    @property
    def result(self) -> GpuReading | PowerLimitReading | None:
        return self.limit if self.reading is None else self.reading


class Failed(Struct, frozen=True, tag=True):
    """What a call raised, or (number 0) why the driver cannot be opened."""

    number: int
    error: GpuError


class Reported(Struct, frozen=True, tag=True):
    """What the driver has reported by itself, which answers no call."""

    error: XidError


Answer = Opened | Done | Failed | Reported

_ERRORS: dict[str, type[GpuError]] = {
    kind.__name__: kind
    for kind in (
        CallTimedOut,
        DriverUnavailable,
        GpuError,
        GpuLost,
        GpuNotFound,
        ImplausibleReading,
        InvalidArgument,
        LibraryMismatch,
        LimitUnsupported,
        NoPermission,
        NotSupported,
        ResetRequired,
        UnknownDriverError,
    )
}


def encode_error(value: Any) -> Any:
    if isinstance(value, GpuError):
        return [type(value).__name__, value.operation, value.uuid, value.code, value.detail]
    raise NotImplementedError(f"{type(value).__name__} is not sent")


def decode_error(kind: type, value: Any) -> Any:
    if kind is GpuError:
        name, operation, uuid, code, detail = value
        return _ERRORS.get(name, UnknownDriverError)(operation, uuid, code, detail)
    raise NotImplementedError(f"{kind} is not sent")


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_error)
_answers = msgspec.msgpack.Decoder(Answer, dec_hook=decode_error)
_requests = msgspec.msgpack.Decoder(Request)


def send(connection: socket.socket, message: Answer) -> None:
    """Send one packet, once there is room for it. Raises OSError."""
    connection.send(_encoder.encode(message))


def send_now(connection: socket.socket, message: Request) -> None:
    """Send one packet without waiting. Raises BlockingIOError where there is no room for it, or any other OSError."""
    connection.send(_encoder.encode(message), socket.MSG_DONTWAIT)


def receive_answer(connection: socket.socket) -> Answer | None:
    """The next answer; None at the end. Raises OSError, or msgspec's ValidationError for what is none."""
    packet = connection.recv(MAX_PACKET_BYTES)
    return _answers.decode(packet) if packet else None


def receive_request(connection: socket.socket) -> Request | None:
    packet = connection.recv(MAX_PACKET_BYTES)
    return _requests.decode(packet) if packet else None
