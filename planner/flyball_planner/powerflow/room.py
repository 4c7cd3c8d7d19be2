"""Making room: other jobs go down a size, or are paused, so that one job gets in or grows.

Every attempt is made on the plan's state itself and taken back where it fails, so no job is shrunk for nothing; after a
success, jobs that were shrunk without need get their sizes back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from flyball_planner.ledger.options import ADMISSION, BASE, LOWEST, Option
from flyball_planner.ledger.returns import NO_GAIN, Cut, Growth, Stepper
from flyball_planner.ledger.state import Candidate, FormerState, PlanState
from flyball_planner.powerflow.relocation import relocate_others
from flyball_planner.powerflow.tenants import Shares

SAME_RETURN = 1e-6  # relative: R cancels in a return, and what rounding leaves of it must not restart anyone

Accept = Callable[[Cut, float], bool]  # a cut, and the seconds lost before it
# What the taker had, what it would get, and the seconds that others lose for it.
Enough = Callable[[FormerState, Option, float], bool]


class Giver(NamedTuple):
    """A candidate that can give GPUs, cheapest first; valid as long as it has `gpus`."""

    seconds_per_gpu: float  # lost for each GPU freed
    candidate_index: int
    gpus: int


class Target(NamedTuple):
    """Where room is wanted, for which clock the power must do, and whether movable jobs may migrate for it."""

    pools: tuple[int, ...]
    clock: int
    migrate: bool


class Room:
    """Who can give GPUs, cheapest first; kept between attempts, so that a thousand waiting jobs do not sort it as often."""

    def __init__(self, state: PlanState, candidates: Sequence[Candidate], stepper: Stepper) -> None:
        self._state = state
        self._candidates = candidates
        self._stepper = stepper
        self._heaps: dict[frozenset[int], list[Giver]] = {}
        self._everywhere = frozenset(pool.index for pool in state.pools)
        self._sharing: dict[tuple[int, ...], frozenset[int]] = {}
        self._least_anywhere: float | None = None
        self.touched: set[int] = set()  # the candidates whose state an attempt may have changed, by index

    def make(
        self, candidate: Candidate, gpus: int, target: Target, givers: frozenset[int], accept: Accept, enough: Enough
    ) -> bool:
        """Give `candidate` a size by shrinking others in the pools `givers`, as far as `accept` allows it for each and
        `enough` what they lose together for what was found."""
        heap = self._heap(givers)
        if not self._first_accepted(heap, candidate, accept):
            return False
        self._least_anywhere = None
        self.touched.add(candidate.index)
        before = candidate.contribution
        own_former = self._state.leave(candidate)
        taken: list[tuple[Candidate, FormerState]] = []
        popped: list[Giver] = []
        spent = 0.0
        made = False
        while heap and not made:
            entry = heappop(heap)
            giver = self._candidates[entry.candidate_index]
            if giver is candidate:
                popped.append(entry)
                continue
            cut = self._valid_cut(entry)
            if cut is None:
                continue
            popped.append(entry)
            if not accept(cut, spent):
                break
            if not self._shrink(giver, cut, taken):
                continue
            spent += cut.loss_seconds
            following = self._entry(giver)
            if following is not None:
                heappush(heap, following)
            found = self._state.find(candidate, gpus, target.clock, target.migrate, before, target.pools)
            if found is not None:
                if not enough(own_former, found.option, spent):
                    break
                self._state.float_at(candidate, *found)
                self._give_back(taken, target.clock)
                made = True
        if not made:
            for giver, former in reversed(taken):
                self._state.go_back(giver, former)
            self._state.go_back(candidate, own_former)
        for entry in popped:
            current = self._entry(self._candidates[entry.candidate_index])
            if current is not None:
                heappush(heap, current)
        return made

    def _first_accepted(self, heap: list[Giver], candidate: Candidate, accept: Accept) -> bool:
        """A quick no, before anything is moved: False where even the cheapest giver would give too much."""
        cut: Cut | None = None
        while heap and (cut := self._valid_cut(heap[0])) is None:
            heappop(heap)
        return cut is not None and (heap[0].candidate_index == candidate.index or accept(cut, 0.0))

    def _shrink(self, giver: Candidate, cut: Cut, taken: list[tuple[Candidate, FormerState]]) -> bool:
        given = giver.contribution
        former = self._state.leave(giver)
        own = [pool for pool, _ in former.parts]
        smaller = self._state.find(giver, cut.gpus, LOWEST, migrate=False, previous=given, pools=own)
        if smaller is None:
            self._state.go_back(giver, former)
            return False
        self._state.float_at(giver, *smaller)
        self.touched.add(giver.index)
        taken.append((giver, former))
        return True

    def cheapest_anywhere(self) -> float:
        """`cheapest` over all pools: a bound that is the same for every candidate, until the next attempt."""
        if self._least_anywhere is None:
            self._least_anywhere = self.cheapest(self._everywhere)
        return self._least_anywhere

    def cheapest(self, pools: frozenset[int]) -> float:
        """Seconds lost per GPU by the cheapest giver in these pools: no attempt that gains less per GPU can succeed."""
        heap = self._heap(pools)
        while heap and self._valid_cut(heap[0]) is None:
            heappop(heap)
        return heap[0].seconds_per_gpu if heap else math.inf

    def relevant_pools(self, candidate: Candidate, gpus: int, target: Target) -> frozenset[int]:
        """The pools whose GPUs would help: those of the target, or where power is short all that share a cap with them."""
        state = self._state
        if not any(
            (option := state.book.at(candidate.index, pool, gpus)) is not None
            and state.slots.fits(pool, *state.cells(pool, gpus, option), migrate=target.migrate)
            for pool in target.pools
        ):
            return frozenset(target.pools)
        found = self._sharing.get(target.pools)
        if found is None:
            caps = {cap for pool in target.pools for cap in state.pools[pool].cap_indices}
            found = self._sharing[target.pools] = frozenset(
                pool.index for pool in state.pools if caps.intersection(pool.cap_indices)
            )
        return found

    def _heap(self, pools: frozenset[int]) -> list[Giver]:
        if pools not in self._heaps:
            entries = []
            for candidate in self._candidates:
                if any(pool in pools for pool, _ in candidate.parts):
                    entry = self._entry(candidate)
                    if entry is not None:
                        entries.append(entry)
            heapify(entries)
            self._heaps[pools] = entries
        return self._heaps[pools]

    def _entry(self, candidate: Candidate) -> Giver | None:
        cut = self._stepper.cut(candidate)
        if cut is None or self._stepper.ends_before_a_restart(candidate):
            return None
        return Giver(cut.loss_seconds / cut.freed_gpus, candidate.index, candidate.gpus)

    def _valid_cut(self, entry: Giver) -> Cut | None:
        """The cut that an entry stands for, unless its candidate has changed since."""
        giver = self._candidates[entry.candidate_index]
        if giver.gpus != entry.gpus:
            return None
        cut = self._stepper.cut(giver)
        if cut is None or cut.loss_seconds / cut.freed_gpus > entry.seconds_per_gpu * (1 + 1e-12):
            return None
        return cut

    def _give_back(self, taken: list[tuple[Candidate, FormerState]], clock: int) -> None:
        """Undo, last taken first, each cut without which the taker still fits."""
        for giver, former in reversed(taken):
            smaller = self._state.leave(giver)
            if not restore(self._state, giver, former, clock):
                self._state.go_back(giver, smaller)


def restore(state: PlanState, candidate: Candidate, former: FormerState, clock: int) -> bool:
    """Put a candidate that has left back to a former state, if there is room and power for it now."""
    if former.option is None:
        return False
    if former.staying:
        if stays := state.can_stay(candidate, clock, ()):
            state.stay(candidate)
        return stays
    if state.can_float(former.option, former.parts, clock):
        state.float_at(candidate, former.option, former.parts)
        return True
    return False


def admit(state: PlanState, candidates: Sequence[Candidate], stepper: Stepper) -> bool:
    """Waiting jobs get their base size, or else their smallest: the highest priority first, of one priority the tenant that
    holds the fewest GPUs, and of one tenant the shortest remaining time.
    """
    waiting = [candidate for candidate in candidates if _waits(candidate) and not candidate.unplaceable]
    if not waiting:
        return False
    room = Room(state, candidates, stepper)
    shares = Shares(candidates)
    ranks = {candidate.index: _remaining_order(candidate, stepper) for candidate in waiting}
    # No job that could be paused has a lower priority than this: thousands that wait would look for one among thousands.
    lowest = min((other.job.priority for other in candidates if _may_be_paused(other)), default=None)
    changed = False
    for candidate in shares.in_turn(waiting, _admission_tier, lambda candidate: ranks[candidate.index]):
        admitted = (
            fits_as_it_is(state, candidate, stepper)
            or relocate_others(state, candidates, candidate, stepper)
            or _make_room(room, candidate)
            or (
                (lowest is not None and lowest < _preempts_below(candidate, shares))
                and _preempt(state, candidates, room, candidate, stepper, shares)
            )
        )
        if admitted:
            shares.recount()
            lowest = candidate.job.priority if lowest is None else min(lowest, candidate.job.priority)
        changed |= admitted
    return changed


def waiting_in_order(candidates: Sequence[Candidate], stepper: Stepper) -> list[Candidate]:
    """The jobs that wait, in the order in which they would be admitted if each of them were."""
    waiting = [candidate for candidate in candidates if _waits(candidate)]
    if not waiting:
        return []
    shares = Shares(candidates)
    ranks = {candidate.index: _remaining_order(candidate, stepper) for candidate in waiting}
    order = []
    for candidate in shares.in_turn(waiting, _admission_tier, lambda candidate: ranks[candidate.index]):
        shares.started(candidate)
        order.append(candidate)
    return order


def _waits(candidate: Candidate) -> bool:
    """It has nothing, and there is a size and a place that it could have."""
    return candidate.option is None and bool(candidate.ladder) and bool(candidate.pools)


def _admission_tier(candidate: Candidate) -> tuple[int, bool]:
    return -candidate.job.priority, not candidate.displaced


def _remaining_order(candidate: Candidate, stepper: Stepper) -> tuple[object, ...]:
    option = stepper.option(candidate, stepper.base_gpus(candidate))
    seconds = math.inf if option is None else candidate.remaining * option.seconds
    return (seconds, *candidate.order)


def _admission_target(candidate: Candidate) -> Target:
    """A waiting job gets in wherever it may go, and others may migrate for it."""
    return Target(candidate.pools, ADMISSION, migrate=True)


def _make_room(room: Room, candidate: Candidate) -> bool:
    """Its smallest size for a waiting job, whoever has to give how much for it."""
    target = _admission_target(candidate)
    givers = room.relevant_pools(candidate, candidate.ladder[0], target)
    return room.make(candidate, candidate.ladder[0], target, givers, _anyone, _whatever_it_costs)


def _anyone(cut: Cut, lost_before: float) -> bool:
    return True


def _whatever_it_costs(former: FormerState, found: Option, lost: float) -> bool:
    return True


def fits_as_it_is(state: PlanState, candidate: Candidate, stepper: Stepper) -> bool:
    """Give a waiting candidate its base size, or else a smaller one, where there is room and power as it is."""
    base = stepper.base_gpus(candidate)
    for gpus in reversed([size for size in candidate.ladder if size <= base]):
        found = state.find(candidate, gpus, ADMISSION, migrate=True)
        if found is not None:
            state.float_at(candidate, *found)
            return True
    return False


def _may_be_paused(other: Candidate) -> bool:
    return other.option is not None and not other.job.rigid


def _preempts_below(candidate: Candidate, shares: Shares) -> int:
    """Jobs of a priority below this may be paused for a candidate; those of its own as far as shares have it so."""
    return candidate.job.priority + (1 if shares.may_take(candidate) else 0)


def _preempt(
    state: PlanState,
    candidates: Sequence[Candidate],
    room: Room,
    candidate: Candidate,
    stepper: Stepper,
    shares: Shares,
) -> bool:
    """Pause jobs, the lowest priority and the latest first, until the candidate fits; nobody where it never does.

    Those are jobs of lower priority, and then those of other tenants that hold more than the candidate's would. Rigid ones
    are paused for no other job.
    """
    pools = room.relevant_pools(candidate, candidate.ladder[0], _admission_target(candidate))
    priority = _preempts_below(candidate, shares)
    lower = [
        other
        for other in candidates
        if _may_be_paused(other) and other.job.priority < priority and any(pool in pools for pool, _ in other.parts)
    ]
    lower.sort(key=lambda other: (-other.job.priority, *other.order))
    paused: list[tuple[Candidate, FormerState]] = []
    fitted = False
    while lower and not fitted:
        other = lower.pop()
        if other.job.priority == candidate.job.priority and not shares.yields(other, candidate):
            continue
        shares.paused(other)
        paused.append((other, state.leave(other)))
        fitted = fits_as_it_is(state, candidate, stepper)
    if paused and not fitted:
        fitted = _make_room(room, candidate)
    if not fitted:
        for other, former in reversed(paused):
            state.go_back(other, former)
        shares.recount()
        return False
    for other, former in reversed(paused):
        if not restore(state, other, former, ADMISSION):
            other.preempted_by = candidate
    return True


def exchange(
    state: PlanState, candidates: Sequence[Candidate], stepper: Stepper, blocked: Sequence[tuple[Growth, Candidate]]
) -> bool:
    """GPUs and watts go from jobs with small marginal returns to one with a larger, if all their restarts are paid for."""
    room = Room(state, candidates, stepper)
    changed = False
    for was_blocked, candidate in sorted(blocked, key=lambda item: (item[0].rank, item[1].index)):
        step = stepper.growth(candidate) if candidate.index in room.touched else was_blocked
        if step is None or step.gain_seconds / (step.gpus - candidate.gpus) <= room.cheapest_anywhere():
            continue
        promised = stepper.option(candidate, step.gpus)
        assert promised is not None  # noqa: S101 - a step is made of an option
        as_fast = tuple(
            pool
            for pool in candidate.pools
            if (option := state.book.at(candidate.index, pool, step.gpus)) is not None
            and option.seconds <= promised.seconds * (1 + NO_GAIN)
        )
        target = Target(as_fast, BASE, migrate=False)
        givers = room.relevant_pools(candidate, step.gpus, target)
        if step.gain_seconds / (step.gpus - candidate.gpus) <= room.cheapest(givers):
            continue
        changed |= room.make(candidate, step.gpus, target, givers, _worse_than(step), _pays(candidate, stepper))
    return changed


def _worse_than(step: Growth) -> Accept:
    """Cuts of less return than the step has, as long as all of them together cost less than it gains."""

    def accept(cut: Cut, lost_before: float) -> bool:
        if lost_before + cut.loss_seconds >= step.gain_seconds:
            return False
        if step.joules <= 0:
            return True
        least = (1 - SAME_RETURN) * step.gain_seconds / step.joules
        return cut.saved_joules > 0 and cut.loss_seconds / cut.saved_joules < least

    return accept


def _pays(candidate: Candidate, stepper: Stepper) -> Enough:
    """What the taker really gets must gain more than the others lose (a late job's deadline is worth any of that)."""

    def enough(former: FormerState, found: Option, lost: float) -> bool:
        if former.option is None or not stepper.takes(candidate, former, found):
            return False
        if found.gpus <= stepper.base_gpus(candidate, former.parts):
            return True
        restart = stepper.restart(former.staying)
        return candidate.remaining * (former.option.seconds - found.seconds) - restart > lost

    return enough
