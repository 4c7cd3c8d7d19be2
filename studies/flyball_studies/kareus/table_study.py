"""The search on a recorded table, where the whole frontier is known, beside searches that leave something out.

Two yardsticks. The paper's reference point is 1.1 times the worst time and energy of the table (appendix C); on a table
with a few very bad schedules nearly all of that area is won by any handful of samples. The near one, 1.1 times the worst
time and energy *of the full table's frontier*, measures how well the frontier itself was found.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flyball_frontiers.frontier import Frontier, FrontierPoint
from flyball_frontiers.kareus.acquisition import REFERENCE_MARGIN
from flyball_frontiers.kareus.schedule import KernelSchedule
from flyball_frontiers.kareus.search import (
    MULTI_PASS,
    RANDOM_ONLY,
    SINGLE_ENERGY,
    SINGLE_TIME,
    PartitionSearch,
    SearchBudget,
    Shares,
    optimise,
)

from flyball_studies.kareus.table import RecordedTable

METHODS: dict[str, Shares] = {
    "Multi-pass (Kareus)": MULTI_PASS,
    "Least energy only": SINGLE_ENERGY,
    "Least time only": SINGLE_TIME,
    "Random": RANDOM_ONLY,
}


@dataclass(frozen=True, slots=True)
class References:
    """The two reference points of a table: (seconds, joules)."""

    paper: tuple[float, float]
    near: tuple[float, float]

    @classmethod
    def of(cls, table: RecordedTable) -> References:
        worst_time = max(m.time_seconds for m in table.measurements.values())
        worst_energy = max(m.energy_joules for m in table.measurements.values())
        front = table.frontier
        return cls(
            (REFERENCE_MARGIN * worst_time, REFERENCE_MARGIN * worst_energy),
            (REFERENCE_MARGIN * front.t_star, REFERENCE_MARGIN * front.fastest.energy_joules),
        )


@dataclass(frozen=True)
class MethodResult:
    """One method over all seeds; arrays of shape (seeds, batches + 1), as shares of the full table's hypervolume.

    `measured` counts schedules so far. `frontier_found_by` counts the final frontiers' points by the pass that found
    them (section 6.6).
    """

    method: str
    measured: np.ndarray
    paper: np.ndarray
    near: np.ndarray
    frontier_found_by: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        return {
            "measured": self.measured[:, -1].tolist(),
            "hypervolume_share_paper_reference": self.paper[:, -1].tolist(),
            "hypervolume_share_near_reference": self.near[:, -1].tolist(),
            "mean_by_batch": {
                "measured": self.measured.mean(axis=0).tolist(),
                "paper_reference": self.paper.mean(axis=0).tolist(),
                "near_reference": self.near.mean(axis=0).tolist(),
            },
            "frontier_found_by": dict(self.frontier_found_by),
        }


def search_table(
    table: RecordedTable, shares: Shares, static_power_watts: float, budget: SearchBudget, seed: int
) -> PartitionSearch:
    """One search of the table under one seed."""
    return optimise(table.schedules, table.measure, static_power_watts, budget, seed, shares)


def summarise_method(
    method: str, table: RecordedTable, searches: Sequence[PartitionSearch], budget: SearchBudget
) -> MethodResult:
    """Shares of the full table's hypervolume after each batch; a search that stopped early keeps its last ones."""
    references, full = References.of(table), table.frontier
    measured, paper, near = [], [], []
    found_by: Counter[str] = Counter()
    for search in searches:
        steps = [_frontier_after(search, batch) for batch in range(search.batch)]
        steps += [steps[-1]] * (budget.batches + 1 - len(steps))
        measured.append([count for count, _ in steps])
        paper.append([f.hypervolume(references.paper) / full.hypervolume(references.paper) for _, f in steps])
        near.append([f.hypervolume(references.near) / full.hypervolume(references.near) for _, f in steps])
        best = {point.plan for point in search.frontier.points}
        found_by.update(str(sample.found_by) for sample in search.samples if sample.schedule in best)
    return MethodResult(method, np.array(measured), np.array(paper), np.array(near), found_by)


def most_measurements(table: RecordedTable, share: float = 1 / 3) -> int:
    """What a search may measure of the table, at the most."""
    return math.floor(share * len(table.measurements))


def _frontier_after(search: PartitionSearch, batch: int) -> tuple[int, Frontier[KernelSchedule]]:
    seen = [sample for sample in search.samples if sample.batch <= batch]
    front = Frontier.of(
        FrontierPoint(s.measurement.time_seconds, s.measurement.energy_joules, s.schedule) for s in seen
    )
    return len(seen), front
