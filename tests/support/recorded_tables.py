"""Jobs whose time and joules are what others have recorded."""

from __future__ import annotations

import csv
from pathlib import Path

from flyball_frontiers.pipeline import PipelineProfile
from flyball_testbed.pipeline.board import MeasuredComputation

from tests.support.schedules.memory_api import Json

ROOT = Path(__file__).parents[2]


class RecordedJob:
    """Time by size as ElasticFlow has it, and time and joules by clock as Perseus has those of an A100: two tables'
    product, which no model of ours made."""

    def __init__(self, name: str, batch: int) -> None:
        with (ROOT / f"tests/data/elasticflow/{name}.csv").open() as file:
            row = next(row for row in csv.DictReader(file) if int(row["global_batch_size"]) == batch)
        self.rates = {int(gpus): float(rate) for gpus, rate in row.items() if gpus != "global_batch_size" and rate}
        text = (ROOT / "examples/profiles/gpt3-a100-unbalanced.csv").read_text(encoding="utf-8")
        profile = PipelineProfile.from_csv(text)
        points = [profile.of(1, instruction) for instruction in ("forward", "backward")]
        self._stages = [MeasuredComputation(listed) for listed in points]
        self.clocks = sorted({point.clock_megahertz or 0 for point in points[0]})
        self.batch = batch

    def _stage(self, clock: int) -> tuple[float, float]:
        """(seconds, joules) of both passes."""
        parts = [stage.at(clock) for stage in self._stages]
        return sum(seconds for seconds, _ in parts), sum(seconds * watts for seconds, watts in parts)

    def iteration(self, gpus: int, clock: int) -> tuple[float, float]:
        """(seconds, joules of all GPUs)."""
        (seconds, joules), (fastest, _) = self._stage(clock), self._stage(self.clocks[-1])
        took = seconds / fastest / self.rates[gpus]
        return took, gpus * took * joules / seconds

    def iteration_seconds(self, gpus: int, nodes: int, clock: int, batch: int) -> float:
        """As a JobModel says it."""
        return self.iteration(gpus, clock)[0]

    def iteration_joules(self, gpus: int, nodes: int, clock: int, batch: int) -> float:
        """As a JobModel says it."""
        return self.iteration(gpus, clock)[1]

    def clock_under(self, granted: Json) -> int:
        """The clock that a GPU has by a grant: what is granted, or what its limit leaves it."""
        clocks = [clock for clock in self.clocks if clock <= (granted["clockMegahertz"]["max"] or self.clocks[-1])]
        watts = {clock: joules / seconds for clock in clocks for seconds, joules in [self._stage(clock)]}
        return max(
            (clock for clock in clocks if watts[clock] * 1000 <= granted["powerLimitMilliwatts"]), default=clocks[0]
        )
