"""Fitting a job's model to what was observed of it: time first, then energy, starting from the prior of its class.

Least squares of log errors (scipy's trust region, bounded, soft-L1 loss, so that one disturbed window does not bend the
model). Every parameter is also held to its prior by a weak spring, so that what the data do not say stays what the prior
says; where the data cannot tell two parameters apart at all, one of them is fixed by a rule:

- one local batch size seen: the constant part of the gradient time is half of it;
- one clock seen: the share of the time that follows the clock is the prior's;
- one size on a node seen: the slope of the local synchronisation is the prior's; no synchronisation seen: all of it is;
- no job on several nodes seen: its synchronisation is at least 1.1 times the local one.

Deterministic: the same observations in any order give the same model, and no random start is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyball_planner.fitting_energy import EnergyFit
from flyball_planner.fitting_time import TimeFit
from flyball_planner.fitting_windows import Array, Observation, Windows, parameter_column
from flyball_planner.models import JobModel

__all__ = ["FitErrors", "FittedModel", "Observation", "fit"]


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
    """A fitted model, its errors, and each fitted parameter's standard error (from the covariance at the optimum).

    Parameters that are absent from `standard_errors` were not fitted: a rule or the prior gave them.
    """

    model: JobModel
    errors: FitErrors
    standard_errors: dict[str, float]


def fit(prior: JobModel, observations: Sequence[Observation]) -> FittedModel:
    """The model on `prior`'s GPU that explains the observations best (PowerFlow section 4; rules above).

    The caller leaves out warm-up windows. Without observations the answer is the prior itself.
    """
    if not observations:
        return FittedModel(prior, FitErrors(math.nan, math.nan, 0, 0), {})
    windows = Windows.of(observations)
    parameters, time_errors = TimeFit(prior, windows).solve()
    model = JobModel.from_parameters(prior.gpu_model, parameters)
    powered = windows.with_energy()
    energy_errors: dict[str, float] = {}
    if len(powered.seconds):
        parameters, energy_errors = EnergyFit(model, powered).solve()
        model = JobModel.from_parameters(prior.gpu_model, parameters)
    column = parameter_column(model)[:, None]
    errors = FitErrors(
        time_mape=_mape(windows.predict(column, model)[0][0], windows.seconds, windows.weight),
        energy_mape=_mape(powered.predict(column, model)[1][0], powered.joules, powered.weight),
        time_observations=len(observations),
        energy_observations=len(powered.seconds),
    )
    return FittedModel(model, errors, time_errors | energy_errors)


def _mape(predicted: Array, measured: Array, weight: Array) -> float:
    if not len(measured):
        return math.nan
    return float(np.average(np.abs(predicted / measured - 1.0), weights=weight))
