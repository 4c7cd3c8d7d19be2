"""How far the learner is off on what others have recorded: throughputs (ElasticFlow), clocks of an A100 (Perseus)."""

from __future__ import annotations

import asyncio
import csv
from pathlib import Path
from typing import Any

import pytest
from flyball_frontiers.pipeline import PipelineProfile
from flyball_operator.learning.learner import REFIT_SECONDS

from tests.operator.learning.test_learner import NODES, Cluster, job, learner
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[3]
CLOCK = 1290


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


@pytest.mark.parametrize("model_class", ["its own", "one that nobody knows"])
@pytest.mark.parametrize(("name", "batch"), [("resnet50", 256), ("bert", 64)])
async def test_after_its_first_resize_a_job_takes_what_is_predicted(name: str, batch: int, model_class: str) -> None:
    """Within a tenth, in time and in energy, where it runs: on 2 GPUs, and then on 8."""
    table: Any = Recorded(name, batch)
    written = name if model_class == "its own" else "nobodys-net"
    view = job(training={"globalBatchSize": batch, "iterations": 100_000, "modelClass": written})
    clock = 0.0
    cluster = Cluster(learner(clock=lambda: clock), table, view)
    errors = []
    for number, gpus in enumerate((2, 8), start=1):
        for _ in range(3):
            clock += REFIT_SECONDS
            cluster.run({"n1": gpus}, CLOCK, 3, number=number, local_batch=batch // gpus)
            fitting = cluster.learner._fitting
            if fitting is not None:
                await asyncio.wait([fitting], timeout=PATIENCE_SECONDS)
        model = cluster.learner.model_for(view, NODES)
        errors.append(
            (
                model.iteration_seconds(gpus, 1, CLOCK, batch) / table.iteration_seconds(gpus, 1, CLOCK, batch) - 1,
                model.iteration_joules(gpus, 1, CLOCK, batch) / table.iteration_joules(gpus, 1, CLOCK, batch) - 1,
            )
        )
    assert all(abs(error) < 0.1 for both in errors for error in both), errors
