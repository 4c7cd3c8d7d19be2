"""Lean HTTP: connections that are kept, ones that end meanwhile, and what must not be sent twice or said aloud."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from flyball_kube.credentials import Configuration, FixedToken
from flyball_kube.errors import ApiUnreachable
from flyball_kube.http import lean as lean_http
from flyball_kube.http.lean import LeanHttp, _LeanAnswer
from flyball_kube.http.pooled import PooledHttp
from flyball_kube.session import ApiSession
from flyball_operator.settings import Settings

from tests.support.waiting import until

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """Answers each request on a connection with the next of `answers`, of which None ends the connection instead."""

    def __init__(self, answers: Sequence[bytes | None]) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self.port = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
                self.requests.append(head + await reader.readexactly(int(fields.get(b"content-length", 0))))
                answer = self.answers.pop(0)
                if answer is None:
                    return
                writer.write(answer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def served(*answers: bytes | None, token: str = "") -> AsyncIterator[tuple[Server, ApiSession]]:
    server = Server(answers)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    configuration = Configuration(f"http://127.0.0.1:{server.port}/prefix/", tokens=FixedToken(token))
    try:
        async with ApiSession(configuration, lean=True) as session:
            yield server, session
    finally:
        listening.close()


async def test_calls_one_after_the_other_share_a_connection() -> None:
    async with served(ANSWER, ANSWER, ANSWER) as (server, session):
        await session.get("/api", limit="5 and+more")
        await session.patch("/api/a", {"a": 1})
        await session.delete("/api/a")
    assert server.connections == 1
    first, second, third = (request.split(b"\r\n", 1) for request in server.requests)
    assert first[0] == b"GET /prefix/api?limit=5+and%2Bmore HTTP/1.1"
    assert f"host: 127.0.0.1:{server.port}".encode() in first[1].lower()
    assert second[0] == b"PATCH /prefix/api/a HTTP/1.1"
    assert second[1].endswith(b'\r\n\r\n{"a":1}')
    assert b"content-type: application/merge-patch+json" in second[1].lower()
    assert third[0] == b"DELETE /prefix/api/a HTTP/1.1"


async def test_calls_at_once_have_connections_of_their_own_and_one_is_kept_of_each() -> None:
    async with served(*[ANSWER] * 9) as (server, session):
        await asyncio.gather(*(session.get("/api") for _ in range(3)))
        assert server.connections == 3
        await asyncio.gather(*(session.get("/api") for _ in range(3)))
        assert server.connections == 3


async def test_a_kept_connection_that_has_ended_is_not_used() -> None:
    async with served(ANSWER, ANSWER) as (server, session):
        await session.patch("/api", {})
        for writer in server.writers:
            writer.close()
            await writer.wait_closed()
        assert isinstance(session._http, LeanHttp)
        (kept,) = session._http._idle
        await until(lambda: not kept.usable)
        await session.patch("/api", {})
        assert server.connections == 2


async def test_a_read_is_asked_again_where_its_kept_connection_ends_and_a_change_is_not() -> None:
    """Whether a change was made before the connection ended, nobody knows here."""
    async with served(ANSWER, None, ANSWER, None) as (server, session):
        await session.get("/api")
        await session.get("/api")
        assert server.connections == 2
        with pytest.raises(ApiUnreachable, match="the connection was closed"):
            await session.patch("/api", {})
        assert len(server.requests) == 4


async def test_a_new_connection_that_ends_without_an_answer_is_not_tried_for_ever() -> None:
    async with served(None, None) as (server, session):
        with pytest.raises(ApiUnreachable, match="the connection was closed"):
            await session.get("/api")
    assert len(server.requests) == 1


async def test_what_is_idle_for_long_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(ANSWER, ANSWER) as (server, session):
        await session.get("/api")
        monkeypatch.setattr(lean_http, "IDLE_SECONDS", 0.0)
        await session.get("/api")
        assert server.connections == 2


async def test_what_a_server_says_unasked_is_no_answer_to_the_next_request() -> None:
    """A load balancer tells a silent connection 408 before it ends it; and one answer may have more behind it."""
    stray = b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"stray":true}'
    async with served(ANSWER, ANSWER + stray, ANSWER) as (server, session):
        await session.get("/api")
        assert isinstance(session._http, LeanHttp)
        (kept,) = session._http._idle
        server.writers[0].write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        await until(lambda: not kept.usable)
        assert await session.get("/api") == {}
        assert await session.get("/api") == {}
        assert server.connections == 3


async def test_after_a_burst_what_nobody_needs_any_more_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call now and then takes the newest connection each time: the others grow old beside it."""
    async with served(*[ANSWER] * 5) as (_, session):
        await asyncio.gather(*(session.get("/api") for _ in range(3)))
        assert isinstance(session._http, LeanHttp)
        *old, newest = session._http._idle
        monkeypatch.setattr(lean_http, "IDLE_SECONDS", 3600.0)
        for connection in old:
            connection.idle_since -= 3600.0
        await session.get("/api")
        assert session._http._idle == [newest]


async def test_one_silent_end_of_kept_connections_costs_one_call() -> None:
    """As where a firewall forgets them all: each call would else wait for its time on the next of them."""
    async with served(*[ANSWER] * 3, b"", ANSWER) as (server, session):
        await asyncio.gather(*(session.get("/api") for _ in range(3)))
        with pytest.raises(ApiUnreachable, match="no answer in time"):
            await session.request("GET", "/api", timeout_seconds=0.1)
        await session.get("/api")
        assert server.connections == 4


async def test_a_connection_that_the_server_will_end_is_not_kept() -> None:
    ends = ANSWER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    async with served(ends, ANSWER) as (server, session):
        await session.get("/api")
        await session.get("/api")
        assert server.connections == 2


async def test_a_call_that_is_given_up_takes_its_connection_with_it() -> None:
    """Its answer would else be taken for that of the next call."""
    async with served(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", ANSWER) as (server, session):
        with pytest.raises(ApiUnreachable, match="no answer in time"):
            await session.request("GET", "/api", timeout_seconds=0.1)
        assert await session.get("/api") == {}
        assert server.connections == 2


async def test_a_silent_watch_is_given_up_and_an_endless_head_is_no_answer() -> None:
    async with served(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 200 " + b"x" * 200_000) as (
        _,
        session,
    ):
        with pytest.raises(ApiUnreachable, match="WATCH /api: no answer in time"):
            async for _ in session.watch("/api", params={}, read_timeout_seconds=0.1):
                pass
        with pytest.raises(ApiUnreachable, match="RemoteProtocolError"):
            await session.get("/api")


async def test_events_come_as_they_are_sent() -> None:
    """One in two chunks, two in one, and the last without an end of line counts for nothing."""
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (b'{"a"', b': 1}\n{"b": 2}\n', b'{"c": 3}\n{"d'))
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with served(head + body + b"0\r\n\r\n") as (_, session):
        events = [event async for event in session.watch("/api", params={}, read_timeout_seconds=30)]
    assert events == [{"a": 1}, {"b": 2}, {"c": 3}]


@pytest.mark.parametrize("token", ["secret\nX-Other: 1", "s\u00e9secret", "secret\0"])
async def test_a_token_that_cannot_be_sent_is_not_told(token: str) -> None:
    async with served(ANSWER, token=token) as (server, session):
        with pytest.raises(ApiUnreachable, match="characters that HTTP does not know") as refused:
            await session.get("/api")
        assert "secret" not in "".join(traceback.format_exception(refused.value))
    assert server.requests == []


async def test_a_proxy_is_gone_through_by_the_other_way() -> None:
    configuration = Configuration("http://api.invalid", proxy="http://127.0.0.1:1")
    async with ApiSession(configuration, lean=True) as session:
        assert isinstance(session._http, PooledHttp)


@pytest.mark.parametrize("lean", [True, False])
async def test_the_kernel_asks_whether_a_silent_server_is_still_there(lean: bool) -> None:
    """Else nobody would: on a watch nothing is sent. What it takes leaves time for a list and a renewal of the Lease."""
    async with served(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n") as (server, _):
        configuration = Configuration(f"http://127.0.0.1:{server.port}")
        async with (
            ApiSession(configuration, lean=lean) as session,
            session._http.request("GET", "/api", None, {}, None) as answer,
        ):
            if isinstance(answer, _LeanAnswer):
                transport: Any = answer._connection._writer
            else:
                transport = answer._answer.connection.transport  # type: ignore[attr-defined]
            told = transport.get_extra_info("socket")
            assert told.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, pause, count = (
                told.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert idle + pause * count <= Settings().grant_lease_seconds / 2


def test_lean_is_without_what_it_is_lean_of() -> None:
    code = "import sys, flyball_kube.http.lean, flyball_kube.session; assert 'aiohttp' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path("/"))
