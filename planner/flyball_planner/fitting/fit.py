"""Fitting a job's model to what was observed of it: time first, then energy, then both, from the prior of its class.

Least squares of log errors (a trust region, bounded, soft-L1 loss, so that one disturbed window does not bend the model).
Every parameter is also held to its prior by a weak spring, so that what the data do not say stays what the prior says;
those of the time up to five times as firmly, the better the prior, at the job's own pace, meets every size that was seen,
and the fewer these are. Where the result leaves more error than windows usually have, a second start is tried, in which
gradients take the time that the prior gives to input. Where the data cannot tell two parameters apart at all, one of them
is fixed by a rule:

- one local batch size seen: how the gradient time splits into a constant and a part per sample is the prior's word, half
  and half where the prior has only one of them; where several clocks were seen, the constant may move, held more firmly;
- one clock seen: the share of the time that follows the clock is the prior's, and so is the shape of the power over it;
- one size on a node seen: the slope of the local synchronisation is the prior's; no synchronisation seen: all of it is;
- no job on several nodes seen: the constant part of its synchronisation is at least 1.1 times the local one, or as many
  times as the prior has it where that is less, and the slope is at least 1.1 times the local one where the prior has none;
- paper's power: the line below f0 needs two clocks there to be turned, the cubic above three, static power three in all.

A refit starts from the last fit and needs a fraction of the time; where it leaves more error than windows usually have, the
prior is a second start. Where it explains the data clearly worse than the last one did, the job has changed and the fit is
made from scratch too, and the better one is returned.

Deterministic: the same observations in any order give the same model, and no random start is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flyball_planner.fitting.energy import EnergyFit, PaperEnergyFit, PhysicalEnergyFit
from flyball_planner.fitting.joint import JointFit
from flyball_planner.fitting.least_squares import solve
from flyball_planner.fitting.time import TimeFit
from flyball_planner.fitting.uncertainty import Covariance, covariance_of, prior_covariance
from flyball_planner.fitting.windows import Array, Observation, Windows, parameter_column, without_warm_up
from flyball_planner.models.job import JobModel, Parameterisation

__all__ = ["Covariance", "FitErrors", "FittedModel", "Observation", "errors_of", "fit", "without_warm_up"]

# A refit whose error is this much over the last one's (relative, and absolute) is made from scratch too.
CLEARLY_WORSE, WORSE_BY = 1.25, 0.005


@dataclass(frozen=True, slots=True)
class FitErrors:
    """How far the fitted model is from what it was fitted to: mean absolute relative errors, and how many windows.

    NaN where there was nothing to compare.
    """

    time_mape: float
    energy_mape: float
    time_observations: int
    energy_observations: int


@dataclass(frozen=True, slots=True)
class FittedModel:
    """A fitted model, its errors, and what they leave uncertain.

    `standard_errors` are those of the fitted parameters; an absent one was not fitted: a rule or the prior gave it.
    `covariance` is of all parameters, those that the prior gave included (`uncertainty.upper_quantiles`).
    """

    model: JobModel
    errors: FitErrors
    standard_errors: dict[str, float]
    covariance: Covariance


def errors_of(model: JobModel, observations: Sequence[Observation]) -> FitErrors:
    """How far a model's predictions are from observations, on its own GPU model."""
    return _errors(model, Windows.of(observations)) if observations else FitErrors(math.nan, math.nan, 0, 0)


def fit(
    prior: JobModel,
    observations: Sequence[Observation],
    *,
    parameterisation: Parameterisation | str | None = None,
    last: FittedModel | None = None,
) -> FittedModel:
    """The model on `prior`'s GPU that explains the observations best (PowerFlow section 4; rules above).

    The caller leaves out warm-up windows (`without_warm_up`). Without observations the answer is the prior itself.
    `parameterisation` is the prior's unless given. `last`, a fit of the same job to some of the observations, is where
    the search starts. Raises ValueError if it is of another GPU product, or for an unknown parameterisation.
    """
    wanted = prior.parameterisation if parameterisation is None else Parameterisation(parameterisation)
    prior = prior.as_paper() if wanted is Parameterisation.PAPER else prior.as_physical()
    if last is not None and last.model.gpu_model.product != prior.gpu_model.product:
        raise ValueError(
            f"the last fit is of {last.model.gpu_model.product}, and the prior of {prior.gpu_model.product}: "
            "times and powers of one say nothing of the other"
        )
    if not observations:
        return FittedModel(prior, FitErrors(math.nan, math.nan, 0, 0), {}, prior_covariance(prior))
    windows = Windows.of(observations)
    if last is None or math.isnan(last.errors.time_mape):
        return _fitted(prior, windows, None)
    warm = _fitted(prior, windows, last.model)
    if not _clearly_worse(warm.errors, last.errors):
        return warm
    fresh = _fitted(prior, windows, None)
    return min(warm, fresh, key=lambda found: found.errors.time_mape + _or_zero(found.errors.energy_mape))


def _fitted(prior: JobModel, windows: Windows, warm: JobModel | None) -> FittedModel:
    """One fit, searched from the prior, or from `warm`."""
    powered = windows.with_energy()
    model, problem, point = (
        _energy_too(prior, windows, powered, warm) if len(powered.seconds) else _time_only(prior, windows, warm)
    )
    covariance = covariance_of(model, problem, point)
    return FittedModel(model, _errors(model, windows), covariance.standard_errors(problem.fitted_names), covariance)


def _time_only(prior: JobModel, windows: Windows, warm: JobModel | None) -> tuple[JobModel, TimeFit, Array]:
    time_fit = TimeFit(prior.as_physical(), windows)
    point = solve(time_fit, [time_fit.start if warm is None else time_fit.coordinates(warm)])
    return replace(_with(prior.as_physical(), time_fit.parameters(point[None, :])), paper=prior.paper), time_fit, point


def _energy_too(
    prior: JobModel, windows: Windows, powered: Windows, warm: JobModel | None
) -> tuple[JobModel, JointFit, Array]:
    physical = prior.as_physical()
    time_fit = TimeFit(physical, windows)
    energy_fit: EnergyFit = PhysicalEnergyFit(physical, powered)
    joint = JointFit(time_fit, energy_fit)
    if warm is not None:
        starts = [
            np.concatenate([time_fit.coordinates(warm), energy_fit.coordinates(warm)]),
            np.concatenate([time_fit.start, energy_fit.start]),
        ]
    else:
        time_point = solve(time_fit, [time_fit.start])
        timed = PhysicalEnergyFit(_with(physical, time_fit.parameters(time_point[None, :])), powered)
        starts = [
            np.concatenate([time_point, solve(timed, [timed.start])]),
            np.concatenate([time_fit.computing(time_fit.start), energy_fit.start]),
        ]
    point = solve(joint, starts)
    model = _with(physical, joint.parameters(point[None, :]))
    if prior.paper is None:
        return model, joint, point
    # The physical law is a special case of the paper's: from it the springs and the search start.
    energy_fit = PaperEnergyFit(model.as_paper(), powered)
    joint = JointFit(time_fit, energy_fit)
    again = warm is not None and warm.paper is not None
    start = energy_fit.coordinates(warm) if warm is not None and again else energy_fit.start
    point = solve(joint, [np.concatenate([point[: len(time_fit.start)], start])])
    return _with(model.as_paper(), joint.parameters(point[None, :])), joint, point


def _with(model: JobModel, columns: Array) -> JobModel:
    """The model with one column of parameters in place of its own, in its own parameterisation."""
    return JobModel.from_parameters(model.gpu_model, dict(zip(model.parameters(), columns[:, 0].tolist(), strict=True)))


def _clearly_worse(now: FitErrors, before: FitErrors) -> bool:
    pairs = ((now.time_mape, before.time_mape), (now.energy_mape, before.energy_mape))
    return any(after > CLEARLY_WORSE * former + WORSE_BY for after, former in pairs)  # False where one is NaN


def _errors(model: JobModel, windows: Windows) -> FitErrors:
    powered = windows.with_energy()
    column = parameter_column(model)[:, None]
    return FitErrors(
        time_mape=_mape(windows.predict_seconds(column)[0], windows.seconds, windows.weight),
        energy_mape=_mape(powered.predict(column, model.gpu_model)[1][0], powered.joules, powered.weight),
        time_observations=len(windows.seconds),
        energy_observations=len(powered.seconds),
    )


def _or_zero(error: float) -> float:
    return 0.0 if math.isnan(error) else error


def _mape(predicted: Array, measured: Array, weight: Array) -> float:
    if not len(measured):
        return math.nan
    return float(np.average(np.abs(predicted / measured - 1.0), weights=weight))
