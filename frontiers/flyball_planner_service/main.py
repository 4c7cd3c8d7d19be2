"""The service as a process: until SIGTERM or Ctrl-C."""

from __future__ import annotations

import socket

import uvicorn
from flyball_kube.process.logs import get_logger
from flyball_kube.serving.timed_requests import TimedRequests
from uvicorn.protocols.http.h11_impl import H11Protocol

from flyball_planner_service.app import make_app
from flyball_planner_service.frontiers import Frontiers, workers
from flyball_planner_service.options import PlannerOptions

logger = get_logger(__name__)

MAX_CONNECTIONS = 256
KEEP_ALIVE_SECONDS = 15
MAX_HEADER_BYTES = 32 * 1024
STOP_SECONDS = 3


class PlannerConnection(TimedRequests, H11Protocol):
    """A connection to the planner: who holds all of them with half a request would keep everybody out."""

    # A body may take half a minute, and its answer is waited for a minute at the most.
    request_seconds = 120.0


class Server(uvicorn.Server):
    """Says where it listens once it does."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for listening in server.sockets:
                host, port = listening.getsockname()[:2]
                logger.info("planner served", address=host, port=port)


def run(options: PlannerOptions) -> None:
    """Serve until told to end; what is planned meanwhile is given up."""
    frontiers = Frontiers(
        workers(options.workers, options.deadline_seconds),
        max_waiting=options.max_waiting,
        kept_bytes=options.kept_megabytes * 1_000_000,
    )
    Server(
        uvicorn.Config(
            make_app(
                frontiers,
                options.token,
                max_estimated_seconds=options.max_estimated_seconds,
                hosts=options.hosts,
            ),
            host=options.address,
            port=options.port,
            loop="asyncio",  # whatever other ones are installed beside it, as Orbax brings uvloop
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            http=PlannerConnection,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
    ).run()
