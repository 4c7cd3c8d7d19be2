"""Placement: which nodes each job gets, unchanged jobs left alone, with as few migrations as the room requires.

PowerFlow section 5.3. Jobs are placed in descending size into the smallest free buddy cell that holds them; a job larger
than a node takes whole nodes. Where the free GPUs would suffice but no cell does, the node that can yield the cell by
moving the fewest jobs is evacuated; everything movable is repacked only where that is not enough (which sizes that are
powers of two never need).
"""

from __future__ import annotations

from collections.abc import Sequence

from flyball_planner.allocation_ledger import Claim, Ledger
from flyball_planner.allocation_options import BASE
from flyball_planner.buddy import FreeCells
from flyball_planner.placement_pools import level_of

Cells = tuple[tuple[str, int], ...]


def place(ledger: Ledger, claims: Sequence[Claim]) -> dict[int, Cells]:
    """Nodes for every claim that floats, by the claim's index, in rank order.

    Claims that had to migrate float afterwards too. A claim for which, against the count, no nodes can be found (running
    jobs of sizes that are no powers of two can do that) leaves the ledger and is not in the result.
    """
    for pool in range(len(ledger.pools)):
        _make_cells(ledger, claims, pool)
    cells: dict[int, list[tuple[int, int, int]]] = {claim.index: [] for claim in claims if _floats(claim)}
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


def _floats(claim: Claim) -> bool:
    return claim.option is not None and not claim.staying


def _in_rank_order(ledger: Ledger, claim: Claim, parts: list[tuple[int, int, int]]) -> Cells:
    """By node name; but a job that ends up where it was keeps its ranks, and so has not moved at all."""
    named = tuple(sorted((ledger.pools[pool].node_names[place], gpus) for pool, place, gpus in parts))
    current = claim.job.current
    if current is not None and tuple(sorted(current.nodes)) == named:
        return current.nodes
    return named


def _make_cells(ledger: Ledger, claims: Sequence[Claim], pool: int) -> None:
    """Let movable jobs of a pool migrate until what floats in it has room at every level."""
    room = ledger.slots.free_room[pool]
    if min(room, default=0) >= 0:
        return
    movable: dict[int, list[Claim]] = {}
    for claim in claims:
        if claim.staying and claim.movable and len(claim.present) == 1 and claim.present[0][0] == pool:
            movable.setdefault(claim.present[0][1], []).append(claim)
    migrated: list[Claim] = []
    for level in reversed(range(len(room))):
        while room[level] < 0:
            moved = _cheapest_evacuation(ledger, pool, level, movable)
            if moved is None:
                break
            for claim in moved:
                movable[claim.present[0][1]].remove(claim)
                _migrate(ledger, claim)
            migrated += moved
    if min(room) < 0:  # only sizes that are no powers of two come here: repack everything, then give up the newest
        for claim in claims:
            if claim.staying and claim.movable and any(index == pool for index, _, _ in claim.present):
                _migrate(ledger, claim)
                migrated.append(claim)
        floating = [claim for claim in claims if _floats(claim) and any(index == pool for index, _ in claim.parts)]
        floating.sort(key=lambda claim: (claim in migrated, claim.job.priority, -claim.index))
        for claim in floating:
            if min(room) >= 0:
                break
            ledger.leave(claim)
    for claim in migrated:
        _stay_after_all(ledger, claim)


def _stay_after_all(ledger: Ledger, claim: Claim) -> None:
    """A claim that was to migrate stays where it is if that leaves room for everything that floats."""
    before = claim.contribution
    standing = ledger.leave(claim)
    if ledger.can_stay(claim, BASE, before):
        ledger.stay(claim)
    else:
        ledger.go_back(claim, standing)


def _migrate(ledger: Ledger, claim: Claim) -> None:
    """From its nodes to wherever there is room in the same pools."""
    assert claim.option is not None  # noqa: S101 - only a claim that stays can migrate
    parts = claim.parts
    option = ledger.book.at(claim.index, parts[0][0], claim.option.gpus) or claim.option
    ledger.leave(claim)
    ledger.float_at(claim, option, parts)


def _cheapest_evacuation(ledger: Ledger, pool: int, level: int, movable: dict[int, list[Claim]]) -> list[Claim] | None:
    """The fewest jobs, then the fewest GPUs, whose leaving gives some node one more cell of 2^level GPUs."""
    best: tuple[int, int, int, list[Claim]] | None = None
    for place, residents in movable.items():
        lacking = (1 << level) - ledger.slots.free[pool][place] % (1 << level)
        chosen = fewest_that_free(residents, lacking, 1 << level)
        if chosen is not None:
            key = (len(chosen), sum(claim.gpus for claim in chosen), place)
            if best is None or key < best[:3]:
                best = (*key, chosen)
    return None if best is None else best[3]


def fewest_that_free(residents: Sequence[Claim], lacking: int, below: int) -> list[Claim] | None:
    """The fewest claims smaller than `below` GPUs that together hold `lacking`, and of those the ones with fewest GPUs."""
    small = sorted((claim for claim in residents if claim.gpus < below), key=lambda claim: (-claim.gpus, claim.index))
    chosen: list[Claim] = []
    for claim in small:
        if sum(item.gpus for item in chosen) >= lacking:
            break
        chosen.append(claim)
    held = sum(item.gpus for item in chosen)
    if held < lacking:
        return None
    spare = small[len(chosen) :]
    for position, claim in enumerate(chosen):
        for other in reversed(spare):
            if held - claim.gpus + other.gpus >= lacking and other.gpus < claim.gpus:
                held += other.gpus - claim.gpus
                chosen[position] = other
                spare.remove(other)
                break
    return chosen


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
