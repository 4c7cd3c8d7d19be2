"""When a job that can wait should start: where the grid's signal (a price, grams of CO2) is lowest while it runs.

A job is put off as a whole, and once it runs it is left alone: each pause in between would cost a restart. "Let's Wait
Awhile" (Wiesner et al., Middleware 2021, section 4) finds most of what shifting can save in such non-interrupting shifts of
jobs of a few hours.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

# Less than this share of the signal is no reason to wait.
WORTH_WAITING = 0.02
# A job that gets fewer GPUs or lower clocks than it was reckoned with takes longer: so many times as long is kept for it.
RESERVE = 1.5


@dataclass(frozen=True, slots=True)
class Signal:
    """What a unit of energy is worth avoiding, in steps: `values[i]` from `times[i]` (seconds, ascending) to the next.

    The last one holds on until `end`. `unit` is for sentences. Raises ValueError for no steps, times that do not ascend and
    values that are not finite.
    """

    times: tuple[float, ...]
    values: tuple[float, ...]
    end: float
    unit: str = ""

    def __post_init__(self) -> None:
        if not self.times or len(self.times) != len(self.values):
            raise ValueError(f"a signal of {len(self.times)} times and {len(self.values)} values; it has one for each")
        steps = (*self.times, self.end)
        if any(later <= earlier for earlier, later in pairwise(steps)):
            raise ValueError("the times of a signal must ascend, and it must end after the last")
        if not all(map(math.isfinite, (*steps, *self.values))):
            raise ValueError("the times and the values of a signal must be finite")

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

    def mean(self, begin: float, seconds: float) -> float | None:
        """The mean over a stretch of time; None where the signal does not reach over all of it."""
        if begin < self.times[0] or begin + seconds > self.end or seconds <= 0:
            return None
        total, at = 0.0, begin
        index = bisect_right(self.times, begin) - 1
        while at < begin + seconds:
            until = min(begin + seconds, self.times[index + 1] if index + 1 < len(self.times) else self.end)
            total += self.values[index] * (until - at)
            at, index = until, index + 1
        return total / seconds


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
    starts = sorted({start for edge in edges for start in (edge, edge - run_seconds) if now < start <= last} | {last})
    best = Start(now, mean_now, mean_now)
    for start in starts:
        mean = signal.mean(start, run_seconds)
        if mean is not None and mean < best.mean:
            best = Start(start, mean, mean_now)
    return best if best.mean < mean_now - WORTH_WAITING * abs(mean_now) else None
