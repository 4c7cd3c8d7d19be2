"""What a session needs of HTTP: one request, and the parts of its answer as they come."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

CONNECT_SECONDS = 10.0
READ_BYTES = 2**18
# A peer, or a firewall on the way, that is gone without a word is noticed after 15 + 3 * 5 s: a watch, on which nothing is
# sent, would else go on for all of the time that it was asked for, and that is longer than a grant's lease.
KEEPALIVE_OPTIONS = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


class Answer(Protocol):
    """An answer whose head has come."""

    status: int
    headers: Mapping[str, str]

    def chunks(self) -> AsyncIterator[bytes]:
        """What comes of the body, as it comes."""
        ...


class Transport(Protocol):
    """Requests to one server; what goes wrong on the way is TimeoutError, OSError, or one of `errors`."""

    errors: tuple[type[Exception], ...]

    def request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        read_seconds: float | None = None,
    ) -> AbstractAsyncContextManager[Answer]:
        """Send a request, for as long as its answer is read; a pause of `read_seconds` in it is a TimeoutError."""
        ...

    async def close(self) -> None: ...


class AnswerTooLarge(OSError):
    """An answer's body is larger than what may be read of it."""


async def whole(answer: Answer, max_bytes: int) -> bytes:
    """All of an answer's body. Raises AnswerTooLarge, with the rest unread."""
    chunks, size = [], 0
    async for chunk in answer.chunks():
        size += len(chunk)
        if size > max_bytes:
            raise AnswerTooLarge(f"an answer of over {max_bytes} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def keep_alive(connected: socket.socket) -> None:
    """Have the kernel ask whether the peer is still there while nothing comes, as far as this system knows how."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE_OPTIONS.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
