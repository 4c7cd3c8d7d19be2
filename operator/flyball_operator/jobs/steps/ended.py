"""What is left to do for jobs that have ended: energy that is reported late, and their removal when their time is over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from flyball_api.energy_aware_job import EnergyAwareJob, EnergyAwareJobStatus

from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.runs.energy_history import EnergyHistories
from flyball_operator.jobs.runs.progress import add_energy, recorded_progress
from flyball_operator.jobs.status import energy_status
from flyball_operator.power.nodes.info import NodeInfo


class EndedJobs:
    """The jobs that have ended, during one leader's term; `energy` is what is believed of all jobs' reports."""

    def __init__(self, interval_seconds: float, energy: EnergyHistories) -> None:
        self._interval_seconds = interval_seconds
        self._energy = energy
        self._expiry_checked: datetime | None = None

    def late_energy(
        self, cluster: ClusterState, nodes: Mapping[str, NodeInfo], monotonic: float
    ) -> Iterable[tuple[EnergyAwareJob, EnergyAwareJobStatus]]:
        """Statuses of ended jobs whose last pods are reported to have used more energy than their statuses have."""
        for uid, reports in cluster.reports_of.items():
            job = cluster.jobs.get(uid)
            if job is None or not job.finished or job.deleting or not job.managed_by_flyball:
                continue
            before = recorded_progress(job)
            progress = add_energy(before, self._energy.believe(job, reports, nodes, monotonic))
            if progress.consumed_millijoules != before.consumed_millijoules:
                yield job, energy_status(job, progress)

    def take_expired(self, jobs: Iterable[EnergyAwareJob], now: datetime) -> list[EnergyAwareJob]:
        """Look for finished jobs whose time to live is over, once per status interval: there can be thousands."""
        interval = timedelta(seconds=self._interval_seconds)
        if self._expiry_checked is not None and now - self._expiry_checked < interval:
            return []
        self._expiry_checked = now
        expired = []
        for job in jobs:
            ttl_seconds, ended = job.spec.ttl_seconds_after_finished, job.status.completion_time
            if ttl_seconds is None or ended is None or job.deleting or not (job.finished and job.managed_by_flyball):
                continue
            if (now - ended).total_seconds() >= ttl_seconds:
                expired.append(job)
        return expired
