"""Making room: other jobs go down a size, or are paused, so that one job gets in or grows.

Every attempt is made on the ledger itself and taken back where it does not succeed, so a job is never shrunk for nothing;
after a success, whoever was shrunk without need gets its size back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from flyball_planner.allocation_ledger import Claim, Ledger, Standing
from flyball_planner.allocation_options import ADMISSION, BASE, FLOOR, Option
from flyball_planner.allocation_relocation import relocate_others
from flyball_planner.allocation_steps import NO_GAIN, Cut, Growth, Stepper

SAME_RETURN = 1e-6  # relative: R cancels in a return, and what rounding leaves of it must not restart anyone

Accept = Callable[[Cut, float], bool]  # a cut, and the seconds lost before it
Enough = Callable[[Standing, Option, float], bool]  # what the taker had, what it would get, and the seconds lost for it
Entry = tuple[float, int, int]  # seconds lost per GPU freed, index of the claim, its size when the entry was made


class Aim(NamedTuple):
    """Where room is wanted, for which clock the power must do, and whether movable jobs may migrate for it."""

    pools: tuple[int, ...]
    clock: int
    migrate: bool


class Room:
    """Who can give GPUs, cheapest first; kept between attempts, so that a thousand waiting jobs do not sort it as often."""

    def __init__(self, ledger: Ledger, claims: Sequence[Claim], stepper: Stepper) -> None:
        self._ledger = ledger
        self._claims = claims
        self._stepper = stepper
        self._heaps: dict[frozenset[int], list[Entry]] = {}
        self._everywhere = frozenset(pool.index for pool in ledger.pools)
        self._least_anywhere: float | None = None
        self.touched: set[int] = set()  # the claims whose state an attempt may have changed, by index

    def make(self, claim: Claim, gpus: int, aim: Aim, accept: Accept, enough: Enough) -> bool:
        """Give `claim` a size by shrinking others, in their own pools, as far as `accept` allows it for each.

        `enough` decides in the end whether what was found is worth the seconds that the others lose.
        """
        heap = self._heap(self.relevant_pools(claim, gpus, aim))
        if not self._first_accepted(heap, claim, accept):
            return False
        self._least_anywhere = None
        self.touched.add(claim.index)
        before = claim.contribution
        standing = self._ledger.leave(claim)
        taken: list[tuple[Claim, Standing]] = []
        popped: list[Entry] = []
        spent = 0.0
        made = False
        while heap and not made:
            entry = heappop(heap)
            giver = self._claims[entry[1]]
            if giver is claim:
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
            found = self._ledger.find(claim, gpus, aim.clock, aim.migrate, before, aim.pools)
            if found is not None:
                if not enough(standing, found[0], spent):
                    break
                self._ledger.float_at(claim, *found)
                self._give_back(taken, aim.clock)
                made = True
        if not made:
            for giver, former in reversed(taken):
                self._ledger.go_back(giver, former)
            self._ledger.go_back(claim, standing)
        for entry in popped:
            current = self._entry(self._claims[entry[1]])
            if current is not None:
                heappush(heap, current)
        return made

    def _first_accepted(self, heap: list[Entry], claim: Claim, accept: Accept) -> bool:
        """A quick no, before anything is moved: False where even the cheapest giver would give too much."""
        cut: Cut | None = None
        while heap and (cut := self._valid_cut(heap[0])) is None:
            heappop(heap)
        return cut is not None and (heap[0][1] == claim.index or accept(cut, 0.0))

    def _shrink(self, giver: Claim, cut: Cut, taken: list[tuple[Claim, Standing]]) -> bool:
        given = giver.contribution
        former = self._ledger.leave(giver)
        own = [pool for pool, _ in former.parts]
        smaller = self._ledger.find(giver, cut.gpus, FLOOR, migrate=False, previous=given, pools=own)
        if smaller is None:
            self._ledger.go_back(giver, former)
            return False
        self._ledger.float_at(giver, *smaller)
        self.touched.add(giver.index)
        taken.append((giver, former))
        return True

    def cheapest(self, claim: Claim, gpus: int, aim: Aim) -> float:
        """Seconds lost per GPU by the cheapest giver: no attempt that gains less per GPU can succeed."""
        return self._cheapest_in(self.relevant_pools(claim, gpus, aim))

    def cheapest_anywhere(self) -> float:
        """The same over all pools: a bound that is the same for every claim, until the next attempt."""
        if self._least_anywhere is None:
            self._least_anywhere = self._cheapest_in(self._everywhere)
        return self._least_anywhere

    def _cheapest_in(self, pools: frozenset[int]) -> float:
        heap = self._heap(pools)
        while heap and self._valid_cut(heap[0]) is None:
            heappop(heap)
        return heap[0][0] if heap else math.inf

    def relevant_pools(self, claim: Claim, gpus: int, aim: Aim) -> frozenset[int]:
        """The pools whose GPUs would help: those aimed at, or where power is short all that share a cap with them."""
        ledger = self._ledger
        if not any(
            (option := ledger.book.at(claim.index, pool, gpus)) is not None
            and ledger.slots.fits(pool, *ledger.cells(pool, gpus, option), migrate=aim.migrate)
            for pool in aim.pools
        ):
            return frozenset(aim.pools)
        caps = {cap for pool in aim.pools for cap in ledger.pools[pool].cap_indices}
        return frozenset(pool.index for pool in ledger.pools if caps.intersection(pool.cap_indices))

    def _heap(self, pools: frozenset[int]) -> list[Entry]:
        if pools not in self._heaps:
            entries = []
            for claim in self._claims:
                if any(pool in pools for pool, _ in claim.parts):
                    entry = self._entry(claim)
                    if entry is not None:
                        entries.append(entry)
            heapify(entries)
            self._heaps[pools] = entries
        return self._heaps[pools]

    def _entry(self, claim: Claim) -> Entry | None:
        cut = self._stepper.cut(claim)
        if cut is None or self._stepper.ends_before_a_restart(claim):
            return None
        return (cut.loss_seconds / cut.freed_gpus, claim.index, claim.gpus)

    def _valid_cut(self, entry: Entry) -> Cut | None:
        """The cut that an entry stands for, unless its claim has changed since."""
        giver = self._claims[entry[1]]
        if giver.gpus != entry[2]:
            return None
        cut = self._stepper.cut(giver)
        return cut if cut is not None and cut.loss_seconds / cut.freed_gpus <= entry[0] * (1 + 1e-12) else None

    def _give_back(self, taken: list[tuple[Claim, Standing]], clock: int) -> None:
        """Undo, last taken first, each cut without which the taker still fits."""
        for giver, former in reversed(taken):
            smaller = self._ledger.leave(giver)
            if not restore(self._ledger, giver, former, clock):
                self._ledger.go_back(giver, smaller)


def restore(ledger: Ledger, claim: Claim, former: Standing, clock: int) -> bool:
    """Put a claim that has left back to a former state, if there is room and power for it now."""
    if former.option is None:
        return False
    if former.staying:
        if ledger.can_stay(claim, clock, ()):
            ledger.stay(claim)
            return True
        return False
    if ledger.can_float(former.option, former.parts, clock):
        ledger.float_at(claim, former.option, former.parts)
        return True
    return False


def admit(ledger: Ledger, claims: Sequence[Claim], stepper: Stepper) -> bool:
    """Waiting jobs get their base size, or else their smallest, highest priority and then shortest remaining time first."""
    waiting = [
        claim for claim in claims if claim.option is None and claim.ladder and claim.pools and not claim.unplaceable
    ]
    if not waiting:
        return False
    room = Room(ledger, claims, stepper)
    changed = False
    for claim in sorted(waiting, key=lambda claim: _admission_order(claim, stepper)):
        changed |= (
            _fits_as_it_is(ledger, claim, stepper)
            or relocate_others(ledger, claims, claim, stepper)
            or room.make(claim, claim.ladder[0], _entry_of(claim), _anyone, _whatever_it_costs)
            or _preempt(ledger, claims, room, claim, stepper)
        )
    return changed


def _admission_order(claim: Claim, stepper: Stepper) -> tuple[float, ...] | tuple[object, ...]:
    option = stepper.option(claim, stepper.base_gpus(claim))
    seconds = math.inf if option is None else claim.remaining * option.seconds
    return (-claim.job.priority, not claim.displaced, seconds, *claim.order)


def _entry_of(claim: Claim) -> Aim:
    """A waiting job gets in wherever it may go, and others may migrate for it."""
    return Aim(claim.pools, ADMISSION, migrate=True)


def _anyone(cut: Cut, lost_before: float) -> bool:
    return True


def _whatever_it_costs(former: Standing, found: Option, lost: float) -> bool:
    return True


def _fits_as_it_is(ledger: Ledger, claim: Claim, stepper: Stepper) -> bool:
    base = stepper.base_gpus(claim)
    for gpus in reversed([size for size in claim.ladder if size <= base]):
        found = ledger.find(claim, gpus, ADMISSION, migrate=True)
        if found is not None:
            ledger.float_at(claim, *found)
            return True
    return False


def _preempt(ledger: Ledger, claims: Sequence[Claim], room: Room, claim: Claim, stepper: Stepper) -> bool:
    """Pause jobs of lower priority, the lowest and latest first, until the claim fits; nobody where it never does."""
    pools = room.relevant_pools(claim, claim.ladder[0], _entry_of(claim))
    lower = [
        other
        for other in claims
        if other.option is not None
        and other.job.priority < claim.job.priority
        and any(pool in pools for pool, _ in other.parts)
    ]
    lower.sort(key=lambda other: (-other.job.priority, *other.order))
    paused: list[tuple[Claim, Standing]] = []
    fitted = False
    while lower and not fitted:
        other = lower.pop()
        paused.append((other, ledger.leave(other)))
        fitted = _fits_as_it_is(ledger, claim, stepper)
    if paused and not fitted:
        fitted = room.make(claim, claim.ladder[0], _entry_of(claim), _anyone, _whatever_it_costs)
    if not fitted:
        for other, former in reversed(paused):
            ledger.go_back(other, former)
        return False
    for other, former in reversed(paused):
        if not restore(ledger, other, former, ADMISSION):
            other.preempted_by = claim
    return True


def exchange(
    ledger: Ledger, claims: Sequence[Claim], stepper: Stepper, blocked: Sequence[tuple[Growth, Claim]]
) -> bool:
    """GPUs and watts go from jobs with small marginal returns to one with a larger, if all their restarts are paid for."""
    room = Room(ledger, claims, stepper)
    changed = False
    for was_blocked, claim in sorted(blocked, key=lambda item: (item[0].rank, item[1].index)):
        step = stepper.growth(claim) if claim.index in room.touched else was_blocked
        if step is None or step.gain_seconds / (step.gpus - claim.gpus) <= room.cheapest_anywhere():
            continue
        promised = stepper.option(claim, step.gpus)
        assert promised is not None  # noqa: S101 - a step is made of an option
        as_fast = tuple(
            pool
            for pool in claim.pools
            if (option := ledger.book.at(claim.index, pool, step.gpus)) is not None
            and option.seconds <= promised.seconds * (1 + NO_GAIN)
        )
        aim = Aim(as_fast, BASE, migrate=False)
        if step.gain_seconds / (step.gpus - claim.gpus) <= room.cheapest(claim, step.gpus, aim):
            continue
        changed |= room.make(claim, step.gpus, aim, _worse_than(step), _pays(claim, stepper))
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


def _pays(claim: Claim, stepper: Stepper) -> Enough:
    """What the taker really gets must gain more than the others lose (a late job's deadline is worth any of that)."""

    def enough(former: Standing, found: Option, lost: float) -> bool:
        if former.option is None or not stepper.takes(claim, former, found):
            return False
        if found.gpus <= stepper.base_gpus(claim, former.parts):
            return True
        restart = stepper.restart(former.staying)
        return claim.remaining * (former.option.seconds - found.seconds) - restart > lost

    return enough
