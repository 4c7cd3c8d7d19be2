"""Where a convex function is least in one of its two unknowns, by tangents that were met on the way.

The cost of a pipeline is convex in the iteration's time and the period of its steady state together, and each solve tells
its slopes in both. A tangent found at one time thus bounds the cost at every other, so that along a walk most of what must
be known about the next time is known before anything is solved.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

KEPT = 24
"""How many tangents are kept: those of the last few times."""


@dataclass(frozen=True, slots=True)
class Tangent:
    """The value of the function at a time and a period, and its slope in either."""

    value: float
    time: int
    period: int
    per_time: float
    per_period: float


class Tangents:
    """The last tangents of one function."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, int, int, float, float]] = deque(maxlen=KEPT)

    def add(self, found: Tangent) -> None:
        self._kept.append((found.value, found.time, found.period, found.per_time, found.per_period))

    def least(self, time: int, low: int, high: int) -> tuple[int, float]:
        """The period between `low` and `high` at which the greatest of the tangents is least, and how much that is: at
        this time the function is nowhere lower."""
        values, times, periods, per_time, slopes = np.array(self._kept).T
        heights = values + per_time * (time - times) + slopes * (low - periods)  # at `low`
        left, right = np.triu_indices(len(slopes), 1)
        apart = slopes[left] - slopes[right]
        crossing = apart != 0
        meet = (heights[right] - heights[left])[crossing] / apart[crossing]
        places = np.concatenate([[0.0, high - low], meet[(meet > 0) & (meet < high - low)]])
        greatest = (heights[:, None] + slopes[:, None] * places).max(axis=0)
        at = int(greatest.argmin())
        return low + round(float(places[at])), float(greatest[at])
