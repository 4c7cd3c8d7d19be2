"""Measured and made-up pipelines that the tests of this folder share."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from flyball_frontiers.pipeline.profile import PipelineProfile


class MeasuredGpu(NamedTuple):
    """A GPU that GPT-3 175B was profiled on, what it draws while it blocks, and the unit of the published frontiers."""

    name: str
    blocking_power_watts: float
    unit_seconds: float


A100 = MeasuredGpu("a100_sxm", 83.64, 0.001)
A40 = MeasuredGpu("a40", 70.38, 0.0001)


GPUS = {gpu.name: gpu for gpu in (A100, A40)}


@pytest.fixture(params=list(GPUS))
def gpu(request: pytest.FixtureRequest) -> MeasuredGpu:
    return GPUS[request.param]


@pytest.fixture
def perseus_data(measured_data: Path) -> Path:
    """The folder of the published measurements and frontiers."""
    return measured_data / "perseus-sosp24"


@pytest.fixture
def gpt3_rows(perseus_data: Path) -> Callable[..., list[dict[str, object]]]:
    """The rows of the measured profile: the last stage's, and for those before it the one measurement that they share."""

    def rows(gpu: MeasuredGpu, stages: int = 8) -> list[dict[str, object]]:
        with (perseus_data / f"stage_profile/gpt3-175b+{gpu.name}_bf16.csv").open() as file:
            measured = list(csv.DictReader(file))
        sources = [0] * (stages - 1) + [7]
        return [
            {**row, "stage": stage}
            for stage, source in enumerate(sources)
            for row in measured
            if row["stage"] == str(source)
        ]

    return rows


@pytest.fixture
def gpt3(gpt3_rows: Callable[..., list[dict[str, object]]]) -> Callable[..., PipelineProfile]:
    def profile(gpu: MeasuredGpu, stages: int = 8) -> PipelineProfile:
        return PipelineProfile.from_rows(gpt3_rows(gpu, stages))

    return profile


@pytest.fixture
def made_up() -> Callable[..., PipelineProfile]:
    """Stages that take `seconds[s]` for a forward at the highest of three clocks, and twice as long backwards."""

    def profile(*seconds: float, clocks: tuple[int, ...] = (1400, 1200, 1000)) -> PipelineProfile:
        return PipelineProfile.from_rows(
            {
                "stage": stage,
                "instruction": instruction,
                "frequency": clock,
                "time": work * times * clocks[0] / clock,
                "energy": work * times * (100 + 200 * (clock / clocks[0]) ** 3),
            }
            for stage, work in enumerate(seconds)
            for instruction, times in (("forward", 1.0), ("backward", 2.0))
            for clock in clocks
        )

    return profile
