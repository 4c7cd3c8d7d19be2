"""Measured and made-up pipelines that the tests of this folder share."""

from __future__ import annotations

import csv
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from flyball_planner.pipeline.profile import PipelineProfile

ROOT = Path(__file__).parents[3]
PERSEUS_DATA = ROOT.parent / "shared" / "data" / "perseus-sosp24"


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
def perseus_file() -> Callable[[str], Path]:
    """The path of one of the published files; the test skips, naming it, where it is absent."""

    def find(name: str) -> Path:
        path = PERSEUS_DATA / name
        if not path.exists():
            pytest.skip(f"needs {path}")
        return path

    return find


@pytest.fixture
def gpt3_rows(perseus_file: Callable[[str], Path]) -> Callable[..., list[dict[str, object]]]:
    """The rows of the measured profile, of its first stages and its last one where fewer than 8 are wanted."""

    def rows(gpu: MeasuredGpu, stages: int = 8) -> list[dict[str, object]]:
        with perseus_file(f"stage_profile/gpt3-175b+{gpu.name}_bf16.csv").open() as file:
            measured = list(csv.DictReader(file))
        sources = [*range(stages - 1), 7]
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


@pytest.fixture(scope="session")
def lowtime_peer() -> ModuleType:
    """The published solver, as the benchmark drives it; the test skips where lowtime is not installed."""
    pytest.importorskip("lowtime")
    spec = importlib.util.spec_from_file_location("lowtime_peer", ROOT / "benchmarks" / "lowtime_peer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lowtime_peer"] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module
