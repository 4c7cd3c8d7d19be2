"""Moving jobs to other pools, at their size, so that a waiting job finds enough GPUs in one.

Within a pool the placement repacks; between pools (racks with caps of their own, say) free GPUs may suffice only together.
"""

from __future__ import annotations

from collections.abc import Sequence

from flyball_planner.ledger.options import ADMISSION
from flyball_planner.ledger.returns import Stepper
from flyball_planner.ledger.state import Candidate, FormerState, PlanState

NO_SLOWER = 1 + 1e-9


def relocate_others(state: PlanState, candidates: Sequence[Candidate], candidate: Candidate, stepper: Stepper) -> bool:
    """Let a waiting candidate in at its smallest size by sending others to pools where they are no slower.

    Tried only where the free GPUs of its pools suffice together, beginning with the pool that lacks fewest. Nobody is
    moved where it does not succeed.
    """
    gpus = candidate.ladder[0]
    free = {pool: room[0] for pool in candidate.pools if (room := state.slots.open_room[pool])[0] > 0}
    if len(free) < 2 or sum(free.values()) < gpus:
        return False
    for pool in sorted(free, key=lambda pool: (-free[pool], pool)):
        option = state.book.at(candidate.index, pool, gpus)
        if option is None or not state.affords(state.contribution(option, ((pool, gpus),)), ADMISSION):
            continue
        residents = _movable_residents(candidates, pool)
        # Who is being placed anyhow moves at no cost.
        residents.sort(key=lambda other: (stepper.restart(other.staying), -other.gpus, other.index))
        if _clear(state, residents, pool, state.cells(pool, gpus, option)):
            state.float_at(candidate, option, ((pool, gpus),))
            return True
    return False


def _movable_residents(candidates: Sequence[Candidate], pool: int) -> list[Candidate]:
    return [
        candidate
        for candidate in candidates
        if candidate.option is not None
        and candidate.option.nodes == 1
        and candidate.parts == ((pool, candidate.gpus),)
        and (candidate.movable if candidate.staying else candidate.adjustable)
    ]


def _clear(state: PlanState, residents: Sequence[Candidate], pool: int, cells: tuple[int, int]) -> bool:
    """Send residents away from a pool, in their order, until the cells fit; all back where they never do."""
    level, count = cells
    sent: list[tuple[Candidate, FormerState]] = []
    for candidate in residents:
        lacking = (count << level) - state.slots.open_room[pool][0]
        if lacking <= 0 or state.slots.fits(pool, level, count, migrate=True):
            break
        if candidate.gpus <= 2 * lacking:
            _send(state, candidate, pool, sent)
    if state.slots.fits(pool, level, count, migrate=True):
        return True
    for candidate, former in reversed(sent):
        state.go_back(candidate, former)
    return False


def _send(state: PlanState, candidate: Candidate, away_from: int, sent: list[tuple[Candidate, FormerState]]) -> None:
    """Put a candidate in other pools where it is no slower, and note it in `sent`; nothing where there are none."""
    former = state.leave(candidate)
    assert former.option is not None  # noqa: S101 - residents are placed
    elsewhere = [pool for pool in candidate.pools if pool != away_from]
    found = state.find(candidate, former.option.gpus, ADMISSION, migrate=False, pools=elsewhere)
    if found is None or found.option.seconds > former.option.seconds * NO_SLOWER:
        state.go_back(candidate, former)
        return
    state.float_at(candidate, *found)
    sent.append((candidate, former))
