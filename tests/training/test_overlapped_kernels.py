"""Real kernels by a plan of Kareus: PyTorch launches them, and what communicates beside them, as the plan says."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from flyball_frontiers.kareus import (
    KernelSchedule,
    Measurement,
    PartitionChoices,
    iteration_frontier,
    kareus_document,
    microbatch_frontier,
)
from flyball_testbed.training.pytorch import get

from tests.support.own_targets import training

ROOT = Path(__file__).parents[2]
MICROBATCHES, CLOCK, STATIC_WATTS = 3, 1000, 20.0
# The processor has no counter of joules that a process may read: it is taken to draw the same whatever it computes.
WATTS = 60.0

pytestmark = [
    *training,
    pytest.mark.timeout(600),
]

Measured = Mapping[str, Mapping[tuple[int, int | None] | None, float]]


def run(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The example in two processes; what it prints."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("FLYBALL_", "PYTHON"))}
    python = get()
    own |= {
        "PYTHONPATH": str(ROOT / "client"),
        "PYTHON_EXEC": python,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    done = subprocess.run(
        [
            python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
            str(ROOT / "examples/training/overlapped_kernels.py"), *arguments,
        ],
        env=own, cwd=folder, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def plan_of(measured: Measured) -> dict[str, Any]:
    """Kareus' plan of what was measured of one stage's layer."""
    frontiers = {}
    for instruction, seconds in measured.items():
        sequential = {CLOCK: Measurement(seconds[None], WATTS * seconds[None])}
        overlapped = {
            KernelSchedule(CLOCK, 0, launch[0], launch[1]): Measurement(each, WATTS * each)
            for launch, each in seconds.items()
            if launch is not None
        }
        choices = PartitionChoices("layer", 1, overlapped)
        frontiers[0, instruction] = microbatch_frontier([choices], {}, sequential, STATIC_WATTS)
    frontier, graph = iteration_frontier(frontiers, MICROBATCHES, STATIC_WATTS, 8)
    document: dict[str, Any] = json.loads(json.dumps(kareus_document(frontier, graph, STATIC_WATTS)))
    return document


def launches(instruction: str, schedule: tuple[int, int | None] | None) -> list[str]:
    """What is launched by a schedule, in its order."""
    names = ["up", "gelu", "down"] if instruction == "forward" else ["down'", "tanh", "up'"]
    if schedule is None:
        return [*names, "all-reduce"]
    launch, last = schedule
    found = []
    for number, name in enumerate(names):
        found += ["all-reduce"] if number == launch else []
        found += ["wait"] if last is not None and number == last + 1 else []
        found.append(name)
    return found


def test_kernels_run_as_the_plan_of_their_own_measurements_says(tmp_path: Path) -> None:
    measured: dict[str, dict[tuple[int, int | None] | None, float]] = {"forward": {}, "backward": {}}
    for line in run(tmp_path, "--measure"):
        schedule = line["schedule"]
        measured[line["instruction"]][None if schedule is None else (schedule[0], schedule[1])] = line["seconds"]
    assert {name: len(schedules) for name, schedules in measured.items()} == {"forward": 7, "backward": 7}
    print({name: {key: f"{1e3 * each:.2f} ms" for key, each in found.items()} for name, found in measured.items()})

    # The plan of what was measured, and two others that nobody would make of it: what runs follows the plan, not a habit.
    one_after_the_other = {name: {None: 1.0, (0, None): 2.0} for name in measured}
    mixed = {"forward": {None: 2.0, (1, 1): 1.0}, "backward": {None: 2.0, (0, None): 1.0}}
    sums = []
    plans: list[Any] = [measured, one_after_the_other, mixed]
    for number, durations in enumerate(plans):
        (tmp_path / f"plan-{number}.json").write_text(json.dumps(plan_of(durations)))
        lines = run(tmp_path, f"plan-{number}.json")
        assert len(lines) == 2 * 2 * MICROBATCHES
        for line in lines:
            instruction, _ = line["computation"]
            fastest = min(durations[instruction], key=lambda schedule: durations[instruction][schedule])
            assert line["launched"] == launches(instruction, fastest), number
        sums.append([line["sum"] for line in lines])
    assert sums[1] == pytest.approx(sums[0], rel=1e-5), "the kernels' order changes nothing of what they compute"
    assert sums[2] == pytest.approx(sums[0], rel=1e-5)
