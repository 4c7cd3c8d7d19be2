"""Making cells: who must migrate where the free GPUs suffice but no buddy cell does.

A job that moves frees cells of its own size and needs one, so no level is the worse for it. While many cells lack, the node
that can yield one by moving the fewest jobs is evacuated, from the largest cells down; the last few are made by the fewest
moves that there are (placement_cover).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from flyball_planner.allocation_ledger import Claim, Ledger
from flyball_planner.allocation_options import BASE
from flyball_planner.placement_cover import Offer, cells_made, cheapest_cover, subsets

MOST_WAYS = 512  # states of what lacks: beyond, the exact search would take longer than a plan may


class Resident(Protocol):
    """Whoever holds GPUs of a node: their number, and an index that orders equals."""

    @property
    def index(self) -> int: ...
    @property
    def gpus(self) -> int: ...


SomeResident = TypeVar("SomeResident", bound=Resident)


def floats(claim: Claim) -> bool:
    """Whether a claim has a size, and its nodes are still to be chosen."""
    return claim.option is not None and not claim.staying


def make_cells(ledger: Ledger, claims: Sequence[Claim]) -> bool:
    """Let movable jobs migrate, as few as can be, until what floats has room in every pool; whether any had to."""
    moved = [_make_cells(ledger, claims, pool) for pool in range(len(ledger.pools))]
    return any(moved)


def _make_cells(ledger: Ledger, claims: Sequence[Claim], pool: int) -> bool:
    room = ledger.slots.free_room[pool]
    if min(room, default=0) >= 0:
        return False
    movable: dict[int, list[Claim]] = {}
    for claim in claims:
        if claim.staying and claim.movable and len(claim.present) == 1 and claim.present[0][0] == pool:
            movable.setdefault(claim.present[0][1], []).append(claim)
    migrated: list[Claim] = []
    _cover(ledger, pool, movable, migrated)
    for level in reversed(range(len(room))):
        while room[level] < 0:
            moved = _cheapest_evacuation(ledger, pool, level, movable)
            if moved is None:
                break
            for claim in moved:
                movable[claim.present[0][1]].remove(claim)
                _migrate(ledger, claim)
            migrated += moved
            _cover(ledger, pool, movable, migrated)
    if min(room) < 0:  # only sizes that are no powers of two come here: repack everything, then give up the newest
        for claim in claims:
            if claim.staying and claim.movable and any(index == pool for index, _, _ in claim.present):
                _migrate(ledger, claim)
                migrated.append(claim)
        floating = [claim for claim in claims if floats(claim) and any(index == pool for index, _ in claim.parts)]
        floating.sort(key=lambda claim: (claim in migrated, claim.job.priority, -claim.index))
        for claim in floating:
            if min(room) >= 0:
                break
            ledger.leave(claim)
            claim.unplaceable = True
    for claim in migrated:
        stay_after_all(ledger, claim)
    return True


def stay_after_all(ledger: Ledger, claim: Claim) -> None:
    """A claim that was to migrate stays where it is if that leaves room for everything that floats."""
    before = claim.contribution
    standing = ledger.leave(claim)
    if ledger.can_stay(claim, BASE, before):
        ledger.stay(claim)
    else:
        ledger.go_back(claim, standing)


def _cover(ledger: Ledger, pool: int, movable: dict[int, list[Claim]], migrated: list[Claim]) -> None:
    """Make all the cells that lack by the fewest migrations, if they are few enough to look at every way of it."""
    room = ledger.slots.free_room[pool]
    lacking = tuple(max(0, -cells) for cells in room)
    if not any(lacking) or lacking[0] or math.prod(cells + 1 for cells in lacking) > MOST_WAYS:
        return
    made = cheapest_cover(lacking, _offers(ledger.slots.free[pool], movable, len(room), sum(lacking)))
    for claim in made[1] if made is not None else ():
        movable[claim.present[0][1]].remove(claim)
        _migrate(ledger, claim)
        migrated.append(claim)


def _offers(free: Sequence[int], movable: dict[int, list[Claim]], levels: int, enough: int) -> Iterator[Offer[Claim]]:
    """What each node could give up, at the price of jobs moved and then GPUs; of equal nodes no more than `enough`."""
    seen: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for place, residents in sorted(movable.items()):
        by_size: dict[int, list[Claim]] = {}
        for claim in sorted(residents, key=lambda claim: (-claim.gpus, claim.index)):
            if claim.gpus & (claim.gpus - 1) == 0:
                by_size.setdefault(claim.gpus, []).append(claim)
        kind = (free[place], tuple(size for size, alike in by_size.items() for _ in alike))
        seen[kind] += 1
        if seen[kind] > enough:
            continue
        for leaving in subsets(list(by_size.values())):
            cells = cells_made(free[place], [claim.gpus for claim in leaving], levels)
            if any(cells):
                cost = (float(len(leaving)), float(sum(claim.gpus for claim in leaving)))
                yield Offer(cost, place, cells, leaving)


def _migrate(ledger: Ledger, claim: Claim) -> None:
    """From its nodes to wherever there is room in the same pools."""
    assert claim.option is not None  # noqa: S101 - only a claim that stays can migrate
    parts = claim.parts
    pool = ledger.book.strictest(pool for pool, _ in parts)
    option = ledger.book.at(claim.index, pool, claim.option.gpus) or claim.option
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


def fewest_that_free(residents: Sequence[SomeResident], lacking: int, below: int) -> list[SomeResident] | None:
    """The fewest residents smaller than `below` GPUs that together hold `lacking`; of those the ones with fewest GPUs."""
    small = sorted((claim for claim in residents if claim.gpus < below), key=lambda claim: (-claim.gpus, claim.index))
    chosen: list[SomeResident] = []
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
