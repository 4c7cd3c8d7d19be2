"""Placement: which nodes each job gets, unchanged jobs left alone, with as few migrations as the room requires.

PowerFlow section 5.3. Jobs are placed in descending size into the smallest free buddy cell that holds them; a job larger
than a node takes whole nodes. Where the free GPUs would suffice but no cell does, cells are made by moving the fewest jobs;
everything movable is repacked only where that is not enough (which sizes that are powers of two never need).
"""

from __future__ import annotations

from collections.abc import Sequence

from flyball_planner.allocation_ledger import Claim, Ledger
from flyball_planner.buddy import FreeCells
from flyball_planner.placement_cells import floats, make_cells
from flyball_planner.placement_pools import level_of

Cells = tuple[tuple[str, int], ...]


def place(ledger: Ledger, claims: Sequence[Claim]) -> dict[int, Cells]:
    """Nodes for every claim that floats, by the claim's index, in rank order.

    Claims that had to migrate float afterwards too. A claim for which, against the count, no nodes can be found (running
    jobs of sizes that are no powers of two can do that) leaves the ledger and is not in the result.
    """
    make_cells(ledger, claims)
    cells: dict[int, list[tuple[int, int, int]]] = {claim.index: [] for claim in claims if floats(claim)}
    for pool in range(len(ledger.pools)):
        _fill(ledger, claims, pool, cells)
    placed = {}
    for index, parts in cells.items():
        claim = claims[index]
        if sum(gpus for _, _, gpus in parts) == claim.gpus:
            placed[index] = _in_rank_order(ledger, claim, parts)
        else:
            ledger.leave(claim)
    return placed


def _in_rank_order(ledger: Ledger, claim: Claim, parts: list[tuple[int, int, int]]) -> Cells:
    """By node name; but a job that ends up where it was keeps its ranks, and so has not moved at all."""
    named = tuple(sorted((ledger.pools[pool].node_names[place], gpus) for pool, place, gpus in parts))
    current = claim.job.current
    if current is not None and tuple(sorted(current.nodes)) == named:
        return current.nodes
    return named


def _fill(ledger: Ledger, claims: Sequence[Claim], pool: int, cells: dict[int, list[tuple[int, int, int]]]) -> None:
    """Give every floating part in one pool its nodes, largest cells first."""
    wanted = []
    for index in cells:
        claim = claims[index]
        option = claim.option
        if option is None:
            continue
        for part, gpus in claim.parts:
            if part == pool:
                level, count = ledger.cells(pool, gpus, option)
                wanted.append((-level, -count, index, gpus // count))
    if not wanted:
        return
    free = FreeCells(ledger.slots.free[pool])
    for negative_level, negative_count, index, gpus in sorted(wanted):
        here = [place for part, place, _ in claims[index].present if part == pool]
        taken = []
        for _ in range(-negative_count):
            place = free.take(max(-negative_level, level_of(gpus)), gpus, here)
            if place is None:
                break
            taken.append((pool, place, gpus))
        cells[index].extend(taken)
