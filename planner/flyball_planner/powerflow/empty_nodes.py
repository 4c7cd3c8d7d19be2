"""Moves that empty nodes, made only where nothing else in the plan would use the emptied nodes.

The moves are weighed on the plan's outcome, as if it were in force, and the cluster with the moves made is planned once
more. Where that plan would use the emptied nodes for something (a job that waits or wants to grow), they are not idle
and nothing is moved for them; otherwise it is the plan. Either way planning again changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from flyball_planner.decisions.texts import joules_text
from flyball_planner.ledger.pools import Pool, block_of, build_pools, open_to_jobs, selectors_of
from flyball_planner.ledger.workspace import UNKNOWN_REMAINDER_SECONDS, going_price
from flyball_planner.placement.consolidation import Occupant, PackedNode, consolidate
from flyball_planner.snapshot import (
    Allocation,
    ClusterSnapshot,
    Consolidation,
    JobDecision,
    JobState,
    NodeState,
    Plan,
)


@dataclass(frozen=True, slots=True)
class _Move:
    """Where a job of one node goes, and the words for why."""

    source: str
    target: str
    reason: str


def consolidated(snapshot: ClusterSnapshot, make_plan: Callable[[ClusterSnapshot], Plan]) -> Plan:
    """The plan of `make_plan`, with the migrations that empty nodes where the snapshot asks for them and they pay."""
    made = make_plan(snapshot)
    if snapshot.consolidation is None:
        return made
    moves = _moves(snapshot, made, snapshot.consolidation)
    if not moves:
        return made
    settled = tuple(
        replace(job, current=_moved(decision.allocation, moves.get(job.uid)))
        for job, decision in zip(snapshot.jobs, made.decisions, strict=True)
    )
    again = make_plan(replace(snapshot, jobs=settled))
    at_rest = all(
        (decision.allocation and decision.allocation.nodes) == (job.current and job.current.nodes)
        for job, decision in zip(settled, again.decisions, strict=True)
    )
    if not at_rest:
        return made
    decisions = []
    for job, first, second in zip(snapshot.jobs, made.decisions, again.decisions, strict=True):
        decisions.append(_explained(job, first, second, moves.get(job.uid)))
    return replace(again, decisions=tuple(decisions), migrations=_migrations(snapshot, made, tuple(decisions), moves))


def _moved(allocation: Allocation | None, move: _Move | None) -> Allocation | None:
    if allocation is None or move is None:
        return allocation
    return replace(allocation, nodes=((move.target, allocation.gpus),))


def _explained(job: JobState, first: JobDecision, second: JobDecision, move: _Move | None) -> JobDecision:
    """A decision of the plan with the moves made; a job without GPUs keeps the explanation of the plan without them."""
    if second.allocation is None:
        return first
    if move is None:
        return second
    where = f" It goes to {move.target}" if job.current is None else f" It moves from {move.source} to {move.target}"
    return replace(second, explanation=f"{second.explanation}{where}, so that {move.reason}.")


def _migrations(
    snapshot: ClusterSnapshot, made: Plan, decisions: tuple[JobDecision, ...], moves: Mapping[str, _Move]
) -> tuple[str, ...]:
    """Jobs moved for the sake of others or of an empty node, their size unchanged."""
    for_others = {*made.migrations, *moves}
    return tuple(
        sorted(
            job.uid
            for job, decision in zip(snapshot.jobs, decisions, strict=True)
            if job.uid in for_others
            and job.current is not None
            and decision.allocation is not None
            and decision.allocation.gpus == job.current.gpus
            and decision.allocation.nodes != job.current.nodes
        )
    )


def _moves(snapshot: ClusterSnapshot, made: Plan, terms: Consolidation) -> dict[str, _Move]:
    """The moves that pay, by the job's uid, weighed as if the plan were in force."""
    caps = sorted(snapshot.caps, key=lambda cap: cap.name)
    pools, position = build_pools(snapshot.nodes, caps, selectors_of(snapshot.jobs))
    nodes = {node.name: node for node in snapshot.nodes}
    price = snapshot.joules_per_job_second
    if price is None:
        price = going_price(snapshot.nodes, caps, len(snapshot.jobs))
    jobs = sorted(
        zip(snapshot.jobs, made.decisions, strict=True),
        key=lambda item: (item[0].submit_time_seconds, item[0].name, item[0].uid),
    )
    held: list[list[Occupant]] = [[] for _ in pools]
    for index, (job, decision) in enumerate(jobs):
        allocation = decision.allocation
        if allocation is None:
            continue
        seconds = _remaining_seconds(job, decision, allocation)
        cost = snapshot.restart_seconds * (allocation.gpus * decision.predicted_gpu_watts + price)
        movable = (
            len(allocation.nodes) == 1
            and job.resizable
            and job.seconds_to_deadline is None
            and job.remaining_energy_joules is None
            and seconds > snapshot.restart_seconds
            and open_to_jobs(nodes[allocation.nodes[0][0]])
        )
        for name, gpus in allocation.nodes:
            index_of_pool, place = position[name]
            held[index_of_pool].append(Occupant(index, place, block_of(gpus), movable, cost, seconds))
    moves: dict[str, _Move] = {}
    for pool, occupants in zip(pools, held, strict=True):
        for clearance in consolidate(_packed_nodes(pool, nodes, occupants, terms), occupants, terms.empty_seconds):
            emptied = pool.node_names[clearance.node]
            saved, paid = joules_text(clearance.saved_joules), joules_text(clearance.migration_joules)
            for move in clearance.moves:
                uid = jobs[move.occupant][0].uid
                before = moves.get(uid)
                source = pool.node_names[move.source] if before is None else before.source
                reason = f"{emptied} is left empty, which saves {saved} for {paid} of restarts"
                moves[uid] = _Move(source, pool.node_names[move.target], reason)
    return {uid: move for uid, move in moves.items() if move.source != move.target}


def _remaining_seconds(job: JobState, decision: JobDecision, allocation: Allocation) -> float:
    """How long a job will hold its GPUs yet; one that does not say: as long again as it has."""
    if job.remaining_iterations is None:
        return max(job.attained_gpu_seconds / allocation.gpus, UNKNOWN_REMAINDER_SECONDS)
    return max(0.0, job.remaining_iterations) * decision.predicted_iteration_seconds


def _packed_nodes(
    pool: Pool, nodes: Mapping[str, NodeState], occupants: list[Occupant], terms: Consolidation
) -> list[PackedNode]:
    """A pool's nodes; those with pods of others stay on whatever happens, and closed ones take nobody."""
    free = list(pool.capacities)
    for occupant in occupants:
        free[occupant.node] -= occupant.gpus
    packed = []
    for name, left in zip(pool.node_names, free, strict=True):
        node = nodes[name]
        saved = terms.node_watts + node.gpus * node.gpu_model.idle_power_watts
        packed.append(PackedNode(max(0, left), saved, stays_on=node.foreign_gpus > 0 or not open_to_jobs(node)))
    return packed
