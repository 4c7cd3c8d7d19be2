"""What the pipeline's demo concludes from its journals, its manifests, and the stages' processes themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flyball_api.energy_aware_job import PipelineParallelism, PlanSource, read_energy_aware_job
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.hardware_file import create_node_file
from flyball_testbed.pipeline.demo import PRODUCT, TrainingSize, conclude
from flyball_testbed.pipeline.journals import read_iterations
from flyball_testbed.training.run import CLIENT

PROFILE_ROWS = "stage,instruction,frequency,time,energy\n" + "".join(
    f"{stage},{instruction},{clock},{0.03 * 1740 / clock:.5f},{0.03 * 200:.3f}\n"
    for stage in (0, 1)
    for instruction in ("forward", "backward")
    for clock in (1740, 1200)
)


def test_stages_compute_in_order_and_wait_for_each_other(tmp_path: Path) -> None:
    """Four processes, two replicas of two stages, without an agent: at the clocks that the boards have."""
    gpus = create_node_file(tmp_path / "n.gpus", devices=[CATALOGUE[PRODUCT]] * 4)
    (tmp_path / "profile.csv").write_text(PROFILE_ROWS)
    command = [
        sys.executable, "-m", "flyball_testbed.pipeline.stage", "--profile", str(tmp_path / "profile.csv"),
        "--microbatches", "2", "--iterations", "2", "--journal", str(tmp_path / "j"),
    ]  # fmt: skip
    environment = {
        **os.environ,
        "PYTHONPATH": str(CLIENT),
        "NVIDIA_VISIBLE_DEVICES": ",".join(gpus),
        "FLYBALL_SIMULATED_GPUS": str(tmp_path / "n.gpus"),
    }
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0, answer.stderr
    iterations = read_iterations(tmp_path / "j")
    assert [(item.replica, item.number) for item in iterations] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for item in iterations:
        assert item.seconds == pytest.approx(6 * 0.03, rel=0.2), "two microbatches behind each other, and a stage"
        ends = {(c.stage, c.instruction, c.microbatch): c for c in item.computations}
        assert len(ends) == 8
        for microbatch in (0, 1):
            assert ends[0, "forward", microbatch].end <= ends[1, "forward", microbatch].start
            assert ends[1, "backward", microbatch].end <= ends[0, "backward", microbatch].start
        assert {c.clock_megahertz for c in item.computations} == {CATALOGUE[PRODUCT].clock_max_megahertz}
    assert iterations[0].ended == iterations[2].ended, "replicas begin the next iteration together"


def test_gpus_that_are_no_whole_pipelines_are_refused(tmp_path: Path) -> None:
    (tmp_path / "profile.csv").write_text(PROFILE_ROWS)
    command = [
        sys.executable, "-m", "flyball_testbed.pipeline.stage", "--profile", str(tmp_path / "profile.csv"),
        "--microbatches", "2", "--iterations", "2", "--journal", str(tmp_path / "j"),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(CLIENT), "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c"}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 2
    assert "3 GPUs are no whole number of pipelines of 2 stages" in answer.stderr


def journals(out: Path, joules: float = 88.0, seconds: float = 10.0, answered: bool = True) -> None:
    """Iterations of 10 s and 100 J at the highest clocks, two by a plan for 88 J, two behind a straggler of 1.2."""
    (out / "perseus.json").write_text(json.dumps({"flat_out": {"energy": 100.0}}))

    def write(name: str, replica: int, iterations: list[dict[str, Any]]) -> None:
        lines: list[dict[str, Any]] = [{"replica": replica, "stage": replica, "gpu": "GPU-a"}]
        at = 0.0
        for number, item in enumerate(iterations):
            for microbatch, degree in enumerate(item.get("degrees", [item.get("degree", 1.0)] * 4)):
                start = at + microbatch / 2
                lines.append(
                    {
                        "iteration": number, "instruction": "forward", "microbatch": microbatch, "start": start,
                        "end": start + 0.5, "megahertz": 900, "degree": degree, "ran": "forward",
                    }
                )  # fmt: skip
            lines.append(
                {
                    "iteration": number, "began": at, "computed": at + item.get("computed", item["seconds"]),
                    "ended": at + item["seconds"], "joules": item["joules"], "planned_seconds": 10.0,
                    "planned_joules": 88.0, "degree": item.get("degree", 1.0), "late": 0.0,
                }
            )  # fmt: skip
            at += item["seconds"]
        path = out / name / f"{replica:05d}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    for replica in (0, 1):
        write("highest", replica, [{"seconds": 10.0, "joules": 100.0}] * 3)
        planned: list[dict[str, Any]] = [{"seconds": seconds, "joules": joules}] * 3
        degree = 1.2 if answered and replica == 0 else 1.0
        slow: dict[str, Any] = {"seconds": 12.0, "computed": 12.0 if replica else 10.0, "joules": 90.0}
        slow |= {"degrees": [1.0, 1.0, 1.0, degree]}
        write("envpipe", replica, [{"seconds": 10.0, "joules": 88.5}] * 3)
        write(
            "perseus",
            replica,
            [*planned, slow, slow | {"computed": 12.0, "degree": degree, "joules": 70.0, "degrees": [degree] * 4}],
        )


def test_it_says_what_was_saved_and_how_soon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journals(tmp_path)
    assert conclude(tmp_path, throttled_at=29.8, over=0.0) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "highest clocks: 10.000 s and 100 J an iteration of a replica"
    assert said[1] == "by EnvPipe: 10.000 s (+0.00%), 88 J (-11.5%; predicted -12.0%)"
    assert said[2] == "by Perseus: 10.000 s (+0.00%), 88 J (-12.0%; predicted -12.0%)"
    assert said[3].startswith("behind a straggler of 1.20: 70 J in the other replica, 89.2% less than if it waited")
    assert said[4] == (
        "found and answered 1.70 s after the board was throttled: 0.20 s until it computed again, 1.00 s for 2 slower "
        "computations, 0.50 s until a stage of the other replica began its next"
    )
    assert (tmp_path / "pipeline-demo.png").exists()


@pytest.mark.parametrize(
    ("joules", "seconds", "answered", "over"),
    [
        (95.0, 10.0, True, 0.0),
        (85.0, 10.0, True, 0.0),
        (88.0, 10.2, True, 0.0),
        (88.0, 10.0, False, 0.0),
        (88.0, 10.0, True, 1.0),
    ],
)
def test_what_was_not_kept_is_a_failure(
    tmp_path: Path, joules: float, seconds: float, answered: bool, over: float
) -> None:
    journals(tmp_path, joules, seconds, answered)
    assert conclude(tmp_path, throttled_at=29.8, over=over) == 1


def test_an_answer_that_comes_late_is_a_failure(tmp_path: Path) -> None:
    journals(tmp_path)
    assert conclude(tmp_path, throttled_at=29.4, over=0.0) == 1


def test_its_jobs_are_such_as_the_operator_takes(tmp_path: Path) -> None:
    manifest = TrainingSize(6, 8).manifest("perseus", tmp_path, 24, planned=True)
    manifest["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    job = read_energy_aware_job(manifest)
    assert (job.spec.gpus.min, job.spec.gpus.max, job.spec.clocks.max_megahertz) == (8, 8, 1740)
    assert job.spec.pipeline == PipelineParallelism(4, 6, PlanSource("perseus", "plan.json"))
