"""What is said of a pipeline's size before it is planned, against what planning it really takes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from flyball_frontiers.pipeline import (
    PerseusPlanner,
    PipelineProfile,
    PlanSize,
    Schedule,
    SizeError,
    check_size,
    pipeline_graph,
    plan_size,
)

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("schedule", "microbatches"),
    [
        (Schedule.ONE_F_ONE_B, 4),
        (Schedule.ONE_F_ONE_B, 60),
        (Schedule.ONE_F_ONE_B, 300),
        (Schedule.GPIPE, 60),
        (Schedule.EARLY_RECOMPUTE, 80),
    ],
)
def test_the_estimate_is_what_is_planned(
    made_up: Callable[..., PipelineProfile], schedule: Schedule, microbatches: int
) -> None:
    profile = made_up(1.0, 1.1, 1.2, 1.0)
    size = plan_size(profile, schedule, microbatches)
    graph = pipeline_graph(profile, schedule, microbatches)
    assert size.operations == pytest.approx(len(graph.operations), abs=4 * profile.stages)
    planned = len(PerseusPlanner(graph, 20.0)._program.kinds)
    assert size.planned == pytest.approx(planned, abs=4 * profile.stages)


def test_what_is_too_large_is_refused_with_what_would_fit(made_up: Callable[..., PipelineProfile]) -> None:
    profile = made_up(*[1.0] * 8)
    assert check_size(profile, Schedule.ONE_F_ONE_B, 10_000).fits
    for schedule, microbatches in ((Schedule.ONE_F_ONE_B, 10**7), (Schedule.GPIPE, 10_000)):
        with pytest.raises(SizeError, match="too many to plan") as refused:
            check_size(profile, schedule, microbatches)
        fitting = int(str(refused.value).split("up to ")[1].split()[0])
        assert check_size(profile, schedule, fitting).fits
        assert not plan_size(profile, schedule, fitting + 1).fits


def test_a_larger_pipeline_is_said_to_take_longer() -> None:
    sizes = [PlanSize(count, count) for count in (100, 1_000, 10_000)]
    assert sorted(sizes, key=lambda size: size.seconds) == sizes
    repeated = [PlanSize(count, 464) for count in (2_048, 16_384, 131_072)]  # 0.6, 1.4 and about 12 s of a free core
    assert [round(size.seconds, 1) for size in repeated] == [0.4, 1.7, 12.0]
    assert "10,000 operations, 10,000 planned one by one: about 20.0 s" in str(sizes[2])


def test_a_plan_can_be_made_of_the_largest_job_that_the_api_accepts(made_up: Callable[..., PipelineProfile]) -> None:
    definition = yaml.safe_load((ROOT / "crds" / "energyawarejobs.yaml").read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    pipeline = schema["properties"]["spec"]["properties"]["pipeline"]
    most = {name: pipeline["properties"][name]["maximum"] for name in ("stages", "microbatches")}
    profile = made_up(*[1.0] * most["stages"])
    assert plan_size(profile, Schedule.ONE_F_ONE_B, most["microbatches"]).fits


def test_a_running_solve_hears_an_interrupt() -> None:
    """The program says when the solver runs; it would run for minutes."""
    program = """
import signal, sys, threading
sys.path.insert(0, sys.argv[1])
from flyball_frontiers import PipelineProfile, Schedule, pipeline_graph
from flyball_frontiers.pipeline.solver.relaxation import TimeCostProgram
from flyball_frontiers.pipeline.solver.steady import find_layers, middle, tie
signal.signal(signal.SIGINT, signal.default_int_handler)
rows = [{"stage": s, "instruction": i, "frequency": c, "time": (1 + s / 7) * 1400 / c, "energy": 100 + (c / 100) ** 2}
        for s in range(32) for i in ("forward", "backward") for c in range(1400, 700, -15)]
graph = pipeline_graph(PipelineProfile.from_rows(rows), Schedule.ONE_F_ONE_B, 200)
layers = find_layers(graph)
solver = TimeCostProgram(graph, 50.0, tie(layers, middle(layers, graph.gpus)), drifting=True)
fastest = solver.makespan(solver.shortest)
def say():
    while not any(thread.name == "flyball-highs" for thread in threading.enumerate()):
        pass
    print("solving", flush=True)
threading.Thread(target=say, daemon=True).start()
solver.solve(fastest)
print("solved", flush=True)
"""
    started = subprocess.Popen(
        [sys.executable, "-c", program, str(ROOT / "frontiers")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert started.stdout is not None
        assert started.stdout.readline() == "solving\n"
        os.kill(started.pid, signal.SIGINT)
        output, errors = started.communicate(timeout=30)
    finally:
        started.kill()
    assert "solved" not in output
    assert "KeyboardInterrupt" in errors
    assert started.returncode != 0
