"""Covariances: they shrink with data, they cover the truth, and they grow where nothing was seen."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from flyball_planner.fitting.fit import Observation, fit
from flyball_planner.fitting.uncertainty import Band, Place, ratios, upper_quantiles
from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_planner.models.job import JobModel
from flyball_planner.models.priors import model_class_prior


def a100() -> GpuModel:
    model = gpu_model_for("NVIDIA-A100-SXM4-40GB")
    assert model is not None
    return model


def windows_of(job: JobModel, count: int, seed: int, noise: float = 0.03) -> list[Observation]:
    generator = random.Random(seed)
    found = []
    for _ in range(count):
        gpus, batch = generator.choice([1, 2, 4, 8, 16]), generator.choice([8, 16, 32])
        nodes, clock = max(1, gpus // 8), generator.choice([705, 900, 1110, 1260, 1410])
        seconds = job.iteration_seconds(gpus, nodes, clock, batch * gpus) * generator.lognormvariate(0, noise)
        joules = job.iteration_joules(gpus, nodes, clock, batch * gpus) * generator.lognormvariate(0, noise)
        found.append(Observation(gpus, nodes, batch, clock, seconds, joules))
    return found


def truth() -> JobModel:
    prior = model_class_prior("resnet50", a100())
    return replace(
        prior,
        gradient_megacycles_per_sample=prior.gradient_megacycles_per_sample * 1.4,
        local_sync_seconds=prior.local_sync_seconds * 0.7,
        gradient_watts_per_megahertz=prior.gradient_watts_per_megahertz * 1.15,
    )


@pytest.mark.parametrize("parameterisation", ["physical", "paper"])
def test_the_covariance_is_one_of_all_parameters(parameterisation: str) -> None:
    fitted = fit(model_class_prior("", a100()), windows_of(truth(), 30, 1), parameterisation=parameterisation)
    assert fitted.covariance.names == tuple(fitted.model.parameters())
    matrix = fitted.covariance.as_array()
    assert matrix == pytest.approx(matrix.T)
    assert np.linalg.eigvalsh(matrix).min() > -1e-9 * np.linalg.eigvalsh(matrix).max()
    for name, error in fitted.standard_errors.items():
        place = fitted.covariance.names.index(name)
        assert error == pytest.approx(matrix[place, place] ** 0.5)


@pytest.mark.slow
def test_upper_quantiles_cover_the_truth_about_as_often_as_they_say() -> None:
    """Of forty fits of thirty windows each, at nine points that need not have been seen."""
    job, prior = truth(), model_class_prior("resnet50", a100())
    where = (np.array([1, 4, 16]), np.array([1, 1, 2]), np.array([24.0, 96.0, 384.0]), [810, 1110, 1410])
    real = job.curves(*where)
    seconds, joules = [], []
    for seed in range(40):
        fitted = fit(prior, windows_of(job, 30, seed))
        upper = upper_quantiles(fitted.model, fitted.covariance, *where, probability=0.9)
        seconds.append(np.mean(real.seconds <= upper.seconds))
        joules.append(np.mean(real.joules <= upper.joules))
    assert 0.8 <= np.mean(seconds) <= 0.99
    assert 0.8 <= np.mean(joules) <= 0.99


def test_one_half_is_the_prediction_and_more_is_more() -> None:
    fitted = fit(model_class_prior("resnet50", a100()), windows_of(truth(), 30, 5))
    where = (np.array([2, 8]), np.array([1, 1]), np.array([64.0, 256.0]))
    middle = upper_quantiles(fitted.model, fitted.covariance, *where, probability=0.5)
    curves = fitted.model.curves(*where)
    assert middle.seconds == pytest.approx(curves.seconds)
    assert middle.joules == pytest.approx(curves.joules)
    high = upper_quantiles(fitted.model, fitted.covariance, *where, probability=0.9)
    higher = upper_quantiles(fitted.model, fitted.covariance, *where, probability=0.99)
    for low, mid, top in zip(middle, high, higher, strict=True):
        assert (low < mid).all()
        assert (mid < top).all()


def margin(count: int, gpus: int, clock: int, seen: int | None = None) -> float:
    windows = windows_of(truth(), count, 7)
    if seen is not None:
        windows = [replace(window, clock_megahertz=seen) for window in windows]
    fitted = fit(model_class_prior("resnet50", a100()), windows)
    found = upper_quantiles(fitted.model, fitted.covariance, gpus, max(1, gpus // 8), 16.0 * gpus, [clock])
    return float(found.seconds[0, 0]) / fitted.model.iteration_seconds(gpus, max(1, gpus // 8), clock, 16.0 * gpus) - 1


def test_more_windows_leave_less_uncertain_and_what_was_not_seen_more() -> None:
    assert margin(100, 4, 1110) < margin(15, 4, 1110)
    assert margin(30, 64, 1110) > margin(30, 4, 1110), "64 GPUs were never seen"
    assert margin(30, 4, 705, seen=1410) > 2 * margin(30, 4, 1410, seen=1410), "one clock says nothing of another"


def test_a_job_that_nobody_has_measured_is_uncertain() -> None:
    prior = model_class_prior("bert", a100())
    fitted = fit(prior, [])
    upper = upper_quantiles(fitted.model, fitted.covariance, 4, 1, 64, [1410])
    assert float(upper.seconds[0, 0]) > 1.1 * prior.iteration_seconds(4, 1, 1410, 64)
    timed = fit(prior, [replace(window, iteration_joules=None) for window in windows_of(prior, 30, 2)])
    upper = upper_quantiles(timed.model, timed.covariance, 4, 1, 64, [1410])
    assert float(upper.seconds[0, 0]) < 1.1 * timed.model.iteration_seconds(4, 1, 1410, 64)
    assert float(upper.joules[0, 0]) > 1.1 * timed.model.iteration_joules(4, 1, 1410, 64), "no joules were measured"


def test_arguments_that_make_no_sense_are_refused() -> None:
    fitted = fit(model_class_prior("bert", a100()), [])
    with pytest.raises(ValueError, match=r"probability is 1\.0"):
        upper_quantiles(fitted.model, fitted.covariance, 1, 1, 8, probability=1.0)
    with pytest.raises(ValueError, match="not of this model's parameters"):
        upper_quantiles(fitted.model.as_paper(), fitted.covariance, 1, 1, 8)


# --- ratios of two places ------------------------------------------------------------------------------------------------

FAST, SLOW = Place(4, 1, 1410), Place(4, 1, 1005)


@pytest.mark.slow
def test_ratios_cover_the_truth_about_as_often_as_they_say() -> None:
    """Of forty fits of thirty windows each, of one clock over another and of one size over another."""
    job, prior = truth(), model_class_prior("resnet50", a100())
    inside = []
    for seed in range(40):
        fitted = fit(prior, windows_of(job, 30, seed))
        for ran, instead in ((FAST, SLOW), (SLOW, FAST), (Place(4, 1, 1410), Place(16, 2, 1110))):
            found = ratios(fitted.model, fitted.covariance, ran, instead, 128, probability=0.9)
            for band, exact in ((found.seconds, job.iteration_seconds), (found.joules, job.iteration_joules)):
                inside.append(band.least <= exact(*instead, 128) / exact(*ran, 128) <= band.most)
    assert 0.8 <= np.mean(inside) <= 0.99


def test_what_two_places_share_is_not_in_the_band_of_their_ratio() -> None:
    """Of a job that was measured at one clock alone, joules there are far surer than joules elsewhere."""
    fitted = fit(model_class_prior("resnet50", a100()), windows_of(truth(), 30, 3))
    found = ratios(fitted.model, fitted.covariance, FAST, SLOW, 128)
    upper = upper_quantiles(fitted.model, fitted.covariance, 4, 1, 128.0, [SLOW.clock_megahertz], probability=0.95)
    alone = float(upper.joules[0, 0]) / fitted.model.iteration_joules(*SLOW, 128)
    assert found.joules.expected == pytest.approx(
        fitted.model.iteration_joules(*SLOW, 128) / fitted.model.iteration_joules(*FAST, 128)
    )
    assert 1.0 < found.joules.most / found.joules.expected < alone
    assert found.joules.least * found.joules.most == pytest.approx(found.joules.expected**2)


def test_one_and_the_same_place_is_one_and_what_no_parameter_describes_widens() -> None:
    fitted = fit(model_class_prior("resnet50", a100()), windows_of(truth(), 30, 3))
    same = ratios(fitted.model, fitted.covariance, FAST, FAST, 128, misfit=(0.1, 0.1))
    assert same.joules == same.seconds == Band(1.0, 1.0, 1.0)
    narrow, wide = (ratios(fitted.model, fitted.covariance, FAST, SLOW, 128, misfit=(off, off)) for off in (0.0, 0.1))
    assert wide.joules.least < narrow.joules.least < narrow.joules.expected < narrow.joules.most < wide.joules.most
    assert wide.seconds.least < narrow.seconds.least < narrow.seconds.most < wide.seconds.most


def test_a_ratio_needs_a_probability_and_the_models_own_covariance() -> None:
    fitted = fit(model_class_prior("resnet50", a100()), windows_of(truth(), 30, 3))
    with pytest.raises(ValueError, match="above 0 and below 1"):
        ratios(fitted.model, fitted.covariance, FAST, SLOW, 128, probability=1.0)
    with pytest.raises(ValueError, match="same fit"):
        ratios(fitted.model.as_paper(), fitted.covariance, FAST, SLOW, 128)
