"""What is known of a job beside its spec, and whether it wants GPUs."""

from __future__ import annotations

import pytest
from flyball_api.energy_aware_job import read_energy_aware_job
from flyball_operator.jobs.runs.lifecycle import JobPhase, JobStep
from flyball_operator.jobs.runs.memory import recorded_allocation, unknown_gpu_resource, wants_gpus
from flyball_operator.jobs.runs.progress import JobProgress
from flyball_operator.jobs.status import JobFacts, job_status
from flyball_planner.snapshot import Allocation

from tests.support.operator_objects import NOW, Json, incarnation_view, job_view, raw_job

ALLOCATION = Allocation((("a", 4),), 1200, 300.0)


def test_a_job_that_is_being_deleted_wants_nothing() -> None:
    raw = raw_job()
    raw["metadata"]["deletionTimestamp"] = "2030-06-01T11:59:00Z"
    assert not wants_gpus(read_energy_aware_job(raw), JobProgress(), None)


def test_the_status_tells_what_a_job_was_last_given() -> None:
    status: Json = {
        "allocation": {
            "nodes": [{"name": "a", "gpus": 4}],
            "clockMegahertz": 1200,
            "powerLimitWatts": 300,
        }
    }
    assert recorded_allocation(job_view(status=status), []) == ALLOCATION


def test_or_else_its_newest_incarnation_does() -> None:
    incarnations = [
        incarnation_view("uid-train", 2, ("b", 4)),
        incarnation_view("uid-train", 1, ("a", 4)),
        incarnation_view("uid-train", 3, ("c", 4), deleting=True),
    ]
    found = recorded_allocation(job_view(), incarnations)
    assert found is not None
    assert found.nodes == (("b", 4),)
    assert recorded_allocation(job_view(), []) is None
    assert recorded_allocation(job_view(status={"allocation": {"gpus": 0, "nodes": []}}), []) is None


@pytest.mark.parametrize(
    ("names", "known"),
    [(["nvidia.com/gpu"], True), (["example.com/gpu", "nvidia.com/gpu"], True), (["example.com/gpu"], False)],
)
def test_gpus_are_asked_for_by_a_resource_that_the_operator_knows(names: list[str], known: bool) -> None:
    refusal = unknown_gpu_resource(job_view(), names)
    assert (refusal is None) is known
    assert wants_gpus(job_view(), JobProgress(), refusal) is known
    if refusal is not None:
        assert refusal.message == (
            "spec.gpus.resourceName nvidia.com/gpu is none of the resources that the operator counts GPUs by "
            "(example.com/gpu): name one of them, or have the operator started with this one among its --gpu-resource"
        )


def test_a_job_that_another_controller_manages_asks_for_what_it_likes() -> None:
    assert unknown_gpu_resource(job_view(managedBy="someone.else/queue"), ["example.com/gpu"]) is None


@pytest.mark.parametrize(
    ("overrun", "kilojoules", "goes_on"),
    [(None, 10_000, True), (200, 1199, True), (200, 1200, False), (0, 1000, False)],
)
def test_a_throttled_job_goes_beyond_its_budget_as_far_as_it_may(
    overrun: int | None, kilojoules: int, goes_on: bool
) -> None:
    energy = {"budgetKilojoules": 1000, "onExhausted": "Throttle"} | (
        {} if overrun is None else {"maxOverrunPermille": overrun}
    )
    job = job_view(energy=energy)
    progress = JobProgress(settled_millijoules=kilojoules * 1_000_000)
    assert wants_gpus(job, progress, None) is goes_on
    facts = JobFacts(progress, JobStep(JobPhase.WAITING), None, 1, False, 0, NOW)
    admitted = next(item for item in job_status(job, facts).conditions if item.type == "Admitted")
    assert (admitted.reason == "WaitingForBudget") is not goes_on
    assert ("maxOverrunPermille" in admitted.message) is not goes_on
