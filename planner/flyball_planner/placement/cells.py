"""Which jobs must migrate so that enough free GPUs stand together for another: the making of buddy cells.

A job that moves frees cells of its own size and needs one, so no level is the worse for it. While many cells are missing,
the node that can yield one by moving the fewest jobs is evacuated, from the largest cells down; the last few are made by
the fewest moves that there are (`cover`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from flyball_planner.ledger.options import BASE
from flyball_planner.ledger.pools import block_of
from flyball_planner.ledger.state import Candidate, PlanState
from flyball_planner.placement.cover import Offer, cells_made, cheapest_cover, subsets

MOST_WAYS = 512  # states of what lacks: beyond, the exact search would take longer than a plan may


class Resident(Protocol):
    """A job on a node: the number of its GPUs there, and an index that orders jobs of the same number."""

    @property
    def index(self) -> int: ...
    @property
    def gpus(self) -> int: ...


SomeResident = TypeVar("SomeResident", bound=Resident)


def floats(candidate: Candidate) -> bool:
    """Whether a candidate has a size, and its nodes are still to be chosen."""
    return candidate.option is not None and not candidate.staying


def make_cells(state: PlanState, candidates: Sequence[Candidate]) -> bool:
    """Let movable jobs migrate, as few as can be, until what floats has room in every pool; whether any had to."""
    moved = [_make_cells(state, candidates, pool) for pool in range(len(state.pools))]
    return any(moved)


def _make_cells(state: PlanState, candidates: Sequence[Candidate], pool: int) -> bool:
    room = state.slots.free_room[pool]
    if min(room, default=0) >= 0:
        return False
    movable: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        if candidate.staying and candidate.movable and len(candidate.present) == 1 and candidate.present[0][0] == pool:
            movable.setdefault(candidate.present[0][1], []).append(candidate)
    migrated: list[Candidate] = []
    _cover(state, pool, movable, migrated)
    for level in reversed(range(len(room))):
        while room[level] < 0:
            moved = _cheapest_evacuation(state, pool, level, movable)
            if moved is None:
                break
            for candidate in moved:
                movable[candidate.present[0][1]].remove(candidate)
                _migrate(state, candidate)
            migrated += moved
            _cover(state, pool, movable, migrated)
    if min(room) < 0:  # only beside jobs of unusual shapes, as others left them: repack everything, give up the newest
        for candidate in candidates:
            if candidate.staying and candidate.movable and any(index == pool for index, _, _ in candidate.present):
                _migrate(state, candidate)
                migrated.append(candidate)
        floating = [
            candidate
            for candidate in candidates
            if floats(candidate) and any(index == pool for index, _ in candidate.parts)
        ]
        floating.sort(key=lambda candidate: (candidate in migrated, candidate.job.priority, -candidate.index))
        for candidate in floating:
            if min(room) >= 0:
                break
            state.leave(candidate)
            candidate.unplaceable = True
    for candidate in migrated:
        stay_after_all(state, candidate)
    return True


def stay_after_all(state: PlanState, candidate: Candidate) -> None:
    """A candidate that was to migrate stays where it is if that leaves room for everything that floats."""
    before = candidate.contribution
    standing = state.leave(candidate)
    if state.can_stay(candidate, BASE, before):
        state.stay(candidate)
    else:
        state.go_back(candidate, standing)


def _cover(state: PlanState, pool: int, movable: dict[int, list[Candidate]], migrated: list[Candidate]) -> None:
    """Make all the cells that lack by the fewest migrations, if they are few enough to look at every way of it."""
    room = state.slots.free_room[pool]
    lacking = tuple(max(0, -cells) for cells in room)
    if not any(lacking) or lacking[0] or math.prod(cells + 1 for cells in lacking) > MOST_WAYS:
        return
    made = cheapest_cover(lacking, _offers(state.slots.free[pool], movable, len(room), sum(lacking)))
    for candidate in made[1] if made is not None else ():
        movable[candidate.present[0][1]].remove(candidate)
        _migrate(state, candidate)
        migrated.append(candidate)


def _offers(
    free: Sequence[int], movable: dict[int, list[Candidate]], levels: int, enough: int
) -> Iterator[Offer[Candidate]]:
    """What each node could give up, at the price of jobs moved and then GPUs; of equal nodes no more than `enough`."""
    seen: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for place, residents in sorted(movable.items()):
        by_size: dict[int, list[Candidate]] = {}
        for candidate in sorted(residents, key=lambda candidate: (-candidate.gpus, candidate.index)):
            by_size.setdefault(block_of(candidate.gpus), []).append(candidate)
        kind = (free[place], tuple(size for size, alike in by_size.items() for _ in alike))
        seen[kind] += 1
        if seen[kind] > enough:
            continue
        for leaving in subsets(list(by_size.values())):
            cells = cells_made(free[place], [block_of(candidate.gpus) for candidate in leaving], levels)
            if any(cells):
                cost = (float(len(leaving)), float(sum(candidate.gpus for candidate in leaving)))
                yield Offer(cost, place, cells, leaving)


def _migrate(state: PlanState, candidate: Candidate) -> None:
    """From its nodes to wherever there is room in the same pools."""
    assert candidate.option is not None  # noqa: S101 - only a candidate that stays can migrate
    parts = candidate.parts
    pool = state.book.strictest([pool for pool, _ in parts])
    option = state.book.at(candidate.index, pool, candidate.option.gpus) or candidate.option
    state.leave(candidate)
    state.float_at(candidate, option, parts)


def _cheapest_evacuation(
    state: PlanState, pool: int, level: int, movable: dict[int, list[Candidate]]
) -> list[Candidate] | None:
    """The fewest jobs, then the fewest GPUs, whose leaving gives some node one more cell of 2^level GPUs."""
    best: tuple[int, int, int, list[Candidate]] | None = None
    for place, residents in movable.items():
        lacking = (1 << level) - state.slots.free[pool][place] % (1 << level)
        chosen = fewest_that_free(residents, lacking, 1 << level)
        if chosen is not None:
            key = (len(chosen), sum(candidate.gpus for candidate in chosen), place)
            if best is None or key < best[:3]:
                best = (*key, chosen)
    return None if best is None else best[3]


def fewest_that_free(residents: Sequence[SomeResident], lacking: int, below: int) -> list[SomeResident] | None:
    """The fewest residents smaller than `below` GPUs that together hold `lacking`; of those the ones with fewest GPUs."""
    small = sorted(
        (candidate for candidate in residents if block_of(candidate.gpus) < below),
        key=lambda candidate: (-candidate.gpus, candidate.index),
    )
    chosen: list[SomeResident] = []
    for candidate in small:
        if sum(block_of(item.gpus) for item in chosen) >= lacking:
            break
        chosen.append(candidate)
    held = sum(block_of(item.gpus) for item in chosen)
    if held < lacking:
        return None
    spare = small[len(chosen) :]
    for position, candidate in enumerate(chosen):
        for other in reversed(spare):
            gained = block_of(other.gpus) - block_of(candidate.gpus)
            if held + gained >= lacking and gained < 0:
                held += gained
                chosen[position] = other
                spare.remove(other)
                break
    return chosen
