"""Jobs that can wait are put off to where the grid's signal is lower, by what their models say they take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_operator.jobs.feasibility.put_off import put_off
from flyball_operator.meters.grid_signal import SignalFile
from flyball_operator.power.node_info import NodeInfo
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


class Models:
    """Every job trains ResNet-50 on an A100."""

    def model_for(self, job: EnergyAwareJob, nodes: Mapping[str, NodeInfo]) -> JobModel:
        gpu = gpu_model_for("NVIDIA-A100-SXM4-40GB")
        assert gpu is not None
        return model_class_prior("resnet50", gpu)


def flexible(hours: float | None, seconds: float = HOUR, **spec: Any) -> EnergyAwareJob:
    """A job that runs for about so many seconds, and need not be done before so many hours have gone by."""
    curves = Models().model_for(job_view(), NODES).curves(1, 1, 256)
    training = {"globalBatchSize": 256, "iterations": int(seconds / float(curves.seconds[0, -1]))}
    if hours is not None:
        spec["flexibleUntil"] = (NOW + timedelta(hours=hours)).isoformat()
    return job_view(training=training, gpus={"min": 1, "max": 8}, **spec)


def words(job: EnergyAwareJob, done: float = 0.0, now: datetime = NOW, signal: Signal | None = SIGNAL) -> str:
    found = put_off(job, done, NODES, Models(), 8, signal, now)
    if found is None:
        return ""
    assert found.reason == "WaitingForSignal"
    return found.message


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
