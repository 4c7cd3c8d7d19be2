"""What every job's GPUs have used so far, those of jobs included that are gone: what books of energy are kept of.

The figures are the jobs' own: totals of what agents report, exact over restarts, as their statuses keep them. Of a job that
was deleted its last pods may go on for as long as their grace lasts, and the agents go on reporting them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.gpu_node import PodReport

from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.runs.energy_history import EnergyHistories
from flyball_operator.jobs.runs.progress import JobProgress, add_energy, recorded_progress
from flyball_operator.power.nodes.info import NodeInfo

# For so long after a job's deletion its pods' last energy is taken in.
DEPARTED_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Consumption:
    """What one job has used; `ended_at` is when it came to its end (None: it has not, or was deleted)."""

    namespace: str
    name: str
    uid: str
    created: datetime
    millijoules: int
    gpu_seconds: float = 0.0
    ended_at: datetime | None = None


@dataclass(slots=True)
class _Known:
    job: EnergyAwareJob
    progress: JobProgress
    gone_at: float | None = None
    consumption: Consumption | None = None  # as it follows from both


class Consumptions:
    """What every job has used, during one leader's term; `energy` is what is believed of agents' reports."""

    def __init__(self, energy: EnergyHistories) -> None:
        self._energy = energy
        self._known: dict[str, _Known] = {}  # by uid

    @property
    def departed(self) -> Collection[str]:
        """The uids of jobs that are gone, and whose pods' energy is still taken in."""
        return [uid for uid, known in self._known.items() if known.gone_at is not None]

    def observe(
        self, cluster: ClusterState, live: Mapping[str, JobProgress], nodes: Mapping[str, NodeInfo], monotonic: float
    ) -> list[Consumption]:
        """What every job has used; `live` has the progress of those that have not ended, by uid."""
        standing = set()
        for uid, job in cluster.jobs.items():
            known = self._known.get(uid)
            progress = live.get(uid)
            if progress is not None:
                if known is None or known.job is not job or known.progress is not progress or known.gone_at is not None:
                    self._known[uid] = _Known(job, progress)
            elif not job.finished:
                continue  # it is being deleted, is another controller's, or cannot be understood
            elif known is None or known.job.metadata.resource_version != job.metadata.resource_version:
                self._known[uid] = _Known(job, _larger(recorded_progress(job), known))
            standing.add(uid)
        self._follow_departed(standing, cluster, nodes, monotonic)
        return [_consumption(known) for known in self._known.values()]

    def _follow_departed(
        self, standing: Collection[str], cluster: ClusterState, nodes: Mapping[str, NodeInfo], monotonic: float
    ) -> None:
        for uid in self._known.keys() - standing:
            known = self._known[uid]
            known.gone_at = monotonic if known.gone_at is None else known.gone_at
            if monotonic - known.gone_at > DEPARTED_SECONDS:
                del self._known[uid]
        departed = set(self.departed)
        if not departed:
            return
        reports: dict[str, list[tuple[str, PodReport]]] = {}
        for name, gpu_node in cluster.gpu_nodes.items():
            for report in gpu_node.status.jobs:
                if report.uid in departed:
                    reports.setdefault(report.uid, []).append((name, report))
        for uid, found in reports.items():
            known = self._known[uid]
            known.progress = add_energy(known.progress, self._energy.believe(known.job, found, nodes, monotonic))
            known.consumption = None


def _larger(recorded: JobProgress, known: _Known | None) -> JobProgress:
    """What a job's status has; of one whose status is behind, what was known before."""
    if known is not None and known.progress.consumed_millijoules > recorded.consumed_millijoules:
        return known.progress
    return recorded


def _consumption(known: _Known) -> Consumption:
    if known.consumption is None:
        job, progress = known.job, known.progress
        known.consumption = Consumption(
            job.namespace,
            job.name,
            job.uid,
            job.created,
            progress.consumed_millijoules,
            progress.attained_gpu_seconds,
            (job.status.completion_time or job.created) if job.finished else None,
        )
    return known.consumption
