"""The mean JCT that no policy can pass at a given energy, however it schedules.

Two bounds by weak duality, for every price l >= 0 of a joule. Both know the future and all truths; both leave out restarts,
boots, measuring, and where on which node a job is.

`LeastJct`: whatever a policy does, each of its jobs runs all its iterations at some (n, f), so

    sum of JCTs + l * energy  >=  sum over jobs of iterations * min over (n, f) of [T(n, f) + l * E(n, f)]

as if there were as many GPUs as anybody likes. `LeastJctOnGpus` also counts them: with any price m(t) >= 0 of a GPU-second

    sum of JCTs + l * energy  >=  sum over jobs of phi_j(l, m) - GPUs * integral of m

where phi_j is the least that JCT + l * energy + integral of m * n comes to for job j alone, which may wait, grow and shrink
as it likes. With m = 0 the two are one. Every m gives a bound; the best is looked for by quasi-Newton ascent, in which a
job is spread over the ends that cost it nearly the same, ever more narrowly: where each job jumped to the one cheapest end,
all like it would jump together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from flyball_planner.policies.view import Performance
from numpy.typing import NDArray
from scipy.optimize import minimize

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
PRICES = np.concatenate([[0.0], np.logspace(-6.0, -1.0, 61)])  # job-seconds for a joule

INTERVALS = 112  # of constant price of a GPU-second, while jobs arrive and wait
LATER_INTERVALS = 24  # and after that, each longer than the one before
WORTHS, FINAL_WORTHS = 48, 384  # values of an iteration that are tried, in the search and for what is reported
SPREADS = (0.1, 0.03, 0.01)  # of a job's least cost: ends that cost it so much more count for a third in the search
ASCENTS = 30  # evaluations in the search at each spread
NEGLIGIBLE = 1e-6  # of a job, spread over its ends


class BoundJob(NamedTuple):
    """A job as the bounds see it: when it comes, its iterations, and what one truly takes."""

    submit_seconds: float
    iterations: float
    performance: Performance


@dataclass(frozen=True, slots=True)
class Bounds:
    """Both bounds of one workload on one cluster, over total energy.

    Where nodes stay on, idle GPUs' joules are spent whatever is done: jobs are then counted with what they draw above that,
    and `sunk_joules` is what all GPUs draw idle up to the earliest end that the last job could have.
    """

    alone: LeastJct
    together: LeastJctOnGpus
    sunk_joules: float = 0.0

    @classmethod
    def of(
        cls, jobs: Sequence[BoundJob], gpus: int, *, sunk_gpu_watts: float = 0.0, kept: Path | None = None
    ) -> Bounds:
        """What is found is `kept` in a file, if one is given. Raises ValueError where there is no job."""
        tables = {id(job.performance): _above(job.performance, sunk_gpu_watts) for job in jobs}
        above = [job._replace(performance=tables[id(job.performance)]) for job in jobs]
        end = max(
            (job.submit_seconds + job.iterations * float(job.performance.seconds.min()) for job in jobs), default=0.0
        )
        return cls(LeastJct(above), LeastJctOnGpus(above, gpus, kept), sunk_gpu_watts * gpus * end)

    def at(self, joules: Array) -> tuple[Array, Array]:
        """Seconds of mean JCT, for each total energy in joules: with GPUs without number, and with those there are."""
        left = joules - self.sunk_joules
        return self.alone.at(left), self.together.at(left)


class LeastJct:
    """Of one workload on GPUs without number. Raises ValueError where there is no job."""

    def __init__(self, jobs: Sequence[BoundJob]) -> None:
        if not jobs:
            raise ValueError("a bound needs at least one job")
        tables = {id(job.performance): job.performance for job in jobs}
        least = {
            key: np.array([(table.seconds + price * table.joules).min() for price in PRICES])
            for key, table in tables.items()
        }
        costs = sum((job.iterations * least[id(job.performance)] for job in jobs), np.zeros(len(PRICES)))
        self._mean_costs = costs / len(jobs)
        self._prices_per_job = PRICES / len(jobs)

    def at(self, joules: Array) -> Array:
        """Seconds of mean JCT, for each total energy in joules."""
        bounds: Array = (self._mean_costs[:, None] - self._prices_per_job[:, None] * joules[None, :]).max(axis=0)
        return bounds


class LeastJctOnGpus:
    """Of one workload on so many GPUs. Raises ValueError where there is no job.

    What it takes to compute is spent where `at` needs it, and kept: some seconds for each new range of energies. `kept` is
    a file of the same jobs on the same GPUs, in which it is found by the next process, too.
    """

    def __init__(self, jobs: Sequence[BoundJob], gpus: int, kept: Path | None = None) -> None:
        if not jobs:
            raise ValueError("a bound needs at least one job")
        self._count = len(jobs)
        self._times = _times(jobs, gpus)
        self._gpus = gpus
        kinds: dict[int, list[BoundJob]] = {}
        for job in jobs:
            kinds.setdefault(id(job.performance), []).append(job)
        self._kinds = [_Kind(members, self._times) for members in kinds.values()]
        self._kept = kept
        # By the joule price's position: the bound, and the GPU prices.
        self._found: dict[int, tuple[float, Array]] = _read(kept, len(self._times) - 1)

    def at(self, joules: Array) -> Array:
        """Seconds of mean JCT, for each total energy in joules."""
        return np.array([self._at(float(each)) for each in joules])

    def least_cost(self, joule_price: float) -> float:
        """What the sum of JCTs and the priced joules come to at least, in seconds."""
        return self._ascend(joule_price, np.zeros(len(self._times) - 1))[0]

    def _at(self, joules: float) -> float:
        """The best of the joule prices: the bound less price * energy is concave in the price, so a search finds it."""

        def value(index: int) -> float:
            return (self._bound(index)[0] - float(PRICES[index]) * joules) / self._count

        low, high = 0, len(PRICES) - 1
        while high - low > 2:
            middle = (low + high) // 2
            if value(middle) < value(middle + 1):
                low = middle + 1
            else:
                high = middle + 1
        return max(value(index) for index in (*self._found, *range(low, high + 1)))

    def _bound(self, index: int) -> tuple[float, Array]:
        """(sum of JCTs + price * energy at least, GPU prices) at a joule price, from the nearest one that is known."""
        if index not in self._found:
            known = min(self._found, key=lambda other: (abs(other - index), other), default=None)
            start = np.zeros(len(self._times) - 1) if known is None else self._found[known][1]
            self._found[index] = self._ascend(float(PRICES[index]), start)
            if self._kept is not None:
                _write(self._kept, self._found)
        return self._found[index]

    def _ascend(self, joule_price: float, start: Array) -> tuple[float, Array]:
        """The best GPU prices found, and the bound that they give."""
        widths = np.diff(self._times)
        scale = 1.0 / (self._gpus * float(widths.sum()))
        warm = bool(start.any())
        tried = [np.zeros_like(start), start] if warm else [start]
        for spread in SPREADS[-1:] if warm else SPREADS:

            def loss(prices: Array, spread: float = spread) -> tuple[float, Array]:
                value, used = self._value(joule_price, prices, spread)
                return -value * scale, (self._gpus * widths - used) * scale

            found = minimize(
                loss,
                tried[-1],
                jac=True,
                method="L-BFGS-B",
                bounds=[(0.0, None)] * len(start),
                options={"maxfun": ASCENTS, "maxcor": 20},
            )
            tried.append(found.x)
        values = [self._exact(joule_price, prices) for prices in tried]
        best = int(np.argmax(values))
        return values[best], tried[best]

    def _exact(self, joule_price: float, prices: Array) -> float:
        """The bound that these GPU prices, (intervals,), give."""
        least = sum(kind.table(joule_price, prices, FINAL_WORTHS).least_costs().sum() for kind in self._kinds)
        return float(least) - self._gpus * float(prices @ np.diff(self._times))

    def _value(self, joule_price: float, prices: Array, spread: float) -> tuple[float, Array]:
        """The same with the jobs spread over their ends, and the GPU-seconds that they take in each interval."""
        value, used = -self._gpus * float(prices @ np.diff(self._times)), np.zeros(len(prices))
        for kind in self._kinds:
            least, taken = kind.table(joule_price, prices, WORTHS).spread(spread)
            value += least
            used += taken
        return value, used


class _Kind:
    """The jobs that share a table: when they come, and in which interval; how many iterations they are."""

    def __init__(self, jobs: Sequence[BoundJob], times: Array) -> None:
        self.times = times
        self.submitted = np.array([job.submit_seconds for job in jobs])
        self.iterations = np.array([job.iterations for job in jobs])
        self.first = np.clip(np.searchsorted(times, self.submitted, side="right") - 1, 0, len(times) - 2)
        self.sizes = np.array(jobs[0].performance.sizes, dtype=np.float64)
        self.seconds, self.watts = jobs[0].performance.seconds, jobs[0].performance.watts

    def table(self, joule_price: float, prices: Array, worths: int) -> _Costs:
        """What ends cost at these prices, by so many values of an iteration."""
        return _Costs(self, joule_price, prices, worths)


class _Costs:
    """The jobs of a kind at given prices.

    For a job that ends at C, and any worth v of an iteration, the least of its costs is at least

        C - r + v*R + integral from r to C of min(0, min over (n, f) of [l*P + m(t)*n - v/T]) dt

    by weak duality in its R iterations; the best v makes it exact. It is linear in C within an interval of constant m, so
    that its least there, over C, is at an end for each v, and best v and least C may be exchanged. Arrays are (worths,
    intervals); the last of the columns of `ends` is for C after all intervals, when GPUs are free.
    """

    def __init__(self, kind: _Kind, joule_price: float, prices: Array, worths: int) -> None:
        self._kind = kind
        dear = joule_price * kind.watts
        free = float((kind.seconds * (1.0 + dear)).min())
        dearest = float((kind.seconds * (1.0 + dear + prices.max() * kind.sizes[:, None])).min())
        values = np.geomspace(free, max(dearest, free * 1.0001), worths)
        values[0] = free  # to the digit: beyond the last interval a larger one would go on for ever
        of_size = (dear - values[:, None, None] / kind.seconds).min(axis=2)  # (worths, sizes)
        slope = np.zeros((worths, len(prices)))
        self._taken = np.zeros_like(slope)  # GPUs
        for size, cost in zip(kind.sizes, of_size.T, strict=True):
            costs = cost[:, None] + size * prices
            better = costs < slope
            slope[better], self._taken[better] = costs[better], size
        times = kind.times
        self._gained = (
            np.concatenate([np.zeros((worths, 1)), np.cumsum(slope * np.diff(times), axis=1)], axis=1) + times
        )
        last = np.full((worths, 1), -np.inf)
        last[0] = self._gained[0, -1]
        self._ends = np.concatenate([np.minimum(self._gained[:, :-1], self._gained[:, 1:]), last], axis=1)
        since = kind.submitted - times[kind.first]
        self._before = self._gained[:, kind.first].T + since[:, None] * (1.0 + slope[:, kind.first].T)
        self._base = kind.iterations[:, None] * values - self._before  # (jobs, worths)

    def _by_end(self) -> tuple[Array, Indices]:
        """(jobs, ends): the cost of ending there, infinite before the submission, and which worth proves it."""
        first = self._kind.first
        best = np.full((len(first), self._ends.shape[1]), -np.inf)
        worth = np.zeros(best.shape, dtype=np.intp)
        for index, (base, ends) in enumerate(zip(self._base.T, self._ends, strict=True)):
            costs = base[:, None] + ends
            better = costs > best
            np.copyto(best, costs, where=better)
            worth[better] = index
        # In the interval of its submission a job can end no earlier than it came.
        early = self._base + np.minimum(self._before, self._gained[:, first + 1].T)
        everyone = np.arange(len(first))
        worth[everyone, first] = early.argmax(axis=1)
        best[everyone, first] = early.max(axis=1)
        best[np.arange(best.shape[1]) < first[:, None]] = np.inf
        return best, worth

    def least_costs(self) -> Array:
        """Of each job."""
        return np.asarray(self._by_end()[0].min(axis=1))

    def spread(self, spread: float) -> tuple[float, Array]:
        """(sum of soft least costs, GPU-seconds that the jobs take in each interval: its slope in the prices)."""
        kind = self._kind
        worths, intervals = self._taken.shape
        best, by_worth = self._by_end()
        least = best.min(axis=1)
        width = spread * np.maximum(least, 1e-9)
        weights = np.exp((least[:, None] - best) / width[:, None])
        whole = weights.sum(axis=1)
        weights /= whole[:, None]
        job, end = np.nonzero(weights > NEGLIGIBLE)
        weight, worth, start = weights[job, end], by_worth[job, end], kind.first[job]
        interval = np.minimum(end, intervals - 1)
        before = np.where(end == start, self._before[job, worth], self._gained[worth, interval])
        to_its_end = (self._gained[worth, interval + 1] < before) | (end == intervals)
        weight = np.where(to_its_end | (end > start), weight, 0.0)  # else it ends as it comes, and takes nothing
        cells = worths, intervals + 1
        begun = _sums(worth, start, weight, cells) - _sums(worth, interval + to_its_end, weight, cells)
        missed = _sums(worth, start, weight * (kind.submitted - kind.times[kind.first])[job], cells)
        held = np.cumsum(begun, axis=1)[:, :-1] * np.diff(kind.times) - missed[:, :-1]
        used: Array = (held * self._taken).sum(axis=0)
        return float((least - width * np.log(whole)).sum()), used


def _read(kept: Path | None, intervals: int) -> dict[int, tuple[float, Array]]:
    """What `_write` has kept; nothing where there is no such file, or it is damaged."""
    if kept is None:
        return {}
    try:
        found = {
            int(index): (float(bound), np.array(prices, float)) for index, bound, prices in json.loads(kept.read_text())
        }
    except (OSError, ValueError, TypeError):
        return {}
    return found if all(prices.shape == (intervals,) for _, prices in found.values()) else {}


def _write(kept: Path, found: Mapping[int, tuple[float, Array]]) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    whole = kept.with_suffix(".new")
    whole.write_text(json.dumps([[index, bound, prices.tolist()] for index, (bound, prices) in found.items()]))
    whole.replace(kept)


def _sums(row: Indices, column: Indices, weight: Array, shape: tuple[int, int]) -> Array:
    """The weights added up by cell."""
    sums = np.bincount(row * shape[1] + column, weights=weight, minlength=shape[0] * shape[1])
    return np.asarray(sums, dtype=np.float64).reshape(shape)


def _above(table: Performance, watts: float) -> Performance:
    """The table with the joules that are drawn above so many watts of each GPU."""
    if not watts:
        return table
    return Performance(
        table.sizes, table.seconds, table.joules - watts * np.array(table.sizes)[:, None] * table.seconds
    )


def _times(jobs: Sequence[BoundJob], gpus: int) -> Array:
    """Where the price of a GPU-second may change: evenly while GPUs are scarce, then ever less often until all is done."""
    first = min(job.submit_seconds for job in jobs)
    work = sum(
        job.iterations * float((job.performance.seconds * np.array(job.performance.sizes)[:, None]).min())
        for job in jobs
    )
    longest = max(job.iterations * float(job.performance.seconds.min()) for job in jobs)
    drained = max(max(job.submit_seconds for job in jobs), first + 1.25 * work / gpus)
    step = (drained - first) / INTERVALS
    later = drained + np.geomspace(step, max(work / gpus + longest, 2.0 * step), LATER_INTERVALS)
    return np.concatenate([np.linspace(first, drained, INTERVALS + 1), later])
