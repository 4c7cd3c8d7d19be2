"""More GPUs for jobs although the cap has no watts left at their base clocks, where lower clocks for all are worth it.

A cap that sums limits counts idle GPUs at their smallest limit, so using them at clocks that this limit allows is free, and
refusing would leave the watts reserved and unused. A step is taken if it gains more speed than the lower clocks cost the
others; gains and losses are compared as sums of logarithms, so a job cannot double at the price of more than one other's
halving. Step by step that is an estimate (`PlanState.cap_headroom_share`: speeds rise evenly between admission and base
clock as far as the cap has watts), because the exact answer is a whole climb of all clocks; what the steps make together is
proven by that climb, and what it finds a loss is taken back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from flyball_planner.ledger.clocks import assign_clocks
from flyball_planner.ledger.options import ADMISSION, Option
from flyball_planner.ledger.returns import NO_GAIN, Growth, Stepper
from flyball_planner.ledger.state import Candidate, FormerState, PlanState, base_over_admission_speed


def squeeze(
    state: PlanState, candidates: Sequence[Candidate], stepper: Stepper, blocked: Sequence[tuple[Growth, Candidate]]
) -> tuple[bool, list[tuple[Growth, Candidate]]]:
    """Take the blocked steps that speed the cluster up at the clocks its caps bear.

    Whether any was taken, and the steps that stay blocked.
    """
    refused = {candidate.index: (step, candidate) for step, candidate in blocked}
    heap = [(step.rank, candidate.index, step) for step, candidate in blocked if candidate.contribution]
    heapify(heap)
    taken: list[tuple[Candidate, FormerState, Growth]] = []
    speed_before = 0.0
    while heap:
        _, index, step = heappop(heap)
        candidate = candidates[index]
        former = _grow(state, candidate, step.gpus, stepper)
        if former is None:
            refused[index] = (step, candidate)
            continue
        if not taken:  # a climb of all clocks is made only where there is a step to prove
            state.go_back(candidate, former)
            speed_before = _cluster_speed(state, candidates)
            again = _grow(state, candidate, step.gpus, stepper)
            assert again is not None  # noqa: S101 - nothing has changed since it was taken
        refused.pop(index, None)
        taken.append((candidate, former, step))
        following = stepper.growth(candidate)
        if following is not None:
            heappush(heap, (following.rank, index, following))
    while taken and _cluster_speed(state, candidates) <= speed_before + NO_GAIN:
        for candidate, former, step in reversed(taken[len(taken) // 2 :]):
            state.go_back(candidate, former)
            refused[candidate.index] = (step, candidate)
        del taken[len(taken) // 2 :]
    return bool(taken), list(refused.values())


def _grow(state: PlanState, candidate: Candidate, gpus: int, stepper: Stepper) -> FormerState | None:
    """One step, if by the estimate it gains more than it costs; the result is what to go back to."""
    now = candidate.option
    if now is None or not candidate.contribution or not state.may_hold(candidate, gpus):
        return None
    caps = [cap for cap, _ in candidate.contribution]
    share_before = {cap: state.cap_headroom_share(cap) for cap in caps}
    speed_before = _speed(now, min(share_before.values()))
    had = candidate.contribution
    former = state.leave(candidate)
    others = {cap: state.base_speed_gain[cap] for cap in caps}
    found = state.find(candidate, gpus, ADMISSION, migrate=False, previous=had)
    if found is not None and stepper.takes(candidate, former, found.option):
        state.float_at(candidate, *found)
        larger = found.option
        share = {cap: state.cap_headroom_share(cap) for cap, _ in candidate.contribution}
        lost = sum(
            max(0.0, before - state.cap_headroom_share(cap)) * others[cap] for cap, before in share_before.items()
        )
        lost += sum((1.0 - share[cap]) * state.base_speed_gain[cap] for cap in share if cap not in share_before)
        if math.log(_speed(larger, min(share.values(), default=1.0)) / speed_before) > lost + NO_GAIN:
            return former
    state.go_back(candidate, former)
    return None


def _speed(option: Option, headroom_share: float) -> float:
    """Iterations per second that an option reaches at a cap's headroom share."""
    return (1.0 + headroom_share * base_over_admission_speed(option)) / option.admission_seconds


def _cluster_speed(state: PlanState, candidates: Sequence[Candidate]) -> float:
    """The logarithms of the speeds, summed, of all candidates under caps, at the clocks that they would get."""
    capped = [candidate for candidate in candidates if candidate.contribution]
    clocks = assign_clocks(state, capped)
    total = 0.0
    for candidate in capped:
        assert candidate.option is not None  # noqa: S101 - a candidate that contributes to a cap is placed
        total -= math.log(candidate.option.curves.seconds[candidate.option.row, clocks[candidate.index]])
    return total
