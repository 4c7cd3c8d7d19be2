"""The time-energy model: its limits, its shape, and how it reads and writes its parameters."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from flyball_planner.models.gpu import GpuModel, catalogue, gpu_model_for
from flyball_planner.models.job import (
    PAPER_PARAMETER_NAMES,
    PARAMETER_NAMES,
    JobModel,
    PaperPower,
    Parameterisation,
    evaluate,
    parameter_matrix,
)
from flyball_planner.models.priors import known_model_classes, model_class_prior
from hypothesis import given
from hypothesis import strategies as st

CATALOGUE = sorted(catalogue())


def board(product: str = "NVIDIA-A100-SXM4-40GB") -> GpuModel:
    model = gpu_model_for(product)
    assert model is not None
    return model


@st.composite
def job_models(draw: st.DrawFn) -> JobModel:
    def seconds(high: float) -> float:
        return draw(st.floats(0.0, high))

    return JobModel(
        gpu_model=board(draw(st.sampled_from(CATALOGUE))),
        gradient_seconds=seconds(0.1),
        gradient_seconds_per_sample=seconds(0.01),
        gradient_megacycles_per_sample=draw(st.floats(0.01, 20.0)),
        gradient_watts_per_megahertz=draw(st.floats(0.0, 0.02)),
        io_seconds=seconds(0.1),
        io_seconds_per_sample=seconds(0.001),
        local_sync_seconds=seconds(0.1),
        local_sync_megacycles=draw(st.floats(0.0, 50.0)),
        local_sync_seconds_per_gpu=seconds(0.01),
        local_sync_megacycles_per_gpu=draw(st.floats(0.0, 5.0)),
        node_sync_seconds=seconds(0.2),
        node_sync_megacycles=draw(st.floats(0.0, 50.0)),
        node_sync_seconds_per_gpu=seconds(0.01),
        node_sync_megacycles_per_gpu=draw(st.floats(0.0, 5.0)),
        io_overlap=draw(st.floats(1.0, 10.0)),
        sync_overlap=draw(st.floats(1.0, 10.0)),
        gradient_batch_shift=draw(st.floats(0.0, 5.0)),
        gradient_batch_offset=draw(st.floats(0.0, 30.0)),
        sync_watts_per_megahertz=draw(st.floats(0.0, 0.1)),
    )


def parts(model: JobModel, gpus: int, nodes: int, clock: float, batch: float) -> tuple[float, float, float]:
    """T_IO, T_grad and T_sync by PowerFlow's equations 2 to 4, written out."""
    local, per_node = batch / gpus, gpus / nodes
    io = model.io_seconds + model.io_seconds_per_sample * local * per_node
    per_sample = model.gradient_seconds_per_sample + model.gradient_megacycles_per_sample / clock
    gradient = model.gradient_seconds + per_sample * local
    if gpus == 1:
        return io, gradient, 0.0
    where = "local" if nodes == 1 else "node"
    constant = getattr(model, f"{where}_sync_seconds") + getattr(model, f"{where}_sync_megacycles") / clock
    slope = getattr(model, f"{where}_sync_seconds_per_gpu") + getattr(model, f"{where}_sync_megacycles_per_gpu") / clock
    return io, gradient, constant + slope * (gpus - 2)


@given(job_models(), st.sampled_from([(1, 1), (2, 1), (8, 1), (16, 2), (64, 8)]), st.integers(1, 512))
def test_an_iteration_lies_between_full_overlap_and_none(model: JobModel, size: tuple[int, int], batch: int) -> None:
    clock = float(model.gpu_model.max_clock_megahertz)
    seconds = model.iteration_seconds(*size, clock, batch)
    each = parts(model, *size, clock, batch)
    assert max(each) <= seconds * (1 + 1e-12)
    assert seconds <= sum(each) * (1 + 1e-12)


@given(job_models(), st.sampled_from([(1, 1), (4, 1), (32, 4)]), st.integers(1, 256))
def test_exponents_of_one_add_up_and_large_ones_overlap(model: JobModel, size: tuple[int, int], batch: int) -> None:
    clock = float(model.gpu_model.max_clock_megahertz)
    added = replace(model, io_overlap=1.0, sync_overlap=1.0)
    assert added.iteration_seconds(*size, clock, batch) == pytest.approx(sum(parts(model, *size, clock, batch)))
    hidden = replace(model, io_overlap=10.0, sync_overlap=10.0)
    longest = max(parts(model, *size, clock, batch))
    assert hidden.iteration_seconds(*size, clock, batch) <= longest * 2 ** (1 / 10) * 2 ** (1 / 10) * (1 + 1e-9)


@given(job_models(), st.sampled_from([(1, 1), (2, 1), (8, 1), (32, 4)]), st.sampled_from([8.0, 64.0, 512.0]))
def test_a_higher_clock_is_never_slower_and_never_draws_less(
    model: JobModel, size: tuple[int, int], batch: float
) -> None:
    curves = model.curves(*size, batch)
    assert np.all(np.diff(curves.seconds[0]) <= 1e-12 * curves.seconds[0][:-1])
    unclipped = curves.gpu_peak_watts[0] < model.gpu_model.max_power_limit_watts * (1 - 1e-9)
    rising = np.diff(curves.gpu_watts[0])[unclipped[1:]]
    assert np.all(rising >= -1e-9 * model.gpu_model.max_power_limit_watts)


@given(job_models(), st.sampled_from([(1, 1), (4, 1), (16, 2)]), st.sampled_from([16, 64, 256]))
def test_more_samples_take_longer_and_power_stays_between_idle_and_the_limit(
    model: JobModel, size: tuple[int, int], batch: int
) -> None:
    clock = float(model.gpu_model.max_clock_megahertz)
    # Hidden behind a longer part, a little more work may not show in sixteen digits; added up it does.
    assert model.iteration_seconds(*size, clock, batch) <= model.iteration_seconds(*size, clock, 2 * batch)
    added = replace(model, io_overlap=1.0, sync_overlap=1.0)
    assert added.iteration_seconds(*size, clock, batch) < added.iteration_seconds(*size, clock, 2 * batch)
    lowest = float(model.gpu_model.clocks_megahertz[0])
    assert model.gpu_watts(*size, lowest, batch) >= model.gpu_model.idle_power_watts * (1 - 1e-9)
    assert model.gpu_peak_watts(*size, clock, batch) >= model.gpu_watts(*size, clock, batch) * (1 - 1e-12)


@given(job_models(), st.sampled_from([(1, 1), (8, 1), (16, 2)]))
def test_time_and_energy_are_continuous_at_the_knee(model: JobModel, size: tuple[int, int]) -> None:
    knee = model.gpu_model.knee_megahertz
    curves = model.curves(*size, 64.0, np.array([knee - 1e-6, knee, knee + 1e-6]))
    for values in (curves.seconds[0], curves.joules[0], curves.gpu_watts[0]):
        assert values[0] == pytest.approx(values[1], rel=1e-6)
        assert values[2] == pytest.approx(values[1], rel=1e-6)


def test_the_energy_of_an_iteration_by_hand() -> None:
    """One GPU at the knee: V = 1, so 0.1 s of gradients at 0.1*(ln(1)+1)*1000 W, and 0.125 s of 50 W static."""
    gpu = GpuModel("test", 100.0, 400.0, 400.0, 50.0, (500, 1000, 2000), knee_megahertz=1000.0, voltage_slope=1.0)
    model = JobModel(
        gpu_model=gpu,
        gradient_seconds=0.0,
        gradient_seconds_per_sample=0.0,
        gradient_megacycles_per_sample=100.0,  # one sample at 1000 MHz: 0.1 s
        gradient_watts_per_megahertz=0.1,
        gradient_batch_shift=0.0,
        gradient_batch_offset=1.0,
        io_seconds=0.025,
    )
    assert model.iteration_seconds(1, 1, 1000, 1) == pytest.approx(0.125)
    assert model.iteration_joules(1, 1, 1000, 1) == pytest.approx(0.1 * 100 + 0.125 * 50)
    assert model.gpu_watts(1, 1, 1000, 1) == pytest.approx(16.25 / 0.125)
    assert model.gpu_peak_watts(1, 1, 1000, 1) == pytest.approx(150)
    # At 2000 MHz V = 1.5: 0.05 s at 0.1*2.25*2000 = 450 W, clipped to 400 - 75; static 75 W over 0.075 s.
    assert model.iteration_joules(1, 1, 2000, 1) == pytest.approx(0.05 * 325 + 0.075 * 75)


def test_curves_are_the_single_values_in_rows_and_columns() -> None:
    model = model_class_prior("gpt2", board())
    curves = model.curves(np.array([1, 4, 16]), np.array([1, 1, 2]), np.array([64.0, 64.0, 128.0]), [900, 1410])
    assert curves.seconds.shape == curves.joules.shape == (3, 2)
    for row, (gpus, nodes, batch) in enumerate([(1, 1, 64), (4, 1, 64), (16, 2, 128)]):
        for column, clock in enumerate([900, 1410]):
            assert curves.seconds[row, column] == model.iteration_seconds(gpus, nodes, clock, batch)
            assert curves.joules[row, column] == model.iteration_joules(gpus, nodes, clock, batch)
            assert curves.gpu_watts[row, column] == model.gpu_watts(gpus, nodes, clock, batch)


@given(job_models())
def test_parameters_survive_a_round_trip(model: JobModel) -> None:
    parameters = model.parameters()
    assert tuple(parameters) == PARAMETER_NAMES
    assert JobModel.from_parameters(model.gpu_model, parameters) == model


def test_parameters_that_make_no_sense_are_refused_by_name() -> None:
    model = model_class_prior("bert", board())
    with pytest.raises(ValueError, match=r"unknown \['speed'\], missing \[\]"):
        JobModel.from_parameters(board(), model.parameters() | {"speed": 1.0})
    with pytest.raises(ValueError, match=r"io_overlap is 0\.5"):
        replace(model, io_overlap=0.5)
    with pytest.raises(ValueError, match="gradient_seconds is nan"):
        replace(model, gradient_seconds=math.nan)
    with pytest.raises(ValueError, match="takes no time"):
        replace(model, gradient_seconds=0.0, gradient_seconds_per_sample=0.0, gradient_megacycles_per_sample=0.0)


@pytest.mark.parametrize("name", [*known_model_classes(), "a network nobody has seen"])
@pytest.mark.parametrize("product", CATALOGUE)
def test_priors_are_plausible_on_every_gpu(name: str, product: str) -> None:
    gpu = board(product)
    model = model_class_prior(name, gpu)
    assert model.gpu_model == gpu
    curves = model.curves(1, 1, 64)
    assert 0.01 < curves.seconds[0, -1] < 20
    assert gpu.idle_power_watts < curves.gpu_watts[0, -1] <= gpu.max_power_limit_watts
    best = gpu.clocks_megahertz[int(curves.joules[0].argmin())]
    assert best < gpu.max_clock_megahertz, "some clock below the highest takes fewer joules"


def test_an_unknown_class_gets_the_generic_prior_and_case_does_not_matter() -> None:
    assert model_class_prior("", board()) == model_class_prior("no-such-network", board())
    assert model_class_prior("ResNet50", board()) == model_class_prior("resnet-50", board())
    assert model_class_prior("vgg16", board()) != model_class_prior("", board())


def test_a_compute_bound_job_loses_time_and_a_memory_bound_one_does_not() -> None:
    """A100, 1005 against 1410 MHz: compute-bound time x1.38; at a constant gradient time, none (calibration data)."""
    vgg = model_class_prior("vgg16", board())
    ratio = vgg.iteration_seconds(1, 1, 1005, 256) / vgg.iteration_seconds(1, 1, 1410, 256)
    assert ratio == pytest.approx(1.38, abs=0.04)
    flat = replace(vgg, gradient_seconds=0.1, gradient_seconds_per_sample=0.001, gradient_megacycles_per_sample=0.0)
    assert flat.iteration_seconds(1, 1, 1005, 256) == flat.iteration_seconds(1, 1, 1410, 256)


def test_a_model_is_carried_to_other_gpus_by_speed_and_back() -> None:
    a100, h100 = board(), board("NVIDIA-H100-80GB-HBM3")
    model = model_class_prior("bert", a100)
    carried = model.on(h100)
    assert carried.gpu_model == h100
    computing = replace(model, io_seconds=0.0, io_seconds_per_sample=0.0)
    faster = computing.on(h100).iteration_seconds(1, 1, h100.max_clock_megahertz, 64)
    speed = h100.relative_speed / a100.relative_speed
    assert computing.iteration_seconds(1, 1, a100.max_clock_megahertz, 64) / faster == pytest.approx(speed)
    back = carried.on(a100)
    for name, value in model.parameters().items():
        assert back.parameters()[name] == pytest.approx(value), name


def test_other_limits_of_the_same_product_leave_the_measurements_alone() -> None:
    model = model_class_prior("bert", board())
    limited = replace(board(), default_power_limit_watts=300.0, max_power_limit_watts=300.0)
    assert model.on(limited).parameters() == model.parameters()


@st.composite
def paper_models(draw: st.DrawFn) -> JobModel:
    """Job models in the paper's parameterisation, with shapes of every kind."""
    model = draw(job_models())
    share = st.floats(0.0, 1.0)
    shapes: dict[str, Any] = {}
    for part in ("gradient", "sync"):
        middle, cube = draw(share), draw(share)
        shapes |= {f"{part}_at_break": middle, f"{part}_at_zero": middle * draw(share)}
        shapes |= {f"{part}_cube": cube, f"{part}_square": (1 - cube) * draw(share)}
    paper = PaperPower(
        break_megahertz=0.7 * model.gpu_model.max_clock_megahertz,
        gradient_watts=draw(st.floats(0.0, 200.0)),
        gradient_watts_per_log_sample=draw(st.floats(0.0, 30.0)),
        gradient_batch_shift=draw(st.floats(1.0, 5.0)),
        sync_watts=draw(st.floats(0.0, 100.0)),
        static_watts=draw(st.floats(10.0, 80.0)),
        static_rise=draw(share),
        **shapes,
    )
    return replace(model, paper=paper)


@given(paper_models(), st.sampled_from([(1, 1), (8, 1), (32, 4)]), st.sampled_from([8.0, 512.0]))
def test_the_papers_power_never_falls_as_the_clock_rises_and_is_continuous(
    model: JobModel, size: tuple[int, int], batch: float
) -> None:
    limit = model.gpu_model.max_power_limit_watts
    curves = model.curves(*size, batch)
    unclipped = curves.gpu_peak_watts[0] < limit * (1 - 1e-9)
    # What is drawn while it computes; the mean over the iteration falls where computing takes a smaller share of it.
    assert np.all(np.diff(curves.gpu_peak_watts[0])[unclipped[1:]] >= -1e-9 * limit)
    assert model.paper is not None
    knee = model.paper.break_megahertz
    around = model.curves(*size, batch, np.array([knee - 1e-6, knee, knee + 1e-6]))
    for values in (around.joules[0], around.gpu_watts[0]):
        assert np.allclose(values, values[1], rtol=1e-6)


@given(job_models(), st.sampled_from([(1, 1), (8, 1), (32, 4)]), st.sampled_from([8.0, 512.0]))
def test_the_papers_form_contains_the_physical_one(model: JobModel, size: tuple[int, int], batch: float) -> None:
    """With f0 at the knee V^2*f is linear below and a cubic above, and V constant and linear: equations 12 to 15."""
    at_the_knee = replace(model, gpu_model=replace(model.gpu_model, break_megahertz=model.gpu_model.knee_megahertz))
    paper = at_the_knee.as_paper()
    assert paper.parameterisation is Parameterisation.PAPER
    for mine, theirs in zip(at_the_knee.curves(*size, batch), paper.curves(*size, batch), strict=True):
        assert theirs == pytest.approx(mine, rel=1e-9, abs=1e-9)
    assert paper.as_physical() == at_the_knee


@given(paper_models())
def test_the_papers_parameters_survive_a_round_trip(model: JobModel) -> None:
    parameters = model.parameters()
    assert tuple(parameters) == PARAMETER_NAMES + PAPER_PARAMETER_NAMES
    assert JobModel.from_parameters(model.gpu_model, parameters) == model


def test_the_energy_of_an_iteration_by_the_paper_by_hand() -> None:
    """1000 MHz is f0: kappa 0.4, static 50 W; 1500 MHz is half way up: kappa 0.4 + 0.6*(0.5*0.5 + 0.5*0.125), 55 W."""
    gpu = GpuModel("test", 100.0, 400.0, 400.0, 50.0, (500, 1000, 1500, 2000), knee_megahertz=1200.0, voltage_slope=1.0)
    paper = PaperPower(
        break_megahertz=1000.0,
        gradient_watts=100.0,
        gradient_watts_per_log_sample=50.0,
        gradient_batch_shift=math.e - 1.0,
        gradient_at_zero=0.2,
        gradient_at_break=0.4,
        gradient_square=0.0,
        gradient_cube=0.5,
        sync_watts=0.0,
        sync_at_zero=0.0,
        sync_at_break=0.0,
        sync_square=0.0,
        sync_cube=0.0,
        static_watts=50.0,
        static_rise=0.2,
    )
    model = JobModel(gpu, 0.1, 0.0, 0.0, 0.0, io_seconds=0.1, paper=paper)
    for clock, kappa, static in (
        (500, 0.3, 50.0),
        (1000, 0.4, 50.0),
        (1500, 0.4 + 0.6 * 0.3125, 55.0),
        (2000, 1, 60.0),
    ):
        assert model.iteration_joules(1, 1, clock, 1) == pytest.approx(0.1 * 150 * kappa + 0.2 * static)


def test_jobs_of_both_parameterisations_are_evaluated_together() -> None:
    gpu = board()
    physical = model_class_prior("bert", gpu)
    paper = model_class_prior("vgg16", gpu).as_paper()
    assert paper.paper is not None
    paper = replace(paper, paper=replace(paper.paper, static_watts=70.0))
    gpus, nodes, batch = np.array([[8.0], [4.0]]), np.ones((2, 1)), np.array([[64.0], [128.0]])
    both = evaluate(parameter_matrix([physical, paper]), gpu, gpus, nodes, batch, gpu.clock_array()[None, :])
    for row, model in enumerate((physical, paper)):
        alone = model.curves(int(gpus[row, 0]), 1, batch[row, 0])
        for together, single in zip(both, alone, strict=True):
            assert np.allclose(together[row], single[0], rtol=1e-12)


def test_a_paper_model_is_carried_to_another_gpu_as_the_physical_one_is() -> None:
    model, h100 = model_class_prior("gpt2", board()), board("NVIDIA-H100-80GB-HBM3")
    carried, physical = model.as_paper().on(h100), model.on(h100)
    assert carried.paper is not None
    assert carried.paper.static_watts == h100.idle_power_watts
    top = h100.max_clock_megahertz
    assert carried.gpu_watts(1, 1, top, 32) == pytest.approx(physical.gpu_watts(1, 1, top, 32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gradient_at_break": 0.1, "gradient_at_zero": 0.2}, r"gradient_at_zero 0\.2 <= gradient_at_break 0\.1"),
        ({"sync_square": 0.7, "sync_cube": 0.7}, r"sync_square \+ sync_cube is 1\.4"),
        ({"static_watts": -1.0}, r"static_watts is -1\.0"),
        ({"break_megahertz": 0.0}, "break_megahertz must be above 0"),
    ],
)
def test_shapes_that_could_fall_are_refused(change: dict[str, float], message: str) -> None:
    paper = model_class_prior("bert", board()).as_paper().paper
    assert paper is not None
    assert {field.name for field in fields(paper)} >= set(change)
    with pytest.raises(ValueError, match=message):
        replace(paper, **change)
