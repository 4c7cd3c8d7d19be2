"""`plan(snapshot)`: one decision for each job, from one frozen picture of the cluster, and the same one every time."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from flyball_planner.cluster import (
    Admission,
    Allocation,
    CapConstraint,
    CapOutcome,
    ClusterSnapshot,
    Enforcement,
    JobDecision,
    JobState,
    NodeState,
    Plan,
)

WATT_TOLERANCE = 1e-6


def plan(snapshot: ClusterSnapshot, policy: str = "powerflow-strict") -> Plan:
    """Decide for every job of the snapshot; the sum of what each feasible cap counts never exceeds it.

    Raises ValueError for an unknown policy.
    """
    if policy != "powerflow-strict":
        raise ValueError(f"policy {policy!r} is unknown (powerflow-strict)")
    nodes = {node.name: node for node in snapshot.nodes}
    free = {
        node.name: node.gpus - node.foreign_gpus - node.lost_gpus if node.schedulable else 0 for node in snapshot.nodes
    }
    placed: dict[str, tuple[tuple[str, int], ...]] = {}
    order = sorted(
        snapshot.jobs, key=lambda job: (-job.priority, job.current is None, job.submit_time_seconds, job.uid)
    )
    for job in order:
        if job.current is not None and all(name in nodes for name, _ in job.current.nodes):
            placed[job.uid] = job.current.nodes
            for name, gpus in job.current.nodes:
                free[name] = max(0, free[name] - gpus)
    for job in order:
        if job.uid not in placed:
            cells = _place(job.gpus_min, snapshot.nodes, free)
            if cells:
                placed[job.uid] = cells
                for name, gpus in cells:
                    free[name] -= gpus
    infeasible = {cap.name for cap in snapshot.caps if _committed(cap, nodes, ()) > cap.budget_watts + WATT_TOLERANCE}
    held = [cap for cap in snapshot.caps if cap.name not in infeasible]
    by_uid = {job.uid: job for job in snapshot.jobs}
    settings = _settings(snapshot, nodes, by_uid, placed, order, held)
    return _describe(snapshot, nodes, by_uid, settings, infeasible)


def _place(gpus: int, nodes: Iterable[NodeState], free: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """The tightest node that has room, or wholly free nodes for more GPUs than one node has."""
    fitting = [node for node in nodes if free[node.name] >= gpus]
    if fitting:
        best = min(fitting, key=lambda node: (free[node.name], node.name))
        return ((best.name, gpus),)
    whole = sorted((node for node in nodes if free[node.name] == node.gpus), key=lambda node: node.name)
    for size in sorted({node.gpus for node in whole}):
        alike = [node for node in whole if node.gpus == size and gpus % size == 0]
        if alike and len(alike) * size >= gpus:
            return tuple((node.name, size) for node in alike[: gpus // size])
    return ()


def _committed(
    cap: CapConstraint,
    nodes: dict[str, NodeState],
    settings: Iterable[tuple[tuple[tuple[str, int], ...], float, float]],
) -> float:
    """What the cap counts: `settings` are (nodes, limit, predicted draw with guard) of the running jobs."""
    hard = cap.enforcement is Enforcement.HARD
    used: dict[str, int] = {}
    total = 0.0
    for cells, limit, draw in settings:
        for name, gpus in cells:
            used[name] = used.get(name, 0) + gpus
            if name in cap.node_names and nodes[name].fixed_hold_watts is None:
                total += gpus * (limit if hard else draw)
    for name in cap.node_names:
        node = nodes.get(name)
        if node is None:
            continue
        if node.fixed_hold_watts is not None:
            total += node.fixed_hold_watts
            continue
        idle_limit = node.idle_power_limit_watts or node.gpu_model.min_power_limit_watts
        idle = max(0, node.gpus - node.foreign_gpus - node.lost_gpus - used.get(name, 0))
        total += idle * (idle_limit if hard else node.gpu_model.idle_power_watts)
        total += node.foreign_gpus * node.foreign_power_limit_watts + node.lost_gpus * node.lost_power_limit_watts
    return total


def _point(
    job: JobState, cells: tuple[tuple[str, int], ...], nodes: dict[str, NodeState], step: int, guard: float
) -> tuple[int, float, float, float, float]:
    """Clock, limit, guarded draw, draw and iteration seconds, `step` clocks below the most efficient one."""
    gpu = nodes[cells[0][0]].gpu_model
    clocks = np.array([clock for clock in gpu.clocks_megahertz if _allowed(job, clock)] or gpu.clocks_megahertz[:1])
    gpus = sum(count for _, count in cells)
    curves = job.model.on(gpu).curves(gpus, len(cells), job.global_batch_size, clocks)
    index = max(0, int(np.argmin(curves.joules[0])) - step)
    draw = float(curves.gpu_watts[0, index])
    top = min(gpu.max_power_limit_watts, job.power_limit_max_watts or math.inf)
    limit = max(gpu.min_power_limit_watts, min(float(math.ceil(draw * (1 + guard))), top))
    return int(clocks[index]), limit, min(draw * (1 + guard), limit), draw, float(curves.seconds[0, index])


def _allowed(job: JobState, clock: int) -> bool:
    return (job.clock_min_megahertz or 0) <= clock <= (job.clock_max_megahertz or clock)


Setting = tuple[tuple[tuple[str, int], ...], tuple[int, float, float, float, float]]


def _settings(
    snapshot: ClusterSnapshot,
    nodes: dict[str, NodeState],
    jobs: dict[str, JobState],
    placed: dict[str, tuple[tuple[str, int], ...]],
    order: list[JobState],
    caps: list[CapConstraint],
) -> dict[str, Setting]:
    """Every placed job at its most efficient clock, all lowered together until the caps hold, then paused from the last."""
    guard = snapshot.guard_fraction
    step = 0
    deepest = max((len(node.gpu_model.clocks_megahertz) for node in snapshot.nodes), default=1)
    running = [job.uid for job in order if job.uid in placed]
    while True:
        settings = {uid: (placed[uid], _point(jobs[uid], placed[uid], nodes, step, guard)) for uid in running}
        counted = [(cells, point[1], point[2]) for cells, point in settings.values()]
        if not running or all(_committed(cap, nodes, counted) <= cap.budget_watts + WATT_TOLERANCE for cap in caps):
            return settings
        if step < deepest:
            step += 4
        else:
            running.pop()


def _describe(
    snapshot: ClusterSnapshot,
    nodes: dict[str, NodeState],
    jobs: dict[str, JobState],
    settings: dict[str, Setting],
    infeasible: set[str],
) -> Plan:
    decisions = []
    for job in snapshot.jobs:
        if job.uid not in settings:
            reason = Admission.WAITING_FOR_POWER if job.current is not None else Admission.WAITING_FOR_GPUS
            decisions.append(JobDecision(job.uid, None, reason, f"waits: no room for {job.gpus_min} GPUs"))
            continue
        cells, (clock, limit, _, draw, seconds) = settings[job.uid]
        allocation = Allocation(cells, clock, limit)
        sentence = f"{allocation.gpus} GPUs at {clock} MHz: {seconds:.3f} s and {draw:.0f} W per GPU predicted"
        decisions.append(JobDecision(job.uid, allocation, Admission.ADMITTED, sentence, seconds, draw))
    counted = [(cells, point[1], point[2]) for cells, point in settings.values()]
    outcomes = tuple(
        CapOutcome(cap.name, _committed(cap, nodes, counted), cap.name not in infeasible, _committed(cap, nodes, ()))
        for cap in snapshot.caps
    )
    return Plan(tuple(decisions), outcomes)
