"""One local copy of what the page shows, kept by watches: however many browsers ask, it costs the API server nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from flyball_api.energy.profile import read_energy_profile
from flyball_api.energy_aware_job import read_energy_aware_job
from flyball_api.event import read_event
from flyball_api.gpu_node import read_gpu_node
from flyball_api.lease import NOBODY, Leader, read_leader
from flyball_api.names import LEADER_LEASE, REPORTING_CONTROLLER
from flyball_api.power_cap import read_power_cap
from flyball_api.workloads import read_node
from flyball_kube.informer import Informer
from flyball_kube.process.logs import get_logger
from flyball_kube.resources import (
    ENERGY_AWARE_JOBS,
    ENERGY_PROFILES,
    EVENTS,
    GPU_NODES,
    LEASES,
    NODES,
    POWER_CAPS,
)
from flyball_kube.session import ApiSession
from flyball_views.jobs import frontier_of
from flyball_views.nodes import ROW_LABELS
from flyball_views.overview import Overview, overview
from flyball_views.sightings import Sightings

from flyball_page import documents
from flyball_page.history import PowerHistory
from flyball_page.owing import Owing
from flyball_page.published import Published

logger = get_logger(__name__)

# A view is made anew at most this often, for whoever asks.
VIEW_SECONDS = 1.0
SAMPLE_SECONDS = 2.0
# A copy that nothing has proven fresh for this long (a quiet watch has a bookmark a minute) is not one to show.
STALE_COPY_SECONDS = 150.0
# Who may see power everywhere need not know these by name.
OF_NAMESPACES = frozenset({"EnergyAwareJobs", "EnergyProfiles", "Events"})


def wall_clock() -> datetime:
    return datetime.now(UTC)


class ClusterWatch:
    """Watches, and makes documents of what it sees; `run` is to be run as a task."""

    def __init__(
        self,
        session: ApiSession,
        *,
        namespace: str,
        row_label: str = "",
        history_seconds: float,
        now: Callable[[], datetime] = wall_clock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now, self._monotonic = now, monotonic
        self._row_labels = (row_label, *ROW_LABELS) if row_label else ROW_LABELS
        self._caps = Informer(session, POWER_CAPS, read_power_cap)
        self._gpu_nodes = Informer(session, GPU_NODES, read_gpu_node)
        self._jobs = Informer(session, ENERGY_AWARE_JOBS, read_energy_aware_job)
        self._profiles = Informer(session, ENERGY_PROFILES, read_energy_profile)
        self._nodes = Informer(session, NODES, read_node)
        self._events = Informer(
            session,
            EVENTS,
            read_event,
            params={"fieldSelector": f"reportingController={REPORTING_CONTROLLER}"},
        )
        self._lease = Informer(
            session,
            LEASES,
            read_leader,
            on_change=self._lease_changed,
            namespace=namespace,
            params={"fieldSelector": f"metadata.name={LEADER_LEASE}"},
        )
        self._namespace = namespace
        self._lease_key = f"{namespace}/{LEADER_LEASE}"
        self._informers: dict[str, Informer[Any]] = {
            "PowerCaps": self._caps,
            "GPUNodes": self._gpu_nodes,
            "EnergyAwareJobs": self._jobs,
            "EnergyProfiles": self._profiles,
            "Nodes": self._nodes,
            "Events": self._events,
            "Lease": self._lease,
        }
        self._sightings = Sightings()
        self._history = PowerHistory(history_seconds)
        self._began = now().timestamp()
        self._view: Overview | None = None
        self._view_at = float("-inf")
        self._made: dict[tuple[str, ...], Published] = {}  # of that view
        self._owing = Owing()
        self._lease_seen: tuple[float, float] | None = None  # when it last changed: monotonic, and since 1970

    async def run(self) -> None:
        """Watch until cancelled; what cannot be watched is tried again for ever, and shown as missing meanwhile."""
        tasks: list[Coroutine[Any, Any, None]] = [informer.run() for informer in self._informers.values()]
        async with asyncio.TaskGroup() as group:
            for task in (*tasks, self._sample()):
                group.create_task(task)

    async def wait_synced(self) -> None:
        """Return once everything has been listed."""
        await asyncio.gather(*(informer.wait_synced() for informer in self._informers.values()))

    # --- what is asked for ---------------------------------------------------------------------------------------------

    def why_not_ready(self) -> str:
        """Why the page would show nothing of worth, or what is old; empty: it would not."""
        for name, informer in self._informers.items():
            if not informer.synced:
                return f"{name} have not been listed yet: does the API server answer, and may we list them?"
            age = informer.age_seconds()
            if age > STALE_COPY_SECONDS:
                return f"the copy of {name} is {age:.0f} s old (at most {STALE_COPY_SECONDS:.0f} s)"
        return ""

    def overview(self) -> Published:
        view = self._present_view()
        return self._document(
            ("overview",),
            lambda: documents.overview_document(
                view,
                began=self._began,
                leader_seen=None if self._lease_seen is None else self._lease_seen[1],
                copies={name: self._fresh_at(informer) for name, informer in self._informers.items()},
                events=self._events,
            ),
        )

    def nodes(self) -> Published:
        view = self._present_view()
        return self._document(("nodes",), lambda: documents.nodes_document(view, self._owing.names))

    def node(self, name: str) -> Published | None:
        view = self._present_view()
        row = next((row for row in view.nodes if row.name == name), None)
        if row is None:
            return None
        return self._document(("node", name), lambda: documents.node_document(view, row, self._owing.names))

    def jobs(self, namespaces: frozenset[str] | None) -> Published:
        view = self._present_view()
        key = ("jobs",) if namespaces is None else ("jobs", *sorted(namespaces))
        return self._document(key, lambda: documents.jobs_document(view, self._events, namespaces))

    def job_namespaces(self) -> frozenset[str]:
        """The namespaces that have jobs."""
        return frozenset(job.namespace for job in self._jobs)

    def job(self, namespace: str, name: str, *, profiles: bool) -> Published | None:
        """One job; what was learned of its like with `profiles` alone, for who may see that."""
        view, job = self._present_view(), self._jobs.get(f"{namespace}/{name}")
        row = next((row for row in view.jobs if (row.namespace, row.name) == (namespace, name)), None)
        if row is None or job is None:
            return None
        learned = None
        if profiles:
            learned = [
                profile
                for profile in self._profiles
                if (profile.metadata.namespace, profile.spec.profile_key) == (namespace, job.profile_key)
            ]
        return self._document(
            ("job", namespace, name, str(profiles)),
            lambda: documents.job_document(view, row, learned, self._events, frontier_of(job, learned or ())),
        )

    def history(self, cap: str, *, whole: bool) -> Published | None:
        self._present_view()
        if cap not in self._history.names():
            return None
        return self._document(("history", cap, str(whole)), lambda: self._history.document(cap, whole=whole))

    # --- how it is made ------------------------------------------------------------------------------------------------

    def _document(self, key: tuple[str, ...], make: Callable[[], Any]) -> Published:
        """The document of that name of the present view, made once for all who ask."""
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = Published.of(make())
        return made

    def _present_view(self) -> Overview:
        """The overview as of now, or of a moment ago."""
        now = self._monotonic()
        if self._view is None or now - self._view_at >= VIEW_SECONDS:
            self._view, self._view_at = self._make_view(), now
            self._made.clear()
            self._owing.look(self._view.nodes, now)
        return self._view

    def _make_view(self) -> Overview:
        now = self._now()
        return overview(
            now,
            self._caps,
            self._gpu_nodes,
            self._jobs,
            self._nodes,
            leader=self._leader(),
            sightings=self._sightings.look(self._gpu_nodes, now),
            row_labels=self._row_labels,
            problems=[
                problem
                for kind, informer in self._informers.items()
                for problem in documents.unreadable(kind, informer.invalid, of_namespaces=kind in OF_NAMESPACES)
            ],
            missing={
                name: "it has not been listed yet" for name, informer in self._informers.items() if not informer.synced
            },
            operator_namespace=self._namespace,
        )

    def _leader(self) -> Leader | None:
        """Who leads; an empty holder where the Lease is known not to be there, None where nobody knows."""
        if not self._lease.synced:
            return None
        return self._lease.get(self._lease_key) or NOBODY

    def _fresh_at(self, informer: Informer[Any]) -> float | None:
        age = informer.age_seconds()
        return None if age == float("inf") else self._now().timestamp() - age

    def _lease_changed(self, key: str) -> None:
        # What the first list brings may be of any age.
        if key == self._lease_key and self._lease.synced:
            self._lease_seen = (self._monotonic(), self._now().timestamp())

    @property
    def led(self) -> bool:
        """Whether an operator was seen to renew its Lease within the Lease's time, so that caps' statuses are of now."""
        leader = self._lease.get(self._lease_key)
        if leader is None or not leader.holder or self._lease_seen is None:
            return False
        return self._monotonic() - self._lease_seen[0] <= (leader.duration_seconds or 0)

    async def _sample(self) -> None:
        await self.wait_synced()
        while True:
            # In every step, asked for or not: who reports is told by what changed since the last look.
            view = self._present_view()
            # Without a leader nobody says what is committed or drawn now: the chart has a gap.
            if self.led:
                self._history.add(view.time.timestamp(), documents.cap_samples(view.caps))
            await asyncio.sleep(SAMPLE_SECONDS)
