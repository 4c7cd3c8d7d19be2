"""How far the learner is off on what others have recorded: throughputs (ElasticFlow), clocks of an A100 (Perseus)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from flyball_operator.learning.learner import REFIT_SECONDS

from tests.support.learned_jobs import NODES, Cluster, job, learner
from tests.support.recorded_tables import RecordedJob
from tests.support.waiting import PATIENCE_SECONDS

CLOCK = 1290


@pytest.mark.parametrize("model_class", ["its own", "one that nobody knows"])
@pytest.mark.parametrize(("name", "batch"), [("resnet50", 256), ("bert", 64)])
async def test_after_its_first_resize_a_job_takes_what_is_predicted(name: str, batch: int, model_class: str) -> None:
    """Within a tenth, in time and in energy, where it runs: on 2 GPUs, and then on 8."""
    table: Any = RecordedJob(name, batch)
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
