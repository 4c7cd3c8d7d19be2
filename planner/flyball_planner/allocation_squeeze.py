"""Growth under a cap that cannot bear everyone's base clock.

A cap that sums limits counts idle GPUs at their smallest limit, so using them at clocks that this limit allows is free, and
refusing would leave the watts reserved and unused. A step is taken if it gains more speed than the lower clocks cost the
others; gains and losses are compared as sums of logarithms, so a job cannot double at the price of more than one other's
halving. Step by step that is an estimate (`Ledger.relief`: speeds rise evenly between admission and base clock as far as
the cap has watts), because the exact answer is a whole climb of all clocks; what the steps make together is proven by that
climb, and what it finds a loss is taken back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from flyball_planner.allocation_clocks import choose_clocks
from flyball_planner.allocation_ledger import Claim, Ledger, Standing, stretch_of
from flyball_planner.allocation_options import ADMISSION, Option
from flyball_planner.allocation_steps import NO_GAIN, Growth, Stepper


def squeeze(ledger: Ledger, claims: Sequence[Claim], stepper: Stepper, blocked: list[tuple[Growth, Claim]]) -> bool:
    """Take the blocked steps that speed the cluster up at the clocks its caps bear; the others stay in `blocked`."""
    refused = {claim.index: (step, claim) for step, claim in blocked}
    heap = [(step.rank, claim.index, step) for step, claim in blocked if claim.contribution]
    heapify(heap)
    taken: list[tuple[Claim, Standing, Growth]] = []
    speed_before = 0.0
    while heap:
        _, index, step = heappop(heap)
        claim = claims[index]
        standing = _grow(ledger, claim, step.gpus, stepper)
        if standing is None:
            refused[index] = (step, claim)
            continue
        if not taken:  # a climb of all clocks is made only where there is a step to prove
            ledger.go_back(claim, standing)
            speed_before = _cluster_speed(ledger, claims)
            again = _grow(ledger, claim, step.gpus, stepper)
            assert again is not None  # noqa: S101 - nothing has changed since it was taken
        refused.pop(index, None)
        taken.append((claim, standing, step))
        following = stepper.growth(claim)
        if following is not None:
            heappush(heap, (following.rank, index, following))
    while taken and _cluster_speed(ledger, claims) <= speed_before + NO_GAIN:
        for claim, standing, step in reversed(taken[len(taken) // 2 :]):
            ledger.go_back(claim, standing)
            refused[claim.index] = (step, claim)
        del taken[len(taken) // 2 :]
    blocked[:] = refused.values()
    return bool(taken)


def _grow(ledger: Ledger, claim: Claim, gpus: int, stepper: Stepper) -> Standing | None:
    """One step, if by the estimate it gains more than it costs; the result is what to go back to."""
    now = claim.option
    if now is None or not claim.contribution or not ledger.may_hold(claim, gpus):
        return None
    caps = [cap for cap, _ in claim.contribution]
    relief_before = {cap: ledger.relief(cap) for cap in caps}
    speed_before = _speed(now, min(relief_before.values()))
    had = claim.contribution
    standing = ledger.leave(claim)
    others = {cap: ledger.stretch[cap] for cap in caps}
    found = ledger.find(claim, gpus, ADMISSION, migrate=False, previous=had)
    if found is not None and stepper.takes(claim, standing, found[0]):
        ledger.float_at(claim, *found)
        larger = found[0]
        relief = {cap: ledger.relief(cap) for cap, _ in claim.contribution}
        lost = sum(max(0.0, before - ledger.relief(cap)) * others[cap] for cap, before in relief_before.items())
        lost += sum((1.0 - relief[cap]) * ledger.stretch[cap] for cap in relief if cap not in relief_before)
        if math.log(_speed(larger, min(relief.values(), default=1.0)) / speed_before) > lost + NO_GAIN:
            return standing
    ledger.go_back(claim, standing)
    return None


def _speed(option: Option, relief: float) -> float:
    """Iterations per second that a cap's relief lets an option reach."""
    return (1.0 + relief * stretch_of(option)) / option.admission_seconds


def _cluster_speed(ledger: Ledger, claims: Sequence[Claim]) -> float:
    """The logarithms of the speeds, summed, of all claims under caps, at the clocks that they would get."""
    capped = [claim for claim in claims if claim.contribution]
    clocks = choose_clocks(ledger, capped)
    total = 0.0
    for claim in capped:
        assert claim.option is not None  # noqa: S101 - a claim that contributes to a cap is placed
        total -= math.log(claim.option.curves.seconds[claim.option.row, clocks[claim.index]])
    return total
