"""The service's HTTP interface: profiles in, frontiers out.

`POST /v1/frontiers` answers with the frontier, or with 202 where that takes longer than the asker wants to wait; then
`GET /v1/frontiers/ID` has it, and `GET /v1/frontiers/ID/at?seconds=` one point of it. Every refusal is JSON with a
`reason`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from flyball_frontiers import frontier_from_json
from flyball_kube.serving.names import host_name, is_from_elsewhere
from starlette.exceptions import HTTPException

from flyball_planner_service.frontiers import Entry, Frontiers, Full
from flyball_planner_service.request import InvalidRequest, read_request
from flyball_planner_service.solver import GivenUp, Planned, Refused

MAX_BODY_BYTES = 1024 * 1024
BODY_SECONDS = 30.0
RETRY_AFTER_SECONDS = "2"

_ID = re.compile("[0-9a-f]{32}", re.ASCII)
WaitSeconds = Annotated[float, Query(ge=0.0, le=60.0)]
Seconds = Annotated[float, Query(gt=0.0, allow_inf_nan=False)]


def make_app(
    frontiers: Frontiers,
    token: str | None = None,
    *,
    max_estimated_seconds: float = 300.0,
    hosts: frozenset[str] = frozenset(),
) -> FastAPI:
    """The application; with a `token` every request but that for /healthz must have it as its bearer token.

    `hosts` are the names that a request may call this server by, empty: any. What others' pages ask for is refused.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        planning = asyncio.create_task(frontiers.run())
        try:
            yield
        finally:
            planning.cancel()
            await asyncio.gather(planning, return_exceptions=True)

    async def known(request: Request) -> None:
        if hosts and host_name(request.scope["headers"]) not in hosts:
            raise HTTPException(421, f"this service is reached as {' or '.join(sorted(hosts))} only")
        if is_from_elsewhere(request.scope["headers"]):
            raise HTTPException(403, "a web page of another server asks for this; this service plans for programs")
        if token is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
            raise HTTPException(401, "this service needs a bearer token", {"WWW-Authenticate": "Bearer"})

    app = FastAPI(title="Flyball's planner", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)

    @app.get("/healthz")
    async def healthz() -> dict[str, Any]:
        return {"state": "serving", "waiting": frontiers.waiting}

    @app.post("/v1/frontiers", dependencies=[Depends(known)])
    async def plan(request: Request, wait: WaitSeconds = 10.0) -> Response:
        body = await _body(request)
        asked = await asyncio.to_thread(read_request, body, max_estimated_seconds)
        return await _answer(await frontiers.ask(asked), wait)

    @app.get("/v1/frontiers/{id}", dependencies=[Depends(known)])
    async def frontier(id: str, wait: WaitSeconds = 0.0) -> Response:
        return await _answer(_found(frontiers, id), wait)

    @app.get("/v1/frontiers/{id}/at", dependencies=[Depends(known)])
    async def at(id: str, seconds: Seconds) -> Response:
        entry = _found(frontiers, id)
        if not isinstance(entry.answer, Planned):
            return await _answer(entry, 0.0)
        return JSONResponse(await asyncio.to_thread(_point, entry.answer.document, seconds))

    async def refuse(_request: Request, error: Exception) -> Response:
        match error:
            case InvalidRequest():
                return JSONResponse({"reason": str(error)}, 422)
            case RequestValidationError():
                first = error.errors()[0]
                return JSONResponse({"reason": f"{first['loc'][-1]}: {first['msg']}"}, 422)
            case Full():
                return JSONResponse({"reason": str(error)}, 429, {"Retry-After": RETRY_AFTER_SECONDS})
            case HTTPException():
                return JSONResponse({"reason": str(error.detail)}, error.status_code, error.headers)
        raise error

    for kind in (InvalidRequest, RequestValidationError, Full, HTTPException):
        app.add_exception_handler(kind, refuse)
    return app


async def _body(request: Request) -> bytes:
    """The body, of bounded length and time."""
    too_long = HTTPException(413, f"a request has {MAX_BODY_BYTES:,} bytes at the most", {"Connection": "close"})
    if int(request.headers.get("content-length") or 0) > MAX_BODY_BYTES:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise too_long
    except TimeoutError as error:
        raise HTTPException(408, f"the request took longer than {BODY_SECONDS:g} s", {"Connection": "close"}) from error
    return bytes(body)


def _found(frontiers: Frontiers, id: str) -> Entry:
    if _ID.fullmatch(id) is None:
        raise InvalidRequest(
            f"{id[:40]!r} is the id of no frontier: one has 32 digits and letters from a to f, and stands in the Location "
            "that POST /v1/frontiers answers with"
        )
    entry = frontiers.find(id)
    if entry is None:
        raise HTTPException(404, "no such frontier was asked for, or it is forgotten: ask for it anew")
    return entry


async def _answer(entry: Entry, wait_seconds: float) -> Response:
    if entry.answer is None and wait_seconds > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                await entry.done.wait()
    where = {"Location": f"/v1/frontiers/{entry.id}"}
    match entry.answer:
        case Planned(document):
            return Response(document, media_type="application/json", headers=where)
        case Refused(reason):
            return JSONResponse({"reason": reason}, 422)
        case GivenUp(reason):
            return JSONResponse({"reason": reason}, 503, {"Retry-After": RETRY_AFTER_SECONDS})
        case _:
            state = {"id": entry.id, "state": "planning" if entry.planning else "waiting"}
            return JSONResponse(state, 202, {**where, "Retry-After": RETRY_AFTER_SECONDS})


def _point(document: bytes, seconds: float) -> dict[str, Any]:
    """The best point for an iteration of so many seconds. Raises InvalidRequest where nothing is that fast."""
    record = json.loads(document)
    for point in record["points"]:
        point["plan"] = point["clocks"]
    try:
        point = frontier_from_json(record, lambda clocks: clocks).at(seconds)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    return {
        "time": point.time_seconds,
        "energy": point.energy_joules,
        "realised_time": point.realised_time_seconds,
        "realised_energy": point.realised_energy_joules,
        "clocks": point.plan,
    }
