"""`powerflow-strict` as a policy among the others, so that simulations can run the operator's whole planner.

The planner wants models, nodes and present places. Models stand behind the view's tables; places do not matter for who gets
how many GPUs (sizes are powers of two, and repacking always finds cells), so the jobs are laid out in descending size.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from functools import lru_cache

from flyball_planner.models.gpu import GpuModel
from flyball_planner.models.job import JobModel
from flyball_planner.policies.capping import within_limit
from flyball_planner.policies.view import Choice, ClusterView, JobView, Knob, Traits
from flyball_planner.powerflow.plan import plan_strictly
from flyball_planner.snapshot import (
    Allocation,
    CapConstraint,
    ClusterSnapshot,
    Enforcement,
    JobState,
    NodeState,
    Plan,
)


class StrictPowerFlow:
    """PowerFlow's greedy from where the cluster is, in which a change pays for its restart and no step passes the cap."""

    name = "powerflow-strict"
    traits = Traits(
        knob=Knob.POWER_LIMIT,
        elastic=True,
        repacks=True,
        measures=True,
        holds_limits=True,
        needs_model=True,
        empties_nodes=True,
        preempts=True,
    )

    def plan(self, snapshot: ClusterSnapshot) -> Plan:
        """The plan of a snapshot, with its own nodes and caps."""
        return plan_strictly(snapshot)

    def decide(self, view: ClusterView) -> list[Choice]:
        """Raises ValueError for a job whose tables have no model behind them."""
        if not view.jobs:
            return []
        made = plan_strictly(snapshot_of(view), explained=False)
        allocations = {decision.uid: decision.allocation for decision in made.decisions}
        choices = []
        for job in sorted(view.jobs, key=lambda job: job.order):
            if (allocation := allocations[job.uid]) is not None:
                clock = max(0, bisect_right(view.clocks_megahertz, allocation.clock_megahertz) - 1)
                choices.append(Choice(job.uid, allocation.gpus, clock))
        return within_limit(view, choices)

    def precedence(self, view: ClusterView) -> list[str]:
        """By priority, then the shortest at its smallest size; of a snapshot the plan has a queue of its own."""

        def left(job: JobView) -> tuple[float, float, float, str]:
            seconds = job.remaining_iterations * float(job.performance.seconds[0].min())
            return (-job.priority, seconds, *job.order)

        return [job.uid for job in sorted(view.jobs, key=left)]


def snapshot_of(view: ClusterView) -> ClusterSnapshot:
    """The view as a snapshot of alike nodes under one cap."""
    gpu = _with_clocks(_model(view.jobs[0]).gpu_model, view.clocks_megahertz)
    nodes = _alike_nodes(view.gpus // view.gpus_per_node, view.gpus_per_node, gpu)
    names = [node.name for node in nodes]
    cells = _layout(view, names)
    caps: tuple[CapConstraint, ...] = ()
    if view.power_limit_watts is not None:
        caps = (CapConstraint("cluster", frozenset(names), view.power_limit_watts, Enforcement.EXPECTED),)
    return ClusterSnapshot(
        nodes=nodes,
        jobs=tuple(_state(view, job, gpu, cells.get(job.uid)) for job in view.jobs),
        caps=caps,
        restart_seconds=max(job.restart_seconds for job in view.jobs),
        guard_fraction=view.guard_fraction,
    )


def _state(view: ClusterView, job: JobView, gpu: GpuModel, cells: tuple[tuple[str, int], ...] | None) -> JobState:
    table = job.performance
    batch_size = table.batch_size or table.sizes[-1]
    current = None
    if cells is not None:
        watts = table.watts_rows[table.position[job.gpus]][job.clock_index] / job.gpus
        limit = watts * (1.0 + view.guard_fraction)
        current = Allocation(cells, view.clocks_megahertz[job.clock_index], limit)
    return JobState(
        uid=job.uid,
        name=job.uid,
        gpus_min=table.sizes[0],
        gpus_max=table.sizes[-1],
        global_batch_size=batch_size,
        model=_on(_model(job), gpu),
        submit_time_seconds=job.submit_time_seconds,
        remaining_iterations=job.remaining_iterations,
        attained_gpu_seconds=job.attained_gpu_seconds,
        priority=job.priority,
        objective=job.objective,
        seconds_to_deadline=None if job.deadline_seconds is None else job.deadline_seconds - view.now_seconds,
        remaining_energy_joules=job.remaining_energy_joules,
        resizable=job.resizable,
        current=current,
    )


def _layout(view: ClusterView, names: list[str]) -> dict[str, tuple[tuple[str, int], ...]]:
    """Places for the running jobs: in descending size, one after the other, which for powers of two always fits."""
    taken = 0
    cells: dict[str, tuple[tuple[str, int], ...]] = {}
    for job in sorted((job for job in view.jobs if job.gpus), key=lambda job: (-job.gpus, *job.order)):
        first, on_first = divmod(taken, view.gpus_per_node)
        taken += job.gpus
        if job.gpus <= view.gpus_per_node - on_first:
            cells[job.uid] = ((names[first], job.gpus),)
        else:
            nodes = job.gpus // view.gpus_per_node
            cells[job.uid] = tuple((names[first + index], view.gpus_per_node) for index in range(nodes))
    return cells


def _model(job: JobView) -> JobModel:
    if job.performance.model is None:
        raise ValueError(f"job {job.uid}: powerflow-strict plans with models, and its tables have none behind them")
    return job.performance.model


@lru_cache(maxsize=64)
def _alike_nodes(count: int, gpus_per_node: int, gpu: GpuModel) -> tuple[NodeState, ...]:
    return tuple(NodeState(f"node-{index:05d}", gpu, gpus_per_node) for index in range(count))


@lru_cache(maxsize=64)
def _with_clocks(gpu: GpuModel, clocks: tuple[int, ...]) -> GpuModel:
    return replace(gpu, clocks_megahertz=clocks)


@lru_cache(maxsize=4096)
def _on(model: JobModel, gpu: GpuModel) -> JobModel:
    return replace(model, gpu_model=gpu)
