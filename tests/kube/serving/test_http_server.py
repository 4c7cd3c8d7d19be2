"""The agent's HTTP server against clients that mean ill: none holds more than its share, or fills the log."""

from __future__ import annotations

import asyncio
import random
import select
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from flyball_kube.serving.http_server import BodyTooLarge, HttpRequest, HttpServer, Response, _Connection

from tests.support.waiting import until

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LAST_REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
MAX_CONNECTIONS = 2
MAX_BODY_BYTES = 100


async def answer(request: HttpRequest) -> Response:
    with suppress(BodyTooLarge):
        if request.method == "POST":
            await request.body(MAX_BODY_BYTES)
    return Response(200, b"x" * 400)


@pytest.fixture
def path() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="fs", dir="/tmp")  # short: a Unix socket's path has 107 bytes
    yield str(Path(folder) / "socket")
    shutil.rmtree(folder)


@asynccontextmanager
async def served(path: str) -> AsyncIterator[HttpServer]:
    http = HttpServer(answer, max_connections=MAX_CONNECTIONS)
    server = await asyncio.start_unix_server(http.connected, path)
    try:
        yield http
    finally:
        server.close()
        http.close()
        await until(lambda: not http._tasks)


def client(path: str) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(path)
    connected.setblocking(False)
    return connected


async def ask_and_read_nothing(connected: socket.socket, connection: _Connection) -> None:
    """Leave the server with an answer to a last request that it cannot send."""
    loop = asyncio.get_running_loop()
    while connection.writer.transport.get_write_buffer_size() < 1000:
        await loop.sock_sendall(connected, REQUEST)
        await asyncio.sleep(0)
    await loop.sock_sendall(connected, LAST_REQUEST)
    await until(connection.writer.is_closing)


async def test_who_reads_no_answer_holds_no_more_connections_than_others_and_not_for_ever(path: str) -> None:
    """Such a one would else have the agent run out of files by ever more last requests."""
    async with served(path) as http:
        greedy = []
        for count in range(1, MAX_CONNECTIONS + 1):
            before = set(http._open)
            greedy.append(client(path))
            await until(lambda count=count: len(http._open) == count)  # type: ignore[misc]
            (newest,) = http._open - before
            await ask_and_read_nothing(greedy[-1], newest)
        assert len(http._open) == MAX_CONNECTIONS
        http.reap(idle_seconds=-1.0)
        await until(lambda: not http._tasks and not http._open)
        for connected in greedy:
            connected.close()


async def test_a_client_that_goes_away_is_no_line_in_the_log(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """A pod may connect and go as often as it likes."""
    async with served(path) as http:
        connected = client(path)
        connected.send(REQUEST)
        await until(lambda: bool(select.select([connected], [], [], 0)[0]))
        connected.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf")
        connected.close()  # with an answer unread: the server's next read is refused
        await until(lambda: not http._open)
    assert not caplog.records


async def test_requests_that_come_together_leave_others_their_turns(path: str) -> None:
    turns, seen = 0, []

    async def turning() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def noting(request: HttpRequest) -> Response:
        seen.append(turns)
        return await answer(request)

    http = HttpServer(noting, max_connections=MAX_CONNECTIONS)
    server = await asyncio.start_unix_server(http.connected, path)
    other = asyncio.create_task(turning())
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(REQUEST * 50 + LAST_REQUEST)
    await reader.read()
    for end in (other.cancel, writer.close, server.close):
        end()
    assert len(seen) == 51
    assert len(set(seen)) == len(seen)


async def test_whatever_is_sent_ends_in_an_answer_or_the_end(path: str, caplog: pytest.LogCaptureFixture) -> None:
    chosen = random.Random(1)
    starts = (
        b"GET / HTTP/1.1\r\nHost: a\r\n",
        b"POST / HTTP/1.0\r\n",
        b"HEAD / HTTP/1.1\r\nHost: a\r\n",
        b"\x16\x03\x01",
    )
    fields = (
        b"Content-Length: 5\r\n",
        b"Content-Length: 999999999999999999999\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Upgrade: x\r\nConnection: upgrade\r\n",
        b"Expect: 100-continue\r\n",
        b"\r\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"fffffffffffffff\r\n",
        b"x" * 9000,
        REQUEST,
    )
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with served(path) as http:
        for _ in range(200):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(chosen.choice(starts) + b"".join(chosen.choices(fields, k=chosen.randrange(8))))
            writer.write_eof()
            with suppress(OSError):
                await reader.read()
            writer.close()
            await until(lambda: not http._open)
    assert not failures
    assert not caplog.records
