"""Reports of trainers, the windows they are measured over, and who is still on the node."""

from __future__ import annotations

import json
import math

import pytest
from flyball_agent.core import PodName
from flyball_agent.desired import DesiredSpec, JobGrant
from flyball_agent.observations import (
    ENDED_KEPT_NS,
    MAX_OBSERVATIONS,
    InvalidReport,
    Observations,
    PodHold,
    StepReport,
    Window,
    parse_steps,
)

SECOND = 1_000_000_000
POD = PodName("research", "gpt2-1-0")
JOB = JobGrant("research", "gpt2", "u-1", 1, "gpt2-1-0", 2, 250_000)
SPEC = DesiredSpec(1, 1, 30, 800_000, jobs=(JOB,))
GOOD = {"iterations": 100, "windowIterations": 10, "windowSeconds": 2.5, "localBatchSize": 32}


def test_a_report_is_read():
    assert parse_steps(GOOD) == StepReport(100, 10, 2.5, 32)
    assert parse_steps({"iterations": 0, "windowIterations": 0, "windowSeconds": 0}) == StepReport(0, 0, 0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"iterations": -1}, "iterations: -1"),
        ({"iterations": 1.5}, "iterations: 1.5"),
        ({"iterations": None}, "iterations: None"),
        ({"iterations": 5}, "windowIterations 10 is above iterations 5"),
        ({"windowIterations": True}, "windowIterations: True"),
        ({"windowSeconds": "2"}, "windowSeconds: '2'"),
        ({"windowSeconds": math.nan}, "windowSeconds: nan"),
        ({"windowSeconds": 1e300}, "windowSeconds: 1e"),
        ({"localBatchSize": 2**60}, "localBatchSize"),
    ],
)
def test_a_report_that_cannot_be_is_refused_with_a_sentence(change, message):
    with pytest.raises(InvalidReport, match=message):
        parse_steps({**GOOD, **change})


def test_no_object_is_no_report():
    with pytest.raises(InvalidReport, match="not a JSON object"):
        parse_steps([GOOD])


def test_a_window_measures_between_its_samples():
    window = Window()
    assert window.energy_millijoules(0, SECOND) is None
    assert window.clock_megahertz(0, SECOND) is None
    for second, energy, clock in ((10, 0, 1000), (11, 300, 1200), (12, 400, 1400)):
        window.add(second * SECOND, energy, clock)
    assert window.energy_millijoules(10 * SECOND, 12 * SECOND) == 400
    assert window.energy_millijoules(round(10.5 * SECOND), round(11.5 * SECOND)) == 200
    assert window.energy_millijoules(11 * SECOND, 13 * SECOND) == 200  # goes on at the last rate
    assert window.energy_millijoules(0, 11 * SECOND) == 300  # no further back than it knows
    assert window.clock_megahertz(10 * SECOND, 12 * SECOND) == 1300
    assert window.clock_megahertz(round(12.1 * SECOND), 13 * SECOND) == 1400
    window.add(12 * SECOND, 999, 1)  # not a later time: nothing new
    assert window.energy_millijoules(10 * SECOND, 12 * SECOND) == 400


def observed(observations: Observations) -> list[tuple[str, int, bool]]:
    return [(job.pod_name, job.gpus, job.ended) for job in observations]


def test_a_jobs_pod_comes_changes_and_ends():
    observations = Observations()
    assert not observations.sync(SPEC, {}, 0)
    assert observations.sync(SPEC, {POD: PodHold("pod-uid", 2)}, 0)
    assert observed(observations) == [("gpt2-1-0", 2, False)]
    assert not observations.sync(SPEC, {POD: PodHold("pod-uid", 2)}, 0)
    assert observations.sync(SPEC, {POD: PodHold("pod-uid", 4)}, 0)
    assert observations.sync(None, {}, 5 * SECOND)
    assert observed(observations) == [("gpt2-1-0", 4, True)]
    assert not observations.sync(None, {}, ENDED_KEPT_NS)
    assert observations.sync(None, {}, 6 * SECOND + ENDED_KEPT_NS)
    assert observed(observations) == []


def test_pods_of_nobodys_job_and_other_pods_of_the_same_name_are_not_its():
    observations = Observations()
    assert not observations.sync(SPEC, {PodName("other", "gpt2-1-0"): PodHold("x", 1)}, 0)
    observations.sync(SPEC, {POD: PodHold("first", 2)}, 0)
    observations.sync(SPEC, {POD: PodHold("second", 2)}, 0)
    assert observed(observations) == [("gpt2-1-0", 2, True)]


def test_a_report_is_measured_over_its_window():
    observations = Observations()
    hold = PodHold("pod-uid", 2)
    for second in range(11):
        hold.window.add(second * SECOND, 500_000 * second, 1005)
    assert not observations.report(POD, hold, StepReport(100, 10, 5.0, 32), 10 * SECOND, 0.0)
    observations.sync(SPEC, {POD: hold}, 0)
    assert observations.report(POD, hold, StepReport(100, 10, 5.0, 32), 10 * SECOND, 1_700_000_000.0)
    (job,) = observations
    status = job.to_status(5_000_000, lambda seconds: f"at {seconds:g}")
    assert status == {
        "namespace": "research",
        "name": "gpt2",
        "uid": "u-1",
        "incarnation": 1,
        "podName": "gpt2-1-0",
        "gpus": 2,
        "energyMillijoules": 5_000_000,
        "ended": False,
        "iterations": 100,
        "microsecondsPerIteration": 500_000,
        "millijoulesPerIteration": 250_000,
        "clockMegahertz": 1005,
        "localBatchSize": 32,
        "lastReportTime": "at 1.7e+09",
    }
    again = Observations(json.loads(json.dumps(observations.to_json())))
    assert [job.to_status(1, str) for job in again] == [job.to_status(1, str)]


def test_the_list_is_bounded_and_those_that_run_stay():
    observations = Observations()
    running = {POD: PodHold("pod-uid", 2)}
    observations.sync(SPEC, running, 0)
    for number in range(2 * MAX_OBSERVATIONS):
        other = PodName("research", f"p{number}")
        grant = JobGrant("research", "j", f"u{number}", 1, f"p{number}", 1, 1)
        spec = DesiredSpec(1, number, 30, 1, jobs=(JOB, grant))
        observations.sync(spec, {**running, other: PodHold(f"k{number}", 1)}, number)
    observations.sync(None, running, 3 * MAX_OBSERVATIONS)
    jobs = observed(observations)
    assert len(jobs) == MAX_OBSERVATIONS
    assert jobs[0] == ("gpt2-1-0", 2, False)
    assert jobs[-1][0] == f"p{2 * MAX_OBSERVATIONS - 1}"
