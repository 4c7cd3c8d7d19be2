"""What a run of a recurring job costs, and when that is too much."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_operator.jobs.runs.cost import costs_too_much, run_cost_joules
from flyball_operator.jobs.runs.progress import JobProgress

from tests.support.operator_objects import job_view

RUN = {"decision": 0, "globalBatchSize": 64, "purpose": "Explore", "gpuModel": "A100", "wattsPerGpu": 400}
USED = JobProgress(settled_millijoules=2_000_000, open_millijoules={"2/a": 1_000_000}, attained_gpu_seconds=10.0)


def run(weight: int = 500, **status: Any) -> Any:
    recurrence = {"batchSizes": [64, 256], "targetMetric": "loss <= 2.1", "energyWeightPermille": weight}
    return job_view(recurrence=recurrence, status={"recurrence": {**RUN, **status}})


@pytest.mark.parametrize(("weight", "joules"), [(1000, 3000), (0, 4000), (500, 3500)])
def test_a_runs_cost_weighs_joules_against_seconds_of_its_gpus(weight: int, joules: int) -> None:
    assert run_cost_joules(run(weight), USED) == joules


def test_a_job_that_is_no_run_costs_nothing_and_never_too_much() -> None:
    assert run_cost_joules(job_view(), USED) is None
    assert not costs_too_much(job_view(), USED)


@pytest.mark.parametrize(("limit", "too_much"), [(3500, True), (3501, False), (None, False)])
def test_a_run_costs_too_much_from_its_limit_on(limit: int | None, too_much: bool) -> None:
    limits = {} if limit is None else {"costLimitJoules": limit}
    assert costs_too_much(run(**limits), USED) is too_much
