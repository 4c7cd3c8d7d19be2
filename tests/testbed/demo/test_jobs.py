"""From a trace to EnergyAwareJobs, and what the jobs would take first come first served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.physics import power_milliwatts
from flyball_simulator.measured.iterations import iteration
from flyball_simulator.measured.throughputs import measured_throughput, model_class
from flyball_simulator.workloads.traces import TraceJob, load_trace
from flyball_testbed.demo.baseline import run_baseline
from flyball_testbed.demo.command import LOW_CAP
from flyball_testbed.demo.jobs import DemoJob, demo_jobs, energy_aware_job

ROOT = Path(__file__).resolve().parents[3]
HOUR = ROOT / "examples/traces/itp-hour.csv"
A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]


def job(name: str, submit: float, gpus: int, iterations: int = 100, model: str = "vgg16") -> DemoJob:
    return DemoJob(name, gpus, submit, model_class(model), 256, iterations, gpus, gpus, "Time")


def seconds(gpus: int, iterations: int = 100, nodes: int = 1) -> float:
    return iteration(model_class("vgg16"), gpus, nodes, 256, 1.0).seconds * iterations


def watts(gpus: int) -> float:
    return gpus * power_milliwatts(A100, 1410, iteration(model_class("vgg16"), gpus, 1, 256, 1.0).activity) / 1000


# --- jobs


def test_the_same_trace_and_seed_give_the_same_jobs() -> None:
    trace = load_trace(HOUR)
    assert demo_jobs(trace, 120, 0, 128) == demo_jobs(trace, 120, 0, 128)
    assert demo_jobs(trace, 120, 0, 128) != demo_jobs(trace, 120, 1, 128)


@pytest.mark.parametrize("seed", range(5))
def test_the_jobs_are_as_the_api_wants_them(seed: int) -> None:
    trace = load_trace(HOUR)
    jobs = demo_jobs(trace, 120, seed, 128)
    assert len({each.name for each in jobs}) == len(jobs)
    for each in jobs:
        for size in (each.min_gpus, each.max_gpus):
            assert size & (size - 1) == 0
        assert 1 <= each.min_gpus <= each.traced_gpus <= each.max_gpus <= 32
        assert each.max_gpus <= each.global_batch_size
    assert {each.objective for each in jobs} == {"Balanced", "Time", "Energy"}
    assert any(each.min_gpus == each.max_gpus for each in jobs)
    assert sum(each.max_gpus > each.traced_gpus for each in jobs) > len(jobs) / 2
    assert len({each.model.name for each in jobs}) >= 5


def test_a_job_does_what_it_did_in_its_traced_time_less_by_the_compression() -> None:
    for compression in (1.0, 60.0):
        made = demo_jobs([TraceJob("a", 0.0, 6000.0, 8), TraceJob("b", 90.0, 600.0, 3)], compression, 0, 16)
        at_traced_size = measured_throughput(made[0].model, 8, made[0].global_batch_size)
        assert made[0].iterations / at_traced_size == pytest.approx(6000 / compression, rel=0.02)
        assert made[1].submit_seconds == 90 / compression
        assert made[1].min_gpus <= 4 <= made[1].max_gpus, "an odd size is rounded up to a power of two"


def test_a_job_larger_than_the_cluster_or_no_compression_is_refused() -> None:
    with pytest.raises(ValueError, match=r"job big asks for 64 GPUs .* the cluster has 32"):
        demo_jobs([TraceJob("big", 0.0, 1.0, 64)], 60, 0, 32)
    with pytest.raises(ValueError, match="compression 0 is not above 0"):
        demo_jobs([TraceJob("a", 0.0, 1.0, 1)], 0, 0, 32)


def _schema_properties(path: Path) -> dict[str, Any]:
    version = yaml.safe_load(path.read_text())["spec"]["versions"][0]
    properties: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return properties


def test_the_manifest_uses_only_what_the_crd_has() -> None:
    properties = _schema_properties(ROOT / "crds/energyawarejobs.yaml")
    manifest = energy_aware_job(demo_jobs(load_trace(HOUR), 120, 0, 128)[0], "demo", 10)
    assert json.loads(json.dumps(manifest)) == manifest
    for name, value in manifest["spec"].items():
        assert name in properties
        if "properties" in properties[name]:
            assert set(value) <= set(properties[name]["properties"])


# --- baseline


def test_jobs_that_fit_start_at_once_and_draw_what_the_hardware_would() -> None:
    result = run_baseline([job("a", 0.0, 8), job("b", 1.0, 4)], A100, 2, 8)
    assert result.completion_seconds == pytest.approx({"a": seconds(8), "b": seconds(4)})
    end = max(seconds(8), 1.0 + seconds(4))
    assert result.makespan_seconds == pytest.approx(end)
    idle = 58.0
    expected = 16 * idle * end + (watts(8) - 8 * idle) * seconds(8) + (watts(4) - 4 * idle) * seconds(4)
    assert result.joules == pytest.approx(expected)
    assert result.max_true_watts == pytest.approx(watts(8) + watts(4) + 4 * idle)


def test_the_first_that_does_not_fit_holds_up_the_others() -> None:
    result = run_baseline([job("a", 0.0, 8), job("b", 0.1, 8), job("c", 0.2, 1, iterations=1)], A100, 1, 8)
    assert result.completion_seconds["b"] == pytest.approx(2 * seconds(8) - 0.1)
    assert result.completion_seconds["c"] == pytest.approx(2 * seconds(8) + seconds(1, 1) - 0.2)


def test_small_jobs_fill_the_fullest_node() -> None:
    """Two of three on one GPU share a node, so that a whole node is left for the job on eight."""
    jobs = [job("a", 0.0, 1, 1000), job("b", 0.0, 1, 1000), job("c", 0.0, 8)]
    assert run_baseline(jobs, A100, 2, 8).completion_seconds["c"] == pytest.approx(seconds(8))


def test_starting_takes_time_and_waiting_gpus_idle() -> None:
    plain = run_baseline([job("a", 0.0, 8)], A100, 1, 8)
    slow = run_baseline([job("a", 0.0, 8)], A100, 1, 8, start_seconds=3.0)
    assert slow.completion_seconds["a"] == pytest.approx(plain.completion_seconds["a"] + 3.0)
    assert slow.joules == pytest.approx(plain.joules + 3.0 * 8 * 58.0)
    longer = run_baseline([job("a", 0.0, 8)], A100, 1, 8, until_seconds=plain.makespan_seconds + 10)
    assert longer.joules == pytest.approx(plain.joules + 10 * 8 * 58.0)


def test_a_job_that_can_never_fit_is_named() -> None:
    with pytest.raises(ValueError, match="job a asks for 9 GPUs, the cluster has 8"):
        run_baseline([job("a", 0.0, 9)], A100, 1, 8)


def test_the_shipped_hour_needs_more_than_the_lowest_cap_of_the_demo() -> None:
    """Otherwise the demo's cap would cost nothing, and show nothing."""
    result = run_baseline(demo_jobs(load_trace(HOUR), 120, 0, 128), A100, 16, 8)
    assert result.max_true_watts > 1.3 * LOW_CAP * 128 * 400
    assert set(result.completion_seconds) == {each.name for each in demo_jobs(load_trace(HOUR), 120, 0, 128)}
