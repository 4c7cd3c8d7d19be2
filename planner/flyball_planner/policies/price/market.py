"""The market of the policy `price`: at which price of a GPU-second the jobs want as many GPUs as there are.

An iteration of a job at n GPUs and clock f takes T(n, f) seconds and E(n, f) joules. Beside these count the watts of its
hosts where they could be powered off instead, and not what its GPUs would draw unused as well: P*n*T, P being a GPU's
share of its host less the watts that are sunk. GPU-seconds have a price m now, and a lower one m' on average over the time
that the job will still run: half of today's price is taken to stay, half to go as the backlog of work is done. So

    v     = min over (n, f) of (1 + m'*n) * T + l * (E + P*n*T)      what an iteration is worth
    (n, f) = argmax of (v - l * (E + P*n*T)) / T - m*n               what the job takes at today's price

With m' = m the two are one: the job runs where an iteration costs least. A job that lasts longer than the backlog waits
with growing until the GPUs are cheap, which lets the short ones grow first; that is what an order by remaining time does
in AFS, and what heSRPT proves best where nobody arrives, but here it fades as the backlog does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from flyball_planner.policies.price.nodes import fill_nodes
from flyball_planner.policies.view import Array, ClusterView, JobView, Performance

BISECTIONS = 12
FIRST_GPU_PRICE, HIGHEST_GPU_PRICE = 0.01, 1e6  # job-seconds for a GPU-second: from where to where it is looked for
FIRST_JOULE_PRICE, HIGHEST_JOULE_PRICE, CAP_BISECTIONS = 1e-4, 1e3, 6
ASKED_AT_ONCE = 96  # jobs times prices: of so few, a question takes as long as of one
LASTING_SHARE = 0.5  # of today's price of a GPU-second, that outlasts the backlog
NEVER = 1e30  # seconds and joules of what is barred
Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Demand:
    """What the jobs want at one pair of prices: size positions, GPUs in all, and what each size would cost each job."""

    rows: Indices
    gpus: float
    costs: Array  # (sizes, jobs)

    def of(self, which: Indices, sizes: Array) -> _Demand:
        """What some of the jobs want, whose sizes these are."""
        rows = self.rows[which]
        return _Demand(rows, float(sizes[np.arange(len(which)), rows].sum()), self.costs[:, which])


class _Dear(NamedTuple):
    """Priced joules of an iteration and of a second of it, (clocks, sizes, jobs), infinite at what is barred.

    `most` is what the thriftiest clock of a job's dearest size costs (jobs,), `idle` a second of a size's GPUs (sizes,
    jobs). At clocks before `first` everybody is slower than at some other one and takes no fewer joules: nobody chooses
    them.
    """

    joule_price: float
    joules: Array
    rates: Array
    most: Array
    idle: Array
    first: int


class Market:
    """Who wants what at which prices. Arrays are (jobs, sizes[, clocks]); sizes that a job lacks never win."""

    def __init__(self, view: ClusterView, jobs: Sequence[JobView]) -> None:
        self.view = view
        width = max(len(job.performance.sizes) for job in jobs)
        tables = {id(job.performance): job.performance for job in jobs}
        slot = {key: index for index, key in enumerate(tables)}
        pick = np.array([slot[id(job.performance)] for job in jobs])
        padded = [_padded(table, width) for table in tables.values()]
        sizes = np.array([table.sizes for table in padded])
        # (clocks, sizes, kinds), and with jobs last: the least over clocks and sizes is then taken of whole rows of jobs.
        seconds = np.stack([table.seconds for table in padded], axis=2)
        self._kind_joules = np.stack([table.joules for table in padded], axis=2)
        dear_joules = self._kind_joules + view.using_gpu_watts * sizes.T * seconds
        self._pick, self._kinds = pick, (seconds, dear_joules)
        self.sizes = sizes[pick]
        self._jobs_sizes = np.ascontiguousarray(self.sizes.T)
        self._clock_seconds, self._clock_joules = seconds.take(pick, axis=2), dear_joules.take(pick, axis=2)
        self.seconds, self.dear_joules = self._clock_seconds.T, self._clock_joules.T
        self.remaining = np.array([max(job.remaining_iterations, 1e-9) for job in jobs])
        current = np.array([job.performance.position[job.gpus] if job.gpus else -1 for job in jobs])
        self.everyone = np.arange(len(jobs))
        elsewhere = np.ones(self.sizes.shape, dtype=bool)
        elsewhere[self.everyone, current] = current < 0
        fixed = np.array([bool(job.gpus) and not job.resizable for job in jobs])
        restart = np.array([job.restart_seconds if job.gpus else 0.0 for job in jobs])
        self.restart_seconds = np.where(elsewhere, restart[:, None], 0.0)
        self._restart_seconds = np.ascontiguousarray(self.restart_seconds.T)
        lacking = np.arange(width)[None, :] >= np.array([len(job.performance.sizes) for job in jobs])[:, None]
        self.barred = lacking | (fixed[:, None] & elsewhere)
        self.lasting_seconds = self.remaining * seconds.min(axis=0)[np.maximum(current, 0), pick]
        least_gpu_seconds = np.array([table.least_gpu_seconds for table in padded])[pick]
        self.backlog_seconds = float(self.remaining @ least_gpu_seconds) / view.gpus
        self._expected_share = self._share_of_price_expected()
        self._promised = self._bar_broken_promises(jobs)
        self._clock_rates = 1.0 / self._clock_seconds
        self._dear_at: _Dear | None = None

    @cached_property
    def joules(self) -> Array:
        """What an iteration takes, hosts left out; only caps and promises count these."""
        return self._kind_joules.take(self._pick, axis=2).T

    def _part(self, which: Indices) -> Market:
        """The market of some of the jobs, for what is asked of it at other prices: `_demands` and `_fill`."""
        part = copy(self)
        part.sizes, part._jobs_sizes = self.sizes[which], self._jobs_sizes[:, which]
        part.everyone = np.arange(len(which))
        part._restart_seconds, part.barred = self._restart_seconds[:, which], self.barred[which]
        part.lasting_seconds, part._expected_share = self.lasting_seconds[which], self._expected_share[which]
        part._clock_seconds, part._clock_rates = (
            table.take(which, axis=2) for table in (self._clock_seconds, self._clock_rates)
        )
        dear = self._dear_at
        if dear is not None:
            part._dear_at = dear._replace(
                joules=dear.joules.take(which, axis=2),
                rates=dear.rates.take(which, axis=2),
                most=dear.most[which],
                idle=dear.idle[:, which],
            )
        return part

    def _bar_broken_promises(self, jobs: Sequence[JobView]) -> bool:
        """Leave out the clocks and sizes with which a job would miss its deadline or spend more than its budget; whether
        there are any promises.

        Where none is left, a job that is late gets the fastest there is, and one that is short of joules the thriftiest.
        """
        promised = False
        for index, job in enumerate(jobs):
            if job.deadline_seconds is None and job.remaining_energy_joules is None:
                continue
            promised = True
            seconds, joules = self.seconds[index], self.joules[index]
            allowed = np.repeat(~self.barred[index][:, None], seconds.shape[1], axis=1)
            for limit, need in (
                (job.remaining_energy_joules, job.remaining_iterations * joules),
                (
                    None if job.deadline_seconds is None else job.deadline_seconds - self.view.now_seconds,
                    job.remaining_iterations * seconds + self.restart_seconds[index][:, None],
                ),
            ):
                if limit is None:
                    continue
                keeps = allowed & (need <= limit)
                if not keeps.any():
                    keeps = need == np.where(allowed, need, np.inf).min()
                allowed = keeps & allowed
            self.barred[index] |= ~allowed.any(axis=1)
            self.seconds[index][~allowed] = NEVER
            self.dear_joules[index][~allowed] = NEVER
        return promised

    def clear(self, joule_price: float) -> tuple[Indices, Indices]:
        """(size positions, clock positions) at the price of a GPU-second at which the GPUs suffice."""
        wanting, fitting = self._demands((0.0, FIRST_GPU_PRICE), joule_price)
        if wanting.gpus <= self.view.gpus:
            return fill_nodes(self, wanting.rows, self._clocks(wanting.rows, 0.0, joule_price), joule_price)
        low, high = 0.0, FIRST_GPU_PRICE
        while fitting.gpus > self.view.gpus and high < HIGHEST_GPU_PRICE:
            low, wanting = high, fitting
            high *= 4.0
            (fitting,) = self._demands((high,), joule_price)
        if fitting.gpus > self.view.gpus:
            rows = self._squeeze(fitting)
            return rows, self._clocks(rows, high, joule_price)
        rows, high = self._between(low, high, joule_price, wanting, fitting)
        return rows, self._clocks(rows, high, joule_price)

    def _between(
        self, low: float, high: float, joule_price: float, wanting: _Demand, fitting: _Demand
    ) -> tuple[Indices, float]:
        """Size positions, and the least price found at which the GPUs suffice, between one of which there is too much
        wanted and one at which they do.

        Who takes the same at both takes it in between: only the others are asked again, and they soon are few. Of few all
        prices are asked at once that the next bisections may come to.
        """
        rows = fitting.rows.copy()
        part, members, settled = self, self.everyone, 0.0
        left = BISECTIONS
        while left > 0:
            moving = np.flatnonzero(wanting.rows != fitting.rows)
            if 2 * len(moving) <= len(part.everyone):
                staying = np.delete(part.everyone, moving)
                settled += float(part.sizes[staying, fitting.rows[staying]].sum())
                rows[members] = fitting.rows
                members, part = members[moving], part._part(moving)
                wanting, fitting = wanting.of(moving, part.sizes), fitting.of(moving, part.sizes)
            steps = min(left, max(1, (ASKED_AT_ONCE // len(members) + 1).bit_length() - 1))
            left -= steps
            prices = _midpoints(low, high, steps)
            answers = part._demands(prices, joule_price)
            step = 0
            for _ in range(steps):
                found = answers[step]
                if settled + found.gpus <= self.view.gpus:
                    high, fitting = prices[step], found
                    step = 2 * step + 1
                else:
                    low, wanting = prices[step], found
                    step = 2 * step + 2
        rows[members] = part._fill(fitting, wanting, self.view.gpus - settled - fitting.gpus)
        return rows, high

    def clear_under(self, joule_price: float, limit_watts: float) -> tuple[Indices, Indices]:
        """The same at the lowest price of a joule, from `joule_price` up, at which the watts fit."""
        low, high = joule_price, max(2.0 * joule_price, FIRST_JOULE_PRICE)
        rows, clocks = self.clear(high)
        while self.watts(rows, clocks) > limit_watts and high < HIGHEST_JOULE_PRICE:
            low, high = high, high * 4.0
            rows, clocks = self.clear(high)
        for _ in range(CAP_BISECTIONS):
            middle = (low + high) / 2 if low == 0 else math.sqrt(low * high)
            found = self.clear(middle)
            if self.watts(*found) > limit_watts:
                low = middle
            else:
                high, (rows, clocks) = middle, found
        return rows, clocks

    def watts(self, rows: Indices, clocks: Indices) -> float:
        """What a cap counts: the draw with its guard, and the GPUs that stay idle."""
        draw = float((self.joules[self.everyone, rows, clocks] / self.seconds[self.everyone, rows, clocks]).sum())
        idle = self.view.gpus - float(self.sizes[self.everyone, rows].sum())
        return draw * (1.0 + self.view.guard_fraction) + idle * self.view.idle_gpu_watts

    def _demands(self, gpu_prices: Sequence[float], joule_price: float) -> list[_Demand]:
        """What everybody takes at each of these prices of a GPU-second.

        `costs` is what a size would cost over the job's life, up to a constant. Arrays are (clocks, prices, sizes, jobs).
        """
        dear = self._dear(joule_price)
        prices = np.array(gpu_prices)[:, None]
        worth = self._worth(prices, dear)
        # Where a size costs more joules than an iteration is worth, the slowest clock loses least a second.
        beyond = bool((worth < dear.most).any())
        clocks = slice(0 if beyond else dear.first, None)
        paid = 1.0 + prices[:, :, None] * self._jobs_sizes
        losses = worth[:, None] * self._clock_rates[clocks, None]
        np.subtract(dear.rates[clocks, None], losses, out=losses)  # in place: of many jobs, fresh memory costs more
        costs = self.lasting_seconds * (paid + losses.min(axis=0))
        costs += self._restart_seconds * (paid + dear.idle)
        rows = costs.argmin(axis=1)
        gpus = self.sizes[self.everyone, rows].sum(axis=1)
        return [_Demand(*found) for found in zip(rows, gpus.tolist(), costs, strict=True)]

    def _dear(self, joule_price: float) -> _Dear:
        """What joules cost at a price of theirs; kept while it stays."""
        if self._dear_at is None or self._dear_at.joule_price != joule_price:
            joules = joule_price * self._clock_joules
            first = 0 if self._promised else _first_clock(self._kinds[0], joule_price * self._kinds[1])
            barred = self.barred.T
            most = np.where(barred, -np.inf, joules[first:].min(axis=0)).max(axis=0)
            joules[:, barred] = np.inf
            idle = joule_price * (self._jobs_sizes * (self.view.idle_gpu_watts + self.view.using_gpu_watts))
            self._dear_at = _Dear(joule_price, joules, joules * self._clock_rates, most, idle, first)
        return self._dear_at

    def _share_of_price_expected(self) -> Array:
        """Of today's price of a GPU-second, what each job pays on average: a part falls evenly as the backlog is done."""
        drained = np.maximum(self.backlog_seconds, 1e-9)
        lasts = self.lasting_seconds
        falling = np.where(lasts < drained, 1.0 - lasts / (2.0 * drained), drained / (2.0 * np.maximum(lasts, drained)))
        return np.asarray(LASTING_SHARE + (1.0 - LASTING_SHARE) * falling)

    def _worth(self, gpu_prices: Array, dear: _Dear) -> Array:
        """Job-seconds that an iteration of each job is worth (`v` above), (prices, jobs) for (prices, 1)."""
        expected = gpu_prices * self._expected_share
        paid = 1.0 + expected[:, None] * self._jobs_sizes
        costs = paid * self._clock_seconds[dear.first :, None]
        costs += dear.joules[dear.first :, None]
        return np.asarray(costs.min(axis=0).min(axis=1))

    def _clocks(self, rows: Indices, gpu_price: float, joule_price: float) -> Indices:
        worth = self._worth(np.array([[gpu_price]]), self._dear(joule_price))[0]
        seconds, joules = self.seconds[self.everyone, rows], self.dear_joules[self.everyone, rows]
        chosen: Indices = ((joule_price * joules - worth[:, None]) / seconds).argmin(axis=1)
        return chosen

    def _fill(self, fitting: _Demand, wanting: _Demand, left: float) -> Indices:
        """Of those who would take more at a slightly lower price, the ones who gain most for each GPU get what is left."""
        rows = fitting.rows.copy()
        more = self.sizes[self.everyone, wanting.rows] - self.sizes[self.everyone, rows]
        gain = wanting.costs[rows, self.everyone] - wanting.costs[wanting.rows, self.everyone]
        candidates = np.flatnonzero(more > 0)
        for index in candidates[np.lexsort((candidates, -gain[candidates] / more[candidates]))].tolist():
            if more[index] <= left:
                left -= more[index]
                rows[index] = wanting.rows[index]
        return rows

    def _squeeze(self, demand: _Demand) -> Indices:
        """Where restarts are too dear for anybody to give way: down to the smallest size, least loss for each GPU first."""
        rows = demand.rows.copy()
        over = demand.gpus - self.view.gpus
        smallest = (~self.barred).argmax(axis=1)
        freed = self.sizes[self.everyone, rows] - self.sizes[self.everyone, smallest]
        loss = demand.costs[smallest, self.everyone] - demand.costs[rows, self.everyone]
        candidates = np.flatnonzero(freed > 0)
        for index in candidates[np.lexsort((candidates, loss[candidates] / freed[candidates]))].tolist():
            if over <= 0:
                break
            over -= freed[index]
            rows[index] = smallest[index]
        return rows


def _midpoints(low: float, high: float, steps: int) -> list[float]:
    """The prices that so many bisections may ask for, as a heap: after that at i comes 2i + 1 below it or 2i + 2 above."""
    between, prices = [(low, high)], []
    for _ in range(steps):
        halves = []
        for below, above in between:
            middle = (below + above) / 2 if below == 0 else math.sqrt(below * above)
            prices.append(middle)
            halves += [(below, middle), (middle, above)]
        between = halves
    return prices


def _first_clock(seconds: Array, priced_joules: Array) -> int:
    """The first clock at which any kind of job, at any size, is not slower and dearer than at its thriftiest; arrays are
    (clocks, sizes, kinds)."""
    clocks = len(seconds)
    thriftiest = clocks - 1 - priced_joules[::-1].argmin(axis=0)  # of equal ones the highest
    fast_enough = np.take_along_axis(seconds, thriftiest[None], axis=0)
    useless = (np.arange(clocks)[:, None, None] < thriftiest) & (seconds >= fast_enough)
    return int(useless.all(axis=(1, 2)).argmin())


class _Table(NamedTuple):
    """A kind's table with its last size repeated: sizes (sizes,), seconds and joules (clocks, sizes).

    `least_gpu_seconds` is what an iteration takes of GPUs where it takes least of them.
    """

    sizes: Array
    seconds: Array
    joules: Array
    least_gpu_seconds: float


def _padded(table: Performance, width: int) -> _Table:
    """A table up to so many sizes; kept as long as the performance is."""
    kept = _PADDED.setdefault(table, {})
    if width not in kept:
        last = [min(row, len(table.sizes) - 1) for row in range(width)]
        sizes = np.array(table.sizes, dtype=np.float64)[last]
        seconds, joules = (np.ascontiguousarray(part[last].T) for part in (table.seconds, table.joules))
        kept[width] = _Table(sizes, seconds, joules, float((seconds * sizes).min()))
    return kept[width]


_PADDED: WeakKeyDictionary[Performance, dict[int, _Table]] = WeakKeyDictionary()
