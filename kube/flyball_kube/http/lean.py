"""HTTP/1.1 over asyncio and h11, for processes of which every node has one: aiohttp would be 10 MiB of each of them.

One request at a time on a connection, connections kept for the next one; no proxies, no redirects, no compression: an API
server needs none of them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlencode, urlsplit

import h11

from flyball_kube.http.transport import CONNECT_SECONDS, READ_BYTES, Answer, keep_alive

HAPPY_EYEBALLS_SECONDS = 0.25
# Longer than an agent waits between two statuses, which would else shake hands anew each time, and shorter than API servers
# (90 s) and load balancers (60 s) keep an idle connection: one that is about to end must not be given a request.
IDLE_SECONDS = 45.0
MAX_HEAD_BYTES = 2**16


class ConnectionEnded(ConnectionError):
    """The server ended the connection before its answer was whole."""


class _Reader(asyncio.StreamReader):
    """A stream that tells how much has come of it that was not read."""

    unread_bytes = 0

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]
        self.unread_bytes += len(data)
        super().feed_data(data)

    async def read(self, n: int = -1) -> bytes:
        data = await super().read(n)
        self.unread_bytes -= len(data)
        return data


class _Connection:
    """A connection to the server, for one request after the other."""

    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self.idle_since = 0.0
        self.used = False

    @property
    def usable(self) -> bool:
        """Whether another request can be sent: what came unasked would be taken for its answer."""
        unasked = self._reader.unread_bytes or self._http.trailing_data != (b"", False)
        return not unasked and not self._reader.at_eof() and not self._writer.is_closing()

    async def send(self, method: str, target: str, headers: list[tuple[str, str]], body: bytes) -> None:
        try:
            sent = self._http.send(h11.Request(method=method, target=target, headers=headers))
        except (h11.LocalProtocolError, UnicodeEncodeError):  # which has the header: it could be the one with the token
            raise OSError("the request, or one of its headers, has characters that HTTP does not know") from None
        if body:
            sent += self._http.send(h11.Data(data=body))
        self._writer.write(sent + self._http.send(h11.EndOfMessage()))
        await self._writer.drain()

    async def event(self, read_seconds: float | None) -> h11.Event:
        """The next part of the answer. Raises TimeoutError, OSError or h11's RemoteProtocolError."""
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Event):
                return event
            async with asyncio.timeout(read_seconds):
                data = await self._reader.read(READ_BYTES)
            if not data and self._http.their_state is h11.SEND_RESPONSE:
                raise ConnectionEnded("the server ended the connection without an answer")
            self._http.receive_data(data)

    def next_request(self) -> bool:
        """Make ready for another one; False where the server will not take it."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        self.used = True
        return self.usable

    def close(self) -> None:
        self._writer.transport.abort()


class _LeanAnswer(Answer):
    def __init__(self, connection: _Connection, head: h11.Response, read_seconds: float | None) -> None:
        self.status = head.status_code
        self.headers = {name.decode("ascii"): value.decode("latin-1") for name, value in head.headers}
        self._connection = connection
        self._read_seconds = read_seconds

    async def chunks(self) -> AsyncIterator[bytes]:
        while not isinstance(event := await self._connection.event(self._read_seconds), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.ConnectionClosed):
                return


class LeanHttp:
    """Requests to one server, at `base` (`https://host:port/prefix`); `tls` is False for plain HTTP."""

    errors: tuple[type[Exception], ...] = (h11.RemoteProtocolError,)

    def __init__(self, base: str, tls: ssl.SSLContext | bool, server_name: str | None) -> None:
        parts = urlsplit(base)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/")
        self._tls = tls or None
        self._server_name = (server_name or self._host) if tls else None
        self._headers = [("Host", parts.netloc.rpartition("@")[2]), ("User-Agent", "flyball")]
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    async def close(self) -> None:
        for connection in [*self._idle, *self._open]:
            connection.close()
        self._idle.clear()

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        read_seconds: float | None = None,
    ) -> AsyncIterator[Answer]:
        """Send a request, for as long as its answer is read; a pause of `read_seconds` in it raises TimeoutError."""
        target = self._prefix + path + (f"?{urlencode(params)}" if params else "")
        sent = [*self._headers, *headers.items()]
        if body is not None or method in ("POST", "PUT", "PATCH"):
            sent.append(("Content-Length", str(len(body or b""))))
        connection, head = await self._begun(method, target, sent, body or b"", read_seconds)
        try:
            yield _LeanAnswer(connection, head, read_seconds)
        except BaseException:
            self._drop(connection)
            raise
        if connection.next_request():
            connection.idle_since = asyncio.get_running_loop().time()
            self._open.discard(connection)
            self._idle.append(connection)
        else:
            self._drop(connection)

    async def _begun(
        self, method: str, target: str, headers: list[tuple[str, str]], body: bytes, read_seconds: float | None
    ) -> tuple[_Connection, h11.Response]:
        """The connection on which the request was sent, and the head of its answer."""
        while True:
            began_at = asyncio.get_running_loop().time()
            connection = self._kept() or await self._connected()
            self._open.add(connection)
            try:
                await connection.send(method, target, headers, body)
                while True:
                    event = await connection.event(read_seconds)
                    if isinstance(event, h11.Response):
                        return connection, event
                    if isinstance(event, h11.ConnectionClosed):
                        raise ConnectionEnded("the server ended the connection without an answer")
            except ConnectionError:
                self._drop(connection)
                # What was kept may have been ended while the request was on its way; nothing is changed by asking again.
                if not connection.used or method != "GET":
                    raise
            except BaseException:
                self._drop(connection)
                if connection.used:  # it may have been ended without a word, and with it all that was silent meanwhile
                    self._close_idle_since_before(began_at)
                raise

    def _kept(self) -> _Connection | None:
        self._close_idle_since_before(asyncio.get_running_loop().time() - IDLE_SECONDS)
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.close()
        return None

    def _close_idle_since_before(self, time: float) -> None:
        while self._idle and self._idle[0].idle_since <= time:  # the first of them is idle for longest
            self._idle.pop(0).close()

    async def _connected(self) -> _Connection:
        loop = asyncio.get_running_loop()
        reader = _Reader(limit=READ_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        async with asyncio.timeout(CONNECT_SECONDS):
            transport, _ = await loop.create_connection(
                lambda: protocol,
                self._host,
                self._port,
                ssl=self._tls,
                server_hostname=self._server_name,
                happy_eyeballs_delay=HAPPY_EYEBALLS_SECONDS,
            )
        keep_alive(transport.get_extra_info("socket"))
        return _Connection(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

    def _drop(self, connection: _Connection) -> None:
        self._open.discard(connection)
        connection.close()
