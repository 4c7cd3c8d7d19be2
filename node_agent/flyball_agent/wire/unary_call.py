"""One gRPC call over a Unix socket: a message there, a message back, on an HTTP/2 connection of its own.

gRPC's library is 9 MiB of a process for as long as it runs, and this is one call a second without streams, metadata or
credentials. A connection that serves one call has no state: its windows are opened to their widest before anything comes
(RFC 9113, 6.9), and of its headers (RFC 7541) only the status counts, which is known by its bytes; where it is not `0`, a
library decodes them, to say why. Frames: RFC 9113, 4 and 6; statuses: gRPC over HTTP/2, "Responses".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, PRIORITY = 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, INITIAL_WINDOW_SIZE = 1, 2, 4
WIDEST_WINDOW, FIRST_WINDOW = 2**31 - 1, 65_535
STREAM = 1
MAX_FRAME_BYTES = 16_384  # what a peer may send that has not been told of more
MAX_HEADER_BYTES = 65_536
PREFIX_BYTES = 5  # before a message: whether it is compressed, and its length

# As they are, and as HPACK's code has them (RFC 7541, Appendix B): a sender takes whichever is shorter.
STATUS_NAMES = (b"grpc-status", bytes.fromhex("9acac8b21234da8f"))
OK_VALUES = (b"0", b"\x07")
STATUSES = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)


class CallFailed(Exception):
    """The call was refused, or what came is no answer; the message says which, and why."""


async def call(socket: str, method: str, request: bytes, most_bytes: int) -> bytes:
    """Call `method` (`/package.Service/Method`) of the server on a Unix socket; returns its message.

    Raises CallFailed, also for a message of more than `most_bytes`, and OSError where nobody listens. There is no deadline.
    """
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        writer.write(_request(method, request))
        return await _Answer(reader, writer, most_bytes).read()
    except asyncio.IncompleteReadError as error:
        raise CallFailed("the connection ended before the answer did") from error
    finally:
        writer.transport.abort()


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _request(method: str, message: bytes) -> bytes:
    settings = {HEADER_TABLE_SIZE: 0, ENABLE_PUSH: 0, INITIAL_WINDOW_SIZE: WIDEST_WINDOW}
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(
        (
            PREFACE,
            _frame(SETTINGS, 0, 0, b"".join(k.to_bytes(2, "big") + v.to_bytes(4, "big") for k, v in settings.items())),
            _frame(WINDOW_UPDATE, 0, 0, (WIDEST_WINDOW - FIRST_WINDOW).to_bytes(4, "big")),
            _frame(HEADERS, END_HEADERS, STREAM, b"".join(_literal(*pair) for pair in headers.items())),
            _frame(DATA, END_STREAM, STREAM, b"\0" + len(message).to_bytes(4, "big") + message),
        )
    )


def _literal(name: str, value: str) -> bytes:
    """A header that is neither indexed nor coded; name and value are of fewer than 127 bytes."""
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


class _Answer:
    """What comes back, frame by frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most_bytes: int) -> None:
        self._reader, self._writer = reader, writer
        self._most = most_bytes + PREFIX_BYTES
        self._body = bytearray()
        self._blocks: list[bytes] = []

    async def read(self) -> bytes:
        ended = False
        while not ended:
            kind, flags, stream, payload = await self._frame()
            if kind == SETTINGS and not flags & ACK:
                self._writer.write(_frame(SETTINGS, ACK, 0))
            elif kind == PING and not flags & ACK:
                self._writer.write(_frame(PING, ACK, 0, payload))
            elif kind == GOAWAY and int.from_bytes(payload[:4], "big") < STREAM:
                raise CallFailed(f"the server takes no calls: {payload[8:200]!r}")
            elif kind == RST_STREAM and stream == STREAM:
                raise CallFailed(f"the server broke the call off, HTTP/2 error {int.from_bytes(payload, 'big')}")
            elif kind == DATA and stream == STREAM:
                self._body += _unpadded(payload, flags)
                if len(self._body) > self._most:
                    raise CallFailed(f"the answer has more than {self._most - PREFIX_BYTES} bytes")
                ended = bool(flags & END_STREAM)
            elif kind == HEADERS and stream == STREAM:
                await self._headers(payload, flags)
                ended = bool(flags & END_STREAM)
        return self._message()

    async def _frame(self) -> tuple[int, int, int, bytes]:
        head = await self._reader.readexactly(9)
        length = int.from_bytes(head[:3], "big")
        if length > MAX_FRAME_BYTES:
            raise CallFailed(f"a frame of {length} bytes, at most {MAX_FRAME_BYTES} are taken")
        stream = int.from_bytes(head[5:], "big") & WIDEST_WINDOW
        return head[3], head[4], stream, await self._reader.readexactly(length)

    async def _headers(self, payload: bytes, flags: int) -> None:
        block = _unpadded(payload, flags)[PREFIX_BYTES if flags & PRIORITY else 0 :]
        while not flags & END_HEADERS:
            kind, flags, stream, payload = await self._frame()
            if (kind, stream) != (CONTINUATION, STREAM) or len(block) > MAX_HEADER_BYTES:
                raise CallFailed("the answer's headers are cut off, or without end")
            block += payload
        self._blocks.append(block)
        if sum(map(len, self._blocks)) > MAX_HEADER_BYTES:
            raise CallFailed(f"the answer's headers have more than {MAX_HEADER_BYTES} bytes")

    def _message(self) -> bytes:
        if not any(_is_ok(block) for block in self._blocks):
            status, words = _status(self._blocks)
            if status != STATUSES[0]:
                raise CallFailed(f"{status}: {words}")
        message = bytes(self._body[PREFIX_BYTES:])
        if self._body[:PREFIX_BYTES] != b"\0" + len(message).to_bytes(4, "big"):
            raise CallFailed("the answer is not one message, uncompressed")
        return message


def _unpadded(payload: bytes, flags: int) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise CallFailed("a frame is padded by more than it has")
    return payload[1 : len(payload) - payload[0]]


def _is_ok(block: bytes) -> bool:
    """Whether a block of headers says `grpc-status: 0` in so many bytes; False: it may say so by an index."""
    return any(name in STATUS_NAMES and value in OK_VALUES for name, value in _literals(block))


def _literals(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The headers of a block that have their names with them, coded or not (RFC 7541, 6), as far as it can be read."""
    at = 0
    try:
        while at < len(block):
            first = block[at]
            indexed, table_size = first & 0x80, first & 0xE0 == 0x20
            bits = 7 if indexed else 6 if first & 0x40 else 5 if table_size else 4
            index, at = _integer(block, at, bits)
            if indexed or table_size:
                continue
            name = b""
            if not index:
                name, at = _string(block, at)
            value, at = _string(block, at)
            yield name, value
    except IndexError:
        return


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """An integer whose first byte has so many bits of it (RFC 7541, 5.1), and where it ends."""
    most = (1 << bits) - 1
    value, at = block[at] & most, at + 1
    if value < most:
        return value, at
    for shift in range(0, 28, 7):
        more, at = block[at], at + 1
        value += (more & 0x7F) << shift
        if not more & 0x80:
            return value, at
    raise IndexError(at)


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    length, at = _integer(block, at, 7)
    if at + length > len(block):
        raise IndexError(at)
    return block[at : at + length], at + length


def _status(blocks: list[bytes]) -> tuple[str, str]:
    """The status that the headers say, and the words beside it."""
    from urllib.parse import unquote

    from hpack import Decoder, HPACKError

    decoder, found = Decoder(), dict[str, str]()
    try:
        for block in blocks:
            found.update((str(name), str(value)) for name, value in decoder.decode(block))
    except (HPACKError, UnicodeDecodeError) as error:
        raise CallFailed(f"the answer's headers cannot be read: {error}") from error
    number = found.get("grpc-status", "")
    if not number.isdecimal() or int(number) >= len(STATUSES):
        return "UNKNOWN", f"HTTP status {found.get(':status', 'missing')}, gRPC status {number or 'missing'}"
    return STATUSES[int(number)], unquote(found.get("grpc-message", ""))
