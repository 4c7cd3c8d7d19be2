"""PowerFlow's allocation, strict: how many GPUs each job gets, in which pools, without any cap ever being passed.

Algorithm 1 of PowerFlow (section 5.2) from where the cluster is, not from nothing: a change must pay for its restart.
The plan is a state in which no step is left, so that planning again from there changes nothing:

1. settle: every running job keeps its size and its nodes.
2. shed: where a cap cannot be held even with every clock at its lowest, sizes go down by the least loss per watt, then jobs
   are paused, lowest priority first.
3. admit: waiting jobs get their smallest size, shortest remaining time first; others migrate or shrink for them where that
   frees the room, and only a lower priority is paused for a higher.
4. withdraw: jobs that are better off smaller (price, energy budget, deadline) go down.
5. grow: the largest marginal return first, while GPUs are free and the power at base clocks passes no cap.
6. squeeze: the same past that point, where lower clocks for everybody under the cap cost less than the growth gains.
7. exchange: GPUs go from a job to one with a larger marginal return, if both restarts are paid for.
3 to 7 repeat until nothing changes, weighed first as they are and then as if the plan were in force. The clocks follow
from the sizes and the nodes (allocation_clocks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from flyball_planner.allocation_ledger import NOTHING, Claim, Ledger, Standing
from flyball_planner.allocation_options import BASE, FLOOR, Option
from flyball_planner.allocation_room import admit, exchange
from flyball_planner.allocation_squeeze import squeeze
from flyball_planner.allocation_steps import Growth, Stepper
from flyball_planner.placement_cells import make_cells, stay_after_all
from flyball_planner.power import WATT_TOLERANCE, Accounting

ROUNDS = 64  # a plan settles in two or three rounds; this only bounds what rounding might make of a tie


def allocate(ledger: Ledger, claims: Sequence[Claim], stepper: Stepper) -> int:
    """Give every claim its size and pools (steps 1 to 7 above); the ledger holds the result.

    Returns the rounds that it took; the last of them changed nothing.
    """
    settle(ledger, claims)
    shed(ledger, claims, stepper)
    weighing = replace(stepper, in_force=False)
    for rounds in range(1, ROUNDS):
        changed = _round(ledger, claims, weighing)
        if not changed and weighing.in_force:
            return rounds
        # At rest: now weigh as the next plan will, which finds everything running and every change a restart.
        weighing = replace(stepper, in_force=not changed)
    return ROUNDS


def _round(ledger: Ledger, claims: Sequence[Claim], stepper: Stepper) -> bool:
    changed = admit(ledger, claims, stepper)
    changed |= make_cells(ledger, claims)
    changed |= withdraw(ledger, claims, stepper)
    blocked: list[tuple[Growth, Claim]] = []
    changed |= grow(ledger, claims, stepper, blocked)
    changed |= squeeze(ledger, claims, stepper, blocked)
    changed |= exchange(ledger, claims, stepper, blocked)
    for claim in claims:
        if claim.present_option is not None and not claim.staying and claim.gpus == claim.present_option.gpus:
            stay_after_all(ledger, claim)
    return changed


def settle(ledger: Ledger, claims: Iterable[Claim]) -> None:
    """Every claim that runs where it may keeps its nodes."""
    for claim in claims:
        if claim.present_option is not None and not claim.displaced:
            ledger.stay(claim)


def shed(ledger: Ledger, claims: Sequence[Claim], stepper: Stepper) -> None:
    """Make every cap hold with clocks at their lowest: first smaller sizes, by least loss per watt, then pauses."""
    for cap in range(len(ledger.accounts)):
        if ledger.slack[FLOOR][cap] >= -WATT_TOLERANCE:
            continue
        if ledger.accounts[cap].accounting is not Accounting.FLOORED_DRAW:
            _shed_sizes(ledger, claims, stepper, cap)  # but not where a cap is past holding: a pause acts at once
        paused = sorted(
            (claim for claim in claims if _floor_watts(claim, cap) > WATT_TOLERANCE),
            key=lambda claim: (-claim.job.priority, *claim.order),
        )
        while ledger.slack[FLOOR][cap] < -WATT_TOLERANCE and paused:
            ledger.leave(paused.pop())


def _floor_watts(claim: Claim, cap: int) -> float:
    return next((watts[FLOOR] for index, watts in claim.contribution if index == cap), 0.0)


def _shed_sizes(ledger: Ledger, claims: Sequence[Claim], stepper: Stepper, cap: int) -> None:
    heap = [entry for claim in claims if (entry := _shed_entry(ledger, claim, stepper, cap)) is not None]
    heapify(heap)
    while heap and ledger.slack[FLOOR][cap] < -WATT_TOLERANCE:
        _, index, gpus = heappop(heap)
        claim = claims[index]
        before = claim.contribution
        standing = ledger.leave(claim)
        own = [pool for pool, _ in standing.parts]
        found = ledger.find(claim, gpus, FLOOR, migrate=False, previous=before, pools=own)
        if found is None:
            ledger.go_back(claim, standing)
            continue
        ledger.float_at(claim, *found)
        entry = _shed_entry(ledger, claim, stepper, cap)
        if entry is not None:
            heappush(heap, entry)


def _shed_entry(ledger: Ledger, claim: Claim, stepper: Stepper, cap: int) -> tuple[float, int, int] | None:
    watts = _floor_watts(claim, cap)
    if claim.option is None or watts <= WATT_TOLERANCE or (claim.staying and not claim.adjustable):
        return None
    gpus = max((size for size in claim.ladder if size < claim.gpus), default=0)
    cut = stepper.loss(claim, gpus) if gpus else None
    smaller = stepper.option(claim, gpus) if gpus else None
    if cut is None or smaller is None:
        return None
    kept = dict(ledger.contribution(smaller, ((claim.parts[0][0], gpus),))).get(cap, NOTHING)[FLOOR]
    saved = watts - kept
    return (cut.loss_seconds / saved, claim.index, gpus) if saved > WATT_TOLERANCE else None


def withdraw(ledger: Ledger, claims: Iterable[Claim], stepper: Stepper) -> bool:
    """Jobs that are better off smaller go down."""
    changed = False
    for claim in claims:
        gpus = stepper.withdrawal(claim)
        if gpus is not None and not stepper.ends_before_a_restart(claim):
            changed |= _resize(ledger, claim, gpus, stepper.gives_up)
    return changed


def grow(ledger: Ledger, claims: Sequence[Claim], stepper: Stepper, blocked: list[tuple[Growth, Claim]]) -> bool:
    """PowerFlow's greedy: the largest marginal return first; steps without room or power go to `blocked`."""
    changed = False
    heap: list[tuple[tuple[int, float], int, Growth]] = []
    for claim in claims:
        step = stepper.growth(claim)
        if step is not None:
            heap.append((step.rank, claim.index, step))
    heapify(heap)
    while heap:
        _, index, step = heappop(heap)
        claim = claims[index]
        if not (ledger.may_hold(claim, step.gpus) and _resize(ledger, claim, step.gpus, stepper.takes)):
            blocked.append((step, claim))
            continue
        changed = True
        following = stepper.growth(claim)
        if following is not None:
            heappush(heap, (following.rank, index, following))
    return changed


def _resize(ledger: Ledger, claim: Claim, gpus: int, wants: Callable[[Claim, Standing, Option], bool]) -> bool:
    """Another size at base power, nobody else moved; back on its own nodes where that is the size it has there.

    The step was weighed in the pools that the claim is in; `wants` weighs what is really to be had.
    """
    before = claim.contribution
    standing = ledger.leave(claim)
    if claim.present_option is not None and gpus == claim.present_option.gpus and ledger.can_stay(claim, BASE, before):
        ledger.stay(claim)
        return True
    found = ledger.find(claim, gpus, BASE, migrate=False, previous=before)
    if found is None or not wants(claim, standing, found[0]):
        ledger.go_back(claim, standing)
        return False
    ledger.float_at(claim, *found)
    return True
