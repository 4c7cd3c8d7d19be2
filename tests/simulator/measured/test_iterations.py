"""One iteration of simulated training against the measurements that it comes from."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

import pytest
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.physics import power_milliwatts
from flyball_simulator.measured.iterations import LEAST_ACTIVITY_SHARE, WAITING_ACTIVITY, iteration, iteration_parts
from flyball_simulator.measured.noise import noise_factor
from flyball_simulator.measured.throughputs import GPU_COUNTS, MODEL_CLASSES, measured_throughput, model_class
from hypothesis import given
from hypothesis import strategies as st

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
TOP = A100.clock_max_megahertz


@pytest.mark.parametrize("name", MODEL_CLASSES)
def test_throughputs_are_the_measured_ones(measured_data: Path, name: str) -> None:
    with (measured_data / "elasticflow" / f"{name}.csv").open() as table:
        for row in csv.DictReader(table):
            for gpus in GPU_COUNTS:
                if row[str(gpus)]:
                    here = measured_throughput(model_class(name), gpus, int(row["global_batch_size"]))
                    assert here == pytest.approx(float(row[str(gpus)]), rel=5e-4)


@given(
    name=st.sampled_from(sorted(MODEL_CLASSES)),
    gpus=st.integers(1, 100),
    batch=st.integers(8, 2048),
    clocks=st.tuples(st.integers(210, TOP), st.integers(210, TOP)),
)
def test_a_lower_clock_never_helps_time_and_never_costs_power(
    name: str, gpus: int, batch: int, clocks: tuple[int, int]
) -> None:
    model = model_class(name)
    nodes = -(-gpus // 8)
    low, high = sorted(clocks)
    slow, fast = (iteration(model, gpus, nodes, batch, clock / TOP) for clock in (low, high))
    assert slow.seconds >= fast.seconds > 0
    assert slow.seconds <= fast.seconds * high / low * (1 + 1e-9)
    assert fast.activity * (1 + 1e-9) >= WAITING_ACTIVITY
    assert fast.activity <= slow.activity * (1 + 1e-9) <= model.computing_activity * (1 + 2e-9)
    assert power_milliwatts(A100, low, slow.activity) <= power_milliwatts(A100, high, fast.activity) + 1


@given(
    name=st.sampled_from(sorted(MODEL_CLASSES)),
    gpus=st.integers(2, 64),
    batch=st.sampled_from([32, 64, 100, 128, 256, 300]),
    more=st.integers(0, 5),
)
def test_spreading_over_more_nodes_never_helps(name: str, gpus: int, batch: int, more: int) -> None:
    model = model_class(name)
    packed = -(-gpus // 8)
    spread = min(packed + more, gpus)
    assert iteration(model, gpus, spread, batch, 1.0).seconds >= iteration(model, gpus, packed, batch, 1.0).seconds


def test_the_clock_matters_as_measured() -> None:
    """Compute-bound training on the A100 from 1410 to 1005 MHz takes x1.38 the time, and draws 296 W at the top."""
    gpt2 = model_class("gpt2")
    top, low = (iteration(gpt2, 1, 1, 256, clock / TOP) for clock in (TOP, 1005))
    assert low.seconds / top.seconds == pytest.approx(1.38, rel=0.01)
    assert power_milliwatts(A100, TOP, top.activity) / 1000 == pytest.approx(296, rel=0.01)
    assert power_milliwatts(A100, TOP, WAITING_ACTIVITY) / 1000 == pytest.approx(83.6, rel=0.01)


@pytest.mark.parametrize("name", MODEL_CLASSES)
def test_few_samples_leave_a_gpu_partly_idle_and_many_change_nothing(name: str) -> None:
    """Zeus' V100: nearly flat from eight samples a GPU for large networks, DeepSpeech2 a quarter less below."""
    model = model_class(name)
    activities = [iteration_parts(model, 1, 1, batch).computing_activity for batch in (1, 2, 8, 32, 512)]
    assert activities == sorted(activities)
    assert activities[-1] == activities[-2] == model.computing_activity
    assert activities[0] >= LEAST_ACTIVITY_SHARE * model.computing_activity
    assert activities[2] / activities[-1] == pytest.approx(1.0, abs=0.05 if name != "deepspeech2" else 0.2)


def test_the_power_of_few_samples_is_what_was_measured_on_the_v100() -> None:
    """DeepSpeech2 of the Zeus measurements: 156 W with 2 samples and 205 W with 32, of them 45 W idle."""
    model = model_class("deepspeech2")
    two, many = (iteration_parts(model, 1, 1, batch).computing_activity for batch in (2, 32))
    assert two / many == pytest.approx((156 - 45) / (205 - 45), abs=0.05)


def test_slowing_down_saves_energy_up_to_a_point() -> None:
    """The U-shape: every class has its energy-optimal clock strictly between the smallest and the highest."""
    clocks = list(range(210, TOP + 1, 15))
    for model in MODEL_CLASSES.values():
        joules = []
        for clock in clocks:
            here = iteration(model, 1, 1, 128, clock / TOP)
            joules.append(here.seconds * power_milliwatts(A100, clock, here.activity))
        best = clocks[joules.index(min(joules))]
        assert 210 < best < TOP, model.name
        assert min(joules) < 0.9 * joules[-1], model.name


def test_noise_is_deterministic_and_as_wide_as_asked() -> None:
    assert noise_factor("a", 0.03) == noise_factor("a", 0.03) != noise_factor("b", 0.03)
    assert noise_factor("a", 0.0) == 1.0
    drawn = [noise_factor(str(index), 0.03) for index in range(2000)]
    assert statistics.stdev(drawn) == pytest.approx(0.03, rel=0.1)
    assert statistics.mean(drawn) == pytest.approx(1.0, abs=0.01)


def test_impossible_placements_are_refused() -> None:
    bert = model_class("bert")
    for gpus, nodes, batch, fraction in [
        (0, 1, 64, 1.0),
        (2, 3, 64, 1.0),
        (1, 1, 0, 1.0),
        (1, 1, 64, 0.0),
        (1, 1, 64, 1.1),
    ]:
        with pytest.raises(ValueError, match="bert"):
            iteration(bert, gpus, nodes, batch, fraction)
    with pytest.raises(ValueError, match=r"llama.*resnet50"):
        model_class("llama")
