"""The operator as a process: kopf for its life cycle, signals, login and probes; the planner loop for everything else.

kopf watches no resource of ours. A wake-up from a second watch could arrive before the object is in the informers' store
that the cycle reads, and a thousand objects would be parsed and held twice; the informers wake the loop themselves
(docs/decisions.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import uuid
from typing import Any

import kopf
from flyball_kube.session import ApiSession
from flyball_planner.gpu_models import catalogue

from flyball_operator.events import EventRecorder
from flyball_operator.lease import LeaderLease
from flyball_operator.loop import Operator
from flyball_operator.metrics import OperatorMetrics
from flyball_operator.names import LEADER_LEASE
from flyball_operator.settings import Settings

logger = logging.getLogger(__name__)

# A loop that has not begun a new cycle for this many regular intervals is stuck: the probe then has it restarted.
STUCK_INTERVALS = 6


class OperatorProcess:
    """Everything that one operator process starts and must stop again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tasks: list[asyncio.Task[Any]] = []
        self._session: ApiSession | None = None
        self._lease_session: ApiSession | None = None
        self._lease: LeaderLease | None = None
        self._operator: Operator | None = None
        self._metrics = OperatorMetrics()

    async def start(self) -> None:
        """Connect, watch, compete for the lease and run the loop; returns at once."""
        settings = self._settings
        if settings.gpu_model_files:  # a product that is misspelt matches no node, which nothing else would show
            catalogued = catalogue()
            own = [product for product, model in settings.gpu_models.items() if model != catalogued.get(product)]
            logger.info("GPU models of %d files: %s", len(settings.gpu_model_files), ", ".join(own))
        self._session = await ApiSession.connect(settings.kubeconfig)
        # A restarted process is always a new holder: its predecessor's epoch ends, and with it whatever is on its way.
        identity = f"{os.environ.get('HOSTNAME') or socket.gethostname()}-{uuid.uuid4().hex[:8]}"

        async def epoch_floor() -> int:
            assert self._operator is not None  # noqa: S101 - set below, before the lease's task runs
            await self._operator.wait_synced()
            return self._operator.highest_epoch()

        # A connection pool of its own: a renewal must not queue behind a thousand grants.
        self._lease_session = await ApiSession.connect(settings.kubeconfig)
        self._lease = LeaderLease(
            self._lease_session,
            identity,
            settings.namespace,
            LEADER_LEASE,
            settings.leader_lease_seconds,
            settings.leader_renew_seconds,
            epoch_floor=epoch_floor,
            on_change=lambda epoch: None if self._operator is None else self._operator.wake(),
        )
        events = EventRecorder(self._session, identity)
        self._operator = Operator(self._session, self._lease, settings, self._metrics, events=events)
        if settings.metrics_port:
            await self._metrics.serve(settings.metrics_port)
        self._tasks = [
            asyncio.create_task(events.run(), name="events"),
            asyncio.create_task(self._lease.run(), name="lease"),
            asyncio.create_task(self._operator.run(), name="loop"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    @staticmethod
    def _ended(task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            if task.get_name() == "events":
                logger.error("no more events are written", exc_info=task.exception())
                return
            # The process is of no use without it; kopf's cleanup still runs, and Kubernetes starts a fresh one.
            logger.critical("the %s task ended", task.get_name(), exc_info=task.exception())
            raise SystemExit(1)

    async def stop(self) -> None:
        """Stop the loop, then hand the lease over at once; every limit stays as it is."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._lease is not None:
            await self._lease.release()
        await self._metrics.close()
        for session in (self._session, self._lease_session):
            if session is not None:
                await session.close()

    def healthy(self) -> dict[str, Any]:
        """What the liveness probe reports; raises RuntimeError where the loop is stuck."""
        if self._operator is None:
            return {"state": "starting"}
        stuck_after = self._settings.replan_seconds * STUCK_INTERVALS
        age = self._operator.seconds_since_cycle()
        if age is not None and age > stuck_after:
            raise RuntimeError(f"no cycle has begun for {age:.0f} s (at most {stuck_after:.0f} s)")
        return {"state": "leading" if age is not None else "standing by", "cycles": self._operator.cycles}


def _registry(process: OperatorProcess) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False  # events are ours to write: on the job, the cap or the node they speak of
        settings.scanning.disabled = True
        await process.start()

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await process.stop()

    @kopf.on.login(registry=registry)
    async def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.probe(registry=registry, id="loop")
    def probe(**_: Any) -> dict[str, Any]:
        return process.healthy()

    return registry


def run(settings: Settings) -> None:
    """Run the operator until SIGTERM or SIGINT; raises whatever keeps it from starting."""
    if settings.kubeconfig is not None:
        os.environ["KUBECONFIG"] = str(settings.kubeconfig)  # where kopf's own login looks
    process = OperatorProcess(settings)
    with contextlib.suppress(asyncio.CancelledError):
        kopf.run(
            registry=_registry(process),
            standalone=True,
            clusterwide=True,
            liveness_endpoint=f"http://0.0.0.0:{settings.probe_port}/healthz" if settings.probe_port else None,
        )
