"""The mean JCT that no policy can pass at a given energy, however it schedules.

By weak duality: whatever a policy does, each of its jobs runs all its iterations at some (n, f), so for every price l >= 0

    sum of JCTs + l * energy  >=  sum over jobs of iterations * min over (n, f) of [T(n, f) + l * E(n, f)]

and the mean JCT at an energy is at least the largest, over l, of what that leaves. Queues, restarts, idle GPUs, boots and
what a policy cannot know are left out, so the true optimum lies above, and far above where GPUs are scarce.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from flyball_planner.policies.view import Performance
from numpy.typing import NDArray

Array = NDArray[np.float64]
PRICES = np.concatenate([[0.0], np.logspace(-6.0, -1.0, 61)])  # job-seconds for a joule


class LeastJct:
    """Of one workload: `jobs` are (iterations, what an iteration truly takes). Raises ValueError where there is none."""

    def __init__(self, jobs: Sequence[tuple[float, Performance]]) -> None:
        if not jobs:
            raise ValueError("a bound needs at least one job")
        tables = {id(performance): performance for _, performance in jobs}
        least = {
            key: np.array([(table.seconds + price * table.joules).min() for price in PRICES])
            for key, table in tables.items()
        }
        costs = sum((iterations * least[id(performance)] for iterations, performance in jobs), np.zeros(len(PRICES)))
        self._mean_costs = costs / len(jobs)
        self._prices_per_job = PRICES / len(jobs)

    def at(self, joules: Array) -> Array:
        """Seconds of mean JCT, for each total energy in joules."""
        bounds: Array = (self._mean_costs[:, None] - self._prices_per_job[:, None] * joules[None, :]).max(axis=0)
        return bounds
