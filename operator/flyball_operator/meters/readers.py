"""One reading of a meter: by a query to a Prometheus, or from a file that an exporter keeps.

Everything is bounded: the time, the size of an answer, and what it may say. What goes wrong is a MeterError in a sentence.
"""

from __future__ import annotations

import asyncio
import math
import os
import ssl
import stat
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from flyball_api.power_cap import CapMeter, PrometheusMeter

from flyball_operator.meters.endpoints import Endpoint

MAX_ANSWER_BYTES = 64 * 1024
MAX_FILE_BYTES = 4096
MAX_TOKEN_BYTES = 16 * 1024
MAX_QUOTED_CHARACTERS = 200
# No site draws more; what does is a broken meter.
MAX_WATTS = 1e12
FILE_SECONDS = 2.0
CONNECTIONS = 8


class MeterError(Exception):
    """Why a meter gave no reading."""


@dataclass(frozen=True, slots=True)
class MeterSample:
    """A meter's reading: watts, and when they were measured by its own clock (None: it does not give that)."""

    watts: float
    measured_at: float | None = None


class _PrometheusData(msgspec.Struct, frozen=True):
    resultType: str
    result: list[Any]


class _PrometheusAnswer(msgspec.Struct, frozen=True):
    status: str
    data: _PrometheusData | None = None
    error: str = ""


class _FileContent(msgspec.Struct, frozen=True):
    watts: float
    time: float


class MeterReaders:
    """Reads meters from the operator's `endpoints`, by name, and files of `directory` (None: there are none).

    Files are read by threads of `executor`, where a disk that hangs holds up nobody else.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint], directory: Path | None, executor: Executor) -> None:
        self._endpoints = endpoints
        self._directory = directory
        self._executor = executor
        self._sessions: dict[str, aiohttp.ClientSession] = {}

    async def read(self, meter: CapMeter) -> MeterSample:
        """One reading; raises MeterError."""
        try:
            if meter.prometheus is not None:
                return await self._query(meter.prometheus)
            return await self._file(meter.file or "")
        except TimeoutError as error:
            raise MeterError(f"{meter.source}: no answer in time") from error
        except (aiohttp.ClientError, OSError, ssl.SSLError) as error:
            raise MeterError(f"{meter.source}: {_quoted(str(error) or type(error).__name__)}") from error

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    # ---- Prometheus ------------------------------------------------------------------------------------------------

    async def _query(self, meter: PrometheusMeter) -> MeterSample:
        endpoint = self._endpoints.get(meter.endpoint)
        if endpoint is None:
            known = ", ".join(sorted(self._endpoints)) or "none"
            raise MeterError(
                f"Prometheus {meter.endpoint}: no such endpoint in the operator's --meter-endpoints ({known})"
            )
        async with asyncio.timeout(endpoint.timeout_seconds):
            # The time first: the value is then at least as new as it says.
            measured_at = None if meter.time_query is None else await self._value(endpoint, meter.time_query)
            watts = await self._value(endpoint, meter.query)
        return _sample(f"Prometheus {meter.endpoint}", watts, measured_at)

    async def _value(self, endpoint: Endpoint, query: str) -> float:
        """The one value of an instant query."""
        headers = {"Accept": "application/json"}
        if endpoint.token_file is not None:
            # Read each time: tokens are rotated.
            token = await self._in_thread(file_contents, Path(endpoint.token_file), MAX_TOKEN_BYTES)
            headers["Authorization"] = f"Bearer {token.decode('ascii', 'replace').strip()}"
        session = await self._session(endpoint)
        async with session.post(
            endpoint.url.rstrip("/") + "/api/v1/query",
            data={"query": query, "timeout": f"{endpoint.timeout_seconds:g}s"},
            headers=headers,
            allow_redirects=False,
        ) as answer:
            content = await _bounded(answer.content)
            if answer.status // 100 == 3:
                raise MeterError(f"Prometheus {endpoint.name}: answers with a redirection, which is not followed")
            return _one_value(endpoint.name, answer.status, content)

    async def _session(self, endpoint: Endpoint) -> aiohttp.ClientSession:
        session = self._sessions.get(endpoint.name)
        if session is None:
            trust = await self._in_thread(_trust, endpoint)
            session = self._sessions[endpoint.name] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=trust, limit=CONNECTIONS), cookie_jar=aiohttp.DummyCookieJar()
            )
        return session

    # ---- files -----------------------------------------------------------------------------------------------------

    async def _file(self, name: str) -> MeterSample:
        if self._directory is None:
            raise MeterError(f"file {name}: the operator runs without --meter-dir")
        if "/" in name or name.startswith(".") or not name:
            raise MeterError(f"file {name!r}: the name of a file in the operator's --meter-dir, without a path")
        async with asyncio.timeout(FILE_SECONDS):
            content = await self._in_thread(file_contents, self._directory / name, MAX_FILE_BYTES)
        try:
            read = msgspec.json.decode(content, type=_FileContent)
        except (msgspec.DecodeError, RecursionError) as error:
            raise MeterError(f'file {name}: not {{"watts": ..., "time": ...}}: {_quoted(str(error))}') from error
        return _sample(f"file {name}", read.watts, read.time)

    async def _in_thread(self, call: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *arguments)


def _sample(source: str, watts: float, measured_at: float | None) -> MeterSample:
    if not 0.0 <= watts <= MAX_WATTS:  # false of NaN, too
        raise MeterError(f"{source}: reads {watts:g} W, which is no draw")
    if measured_at is not None and not math.isfinite(measured_at):
        raise MeterError(f"{source}: its time is {measured_at:g}")
    return MeterSample(watts, measured_at)


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    """An answer's body; raises MeterError where it is too long, whatever its length is said to be."""
    body = b""
    async for part in content.iter_any():
        body += part
        if len(body) > MAX_ANSWER_BYTES:
            raise MeterError(f"an answer of more than {MAX_ANSWER_BYTES} bytes: aggregate in the query")
    return body


def _one_value(name: str, status: int, body: bytes) -> float:
    try:
        answer = msgspec.json.decode(body, type=_PrometheusAnswer)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MeterError(f"Prometheus {name}: HTTP {status}, and no answer of a Prometheus") from error
    if answer.status != "success" or answer.data is None:
        raise MeterError(f"Prometheus {name}: HTTP {status}: {_quoted(answer.error)}")
    kind, result = answer.data.resultType, answer.data.result
    try:
        if kind == "scalar":
            return float(result[1])
        if kind != "vector":
            raise MeterError(f"Prometheus {name}: the query gives a {_quoted(kind)}, not one value")
        if len(result) != 1:
            much = (
                "nothing (the meter is not scraped, or the query is wrong)" if not result else f"{len(result)} series"
            )
            raise MeterError(f"Prometheus {name}: the query gives {much}, not one value: aggregate it, say by sum()")
        return float(result[0]["value"][1])
    except (LookupError, TypeError, ValueError) as error:
        raise MeterError(f"Prometheus {name}: the answer has no value where one should be") from error


def file_contents(path: Path, most: int) -> bytes:
    """A regular file's content, of `most` bytes; never waits for a writer, as a pipe's reader would.

    Raises MeterError where it is another thing, or longer, and OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise MeterError(f"{path.name} is no regular file")
        content = os.read(descriptor, most + 1)  # short reads of a regular file are its end
    finally:
        os.close(descriptor)
    if len(content) > most:
        raise MeterError(f"{path.name} is longer than {most} bytes")
    return content


def _trust(endpoint: Endpoint) -> ssl.SSLContext | bool:
    if not endpoint.url.startswith("https:"):
        return True
    return ssl.create_default_context(cafile=endpoint.ca_file)


def _quoted(text: str) -> str:
    """What somebody else said, fit for one line of a status."""
    shown = " ".join(text.split())
    return shown if len(shown) <= MAX_QUOTED_CHARACTERS else shown[:MAX_QUOTED_CHARACTERS] + "..."
