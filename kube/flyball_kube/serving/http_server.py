"""A small HTTP/1.1 server over asyncio and h11: one request at a time on a connection, everything bounded.

aiohttp's would be most of what an agent has in memory, on every node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple

import h11

from flyball_kube.process.logs import get_logger

logger = get_logger(__name__)

MAX_HEAD_BYTES = 8192
READ_BYTES = 2**14
# Who sends what is no HTTP waits so long to be told, in the place of one of its connections.
REFUSAL_SECONDS = 0.05


class BodyTooLarge(Exception):
    """A request's body is larger than what may be read of it."""


class Response(NamedTuple):
    """An answer; `ends` closes the connection after it."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    ends: bool = False


class HttpRequest:
    """One request whose head has come; header names are in lower case."""

    def __init__(self, connection: _Connection, head: h11.Request) -> None:
        target = head.target.decode("ascii", "replace")
        self.method = head.method.decode("ascii")
        self.path, _, self.query = target.partition("?")
        self.headers: Mapping[str, str] = {
            name.decode("ascii"): value.decode("latin-1") for name, value in head.headers
        }
        self._connection = connection

    async def body(self, max_bytes: int) -> bytes:
        """The whole of it. Raises BodyTooLarge, or what `h11` and the socket raise."""
        length = self.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > max_bytes:
            raise BodyTooLarge
        return await self._connection.body(max_bytes)


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self.active_at = 0.0

    async def _event(self) -> h11.Event:
        while not isinstance(event := self._http.next_event(), h11.Event):
            self._http.receive_data(await self._reader.read(READ_BYTES))
        return event

    async def request(self) -> HttpRequest | None:
        """The next one; None where the client has ended."""
        event = await self._event()
        return HttpRequest(self, event) if isinstance(event, h11.Request) else None

    async def body(self, max_bytes: int) -> bytes:
        if self._http.they_are_waiting_for_100_continue:
            self.writer.write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
        body = b""
        while isinstance(event := await self._event(), h11.Data):
            body += event.data
            if len(body) > max_bytes:
                raise BodyTooLarge
        return body

    async def send(self, response: Response, *, head_only: bool = False) -> bool:
        """Answer; False where the connection ends with that."""
        while self._http.their_state is h11.SEND_BODY and self._http.next_event() is not h11.NEED_DATA:
            pass  # what has come of a body that nobody asked for, and its end
        length = ("Content-Length", str(len(response.body)))
        headers = [("Content-Type", response.content_type), length, *response.headers]
        ends = response.ends or self._http.their_state is not h11.DONE
        if ends:
            headers.append(("Connection", "close"))
        reason = HTTPStatus(response.status).phrase
        sent = self._http.send(h11.Response(status_code=response.status, headers=headers, reason=reason))
        if not head_only:
            sent += self._http.send(h11.Data(data=response.body))
        self.writer.write(sent + self._http.send(h11.EndOfMessage()))
        await self.writer.drain()
        if ends or self._http.our_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True


class HttpServer:
    """Answers requests by `answer`; give `connected` to asyncio's `start_server` or `start_unix_server`.

    Of connections beyond `max_connections` the newest is closed, or, where it `serves_newest`, the one that has been silent
    for longest: whoever holds many of them keeps nobody else out.
    """

    def __init__(
        self,
        answer: Callable[[HttpRequest], Awaitable[Response]],
        *,
        max_connections: int,
        serves_newest: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._answer = answer
        self._max_connections = max_connections
        self._serves_newest = serves_newest
        self._monotonic = monotonic
        self._open: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection has come."""
        if len(self._open) >= self._max_connections:
            if not self._serves_newest:
                writer.close()
                return
            silent = min(self._open, key=lambda connection: connection.active_at)
            silent.writer.transport.abort()
            self._open.discard(silent)
        connection = _Connection(reader, writer)
        connection.active_at = self._monotonic()
        self._open.add(connection)
        # Not asyncio's own task for it: that one logs an error where the end of the process cancels it.
        task = asyncio.create_task(self._converse(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, connection: _Connection) -> None:
        """Serve one connection to its end."""
        try:
            while await self._serve(connection):
                pass
            connection.writer.close()
            # One whose last answer is not taken counts, and is reaped, as any other.
            await connection.writer.wait_closed()
        except (OSError, h11.RemoteProtocolError):
            pass  # the client has gone, or sends what is no HTTP
        finally:
            self._open.discard(connection)
            connection.writer.transport.abort()

    async def _serve(self, connection: _Connection) -> bool:
        """Answer one request; False at the end of the connection."""
        try:
            request = await connection.request()
            if request is None:
                return False
            connection.active_at = self._monotonic()
            response = await self._answer(request)
        except h11.RemoteProtocolError as error:
            await asyncio.sleep(REFUSAL_SECONDS)
            words = f"{error}\n".encode()
            return await connection.send(Response(400, words, "text/plain; charset=utf-8", ends=True))
        except ConnectionError:
            return False  # the client has gone, which is no news
        except Exception:
            logger.exception("request failed")
            return await connection.send(Response(500, b"", "text/plain; charset=utf-8", ends=True))
        more = await connection.send(response, head_only=request.method == "HEAD")
        connection.active_at = self._monotonic()
        await asyncio.sleep(0)  # of requests that have come together each is a turn of its own
        return more

    def reap(self, idle_seconds: float) -> None:
        """End the connections on which nothing has been asked for so long."""
        now = self._monotonic()
        for connection in self._open:
            if now - connection.active_at > idle_seconds:
                connection.writer.transport.abort()

    def close(self) -> None:
        """End all connections."""
        for connection in self._open:
            connection.writer.transport.abort()
