"""Asks the planner service for the plan of a pipeline: it solves in processes of its own that it kills when they take long.

The operator solves no frontier itself. All that it waits for and takes in is bounded, and what goes wrong is a sentence.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import NoReturn

import aiohttp

from flyball_operator.jobs.pipeline_plans import PlanPipeline

# How long the service may take until it answers with the plan or says why there is none: it has its own deadline.
DEADLINE_SECONDS = 1800.0
# Each request of them is held open for so long, and answered within the second.
WAIT_SECONDS, ANSWER_SECONDS = 30.0, 45.0
# One that is answered sooner, without a plan, is not followed by the next before this.
PAUSE_SECONDS = 1.0
# A ConfigMap has a MiB, its names and what JSON makes of quotes included.
MAX_DOCUMENT_BYTES = 900_000
MOST_POINTS, LEAST_POINTS = 60, 8
MAX_REASON_BYTES = 4096
MAX_TOKEN_BYTES = 16 * 1024


class NoPlan(Exception):
    """Why there is no plan; `final`: of the same profile there never will be one."""

    def __init__(self, message: str, *, final: bool) -> None:
        super().__init__(message)
        self.final = final


class _TooLarge(Exception):
    """The document of this many points does not fit into a ConfigMap."""


class PipelinePlanner:
    """The service at `url` (empty: there is none), with the bearer token of a file that is read for each plan."""

    def __init__(self, url: str, token_file: Path | None = None, *, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._url = url.rstrip("/")
        self._token_file = token_file
        self._deadline_seconds = deadline_seconds

    async def plan(self, wanted: PlanPipeline) -> str:
        """The plan as `flyball frontier --output` writes it, small enough for a ConfigMap. Raises NoPlan."""
        if not self._url:
            raise NoPlan("nobody plans: the operator was started without --planner-url", final=False)
        try:
            async with asyncio.timeout(self._deadline_seconds):
                return await self._plan(wanted)
        except TimeoutError as error:
            raise NoPlan(f"the planner service had no plan within {self._deadline_seconds:g} s", final=False) from error
        except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
            why = str(error)[:200] or type(error).__name__
            raise NoPlan(f"the planner service at {self._url}: {why}", final=False) from error

    async def _plan(self, wanted: PlanPipeline) -> str:
        headers = {}
        if self._token_file is not None:
            token = await asyncio.to_thread(_token, self._token_file)
            headers["Authorization"] = f"Bearer {token}"
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        async with aiohttp.ClientSession(
            headers=headers, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
        ) as session:
            points = MOST_POINTS
            while points >= LEAST_POINTS:
                try:
                    return await self._ask(session, wanted, points)
                except _TooLarge:
                    points //= 2
        raise NoPlan(f"a plan of it has more than the {MAX_DOCUMENT_BYTES:,} bytes that a ConfigMap takes", final=True)

    async def _ask(self, session: aiohttp.ClientSession, wanted: PlanPipeline, points: int) -> str:
        body = {
            "profile": wanted.profile,
            "microbatches": wanted.microbatches,
            "blockingWatts": wanted.blocking_watts,
            "points": points,
        }
        method, where, sent = "POST", "/v1/frontiers", body
        loop = asyncio.get_running_loop()
        while True:
            asked_at = loop.time()
            async with session.request(
                method,
                f"{self._url}{where}?wait={WAIT_SECONDS:g}",
                json=sent if method == "POST" else None,
                allow_redirects=False,
            ) as answer:
                if answer.status == 200:
                    return await _document(answer)
                if answer.status != 202:
                    await _refuse(answer)
                where = answer.headers.get("Location", "")
                method = "GET"
            if not where.startswith("/v1/frontiers/") or "?" in where:
                raise NoPlan(
                    f"the planner service at {self._url} does not say where its plan is: {where!r:.80}", final=False
                )
            await asyncio.sleep(asked_at + PAUSE_SECONDS - loop.time())


async def _document(answer: aiohttp.ClientResponse) -> str:
    content = await _bounded(answer, MAX_DOCUMENT_BYTES)
    if content is None:
        raise _TooLarge
    document = json.loads(content)
    if not isinstance(document, dict) or not document.get("points"):
        raise NoPlan("the planner service answers with what is no plan", final=False)
    return content.decode()


async def _refuse(answer: aiohttp.ClientResponse) -> NoReturn:
    content = await _bounded(answer, MAX_REASON_BYTES) or b""
    try:
        reason = str(json.loads(content)["reason"])
    except (ValueError, KeyError, TypeError):
        reason = content[:200].decode(errors="replace")
    raise NoPlan(f"the planner service says ({answer.status}): {reason}", final=answer.status == 422)


async def _bounded(answer: aiohttp.ClientResponse, most: int) -> bytes | None:
    """The body; None where it is longer than `most` bytes."""
    content = bytearray()
    async for chunk in answer.content.iter_chunked(65536):
        content += chunk
        if len(content) > most:
            return None
    return bytes(content)


def _token(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(MAX_TOKEN_BYTES).decode("ascii").strip()
