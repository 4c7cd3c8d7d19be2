"""From API objects to the planner's snapshot: which jobs want GPUs now, on which nodes, under which caps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from flyball_planner.cluster import (
    Allocation,
    CapConstraint,
    ClusterSnapshot,
    Consolidation,
    Enforcement,
    JobState,
    NodeState,
    Objective,
)
from flyball_planner.models import JobModel

from flyball_operator.books import JobBooks
from flyball_operator.grants import CapBudget
from flyball_operator.picture import MILLIWATTS, NodePicture
from flyball_operator.requests import MANAGED_BY_FLYBALL, JobView, parse_time
from flyball_operator.wanting import NodeRules
from flyball_operator.workloads import IncarnationView


@dataclass(frozen=True, slots=True)
class JobMemory:
    """What is known of a job beside its spec: its books, the allocation it holds or is being given, whether all its pods
    run, whether any of them holds a GPU, and whether its pods are refused as they stand."""

    books: JobBooks
    current: Allocation | None
    running: bool
    holds_gpus: bool = True
    refused: bool = False


def wants_gpus(job: JobView, books: JobBooks, refused: bool) -> bool:
    """Whether the plan should count the job in: not ended, suspended, someone else's, refused or out of its budget."""
    return (
        not job.finished
        and not job.deleting
        and not job.suspend
        and job.managed_by == MANAGED_BY_FLYBALL
        and not refused
        and not (books.budget_spent(job.energy_budget_kilojoules) and job.on_exhausted in ("Suspend", "Fail"))
    )


def recorded_allocation(job: JobView, incarnations: Iterable[IncarnationView]) -> Allocation | None:
    """What a job was last given, from its own status or, where that was not written, from the newest live incarnation."""
    recorded = job.status.get("allocation") or {}
    nodes = tuple((node["name"], node["gpus"]) for node in recorded.get("nodes") or ())
    if not nodes:
        live = [item for item in incarnations if not item.deleting]
        if not live:
            return None
        nodes = max(live, key=lambda item: item.incarnation).nodes
    return Allocation(nodes, recorded.get("clockMegahertz") or 0, float(recorded.get("powerLimitWatts") or 0))


def job_state(
    job: JobView,
    memory: JobMemory,
    models: Sequence[JobModel],
    now: datetime,
    resized: datetime | None,
    schedulable: frozenset[str],
) -> JobState:
    """One job as the planner sees it at `now`; the first of `models` is the one known best, `resized` is when it last began
    to run or to wait or got another size, `schedulable` names the nodes that pods can start on."""
    seconds_since_resize = None if resized is None else (now - resized).total_seconds()
    books = memory.books
    current = memory.current
    if current is not None and not memory.holds_gpus and any(name not in schedulable for name, _ in current.nodes):
        # It holds nothing yet, and could not start there: it is as free to be placed as on its first day.
        current = None
    budget = job.energy_budget_kilojoules
    spent = books.budget_spent(budget)
    return JobState(
        uid=job.uid,
        name=job.key,
        gpus_min=job.gpus_min,
        gpus_max=job.gpus_max,
        global_batch_size=job.global_batch_size,
        model=models[0],
        models_elsewhere=tuple(models[1:]),
        submit_time_seconds=job.created.timestamp(),
        max_local_batch_size=job.max_local_batch_size,
        remaining_iterations=None if job.iterations is None else max(1.0, job.iterations - books.iterations),
        attained_gpu_seconds=books.attained_gpu_seconds,
        priority=job.priority,
        objective=Objective(job.objective),
        seconds_to_deadline=None if job.deadline is None else (job.deadline - now).total_seconds(),
        remaining_energy_joules=None if budget is None else max(0.0, budget * 1e3 - books.consumed_millijoules / 1e3),
        throttled=spent and job.on_exhausted == "Throttle",
        clock_min_megahertz=job.clock_min_megahertz,
        clock_max_megahertz=job.clock_max_megahertz,
        power_limit_max_watts=job.power_limit_max_watts,
        resizable=current is None
        or (
            job.elastic
            and memory.running
            and (seconds_since_resize is None or seconds_since_resize >= job.min_seconds_between_resizes)
        ),
        current=current,
        since_seconds=None if resized is None else resized.timestamp(),
    )


def node_state(picture: NodePicture, rules: NodeRules) -> NodeState | None:
    """One node as the planner sees it; None where it cannot be planned with and no cap can tell (no GPU model)."""
    model = picture.gpu_model
    if model is None:
        return None
    fixed = None if picture.commandable else picture.power.worst.limit_milliwatts / MILLIWATTS
    foreign = picture.floor_milliwatts if rules.limit_foreign_pods else picture.default_milliwatts
    return NodeState(
        name=picture.name,
        gpu_model=model,
        gpus=picture.gpus,
        schedulable=picture.schedulable,
        foreign_gpus=picture.foreign_gpus,
        lost_gpus=picture.lost_gpus,
        foreign_power_limit_watts=foreign / MILLIWATTS,
        lost_power_limit_watts=picture.default_milliwatts / MILLIWATTS,
        idle_power_limit_watts=picture.floor_milliwatts / MILLIWATTS,
        fixed_hold_watts=fixed,
    )


def build_snapshot(
    *,
    pictures: Mapping[str, NodePicture],
    rules: Mapping[str, NodeRules],
    budgets: Iterable[CapBudget],
    jobs: Iterable[tuple[JobView, JobMemory]],
    models_of: Callable[[JobView], Sequence[JobModel]],
    now: datetime,
    restart_seconds: float,
    guard_fraction: float,
    consolidation: Consolidation | None = None,
) -> ClusterSnapshot:
    """The planner's whole input; jobs in the order of submission, nodes and caps in the order of their names."""
    nodes = tuple(
        state
        for name, picture in sorted(pictures.items())
        if (state := node_state(picture, rules.get(name, NodeRules()))) is not None
    )
    known = {node.name for node in nodes}
    caps = []
    for budget in sorted(budgets, key=lambda item: item.name):
        # Nodes of an unknown model cannot be planned with, but what they may draw is gone from the cap all the same.
        unknown = sum(budget.reading(pictures[name].power.worst) for name in budget.nodes - known if name in pictures)
        caps.append(
            CapConstraint(
                name=budget.name,
                node_names=budget.nodes & known,
                budget_watts=(budget.budget_milliwatts - unknown) / MILLIWATTS,
                enforcement=Enforcement.EXPECTED if budget.expected else Enforcement.HARD,
            )
        )
    schedulable = frozenset(node.name for node in nodes if node.schedulable)
    states = []
    for job, memory in sorted(jobs, key=lambda item: (item[0].created, item[0].key)):
        if not wants_gpus(job, memory.books, memory.refused):
            continue
        resized = parse_time(job.status.get("lastResizeTime"))
        states.append(job_state(job, memory, models_of(job), now, resized, schedulable))
    return ClusterSnapshot(
        nodes,
        tuple(states),
        tuple(caps),
        restart_seconds,
        guard_fraction,
        consolidation=consolidation,
        now_seconds=now.timestamp(),
    )


def planning_key(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """The snapshot without what changes by the second: two equal keys need no new plan before the next regular one."""
    return replace(
        snapshot,
        now_seconds=None,
        jobs=tuple(
            replace(
                job,
                remaining_iterations=None if job.remaining_iterations is None else 1.0,
                attained_gpu_seconds=0.0,
                seconds_to_deadline=None if job.seconds_to_deadline is None else 0.0,
                remaining_energy_joules=None if job.remaining_energy_joules is None else 0.0,
            )
            for job in snapshot.jobs
        ),
    )
