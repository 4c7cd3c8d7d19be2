"""Placement: which nodes each job gets, unchanged jobs left alone, with as few migrations as the room requires.

PowerFlow section 5.3. Jobs are placed in descending size into the smallest free buddy cell that holds them; a job larger
than a node takes whole nodes. Where the free GPUs would suffice but no cell does, cells are made by moving the fewest jobs;
everything movable is repacked only where that is not enough (which only jobs of unusual shapes can need).
"""

from __future__ import annotations

from collections.abc import Sequence

from flyball_planner.ledger.pools import block_of, level_of
from flyball_planner.ledger.state import Candidate, PlanState
from flyball_planner.placement.buddy import FreeCells
from flyball_planner.placement.cells import floats, make_cells

Cells = tuple[tuple[str, int], ...]


def place(state: PlanState, candidates: Sequence[Candidate]) -> dict[int, Cells]:
    """Nodes for every candidate that floats, by the candidate's index, in rank order.

    Candidates that had to migrate float afterwards too. One for which, against the count, no nodes can be found (running
    jobs of unusual shapes can do that) gives its size back and is not in the result.
    """
    make_cells(state, candidates)
    cells: dict[int, list[tuple[int, int, int]]] = {
        candidate.index: [] for candidate in candidates if floats(candidate)
    }
    for pool in range(len(state.pools)):
        _fill(state, candidates, pool, cells)
    placed = {}
    for index, parts in cells.items():
        candidate = candidates[index]
        if sum(gpus for _, _, gpus in parts) == candidate.gpus:
            placed[index] = _in_rank_order(state, candidate, parts)
        else:
            state.leave(candidate)
    return placed


def _in_rank_order(state: PlanState, candidate: Candidate, parts: list[tuple[int, int, int]]) -> Cells:
    """By node name; but a job that ends up where it was keeps its ranks, and so has not moved at all."""
    named = tuple(sorted((state.pools[pool].node_names[place], gpus) for pool, place, gpus in parts))
    current = candidate.job.current
    if current is not None and tuple(sorted(current.nodes)) == named:
        return current.nodes
    return named


def _fill(
    state: PlanState, candidates: Sequence[Candidate], pool: int, cells: dict[int, list[tuple[int, int, int]]]
) -> None:
    """Give every floating part in one pool its nodes, largest cells first."""
    wanted = []
    for index in cells:
        candidate = candidates[index]
        option = candidate.option
        if option is None:
            continue
        for part, gpus in candidate.parts:
            if part == pool:
                level, count = state.cells(pool, gpus, option)
                wanted.append((-level, -count, index, gpus // count))
    if not wanted:
        return
    free = FreeCells(state.slots.free[pool])
    for negative_level, negative_count, index, gpus in sorted(wanted):
        here = [place for part, place, _ in candidates[index].present if part == pool]
        taken = []
        for _ in range(-negative_count):
            place = free.take(max(-negative_level, level_of(gpus)), block_of(gpus), here)
            if place is None:
                break
            taken.append((pool, place, gpus))
        cells[index].extend(taken)
