"""The operator's probes over HTTP: /healthz asks for a restart, /readyz says whether this process could govern now.

Kopf has a liveness endpoint too, but only one path, an access log line for each request, and no answer for "alive, but
nothing reaches the API server": exactly the state in which a rollout must not go on (docs/operator.md, "Probes").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
from flyball_kube.process.logs import get_logger
from flyball_kube.serving.http_server import HttpRequest, HttpServer, Response
from flyball_kube.serving.token_bucket import TokenBucket

logger = get_logger(__name__)

MAX_CONNECTIONS = 64
IDLE_SECONDS = 30.0
# Who asks more often waits for each answer, far less than a kubelet would.
REQUESTS_PER_SECOND, REQUEST_BURST = 20.0, 40.0
PAUSE_SECONDS = 0.5

JsonObject = dict[str, Any]
Check = Callable[[], JsonObject]


class NotServingError(RuntimeError):
    """A probe's answer is no; the message says why and becomes the answer's `reason`."""


class ProbeServer:
    """Serves the two checks; each returns what to report, or raises `NotServingError`, which is answered with 503.

    A kubelet is answered whoever else reaches the port: of many connections the one that was silent for longest goes, and
    of many requests each waits.
    """

    def __init__(self, live: Check, ready: Check) -> None:
        self._checks = {"/healthz": live, "/readyz": ready}
        self._http = HttpServer(self._answer, max_connections=MAX_CONNECTIONS, serves_newest=True)
        self._requests = TokenBucket(REQUESTS_PER_SECOND, REQUEST_BURST)
        self._server: asyncio.Server | None = None
        self._reaping: asyncio.Task[None] | None = None

    async def serve(self, port: int, address: str = "0.0.0.0") -> int:  # noqa: S104 - the kubelet asks from outside the pod
        """Listen on `port` (0: any free one) and return the port; raises OSError where it is taken."""
        self._server = await asyncio.start_server(self._http.connected, address, port)
        self._reaping = asyncio.create_task(self._reap())
        bound = int(self._server.sockets[0].getsockname()[1])
        logger.info("probes served", port=bound)
        return bound

    async def close(self) -> None:
        """Stop serving; nothing happens where nothing is served."""
        if self._server is not None and self._reaping is not None:
            self._reaping.cancel()
            self._server.close()
            self._http.close()
            self._server = None

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(IDLE_SECONDS / 2)
            self._http.reap(IDLE_SECONDS)

    async def _answer(self, request: HttpRequest) -> Response:
        if not self._requests.take():
            await asyncio.sleep(PAUSE_SECONDS)
        check = self._checks.get(request.path)
        if check is None or request.method not in ("GET", "HEAD"):
            return Response(404, orjson.dumps({"reason": f"there is GET {' and '.join(self._checks)}"}))
        try:
            return Response(200, orjson.dumps(check()))
        except NotServingError as error:
            return Response(503, orjson.dumps({"reason": str(error)}))
