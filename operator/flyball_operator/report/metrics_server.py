"""Serves the operator's metrics in a thread of its own, which a loop that is stuck cannot block.

Whoever reaches the port may ask: connections are bounded, the one that was silent for longest goes first, and who asks more
often than any Prometheus gets the last answer, so that scrapes take no more of the process than they may.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from flyball_kube.serving.http_server import HttpRequest, HttpServer, Response
from flyball_kube.serving.scrapes import Scrapes
from flyball_kube.serving.token_bucket import TokenBucket
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

MAX_CONNECTIONS = 64
IDLE_SECONDS = 90.0  # more than a minute between two scrapes
SCRAPES_PER_SECOND, SCRAPE_BURST = 1.0, 10.0
TEXT = "text/plain; charset=utf-8"


class MetricsServer:
    """GET /metrics of a registry."""

    def __init__(self, registry: CollectorRegistry, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._scrapes = Scrapes(TokenBucket(SCRAPES_PER_SECOND, SCRAPE_BURST, monotonic))
        self._http = HttpServer(self._answer, max_connections=MAX_CONNECTIONS, serves_newest=True)
        self._bound: Future[int] = Future()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()

    async def serve(self, port: int, address: str) -> int:
        """Listen on `port` (0: any free one) and return the port; raises OSError where it is taken."""
        self._thread = threading.Thread(
            target=asyncio.run, args=(self._run(port, address),), name="metrics", daemon=True
        )
        self._thread.start()
        return await asyncio.wrap_future(self._bound)

    async def close(self) -> None:
        """Stop serving."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stopped.set)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    async def _run(self, port: int, address: str) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            server = await asyncio.start_server(self._http.connected, address, port)
        except OSError as error:
            self._bound.set_exception(error)
            return
        self._bound.set_result(int(server.sockets[0].getsockname()[1]))
        while not self._stopped.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_SECONDS / 2):
                    await self._stopped.wait()
            self._http.reap(IDLE_SECONDS)
        server.close()
        self._http.close()

    async def _answer(self, request: HttpRequest) -> Response:
        if request.path != "/metrics":
            return Response(404, b"there is /metrics\n", TEXT)
        if request.method not in ("GET", "HEAD"):
            return Response(405, b"GET only\n", TEXT, headers=(("Allow", "GET, HEAD"),))
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return self._scrapes.answer(request, content_type, lambda: encode(self._registry))
