"""What another cap would do: the operator's own planner on the cluster as it stands, twice, and nothing is written.

Both plans are made from one state of the cluster, as a leader would make them that has just begun: the one with the caps as
they are, the other with one cap at other watts. What the operator remembers beside the API's objects (agents that have
fallen silent since, limits that a meter lowers) is in neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec
from flyball_api.power_cap import PowerCap
from flyball_planner.planning_around import plan_around
from flyball_planner.snapshot import ClusterSnapshot, JobDecision, JobState, Plan

from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.controller import JobController
from flyball_operator.jobs.steps.step import JobsCycle
from flyball_operator.learning.learner import Learner
from flyball_operator.planning.snapshot import EVACUATE_AFTER_SECONDS, build_snapshot
from flyball_operator.power.controller import PowerController, PowerSettings

# A term that is none: nothing that it decides is ever sent.
NO_EPOCH = 0


class CannotAsk(ValueError):
    """The question has no answer; the message says why."""


@dataclass(frozen=True, slots=True)
class PlanningSettings:
    """What a plan depends on beside the cluster; the operator's own settings have the same."""

    policy: str
    restart_seconds: float
    guard_fraction: float
    gpu_resources: tuple[str, ...]
    evacuate_after_seconds: float = EVACUATE_AFTER_SECONDS


@dataclass(frozen=True, slots=True)
class Share:
    """What one job has under a plan: `seconds` and `joules` to its end are None where it is paused or has no end."""

    gpus: int = 0
    clock_megahertz: int = 0
    watts: float = 0.0
    seconds: float | None = None
    joules: float | None = None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobChange:
    """One job under the plan with the caps as they are, and with the other watts; `why` is the latter's sentence."""

    name: str
    before: Share
    after: Share
    why: str

    @property
    def what(self) -> str:
        """What becomes of the job, in a word or two."""
        before, after = self.before, self.after
        if not before.gpus or not after.gpus:
            return "pauses" if before.gpus else "starts" if after.gpus else "waits as now"
        if after.gpus != before.gpus:
            return "shrinks" if after.gpus < before.gpus else "grows"
        if after.clock_megahertz != before.clock_megahertz:
            return "slower" if after.clock_megahertz < before.clock_megahertz else "faster"
        return "moves" if after.nodes != before.nodes else "as now"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The answer: the cap's watts before and after, what both plans commit under it, whether they fit, and every job."""

    cap: str
    watts_before: float
    watts_after: float
    committed_before: float
    committed_after: float
    feasible_before: bool
    feasible_after: bool
    least_watts: float
    jobs: tuple[JobChange, ...]

    @property
    def joules_saved(self) -> float | None:
        """To the ends of the jobs that both plans let run to one; None where there is none."""
        both = [
            job.before.joules - job.after.joules
            for job in self.jobs
            if job.before.joules is not None and job.after.joules is not None
        ]
        return sum(both) if both else None


def what_if(
    cluster: ClusterState, learner: Learner, settings: PlanningSettings, cap: str, watts: int, now: datetime
) -> WhatIf:
    """What the cap at other watts would do. Takes as long as two plans. Raises CannotAsk."""
    found = next((item for item in cluster.caps if item.name == cap), None)
    if found is None:
        raise CannotAsk(f"there is no PowerCap {cap}")
    if found.spec is None:
        raise CannotAsk(f"the PowerCap {cap} cannot be read: {found.refusal}")
    if watts <= found.spec.static_overhead_watts:
        raise CannotAsk(f"{watts} W leave nothing for GPUs: staticOverheadWatts is {found.spec.static_overhead_watts}")
    if cluster.unread:
        raise CannotAsk(f"an operator plans nothing while objects cannot be read: {', '.join(cluster.unread)}")
    changed = [with_watts(item, watts) if item is found else item for item in cluster.caps]
    before, budget_before = snapshot_of(cluster, learner, settings, cap, now)
    after, budget_after = snapshot_of(replace(cluster, caps=changed), learner, settings, cap, now)
    plans = plan_around(before, settings.policy), plan_around(after, settings.policy)
    outcomes = [next(item for item in made.caps if item.name == cap) for made in plans]
    return WhatIf(
        cap=cap,
        watts_before=budget_before,
        watts_after=budget_after,
        committed_before=outcomes[0].committed_watts,
        committed_after=outcomes[1].committed_watts,
        feasible_before=outcomes[0].feasible,
        feasible_after=outcomes[1].feasible,
        least_watts=outcomes[1].committed_at_min_watts,
        jobs=changes(before, *plans, settings.restart_seconds),
    )


def with_watts(cap: PowerCap, watts: int) -> PowerCap:
    """The cap with another figure of watts, in force at once and for good: without its schedule and its ramp."""
    if cap.spec is None:
        return cap
    spec = msgspec.structs.replace(cap.spec, watts=watts, permille_of_max=None, schedule=(), ramp_watts_per_second=None)
    return replace(cap, spec=spec)


def snapshot_of(
    cluster: ClusterState, learner: Learner, settings: PlanningSettings, cap: str, now: datetime
) -> tuple[ClusterSnapshot, float]:
    """What a leader that has just begun would plan on, and the watts that it would aim at under the cap."""
    power = PowerController(NO_EPOCH, PowerSettings(guard_fraction=settings.guard_fraction))
    state = power.observe(cluster, now, 0.0)
    jobs = JobController(0.0, learner, settings.gpu_resources).step(
        JobsCycle(cluster, state.nodes, {}, NO_EPOCH, now, 0.0, statuses_wait=True)
    )
    snapshot = build_snapshot(
        nodes=state.nodes,
        rules=state.caps.rules,
        budgets=state.planning_budgets(),
        jobs=[(job.view, job.memory) for job in jobs.jobs.values()],
        models_of=lambda job: learner.models_for(job, state.nodes),
        now=now,
        restart_seconds=settings.restart_seconds,
        guard_fraction=settings.guard_fraction,
        withheld=jobs.withheld_gpus,
        evacuate_after_seconds=settings.evacuate_after_seconds,
    )
    budget = next(item.budget_watts for item in snapshot.caps if item.name == cap)
    return snapshot, budget


def changes(snapshot: ClusterSnapshot, before: Plan, after: Plan, restart_seconds: float) -> tuple[JobChange, ...]:
    """Every job of the snapshot under both plans; what is resized or moved by the second one also has to start again."""
    was: Mapping[str, JobDecision] = {decision.uid: decision for decision in before.decisions}
    will: Mapping[str, JobDecision] = {decision.uid: decision for decision in after.decisions}
    found = []
    for job in snapshot.jobs:
        decision = will[job.uid]
        old, new = _share(job, was[job.uid]), _share(job, decision)
        if new.seconds is not None and old.gpus and (old.gpus, old.nodes) != (new.gpus, new.nodes):
            new = replace(new, seconds=new.seconds + restart_seconds)
        found.append(JobChange(job.name, old, new, decision.explanation))
    return tuple(found)


def _share(job: JobState, decision: JobDecision) -> Share:
    allocation = decision.allocation
    if allocation is None:
        return Share()
    watts = decision.predicted_gpu_watts * allocation.gpus
    seconds = None
    if job.remaining_iterations is not None and decision.predicted_iteration_seconds > 0:
        seconds = job.remaining_iterations * decision.predicted_iteration_seconds
    return Share(
        gpus=allocation.gpus,
        clock_megahertz=allocation.clock_megahertz,
        watts=watts,
        seconds=seconds,
        joules=None if seconds is None else watts * seconds,
        nodes=tuple(sorted(name for name, _ in allocation.nodes)),
    )
