"""The page's HTTP interface: static files and JSON documents, read only.

Every answer carries a policy by which a browser loads nothing from elsewhere; every address on the page is relative, so
that it works behind `kubectl proxy` and under any path of an ingress. No request writes, and none has a body.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Annotated, Protocol

from fastapi import APIRouter, Depends, FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.process.logs import get_logger
from flyball_kube.serving.names import host_name
from flyball_kube.serving.token_bucket import TokenBucket
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flyball_page.access import Forbidden, TooManyReviews, Unauthenticated, Viewer, bearer_token
from flyball_page.published import Published, accepts_gzip, names_version

logger = get_logger(__name__)

# A header of our own beside Authorization, which the API server's proxy (and so `kubectl proxy`) keeps for itself.
TOKEN_HEADER = "flyball-authorization"  # noqa: S105 - a header's name, no secret

SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
EVERYTHING = Viewer("everybody", power=True, jobs=True, profiles=True)

# As Kubernetes has names; anything else is nobody's.
ObjectName = Annotated[str, Path(max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]


class Documents(Protocol):
    """What the page shows, as documents that are ready to be sent; None: there is no such object."""

    def why_not_ready(self) -> str: ...

    def overview(self) -> Published: ...

    def nodes(self) -> Published: ...

    def node(self, name: str) -> Published | None: ...

    def jobs(self, namespaces: frozenset[str] | None) -> Published: ...

    def job(self, namespace: str, name: str, *, profiles: bool) -> Published | None: ...

    def history(self, cap: str, *, whole: bool) -> Published | None: ...


FindViewer = Callable[[str], Awaitable[Viewer]]


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the page, read once."""

    media_type: str
    content: bytes
    tag: str


def static_files() -> dict[str, StaticFile]:
    """The page's own files by their names."""
    found = {}
    for file in files("flyball_page").joinpath("static").iterdir():
        media_type = MEDIA_TYPES.get("." + file.name.rpartition(".")[2])
        if media_type is not None:
            content = file.read_bytes()
            found[file.name] = StaticFile(media_type, content, '"' + sha256(content).hexdigest()[:20] + '"')
    return found


def content_policy(index: bytes) -> str:
    """What the page may load and run: its own files, and the one script that stands in index.html itself, by its digest."""
    (script,) = re.findall(rb"<script>(.*?)</script>", index, re.DOTALL)
    digest = base64.b64encode(sha256(script).digest()).decode()
    return (
        f"default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def make_app(
    documents: Documents,
    find_viewer: FindViewer | None = None,
    *,
    max_requests_per_second: float = 400.0,
    hosts: frozenset[str] = frozenset(),
) -> FastAPI:
    """The application; without `find_viewer` everybody sees everything.

    `hosts` are the names that a request may call this server by, empty: any.
    """
    app = FastAPI(title="Flyball", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    static = static_files()
    headers = SECURITY_HEADERS | {"Content-Security-Policy": content_policy(static["index.html"].content)}
    rate = TokenBucket(max_requests_per_second, 2 * max_requests_per_second)
    app.add_middleware(Border, rate=rate, hosts=hosts, headers=headers)
    app.include_router(file_routes(static))
    app.include_router(probe_routes(documents))
    app.include_router(document_routes(documents, find_viewer))
    for kind in REFUSED:
        app.add_exception_handler(kind, answer_error)
    return app


def file_routes(static: Mapping[str, StaticFile]) -> APIRouter:
    """The page itself: its document, and the files that this loads."""
    routes = APIRouter()

    def answer(request: Request, name: str) -> Response:
        file = static.get(name)
        if file is None:
            raise HTTPException(404, "there is no such file")
        headers = {"ETag": file.tag, "Cache-Control": "no-cache"}
        if names_version(request.headers.get("if-none-match", ""), file.tag):
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)

    @routes.get("/")
    async def index(request: Request) -> Response:
        return answer(request, "index.html")

    @routes.get("/static/{name}")
    async def static_file(request: Request, name: str) -> Response:
        return answer(request, name)

    return routes


def probe_routes(documents: Documents) -> APIRouter:
    """What the kubelet asks for."""
    routes = APIRouter()

    @routes.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"state": "serving"}

    @routes.get("/readyz")
    async def readyz() -> Response:
        why_not = documents.why_not_ready()
        return JSONResponse({"reason": why_not} if why_not else {"state": "ready"}, 503 if why_not else 200)

    return routes


def document_routes(documents: Documents, find_viewer: FindViewer | None) -> APIRouter:
    """What the page shows, to those who may see it."""
    routes = APIRouter()

    async def viewer(request: Request) -> Viewer:
        if find_viewer is None:
            return EVERYTHING
        given = request.headers.get(TOKEN_HEADER) or request.headers.get("authorization") or ""
        return await find_viewer(bearer_token(given))

    async def power_viewer(request: Request) -> None:
        (await viewer(request)).require_power()

    @routes.get("/api/overview", dependencies=[Depends(power_viewer)])
    async def overview(request: Request) -> Response:
        return document_answer(request, documents.overview())

    @routes.get("/api/nodes", dependencies=[Depends(power_viewer)])
    async def nodes(request: Request) -> Response:
        return document_answer(request, documents.nodes())

    @routes.get("/api/nodes/{name}", dependencies=[Depends(power_viewer)])
    async def node(request: Request, name: ObjectName) -> Response:
        return document_answer(request, documents.node(name))

    @routes.get("/api/jobs")
    async def jobs(request: Request) -> Response:
        namespaces = (await viewer(request)).require_jobs()
        return document_answer(request, documents.jobs(namespaces))

    @routes.get("/api/jobs/{namespace}/{name}")
    async def job(request: Request, namespace: ObjectName, name: ObjectName) -> Response:
        who = await viewer(request)
        who.require_jobs(namespace)
        return document_answer(request, documents.job(namespace, name, profiles=who.may_see_profiles(namespace)))

    @routes.get("/api/history/{cap}", dependencies=[Depends(power_viewer)])
    async def history(request: Request, cap: ObjectName) -> Response:
        return document_answer(request, documents.history(cap, whole=False))

    @routes.get("/api/history/{cap}/whole", dependencies=[Depends(power_viewer)])
    async def whole_history(request: Request, cap: ObjectName) -> Response:
        return document_answer(request, documents.history(cap, whole=True))

    return routes


def refuse(status: int, reason: str, **headers: str) -> Response:
    """The answer to a request that is not served, with the reason."""
    return JSONResponse({"reason": reason}, status, headers={"Cache-Control": "no-store", **headers})


async def answer_error(_request: Request, error: Exception) -> Response:
    """What a request is answered that ended with one of REFUSED."""
    match error:
        case Unauthenticated():
            return refuse(401, str(error), **{"WWW-Authenticate": "Bearer"})
        case Forbidden():
            return refuse(403, str(error))
        case TooManyReviews():
            return refuse(429, str(error), **{"Retry-After": "5"})
        case ApiError() | ApiUnreachable():
            logger.warning("a token could not be reviewed", error=str(error))
            return refuse(503, "the API server does not say whose token this is; try again", **{"Retry-After": "5"})
        case RequestValidationError():
            return refuse(404, "no object has such a name")
        case HTTPException():
            return refuse(error.status_code, str(error.detail))
    raise error


REFUSED = (
    Unauthenticated,
    Forbidden,
    TooManyReviews,
    ApiError,
    ApiUnreachable,
    RequestValidationError,
    HTTPException,
)


def document_answer(request: Request, published: Published | None) -> Response:
    """A document, compressed where the browser takes that; 304 without it where the browser has it already."""
    if published is None:
        raise HTTPException(404, "there is no such object, or it has just gone")
    # Of one account alone, and old in a moment: nothing between here and the browser may keep it.
    headers = {"ETag": published.tag, "Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    if names_version(request.headers.get("if-none-match", ""), published.tag):
        return Response(status_code=304, headers=headers)
    content = published.plain
    if published.compressed is not None and accepts_gzip(request.headers.get("accept-encoding", "")):
        content = published.compressed
        headers["Content-Encoding"] = "gzip"
    return Response(content, media_type="application/json", headers=headers)


class Border:
    """What every request passes: only reading, only so many in a second, only by known names; and all headers."""

    def __init__(self, app: ASGIApp, rate: TokenBucket, hosts: frozenset[str], headers: dict[str, str]) -> None:
        self._app, self._rate, self._hosts = app, rate, hosts
        self._headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *self._headers]}
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send_with_headers)
        else:
            await refusal(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        if scope["method"] != "GET":
            reason = "this page only shows; it takes GET alone"
            return JSONResponse({"reason": reason}, 405, headers={"Allow": "GET", "Connection": "close"})
        if self._hosts and host_name(scope["headers"]) not in self._hosts:
            # A page from elsewhere whose name was made to point here would read everything in the browser of who opens it.
            reason = f"this server is reached as {' or '.join(sorted(self._hosts))} only (--allowed-host adds a name)"
            return JSONResponse({"reason": reason}, 421)
        if not self._rate.take():
            return JSONResponse({"reason": "too many requests"}, 429, headers={"Retry-After": "1"})
        return None
