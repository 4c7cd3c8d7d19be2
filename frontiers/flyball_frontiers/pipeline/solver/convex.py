"""Which operating points of a computation can ever be worth choosing, and their lower convex hull.

Cost is *effective* energy, what a computation needs beyond what its GPU would draw blocked for as long
(Perseus, section 4.1, Equation 4): e - P_blocking * t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_frontiers.pipeline.profile import OperatingPoint

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CostCurve:
    """The choices of one kind of computation: `times` rise strictly (s), `costs` fall strictly (effective J).

    `points` are the operating points in the same order; `hull` are the places in it of the corners of the lower convex
    hull, first and last included. A point off the hull is never planned, but may be what realises a plan.
    """

    points: tuple[OperatingPoint, ...]
    times: Floats
    costs: Floats
    hull: NDArray[np.int64]

    @property
    def hull_times(self) -> Floats:
        return self.times[self.hull]

    @property
    def hull_costs(self) -> Floats:
        return self.costs[self.hull]

    def relaxed_cost(self, durations: Floats) -> Floats:
        """Effective joules on the hull at `durations` (s), flat beyond the last corner."""
        return np.interp(durations, self.hull_times, self.hull_costs)


def cost_curve(points: Sequence[OperatingPoint], blocking_power_watts: float) -> CostCurve:
    """The Pareto-optimal points under effective energy, and their hull. At equal time and cost, the lowest clock."""

    def cost(point: OperatingPoint) -> float:
        return point.energy_joules - blocking_power_watts * point.time_seconds

    kept: list[OperatingPoint] = []
    for point in sorted(points, key=lambda p: (p.time_seconds, cost(p), p.clock_megahertz or 0)):
        if not kept or cost(point) < cost(kept[-1]):
            kept.append(point)
    times = np.array([point.time_seconds for point in kept])
    costs = np.array([cost(point) for point in kept])
    hull: list[int] = []
    for place in range(len(kept)):
        while len(hull) >= 2 and _above(times, costs, hull[-2], hull[-1], place):
            hull.pop()
        hull.append(place)
    return CostCurve(tuple(kept), times, costs, np.array(hull))


def _above(times: Floats, costs: Floats, left: int, middle: int, right: int) -> bool:
    """Whether the middle point lies on or above the line from left to right."""
    rise = (costs[middle] - costs[left]) * (times[right] - times[left])
    return bool(rise >= (costs[right] - costs[left]) * (times[middle] - times[left]))
