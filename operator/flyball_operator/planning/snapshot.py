"""From API objects to the planner's snapshot: which jobs want GPUs now, on which nodes, under which caps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.gpu_node import GpuReport
from flyball_api.values.bounds import least
from flyball_api.values.times import format_time
from flyball_api.values.units import MILLIWATTS_PER_WATT, of_nodes
from flyball_planner.models.job import JobModel
from flyball_planner.snapshot import (
    CapConstraint,
    ClusterSnapshot,
    Consolidation,
    Enforcement,
    JobState,
    NodeState,
    Objective,
)

from flyball_operator.jobs.runs.memory import JobMemory, wants_gpus
from flyball_operator.power.bound import CapBudget
from flyball_operator.power.nodes.info import NodeInfo
from flyball_operator.power.nodes.reservations import NO_RULES, NodeRules, foreign_milliwatts, lost_gpu_milliwatts

# As long as pods tolerate a node that is not ready, unless they say otherwise.
EVACUATE_AFTER_SECONDS = 300.0
# A GPU that could not be read or set for a shorter time is taken from no job that runs on its node: a call to its driver
# that takes long once, or an agent that has just begun on a busy machine, is no reason to stop training.
LOST_AFTER_SECONDS = 30.0
# One node that does not answer is likely to be dead. So many at once are likely to be slow.
LATE_TOGETHER = 2


def job_state(
    job: EnergyAwareJob,
    memory: JobMemory,
    models: Sequence[JobModel],
    now: datetime,
    resized: datetime | None,
    startable: frozenset[str],
) -> JobState:
    """One job as the planner sees it at `now`.

    The first of `models` is the one known best; `resized` is when it last began to run or to wait or got another size;
    `startable` names the nodes that pods which hold nothing yet can start on.
    """
    progress = memory.progress
    current = memory.current
    if current is not None and not memory.holds_gpus and any(name not in startable for name, _ in current.nodes):
        # It holds nothing yet, and could not start there: it is as free to be placed as on its first day.
        current = None
    budget, iterations = job.spec.energy.budget_kilojoules, job.spec.training.iterations
    spent = progress.budget_spent(budget)
    deadline = job.due
    if deadline is not None and deadline <= now:
        deadline = None  # nothing meets it any more: hurrying would cost energy for nothing
    return JobState(
        uid=job.uid,
        name=job.key,
        gpus_min=job.spec.gpus.min,
        gpus_max=_gpus_max(job, memory),
        global_batch_size=job.spec.training.global_batch_size,
        model=models[0],
        models_elsewhere=tuple(models[1:]),
        submit_time_seconds=job.created.timestamp(),
        max_local_batch_size=job.spec.training.max_local_batch_size,
        remaining_iterations=None if iterations is None else max(1.0, iterations - progress.iterations),
        attained_gpu_seconds=progress.attained_gpu_seconds,
        priority=job.spec.priority,
        # A pipeline's own plan lowers the clocks, by the objective: what is granted only bounds them.
        objective=Objective.TIME if job.spec.pipeline is not None else Objective(job.spec.objective),
        seconds_to_deadline=None if deadline is None else (deadline - now).total_seconds(),
        remaining_energy_joules=None
        if budget is None
        else max(0.0, budget * 1e3 - progress.consumed_millijoules / 1e3),
        throttled=spent and job.spec.energy.on_exhausted == "Throttle",
        clock_min_megahertz=job.spec.clocks.min_megahertz,
        clock_max_megahertz=job.spec.clocks.max_megahertz,
        power_limit_max_watts=least(job.spec.power_limit.max_watts, memory.watts_per_gpu),
        resizable=current is None or (job.elastic and memory.running and _size_is_old_enough(job, now, resized)),
        size_fixed=_size_fixed(job, memory, resized),
        bounded_by=memory.bounded_by,
        passed_over=memory.passed_over,
        rigid=not job.elastic,
        current=current,
        eligible_nodes=memory.eligible_nodes,
        since_seconds=None if resized is None else resized.timestamp(),
        tenant=job.namespace,
        observed=job.observed,
    )


def _size_is_old_enough(job: EnergyAwareJob, now: datetime, resized: datetime | None) -> bool:
    """Whether its `minSecondsBetweenResizes` are over since the job was `resized` last (None: it never was)."""
    if resized is None:
        return True
    return (now - resized).total_seconds() >= job.spec.elasticity.min_seconds_between_resizes


class JobStates:
    """What the planner sees of each job, with and without what changes by the second.

    Without, a job is worked out when something about it has changed: by that it is known in each cycle whether a new plan
    is due, and there may be ten thousand that wait.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Timeless] = {}  # by uid

    @staticmethod
    def of(
        jobs: Iterable[tuple[EnergyAwareJob, JobMemory]],
        models_of: Callable[[EnergyAwareJob], Sequence[JobModel]],
        now: datetime,
        startable: frozenset[str],
    ) -> tuple[JobState, ...]:
        """Those of the jobs that want GPUs, as `job_state` has them."""
        return tuple(
            job_state(job, memory, models_of(job), now, job.status.last_resize_time, startable)
            for job, memory in jobs
            if _wants(job, memory)
        )

    def timeless(
        self,
        jobs: Iterable[tuple[EnergyAwareJob, JobMemory]],
        models_of: Callable[[EnergyAwareJob], Sequence[JobModel]],
        now: datetime,
        startable: frozenset[str],
    ) -> tuple[JobState, ...]:
        """The same without what changes by the second; of a job of which nothing else has changed the same object."""
        before, self._known = self._known, {}
        states = []
        for job, memory in jobs:
            known = before.get(job.uid)
            if (known is None or known.memory is not memory) and not _wants(job, memory):
                continue
            marks, models = _marks(job, memory, now, startable), models_of(job)
            if known is None or not known.is_of(job, memory, marks, models):
                state = job_state(job, memory, models, now, job.status.last_resize_time, startable)
                known = _Timeless(job, memory, marks, models, _without_time(state))
            self._known[job.uid] = known
            states.append(known.state)
        return tuple(states)


class _Timeless(NamedTuple):
    """What the planner sees of a job but for what changes by the second, and what that was made from."""

    job: EnergyAwareJob
    memory: JobMemory
    marks: tuple[object, ...]
    models: Sequence[JobModel]
    state: JobState

    def is_of(
        self, job: EnergyAwareJob, memory: JobMemory, marks: tuple[object, ...], models: Sequence[JobModel]
    ) -> bool:
        """Whether it would be made the same now."""
        return (
            self.job is job
            and self.memory.current is memory.current
            and self.memory.eligible_nodes is memory.eligible_nodes
            and self.marks == marks
            and self.models == models
        )


def _wants(job: EnergyAwareJob, memory: JobMemory) -> bool:
    return not memory.given_back and wants_gpus(job, memory.progress, memory.refusal)


def _marks(job: EnergyAwareJob, memory: JobMemory, now: datetime, startable: frozenset[str]) -> tuple[object, ...]:
    """What else a job's state without the time depends on."""
    due, resized, current = job.due, job.status.last_resize_time, memory.current
    stuck = current is not None and not memory.holds_gpus and any(name not in startable for name, _ in current.nodes)
    return (
        memory.running,
        memory.gpus_max,
        memory.bounded_by,
        memory.passed_over,
        memory.watts_per_gpu,
        stuck,
        resized is None or (now - resized).total_seconds() >= job.spec.elasticity.min_seconds_between_resizes,
        due is None or due <= now,
        memory.progress.budget_spent(job.spec.energy.budget_kilojoules),
    )


def _without_time(job: JobState) -> JobState:
    return replace(
        job,
        remaining_iterations=None if job.remaining_iterations is None else 1.0,
        attained_gpu_seconds=0.0,
        seconds_to_deadline=None if job.seconds_to_deadline is None else 0.0,
        remaining_energy_joules=None if job.remaining_energy_joules is None else 0.0,
    )


def _gpus_max(job: EnergyAwareJob, memory: JobMemory) -> int:
    """The most GPUs that the job may have."""
    return (
        job.spec.gpus.max
        if memory.gpus_max is None
        else max(job.spec.gpus.min, min(job.spec.gpus.max, memory.gpus_max))
    )


def _size_fixed(job: EnergyAwareJob, memory: JobMemory, resized: datetime | None) -> str:
    """Until when, or why, a job that is not resizable may not change its size, for its explanation."""
    if not job.elastic:
        return "(elasticity.mode is Never)"
    if not memory.running:
        return "while it starts"
    if resized is None:
        return "now"
    seconds = job.spec.elasticity.min_seconds_between_resizes
    return f"before {format_time(resized + timedelta(seconds=seconds))} (minSecondsBetweenResizes)"


def _lost_gpus(info: NodeInfo, held: int, now: datetime | None) -> int:
    """How many of a node's GPUs are planned with no more: those lost a moment ago only as far as no job holds them."""
    reports = () if info.gpu_node is None else info.gpu_node.gpus
    recent = sum(not report.healthy and _lost_just_now(report, now) for report in reports)
    return max(0, info.lost_gpus - recent, min(info.lost_gpus, info.gpus - info.foreign_gpus - held))


def _lost_just_now(report: GpuReport, now: datetime | None) -> bool:
    since = next((item.last_transition_time for item in report.conditions if item.type == "Healthy"), None)
    return since is not None and now is not None and abs((now - since).total_seconds()) < LOST_AFTER_SECONDS


def lost_nodes(nodes: Mapping[str, NodeInfo], now: datetime, evacuate_after_seconds: float) -> frozenset[str]:
    """The nodes that have not been ready for so long that their jobs are to go elsewhere.

    None where half of all nodes are not: then it is more likely that nobody hears them than that they are all lost.
    """
    known = [info.node for info in nodes.values() if info.node is not None]
    silent = [node for node in known if not node.ready]
    if 2 * len(silent) >= len(known):
        return frozenset()
    return frozenset(
        node.name
        for node in silent
        if node.not_ready_since is not None and (now - node.not_ready_since).total_seconds() >= evacuate_after_seconds
    )


def startable_nodes(nodes: Mapping[str, NodeInfo]) -> frozenset[str]:
    """The nodes on which what has been placed, and holds nothing yet, can start.

    Those that do not answer are among them where half of all that are up do not: then the API server is slow, or this
    operator, and to place every start anew, again and again, would be more of what makes it so. A few that are late at the
    same time are, too, for as long as they are believed: a job of a hundred nodes would else never be left alone.
    """
    up = {name for name, info in nodes.items() if info.node is not None and info.node.ready and not info.node.cordoned}
    schedulable = {name for name, info in nodes.items() if info.schedulable and info.gpu_model is not None}
    mute = {name for name in up - schedulable if nodes[name].acknowledged}
    if 2 * len(mute) >= len(up):
        return frozenset(schedulable | mute)
    late = {name for name in mute if nodes[name].late}
    return frozenset(schedulable | late) if len(late) >= LATE_TOGETHER else frozenset(schedulable)


def node_state(
    info: NodeInfo,
    rules: NodeRules,
    withheld: int = 0,
    *,
    evacuate: bool = False,
    held: int = 0,
    now: datetime | None = None,
) -> NodeState | None:
    """One node as the planner sees it; None where its GPU model is unknown: it cannot be planned with.

    `withheld`: so many of its GPUs pods cannot have now, though no agent calls them lost. `evacuate`: its jobs are to
    leave. `held`: so many of its GPUs jobs run on.
    """
    model = info.gpu_model
    if model is None:
        return None
    fixed = None if info.commandable else info.power.committed
    return NodeState(
        name=info.name,
        gpu_model=model,
        gpus=info.gpus,
        schedulable=info.schedulable,
        foreign_gpus=info.foreign_gpus,
        lost_gpus=max(_lost_gpus(info, held, now), withheld),
        foreign_power_limit_watts=foreign_milliwatts(info, rules) / max(1, info.foreign_gpus) / MILLIWATTS_PER_WATT,
        lost_power_limit_watts=lost_gpu_milliwatts(info) / MILLIWATTS_PER_WATT,
        idle_power_limit_watts=info.min_limit_milliwatts / MILLIWATTS_PER_WATT,
        fixed_bound_watts=None if fixed is None else fixed.limit_milliwatts / MILLIWATTS_PER_WATT,
        fixed_draw_watts=None if fixed is None else fixed.expected_milliwatts / MILLIWATTS_PER_WATT,
        evacuate=evacuate,
    )


def build_snapshot(
    *,
    nodes: Mapping[str, NodeInfo],
    rules: Mapping[str, NodeRules],
    budgets: Iterable[CapBudget],
    jobs: Iterable[tuple[EnergyAwareJob, JobMemory]],
    models_of: Callable[[EnergyAwareJob], Sequence[JobModel]],
    now: datetime,
    restart_seconds: float,
    guard_fraction: float,
    consolidation: Consolidation | None = None,
    withheld: Mapping[str, int] | None = None,
    evacuate_after_seconds: float = math.inf,
    timeless: JobStates | None = None,
) -> ClusterSnapshot:
    """The planner's whole input; jobs in the order of submission, nodes and caps in the order of their names.

    With `timeless` it is without what changes by the second: two equal ones need no new plan before the next regular one,
    and `timeless` keeps what has not changed of its jobs.
    `withheld` is how many GPUs of a node pods cannot have now, by its name. After `evacuate_after_seconds` jobs leave a
    node that is not ready.
    """
    in_order = sorted(jobs, key=lambda item: (item[0].created, item[0].key))
    states = (JobStates.of if timeless is None else timeless.timeless)(in_order, models_of, now, startable_nodes(nodes))
    held: Counter[str] = Counter()
    for job in states:
        for name, gpus in () if job.current is None else job.current.nodes:
            held[name] += gpus
    evacuated, withheld = lost_nodes(nodes, now, evacuate_after_seconds), withheld or {}
    found = [
        node_state(
            info,
            rules.get(name, NO_RULES),
            withheld.get(name, 0),
            evacuate=name in evacuated,
            held=held[name],
            now=now,
        )
        for name, info in sorted(nodes.items())
    ]
    node_states = tuple(state for state in found if state is not None)
    known = {state.name for state in node_states}
    return ClusterSnapshot(
        node_states,
        states,
        tuple(_cap_constraint(budget, known, nodes) for budget in sorted(budgets, key=lambda item: item.name)),
        restart_seconds,
        guard_fraction,
        consolidation=consolidation,
        now_seconds=now.timestamp() if timeless is None else None,
    )


def _cap_constraint(budget: CapBudget, known: set[str], nodes: Mapping[str, NodeInfo]) -> CapConstraint:
    """One cap as the planner sees it, over its nodes that are `known` to it by name."""
    # Nodes of an unknown model cannot be planned with, but what they may draw is gone from the cap all the same.
    unknown = of_nodes(budget.counted(nodes[name].power.committed) for name in budget.nodes - known if name in nodes)
    return CapConstraint(
        name=budget.name,
        node_names=budget.nodes & known,
        budget_watts=(budget.budget_milliwatts - unknown) / MILLIWATTS_PER_WATT,
        enforcement=Enforcement.EXPECTED if budget.expected else Enforcement.HARD,
        pauses=budget.pauses,
    )
