"""What a change of one job's size would gain or lose, and whether the job wants it: PowerFlow's marginal returns.

Equation 20 with the two normalisers and R cancelled: seconds saved an iteration for each joule more. Steps that gain time
at no energy come first. A job that runs pays for its restart out of the time that it gains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from flyball_planner.allocation_ledger import Claim, Ledger, Standing
from flyball_planner.allocation_options import Option
from flyball_planner.cluster import Objective

NO_GAIN = 1e-9  # relative to the iteration: less than this is no time gained


class Growth(NamedTuple):
    """A step up that a job wants; lower `rank` first. `gain_seconds` is net of the restart, over the rest of the job."""

    rank: tuple[int, float]
    gpus: int
    gain_seconds: float
    joules: float


class Cut(NamedTuple):
    """A step down: what it would cost the job over its remaining iterations, restart included, and the GPUs it frees."""

    gpus: int
    loss_seconds: float
    freed_gpus: int
    saved_joules: float


@dataclass(frozen=True, slots=True)
class Stepper:
    """Marginal returns at the going price and cost of a restart.

    `in_force`: weigh every change as if the plan so far were in force, so that each would cost a restart of its own.
    """

    ledger: Ledger
    restart_seconds: float
    joules_per_job_second: float
    in_force: bool = False

    def restart(self, staying: bool) -> float:
        """Seconds that a change costs a claim; one that is being placed anew in this plan pays them anyhow."""
        return self.restart_seconds if staying or self.in_force else 0.0

    def _bound(self, claim: Claim) -> bool:
        return (claim.staying or self.in_force) and not claim.adjustable

    def option(self, claim: Claim, gpus: int) -> Option | None:
        """The claim at another size, as in the pools it is in now (or, while it waits, in the first it could be in)."""
        return self.ledger.book.at(claim.index, self._pool(claim, claim.parts), gpus)

    def _pool(self, claim: Claim, parts: Sequence[tuple[int, int]]) -> int:
        if len(parts) == 1:
            return parts[0][0]
        return self.ledger.book.strictest(pool for pool, _ in parts) if parts else claim.pools[0]

    def base_gpus(self, claim: Claim, parts: Sequence[tuple[int, int]] | None = None) -> int:
        """The size that the claim is admitted at, in the pools it is in: its smallest, or the cheapest in time.

        `parts`: where it was, for a claim that has left for a moment. A running job that meets its deadline where it is
        goes elsewhere only if the joules saved pay for the restart.
        """
        smallest = claim.ladder[0] if claim.ladder else claim.gpus
        if not claim.dated or not claim.ladder or claim.job.throttled:
            return smallest
        book = self.ledger.book
        pool = self._pool(claim, claim.parts if parts is None else parts)
        kind = book.kind_of(pool)
        if kind in claim.base_gpus:
            return claim.base_gpus[kind]
        options = [book.at(claim.index, pool, gpus) for gpus in claim.ladder]
        timely = [item for item in options if item is not None and item.meets_deadline and item.within_budget]
        found = smallest
        if timely:
            cheapest = min(timely, key=lambda item: (item.joules, item.gpus))
            found = cheapest.gpus
            here = (
                claim.present_option
                if claim.present_parts and book.kind_of(claim.present_parts[0][0]) == kind
                else None
            )
            if here is not None and here.gpus in claim.ladder and here.meets_deadline and here.within_budget:
                saved = claim.remaining * (here.joules - cheapest.joules)
                if saved <= self.restart_seconds * here.joules / here.seconds:
                    found = min(here.gpus, cheapest.gpus)
        claim.base_gpus[kind] = found
        return found

    def growth(self, claim: Claim) -> Growth | None:
        """The next size up that the job wants, if any: the first that pays for its restart and fits its constraints."""
        now = claim.option
        if now is None or self._bound(claim) or claim.job.throttled:
            return None
        restart = self.restart(claim.staying)
        base = self.base_gpus(claim)
        late = now.gpus < base
        if claim.dated and now.meets_deadline and not late and claim.job.objective is not Objective.TIME:
            return None  # the cheapest that meets the deadline is what it is to have
        for gpus in claim.ladder:
            if gpus <= now.gpus or (late and gpus < base):
                continue
            larger = self.option(claim, gpus)
            if larger is None or not larger.within_budget:
                continue
            if late:
                return Growth((0, claim.order[0]), gpus, math.inf, 0.0)
            faster = now.seconds - larger.seconds
            if faster <= NO_GAIN * now.seconds:
                continue
            gain = claim.remaining * faster - restart
            joules = claim.remaining * (larger.joules - now.joules)
            if gain > 0 and self._worth(claim, now, gain, joules + restart * now.joules / now.seconds):
                # R is divided out, not left to cancel: equal jobs of other lengths must tie, not differ by rounding.
                saved = faster - restart / claim.remaining
                rank = (1, -gain) if joules <= 0 else (2, -saved / (larger.joules - now.joules))
                return Growth(rank, gpus, gain, joules)
        return None

    def takes(self, claim: Claim, former: Standing, larger: Option) -> bool:
        """Whether a claim that has left wants this larger option rather than what it had."""
        now = former.option
        if now is None:
            return False
        if larger.meets_deadline and claim.dated and not now.meets_deadline:
            return True
        if now.gpus < self.base_gpus(claim, former.parts) and larger.seconds < now.seconds:
            return True
        restart = self.restart(former.staying)
        gain = claim.remaining * (now.seconds - larger.seconds) - restart
        joules = claim.remaining * (larger.joules - now.joules) + restart * now.joules / now.seconds
        return gain > 0 and larger.within_budget and self._worth(claim, now, gain, joules)

    def gives_up(self, claim: Claim, former: Standing, smaller: Option) -> bool:
        """Whether a claim that has left is no worse off in joules with this smaller option than the step promised."""
        expected = self.ledger.book.at(claim.index, self._pool(claim, former.parts), smaller.gpus)
        return expected is not None and smaller.joules <= expected.joules * (1 + NO_GAIN)

    def _worth(self, claim: Claim, now: Option, seconds: float, joules: float) -> bool:
        """Whether the objective takes so many seconds for so many joules."""
        if claim.job.objective is Objective.TIME or (claim.dated and not now.meets_deadline):
            return True
        if claim.job.objective is Objective.ENERGY:
            return joules <= 0
        return joules <= self.joules_per_job_second * seconds

    def cut(self, claim: Claim) -> Cut | None:
        """The next size down, where the job is above the size that it is admitted at and may be resized."""
        now = claim.option
        if now is None or not claim.ladder or self._bound(claim):
            return None
        gpus = max((size for size in claim.ladder if size < now.gpus), default=0)
        if gpus < self.base_gpus(claim):
            return None
        return self.loss(claim, gpus)

    def loss(self, claim: Claim, gpus: int) -> Cut | None:
        """What going down to `gpus` costs; None where that size cannot be had."""
        now, smaller = claim.option, self.option(claim, gpus)
        if now is None or smaller is None:
            return None
        restart = self.restart(claim.staying)
        loss = max(0.0, claim.remaining * (smaller.seconds - now.seconds)) + restart
        return Cut(gpus, loss, now.gpus - gpus, claim.remaining * (now.joules - smaller.joules))

    def ends_before_a_restart(self, claim: Claim) -> bool:
        """Whether waiting for the job to end would free its GPUs sooner than resizing it."""
        return (
            (claim.staying or self.in_force)
            and claim.option is not None
            and claim.remaining * claim.option.seconds <= self.restart_seconds
        )

    def withdrawal(self, claim: Claim) -> int | None:
        """The smaller size that the job itself is better off with, restart paid; None: it is where it wants to be.

        Better off in joules: for Energy, and for a deadline that is met all the same. Always: to its smallest size when
        throttled, to what its energy budget can carry to the end, to what its bounds allow. A Balanced job gives up a size
        only to another job (a falling price alone restarts nobody).
        """
        now, job = claim.option, claim.job
        if now is None or self._bound(claim) or now.gpus <= claim.ladder[0]:
            return None
        smaller = [(gpus, option) for gpus in claim.ladder if gpus < now.gpus and (option := self.option(claim, gpus))]
        if job.throttled:
            return smaller[0][0] if smaller else None
        if now.gpus not in claim.ladder:
            return smaller[-1][0] if smaller else None  # its bounds have changed since it got this size
        if not now.within_budget:
            carried = [gpus for gpus, option in smaller if option.within_budget]
            if carried:
                return carried[-1]
            cheapest = min(smaller, key=lambda item: item[1].joules, default=None)
            return cheapest[0] if cheapest is not None and cheapest[1].joules < now.joules else None
        if job.objective is Objective.TIME or _too_late(claim):
            return None
        if job.objective is Objective.BALANCED and not claim.dated:
            return None
        restart = self.restart(claim.staying) * now.joules / now.seconds
        cost = claim.remaining * now.joules
        best: int | None = None
        for gpus, option in smaller:
            if not option.meets_deadline:
                continue
            other = claim.remaining * option.joules + restart
            if other < cost * (1 - NO_GAIN):
                best, cost = gpus, other
        return best


def _too_late(claim: Claim) -> bool:
    """Whether the job is past its deadline where it is: then every second counts, whatever its objective."""
    return claim.dated and claim.option is not None and not claim.option.meets_deadline
