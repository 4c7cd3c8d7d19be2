"""The last stage of a fit: joules tell input from gradients where seconds do not."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from flyball_planner.fitting.energy import PhysicalEnergyFit
from flyball_planner.fitting.fit import Observation, fit
from flyball_planner.fitting.least_squares import solve
from flyball_planner.fitting.time import TimeFit
from flyball_planner.fitting.windows import Windows
from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_planner.models.job import JobModel
from flyball_planner.models.priors import known_model_classes, model_class_prior


def a100() -> GpuModel:
    model = gpu_model_for("NVIDIA-A100-SXM4-40GB")
    assert model is not None
    return model


def made_up_job(generator: random.Random) -> JobModel:
    """Like one of the classes, with each part up to five times longer or shorter, overlapped in any way."""
    parameters = model_class_prior(generator.choice(known_model_classes()), a100()).parameters()
    for name, value in parameters.items():
        if name in ("io_overlap", "sync_overlap"):
            parameters[name] = generator.uniform(1, 10)
        elif value > 0:
            parameters[name] = value * generator.choice([0.2, 0.5, 1, 2, 5])
    return JobModel.from_parameters(a100(), parameters)


def windows_of(job: JobModel, generator: random.Random) -> list[Observation]:
    found = []
    for gpus in (1, 2, 4, 8, 16):
        for local_batch in (8, 32):
            for clock in (705, 1050, 1410):
                where = (gpus, max(1, gpus // 8), clock, local_batch * gpus)
                seconds = job.iteration_seconds(*where) * generator.uniform(0.97, 1.03)
                joules = job.iteration_joules(*where) * generator.uniform(0.97, 1.03)
                found.append(Observation(gpus, max(1, gpus // 8), local_batch, clock, seconds, joules))
    return found


def two_stages(windows: list[Observation]) -> float:
    """The mean energy error of a fit of the time, and then of the energy alone."""
    prior, columns = model_class_prior("", a100()), Windows.of(windows)
    time_fit = TimeFit(prior, columns)
    timed = time_fit.parameters(solve(time_fit, [time_fit.start])[None, :])
    energy_fit = PhysicalEnergyFit(prior, columns)

    class GivenTime(PhysicalEnergyFit):
        def residuals(self, points: Any, _: Any = None) -> Any:
            return super().residuals(points, np.repeat(timed, len(points), axis=1))

    given = GivenTime(prior, columns)
    found = energy_fit.parameters(solve(given, [given.start])[None, :], timed)
    _, joules = columns.predict(found, a100())
    return float(np.mean(np.abs(joules[0] / columns.joules - 1)))


@pytest.mark.slow
def test_the_joint_stage_more_than_halves_the_energy_error() -> None:
    generator = random.Random(3)
    jobs = [windows_of(made_up_job(generator), generator) for _ in range(24)]
    apart = np.mean([two_stages(windows) for windows in jobs])
    together = np.mean([fit(model_class_prior("", a100()), windows).errors.energy_mape for windows in jobs])
    assert together < apart / 2


@pytest.mark.slow
@pytest.mark.parametrize("parameterisation", ["physical", "paper"])
def test_made_up_jobs_are_explained_in_time_and_energy(parameterisation: str) -> None:
    generator = random.Random(3)
    errors = []
    for _ in range(24):
        job = made_up_job(generator)
        fitted = fit(model_class_prior("", a100()), windows_of(job, generator), parameterisation=parameterisation)
        unseen = [
            abs(fitted.model.iteration_joules(*where) / job.iteration_joules(*where) - 1)
            for where in ((4, 1, 855, 64), (8, 1, 1260, 512), (16, 2, 900, 256))
        ]
        errors.append((fitted.errors.time_mape, fitted.errors.energy_mape, float(np.mean(unseen))))
    time_mape, energy_mape, unseen_mape = np.mean(errors, axis=0)
    assert time_mape < 0.025  # the noise alone has a mean of 1.5 %
    assert energy_mape < 0.025
    assert unseen_mape < 0.025
