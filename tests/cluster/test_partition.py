"""A job that measures the schedules of a partition's kernels on the real control plane, while a search asks for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from flyball_frontiers.kareus.search import PartitionSearch
from flyball_frontiers.pipeline.profile import PipelineProfile

from tests.support.site_bench import GROUP, Bench, job_manifest

CLIENT = Path(__file__).parents[2] / "client"
CLOCKS, SMS, KERNELS = (1410, 990), (6, 12), 2
# Of each run under each schedule: what it takes, and draws, on one board.
CSV = "stage,instruction,frequency,time,energy\n" + "".join(
    f"0,{sms}@{launch},{clock},{seconds:.6f},{seconds * (60 + 120 * (clock / 1410) ** 3):.6f}\n"
    for sms in SMS
    for launch in range(-1, KERNELS)
    for clock in CLOCKS
    for seconds in (0.2 * 1410 / clock * (1 + 0.01 * sms) + 0.3 / sms * (1 if launch == 0 else 1.5),)
)
PROGRAM = """
import os, sys, time
import flyball
from flyball_frontiers.pipeline.profile import PipelineProfile
from flyball_simulated_gpu.shared import SimulatedNode
from flyball_testbed.pipeline.board import Board, MeasuredComputation

profile = PipelineProfile.from_csv(open(sys.argv[1]).read())
job = flyball.join()
with SimulatedNode.open(os.environ["FLYBALL_SIMULATED_GPUS"]) as node:
    board = Board(node.device(os.environ["NVIDIA_VISIBLE_DEVICES"].split(",")[0]))

    def run(kernels):
        name = f"{kernels.communication_sms}@{kernels.launch_kernel}"
        board.compute(MeasuredComputation(profile.of(0, name)), time.monotonic())

    job.measure_partition(sys.argv[2], run)
"""


@pytest.mark.long
def test_a_job_measures_the_schedules_that_a_search_asks_for(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "profile.csv").write_text(CSV)
    (tmp_path / "measure.py").write_text(PROGRAM)
    folder = tmp_path / "attention"
    manifest = job_manifest("measures", bench.namespace, gpus=(1, 1), iterations=1, objective="Time")
    manifest["spec"]["template"]["spec"]["containers"] = [
        {
            "name": "trainer",
            "image": "example.org/partition",
            "command": [sys.executable, str(tmp_path / "measure.py"), str(tmp_path / "profile.csv"), str(folder)],
            "env": [{"name": "PYTHONPATH", "value": os.pathsep.join((str(CLIENT), os.environ.get("PYTHONPATH", "")))}],
        }
    ]
    searched = subprocess.run(
        [
            str(Path(sysconfig.get_path("scripts")) / "flyball"), "kareus", "search", str(folder),
            "--clocks", "1410:990:420", "--sms", "6:12:6", "--kernels", str(KERNELS), "--static-power", "50",
            "--effort", "0.04",
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "is to be measured" in searched.stdout
    bench.api.create(f"{GROUP}/namespaces/{bench.namespace}/energyawarejobs", manifest)
    command = [str(Path(sysconfig.get_path("scripts")) / "flyball"), "kareus", "search", str(folder), "--wait", "120"]
    searched = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "on the frontier" in searched.stdout, searched.stdout
    bench.wait_succeeded("measures", 60.0)
    search = PartitionSearch.from_json(json.loads((folder / "search.json").read_text()))
    known = PipelineProfile.from_csv(CSV)
    off = []
    for sample in search.samples:
        schedule = sample.schedule
        (point,) = (
            each
            for each in known.points[0, f"{schedule.communication_sms}@{schedule.launch_kernel}"]
            if each.clock_megahertz == schedule.clock_megahertz
        )
        off.append(
            (
                abs(sample.measurement.time_seconds / point.time_seconds - 1),
                abs(sample.measurement.energy_joules / point.energy_joules - 1),
            )
        )
    seconds, joules = (sorted(each) for each in zip(*off, strict=True))
    print(f"{len(off)} schedules: seconds off by {seconds[-1]:.1%} at most, joules by {joules[-1]:.1%}")
    # A process that is woken late computes for longer, and its board draws meanwhile: the middle one of them says it.
    assert seconds[len(seconds) // 2] <= 0.05
    assert joules[len(joules) // 2] <= 0.06
