"""The session on the real API server, by either way of HTTP: what it refuses, what never answers, and what a broken
middlebox says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from flyball_kube import session as session_module
from flyball_kube.credentials import Configuration, TokenFile, load_configuration
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.resources import JOBS, NODES, Resource
from flyball_kube.session import JSON_PATCH, ApiSession

from tests.support.control_plane import IsolatedCluster
from tests.support.waiting import until
from tests.support.way import Way, open_way


@pytest.fixture(params=[False, True], ids=["pooled", "lean"])
def lean(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest_asyncio.fixture
async def way(cluster: IsolatedCluster, lean: bool) -> AsyncIterator[Way]:
    async with AsyncExitStack() as stack:
        yield await open_way(stack, cluster.devcluster, cluster.namespace, lean=lean)


async def test_an_api_server_whose_clock_is_off_is_noticed(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    await way.session.get("/version")
    assert way.session.server_clock.ahead_seconds == 0.0  # both are of this machine
    assert not way.session.server_clock.due(session_module.time.time())
    real = session_module.time.time
    monkeypatch.setattr(session_module.time, "time", lambda: real() - 3600.0)
    await way.session.get("/version")
    assert -3600.0 <= way.session.server_clock.ahead_seconds <= -3590.0
    assert way.session.guarded(lambda: None).server_clock is way.session.server_clock


async def test_objects_are_made_changed_and_deleted(way: Way) -> None:
    made = await way.session.create(
        way.path(), {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "1"}}
    )
    merged = await way.session.patch(way.path("a"), {"data": {"y": "2"}})
    assert merged["data"] == {"x": "1", "y": "2"}
    patch = [{"op": "test", "path": "/data/x", "value": "1"}, {"op": "remove", "path": "/data/x"}]
    assert (await way.session.patch(way.path("a"), patch, JSON_PATCH))["data"] == {"y": "2"}
    applied = await way.session.apply(
        way.path("a"), {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"z": "3"}}, "me"
    )
    assert applied["data"] == {"y": "2", "z": "3"}
    with pytest.raises(ApiError) as stale:
        await way.session.replace(way.path("a"), made)
    assert stale.value.conflict
    await way.session.replace(way.path("a"), {**made, "metadata": {**made["metadata"], "resourceVersion": None}})
    uid = made["metadata"]["uid"]
    with pytest.raises(ApiError) as other:
        await way.session.delete(way.path("a"), {"preconditions": {"uid": "another"}})
    assert other.value.conflict
    await way.session.delete(way.path("a"), {"preconditions": {"uid": uid}})
    with pytest.raises(ApiError) as missing:
        await way.session.get(way.path("a"))
    assert missing.value.not_found
    assert (missing.value.status, missing.value.reason) == (404, "NotFound")
    assert str(missing.value).startswith(f"GET {way.path('a')}: 404 NotFound: configmaps")


async def test_a_refusal_carries_the_api_servers_own_words(way: Way) -> None:
    with pytest.raises(ApiError, match="a lowercase RFC 1123 subdomain must consist of") as invalid:
        await way.session.create(
            way.path(), {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "Not_Good"}}
        )
    assert invalid.value.invalid


async def test_the_api_server_calls_a_request_what_we_call_it(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its audit log has what became of a request that was refused, or never answered."""
    names = iter(f"request-{number}" for number in range(9))
    monkeypatch.setattr(session_module, "new_request_id", lambda: next(names))
    for name in ("request-0", "request-1"):
        with pytest.raises(ApiError) as refused:  # the name in it is the answer's, where there is one
            await way.direct.create(way.path(), {"kind": "ConfigMap", "metadata": {"name": "Not_Good"}})
        assert refused.value.request_id == name
    way.proxy.silent = True
    with pytest.raises(ApiUnreachable) as unanswered:
        await way.session.request("GET", way.path(), timeout_seconds=0.2)
    assert unanswered.value.request_id == "request-2"
    way.proxy.silent = False


async def test_what_an_account_may_not_do_is_an_error_with_the_reason(cluster: IsolatedCluster) -> None:
    kubeconfig = cluster.devcluster.control_plane.service_account_kubeconfig(cluster.namespace, "default")
    async with await ApiSession.connect(kubeconfig) as session:
        with pytest.raises(ApiError, match=f"system:serviceaccount:{cluster.namespace}:default") as forbidden:
            await session.get(NODES.path())
    assert forbidden.value.status == 403


async def test_a_rotated_token_is_read_again(cluster: IsolatedCluster, tmp_path: Path, lean: bool) -> None:
    """A pod's token is replaced on disk before it ends; a session goes on, and looks at once where it is refused."""
    plane = cluster.devcluster.control_plane
    configuration = load_configuration(plane.kubeconfig())
    configuration.client_certificate = configuration.client_key = None
    token_file = tmp_path / "token"
    configuration.tokens = TokenFile(token_file, monotonic=lambda: 0.0)  # by age alone it is never read again
    async with ApiSession(configuration, lean=lean) as session:
        token_file.write_text("expired")
        with pytest.raises(ApiError) as refused:
            await session.get("/api")
        assert refused.value.status == 401
        token_file.write_text(plane.token(cluster.namespace, "default"))
        assert (await session.get("/api"))["versions"] == ["v1"]
        token_file.unlink()
        assert (await session.get("/api"))["versions"] == ["v1"]
    configuration.tokens = TokenFile(token_file)
    async with ApiSession(configuration, lean=lean) as session:
        with pytest.raises(ApiUnreachable, match="token: No such file or directory"):
            await session.get("/api")


async def test_an_api_server_that_does_not_answer_is_given_up_in_time(way: Way) -> None:
    await way.session.get(way.path())
    way.proxy.silent = True
    with pytest.raises(ApiUnreachable, match=r"GET .*/configmaps: no answer in time"):
        await way.session.request("GET", way.path(), timeout_seconds=0.3)
    way.proxy.silent = False
    await way.session.get(way.path())


async def test_the_wait_for_a_free_slot_counts_into_the_timeout(way: Way, cluster: IsolatedCluster, lean: bool) -> None:
    configuration = load_configuration(cluster.devcluster.control_plane.kubeconfig())
    configuration.host = f"https://127.0.0.1:{way.proxy.port}"
    async with ApiSession(configuration, timeout_seconds=30, connections=1, lean=lean) as session:
        way.proxy.silent = True
        slow = asyncio.create_task(session.get(way.path()))
        await until(lambda: way.proxy.accepted > 0)
        with pytest.raises(ApiUnreachable, match="no answer in time"):
            await session.request("GET", way.path(), timeout_seconds=0.2)
        way.proxy.silent = False
        assert (await slow)["kind"] == "ConfigMapList"


async def test_a_cut_connection_is_unreachable_and_the_next_call_works(way: Way) -> None:
    way.proxy.hold_answers = True
    call = asyncio.create_task(way.session.get(way.path()))
    await until(lambda: way.proxy.connections > 0)
    way.proxy.cut()
    with pytest.raises(ApiUnreachable):
        await call
    way.proxy.hold_answers = False
    assert (await way.session.get(way.path()))["kind"] == "ConfigMapList"
    way.proxy.refusing = True
    way.proxy.cut()
    with pytest.raises(ApiUnreachable):
        await way.session.get(way.path())


async def test_a_watch_that_breaks_off_says_so(way: Way) -> None:
    version = (await way.session.get(way.path()))["metadata"]["resourceVersion"]
    await way.put("a")
    params = {"resourceVersion": version, "timeoutSeconds": "300"}
    names = []

    async def watch() -> None:
        async for event in way.session.watch(way.path(), params=params, read_timeout_seconds=300):
            names.append(event["object"]["metadata"]["name"])
            if names[-1] == "a":
                way.proxy.cut()

    with pytest.raises(ApiUnreachable, match="WATCH"):
        await watch()
    assert "a" in names


async def test_an_object_larger_than_a_read_is_one_event(way: Way) -> None:
    version = (await way.session.get(way.path()))["metadata"]["resourceVersion"]
    await way.direct.create(
        way.path(),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "big"}, "data": {"x": "é" * 450_000}},
    )
    params = {"resourceVersion": version, "timeoutSeconds": "60"}
    async for event in way.session.watch(way.path(), params=params, read_timeout_seconds=60):
        if event["object"]["metadata"]["name"] == "big":
            assert event["object"]["data"]["x"] == "é" * 450_000
            return
    raise AssertionError("the event never came")


@asynccontextmanager
async def middlebox(answer: bytes, lean: bool) -> AsyncIterator[ApiSession]:
    """A session to something that gives one `answer` to everything: a broken gateway, a captive portal."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    configuration = Configuration(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        async with server, ApiSession(configuration, lean=lean) as session:
            yield session
    finally:
        server.close()


def http(status: str, body: bytes, length: int | None = None) -> bytes:
    return (
        b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status.encode(), len(body) if length is None else length) + body
    )


async def test_a_gateways_error_page_is_an_error_with_its_status(lean: bool) -> None:
    async with middlebox(http("502 Bad Gateway", b"<html>upstream is gone</html>"), lean) as session:
        with pytest.raises(ApiError, match="502 : <html>upstream is gone") as error:
            await session.get("/api")
        assert error.value.status == 502


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (http("200 OK", b"<html>please log in</html>"), "the answer is not JSON"),
        (http("200 OK", b"[1, 2]"), "the answer is not a JSON object"),
        (http("200 OK", b'{"kind": "Pod', length=500), "ClientPayloadError|without sending complete message body"),
        (b"nonsense\r\n\r\n", "GET /api: "),
    ],
)
async def test_what_is_no_answer_of_an_api_server_is_unreachable(answer: bytes, message: str, lean: bool) -> None:
    async with middlebox(answer, lean) as session:
        with pytest.raises(ApiUnreachable, match=message):
            await session.get("/api")


async def test_an_answer_is_read_to_a_bound_and_no_further(lean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it says nothing of its length, too: what comes for ever must not fill the memory of a node's agent."""
    monkeypatch.setattr(session_module, "MAX_LEAN_ANSWER_BYTES" if lean else "MAX_ANSWER_BYTES", 1000)
    for size, fits in ((1000, True), (1001, False)):
        body = b'{"a":"%s"}' % (b"x" * (size - 8))
        for answer in (http("200 OK", body), b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body):
            async with middlebox(answer, lean) as session:
                if fits:
                    assert len((await session.get("/api"))["a"]) == size - 8
                    continue
                with pytest.raises(ApiUnreachable, match="GET /api: AnswerTooLarge: an answer of over 1000 bytes"):
                    await session.get("/api")


@pytest.mark.parametrize(
    ("body", "message"),
    [(b"<html>\n", "not JSON"), (b"17\n", "an event is not a JSON object"), (b"x" * 9_000_000, "a line of over")],
)
async def test_a_watch_of_nonsense_is_unreachable(body: bytes, message: str, lean: bool) -> None:
    async with middlebox(http("200 OK", body), lean) as session:
        with pytest.raises(ApiUnreachable, match=message):
            async for _ in session.watch("/api/v1/pods", params={}, read_timeout_seconds=30):
                pass


def test_paths() -> None:
    assert JOBS.path() == "/apis/batch/v1/jobs"
    assert JOBS.path("ns", "a", "status") == "/apis/batch/v1/namespaces/ns/jobs/a/status"
    assert NODES.path(name="a/b") == "/api/v1/nodes/a%2Fb"
    assert Resource("", "v1", "pods", "Pod").path("ns") == "/api/v1/namespaces/ns/pods"
    assert (JOBS.api_version, NODES.api_version) == ("batch/v1", "v1")
    with pytest.raises(ValueError, match="Job a: a namespaced object needs its namespace"):
        JOBS.path(name="a")


async def test_turns_of_its_own_wait_for_no_answer_of_the_others(lean: bool) -> None:
    """All connections of a session may wait for a server that hangs, or for one that is no more."""
    asked: list[str] = []

    async def answer_some(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                path = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1].decode()
                asked.append(path)
                if path != "/hangs":
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        except asyncio.IncompleteReadError:
            writer.close()

    listening = await asyncio.start_server(answer_some, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with ApiSession(Configuration(address), connections=2, lean=lean) as session:
        own = session.with_turns_of_its_own(1)
        hanging = [asyncio.create_task(session.get("/hangs")) for _ in range(3)]
        await until(lambda: asked == ["/hangs"] * 2, "all connections wait")
        behind = asyncio.create_task(session.get("/behind"))
        assert await own.get("/own") == {}
        assert await own.get("/own") == {}
        assert asked == ["/hangs", "/hangs", "/own", "/own"], "the others go on waiting for their turns"
        for task in (*hanging, behind):
            task.cancel()
        await asyncio.gather(*hanging, behind, return_exceptions=True)
    listening.close()
