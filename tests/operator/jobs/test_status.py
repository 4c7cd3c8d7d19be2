"""EnergyAwareJob.status: as the CRD has it, with the reasons of the reference, and no news where there is none."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from flyball_api.energy_aware_job import BackOff, EnergyAwareJob, EnergyAwareJobStatus, read_energy_aware_job
from flyball_api.values.units import MilliwattsPerGpu
from flyball_api.workloads import placement_annotation, read_incarnation
from flyball_operator.jobs.frontier import tradeoff
from flyball_operator.jobs.runs.lifecycle import JobPhase, JobStep
from flyball_operator.jobs.runs.memory import Refusal
from flyball_operator.jobs.runs.progress import JobProgress
from flyball_operator.jobs.runs.queue import PlanPlace
from flyball_operator.jobs.status import REASONS, JobFacts, energy_status, job_status, significant_fields
from flyball_operator.learning.frontiers import MAX_CHOICES
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.models.priors import model_class_prior
from flyball_planner.snapshot import Admission, JobDecision
from flyball_views.jobs import job_row
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.crd_schema import assert_valid
from tests.support.examples import examples
from tests.support.operator_objects import (
    A100,
    NOW,
    Json,
    as_stored,
    decision,
    incarnation_view,
    job_view,
    raw_batch_job,
    raw_job,
)

REFERENCE = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
NODES = (("a", 4), ("b", 4))
DECISION = decision("uid-train", *NODES, watts=312.5, clock=1200)
RUNNING = JobStep(JobPhase.RUNNING, incarnation_view("uid-train", 2, *NODES), bound=True)
WAITING = JobStep(JobPhase.WAITING)
BOOKS = JobProgress(
    iterations=250.0,
    iterations_per_second=2.0,
    last_report=NOW,
    settled_millijoules=3_000_000,
    settled_incarnation=1,
    open_millijoules={"2/a": 2_000_000, "2/b": 1_500_000},
    watts=2100.4,
    clock_megahertz=1185,
    attained_gpu_seconds=1000.0,
)


def facts(**fields: Any) -> JobFacts:
    """A job that runs as planned, but for `fields`."""
    base = JobFacts(BOOKS, RUNNING, DECISION, 7, True, 0, NOW, applied_milliwatts=MilliwattsPerGpu(305_000))
    return replace(base, **fields)


def conditions(status: Json) -> dict[str, Json]:
    return {item["type"]: item for item in status["conditions"]}


def stored(status: EnergyAwareJobStatus) -> Json:
    """The status as the API server has it after the write."""
    kept = as_stored(status)
    assert_valid("EnergyAwareJob", "status", kept)
    return kept


def made(job: EnergyAwareJob, facts: JobFacts) -> Json:
    """The status that is made of `facts`, as JSON."""
    return stored(job_status(job, facts))


def after(job: EnergyAwareJob, status: EnergyAwareJobStatus) -> EnergyAwareJob:
    """The job as it is read after the status was written."""
    raw = {**raw_job(), "status": stored(status)}
    return replace(job, status=read_energy_aware_job(raw).status)


# --- what a running job says ----------------------------------------------------------------------------------------


def test_a_model_of_ages_makes_no_status_that_the_api_server_refuses() -> None:
    job = job_view(training={"globalBatchSize": 2**31 - 1, "iterations": 10**12})
    ages = replace(DECISION, predicted_iteration_seconds=1e14)
    status = made(job, facts(decision=ages))
    assert status["energy"]["projectedKilojoules"] == 2**63 - 1
    assert status["prediction"]["microsecondsPerIteration"] == 2**63 - 1


@pytest.mark.parametrize(
    ("progress", "prediction"),
    [
        ({"iterations_per_second": 1.6}, (250, 313)),  # an iteration takes a quarter longer, at the same watts
        ({"iterations_per_second": 4.0, "watts": 4000.0}, (-500, 0)),
        ({"clock_megahertz": 1100}, None),  # at another clock than planned
        ({"estimated": True}, None),
        ({"watts": 0.0}, None),
        ({"iterations_per_second": 0.0}, None),
    ],
)
def test_a_job_says_how_wrong_its_model_is(progress: dict[str, Any], prediction: tuple[int, int] | None) -> None:
    found = made(job_view(), facts(progress=replace(BOOKS, **progress))).get("prediction")
    assert (None if found is None else (found["timeErrorPermille"], found["energyErrorPermille"])) == prediction


def test_a_running_job() -> None:
    status = made(job_view(), facts())
    assert status["observedGeneration"] == 1
    nodes = [{"name": "a", "gpus": 4}, {"name": "b", "gpus": 4}]
    assert status["allocation"] == {
        "epoch": 7,
        "incarnation": 2,
        "gpus": 8,
        "nodes": nodes,
        "clockMegahertz": 1200,
        "powerLimitWatts": 312,
    }
    # What is observed: the clock measured, the limit read back.
    assert status["applied"] == {
        "epoch": 7,
        "incarnation": 2,
        "gpus": 8,
        "nodes": nodes,
        "clockMegahertz": 1185,
        "powerLimitWatts": 305,
    }
    assert status["progress"] == {
        "iterations": 250,
        "iterationsPerKilosecond": 2000,
        "attainedGpuSeconds": 1000,
        "estimated": False,
        "lastReportTime": "2030-06-01T12:00:00Z",
        "estimatedCompletionTime": "2030-06-01T12:06:15Z",  # 750 iterations at 2 a second
    }
    assert status["energy"] == {
        "consumedKilojoules": 6,
        "settledMillijoules": 3_000_000,
        "settledIncarnation": 1,
        "incarnations": [{"key": "2/a", "millijoules": 2_000_000}, {"key": "2/b", "millijoules": 1_500_000}],
        "projectedKilojoules": round(6.5 + 750 * 8 * 250.0 * 0.5 / 1e3),
        "watts": 2100,
    }
    assert status["prediction"] == {
        "microsecondsPerIteration": 500_000,
        "watts": 2000,
        "timeErrorPermille": 0,
        "energyErrorPermille": 50,
    }
    assert status["summary"] == {
        "clock": "1185 MHz",
        "power": "2100 W",
        "progress": "25%",
        "energy": "6.5 kJ (0.00181 kWh)",
        "budget": "",
        "eta": "6m",
        "finish": "2030-06-01 12:06Z",
        "queue": "",
        "start": "",
    }
    assert status["time"] == "2030-06-01T12:00:00Z"
    assert "queue" not in status
    assert "waitingSince" not in status
    assert (status["state"], status["explanation"]) == ("Running", "because the test says so")
    assert status["startTime"] == "2030-06-01T12:00:00Z"
    assert "completionTime" not in status
    said = {kind: (item["status"], item["reason"]) for kind, item in conditions(status).items()}
    assert said == {
        "Admitted": ("True", "Admitted"),
        "Placed": ("True", "PodsBound"),
        "PodsReady": ("True", "AllRanksReady"),
        "Resizing": ("False", "Running"),
        "PowerLimitsEnforced": ("True", "LimitsAcknowledged"),
        "BudgetHealthy": ("True", "NoBudget"),
        "DeadlineAtRisk": ("False", "NoDeadline"),
        "BoundsKept": ("True", "NoBounds"),
        "Ready": ("True", "Running"),
    }


@pytest.mark.parametrize(
    ("step", "granted", "status", "reason", "words"),
    [
        (RUNNING, True, "True", "LimitsAcknowledged", "the agents of all its nodes have acknowledged the limits"),
        (RUNNING, False, "False", "WaitingForAcknowledgements", "not every agent of its nodes has acknowledged"),
        (replace(RUNNING, phase=JobPhase.STARTING), True, "True", "LimitsAcknowledged", "the agents of all its nodes"),
        (replace(RUNNING, phase=JobPhase.STARTING, bound=False), False, "False", "NotPlaced", "no GPU"),
        (JobStep(JobPhase.COMPLETE, RUNNING.current), False, "False", "NotPlaced", "no GPU"),
        (WAITING, False, "False", "NotPlaced", "no GPU"),
    ],
    ids=["running", "waits for an agent", "starting", "not bound", "complete", "waiting"],
)
def test_whose_limits_are_enforced(step: JobStep, granted: bool, status: str, reason: str, words: str) -> None:
    said = conditions(made(job_view(), facts(step=step, granted=granted)))["PowerLimitsEnforced"]
    assert (said["status"], said["reason"]) == (status, reason)
    assert words in said["message"]


def test_a_limit_that_nobody_has_read_back_is_not_claimed() -> None:
    assert "powerLimitWatts" not in made(job_view(), facts(applied_milliwatts=0))["applied"]


def test_a_job_that_waits() -> None:
    waiting = JobDecision("uid-train", None, Admission.WAITING_FOR_POWER, "150 W short")
    status = made(job_view(), facts(step=WAITING, decision=waiting, progress=JobProgress(), granted=False))
    assert status["state"] == "WaitingForPower"
    assert status["explanation"] == "150 W short"
    assert "allocation" not in status
    assert "applied" not in status
    assert "startTime" not in status
    assert status["summary"]["eta"] == ""


def place(**fields: Any) -> PlanPlace:
    base = PlanPlace(3, 17, NOW + timedelta(minutes=25), "when team/a has ended", NOW - timedelta(seconds=4))
    return replace(base, **fields)


WAITS = {
    "step": WAITING,
    "decision": JobDecision("uid-train", None, Admission.WAITING_FOR_GPUS, "all are taken"),
    "progress": JobProgress(),
    "granted": False,
}


def test_a_job_that_waits_says_its_place_and_when_it_can_expect_to_start() -> None:
    status = made(job_view(), facts(**WAITS, queue=place()))
    assert status["queue"] == {
        "position": 3,
        "waiting": 17,
        "expectedStartTime": "2030-06-01T12:25:00Z",
        "basis": "when team/a has ended",
        "time": "2030-06-01T11:59:56Z",
    }
    assert (status["summary"]["queue"], status["summary"]["start"]) == ("3/17", "2030-06-01 12:25Z")
    assert status["waitingSince"] == "2030-06-01T12:00:00Z"


def test_a_job_that_is_put_off_or_pauses_says_when_it_starts() -> None:
    then = NOW + timedelta(minutes=25)
    put_off = facts(**{**WAITS, "decision": None, "refusal": Refusal("WaitingForSignal", "later", then)})
    pauses = facts(**{**WAITS, "decision": None, "back_off": BackOff(then, "RestartBackOff", "it has failed", 1)})
    for each in (put_off, pauses):
        assert made(job_view(), each)["summary"]["start"] == "2030-06-01 12:25Z"
        assert made(job_view(suspend=True), each)["summary"]["start"] == ""
    assert made(job_view(), facts(back_off=pauses.back_off))["summary"]["start"] == "", "it runs"


def test_a_start_that_nobody_knows_is_said_to_be_unknown() -> None:
    status = made(
        job_view(), facts(**WAITS, queue=place(start=None, basis="2 jobs with GPUs have no end that is known"))
    )
    assert "expectedStartTime" not in status["queue"]
    assert status["queue"]["basis"] == "2 jobs with GPUs have no end that is known"
    assert status["summary"]["start"] == "unknown"


def test_a_wait_has_one_beginning_whatever_it_is_for() -> None:
    job = after(job_view(), job_status(job_view(), facts(**WAITS)))
    later = facts(**{**WAITS, "decision": JobDecision("uid-train", None, Admission.WAITING_FOR_POWER, "150 W short")})
    status = job_status(job, replace(later, now=NOW + timedelta(minutes=5)))
    assert stored(status)["waitingSince"] == "2030-06-01T12:00:00Z"
    runs = job_status(after(job_view(), status), facts())
    assert runs.waiting_since is None


@pytest.mark.parametrize(
    ("band", "ends", "words"),
    [
        ((0.8, 1.25), ("2030-06-01T12:05:00Z", "2030-06-01T12:07:48Z"), "2030-06-01 12:06Z (12:05-12:07)"),
        (
            (0.01, 150.0),
            ("2030-06-01T12:00:03Z", "2030-06-02T03:37:30Z"),
            "2030-06-01 12:06Z (06-01 12:00 to 06-02 03:37)",
        ),
        (None, (None, None), "2030-06-01 12:06Z"),
        ((0.5, 1e30), ("2030-06-01T12:03:07Z", None), "2030-06-01 12:06Z"),
    ],
)
def test_the_end_has_a_band(band: tuple[float, float] | None, ends: tuple[str | None, str | None], words: str) -> None:
    status = made(job_view(), facts(pace_band=band))
    progress = status["progress"]
    assert (progress.get("earliestCompletionTime"), progress.get("latestCompletionTime")) == ends
    assert status["summary"]["finish"] == words


def test_a_paused_job_keeps_its_incarnations_number() -> None:
    job = job_view(status={"allocation": {"incarnation": 4, "gpus": 8}}, suspend=True)
    status = made(job, facts(step=WAITING, decision=None, granted=False))
    assert status["allocation"] == {"epoch": 7, "incarnation": 4, "gpus": 0, "nodes": []}
    assert status["state"] == "Suspended"


@pytest.mark.parametrize(
    ("spec", "changes", "status", "reason"),
    [
        ({}, {}, "True", "Admitted"),
        ({}, {"decision": None}, "Unknown", "Planning"),
        ({"suspend": True}, {}, "False", "Suspended"),
        ({}, {"refusal": Refusal("InvalidSpec", "spec.containers: no")}, "False", "InvalidSpec"),
        ({"energy": {"budgetKilojoules": 6, "onExhausted": "Suspend"}}, {}, "False", "WaitingForBudget"),
        ({"energy": {"budgetKilojoules": 6, "onExhausted": "Fail"}}, {}, "False", "WaitingForBudget"),
        ({"energy": {"budgetKilojoules": 6, "onExhausted": "Throttle"}}, {}, "True", "Admitted"),
        ({}, {"outcome": "Succeeded", "outcome_message": "done"}, "False", "Succeeded"),
        ({"suspend": True}, {"outcome": "Failed", "outcome_message": "no"}, "False", "Failed"),
    ],
)
def test_admitted(spec: Json, changes: Json, status: str, reason: str) -> None:
    admitted = conditions(made(job_view(**spec), facts(**changes)))["Admitted"]
    assert (admitted["status"], admitted["reason"]) == (status, reason)


@pytest.mark.parametrize(
    ("budget", "status", "reason"),
    [
        (None, "True", "NoBudget"),
        (10_000, "True", "WithinBudget"),
        (100, "False", "ProjectedOverBudget"),
        (6, "False", "Exhausted"),
    ],
)
def test_budget(budget: int | None, status: str, reason: str) -> None:
    spec: Json = {} if budget is None else {"energy": {"budgetKilojoules": budget}}
    healthy = conditions(made(job_view(**spec), facts()))["BudgetHealthy"]
    assert (healthy["status"], healthy["reason"]) == (status, reason)


def test_a_budget_is_compared_with_what_is_known() -> None:
    spec: Json = {"energy": {"budgetKilojoules": 8}}
    healthy = conditions(made(job_view(**spec), facts(decision=None, progress=JobProgress())))["BudgetHealthy"]
    assert healthy["message"] == "0 kJ used so far, and 8 kJ are allowed"


def test_deadline() -> None:
    job = job_view(deadline="2030-06-01T13:00:00Z")
    late = replace(DECISION, deadline_at_risk=True, nearest_deadline_seconds=7200.0)
    status = made(job, facts(decision=late))
    risk = conditions(status)["DeadlineAtRisk"]
    assert (risk["status"], risk["reason"]) == ("True", "NoAllocationMeetsIt")
    assert "2030-06-01T13:00:00Z" in risk["message"]
    assert "2030-06-01T14:00:00Z" in risk["message"]
    assert status["state"] == "DeadlineAtRisk"
    on_time = conditions(made(job, facts()))["DeadlineAtRisk"]
    assert (on_time["status"], on_time["reason"]) == ("False", "OnTime")


@pytest.mark.parametrize(
    ("phase", "placed", "ready", "resizing"),
    [
        (JobPhase.WAITING, False, False, False),
        (JobPhase.STOPPING, False, False, True),
        (JobPhase.CREATING, False, False, True),
        (JobPhase.GATED, False, False, True),
        (JobPhase.STARTING, True, False, False),
        (JobPhase.RUNNING, True, True, False),
        (JobPhase.COMPLETE, True, False, False),
        (JobPhase.FAILED, False, False, False),
    ],
)
def test_every_step(phase: JobPhase, placed: bool, ready: bool, resizing: bool) -> None:
    bound = phase in (JobPhase.STARTING, JobPhase.RUNNING)
    step = JobStep(phase, None if phase == JobPhase.WAITING else RUNNING.current, bound=bound)
    said = conditions(made(job_view(), facts(step=step, granted=phase == JobPhase.RUNNING)))
    assert said["Placed"]["status"] == str(placed)
    assert said["PodsReady"]["status"] == str(ready)
    assert said["Resizing"]["status"] == str(resizing)
    assert said["Resizing"]["reason"] == str(phase)


@pytest.mark.parametrize("outcome", ["Succeeded", "Failed"])
def test_the_end(outcome: str) -> None:
    done = facts(step=JobStep(JobPhase.COMPLETE, RUNNING.current), outcome=outcome, outcome_message="in so many words")
    job = after(job_view(), job_status(job_view(), facts()))
    status = made(job, done)
    assert conditions(status)[outcome]["status"] == "True"
    assert job_view(status=status).finished
    assert (status["state"], status["explanation"]) == (outcome, "in so many words")
    assert status["completionTime"] == "2030-06-01T12:00:00Z"
    assert status["allocation"]["gpus"] == 0
    assert "applied" not in status
    assert status["energy"]["projectedKilojoules"] == 6


@pytest.mark.parametrize("rate", [1e-68, 1e-9])
def test_a_job_that_hardly_advances_has_no_end_worth_naming(rate: float) -> None:
    progress = JobProgress(iterations_per_second=rate)
    status = made(job_view(), facts(progress=progress))
    assert "estimatedCompletionTime" not in status["progress"]
    assert status["summary"]["eta"] == ""
    late = facts(decision=replace(DECISION, deadline_at_risk=True, nearest_deadline_seconds=1e30))
    at_risk = conditions(made(job_view(deadline="2030-06-02T00:00:00Z"), late))["DeadlineAtRisk"]
    assert "earliest possible" not in at_risk["message"]


@pytest.mark.parametrize(
    ("iterations", "progress", "eta", "end_known"),
    [(250.0, "~25%", "~6m", True), (999.0, "~99%", "~0s", True), (1000.0, "~99%", "", False), (5e6, "~99%", "", False)],
)
def test_progress_without_reports_is_said_to_be_estimated(
    iterations: float, progress: str, eta: str, end_known: bool
) -> None:
    silent = replace(BOOKS, iterations=iterations, estimated=True, last_report=None)
    status = made(job_view(), facts(progress=silent))
    assert status["progress"]["estimated"]
    assert (status["summary"]["progress"], status["summary"]["eta"]) == (progress, eta)
    # By the model it should have ended, and it has not: nobody knows when it will, nor what it will have cost.
    assert ("estimatedCompletionTime" in status["progress"]) == end_known
    assert ("projectedKilojoules" in status["energy"]) == end_known


def test_only_the_end_makes_an_estimate_whole() -> None:
    silent = replace(BOOKS, iterations=1000.0, estimated=True, last_report=None)
    status = made(job_view(), facts(progress=silent, outcome="Succeeded"))
    assert (status["summary"]["progress"], status["state"]) == ("~100%", "Succeeded")


def test_progress_that_was_reported_is_not_called_an_estimate() -> None:
    status = made(job_view(), facts(progress=replace(BOOKS, iterations=1000.0)))
    assert (status["summary"]["progress"], status["summary"]["eta"]) == ("100%", "0s")


def test_words_of_any_length_fit() -> None:
    for changes in (
        {"refusal": Refusal("InvalidSpec", "x" * 5000)},
        {"decision": replace(DECISION, explanation="y" * 5000)},
    ):
        made(job_view(), facts(**changes))


def test_failures_that_were_counted() -> None:
    status = made(job_view(), facts(restarts=2, last_failed=5))
    assert (status["restarts"], status["lastFailedIncarnation"]) == (2, 5)
    assert "lastFailedIncarnation" not in made(job_view(), facts())


def test_energy_that_is_reported_after_the_end() -> None:
    job = after(job_view(), job_status(job_view(), facts(outcome="Succeeded")))
    late = energy_status(job, replace(BOOKS, open_millijoules={"2/a": 3_000_000, "2/b": 1_500_000}))
    before, merged = stored(job.status), stored(late)
    assert merged["energy"]["consumedKilojoules"] == 7
    assert merged["summary"] == {**before["summary"], "energy": "7.5 kJ (0.00208 kWh)"}
    assert {**merged, "energy": None, "summary": None} == {**before, "energy": None, "summary": None}


@pytest.mark.parametrize(
    ("kilojoules", "words"),
    [
        (0.0, "0.0 kJ (0 kWh)"),
        (0.3, "0.3 kJ (<0.001 kWh)"),
        (3.6, "3.6 kJ (0.001 kWh)"),
        (999.0, "999.0 kJ (0.278 kWh)"),
        (3600.0, "3.6 MJ (1 kWh)"),
        (2.5e6, "2.5 GJ (694 kWh)"),
        (3.599e6, "3.6 GJ (1 MWh)"),
        (7.2e6, "7.2 GJ (2 MWh)"),
        (3.6e9, "3600.0 GJ (1000 MWh)"),
    ],
)
def test_energy_for_people(kilojoules: float, words: str) -> None:
    progress = JobProgress(settled_millijoules=int(kilojoules * 1e6))
    assert made(job_view(), facts(progress=progress))["summary"]["energy"] == words


@pytest.mark.parametrize(
    ("iterations", "kilojoules", "words"),
    [
        (996, 5_999, ("99%", "99%")),
        (290, 1_740, ("29%", "29%")),
        (1000, 6_000, ("100%", "100%")),
        (4, 6_061, ("0%", "101%")),
    ],
)
def test_only_what_is_done_or_spent_reads_a_hundred_percent(
    iterations: int, kilojoules: int, words: tuple[str, str]
) -> None:
    progress = JobProgress(iterations=float(iterations), settled_millijoules=kilojoules * 1_000_000)
    summary = made(job_view(energy={"budgetKilojoules": 6_000}), facts(progress=progress))["summary"]
    assert (summary["progress"], summary["budget"]) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(5, "5s"), (119, "119s"), (150, "2m"), (7100, "118m"), (7300, "2h"), (3600 * 49, "2d")]
)
def test_times_for_people(seconds: int, words: str) -> None:
    job = job_view(training={"globalBatchSize": 256, "iterations": seconds})
    progress = JobProgress(iterations=0.0, iterations_per_second=1.0)
    assert made(job, facts(progress=progress))["summary"]["eta"] == words


# --- in general --------------------------------------------------------------------------------------------------


@st.composite
def any_facts(draw: st.DrawFn) -> tuple[EnergyAwareJob, JobFacts]:
    spec: Json = {}
    if draw(st.booleans()):
        spec["energy"] = {
            "budgetKilojoules": draw(st.integers(1, 10)),
            "onExhausted": draw(st.sampled_from(["Throttle", "Suspend", "Fail"])),
        }
    if draw(st.booleans()):
        spec["deadline"] = "2030-06-02T00:00:00Z"
    if draw(st.booleans()):
        spec["training"] = {"globalBatchSize": 256}  # nothing is known about the end
    spec["suspend"] = draw(st.booleans())
    if draw(st.booleans()):
        spec["managedBy"] = draw(st.sampled_from(["flyball.dev/operator", "else.where/queue"]))
    phase = draw(st.sampled_from(list(JobPhase)))
    current = None if phase == JobPhase.WAITING else draw(st.sampled_from([None, RUNNING.current]))
    planned = draw(
        st.none()
        | st.builds(
            JobDecision,
            uid=st.just("uid-train"),
            allocation=st.sampled_from([None, DECISION.allocation]),
            admission=st.sampled_from(list(Admission)),
            explanation=st.text(max_size=20),
            predicted_iteration_seconds=st.floats(0.0, 1e6),
            predicted_gpu_watts=st.floats(0.0, 1e4),
            deadline_at_risk=st.booleans(),
            nearest_deadline_seconds=st.none() | st.floats(0.0, 1e7),
        )
    )
    progress = JobProgress(
        iterations=draw(st.floats(0.0, 1e9)),
        iterations_per_second=draw(st.floats(0.0, 1e3)),
        estimated=draw(st.booleans()),
        last_report=draw(st.sampled_from([None, NOW])),
        settled_millijoules=draw(st.integers(0, 10**15)),
        open_millijoules=draw(st.dictionaries(st.sampled_from(["1/a", "2/b"]), st.integers(0, 10**12))),
        watts=draw(st.floats(0.0, 1e6)),
        clock_megahertz=draw(st.integers(0, 3000)),
        attained_gpu_seconds=draw(st.floats(0.0, 1e9)),
    )
    some_facts = JobFacts(
        progress=progress,
        step=JobStep(phase, current),
        decision=planned,
        epoch=draw(st.integers(0, 10)),
        granted=draw(st.booleans()),
        restarts=draw(st.integers(0, 5)),
        now=NOW,
        last_failed=draw(st.integers(0, 5)),
        applied_milliwatts=MilliwattsPerGpu(draw(st.integers(0, 700_000))),
        outcome=draw(st.sampled_from(["", "", "Succeeded", "Failed"])),
        outcome_message=draw(st.text(max_size=20)),
        refusal=draw(st.sampled_from([None, None, Refusal("InvalidSpec", "no such image")])),
        last_resize=draw(st.sampled_from([None, NOW - timedelta(minutes=30)])),
    )
    return job_view(**spec), some_facts


# What these say is given to them: in these tests, at times nothing.
IN_WORDS_OF_OTHERS = {"Admitted", "Ready", "Succeeded", "Failed"}


@given(any_facts())
@settings(max_examples=examples(150))
def test_any_status_is_as_the_crd_has_it_and_says_nothing_new_the_second_time(
    case: tuple[EnergyAwareJob, JobFacts],
) -> None:
    job, some_facts = case
    status = job_status(job, some_facts)
    kept = stored(status)
    for kind, item in conditions(kept).items():
        assert item["reason"] in REASONS[kind]
        assert item["message"] or kind in IN_WORDS_OF_OTHERS, f"{kind} says {item['reason']} and nothing more"
    again = after(job, status)
    second = job_status(again, some_facts)
    assert (second, stored(second)) == (again.status, kept)
    assert significant_fields(second) == significant_fields(again.status)
    later = job_status(again, replace(some_facts, now=NOW + timedelta(hours=1)))
    assert [item.last_transition_time for item in later.conditions] == [
        item.last_transition_time for item in status.conditions
    ]


@pytest.mark.parametrize(
    "number", [1024, pytest.param(4096, marks=pytest.mark.slow), pytest.param(8192, marks=pytest.mark.slow)]
)
def test_a_job_on_thousands_of_nodes_fits_into_what_is_stored(number: int) -> None:
    """etcd takes 1.5 MiB, and the API server 256 KiB of annotations."""
    draw = random.Random(1)
    suffixes = ("".join(draw.choices("bcdfghjklmnpqrstvwxz2456789", k=5)) for _ in range(number))
    nodes = tuple((f"cluster-a-pool-h100-1a2b3c4d-{suffix}", 8) for suffix in suffixes)
    size = 8 * len(nodes)
    job = job_view(gpus={"min": size, "max": size}, training={"globalBatchSize": size})
    books = replace(BOOKS, open_millijoules={f"2/{name}": 10**11 for name, _ in nodes})
    step = replace(RUNNING, current=incarnation_view("uid-train", 2, *nodes))
    status = job_status(job, facts(progress=books, step=step, decision=decision("uid-train", *nodes)))
    assert len(json.dumps(as_stored(status))) < 1.4 * 2**20
    annotation = placement_annotation(nodes)
    assert len(annotation) < 200 * 2**10
    raw = raw_batch_job("uid-train", 2, ())
    raw["metadata"]["annotations"]["flyball.dev/allocation"] = annotation
    assert read_incarnation(raw).nodes == nodes
    assert job_row(after(job, status)).nodes == tuple(name for name, _ in nodes)


def test_the_reference_lists_the_same_reasons() -> None:
    section = REFERENCE.split("## EnergyAwareJob")[1].split("## PowerCap")[0]
    rows = re.findall(r"^\| (`[A-Z].*?) \| (.*) \|$", section, re.MULTILINE)
    steps = {str(phase) for phase in JobPhase}
    listed: dict[str, set[str]] = {}
    for kinds, reasons in rows:
        words = set(re.findall(r"`([A-Z][A-Za-z]+)`", reasons))
        for kind in re.findall(r"`([A-Za-z]+)`", kinds):
            listed[kind] = words | (steps if "the step" in reasons else {kind} if "the same word" in reasons else set())
    assert not listed.pop("Ready"), "it has the reasons of the others"
    assert listed == {kind: set(reasons) for kind, reasons in REASONS.items() if kind != "Ready"}
    placed = next(reasons for kinds, reasons in rows if "`Placed`" in kinds)
    assert steps <= set(re.findall(r"`([A-Z][A-Za-z]+)`", placed))  # and what a step is


# --- what time costs for the rest -----------------------------------------------------------------------------------

MODEL = gpu_model_for(A100)
assert MODEL is not None
PRIOR = model_class_prior("resnet50", MODEL)


def test_the_ends_of_what_time_costs_are_those_of_the_model() -> None:
    job = job_view(gpus={"min": 1, "max": 8}, training={"globalBatchSize": 1024, "iterations": 100_000})
    found = tradeoff(job, PRIOR, 40_000.0, 8)
    assert found is not None
    assert (found.gpu_model, 2 < found.choices <= MAX_CHOICES) == (MODEL.product, True)
    curves = PRIOR.curves(8, 1, 1024)
    assert found.fastest.seconds == pytest.approx(float(curves.seconds.min()) * 60_000, abs=1)
    thrifty = min(float(PRIOR.curves(size, 1, 1024).joules.min()) for size in (1, 2, 4, 8))
    assert found.thriftiest.kilojoules == pytest.approx(thrifty * 60, abs=1)
    assert found.thriftiest.gpus < found.fastest.gpus
    stored(msgspec.structs.replace(job_status(job, facts()), tradeoff=found))


def test_a_job_past_its_end_has_nothing_left() -> None:
    found = tradeoff(job_view(training={"globalBatchSize": 64, "iterations": 10}), PRIOR, 12.0, 8)
    assert found is not None
    assert (found.fastest.seconds, found.thriftiest.kilojoules) == (0, 0)


def test_nobody_knows_what_time_costs_without_an_end_or_a_clock() -> None:
    assert tradeoff(job_view(training={"globalBatchSize": 64}), PRIOR, 0.0, 8) is None
    assert tradeoff(job_view(clocks={"minMegahertz": 1, "maxMegahertz": 2}), PRIOR, 0.0, 8) is None
