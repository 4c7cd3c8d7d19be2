"""Reports of trainers, the windows they are measured over, and who is still on the node."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from flyball_agent.energy.observations import (
    ENDED_KEPT_NS,
    MAX_OBSERVATIONS,
    InvalidReport,
    Observations,
    StepReport,
    parse_steps,
)
from flyball_agent.energy.pods import PodOnGpus
from flyball_agent.energy.record import EnergyRecord, JobObservation
from flyball_agent.enforce.gpu_state import PodName
from flyball_api.grant import Grant, JobGrant, PowerBound
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts

SECOND = 1_000_000_000
POD = PodName("research", "gpt2-1-0")
JOB = JobGrant("research", "gpt2", "u-1", 1, "gpt2-1-0", 2, MilliwattsPerGpu(250_000))
GRANT = Grant(1, 1, 30, PowerBound(NodeMilliwatts(800_000)), jobs=(JOB,))
GOOD = {"iterations": 100, "windowIterations": 10, "windowSeconds": 2.5, "localBatchSize": 32}


def test_a_report_is_read() -> None:
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
def test_a_report_that_cannot_be_is_refused_with_a_sentence(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidReport, match=message):
        parse_steps({**GOOD, **change})


def test_no_object_is_no_report() -> None:
    with pytest.raises(InvalidReport, match="not a JSON object"):
        parse_steps([GOOD])


def observed(observations: Observations) -> list[tuple[str, int, bool]]:
    return [(job.pod_name, job.gpus, job.ended) for job in observations]


def test_a_jobs_pod_comes_changes_and_ends() -> None:
    observations = Observations()
    assert not observations.sync(GRANT, {}, 0)
    assert observations.sync(GRANT, {POD: PodOnGpus("pod-uid", 2)}, 0)
    assert observed(observations) == [("gpt2-1-0", 2, False)]
    assert not observations.sync(GRANT, {POD: PodOnGpus("pod-uid", 2)}, 0)
    assert observations.sync(GRANT, {POD: PodOnGpus("pod-uid", 4)}, 0)
    assert observations.sync(None, {}, 5 * SECOND)
    assert observed(observations) == [("gpt2-1-0", 4, True)]
    assert not observations.sync(None, {}, ENDED_KEPT_NS)
    assert observations.sync(None, {}, 6 * SECOND + ENDED_KEPT_NS)
    assert observed(observations) == []


def test_pods_of_nobodys_job_and_other_pods_of_the_same_name_are_not_its() -> None:
    observations = Observations()
    assert not observations.sync(GRANT, {PodName("other", "gpt2-1-0"): PodOnGpus("x", 1)}, 0)
    observations.sync(GRANT, {POD: PodOnGpus("first", 2)}, 0)
    observations.sync(GRANT, {POD: PodOnGpus("second", 2)}, 0)
    assert observed(observations) == [("gpt2-1-0", 2, True)]


def test_a_report_is_measured_over_its_window() -> None:
    observations = Observations()
    pod = PodOnGpus("pod-uid", 2)
    for second in range(11):
        pod.window.add(second * SECOND, 500_000 * second, 1005)
    assert not observations.report(POD, pod, StepReport(100, 10, 5.0, 32), 10 * SECOND, 0.0)
    observations.sync(GRANT, {POD: pod}, 0)
    assert observations.report(POD, pod, StepReport(100, 10, 5.0, 32), 10 * SECOND, 1_700_000_000.0)
    (job,) = observations
    assert job == JobObservation(
        "research",
        "gpt2",
        "u-1",
        1,
        "gpt2-1-0",
        "pod-uid",
        gpus=2,
        iterations=100,
        microseconds_per_iteration=500_000,
        millijoules_per_iteration=250_000,
        clock_megahertz=1005,
        local_batch_size=32,
        last_report=1_700_000_000.0,
    )
    record = EnergyRecord(jobs=tuple(observations))
    again = EnergyRecord.read(json.loads(json.dumps(record.to_json())))
    assert again is not None
    assert list(Observations(again.jobs)) == [job]


def test_a_record_of_another_version_is_not_taken_for_one() -> None:
    assert EnergyRecord.read({}) is None
    record = EnergyRecord(idle=5, jobs=(JobObservation("ns", "j", "u", 1, "p", "k"),)).to_json()
    assert EnergyRecord.read({**record, "fromTheFuture": 1}) == EnergyRecord.read(record)
    assert EnergyRecord.read({**record, "idle": "five"}) is None
    assert EnergyRecord.read({**record, "jobs": [{"namespace": "ns"}]}) is None


def test_the_list_is_bounded_and_those_that_run_stay() -> None:
    observations = Observations()
    running = {POD: PodOnGpus("pod-uid", 2)}
    observations.sync(GRANT, running, 0)
    for number in range(2 * MAX_OBSERVATIONS):
        other = PodName("research", f"p{number}")
        other_job = JobGrant("research", "j", f"u{number}", 1, f"p{number}", 1, MilliwattsPerGpu(1))
        grant = Grant(1, number, 30, PowerBound(NodeMilliwatts(1)), jobs=(JOB, other_job))
        observations.sync(grant, {**running, other: PodOnGpus(f"k{number}", 1)}, number)
    observations.sync(None, running, 3 * MAX_OBSERVATIONS)
    jobs = observed(observations)
    assert len(jobs) == MAX_OBSERVATIONS
    assert jobs[0] == ("gpt2-1-0", 2, False)
    assert jobs[-1][0] == f"p{2 * MAX_OBSERVATIONS - 1}"
