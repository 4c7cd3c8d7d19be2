"""EnergyAwareJobs as users write them: every field, its default, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from flyball_api.energy_aware_job import (
    ClockBounds,
    PipelineParallelism,
    PlanSource,
    Recurrence,
    read_energy_aware_job,
)

from tests.support.operator_objects import Json, job_view, raw_job


def test_a_job_as_the_api_server_defaults_it() -> None:
    job = job_view()
    gpus, elasticity = job.spec.gpus, job.spec.elasticity
    assert (job.key, gpus.min, gpus.max, gpus.resource_name) == ("team/train", 1, 8, "nvidia.com/gpu")
    assert (job.spec.objective, job.spec.energy.on_exhausted, job.elastic) == ("Balanced", "Throttle", True)
    assert elasticity.min_seconds_between_resizes == 600
    assert (job.profile_key, job.managed_by_flyball, job.spec.failure_policy.max_restarts) == ("train", True, 3)
    assert (job.spec.deadline, job.spec.energy.budget_kilojoules) == (None, None)
    assert job.spec.ttl_seconds_after_finished is None
    assert (job.finished, job.spec.suspend, job.spec.pipeline, job.last_incarnation) == (False, False, None, 0)


def test_everything_that_a_job_can_say() -> None:
    view = job_view(
        gpus={"min": 2, "max": 4, "resourceName": "example.com/gpu"},
        training={"globalBatchSize": 64, "iterations": 10, "maxLocalBatchSize": 32, "modelClass": "bert"},
        objective="Energy",
        energy={"budgetKilojoules": 5, "onExhausted": "Fail"},
        deadline="2030-06-02T00:00:00Z",
        clocks={"minMegahertz": 900, "maxMegahertz": 1200},
        powerLimit={"maxWatts": 350},
        elasticity={"mode": "Never", "minSecondsBetweenResizes": 7},
        profileKey="shared",
        pipeline={"stages": 2, "microbatches": 8, "plan": {"configMap": "gpt3"}},
        recurrence={"batchSizes": [32, 64], "targetMetric": "loss <= 2.1"},
        priority=-3,
        suspend=True,
        managedBy="kueue.x-k8s.io/multikueue",
        failurePolicy={"maxRestarts": 0},
        ttlSecondsAfterFinished=60,
        status={"allocation": {"incarnation": 4}},
    )
    spec, gpus, training = view.spec, view.spec.gpus, view.spec.training
    assert (gpus.min, gpus.max, gpus.resource_name) == (2, 4, "example.com/gpu")
    assert (training.iterations, training.max_local_batch_size, training.model_class) == (10, 32, "bert")
    assert (spec.objective, spec.energy.budget_kilojoules, spec.energy.on_exhausted) == ("Energy", 5, "Fail")
    assert spec.deadline == datetime(2030, 6, 2, tzinfo=UTC)
    assert (spec.clocks, spec.power_limit.max_watts) == (ClockBounds(900, 1200), 350)
    assert (view.elastic, spec.elasticity.min_seconds_between_resizes, view.profile_key) == (False, 7, "shared")
    assert spec.pipeline == PipelineParallelism(2, 8, PlanSource("gpt3", "plan.json"))
    assert spec.recurrence == Recurrence((32, 64), "loss <= 2.1", 500)
    assert (spec.priority, spec.suspend, spec.failure_policy.max_restarts) == (-3, True, 0)
    assert (spec.managed_by, view.managed_by_flyball) == ("kueue.x-k8s.io/multikueue", False)
    assert (spec.ttl_seconds_after_finished, view.last_incarnation) == (60, 4)


@pytest.mark.parametrize(
    ("conditions", "finished"),
    [
        ([], False),
        ([{"type": "Succeeded", "status": "True"}], True),
        ([{"type": "Failed", "status": "True"}], True),
        ([{"type": "Failed", "status": "False"}, {"type": "Admitted", "status": "True"}], False),
    ],
)
def test_finished(conditions: list[Json], finished: bool) -> None:
    assert job_view(status={"conditions": conditions}).finished is finished


@pytest.mark.parametrize(
    "garbage",
    [
        {"gpus": None},
        {"gpus": {}},
        {"gpus": {"min": 4, "max": 2}},
        {"gpus": {"min": 0, "max": 2}},
        {"gpus": {"min": "one", "max": 2}},
        {"gpus": 8},
        {"training": {}},
        {"training": {"globalBatchSize": 0}},
        {"deadline": "tomorrow"},
        {"objective": "Cheapest"},
        {"energy": 5},
    ],
)
def test_garbage_is_refused_by_name(garbage: Json) -> None:
    with pytest.raises(ValueError, match=f"EnergyAwareJob team/train: spec(.{next(iter(garbage))}|: Object missing)"):
        job_view(**garbage)


@pytest.mark.parametrize("missing", ["gpus", "training", "template"])
def test_a_missing_section_is_refused_by_name(missing: str) -> None:
    raw = raw_job()
    del raw["spec"][missing]
    with pytest.raises(ValueError, match="EnergyAwareJob team/train"):
        read_energy_aware_job(raw)


RUN = {"decision": 2, "globalBatchSize": 96, "purpose": "Sample", "gpuModel": "A100", "wattsPerGpu": 400}


def recurring(batch_sizes: list[int], **run: Json) -> Json:
    return raw_job(
        training={"globalBatchSize": 64, "iterations": 100},
        recurrence={"batchSizes": batch_sizes, "targetMetric": "loss <= 2.1"},
        status={"recurrence": {**RUN, **run}},
    )


@pytest.mark.parametrize("depth", [70, 400, 990, 5000])
@pytest.mark.parametrize("null", [{}, {"deadline": None}])
def test_a_template_that_is_nested_too_deep_is_left_out_and_said(depth: int, null: Json) -> None:
    """The API server takes it, for it does not look into the template; the rest of the job is read all the same."""
    raw = raw_job(**null)
    deep: Json = {}
    for _ in range(depth):
        deep = {"a": deep}
    raw["spec"]["template"]["spec"]["deep"] = deep
    job = read_energy_aware_job(raw)
    assert job.template_problem == "spec.template is nested more than 64 levels deep, which no pod's template is"
    assert (job.spec.template, job.spec.gpus.max) == ({}, 8)


@pytest.mark.parametrize(
    "filler", [[[]] * 10_000, [{}] * 10_000, {str(number): 1 for number in range(10_000)}, [[1] * 100] * 100]
)
def test_a_template_that_is_larger_than_any_pods_is_left_out_and_said(filler: object) -> None:
    """What its owner writes in three bytes each, whoever reads the job would keep in sixty."""
    raw = raw_job()
    raw["spec"]["template"]["spec"]["filler"] = filler
    job = read_energy_aware_job(raw)
    assert job.template_problem == "spec.template has more than 10,000 fields and entries, which no pod's template has"
    assert (job.spec.template, job.spec.gpus.max) == ({}, 8)


def test_a_template_with_a_thousand_variables_stays() -> None:
    raw = raw_job()
    variables = [{"name": f"NAME_{number}", "value": "1"} for number in range(1000)]
    raw["spec"]["template"]["spec"]["containers"][0]["env"] = variables
    job = read_energy_aware_job(raw)
    assert not job.template_problem
    assert job.spec.template["spec"]["containers"][0]["env"] == variables


def test_a_template_as_deep_as_any_pods_stays() -> None:
    job = job_view()
    assert job.spec.template
    assert not job.template_problem


def test_a_run_trains_on_as_many_samples_by_the_batch_size_that_was_chosen_for_it() -> None:
    view = read_energy_aware_job(recurring([64, 96]))
    assert (view.spec.training.global_batch_size, view.spec.training.iterations) == (96, 67)
    assert view.default_batch_size == 64
    assert view.run is not None
    assert (view.run.decision, view.run.cost_limit_joules) == (2, None)


def test_a_choice_of_another_list_is_none() -> None:
    view = read_energy_aware_job(recurring([64, 128]))
    assert (view.run, view.spec.training.global_batch_size, view.spec.training.iterations) == (None, 64, 100)
