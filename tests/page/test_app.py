"""The page's HTTP interface: what it sends, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import httpx
import pytest
from flyball_kube.errors import ApiUnreachable
from flyball_page.access import Unauthenticated, Viewer
from flyball_page.app import FindViewer, make_app
from flyball_page.main import PageConnection
from flyball_page.options import PageOptions
from flyball_page.published import Published, accepts_gzip, names_version
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.support.shown_page import MadeDocuments, served, small_page
from tests.support.waiting import until

DOCUMENTS = (
    "api/overview",
    "api/nodes",
    "api/nodes/node-a",
    "api/jobs",
    "api/jobs/team/train",
    "api/history/cluster",
    "api/history/cluster/whole",
)


@asynccontextmanager
async def asking(
    made: MadeDocuments, find_viewer: FindViewer | None = None, **keywords: Any
) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(make_app(made, find_viewer, **keywords))
    async with httpx.AsyncClient(transport=transport, base_url="http://page") as client:
        yield client


@pytest.fixture
def made() -> MadeDocuments:
    return small_page()


# --- what is sent ------------------------------------------------------------------------------------------------------


async def test_every_answer_forbids_to_load_anything_from_elsewhere(made: MadeDocuments) -> None:
    async with asking(made) as client:
        for path in ("/", "/static/main.js", "/nothing", "/api/jobs/x/y", *DOCUMENTS):
            answer = await client.get(path)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy, path
            assert "frame-ancestors 'none'" in policy, path
            assert "unsafe" not in policy, path
            assert answer.headers["x-content-type-options"] == "nosniff"


async def test_the_page_s_own_files_name_no_address_elsewhere_and_no_absolute_one() -> None:
    for file in files("flyball_page").joinpath("static").iterdir():
        text = file.read_text()
        outside = [
            found for found in re.findall(r"\b(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", text) if "w3.org" not in found
        ]
        assert outside == [], file.name
        assert not re.findall(r"""(?:href|src|action)="/|(?:fetch|import)\(\s*["'`]/|from\s+["']/""", text), file.name
        assert not re.findall(r"""\son\w+=|style="|<style|innerHTML|eval\(""", text), (
            f"{file.name}: the policy forbids it"
        )


@pytest.mark.parametrize("path", DOCUMENTS)
async def test_a_document_is_sent_once_and_then_known_by_its_tag(made: MadeDocuments, path: str) -> None:
    async with asking(made) as client:
        first = await client.get(path)
        assert first.status_code == 200, first.text
        assert first.headers["content-type"] == "application/json"
        assert first.headers["cache-control"] == "no-store"
        again = await client.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert (await client.get(path, headers={"If-None-Match": '"other"'})).json() == first.json()


async def test_a_large_document_is_compressed_for_who_takes_that(made: MadeDocuments) -> None:
    transport = httpx.ASGITransport(make_app(made))
    async with httpx.AsyncClient(transport=transport, base_url="http://page") as client:
        for encoding, compressed in (("gzip, br", True), ("identity", False), ("gzip;q=0", False)):
            async with client.stream("GET", "/api/overview", headers={"Accept-Encoding": encoding}) as answer:
                raw = b"".join([chunk async for chunk in answer.aiter_raw()])
            assert (answer.headers.get("content-encoding") == "gzip") is compressed
            assert b'"caps"' in (gzip.decompress(raw) if compressed else raw)


def test_headers_of_encodings_and_versions() -> None:
    assert [accepts_gzip(given) for given in ("", "br", "*", "deflate, GZIP ;q=0.5", "gzip;q=0")] == [
        False,
        False,
        True,
        True,
        False,
    ]
    assert [names_version(given, '"a"') for given in ("", '"b"', '"b", W/"a"', "*")] == [False, False, True, True]
    assert Published.of({"a": 1}).compressed is None


async def test_it_works_under_any_path(made: MadeDocuments) -> None:
    """As behind `kubectl proxy`, or an ingress: every address that the page itself names is found under a prefix."""
    prefix = "/api/v1/namespaces/flyball-system/services/http:flyball-page:http/proxy"
    app = Starlette(routes=[Mount(prefix, app=make_app(made))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://page") as client:
        index = await client.get(f"{prefix}/")
        assert index.status_code == 200
        named = re.findall(r"""(?:href|src)="([^"#]+)\"""", index.text)
        assert "static/main.js" in named
        for name in (*named, *DOCUMENTS):
            assert (await client.get(str(httpx.URL(f"http://page{prefix}/").join(name)))).status_code == 200, name


async def test_probes(made: MadeDocuments) -> None:
    async with asking(made) as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        made.not_ready = "GPUNodes have not been listed yet"
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()) == (503, {"reason": "GPUNodes have not been listed yet"})
        assert (await client.get("/healthz")).status_code == 200


# --- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
async def test_nothing_can_be_written(made: MadeDocuments, method: str) -> None:
    async with asking(made) as client:
        for path in ("/", "/api/overview", "/api/jobs/team/train", "/nothing"):
            answer = await client.request(method, path, content=b"{}")
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET"), path
    assert made.asked == {}


def test_the_application_has_no_route_that_writes_and_none_that_describes_it() -> None:
    routes = make_app(small_page()).routes
    assert {method for route in routes for method in getattr(route, "methods", ())} <= {"GET", "HEAD"}
    assert not {getattr(route, "path", "") for route in routes} & {"/docs", "/redoc", "/openapi.json"}


@pytest.mark.parametrize(
    "path",
    [
        "/nothing", "/static/nothing.js", "/static/..%2fapp.py", "/static/%2e%2e%2fapp.py", "/api/jobs/team/nobody",
        "/api/jobs/te%0aam/x", "/api/nodes/" + "x" * 300, "/api/history/nobody", "/api/nodes/..", "/api/jobs/A/b",
    ],
)  # fmt: skip
async def test_what_is_not_there_is_not_found_and_says_so(made: MadeDocuments, path: str) -> None:
    async with asking(made) as client:
        answer = await client.get(path)
    assert answer.status_code == 404
    assert set(answer.json()) == {"reason"}
    assert "x" * 300 not in answer.text


async def test_more_requests_than_a_second_may_have_are_refused(made: MadeDocuments) -> None:
    async with asking(made, max_requests_per_second=10) as client:
        answers = await asyncio.gather(*(client.get("/healthz") for _ in range(200)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) >= 100
    assert refused[0].headers["retry-after"] == "1"


async def test_a_name_that_was_made_to_point_here_is_refused(made: MadeDocuments) -> None:
    async with asking(made, hosts=PageOptions().hosts) as client:
        for host, status in (
            ("localhost:8090", 200),
            ("127.0.0.1", 200),
            ("[::1]:8090", 200),
            ("evil.example", 421),
            ("", 421),
            ("localhost.evil.example:80", 421),
        ):
            assert (await client.get("/api/overview", headers={"Host": host})).status_code == status, host
    assert PageOptions(address="10.0.0.7").hosts == frozenset()
    assert "power.example" in PageOptions(allowed_host=("Power.example",)).hosts


# --- who sees what -----------------------------------------------------------------------------------------------------


async def viewers(token: str) -> Viewer:
    if token == "away":
        raise ApiUnreachable("POST: no answer")
    known = {
        "sre": Viewer("sre", True, True),
        "power": Viewer("power", True, False),
        "user": Viewer("user", False, True),
    }
    if token not in known:
        raise Unauthenticated("the API server does not take this token")
    return known[token]


async def test_without_a_token_nothing_but_the_empty_page_is_shown(made: MadeDocuments) -> None:
    async with asking(made, viewers) as client:
        for path in DOCUMENTS:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic YTpi"}):
                answer = await client.get(path, headers=headers)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
        assert (await client.get("/")).status_code == 200
    assert made.asked == {}


async def test_an_account_of_some_namespaces_sees_their_jobs_alone(made: MadeDocuments) -> None:
    async def of_team(_token: str) -> Viewer:
        return Viewer("ann", power=False, jobs=False, namespaces=frozenset({"team"}))

    async with asking(made, of_team) as client:
        headers = {"Authorization": "Bearer ann"}
        sent = (await client.get("/api/jobs", headers=headers)).json()
        assert {job["namespace"] for job in sent["jobs"]} == {"team"}
        assert (sent["namespaces"], [event["namespace"] for event in sent["events"]]) == (["team"], ["team"])
        statuses = [
            (await client.get(path, headers=headers)).status_code
            for path in ("/api/jobs/team/train", "/api/jobs/other/done", "/api/jobs/other/nobody", "/api/nodes")
        ]
    assert statuses == [200, 403, 403, 403]


async def test_what_was_learned_of_a_job_is_for_who_may_list_profiles_there(made: MadeDocuments) -> None:
    fitted = {
        "everywhere": Viewer("ann", power=False, jobs=True, profiles=True),
        "here": Viewer("ann", power=False, jobs=True, profile_namespaces=frozenset({"team"})),
        "elsewhere": Viewer("ann", power=False, jobs=True, profile_namespaces=frozenset({"other"})),
        "nowhere": Viewer("ann", power=False, jobs=True),
    }

    async def find(token: str) -> Viewer:
        return fitted[token]

    async with asking(made, find) as client:
        answers = {
            token: await client.get("/api/jobs/team/train", headers={"Authorization": f"Bearer {token}"})
            for token in fitted
        }
    observations = {token: answer.text.count('"observations":12') for token, answer in answers.items()}
    assert observations == {"everywhere": 1, "here": 1, "elsewhere": 0, "nowhere": 0}
    assert answers["nowhere"].json()["profiles"] is None
    assert answers["nowhere"].headers["etag"] != answers["here"].headers["etag"]


@pytest.mark.parametrize("header", ["Authorization", "Flyball-Authorization"])
async def test_an_account_sees_what_it_may_list(made: MadeDocuments, header: str) -> None:
    async with asking(made, viewers) as client:
        for token, allowed in (
            ("sre", {*DOCUMENTS}),
            ("power", {path for path in DOCUMENTS if "jobs" not in path}),
            ("user", {path for path in DOCUMENTS if "jobs" in path}),
        ):
            for path in DOCUMENTS:
                answer = await client.get(path, headers={header: f"Bearer {token}"})
                assert answer.status_code == (200 if path in allowed else 403), (token, path)


async def test_the_page_s_own_header_goes_before_the_one_that_a_proxy_may_have_set(made: MadeDocuments) -> None:
    async with asking(made, viewers) as client:
        headers = {"Authorization": "Bearer sre", "Flyball-Authorization": "Bearer wrong"}
        assert (await client.get("/api/overview", headers=headers)).status_code == 401


async def test_where_nobody_can_say_whose_token_it_is_nobody_is_let_in(made: MadeDocuments) -> None:
    async with asking(made, viewers) as client:
        answer = await client.get("/api/overview", headers={"Authorization": "Bearer away"})
    assert answer.status_code == 503
    assert "away" not in answer.text


# --- connections -------------------------------------------------------------------------------------------------------


async def ended(address: str, *sent: bytes) -> bytes:
    """What a connection brings until the server ends it, after `sent` and nothing more."""
    url = httpx.URL(address)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    for part in sent:
        writer.write(part)
        await writer.drain()
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: page\r\nX: "])
async def test_a_request_that_never_ends_is_ended(
    made: MadeDocuments, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(PageConnection, "request_seconds", 0.2)
    with served(make_app(made)) as address:
        assert await ended(address, sent) == b""
        monkeypatch.setattr(PageConnection, "request_seconds", 30.0)  # the next one may take its time
        async with httpx.AsyncClient() as client:
            assert (await client.get(address)).status_code == 200


async def test_who_does_not_read_is_not_waited_for(made: MadeDocuments, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[object] = []
    forget = PageConnection.connection_lost
    monkeypatch.setattr(PageConnection, "request_seconds", 0.2)

    def noted(*given: Any) -> None:
        lost.append(given)
        forget(*given)

    monkeypatch.setattr(PageConnection, "connection_lost", noted)
    large = Published(b"x" * 50_000_000, None, '"large"')
    monkeypatch.setattr(MadeDocuments, "overview", lambda _self: large)
    with served(make_app(made)) as address:
        url = httpx.URL(address)
        # What is not read fills the two buffers between here and there, and no more.
        reader, writer = await asyncio.open_connection(url.host, url.port, limit=1024)
        writer.write(b"GET /api/overview HTTP/1.1\r\nHost: page\r\n\r\n")
        await until(lambda: bool(lost), "the server has let go of who does not read")
        with contextlib.suppress(ConnectionResetError):
            assert len(await reader.read()) < len(large.plain)
        writer.close()
