"""One cycle for all jobs: what the decisions are made on, and what follows: the actions to take, the statuses to write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from flyball_api.energy.quota import EnergyQuota, EnergyQuotaStatus
from flyball_api.energy_aware_job import EnergyAwareJob, EnergyAwareJobStatus, RecurringRun
from flyball_api.workloads import PodView
from flyball_planner.shifting import Signal
from flyball_planner.snapshot import JobDecision

from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.pipeline_plans import PlanPipeline
from flyball_operator.jobs.pipeline_points import PointChange
from flyball_operator.jobs.runs.consumption import Consumption
from flyball_operator.jobs.runs.lifecycle import Action, JobStep, OpenGates, StopIncarnation
from flyball_operator.jobs.runs.memory import JobMemory
from flyball_operator.jobs.runs.queue import NO_QUEUE, JobQueue
from flyball_operator.jobs.status_lanes import Lane
from flyball_operator.power.nodes.info import NodeInfo


@dataclass(frozen=True, slots=True)
class JobsCycle:
    """What one cycle of the job decisions is made on; `now` is the wall clock's instant, `monotonic` in seconds.

    `decisions` is the plan in force, by the job's uid; empty before a leader's first plan; `queue` has the places of those
    that wait under it. By the `signal` jobs that can wait are put off. `runs` are those that recurring jobs are to be, by
    uid: they begin once their statuses have them. While `statuses_wait` no status is due, while `figures_wait` none
    that tells of limits or figures alone, and never one of a job or a quota in `status_writes`, whose last one is still
    being written.
    """

    cluster: ClusterState
    nodes: Mapping[str, NodeInfo]
    decisions: Mapping[str, JobDecision]
    epoch: int
    now: datetime
    monotonic: float
    queue: JobQueue = NO_QUEUE
    signal: Signal | None = None
    runs: Mapping[str, RecurringRun] = field(default_factory=dict)
    statuses_wait: bool = False
    figures_wait: bool = False
    status_writes: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class LiveJob:
    """One job that has not ended, as it stands in this cycle."""

    view: EnergyAwareJob
    memory: JobMemory
    step: JobStep
    pods: Sequence[PodView]


@dataclass(frozen=True, slots=True)
class JobAction:
    """One thing to do for one job."""

    job: EnergyAwareJob
    action: Action


@dataclass(frozen=True, slots=True)
class JobsStep:
    """What follows from one cycle for all jobs.

    `jobs` are those that have not ended, by uid. `actions` can be taken at once, `gates` be opened once every pod has its
    watts. `statuses` are due now, `lanes` says by uid what each is written for; so are
    `late_energy` (of ended jobs whose last pods are reported to have used more) and the removal of the `expired` jobs.
    After `next_seconds` something follows from time alone. `withheld_gpus` are those of each node that no pod can have now.
    Of the templates of `checks` the API server should be asked. `quota_statuses` are due as well. `consumptions` are what
    all jobs have used, those included that are gone. `points` are due to pods whose pipelines are to run otherwise, and
    `plans` are to be made of what jobs have measured of theirs.
    """

    jobs: Mapping[str, LiveJob]
    actions: Sequence[JobAction]
    gates: Sequence[tuple[EnergyAwareJob, OpenGates]]
    statuses: Sequence[tuple[LiveJob, EnergyAwareJobStatus]]
    late_energy: Sequence[tuple[EnergyAwareJob, EnergyAwareJobStatus]]
    expired: Sequence[EnergyAwareJob]
    next_seconds: float = float("inf")
    withheld_gpus: Mapping[str, int] = field(default_factory=dict)
    checks: Sequence[EnergyAwareJob] = ()
    quota_statuses: Sequence[tuple[EnergyQuota, EnergyQuotaStatus]] = ()
    consumptions: Sequence[Consumption] = ()
    lanes: Mapping[str, Lane] = field(default_factory=dict)
    points: Sequence[PointChange] = ()
    plans: Sequence[PlanPipeline] = ()

    @property
    def stopping(self) -> frozenset[tuple[str, int]]:
        """The incarnations that are to be stopped, by the job's uid and their number."""
        return frozenset(key for item in self.actions if (key := _stopped(item)) is not None)

    def actions_of(
        self, reserved: Callable[[PodView], bool], held_up: Collection[tuple[str, int]] = ()
    ) -> dict[str, list[JobAction]]:
        """The actions to take now, by the job's uid and in order.

        `reserved` says whether a pod's node is granted its watts; gates open for all pods of a job or for none. `held_up`
        are those of `stopping` that have to wait, and the gates of the same job with them.
        """
        actions: dict[str, list[JobAction]] = {}
        waiting = {uid for uid, _ in held_up}
        for item in self.actions:
            if _stopped(item) not in held_up:
                actions.setdefault(item.job.uid, []).append(item)
        for job, gates in self.gates:
            if job.uid not in waiting and all(reserved(pod) for pod, _ in gates.pods):
                actions.setdefault(job.uid, []).append(JobAction(job, gates))
        return actions


def _stopped(item: JobAction) -> tuple[str, int] | None:
    """The incarnation that an action stops, by the job's uid and its number."""
    action = item.action
    return (item.job.uid, action.incarnation.incarnation) if isinstance(action, StopIncarnation) else None
