"""Fitting: what the data say is found, what they do not say stays with the prior."""

from __future__ import annotations

import csv
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flyball_planner.fitting import windows as fitting_windows
from flyball_planner.fitting.fit import FittedModel, Observation, fit, without_warm_up
from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_planner.models.job import JobModel
from flyball_planner.models.priors import known_model_classes, model_class_prior

SIZES = [(1, 1), (2, 1), (4, 1), (8, 1), (16, 2), (32, 4)]


def a100() -> GpuModel:
    model = gpu_model_for("NVIDIA-A100-SXM4-40GB")
    assert model is not None
    return model


def observe(
    model: JobModel, gpus: int, nodes: int, local_batch: float, clock: float, noise: float = 1.0
) -> Observation:
    seconds = model.iteration_seconds(gpus, nodes, clock, local_batch * gpus)
    joules = model.iteration_joules(gpus, nodes, clock, local_batch * gpus)
    return Observation(gpus, nodes, local_batch, clock, seconds * noise, joules * noise)


def sweep(model: JobModel, noise: float = 0.0, seed: int = 1) -> list[Observation]:
    generator = random.Random(seed)
    return [
        observe(model, *size, batch, clock, 1 + noise * generator.uniform(-1, 1))
        for size in SIZES
        for batch in (8, 32)
        for clock in (705, 1050, 1410)
    ]


def slower(model: JobModel, factor: float) -> JobModel:
    """A job of the same class with more to compute, less to synchronise, and hungrier."""
    return replace(
        model,
        gradient_seconds_per_sample=model.gradient_seconds_per_sample * factor,
        gradient_megacycles_per_sample=model.gradient_megacycles_per_sample * factor * 1.2,
        local_sync_seconds=model.local_sync_seconds * 0.6,
        node_sync_seconds_per_gpu=model.node_sync_seconds_per_gpu * 2,
        gradient_watts_per_megahertz=model.gradient_watts_per_megahertz * 1.15,
    )


@pytest.mark.parametrize("name", known_model_classes())
@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_a_fit_finds_the_job_from_a_sweep(name: str, factor: float) -> None:
    truth = slower(model_class_prior(name, a100()), factor)
    fitted = fit(model_class_prior("", a100()), sweep(truth))
    assert fitted.errors.time_mape < 0.02
    # Time alone does not always tell input from gradients where they overlap, and only gradients draw power.
    assert fitted.errors.energy_mape < 0.08
    assert fit(model_class_prior(name, a100()), sweep(truth)).errors.energy_mape < 0.03
    for size in [*SIZES, (64, 8)]:  # one size beyond what was seen
        seconds = fitted.model.iteration_seconds(*size, 900, 16 * size[0])
        assert seconds == pytest.approx(truth.iteration_seconds(*size, 900, 16 * size[0]), rel=0.1)


def test_a_fit_finds_the_parameters_when_it_starts_near_them() -> None:
    prior = model_class_prior("resnet50", a100())
    truth = slower(prior, 1.3)
    fitted = fit(prior, sweep(truth)).model.parameters()
    for name in ("gradient_megacycles_per_sample", "gradient_watts_per_megahertz"):
        assert fitted[name] == pytest.approx(truth.parameters()[name], rel=0.1), name


def test_noise_is_averaged_out_and_shows_in_the_errors() -> None:
    prior = model_class_prior("gpt2", a100())
    truth = slower(prior, 2.0)
    fitted = fit(prior, sweep(truth, noise=0.05))
    assert 0.01 < fitted.errors.time_mape < 0.05
    assert fitted.model.iteration_seconds(4, 1, 1200, 128) == pytest.approx(
        truth.iteration_seconds(4, 1, 1200, 128), rel=0.03
    )
    clean = fit(prior, sweep(truth))
    assert clean.standard_errors["local_sync_seconds"] < fitted.standard_errors["local_sync_seconds"]


def test_a_disturbed_window_does_not_bend_the_model() -> None:
    truth = slower(model_class_prior("vgg16", a100()), 1.5)
    windows = sweep(truth)
    spoiled = [replace(windows[0], iteration_seconds=windows[0].iteration_seconds * 20), *windows[1:]]
    fitted = fit(model_class_prior("vgg16", a100()), spoiled).model
    assert fitted.iteration_seconds(2, 1, 1410, 64) == pytest.approx(truth.iteration_seconds(2, 1, 1410, 64), rel=0.05)


def test_without_observations_the_prior_stands() -> None:
    prior = model_class_prior("bert", a100())
    fitted = fit(prior, [])
    assert fitted.model == prior
    assert math.isnan(fitted.errors.time_mape)
    assert fitted.errors.time_observations == 0


def test_one_window_moves_the_pace_and_leaves_the_rest_to_the_prior() -> None:
    prior = model_class_prior("resnet50", a100())
    seen = Observation(1, 1, 64, 1410, 2 * prior.iteration_seconds(1, 1, 1410, 64))
    fitted = fit(prior, [seen])
    assert fitted.model.iteration_seconds(1, 1, 1410, 64) == pytest.approx(seen.iteration_seconds, rel=0.01)

    # one batch size: the constant part of the gradient time is the prior's share of it
    def constant(model: JobModel) -> float:
        samples = model.gradient_seconds_per_sample + model.gradient_megacycles_per_sample / 1410
        return model.gradient_seconds / (model.gradient_seconds + 64 * samples)

    assert constant(fitted.model) == pytest.approx(constant(prior), abs=0.02)

    # one clock: the share that follows the clock is the prior's
    def share(model: JobModel) -> float:
        follows = model.gradient_megacycles_per_sample / 1410
        return follows / (follows + model.gradient_seconds_per_sample)

    assert share(fitted.model) == pytest.approx(share(prior))
    # no synchronisation seen, no energy measured
    assert fitted.model.local_sync_seconds == prior.local_sync_seconds
    assert fitted.model.gradient_watts_per_megahertz == prior.gradient_watts_per_megahertz
    assert math.isnan(fitted.errors.energy_mape)


def test_nodes_that_were_never_spanned_synchronise_slower_than_one() -> None:
    truth = replace(model_class_prior("gpt2", a100()), local_sync_seconds=0.2)
    fitted = fit(model_class_prior("gpt2", a100()), [observe(truth, gpus, 1, 16, 1410) for gpus in (1, 2, 4, 8)])
    assert fitted.model.node_sync_seconds >= 1.1 * fitted.model.local_sync_seconds
    blank = replace(truth, node_sync_seconds=0.0, node_sync_seconds_per_gpu=0.0)
    fitted = fit(blank, [observe(truth, gpus, 1, 16, 1410) for gpus in (1, 2, 4, 8)])
    assert fitted.model.node_sync_seconds_per_gpu >= 1.1 * fitted.model.local_sync_seconds_per_gpu > 0


@pytest.mark.parametrize("name", known_model_classes())
def test_a_few_noisy_windows_do_not_bend_what_a_good_prior_says_of_other_sizes(name: str) -> None:
    """One size's windows, 3 % off in seconds and 20 % in joules: a job like its class, which draws less."""
    prior = model_class_prior(name, a100())
    for size in ((1, 1), (8, 1), (32, 4)):
        seen = [
            replace(window, iteration_joules=0.8 * (window.iteration_joules or math.nan))
            for window in (observe(prior, *size, 16, clock, 1.03) for clock in (705, 1410))
        ]
        for windows in (seen[:1], seen):
            fitted = fit(prior, windows).model
            for other in SIZES:
                now = fitted.iteration_seconds(*other, 1050, 16 * other[0])
                assert now == pytest.approx(prior.iteration_seconds(*other, 1050, 16 * other[0]), rel=0.1), (
                    size,
                    other,
                )


def test_a_prior_whose_nodes_synchronise_no_slower_than_one_is_believed_where_none_was_spanned() -> None:
    prior = replace(model_class_prior("gpt2", a100()), local_sync_seconds=0.02, node_sync_seconds=0.0)
    fitted = fit(prior, [observe(prior, gpus, 1, 16, 1410) for gpus in (1, 2, 4, 8)]).model
    assert fitted.iteration_seconds(16, 2, 1410, 256) == pytest.approx(
        prior.iteration_seconds(16, 2, 1410, 256), rel=0.02
    )


def test_a_prior_that_does_not_split_the_gradient_time_is_split_in_half() -> None:
    prior = replace(model_class_prior("resnet50", a100()), gradient_seconds=0.0)
    seen = Observation(1, 1, 64, 1410, 2 * prior.iteration_seconds(1, 1, 1410, 64))
    model = fit(prior, [seen]).model
    samples = 64 * (model.gradient_seconds_per_sample + model.gradient_megacycles_per_sample / 1410)
    assert model.gradient_seconds == pytest.approx(samples, rel=0.05)


def test_the_order_and_the_repetition_of_fits_do_not_matter() -> None:
    windows = sweep(slower(model_class_prior("bert", a100()), 2.0), noise=0.05)
    prior = model_class_prior("bert", a100())
    shuffled = windows[:]
    random.Random(7).shuffle(shuffled)
    first: FittedModel = fit(prior, windows)
    assert fit(prior, shuffled) == first
    assert fit(prior, windows) == first


def test_a_weight_counts_like_repetitions() -> None:
    prior = model_class_prior("vgg16", a100())
    low = observe(prior, 1, 1, 32, 1410, 1.5)
    high = observe(prior, 1, 1, 32, 1410, 2.0)
    repeated = fit(prior, [low, *[high] * 9]).model.iteration_seconds(1, 1, 1410, 32)
    weighted = fit(prior, [low, replace(high, weight=9.0)]).model.iteration_seconds(1, 1, 1410, 32)
    assert weighted == pytest.approx(repeated, rel=0.02)


def test_the_anchors_of_vgg16_are_met() -> None:
    """VGG16, batch 64, A100: one GPU 0.114 s and 27 J, two GPUs 0.112 s and 39 J (PowerFlow, figure 1)."""
    fitted = fit(
        model_class_prior("vgg16", a100()),
        [Observation(1, 1, 64, 1410, 0.114, 27.0), Observation(2, 1, 32, 1410, 0.112, 39.0)],
    )
    assert fitted.errors.time_mape < 0.03
    assert fitted.errors.energy_mape < 0.03


def test_windows_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="1 GPUs on 2 nodes"):
        Observation(1, 2, 8, 1410, 0.1)
    with pytest.raises(ValueError, match="iteration_seconds is 0"):
        Observation(1, 1, 8, 1410, 0)
    with pytest.raises(ValueError, match="iteration_joules is nan"):
        Observation(1, 1, 8, 1410, 0.1, math.nan)


@pytest.mark.slow
def test_a_refit_from_the_last_one_is_no_worse_than_one_from_scratch() -> None:
    """Windows come in four portions; each starts from the fit before. Their noise is 4 %, of which 0.6 % is little."""
    for seed, (name, factor) in enumerate((("gpt2", 2.0), ("vgg16", 0.6), ("deepspeech2", 1.5), ("bert", 3.0))):
        windows = sweep(slower(model_class_prior(name, a100()), factor), noise=0.04, seed=seed)
        random.Random(seed).shuffle(windows)
        prior = model_class_prior("", a100())
        for parameterisation in ("physical", "paper"):
            last = None
            for count in (6, 12, 24, len(windows)):
                last = fit(prior, windows[:count], parameterisation=parameterisation, last=last)
                fresh = fit(prior, windows[:count], parameterisation=parameterisation)
                assert last.errors.time_mape <= fresh.errors.time_mape + 0.006, (name, parameterisation, count)
                assert last.errors.energy_mape <= fresh.errors.energy_mape + 0.006, (name, parameterisation, count)


def test_a_refit_of_a_job_that_has_changed_forgets_what_it_was() -> None:
    prior = model_class_prior("", a100())
    before = fit(prior, sweep(slower(model_class_prior("gpt2", a100()), 0.5)))
    windows = sweep(slower(model_class_prior("deepspeech2", a100()), 2.0))
    assert fit(prior, windows, last=before).errors.time_mape <= fit(prior, windows).errors.time_mape + 0.003


def test_a_refit_costs_fewer_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    original = fitting_windows.evaluate_seconds_and_joules

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return original(*arguments)

    monkeypatch.setattr(fitting_windows, "evaluate_seconds_and_joules", counted)
    windows = sweep(slower(model_class_prior("bert", a100()), 2.0), noise=0.04)
    prior = model_class_prior("", a100())
    last = fit(prior, windows[:-3])
    from_scratch, calls = calls, 0
    fit(prior, windows, last=last)
    assert calls < 0.7 * from_scratch


def test_a_last_fit_of_other_hardware_is_refused() -> None:
    h100 = gpu_model_for("NVIDIA-H100-80GB-HBM3")
    assert h100 is not None
    last = fit(model_class_prior("bert", h100), [])
    with pytest.raises(ValueError, match=r"the last fit is of NVIDIA-H100.* and the prior of NVIDIA-A100"):
        fit(model_class_prior("bert", a100()), [], last=last)
    with pytest.raises(ValueError, match="'cubic' is not a valid Parameterisation"):
        fit(model_class_prior("bert", a100()), [], parameterisation="cubic")


def test_the_papers_shapes_follow_boards_that_the_physical_law_does_not() -> None:
    """A board whose power is flat below f0 and whose static power is twice the catalogue's."""
    prior = model_class_prior("vgg16", a100())
    paper = prior.as_paper().paper
    assert paper is not None
    odd = replace(paper, gradient_at_zero=0.8 * paper.gradient_at_break, gradient_cube=0.6, gradient_square=0.2)
    truth = replace(prior, paper=replace(odd, static_watts=110.0))
    windows = [observe(truth, *size, 32, clock) for size in SIZES for clock in range(510, 1411, 100)]
    by_paper = fit(prior, windows, parameterisation="paper")
    assert by_paper.errors.energy_mape < 0.02
    assert by_paper.errors.energy_mape < fit(prior, windows).errors.energy_mape / 2


def test_one_clock_leaves_the_papers_shape_to_the_prior() -> None:
    prior = model_class_prior("gpt2", a100())
    windows = [observe(slower(prior, 1.5), *size, 16, 1410) for size in SIZES]
    fitted = fit(prior, windows, parameterisation="paper").model.paper
    before = prior.as_paper().paper
    assert fitted is not None
    assert before is not None
    for name in ("gradient_at_break", "gradient_at_zero", "gradient_cube", "sync_at_break", "static_rise"):
        assert getattr(fitted, name) == pytest.approx(getattr(before, name)), name


def test_the_share_of_synchronisation_that_follows_the_clock_is_found() -> None:
    prior = model_class_prior("gpt2", a100())
    truth = replace(prior, local_sync_seconds=0.0, local_sync_megacycles=0.03 * 1410, sync_overlap=1.0)
    fitted = fit(prior, sweep(truth)).model
    assert fitted.local_sync_megacycles / 1410 == pytest.approx(0.03, rel=0.25)


def test_warm_up_and_changes_of_clock_are_dropped() -> None:
    def window(gpus: int, clock: float, seconds: float) -> Observation:
        return Observation(gpus, 1, 8, clock, seconds)

    run = [window(1, 1410, 9), window(1, 1410, 8), window(1, 1410, 1), window(1, 1395, 1.1)]
    slowed = [window(1, 900, 5), window(1, 900, 2)]  # the first of them ran partly at the old clock
    resized = [window(2, 900, 7), window(2, 900, 6), window(2, 900, 0.5)]
    kept = without_warm_up([*run, *slowed, *resized])
    assert [each.iteration_seconds for each in kept] == [1, 1.1, 2, 0.5]
    assert without_warm_up([]) == []


def throughputs(data: Path, name: str) -> list[Observation]:
    found = []
    with (data / "elasticflow" / f"{name}.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            batch = int(row["global_batch_size"])
            for gpus in (1, 2, 4, 8, 16, 32, 64):
                rate = float(row[str(gpus)] or 0)
                if rate > 0:
                    found.append(Observation(gpus, max(1, gpus // 8), batch / gpus, 1410, 1 / rate))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [*known_model_classes(), "resnet50_cifar10"])
def test_measured_throughputs_are_predicted_without_the_one_left_out(measured_data: Path, name: str) -> None:
    """Leave-one-out error of the fit on each ElasticFlow table (A100, 1 to 64 GPUs): at most 7 % mean."""
    observations = throughputs(measured_data, name)
    prior = model_class_prior("", a100())
    errors = []
    for index, left_out in enumerate(observations):
        model = fit(prior, observations[:index] + observations[index + 1 :]).model
        seconds = model.iteration_seconds(
            left_out.gpus, left_out.nodes, left_out.clock_megahertz, left_out.local_batch_size * left_out.gpus
        )
        errors.append(abs(seconds / left_out.iteration_seconds - 1))
    assert sum(errors) / len(errors) <= 0.07


@pytest.mark.parametrize("name", known_model_classes())
def test_priors_are_the_measured_throughputs(measured_data: Path, name: str) -> None:
    prior = model_class_prior(name, a100())
    errors = [
        abs(
            prior.iteration_seconds(item.gpus, item.nodes, 1410, item.local_batch_size * item.gpus)
            / item.iteration_seconds
            - 1
        )
        for item in throughputs(measured_data, name)
    ]
    assert sum(errors) / len(errors) <= 0.08
