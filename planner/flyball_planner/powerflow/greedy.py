"""PowerFlow's allocation, strictly under every cap: how many GPUs each job gets, and in which pools of nodes.

Algorithm 1 of PowerFlow (section 5.2) from where the cluster is, not from nothing: a change must pay for its restart.
The plan is a state in which no step is left, so that planning again from there changes nothing:

1. settle: every running job keeps its size and its nodes.
2. shed: where a cap cannot be held even with every clock at its lowest, sizes go down by the least loss per watt, then jobs
   are paused, lowest priority first, rigid ones last; under a cap that pauses nobody they stay.
3. admit: waiting jobs get their smallest size, shortest remaining time first; others migrate or shrink for them where that
   frees the room, and only a lower priority is paused for a higher.
4. withdraw: jobs that are better off smaller (price, energy budget, deadline) go down.
5. grow: the largest marginal return first, while GPUs are free and the power at base clocks passes no cap.
6. squeeze: the same past that point, where lower clocks for everybody under the cap cost less than the growth gains.
7. exchange: GPUs go from a job to one with a larger marginal return, if both restarts are paid for.
3 to 7 repeat until nothing changes, weighed first as they are and then as if the plan were in force. The clocks follow
from the sizes and the nodes (`ledger/clocks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush

from flyball_planner.ledger.caps import WATT_TOLERANCE, Accounting
from flyball_planner.ledger.options import BASE, LOWEST, Option
from flyball_planner.ledger.returns import Growth, Stepper
from flyball_planner.ledger.state import NOTHING, Candidate, FormerState, PlanState
from flyball_planner.placement.cells import make_cells, stay_after_all
from flyball_planner.powerflow.room import admit, exchange
from flyball_planner.powerflow.squeeze import squeeze

ROUNDS = 64  # a plan settles in two or three rounds; this only bounds what rounding might make of a tie


def allocate(state: PlanState, candidates: Sequence[Candidate], stepper: Stepper) -> int:
    """Give every candidate its size and pools (steps 1 to 7 above); the result is in `state`.

    Returns the rounds that it took; the last of them changed nothing.
    """
    settle(state, candidates)
    shed(state, candidates, stepper)
    weighing = stepper.weighing(in_force=False)
    for rounds in range(1, ROUNDS):
        changed = _round(state, candidates, weighing)
        if not changed and weighing.in_force:
            return rounds
        # At rest: now weigh as the next plan will, which finds everything running and every change a restart.
        weighing = stepper.weighing(in_force=not changed)
    return ROUNDS


def _round(state: PlanState, candidates: Sequence[Candidate], stepper: Stepper) -> bool:
    changed = admit(state, candidates, stepper)
    changed |= make_cells(state, candidates)
    changed |= withdraw(state, candidates, stepper)
    grew, blocked = grow(state, candidates, stepper)
    squeezed, blocked = squeeze(state, candidates, stepper, blocked)
    changed |= grew or squeezed
    changed |= exchange(state, candidates, stepper, blocked)
    for candidate in candidates:
        if (
            candidate.present_option is not None
            and not candidate.staying
            and candidate.gpus == candidate.present_option.gpus
        ):
            stay_after_all(state, candidate)
    return changed


def settle(state: PlanState, candidates: Iterable[Candidate]) -> None:
    """Every candidate that runs where it may keeps its nodes."""
    for candidate in candidates:
        if candidate.present_option is not None and not candidate.displaced:
            state.stay(candidate)


def shed(state: PlanState, candidates: Sequence[Candidate], stepper: Stepper) -> None:
    """Make every cap hold with clocks at their lowest: first smaller sizes, by least loss per watt, then pauses."""
    for cap in range(len(state.accounts)):
        if state.slack[LOWEST][cap] >= -WATT_TOLERANCE:
            continue
        if state.accounts[cap].accounting is not Accounting.DRAW_AT_MIN_LIMITS:
            _shed_sizes(state, candidates, stepper, cap)  # but not where a cap is past holding: a pause acts at once
        if not state.accounts[cap].constraint.pauses:
            continue
        paused = sorted(
            (candidate for candidate in candidates if _lowest_watts(candidate, cap) > WATT_TOLERANCE),
            key=lambda candidate: candidate.precedence,
        )
        while state.slack[LOWEST][cap] < -WATT_TOLERANCE and paused:
            state.leave(paused.pop())


def _lowest_watts(candidate: Candidate, cap: int) -> float:
    return next((watts[LOWEST] for index, watts in candidate.contribution if index == cap), 0.0)


def _shed_sizes(state: PlanState, candidates: Sequence[Candidate], stepper: Stepper, cap: int) -> None:
    heap = [entry for candidate in candidates if (entry := _shed_entry(state, candidate, stepper, cap)) is not None]
    heapify(heap)
    while heap and state.slack[LOWEST][cap] < -WATT_TOLERANCE:
        _, index, gpus = heappop(heap)
        candidate = candidates[index]
        before = candidate.contribution
        former = state.leave(candidate)
        own = [pool for pool, _ in former.parts]
        found = state.find(candidate, gpus, LOWEST, migrate=False, previous=before, pools=own)
        if found is None:
            state.go_back(candidate, former)
            continue
        state.float_at(candidate, *found)
        entry = _shed_entry(state, candidate, stepper, cap)
        if entry is not None:
            heappush(heap, entry)


def _shed_entry(state: PlanState, candidate: Candidate, stepper: Stepper, cap: int) -> tuple[float, int, int] | None:
    watts = _lowest_watts(candidate, cap)
    if candidate.option is None or watts <= WATT_TOLERANCE or (candidate.staying and not candidate.adjustable):
        return None
    gpus = max((size for size in candidate.ladder if size < candidate.gpus), default=0)
    cut = stepper.loss(candidate, gpus) if gpus else None
    smaller = stepper.option(candidate, gpus) if gpus else None
    if cut is None or smaller is None:
        return None
    kept = dict(state.contribution(smaller, ((candidate.parts[0][0], gpus),))).get(cap, NOTHING)[LOWEST]
    saved = watts - kept
    return (cut.loss_seconds / saved, candidate.index, gpus) if saved > WATT_TOLERANCE else None


def withdraw(state: PlanState, candidates: Iterable[Candidate], stepper: Stepper) -> bool:
    """Jobs that are better off smaller go down."""
    changed = False
    for candidate in candidates:
        gpus = stepper.withdrawal(candidate)
        if gpus is not None and not stepper.ends_before_a_restart(candidate):
            changed |= _resize(state, candidate, gpus, stepper.gives_up)
    return changed


def grow(
    state: PlanState, candidates: Sequence[Candidate], stepper: Stepper
) -> tuple[bool, list[tuple[Growth, Candidate]]]:
    """PowerFlow's greedy: the largest marginal return first. Whether anything grew, and the steps without room or power."""
    changed = False
    blocked: list[tuple[Growth, Candidate]] = []
    heap: list[tuple[tuple[int, float], int, Growth]] = []
    for candidate in candidates:
        step = stepper.growth(candidate)
        if step is not None:
            heap.append((step.rank, candidate.index, step))
    heapify(heap)
    while heap:
        _, index, step = heappop(heap)
        candidate = candidates[index]
        if not (state.may_hold(candidate, step.gpus) and _resize(state, candidate, step.gpus, stepper.takes)):
            blocked.append((step, candidate))
            continue
        changed = True
        following = stepper.growth(candidate)
        if following is not None:
            heappush(heap, (following.rank, index, following))
    return changed, blocked


def _resize(
    state: PlanState, candidate: Candidate, gpus: int, wants: Callable[[Candidate, FormerState, Option], bool]
) -> bool:
    """Another size at base power, nobody else moved; back on its own nodes where that is the size it has there.

    The step was weighed in the pools that the candidate is in; `wants` weighs what is really to be had.
    """
    before = candidate.contribution
    former = state.leave(candidate)
    if (
        candidate.present_option is not None
        and gpus == candidate.present_option.gpus
        and state.can_stay(candidate, BASE, before)
    ):
        state.stay(candidate)
        return True
    found = state.find(candidate, gpus, BASE, migrate=False, previous=before)
    if found is None or not wants(candidate, former, found.option):
        state.go_back(candidate, former)
        return False
    state.float_at(candidate, *found)
    return True
