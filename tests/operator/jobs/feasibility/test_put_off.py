"""Jobs that can wait are put off to where the grid's signal is lower, by what their models say they take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.workloads import DEFAULT_GPU_RESOURCES
from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.controller import LOOK_SECONDS, JobController
from flyball_operator.jobs.feasibility.put_off import put_off
from flyball_operator.jobs.steps.step import JobsCycle, JobsStep
from flyball_operator.meters.grid_signal import SignalFile
from flyball_operator.power.nodes.info import NodeInfo
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.models.job import JobModel
from flyball_planner.models.priors import model_class_prior
from flyball_planner.shifting import Signal

from tests.support.operator_objects import job_view, ready_node
from tests.support.recorded_carbon import GRAMS_PER_KILOWATT_HOUR

NOW = datetime(2030, 6, 1, 12, 0, 0, tzinfo=UTC)
HOUR = 3600
NODES = {"a": ready_node("a")}
SIGNAL = Signal.of([(NOW.timestamp() + index * HOUR, value) for index, value in enumerate([400, 300, 100, 100])], " g")

# Each second before its end costs more than the hour after it.
CLIFF = Signal.of([(NOW.timestamp() + index * HOUR, value) for index, value in enumerate([4e5, 4e5, 1, 1])], " g")


class Models:
    """Every job trains ResNet-50 on an A100."""

    def model_for(self, job: EnergyAwareJob, nodes: Mapping[str, NodeInfo]) -> JobModel:
        gpu = gpu_model_for("NVIDIA-A100-SXM4-40GB")
        assert gpu is not None
        return model_class_prior("resnet50", gpu)

    def pace_band(self, *_: object) -> tuple[float, float] | None:
        return None


def flexible(hours: float | None, seconds: float = HOUR, **spec: Any) -> EnergyAwareJob:
    """A job that runs for about so many seconds, and need not be done before so many hours have gone by."""
    curves = Models().model_for(job_view(), NODES).curves(1, 1, 256)
    training = {"globalBatchSize": 256, "iterations": int(seconds / float(curves.seconds[0, -1]))}
    if hours is not None:
        spec["flexibleUntil"] = (NOW + timedelta(hours=hours)).isoformat()
    return job_view(training=training, gpus={"min": 1, "max": 8}, **spec)


def words(
    job: EnergyAwareJob,
    done: float = 0.0,
    now: datetime = NOW,
    signal: Signal | None = SIGNAL,
    start_seconds: float = 0.0,
) -> str:
    found = put_off(job, done, NODES, Models(), 8, signal, now, start_seconds)
    if found is None:
        return ""
    assert found.refusal.reason == "WaitingForSignal"
    return found.refusal.message


def test_it_says_when_it_starts_and_what_that_saves() -> None:
    assert words(flexible(8)) == (
        "it starts at 2030-06-01T14:00:00Z: while it runs the signal is then 100 g on average, and 400 g if it started now"
    )


def test_it_starts_when_its_time_has_come() -> None:
    assert words(flexible(8), now=NOW + timedelta(hours=2)) == ""


@pytest.mark.parametrize(
    "job",
    [flexible(None), flexible(1.2), flexible(8, deadline=(NOW + timedelta(hours=1)).isoformat())],
    ids=["not flexible", "no time to wait", "a deadline before that"],
)
def test_who_cannot_wait_is_not_put_off(job: EnergyAwareJob) -> None:
    assert words(job) == ""


def test_what_a_start_takes_is_kept_too() -> None:
    """A job of a minute has half a minute to spare, and its image may take longer than that to be pulled."""
    job = flexible(3, seconds=60)
    falling = Signal.of([(NOW.timestamp() + index * 60, 400 - index) for index in range(8 * 60)])
    assert words(job, signal=falling).startswith("it starts at 2030-06-01T14:58:30Z")
    assert words(job, signal=falling, start_seconds=300.0).startswith("it starts at 2030-06-01T14:53:30Z")
    assert words(flexible(0.1, seconds=60), signal=falling, start_seconds=300.0) == ""


class Site:
    """One job that waits for the signal, under the controller."""

    def __init__(self) -> None:
        self.controller = JobController(5.0, Models(), DEFAULT_GPU_RESOURCES)
        self.job = flexible(8)
        self.signal: Signal | None = CLIFF

    def cycle(self, seconds: float) -> JobsStep:
        cluster = ClusterState(
            jobs={self.job.uid: self.job},
            caps=[],
            gpu_nodes={},
            nodes=[],
            pods=[],
            incarnations={},
            pods_of={},
            reports_of={},
            unread=(),
            age_seconds=0.0,
        )
        now = NOW + timedelta(seconds=seconds)
        return self.controller.step(JobsCycle(cluster, NODES, {}, 1, now, seconds, signal=self.signal))

    def waits(self, seconds: float) -> bool:
        (job,) = self.cycle(seconds).jobs.values()
        return job.memory.refusal is not None


def test_it_starts_in_the_second_in_which_its_time_has_come() -> None:
    site, starts = Site(), 2 * HOUR
    assert site.waits(0.0)
    assert site.cycle(1.0).next_seconds <= LOOK_SECONDS
    assert site.waits(starts - 7.0)
    assert site.cycle(starts - 6.0).next_seconds == 6.0, "sooner than it would be looked at again"
    assert site.waits(starts - 0.5)
    assert not site.waits(starts)


def test_who_is_not_looked_at_any_more_wakes_nobody() -> None:
    """Where the signal's file is gone, or the job is refused for another reason, as long as that lasts."""
    site = Site()
    assert site.waits(0.0)
    site.signal = None
    assert not site.waits(1.0)
    assert site.cycle(2 * LOOK_SECONDS).next_seconds >= 1.0
    site = Site()
    assert site.waits(0.0)
    site.job = replace(site.job, template_problem="spec.template: no container")
    assert site.waits(1.0)
    assert site.cycle(2 * LOOK_SECONDS).next_seconds >= 1.0


def test_without_a_signal_nobody_waits() -> None:
    assert words(flexible(8), signal=None) == ""


def test_work_that_is_done_takes_no_time() -> None:
    job = flexible(8, seconds=3 * HOUR)
    iterations = job.spec.training.iterations
    assert iterations is not None
    assert words(job, done=iterations * 0.9).startswith("it starts at 2030-06-01T14:00:00Z")
    assert words(job).startswith("it starts at 2030-06-01T13:00:00Z")


def test_on_a_recorded_day_the_operator_starts_the_same_work_where_it_emits_less_and_nothing_late(
    tmp_path: Path,
) -> None:
    """Sixty jobs over a day, each with twelve hours' time, asked about every ten minutes as the operator does."""
    rows = [
        f"{(NOW + timedelta(hours=hour)).isoformat()},{grams}" for hour, grams in enumerate(GRAMS_PER_KILOWATT_HOUR)
    ]
    (tmp_path / "signal.csv").write_text("\n".join(["time,gCO2/kWh", *rows]))
    signal = SignalFile(tmp_path / "signal.csv").read(0.0)
    assert signal is not None
    random, at_once, put, told = Random(1), 0.0, 0.0, ""
    for _ in range(60):
        arrives = NOW + timedelta(seconds=random.uniform(0, 24 * HOUR))
        seconds = random.uniform(0.5, 3.0) * HOUR
        job = flexible((arrives - NOW).total_seconds() / HOUR + 12, seconds)
        begins = arrives
        while (said := words(job, now=begins, signal=signal)) != "":
            told, begins = said, begins + timedelta(minutes=10)
        assert begins + timedelta(seconds=seconds) <= arrives + timedelta(hours=12)
        means = signal.means([arrives.timestamp(), begins.timestamp()], seconds)
        now, later = (mean or math.nan for mean in means)
        at_once, put = at_once + now * seconds, put + later * seconds
    saved = 1 - put / at_once
    print(f"{saved:.0%} less CO2 at the same work, by the operator's own decisions")
    assert saved >= 0.15
    assert "gCO2/kWh on average" in told
