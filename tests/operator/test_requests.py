"""What users and SREs ask for, as the operator reads it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from flyball_operator.requests import format_time, parse_time, read_cap, read_job
from operator_objects import Json, cap_view, job_view, raw_job


def test_a_job_as_the_api_server_defaults_it() -> None:
    view = job_view()
    assert (view.key, view.gpus_min, view.gpus_max, view.resource_name) == ("team/train", 1, 8, "nvidia.com/gpu")
    assert (view.objective, view.on_exhausted, view.elastic, view.min_seconds_between_resizes) == (
        "Balanced",
        "Throttle",
        True,
        600,
    )
    assert (view.profile_key, view.managed_by, view.max_restarts) == ("train", "flyball.dev/operator", 3)
    assert (view.deadline, view.energy_budget_kilojoules, view.ttl_seconds_after_finished) == (None, None, None)
    assert (view.finished, view.suspend, view.unused_sections, view.last_incarnation) == (False, False, (), 0)


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
        pipeline={"stages": 2},
        recurrence={"batchSizes": [64]},
        priority=-3,
        suspend=True,
        managedBy="kueue.x-k8s.io/multikueue",
        failurePolicy={"maxRestarts": 0},
        ttlSecondsAfterFinished=60,
        status={"allocation": {"incarnation": 4}},
    )
    assert (view.gpus_min, view.gpus_max, view.resource_name) == (2, 4, "example.com/gpu")
    assert (view.iterations, view.max_local_batch_size, view.model_class) == (10, 32, "bert")
    assert (view.objective, view.energy_budget_kilojoules, view.on_exhausted) == ("Energy", 5, "Fail")
    assert view.deadline == datetime(2030, 6, 2, tzinfo=UTC)
    assert (view.clock_min_megahertz, view.clock_max_megahertz, view.power_limit_max_watts) == (900, 1200, 350)
    assert (view.elastic, view.min_seconds_between_resizes, view.profile_key) == (False, 7, "shared")
    assert view.unused_sections == ("pipeline", "recurrence")
    assert (view.priority, view.suspend, view.managed_by, view.max_restarts) == (
        -3,
        True,
        "kueue.x-k8s.io/multikueue",
        0,
    )
    assert (view.ttl_seconds_after_finished, view.last_incarnation) == (60, 4)


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
    with pytest.raises(ValueError, match="EnergyAwareJob team/train: not as the CRD has it"):
        job_view(**garbage)


@pytest.mark.parametrize("missing", ["gpus", "training", "template"])
def test_a_missing_section_is_refused_by_name(missing: str) -> None:
    raw = raw_job()
    del raw["spec"][missing]
    with pytest.raises(ValueError, match="EnergyAwareJob team/train"):
        read_job(raw)


def test_a_cap() -> None:
    view = cap_view(watts=1000, enforcement="Expected", staticOverheadWatts=50, status={"effectiveWatts": 900})
    assert (view.expected, view.static_overhead_watts, view.published_watts) == (True, 50, 900)
    assert (cap_view(watts=1).expected, cap_view(watts=1).static_overhead_watts) == (False, 0)
    assert cap_view(watts=1).published_watts is None
    assert read_cap({"metadata": {"name": "bare", "uid": "u"}}).spec == {}


def test_times_go_there_and_back() -> None:
    moment = datetime(2030, 6, 1, 14, 30, 5, 900, tzinfo=timezone(timedelta(hours=2)))
    assert format_time(moment) == "2030-06-01T12:30:05Z"
    assert parse_time("2030-06-01T12:30:05Z") == moment.replace(microsecond=0)
    assert parse_time("2030-06-01T12:30:05.123456Z") == datetime(2030, 6, 1, 12, 30, 5, 123456, tzinfo=UTC)
    assert parse_time(None) is None
    assert parse_time("") is None
    with pytest.raises(ValueError, match="soon"):
        parse_time("soon")
