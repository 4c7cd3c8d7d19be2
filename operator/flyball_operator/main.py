"""The operator as a process: kopf for its life cycle and signals; the planner loop for everything else.

kopf watches no resource of ours. A wake-up from a second watch could arrive before the object is in the informers' store
that the cycle reads, and a thousand objects would be parsed and held twice; the informers wake the loop themselves
(docs/decisions.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import uuid
from pathlib import Path
from typing import Any, cast

import kopf
from flyball_api.names import LEADER_LEASE
from flyball_kube.process.logs import get_logger
from flyball_kube.process.package import package_version
from flyball_kube.server_version import require_ordered_versions
from flyball_kube.session import ApiSession
from flyball_planner.models.gpu import catalogue

from flyball_operator.loop import Operator
from flyball_operator.process.kopf_login import Connection, EndlessPauses, connection
from flyball_operator.process.probes import NotServingError, ProbeServer
from flyball_operator.report.events import EventRecorder
from flyball_operator.report.metrics import OperatorMetrics
from flyball_operator.settings import Settings
from flyball_operator.writes.lease import LeaderLease

logger = get_logger(__name__)

# A loop that has not begun a new cycle for this many regular intervals is stuck: the probe then has it restarted.
STUCK_INTERVALS = 6
# Requests at a time: statuses, starts and housekeeping may have two thirds of them, and grants never wait for theirs.
CONNECTIONS = 64
# Container objects made between two looks for cycles of garbage, and such looks between two of older generations. The
# copies of a thousand nodes are looked through each time, in the middle of a cycle, and hardly any garbage is in cycles.
GARBAGE_THRESHOLDS = (50_000, 20, 50)
# A copy that nothing has proven fresh for this long (a quiet watch has a bookmark a minute) is no ground to govern on.
STALE_COPY_SECONDS = 150.0


class OperatorProcess:
    """Everything that one operator process starts and must stop again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tasks: list[asyncio.Task[Any]] = []
        self._session: ApiSession | None = None
        self._lease_session: ApiSession | None = None
        self._lease: LeaderLease | None = None
        self._operator: Operator | None = None
        self._metrics = OperatorMetrics(version=package_version(), policy=settings.policy, mode=settings.mode)
        self._probes = ProbeServer(self.live, self.ready)
        # A restarted process is always a new holder: its predecessor's epoch ends, and with it whatever is on its way.
        self.identity = f"{os.environ.get('HOSTNAME') or socket.gethostname()}-{uuid.uuid4().hex[:8]}"

    async def start(self) -> None:
        """Connect, watch, compete for the lease and run the loop; returns at once."""
        settings = self._settings
        if settings.gpu_model_files:  # a product that is misspelt matches no node, which nothing else would show
            catalogued = catalogue()
            own = [product for product, model in settings.gpu_models.items() if model != catalogued.get(product)]
            logger.info("GPU models read", files=len(settings.gpu_model_files), products=own)
        gc.set_threshold(*GARBAGE_THRESHOLDS)
        self._session = await ApiSession.connect(settings.kubeconfig, connections=CONNECTIONS)

        async def least_epoch() -> int:
            assert self._operator is not None  # noqa: S101 - set below, before the lease's task runs
            await self._operator.wait_synced()
            return self._operator.take_in_epochs()

        # A connection pool of its own: a renewal must not queue behind a thousand grants.
        self._lease_session = await ApiSession.connect(settings.kubeconfig)
        self._lease = LeaderLease(
            self._lease_session,
            self.identity,
            settings.namespace,
            LEADER_LEASE,
            settings.leader_lease_seconds,
            settings.leader_renew_seconds,
            least_epoch=least_epoch,
            on_change=lambda epoch: None if self._operator is None else self._operator.wake(),
        )
        events = EventRecorder(self._session, self.identity)
        self._operator = Operator(self._session, self._lease, settings, self._metrics, events=events)
        if settings.metrics_port >= 0:
            await self._metrics.serve(settings.metrics_port)
        if settings.probe_port:
            await self._probes.serve(settings.probe_port)
        self._tasks = [
            asyncio.create_task(events.run(), name="events"),
            asyncio.create_task(self._lease.run(), name="lease"),
            asyncio.create_task(self._run(self._session, self._operator), name="loop"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    @staticmethod
    async def _run(session: ApiSession, operator: Operator) -> None:
        # Before any local copy, which relies on it; no lease is acquired sooner.
        await require_ordered_versions(session)
        await operator.run()

    @staticmethod
    def _ended(task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            if task.get_name() == "events":
                logger.error("no more Events are written", exc_info=task.exception())
                return
            # The process is of no use without it; kopf's cleanup still runs, and Kubernetes starts a fresh one.
            logger.critical("a task ended that must not", task=task.get_name(), exc_info=task.exception())
            raise SystemExit(1)

    async def stop(self) -> None:
        """Stop the loop, then hand the lease over at once; every limit stays as it is."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._lease is not None:
            await self._lease.release()
        await self._metrics.close()
        await self._probes.close()
        for session in (self._session, self._lease_session):
            if session is not None:
                await session.close()

    def live(self) -> dict[str, Any]:
        """What /healthz reports; raises NotServingError where the loop is stuck, so that only a restart can help."""
        if self._operator is None:
            return {"state": "starting"}
        stuck_after = self._settings.replan_seconds * STUCK_INTERVALS
        age = self._operator.seconds_since_cycle()
        if age is not None and age > stuck_after:
            raise NotServingError(f"no cycle has begun for {age:.0f} s (at most {stuck_after:.0f} s)")
        return {"state": "leading" if age is not None else "standing by", "cycles": self._operator.cycles}

    def ready(self) -> dict[str, Any]:
        """What /readyz reports: a process that leads, or could; raises NotServingError where its copies are missing or old.

        A standby is ready too: a rollout that waits for its pods to be ready must not wait for them to lead.
        """
        ages = {} if self._operator is None else self._operator.copy_ages_seconds()
        if not ages:
            raise NotServingError("starting")
        oldest, age = max(ages.items(), key=lambda item: item[1])
        if age == float("inf"):
            raise NotServingError(
                f"{oldest} have not been listed yet: does the API server answer, and may we list them?"
            )
        if age > STALE_COPY_SECONDS:
            raise NotServingError(f"the copy of {oldest} is {age:.0f} s old (at most {STALE_COPY_SECONDS:.0f} s)")
        return {**self.live(), "copyAgesSeconds": {name: round(age, 1) for name, age in ages.items()}}


def _registry(process: OperatorProcess, kubeconfig: Path | None) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False  # events are ours to write: on the job, the cap or the node they speak of
        settings.scanning.disabled = True
        settings.networking.error_backoffs = EndlessPauses()
        await process.start()

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await process.stop()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> Connection:
        return await connection(kubeconfig)

    return registry


def run(settings: Settings) -> None:
    """Run the operator until SIGTERM or SIGINT; raises whatever keeps it from starting."""
    process = OperatorProcess(settings)
    with contextlib.suppress(asyncio.CancelledError):
        kopf.run(
            registry=_registry(process, settings.kubeconfig),
            # Kopf would ask for the user's name, which a container's arbitrary user id has not.
            identity=cast(Any, process.identity),  # a NewType that kopf does not export
            standalone=True,
            clusterwide=True,
        )
