"""What the API server has, as of one cycle: frozen values, on which everything is decided."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from flyball_api.energy.quota import EnergyQuota
from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.gpu_node import GpuNode, PodReport
from flyball_api.power_brake import PowerBrake
from flyball_api.power_cap import PowerCap
from flyball_api.workloads import GpuQuota, IncarnationView, Needs, NodeView, PlainJob, PodsRefused, PodView


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What the API server has, as of one cycle; `unread` names the caps, brakes and GPUNodes that cannot be read.

    `age_seconds` is how long ago the oldest of the copies of caps, brakes, Nodes and GPUNodes was last proven fresh, and
    `reports_behind_seconds` how late the watch of GPUNodes has brought of late what was stored, as far as that is known.
    """

    jobs: dict[str, EnergyAwareJob]  # by uid
    caps: list[PowerCap]
    gpu_nodes: dict[str, GpuNode]
    nodes: list[NodeView]
    pods: list[PodView]  # those that hold or want GPUs or parts of some
    incarnations: dict[str, list[IncarnationView]]  # by the job's uid
    pods_of: dict[str, list[PodView]]  # by the job's uid
    reports_of: dict[
        str, list[tuple[str, PodReport]]
    ]  # by a living job's uid, with the node, which is one of the job's
    unread: tuple[str, ...]
    age_seconds: float
    brakes: Mapping[str, PowerBrake] = field(default_factory=dict)  # by the cap's name
    services_of: Mapping[str, Collection[str]] = field(default_factory=dict)  # whole ones, by the job's uid
    used: Mapping[str, Needs] = field(default_factory=dict)  # by pods that are not Flyball's, by the node's name
    gpu_quotas: Sequence[GpuQuota] = ()
    energy_quotas: Sequence[EnergyQuota] = ()
    pods_refused: Mapping[str, str] = field(default_factory=dict)  # the Job controller's words, by the batch Job's uid
    plain_jobs: Sequence[PlainJob] = ()  # batch Jobs that are let run by watts
    reports_behind_seconds: float = 0.0
    clock_ahead_seconds: float = 0.0  # of the API server's, at the least; below 0: behind

    @property
    def wanted_gpus(self) -> int:
        """The most that all jobs together ask for."""
        return sum(job.spec.gpus.max for job in self.jobs.values() if job.wants_gpus)


def within_priorities(jobs: Iterable[EnergyAwareJob], quotas: Iterable[EnergyQuota]) -> Iterator[EnergyAwareJob]:
    """The jobs, none with a higher priority than the quotas of its namespace allow, however it came by it."""
    highest: dict[str, int] = {}
    for quota in quotas:
        bound = quota.spec.highest_priority
        if bound is not None:
            highest[quota.namespace] = min(bound, highest.get(quota.namespace, bound))
    for job in jobs:
        most = highest.get(job.namespace)
        if most is None or job.spec.priority <= most:
            yield job
        else:
            yield replace(job, spec=msgspec.structs.replace(job.spec, priority=most))


def latest_refusals(events: Iterable[PodsRefused], batch_uids: Collection[str]) -> dict[str, PodsRefused]:
    """The Job controller's latest Event on each batch Job of `batch_uids` whose pods were refused."""
    latest: dict[str, PodsRefused] = {}
    for item in events:
        known = latest.get(item.batch_uid)
        if item.batch_uid in batch_uids and (known is None or item.time >= known.time):
            latest[item.batch_uid] = item
    return latest
