"""A reading is one number out of a bounded answer; whatever else comes is a sentence, never another exception."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from flyball_api.power_cap import CapMeter, PrometheusMeter
from flyball_operator.meters import readers as readers_module
from flyball_operator.meters.endpoints import Endpoint
from flyball_operator.meters.readers import MAX_ANSWER_BYTES, MeterError, MeterReaders, MeterSample
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples


class Prometheus:
    """A server that answers each query with what the test says."""

    def __init__(self) -> None:
        self.answers: dict[str, object] = {}
        self.status = 200
        self.body: bytes | None = None
        self.hangs = False
        self.headers: dict[str, str] = {}
        self.seen: list[str] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.headers = dict(request.headers)
        form = await request.post()
        query = str(form["query"])
        self.seen.append(query)
        if self.hangs:
            await asyncio.Event().wait()
        if self.body is not None:
            return web.Response(status=self.status, body=self.body)
        value = self.answers[query]
        result = [{"metric": {}, "value": [1.0, str(value)]}]
        body = {"status": "success", "data": {"resultType": "vector", "result": result}}
        return web.json_response(body, status=self.status)

    async def other(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request.path)
        return web.Response(text="what nobody should ask for")


@pytest.fixture
async def prometheus() -> AsyncIterator[Prometheus]:
    server = Prometheus()
    app = web.Application()
    app.router.add_post("/prom/api/v1/query", server.answer)
    app.router.add_get("/elsewhere", server.other)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/prom"
    yield server
    await runner.cleanup()


@pytest.fixture
async def readers(prometheus: Prometheus, tmp_path: Path) -> AsyncIterator[MeterReaders]:
    executor = ThreadPoolExecutor(2)
    item = MeterReaders({"main": Endpoint("main", prometheus.url, timeout_seconds=5.0)}, tmp_path, executor)
    yield item
    await item.close()
    executor.shutdown(wait=False)


def asking(query: str = "sum(x)", time_query: str | None = None, endpoint: str = "main") -> CapMeter:
    return CapMeter(prometheus=PrometheusMeter(endpoint, query, time_query))


async def refusal(readers: MeterReaders, meter: CapMeter) -> str:
    with pytest.raises(MeterError) as refused:
        await readers.read(meter)
    return str(refused.value)


async def test_a_query_is_one_value_and_its_time(prometheus: Prometheus, readers: MeterReaders) -> None:
    prometheus.answers = {"sum(x)": 41250.5, "min(timestamp(x))": 1767225600.25}
    assert await readers.read(asking()) == MeterSample(41250.5)
    assert await readers.read(asking(time_query="min(timestamp(x))")) == MeterSample(41250.5, 1767225600.25)
    assert "Authorization" not in prometheus.headers


async def test_a_scalar_is_a_value_too(prometheus: Prometheus, readers: MeterReaders) -> None:
    prometheus.body = b'{"status": "success", "data": {"resultType": "scalar", "result": [1, "7"]}}'
    assert await readers.read(asking()) == MeterSample(7.0)


ANSWERS = [
    (200, b'{"status": "success", "data": {"resultType": "vector", "result": []}}', "gives nothing"),
    (200, b'{"status": "success", "data": {"resultType": "vector", "result": [{}, {}]}}', "2 series"),
    (200, b'{"status": "success", "data": {"resultType": "matrix", "result": [{}]}}', "gives a matrix"),
    (200, b'{"status": "success", "data": {"resultType": "vector", "result": [{"value": [1]}]}}', "no value"),
    (200, b'{"status": "success", "data": {"resultType": "vector", "result": [{"value": [1, "NaN"]}]}}', "no draw"),
    (200, b'{"status": "success", "data": {"resultType": "vector", "result": [{"value": [1, "-5"]}]}}', "no draw"),
    (200, b'{"status": "success", "data": {"resultType": "vector", "result": [{"value": [1, "1e13"]}]}}', "no draw"),
    (422, b'{"status": "error", "error": "parse error: unexpected end"}', "HTTP 422: parse error"),
    (502, b"<html>bad gateway</html>", "HTTP 502, and no answer of a Prometheus"),
    (200, b" " * (MAX_ANSWER_BYTES + 1), "more than"),
    (200, b'{"status": ' + b"[" * 30_000, "no answer of a Prometheus"),
    (200, b'{"x": ' + b"[" * 30_000, "no answer of a Prometheus"),
    (200, b'{"status": "error", "error": "' + b"x" * 1000 + b'"}', "..."),
]


@pytest.mark.parametrize(("status", "body", "said"), ANSWERS)
async def test_an_answer_that_is_no_reading_says_why(
    prometheus: Prometheus, readers: MeterReaders, status: int, body: bytes, said: str
) -> None:
    prometheus.status, prometheus.body = status, body
    message = await refusal(readers, asking())
    assert said in message
    assert len(message) < 400


async def test_a_redirection_is_not_followed(prometheus: Prometheus, readers: MeterReaders) -> None:
    prometheus.status, prometheus.body = 302, b""
    assert "not followed" in await refusal(readers, asking())
    assert prometheus.seen == ["sum(x)"]


async def test_a_server_that_hangs_or_is_not_there_ends_in_time(prometheus: Prometheus, tmp_path: Path) -> None:
    prometheus.hangs = True
    with ThreadPoolExecutor(1) as executor:
        endpoints = {
            "main": Endpoint("main", prometheus.url, timeout_seconds=0.05),
            "gone": Endpoint("gone", "http://127.0.0.1:9"),
        }
        readers = MeterReaders(endpoints, tmp_path, executor)
        assert "no answer in time" in await refusal(readers, asking())
        assert "Prometheus gone" in await refusal(readers, asking(endpoint="gone"))
        await readers.close()


async def test_only_the_operators_endpoints_are_asked(readers: MeterReaders) -> None:
    message = await refusal(readers, asking(endpoint="http://169.254.169.254"))
    assert "no such endpoint in the operator's --meter-endpoints (main)" in message


@dataclass(frozen=True)
class EndpointOverHttp:
    """As no endpoints' file can have it: a token over plain HTTP, because the test's server speaks no TLS."""

    url: str
    token_file: str
    name: str = "main"
    timeout_seconds: float = 5.0


async def test_a_token_is_read_each_time_and_never_said(
    prometheus: Prometheus, readers: MeterReaders, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    endpoint: Any = EndpointOverHttp(prometheus.url, str(token))
    prometheus.answers = {"sum(x)": 1}
    with ThreadPoolExecutor(1) as executor:
        readers = MeterReaders({"main": endpoint}, None, executor)
        for secret in ("first", "second"):
            token.write_text(secret + "\n")
            await readers.read(asking())
            assert prometheus.headers["Authorization"] == f"Bearer {secret}"
        prometheus.status, prometheus.body = 401, b"no"
        assert "second" not in await refusal(readers, asking())
        token.unlink()
        assert "No such file" in await refusal(readers, asking())
        await readers.close()


# --- files ---------------------------------------------------------------------------------------------------------


def file_meter(name: str = "row-1") -> CapMeter:
    return CapMeter(file=name)


async def test_a_file_has_watts_and_their_time(readers: MeterReaders, tmp_path: Path) -> None:
    (tmp_path / "row-1").write_text('{"watts": 41250.5, "time": 1767225600.25, "pdu": "a"}')
    assert await readers.read(file_meter()) == MeterSample(41250.5, 1767225600.25)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("41250", "not {"),
        ('{"watts": "many", "time": 1}', "not {"),
        ('{"watts": 1}', "not {"),
        ('{"watts": -1, "time": 1}', "no draw"),
        ('{"x": ' + "[" * 4000, "not {"),
        (" " * 5000, "longer than"),
    ],
)
async def test_a_file_that_is_no_reading_says_why(
    readers: MeterReaders, tmp_path: Path, content: str, said: str
) -> None:
    (tmp_path / "row-1").write_text(content)
    assert said in await refusal(readers, file_meter())


async def test_a_file_that_is_not_one_is_refused_and_waits_for_nobody(readers: MeterReaders, tmp_path: Path) -> None:
    assert "No such file" in await refusal(readers, file_meter("none"))
    os.mkfifo(tmp_path / "pipe")
    assert "no regular file" in await refusal(readers, file_meter("pipe"))
    (tmp_path / "folder").mkdir()
    assert "no regular file" in await refusal(readers, file_meter("folder"))


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", ".hidden", ""])
async def test_no_name_leads_out_of_the_folder(readers: MeterReaders, name: str) -> None:
    assert "without a path" in await refusal(readers, CapMeter(file=name))


async def test_without_a_folder_there_are_no_files(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        assert "--meter-dir" in await refusal(MeterReaders({}, None, executor), file_meter())


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["status", "data", "value"]), inner)
        ),
        max_leaves=6,
    ).map(lambda value: json.dumps({"status": "success", "data": {"resultType": "vector", "result": value}}).encode())
)
def test_any_answer_is_a_value_or_a_sentence(body: bytes) -> None:
    with contextlib.suppress(MeterError):
        assert isinstance(readers_module._one_value("main", 200, body), float)
