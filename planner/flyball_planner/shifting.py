"""When a job that can wait should start: where the grid's signal (a price, grams of CO2) is lowest while it runs.

A job is put off as a whole, and once it runs it is left alone: each pause in between would cost a restart. "Let's Wait
Awhile" (Wiesner et al., Middleware 2021, section 4) finds most of what shifting can save in such non-interrupting shifts of
jobs of a few hours.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Less than this share of the signal is no reason to wait.
WORTH_WAITING = 0.02
# More is no price of energy, and sums of it lose what counts.
MOST_VALUE = 1e9
# Two means that are closer are the same, but for rounding.
SAME = 1e-9
# A job that gets fewer GPUs or lower clocks than it was reckoned with takes longer: so many times as long is kept for it.
RESERVE = 1.5


@dataclass(frozen=True, slots=True)
class Signal:
    """What a unit of energy is worth avoiding, in steps: `values[i]` from `times[i]` (seconds, ascending) to the next.

    The last one holds on until `end`. `unit` is for sentences. Raises ValueError for no steps, times that do not ascend and
    values that are not finite, or beyond all measure.
    """

    times: tuple[float, ...]
    values: tuple[float, ...]
    end: float
    unit: str = ""
    _edges: FloatArray = field(init=False, repr=False, compare=False)
    _sums: FloatArray = field(init=False, repr=False, compare=False)  # of value and seconds, up to each edge

    def __post_init__(self) -> None:
        if not self.times or len(self.times) != len(self.values):
            raise ValueError(f"a signal of {len(self.times)} times and {len(self.values)} values; it has one for each")
        steps = (*self.times, self.end)
        if any(later <= earlier for earlier, later in pairwise(steps)):
            raise ValueError("the times of a signal must ascend, and it must end after the last")
        if not all(map(math.isfinite, (*steps, *self.values))):
            raise ValueError("the times and the values of a signal must be finite")
        if max(map(abs, self.values)) > MOST_VALUE:
            raise ValueError(f"the values of a signal must be within {MOST_VALUE:g} of zero")
        edges = np.array(steps)
        object.__setattr__(self, "_edges", edges)
        sums = np.concatenate(([0.0], np.cumsum(np.diff(edges) * np.array(self.values))))
        object.__setattr__(self, "_sums", sums)

    @staticmethod
    def of(steps: Sequence[tuple[float, float]], unit: str = "") -> Signal:
        """The signal of `(second, value)` steps; the last one lasts as long as the one before it (one alone: an hour)."""
        times = tuple(at for at, _ in steps)
        last = times[-1] - times[-2] if len(times) > 1 else 3600.0
        return Signal(times, tuple(value for _, value in steps), (times[-1] if times else 0.0) + last, unit)

    def at(self, second: float) -> float | None:
        """The value at a moment; None where the signal does not reach."""
        if not self.times[0] <= second < self.end:
            return None
        return self.values[bisect_right(self.times, second) - 1]

    def means(self, begins: Sequence[float], seconds: float) -> list[float | None]:
        """The mean over so many seconds from each of `begins`; None where the signal does not reach over all of them.

        It is worked out for thousands of beginnings at once, whatever the number of steps in between.
        """
        if not 0 < seconds < math.inf:
            return [None] * len(begins)
        edges, sums = self._edges, self._sums
        at = np.array(begins, dtype=float)
        means = (np.interp(at + seconds, edges, sums) - np.interp(at, edges, sums)) / seconds
        known = (at >= edges[0]) & (at + seconds <= edges[-1])
        return [float(mean) if there else None for mean, there in zip(means, known, strict=True)]

    def mean(self, begin: float, seconds: float) -> float | None:
        """The mean over a stretch of time; None where the signal does not reach over all of it."""
        return self.means([begin], seconds)[0]


@dataclass(frozen=True, slots=True)
class Start:
    """When a job should start, and the mean of the signal while it runs, then and if it started now."""

    second: float
    mean: float
    mean_now: float


def best_start(signal: Signal, now: float, until: float, run_seconds: float) -> Start | None:
    """When to start a job that runs for about `run_seconds` and is to be done at `until`; None: now.

    It is the earliest of the best, and now where waiting gains next to nothing, or nobody knows the signal.
    """
    mean_now = signal.mean(now, run_seconds)
    last = min(until - RESERVE * run_seconds, signal.end - run_seconds)
    if mean_now is None or last <= now:
        return None
    # The mean over a stretch is linear in its start between those starts at which it begins or ends with a step.
    edges = (*signal.times, signal.end)
    starts = sorted({start for edge in edges for start in (edge, edge - run_seconds) if now < start < last} | {last})
    best = Start(now, mean_now, mean_now)
    for start, mean in zip(starts, signal.means(starts, run_seconds), strict=True):
        if mean is not None and mean < best.mean - SAME * abs(best.mean):
            best = Start(start, mean, mean_now)
    return best if best.mean < mean_now - WORTH_WAITING * abs(mean_now) else None
