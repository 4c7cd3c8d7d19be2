"""Where the jobs of a run come from, and how many GPUs they keep busy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from flyball_simulator.settings import SimulationSettings
from flyball_simulator.workloads.source import WorkloadSource, digest_of, gpus_for_load
from flyball_simulator.workloads.traces import TraceJob


def test_the_gpus_of_a_load_keep_that_share_busy() -> None:
    """8 x 100 s and 4 x 300 s of GPUs asked for in 100 s: 20 GPUs on average."""
    jobs = [TraceJob("a", 50.0, 100.0, 8), TraceJob("b", 150.0, 300.0, 4)]
    assert gpus_for_load(jobs, 1.0, 1) == 20
    assert gpus_for_load(jobs, 2.0, 1) == 10
    assert gpus_for_load(jobs, 0.5, 8) == 40
    assert gpus_for_load(jobs, 0.8, 8) == 24, "whole nodes, the nearest to 25 GPUs"
    assert gpus_for_load(jobs, 1e6, 8) == 8, "one node at least"
    for load in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="must be a number above 0"):
            gpus_for_load(jobs, load, 8)
    with pytest.raises(ValueError, match="all submitted at once"):
        gpus_for_load(jobs[:1], 0.8, 8)


def test_a_source_is_a_file_its_seed_and_its_first_jobs(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("job_id,submission_time,duration,num_gpu\n" + "".join(f"j{i},{i},900,1\n" for i in range(40)))
    source = WorkloadSource(str(path))
    settings = SimulationSettings(policy="fifo", gpus=8)
    assert source.name == "mine.csv"
    assert [job.job_id for job in replace(source, first=3).trace_jobs()] == ["j0", "j1", "j2"]
    jobs = source.workload(settings)
    assert digest_of(jobs) == digest_of(source.workload(settings))
    assert digest_of(jobs) != digest_of(replace(source, seed=1).workload(settings)), "the seed draws the models"
    assert digest_of(jobs) != digest_of(jobs[:-1])
    with pytest.raises(ValueError, match="'abacus' is not in the catalogue"):
        source.workload(replace(settings, gpu_product="abacus"))
    with pytest.raises(ValueError, match=r"none\.csv: there is no such file"):
        WorkloadSource(str(tmp_path / "none.csv")).trace_jobs()
