"""Moving jobs to other pools, at their size, so that a waiting job finds enough GPUs in one.

Within a pool the placement repacks; between pools (racks with caps of their own, say) free GPUs may suffice only together.
"""

from __future__ import annotations

from collections.abc import Sequence

from flyball_planner.allocation_ledger import Claim, Ledger, Standing
from flyball_planner.allocation_options import ADMISSION
from flyball_planner.allocation_steps import Stepper

NO_SLOWER = 1 + 1e-9


def relocate_others(ledger: Ledger, claims: Sequence[Claim], claim: Claim, stepper: Stepper) -> bool:
    """Let a waiting claim in at its smallest size by sending others to pools where they are no slower.

    Tried only where the free GPUs of its pools suffice together, beginning with the pool that lacks fewest. Nobody is
    moved where it does not succeed.
    """
    gpus = claim.ladder[0]
    free = {pool: room[0] for pool in claim.pools if (room := ledger.slots.open_room[pool])[0] > 0}
    if len(free) < 2 or sum(free.values()) < gpus:
        return False
    for pool in sorted(free, key=lambda pool: (-free[pool], pool)):
        option = ledger.book.at(claim.index, pool, gpus)
        if option is None or not ledger.affords(ledger.contribution(option, ((pool, gpus),)), ADMISSION):
            continue
        residents = _movable_residents(claims, pool)
        # Who is being placed anyhow moves at no cost.
        residents.sort(key=lambda other: (stepper.restart(other.staying), -other.gpus, other.index))
        if _clear(ledger, residents, pool, ledger.cells(pool, gpus, option)):
            ledger.float_at(claim, option, ((pool, gpus),))
            return True
    return False


def _movable_residents(claims: Sequence[Claim], pool: int) -> list[Claim]:
    return [
        claim
        for claim in claims
        if claim.option is not None
        and claim.option.nodes == 1
        and claim.parts == ((pool, claim.gpus),)
        and (claim.movable if claim.staying else claim.adjustable)
    ]


def _clear(ledger: Ledger, residents: Sequence[Claim], pool: int, cells: tuple[int, int]) -> bool:
    """Send residents away from a pool, in their order, until the cells fit; all back where they never do."""
    level, count = cells
    sent: list[tuple[Claim, Standing]] = []
    for claim in residents:
        lacking = (count << level) - ledger.slots.open_room[pool][0]
        if lacking <= 0 or ledger.slots.fits(pool, level, count, migrate=True):
            break
        if claim.gpus > 2 * lacking or not _send(ledger, claim, pool, sent):
            continue
    if ledger.slots.fits(pool, level, count, migrate=True):
        return True
    for claim, former in reversed(sent):
        ledger.go_back(claim, former)
    return False


def _send(ledger: Ledger, claim: Claim, away_from: int, sent: list[tuple[Claim, Standing]]) -> bool:
    former = ledger.leave(claim)
    assert former.option is not None  # noqa: S101 - residents are placed
    elsewhere = [pool for pool in claim.pools if pool != away_from]
    found = ledger.find(claim, former.option.gpus, ADMISSION, migrate=False, pools=elsewhere)
    if found is None or found[0].seconds > former.option.seconds * NO_SLOWER:
        ledger.go_back(claim, former)
        return False
    ledger.float_at(claim, *found)
    sent.append((claim, former))
    return True
