"""The page as a process of its own: beside the operator, never in its loop, so that a crowd of browsers delays no cut."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator

import uvicorn
from flyball_kube.process.logs import get_logger
from flyball_kube.server_version import require_ordered_versions
from flyball_kube.serving.timed_requests import TimedRequests
from flyball_kube.session import ApiSession
from uvicorn.protocols.http.h11_impl import H11Protocol

from flyball_page.access import Reviews
from flyball_page.app import make_app
from flyball_page.cluster import ClusterWatch
from flyball_page.options import PageOptions

logger = get_logger(__name__)

KEEP_ALIVE_SECONDS = 15
MAX_HEADER_BYTES = 32 * 1024
STOP_SECONDS = 3


class PageConnection(TimedRequests, H11Protocol):
    """A browser's connection to the page: none needs half a minute for a request and its answer."""

    request_seconds = 30.0


class PageServer(uvicorn.Server):
    """A server that logs its address once it listens, and ends with status 0 on SIGTERM."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End in order; uvicorn's own would raise the signal again then, and an end that was asked for look failed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for listening in server.sockets:
                host, port = listening.getsockname()[:2]
                logger.info("page served", address=host, port=port)


def warn_where_open(options: PageOptions) -> None:
    """Warn where everybody who reaches the page can read it, and how that is changed."""
    if options.open_to_anybody:
        logger.warning(
            "anybody who reaches this address can read caps, nodes and jobs of the whole cluster",
            address=options.address,
            port=options.port,
            instead="--authenticate asks everybody who they are; --address 127.0.0.1 serves this machine alone",
        )


async def serve(options: PageOptions) -> None:
    """Watch and serve until SIGTERM or SIGINT; raises what keeps it from starting."""
    warn_where_open(options)
    async with await ApiSession.connect(options.kubeconfig) as session:
        await require_ordered_versions(session)
        watch = ClusterWatch(
            session,
            namespace=options.namespace,
            row_label=options.row_label,
            history_seconds=options.history_seconds,
        )
        app = make_app(
            watch,
            Reviews(session, watch.job_namespaces).viewer if options.authenticate else None,
            max_requests_per_second=options.max_requests_per_second,
            hosts=options.hosts,
        )
        server = PageServer(
            uvicorn.Config(
                app,
                host=options.address,
                port=options.port,
                http=PageConnection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=options.max_connections,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=STOP_SECONDS,
            )
        )
        watching = asyncio.create_task(watch.run(), name="watch")
        watching.add_done_callback(lambda _done: setattr(server, "should_exit", True))
        try:
            await server.serve()
        finally:
            if not watching.done():
                watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching


def run(options: PageOptions) -> None:
    """`serve` in a loop of its own."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(options))
