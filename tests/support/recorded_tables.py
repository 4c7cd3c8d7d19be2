"""Jobs whose time and joules are what others have recorded."""

from __future__ import annotations

import csv
from pathlib import Path

from flyball_frontiers.pipeline import PipelineProfile

ROOT = Path(__file__).parents[2]


class Recorded:
    """A job whose time by size, and time and joules by clock, are two tables' products: no model of ours made them."""

    def __init__(self, name: str, batch: int) -> None:
        with (ROOT / f"tests/data/elasticflow/{name}.csv").open() as file:
            row = next(row for row in csv.DictReader(file) if int(row["global_batch_size"]) == batch)
        self._rates = {int(gpus): float(rate) for gpus, rate in row.items() if gpus != "global_batch_size" and rate}
        text = (ROOT / "examples/profiles/gpt3-a100-unbalanced.csv").read_text(encoding="utf-8")
        points = [PipelineProfile.from_csv(text).of(1, instruction) for instruction in ("forward", "backward")]
        clocks = sorted({point.clock_megahertz or 0 for point in points[0]})
        both = {
            clock: [next(point for point in listed if point.clock_megahertz == clock) for listed in points]
            for clock in clocks
        }
        self._stages = {
            clock: (sum(point.time_seconds for point in pair), sum(point.energy_joules for point in pair))
            for clock, pair in both.items()
        }
        self._highest = clocks[-1]

    def iteration_seconds(self, gpus: int, nodes: int, clock: int, batch: int) -> float:
        return 1.0 / self._rates[gpus] * self._stages[clock][0] / self._stages[self._highest][0]

    def iteration_joules(self, gpus: int, nodes: int, clock: int, batch: int) -> float:
        seconds, joules = self._stages[clock]
        return gpus * self.iteration_seconds(gpus, nodes, clock, batch) * joules / seconds
