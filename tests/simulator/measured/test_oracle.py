"""The simulator's truth: seconds and joules of each kind of job against what was measured, and against the devcluster's."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.physics import power_milliwatts
from flyball_simulator.measured.iterations import WAITING_ACTIVITY, iteration
from flyball_simulator.measured.oracle import Oracle
from flyball_simulator.measured.throughputs import MODEL_CLASSES, model_class
from hypothesis import given
from hypothesis import strategies as st

A100 = "NVIDIA-A100-SXM4-40GB"
CLOCKS = tuple(range(555, 1411, 15))


def board(product: str = A100) -> GpuModel:
    found = gpu_model_for(product)
    assert found is not None
    return found


ORACLE = Oracle(board(), CLOCKS, 8)
KINDS = [(name, batch) for name, model in MODEL_CLASSES.items() for batch in model.pool]


@pytest.mark.parametrize(("name", "batch"), KINDS)
def test_every_kind_of_the_pool_behaves_like_training(name: str, batch: int) -> None:
    truth = ORACLE.performance(name, batch, 64)
    assert truth.sizes == tuple(size for size in (1, 2, 4, 8, 16, 32, 64) if size <= batch)
    assert (np.diff(truth.seconds, axis=1) < 0).all(), "a higher clock is faster"
    assert (np.diff(truth.watts, axis=1) > 0).all(), "and draws more"
    per_gpu = truth.watts / np.array(truth.sizes)[:, None]
    assert (per_gpu > board().idle_power_watts).all()
    assert (per_gpu < board().default_power_limit_watts).all()
    assert all(0 < CLOCKS[best] < CLOCKS[-1] for best in truth.efficient), "joules have their minimum below the top"
    assert truth.joules[0, truth.efficient[0]] < 0.9 * truth.joules[0, -1]
    least = truth.joules.min(axis=1)
    assert (least[1:] > 0.98 * least[:-1]).all(), "more GPUs save no joules, but for the noise of the tables"


def test_vgg16_follows_the_measured_table_not_the_papers_example() -> None:
    """PowerFlow section 3.1 has batch 64 on A100s at 0.114 s / 27 J on one GPU and 0.112 s / 39 J on two.

    The public measurement of the same model and batch says 5.05 iterations a second (0.198 s) on one and 9.04 (0.111 s) on
    two, so another framework or precision on one GPU; the two agree on two. The table is what every other figure here comes
    from, so it is the truth. Its joules are then 2.2 and 1.5 times the paper's, and its second GPU costs 3 % more joules
    where the paper's costs 44 %.
    """
    truth = ORACLE.performance("vgg16", 64, 64)
    seconds, joules = truth.seconds[:, -1], truth.joules[:, -1]
    assert seconds[0] == pytest.approx(1 / 5.053, rel=1e-3)
    assert seconds[1] == pytest.approx(1 / 9.036, rel=1e-3)
    assert seconds[1] == pytest.approx(0.112, rel=0.02)
    assert joules[0] / 27 == pytest.approx(2.16, abs=0.02)
    assert joules[1] / 39 == pytest.approx(1.54, abs=0.02)
    assert joules[1] / joules[0] == pytest.approx(1.03, abs=0.01)


def test_compute_bound_training_between_1410_and_1005_mhz() -> None:
    """Time x1.38, as one compute-bound measurement says. Its energy, -37 %, is not met: -21 %.

    With 58 W idle and 296 W at the top, -37 % needs a voltage 1.45 times as high at 1410 MHz as at 1005 MHz. The
    catalogue's curve, fitted to the 38 clocks of Perseus' profile, has 1.20. The truth stays with the profile (next test).
    """
    truth = ORACLE.performance("gpt2", 256, 1)
    low, top = CLOCKS.index(1005), CLOCKS.index(1410)
    assert truth.seconds[0, low] / truth.seconds[0, top] == pytest.approx(1.38, rel=0.01)
    assert truth.watts[0, top] == pytest.approx(296, rel=0.01)
    assert truth.joules[0, low] / truth.joules[0, top] == pytest.approx(0.79, abs=0.01)


def test_the_power_curve_is_the_one_of_the_perseus_profile(measured_data: Path) -> None:
    """Watts of a GPT-3 stage at each of 38 clocks, up to one factor: the profile is of a GPU at its power limit."""
    with (measured_data / "perseus-sosp24/stage_profile/gpt3-175b+a100_sxm_bf16.csv").open() as table:
        rows = [row for row in csv.DictReader(table) if row["stage"] == "0" and row["instruction"] == "forward"]
    clocks = sorted(int(row["frequency"]) for row in rows)
    watts = {int(row["frequency"]): float(row["energy"]) / float(row["time"]) for row in rows}
    oracle = Oracle(board(), clocks, 8)
    ratio = oracle.gpu_watts(1.0) / np.array([watts[clock] for clock in clocks])
    errors = np.abs(ratio / np.median(ratio) - 1)
    assert errors.mean() < 0.025
    assert errors.max() < 0.08


def test_a_waiting_gpu_draws_the_measured_blocking_power() -> None:
    assert ORACLE.gpu_watts(WAITING_ACTIVITY)[-1] == pytest.approx(83.64, rel=0.005)


@given(kind=st.sampled_from(KINDS), power=st.integers(0, 6), clock=st.sampled_from(CLOCKS))
def test_the_simulator_and_the_devcluster_live_by_one_truth(kind: tuple[str, int], power: int, clock: int) -> None:
    """A training process of the devcluster on a simulated A100 takes the oracle's seconds, and its watts within 1 %.

    It sets the mean activity of the whole iteration, the oracle adds up parts: linear in activity, hence the same.
    """
    name, batch = kind
    gpus = min(1 << power, 1 << (batch.bit_length() - 1))
    truth = ORACLE.performance(name, batch, gpus)
    row, column = truth.position[gpus], CLOCKS.index(clock)
    step = iteration(model_class(name), gpus, -(-gpus // 8), batch, clock / 1410)
    assert truth.seconds[row, column] == pytest.approx(step.seconds, rel=1e-9)
    watts = power_milliwatts(CATALOGUE[A100], clock, step.activity) / 1000 * gpus
    assert truth.watts[row, column] == pytest.approx(watts, rel=0.01)


def test_other_boards_compute_at_their_own_speed_and_draw_their_own_watts() -> None:
    v100 = board("Tesla-V100-SXM2-16GB")
    slow = Oracle(v100, v100.clocks_megahertz[-3:], 8).performance("vgg16", 128, 8)
    fast = ORACLE.performance("vgg16", 128, 8)
    assert slow.seconds[0, -1] == pytest.approx(fast.seconds[0, -1] / v100.relative_speed)
    assert slow.seconds[3, -1] < fast.seconds[3, -1] / v100.relative_speed, "waiting does not get longer"
    assert slow.watts[0, -1] < v100.default_power_limit_watts


def test_smaller_nodes_wait_longer() -> None:
    small = Oracle(board(), CLOCKS, 4).performance("resnet50", 128, 16)
    large = ORACLE.performance("resnet50", 128, 16)
    assert (small.seconds[:3] == large.seconds[:3]).all()
    assert (small.seconds[3:] > large.seconds[3:]).all()


def test_a_performance_is_made_once() -> None:
    oracle = Oracle(board(), CLOCKS, 8)
    made = [oracle.performance(name, batch, 512) for name, batch in KINDS]
    assert all(oracle.performance(*kind, 512) is known for kind, known in zip(KINDS, made, strict=True))
    assert oracle.performance("bert", 64, 63) is oracle.performance("bert", 64, 32)


def test_what_is_no_size_or_clock_is_refused() -> None:
    for clocks in [(), (1005, 1005), (1410, 1005), (0, 1005), (1005, 1425)]:
        with pytest.raises(ValueError, match="clocks"):
            Oracle(board(), clocks, 8)
    with pytest.raises(ValueError, match="0 GPUs"):
        Oracle(board(), CLOCKS, 0)
    with pytest.raises(ValueError, match="no size"):
        ORACLE.performance("bert", 0, 8)
    with pytest.raises(ValueError, match=r"llama.*resnet50"):
        ORACLE.performance("llama", 64, 8)


def test_the_throughput_fits_of_the_same_tables_are_near(measured_data: Path) -> None:
    """PowerFlow's own model, fitted to these tables, is within its published error of the truth on average."""
    fits = json.loads((measured_data / "elasticflow/throughput_fits.json").read_text())
    for name, loo in fits["loo_mape"].items():
        a, b, c, d, lc, ls, nc, ns, g1, g2 = fits[name]
        errors = []
        for batch in MODEL_CLASSES[name].batch_sizes:
            truth = ORACLE.performance(name, batch, 64)
            for gpus, seconds in zip(truth.sizes, truth.seconds[:, -1], strict=True):
                local = batch / gpus
                io, gradient = a + b * local * min(gpus, 8), c + d * local
                sync = 0.0 if gpus == 1 else (lc + ls * (gpus - 2) if gpus <= 8 else nc + ns * (gpus - 2))
                fitted = ((io**g1 + gradient**g1) ** (g2 / g1) + sync**g2) ** (1 / g2)
                errors.append(abs(fitted / seconds - 1))
        assert sum(errors) / len(errors) < loo + 0.005, name
