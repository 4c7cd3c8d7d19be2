"""Making room: other jobs go down a size, or are paused, so that one job gets in or grows.

Every attempt is made on the ledger itself and taken back where it does not succeed, so a job is never shrunk for nothing;
after a success, whoever was shrunk without need gets its size back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush

from flyball_planner.allocation_ledger import Claim, Ledger, Standing
from flyball_planner.allocation_options import ADMISSION, BASE, FLOOR
from flyball_planner.allocation_steps import Cut, Growth, Stepper

Accept = Callable[[Cut], bool]
Entry = tuple[float, int, int]  # seconds lost per GPU freed, index of the claim, its size when the entry was made


class Room:
    """Who can give GPUs, cheapest first; kept between attempts, so that a thousand waiting jobs do not sort it as often."""

    def __init__(self, ledger: Ledger, claims: Sequence[Claim], stepper: Stepper) -> None:
        self._ledger = ledger
        self._claims = claims
        self._stepper = stepper
        self._heaps: dict[frozenset[int], list[Entry]] = {}

    def make(self, claim: Claim, gpus: int, clock: int, migrate: bool, accept: Accept, budget_seconds: float) -> bool:
        """Give `claim` a size by shrinking others that `accept` allows, for at most so many lost seconds in all."""
        heap = self._heap(self.relevant_pools(claim, gpus, migrate))
        before = claim.contribution
        standing = self._ledger.leave(claim)
        taken: list[tuple[Claim, Standing]] = []
        popped: list[Entry] = []
        spent = 0.0
        while heap:
            entry = heappop(heap)
            giver = self._claims[entry[1]]
            cut = self._valid_cut(entry, claim)
            if cut is None:
                if giver is claim:
                    popped.append(entry)
                continue
            popped.append(entry)
            spent += cut.loss_seconds
            if spent > budget_seconds or not accept(cut):
                break
            given = giver.contribution
            before_giving = self._ledger.leave(giver)
            smaller = self._ledger.find(giver, cut.gpus, FLOOR, migrate=False, previous=given)
            if smaller is None:
                self._ledger.go_back(giver, before_giving)
                spent -= cut.loss_seconds
                continue
            self._ledger.float_at(giver, *smaller)
            taken.append((giver, before_giving))
            following = self._entry(giver)
            if following is not None:
                heappush(heap, following)
            found = self._ledger.find(claim, gpus, clock, migrate, before)
            if found is not None:
                self._ledger.float_at(claim, *found)
                self._give_back(taken, clock)
                for item in popped:
                    self._push_current(heap, item)
                return True
        for giver, former in reversed(taken):
            self._ledger.go_back(giver, former)
        self._ledger.go_back(claim, standing)
        for item in popped:
            self._push_current(heap, item)
        return False

    def cheapest(self, claim: Claim, gpus: int, migrate: bool) -> float:
        """Seconds lost per GPU by the cheapest giver: no attempt that gains less per GPU can succeed."""
        heap = self._heap(self.relevant_pools(claim, gpus, migrate))
        while heap and self._valid_cut(heap[0], None) is None:
            heappop(heap)
        return heap[0][0] if heap else math.inf

    def relevant_pools(self, claim: Claim, gpus: int, migrate: bool) -> frozenset[int]:
        """The pools whose GPUs would help: the claim's own, or where power is short all that share a cap with them."""
        ledger = self._ledger
        has_room = False
        for pool in claim.pools:
            option = ledger.book.at(claim.index, pool, gpus)
            if option is not None and ledger.slots.fits(pool, *ledger.cells(pool, gpus, option), migrate=migrate):
                has_room = True
        if not has_room:
            return frozenset(claim.pools)
        caps = {cap for pool in claim.pools for cap in ledger.pools[pool].cap_indices}
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

    def _valid_cut(self, entry: Entry, taker: Claim | None) -> Cut | None:
        giver = self._claims[entry[1]]
        if giver is taker or giver.gpus != entry[2]:
            return None
        cut = self._stepper.cut(giver)
        return cut if cut is not None and cut.loss_seconds / cut.freed_gpus <= entry[0] * (1 + 1e-12) else None

    def _push_current(self, heap: list[Entry], entry: Entry) -> None:
        current = self._entry(self._claims[entry[1]])
        if current is not None:
            heappush(heap, current)

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
    found = ledger.find(claim, former.option.gpus, clock, migrate=False)
    if found is None:
        return False
    ledger.float_at(claim, *found)
    return True


def admit(ledger: Ledger, claims: Sequence[Claim], stepper: Stepper) -> bool:
    """Waiting jobs get their base size, or else their smallest, highest priority and then shortest remaining time first."""
    waiting = [claim for claim in claims if claim.option is None and claim.ladder and claim.pools]
    if not waiting:
        return False
    room = Room(ledger, claims, stepper)
    changed = False
    for claim in sorted(waiting, key=lambda claim: _admission_order(claim, stepper)):
        changed |= (
            _fits_as_it_is(ledger, claim)
            or room.make(claim, claim.ladder[0], ADMISSION, True, _anyone, math.inf)
            or _preempt(ledger, claims, room, claim)
        )
    return changed


def _admission_order(claim: Claim, stepper: Stepper) -> tuple[float, ...] | tuple[object, ...]:
    option = stepper.option(claim, claim.base_gpus)
    seconds = math.inf if option is None else claim.remaining * option.seconds
    return (-claim.job.priority, not claim.displaced, seconds, *claim.order)


def _anyone(cut: Cut) -> bool:
    return True


def _fits_as_it_is(ledger: Ledger, claim: Claim) -> bool:
    for gpus in reversed([size for size in claim.ladder if size <= claim.base_gpus]):
        found = ledger.find(claim, gpus, ADMISSION, migrate=True)
        if found is not None:
            ledger.float_at(claim, *found)
            return True
    return False


def _preempt(ledger: Ledger, claims: Sequence[Claim], room: Room, claim: Claim) -> bool:
    """Pause jobs of lower priority, the lowest and latest first, until the claim fits; nobody where it never does."""
    pools = room.relevant_pools(claim, claim.ladder[0], True)
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
        fitted = _fits_as_it_is(ledger, claim)
    if paused and not fitted:
        fitted = room.make(claim, claim.ladder[0], ADMISSION, True, _anyone, math.inf)
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
    for _, claim in sorted(blocked, key=lambda item: (item[0].rank, item[1].index)):
        step = stepper.growth(claim)
        if step is None:
            continue
        if step.gain_seconds / (step.gpus - claim.gpus) <= room.cheapest(claim, step.gpus, False):
            continue
        changed |= room.make(claim, step.gpus, BASE, False, _worse_than(step), step.gain_seconds)
    return changed


def _worse_than(step: Growth) -> Accept:
    def accept(cut: Cut) -> bool:
        if step.joules <= 0:
            return True
        return cut.saved_joules > 0 and cut.loss_seconds / cut.saved_joules < step.gain_seconds / step.joules

    return accept
