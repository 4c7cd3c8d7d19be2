"""The state of a plan in the making: which job has which size in which pools, and what room and power are left.

Each job's `Candidate` is out (no GPUs), staying (the nodes and size it has), or floating (a size in some pools, nodes to
be chosen by the placement). Entering and leaving keep every count exact, so a step can be tried and taken back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from flyball_planner.ledger.caps import WATT_TOLERANCE, Accounting, CapAccount
from flyball_planner.ledger.options import ADMISSION, BASE, DRAW, LIMIT, LOWEST, Option, OptionBook
from flyball_planner.ledger.pools import Pool, level_of
from flyball_planner.ledger.slots import Slots
from flyball_planner.snapshot import JobState

Parts = tuple[tuple[int, int], ...]  # (pool, GPUs) of what a job has, or would have
# Of each cap (by index) over a job: the job's watts above idle at LOWEST, ADMISSION and BASE.
Contribution = tuple[tuple[int, tuple[float, float, float]], ...]
NOTHING = (0.0, 0.0, 0.0)


@dataclass(slots=True, eq=False)
class Candidate:
    """One job in the making of a plan.

    `remaining` is R, the iterations left (guessed where the job does not say). `present` is where it runs, as (pool,
    place, GPUs). `adjustable`: its size may change; `movable`: it may migrate at its size.
    """

    index: int
    job: JobState
    ladder: tuple[int, ...]
    pools: tuple[int, ...]
    remaining: float = 0.0
    present: tuple[tuple[int, int, int], ...] = ()
    present_parts: Parts = ()
    present_option: Option | None = None
    adjustable: bool = True
    movable: bool = True
    clock_ceiling: float = math.inf  # while it stays: the last clock set on a node that cannot be commanded, MHz
    displaced: bool = False  # it ran, and can no longer where it was
    # What the plan gives it so far.
    option: Option | None = None
    parts: Parts = ()
    last_parts: Parts = ()  # before it last left
    staying: bool = False
    contribution: Contribution = field(default=())
    preempted_by: Candidate | None = None
    unplaceable: bool = False  # it fits by count, and no arrangement was found: not to be tried again in this plan
    base_gpus: dict[int, int] = field(default_factory=dict)  # by kind of pool, once asked for (Stepper.base_gpus)

    @property
    def gpus(self) -> int:
        return 0 if self.option is None else self.option.gpus

    @property
    def dated(self) -> bool:
        """Whether the job has a deadline that can be reckoned with: one is only as good as the knowledge of the end."""
        return self.job.seconds_to_deadline is not None and self.job.remaining_iterations is not None

    @property
    def precedence(self) -> tuple[bool, int, float, str, str]:
        """Who keeps what it has, first of all first: the rigid, then by priority."""
        return (not self.job.rigid, -self.job.priority, *self.order)

    @property
    def order(self) -> tuple[float, str, str]:
        return (self.job.submit_time_seconds, self.job.name, self.job.uid)


@dataclass(frozen=True, slots=True)
class FormerState:
    """What a candidate had before a step, to go back to."""

    option: Option | None
    parts: Parts
    staying: bool


class Opening(NamedTuple):
    """An option that there is room and power for, and the pools in which."""

    option: Option
    parts: Parts


class Shortage(NamedTuple):
    """A cap (by index) that has too little for a step: the watts that the step takes, and those that are there."""

    cap: int
    needs_watts: float
    spare_watts: float


def base_over_admission_speed(option: Option) -> float:
    """What the base clock gains over the admission clock, relative to the speed at the latter."""
    return option.admission_seconds / option.seconds - 1.0


class PlanState:
    """What a plan has given out so far, as counts of GPUs and watts: a test is a few additions in a cluster of any size."""

    def __init__(self, pools: Sequence[Pool], accounts: Sequence[CapAccount], book: OptionBook) -> None:
        self.pools = pools
        self.accounts = accounts
        self.book = book
        self.slots = Slots(pools)
        self._bits: dict[tuple[int, ...], int] = {}  # of sets of pools
        self._bits_by_candidate: dict[int, int] = {}
        # Headroom of each cap with the placed candidates at their lowest, admission and base clocks.
        self.slack = [[account.headroom_watts for account in accounts] for _ in (LOWEST, ADMISSION, BASE)]
        # Of each cap: the sum of `base_over_admission_speed` over its candidates.
        self.base_speed_gain = [0.0] * len(accounts)
        self._counting: list[list[tuple[int, int, float]]] = []
        for pool in pools:
            counting = []
            for cap in pool.cap_indices:
                by_limits = accounts[cap].accounting is Accounting.LIMITS
                idle = pool.idle_limit_watts if by_limits else pool.idle_draw_watts
                counting.append((cap, LIMIT if by_limits else DRAW, idle))
            self._counting.append(counting)

    def contribution(self, option: Option, parts: Sequence[tuple[int, int]]) -> Contribution:
        """What a job adds to each cap above its GPUs' idle watts, at the three clocks."""
        lowest, admission, base = option.watts
        if len(parts) == 1:
            pool, gpus = parts[0]
            return tuple(
                (cap, (gpus * (lowest[kind] - idle), gpus * (admission[kind] - idle), gpus * (base[kind] - idle)))
                for cap, kind, idle in self._counting[pool]
            )
        sums: dict[int, list[float]] = {}
        for pool, gpus in parts:
            for cap, kind, idle in self._counting[pool]:
                total = sums.setdefault(cap, [0.0, 0.0, 0.0])
                total[LOWEST] += gpus * (lowest[kind] - idle)
                total[ADMISSION] += gpus * (admission[kind] - idle)
                total[BASE] += gpus * (base[kind] - idle)
        return tuple((cap, (total[0], total[1], total[2])) for cap, total in sorted(sums.items()))

    def stay(self, candidate: Candidate) -> None:
        """The candidate keeps the nodes and the size that it has."""
        assert candidate.present_option is not None  # noqa: S101 - only a candidate that runs can stay
        for pool, place, gpus in candidate.present:
            self.slots.hold(pool, place, gpus, candidate.movable)
        self._enter(candidate, candidate.present_option, candidate.present_parts, staying=True)

    def float_at(self, candidate: Candidate, option: Option, parts: Parts) -> None:
        """The candidate takes a size in some pools; which nodes is the placement's choice."""
        for pool, gpus in parts:
            level, cells = self.cells(pool, gpus, option)
            self.slots.demand(pool, level, cells)
        self._enter(candidate, option, parts, staying=False)

    def leave(self, candidate: Candidate) -> FormerState:
        """The candidate gives back everything; the result is what it had, for `go_back`."""
        former = FormerState(candidate.option, candidate.parts, candidate.staying)
        if candidate.option is None:
            return former
        candidate.last_parts = candidate.parts
        if candidate.staying:
            for pool, place, gpus in candidate.present:
                self.slots.release(pool, place, gpus, candidate.movable)
        else:
            for pool, gpus in candidate.parts:
                level, cells = self.cells(pool, gpus, candidate.option)
                self.slots.demand(pool, level, -cells)
        stretch = base_over_admission_speed(candidate.option)
        for cap, watts in candidate.contribution:
            self.base_speed_gain[cap] -= stretch
            for clock in (LOWEST, ADMISSION, BASE):
                self.slack[clock][cap] += watts[clock]
        candidate.option, candidate.parts, candidate.staying, candidate.contribution = None, (), False, ()
        return former

    def go_back(self, candidate: Candidate, former: FormerState) -> None:
        """Undo: the candidate leaves what it has now and takes what it had."""
        self.leave(candidate)
        if former.option is None:
            return
        if former.staying:
            self.stay(candidate)
        else:
            self.float_at(candidate, former.option, former.parts)

    def what_if(self, candidate: Candidate, gpus: int) -> tuple[Shortage, ...]:
        """The caps that would be short at base clocks if a candidate grew to a size; none where it is GPUs that lack."""
        slack = [list(watts) for watts in self.slack]
        gains = list(self.base_speed_gain)
        before = dict(candidate.contribution)
        former = self.leave(candidate)
        shortages = []
        for pool in self.unlike(candidate):
            option = self.book.at(candidate.index, pool, gpus)
            if option is None or not self.slots.fits(pool, *self.cells(pool, gpus, option), migrate=False):
                continue
            for cap, watts in self.contribution(option, ((pool, gpus),)):
                had = before.get(cap, NOTHING)[BASE]
                if watts[BASE] > max(self.slack[BASE][cap], had, 0.0):
                    spare = max(0.0, self.slack[BASE][cap] - had)
                    shortages.append(Shortage(cap, watts[BASE] - had, spare))
        self.go_back(candidate, former)
        self.slack, self.base_speed_gain = slack, gains  # to the last digit: a question changes no later answer
        return tuple(shortages)

    def can_stay(self, candidate: Candidate, clock: int, previous: Contribution) -> bool:
        """Whether a candidate that has left could have its own nodes back, with room for all that floats, and power."""
        if candidate.present_option is None or candidate.displaced or not candidate.present:
            return False
        if not self.affords(self.contribution(candidate.present_option, candidate.present_parts), clock, previous):
            return False
        if any(self.slots.free[pool][place] < gpus for pool, place, gpus in candidate.present):
            return False
        for pool, place, gpus in candidate.present:
            self.slots.hold(pool, place, gpus, candidate.movable)
        fits = all(min(self.slots.free_room[pool]) >= 0 for pool, _, _ in candidate.present)
        for pool, place, gpus in candidate.present:
            self.slots.release(pool, place, gpus, candidate.movable)
        return fits

    def can_float(self, option: Option, parts: Sequence[tuple[int, int]], clock: int) -> bool:
        """Whether there is room, nobody moved, and power for an option in exactly these pools."""
        return all(
            self.slots.fits(pool, *self.cells(pool, gpus, option), migrate=False) for pool, gpus in parts
        ) and self.affords(self.contribution(option, parts), clock)

    def may_hold(self, candidate: Candidate, gpus: int) -> bool:
        """A quick no: False where the GPUs that are free, and the candidate's own, do not add up to a size."""
        return candidate.gpus + self.slots.free_gpus(self._bits_of(candidate)) >= gpus

    def unlike(self, candidate: Candidate) -> list[int]:
        """The pools that the candidate may go to, ascending, without those that are in all like one before them."""
        return self.slots.first_of_alike(self._bits_of(candidate))

    def _bits_of(self, candidate: Candidate) -> int:
        """A bit for each pool that the candidate may go to. Hundreds of candidates have the same ones."""
        known = self._bits_by_candidate.get(candidate.index)
        if known is None:
            known = self._bits.get(candidate.pools)
            if known is None:
                known = self._bits[candidate.pools] = _bits(candidate.pools)
            self._bits_by_candidate[candidate.index] = known
        return known

    def affords(self, contribution: Contribution, clock: int, previous: Contribution = ()) -> bool:
        """Whether every cap bears the contribution at `clock`, and at the lowest.

        Where a cap is overdrawn at `clock` already (it will be held by lower clocks), what adds nothing to `previous`, the
        candidate's own watts before this step, is still borne.
        """
        before = dict(previous)
        for cap, watts in contribution:
            had = before.get(cap, NOTHING)
            for level in (clock, LOWEST):
                if watts[level] > max(self.slack[level][cap], had[level], 0.0) + WATT_TOLERANCE:
                    return False
        return True

    def cap_headroom_share(self, cap: int) -> float:
        """How far a cap lets its jobs rise from their admission clocks (0) to their base clocks (1)."""
        admission, base = self.slack[ADMISSION][cap], self.slack[BASE][cap]
        if base >= -WATT_TOLERANCE:
            return 1.0
        return max(0.0, admission / (admission - base)) if admission > 0 else 0.0

    def find(
        self,
        candidate: Candidate,
        gpus: int,
        clock: int,
        migrate: bool,
        previous: Contribution = (),
        pools: Sequence[int] | None = None,
    ) -> Opening | None:
        """Pools for a candidate that has left, at a size: the best single pool, or several of one group for whole nodes.

        Preferred, in this order: no migration of others, the pools that the job was in, the shortest iteration, headroom.
        `pools`: where to look; None: wherever the job may go.
        """
        bits = self._bits_of(candidate) if pools is None else _bits(pools)
        pools = candidate.pools if pools is None else pools
        home = {pool for pool, _ in candidate.last_parts}
        at_home = _bits(home)
        found: list[tuple[bool, bool, float, float, int, Option]] = []
        spread = False
        options: dict[int, tuple[Option, int, int] | None] = {}  # by kind of pool: the option, and the cells it takes
        # Of those that are alike, the first one at home and the first elsewhere come before all others.
        for pool in (*self.slots.first_of_alike(bits & at_home), *self.slots.first_of_alike(bits & ~at_home)):
            kind = self.book.kind_of(pool)
            if kind not in options:
                option = self.book.at(candidate.index, pool, gpus)
                options[kind] = None if option is None else (option, *self.cells(pool, gpus, option))
            of_kind = options[kind]
            if of_kind is None:
                continue
            option, level, cells = of_kind
            spread = spread or option.nodes > 1
            in_place = self.slots.fits(pool, level, cells, migrate=False)
            if in_place or (migrate and self.slots.fits(pool, level, cells, migrate=True)):
                left = min((self.slack[clock][cap] for cap in self.pools[pool].cap_indices), default=0.0)
                found.append((not in_place, pool not in home, option.seconds, -left, pool, option))
        for *_, pool, option in sorted(found, key=lambda item: item[:5]):
            parts = ((pool, gpus),)
            if self.affords(self.contribution(option, parts), clock, previous):
                return Opening(option, parts)
        if spread and len(pools) > 1:
            return self._find_spanning(candidate, gpus, clock, migrate, previous, pools)
        return None

    def _find_spanning(
        self, candidate: Candidate, gpus: int, clock: int, migrate: bool, previous: Contribution, pools: Sequence[int]
    ) -> Opening | None:
        """Whole nodes from several pools of one group, most room first, as far as each one's caps bear it."""
        groups: dict[tuple[int, bool], list[int]] = {}
        for pool in pools:
            groups.setdefault((self.pools[pool].group, self.book.at_min_limits(pool)), []).append(pool)
        for members in groups.values():
            option = self.book.at(candidate.index, self.book.strictest(members), gpus)
            if option is None or option.nodes == 1:
                continue
            per_node = gpus // option.nodes
            room = {pool: self._whole_nodes(pool, migrate) for pool in members}
            taken: dict[int, int] = {}
            wanted = option.nodes
            for pool in sorted(members, key=lambda pool: (-room[pool], pool)):
                while wanted and taken.get(pool, 0) < room[pool]:
                    taken[pool] = taken.get(pool, 0) + 1
                    parts = tuple((index, nodes * per_node) for index, nodes in sorted(taken.items()))
                    if not self.affords(self.contribution(option, parts), clock, previous):
                        taken[pool] -= 1
                        break
                    wanted -= 1
            if wanted:
                continue
            parts = tuple((pool, nodes * per_node) for pool, nodes in sorted(taken.items()) if nodes)
            option = self.book.at(candidate.index, self.book.strictest([pool for pool, _ in parts]), gpus)
            if option is not None and self.affords(self.contribution(option, parts), clock, previous):
                return Opening(option, parts)
        return None

    def _whole_nodes(self, pool: int, migrate: bool) -> int:
        level = self.pools[pool].levels
        return self.slots.most_cells(pool, level, migrate)

    def cells(self, pool: int, gpus: int, option: Option) -> tuple[int, int]:
        """(level, number) of the buddy cells that the GPUs of an option in one pool take: whole ones on several nodes."""
        if option.nodes > 1:
            return self.pools[pool].levels, gpus * option.nodes // option.gpus
        return level_of(gpus), 1

    def _enter(self, candidate: Candidate, option: Option, parts: Parts, staying: bool) -> None:
        candidate.option, candidate.parts, candidate.staying = option, parts, staying
        candidate.contribution = self.contribution(option, parts)
        stretch = base_over_admission_speed(option)
        for cap, watts in candidate.contribution:
            self.base_speed_gain[cap] += stretch
            for clock in (LOWEST, ADMISSION, BASE):
                self.slack[clock][cap] -= watts[clock]


def _bits(pools: Iterable[int]) -> int:
    """A bit for each of the pools."""
    found = 0
    for pool in pools:
        found |= 1 << pool
    return found
