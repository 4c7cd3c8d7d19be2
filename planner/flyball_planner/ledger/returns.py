"""What a change of one job's size would gain or lose, and whether the job wants it: PowerFlow's marginal returns.

Equation 20 with the two normalisers and R cancelled: seconds saved an iteration for each joule more. Steps that gain time
at no energy come first. A job that runs pays for its restart out of the time that it gains.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from flyball_planner.ledger.options import Option
from flyball_planner.ledger.state import Candidate, FormerState, Parts, PlanState
from flyball_planner.snapshot import Objective

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


# Where a candidate is, as far as its steps depend on it: its index, its option's identity (the book keeps it), the pools it
# is in, and whether a change costs it a restart.
_Where = tuple[int, int, Parts, bool]


@dataclass(frozen=True, slots=True)
class _Found:
    """The steps found so far, by where the candidate was: most are where they were in the round before."""

    growths: dict[_Where, Growth | None] = field(default_factory=dict)
    cuts: dict[_Where, Cut | None] = field(default_factory=dict)
    withdrawals: dict[_Where, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stepper:
    """Marginal returns at the going price and cost of a restart.

    `in_force`: weigh every change as if the plan so far were in force, so that each would cost a restart of its own.
    """

    state: PlanState
    restart_seconds: float
    joules_per_job_second: float
    in_force: bool = False
    _found: _Found = field(default_factory=_Found, repr=False, compare=False)

    def weighing(self, *, in_force: bool) -> Stepper:
        """The same, with or without the plan in force; what either finds serves both."""
        return replace(self, in_force=in_force)

    def _where(self, candidate: Candidate) -> _Where:
        return candidate.index, id(candidate.option), candidate.parts, candidate.staying or self.in_force

    def restart(self, staying: bool) -> float:
        """Seconds that a change costs a candidate; one that is being placed anew in this plan pays them anyhow."""
        return self.restart_seconds if staying or self.in_force else 0.0

    def _bound(self, candidate: Candidate) -> bool:
        return (candidate.staying or self.in_force) and not candidate.adjustable

    def option(self, candidate: Candidate, gpus: int) -> Option | None:
        """The candidate at another size, as in the pools it is in now (or, while it waits, in the first it could be in)."""
        return self.state.book.at(candidate.index, self._pool(candidate, candidate.parts), gpus)

    def _pool(self, candidate: Candidate, parts: Sequence[tuple[int, int]]) -> int:
        return self.state.book.strictest([pool for pool, _ in parts]) if parts else candidate.pools[0]

    def base_gpus(self, candidate: Candidate, parts: Sequence[tuple[int, int]] | None = None) -> int:
        """The size that the candidate is admitted at, in the pools it is in: its smallest, or the cheapest in time.

        `parts`: where it was, for a candidate that has left for a moment. A running job that meets its deadline where it is
        goes elsewhere only if the joules saved pay for the restart.
        """
        smallest = candidate.ladder[0] if candidate.ladder else candidate.gpus
        if not candidate.dated or not candidate.ladder or candidate.job.throttled:
            return smallest
        book = self.state.book
        pool = self._pool(candidate, candidate.parts if parts is None else parts)
        kind = book.kind_of(pool)
        if kind in candidate.base_gpus:
            return candidate.base_gpus[kind]
        options = [book.at(candidate.index, pool, gpus) for gpus in candidate.ladder]
        timely = [item for item in options if item is not None and item.meets_deadline and item.within_budget]
        found = smallest
        if timely:
            cheapest = min(timely, key=lambda item: (item.joules, item.gpus))
            found = cheapest.gpus
            here = (
                candidate.present_option
                if candidate.present_parts and book.kind_of(candidate.present_parts[0][0]) == kind
                else None
            )
            if here is not None and here.gpus in candidate.ladder and here.meets_deadline and here.within_budget:
                saved = candidate.remaining * (here.joules - cheapest.joules)
                if saved <= self.restart_seconds * here.joules / here.seconds:
                    found = min(here.gpus, cheapest.gpus)
        candidate.base_gpus[kind] = found
        return found

    def growth(self, candidate: Candidate) -> Growth | None:
        """The next size up that the job wants, if any: the first that pays for its restart and fits its constraints."""
        where, found = self._where(candidate), self._found.growths
        if where not in found:
            found[where] = self._growth(candidate)
        return found[where]

    def _growth(self, candidate: Candidate) -> Growth | None:
        now = candidate.option
        if now is None or self._bound(candidate) or candidate.job.throttled:
            return None
        restart = self.restart(candidate.staying)
        base = self.base_gpus(candidate)
        late = now.gpus < base
        if candidate.dated and now.meets_deadline and not late and candidate.job.objective is not Objective.TIME:
            return None  # the cheapest that meets the deadline is what it is to have
        at, pool = self.state.book.at, self._pool(candidate, candidate.parts)
        for gpus in candidate.ladder:
            if gpus <= now.gpus or (late and gpus < base):
                continue
            larger = at(candidate.index, pool, gpus)
            if larger is None or not larger.within_budget:
                continue
            if late:
                return Growth((0, candidate.order[0]), gpus, math.inf, 0.0)
            faster = now.seconds - larger.seconds
            if faster <= NO_GAIN * now.seconds:
                continue
            gain = candidate.remaining * faster - restart
            joules = candidate.remaining * (larger.joules - now.joules)
            if gain > 0 and self._worth(candidate, now, gain, joules + restart * now.joules / now.seconds):
                # R is divided out, not left to cancel: equal jobs of other lengths must tie, not differ by rounding.
                saved = faster - restart / candidate.remaining
                rank = (1, -gain) if joules <= 0 else (2, -saved / (larger.joules - now.joules))
                return Growth(rank, gpus, gain, joules)
        return None

    def takes(self, candidate: Candidate, former: FormerState, larger: Option) -> bool:
        """Whether a candidate that has left wants this larger option rather than what it had."""
        now = former.option
        if now is None:
            return False
        if larger.meets_deadline and candidate.dated and not now.meets_deadline:
            return True
        if now.gpus < self.base_gpus(candidate, former.parts) and larger.seconds < now.seconds:
            return True
        restart = self.restart(former.staying)
        gain = candidate.remaining * (now.seconds - larger.seconds) - restart
        joules = candidate.remaining * (larger.joules - now.joules) + restart * now.joules / now.seconds
        return gain > 0 and larger.within_budget and self._worth(candidate, now, gain, joules)

    def gives_up(self, candidate: Candidate, former: FormerState, smaller: Option) -> bool:
        """Whether a candidate that has left is no worse off in joules with this smaller option than the step promised."""
        expected = self.state.book.at(candidate.index, self._pool(candidate, former.parts), smaller.gpus)
        return expected is not None and smaller.joules <= expected.joules * (1 + NO_GAIN)

    def _worth(self, candidate: Candidate, now: Option, seconds: float, joules: float) -> bool:
        """Whether the objective takes so many seconds for so many joules."""
        if candidate.job.objective is Objective.TIME or (candidate.dated and not now.meets_deadline):
            return True
        if candidate.job.objective is Objective.ENERGY:
            return joules <= 0
        return joules <= self.joules_per_job_second * seconds

    def cut(self, candidate: Candidate) -> Cut | None:
        """The next size down, where the job is above the size that it is admitted at and may be resized."""
        where, found = self._where(candidate), self._found.cuts
        if where not in found:
            found[where] = self._cut(candidate)
        return found[where]

    def _cut(self, candidate: Candidate) -> Cut | None:
        now = candidate.option
        if now is None or not candidate.ladder or self._bound(candidate):
            return None
        rung = bisect_left(candidate.ladder, now.gpus)
        if rung == 0 or candidate.ladder[rung - 1] < self.base_gpus(candidate):
            return None
        return self.loss(candidate, candidate.ladder[rung - 1])

    def loss(self, candidate: Candidate, gpus: int) -> Cut | None:
        """What going down to `gpus` costs; None where that size cannot be had."""
        now, smaller = candidate.option, self.option(candidate, gpus)
        if now is None or smaller is None:
            return None
        restart = self.restart(candidate.staying)
        loss = max(0.0, candidate.remaining * (smaller.seconds - now.seconds)) + restart
        return Cut(gpus, loss, now.gpus - gpus, candidate.remaining * (now.joules - smaller.joules))

    def ends_before_a_restart(self, candidate: Candidate) -> bool:
        """Whether waiting for the job to end would free its GPUs sooner than resizing it."""
        return (
            (candidate.staying or self.in_force)
            and candidate.option is not None
            and candidate.remaining * candidate.option.seconds <= self.restart_seconds
        )

    def withdrawal(self, candidate: Candidate) -> int | None:
        """The smaller size that the job itself is better off with, restart paid; None: it is where it wants to be.

        Better off in joules: for Energy, and for a deadline that is met all the same. Always: to its smallest size when
        throttled, to what its energy budget can carry to the end, to what its bounds allow. A Balanced job gives up a size
        only to another job (a falling price alone restarts nobody).
        """
        where, found = self._where(candidate), self._found.withdrawals
        if where not in found:
            found[where] = self._withdrawal(candidate)
        return found[where]

    def _withdrawal(self, candidate: Candidate) -> int | None:
        now, job = candidate.option, candidate.job
        if now is None or not candidate.ladder or self._bound(candidate) or now.gpus <= candidate.ladder[0]:
            return None
        as_it_wants = job.objective is Objective.TIME or _too_late(candidate)
        as_it_wants |= job.objective is Objective.BALANCED and not candidate.dated
        if as_it_wants and now.within_budget and now.gpus in candidate.ladder and not job.throttled:
            return None
        at, pool = self.state.book.at, self._pool(candidate, candidate.parts)
        smaller = [
            (gpus, option)
            for gpus in candidate.ladder
            if gpus < now.gpus and (option := at(candidate.index, pool, gpus))
        ]
        if job.throttled:
            return smaller[0][0] if smaller else None
        if now.gpus not in candidate.ladder:
            return smaller[-1][0] if smaller else None  # its bounds have changed since it got this size
        if not now.within_budget:
            carried = [gpus for gpus, option in smaller if option.within_budget]
            if carried:
                return carried[-1]
            cheapest = min(smaller, key=lambda item: item[1].joules, default=None)
            return cheapest[0] if cheapest is not None and cheapest[1].joules < now.joules else None
        restart = self.restart(candidate.staying) * now.joules / now.seconds
        cost = candidate.remaining * now.joules
        best: int | None = None
        for gpus, option in smaller:
            if not option.meets_deadline:
                continue
            other = candidate.remaining * option.joules + restart
            if other < cost * (1 - NO_GAIN):
                best, cost = gpus, other
        return best


def _too_late(candidate: Candidate) -> bool:
    """Whether the job is past its deadline where it is: then every second counts, whatever its objective."""
    return candidate.dated and candidate.option is not None and not candidate.option.meets_deadline
