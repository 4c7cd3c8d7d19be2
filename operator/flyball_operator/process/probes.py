"""The operator's probes over HTTP: /healthz asks for a restart, /readyz says whether this process could govern now.

Kopf has a liveness endpoint too, but only one path, an access log line for each request, and no answer for "alive, but
nothing reaches the API server": exactly the state in which a rollout must not go on (docs/operator.md, "Probes").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web
from flyball_kube.process.logs import get_logger

logger = get_logger(__name__)

JsonObject = dict[str, Any]
Check = Callable[[], JsonObject]


class NotServingError(RuntimeError):
    """A probe's answer is no; the message says why and becomes the answer's `reason`."""


class ProbeServer:
    """Serves the two checks; each returns what to report, or raises `NotServingError`, which is answered with 503."""

    def __init__(self, live: Check, ready: Check) -> None:
        self._checks = {"/healthz": live, "/readyz": ready}
        self._runner: web.AppRunner | None = None

    async def serve(self, port: int, address: str = "0.0.0.0") -> int:  # noqa: S104 - the kubelet asks from outside the pod
        """Listen on `port` (0: any free one) and return the port; raises OSError where it is taken."""
        application = web.Application()
        application.add_routes([web.get(path, self._answer) for path in self._checks])
        # No access log: a kubelet's probes would be most of what the operator logs.
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, address, port).start()
        bound = int(self._runner.addresses[0][1])
        logger.info("probes served", port=bound)
        return bound

    async def close(self) -> None:
        """Stop serving; nothing happens where nothing is served."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            return web.json_response(self._checks[request.path]())
        except NotServingError as error:
            return web.json_response({"reason": str(error)}, status=503)
