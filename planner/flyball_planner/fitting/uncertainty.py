"""What a fit leaves uncertain, and how much dearer than predicted an iteration may turn out to be.

The covariance is that of all parameters together, time's and energy's: the energy of a job whose joules were measured is
well known, however uncertain the split of its time into parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flyball_planner.fitting.least_squares import DIFFERENCE_STEP, Problem, covariance_at
from flyball_planner.models.job import TIME_PARAMETER_NAMES, JobModel, evaluate, parameter_matrix

Array = NDArray[np.float64]

PRIOR_SPREAD = 0.3  # relative standard deviation of each parameter of a job that nobody has measured
_STEP = 1e-3  # of a parameter's standard deviation, for the slopes of predictions


@dataclass(frozen=True, slots=True)
class Covariance:
    """The covariance of a model's parameters, in their units: `matrix[i][j]` of `names[i]` and `names[j]`."""

    names: tuple[str, ...]
    matrix: tuple[tuple[float, ...], ...]

    def as_array(self) -> Array:
        return np.array(self.matrix, dtype=np.float64).reshape(len(self.names), len(self.names))

    def standard_errors(self, names: Sequence[str]) -> dict[str, float]:
        """The standard errors of some of the parameters."""
        place = {name: index for index, name in enumerate(self.names)}
        return {name: max(self.matrix[place[name]][place[name]], 0.0) ** 0.5 for name in names}


class Quantiles(NamedTuple):
    """Seconds of an iteration, and joules of all its GPUs, over (rows, clocks), each on its own at the same probability."""

    seconds: Array
    joules: Array


class Place(NamedTuple):
    """Where a job runs: its GPUs, on so many nodes, at a clock."""

    gpus: int
    nodes: int
    clock_megahertz: int


class Band(NamedTuple):
    """A share, and between which two it lies with the probability that was asked for."""

    least: float
    expected: float
    most: float


class Ratios(NamedTuple):
    """What an iteration takes at one place over what it takes at another, in seconds and in joules of all its GPUs."""

    seconds: Band
    joules: Band


def prior_covariance(prior: JobModel) -> Covariance:
    """Of a model that nothing was fitted to: each parameter uncertain by PRIOR_SPREAD of itself, on its own."""
    parameters = prior.parameters()
    return _covariance(tuple(parameters), np.diag([(PRIOR_SPREAD * value) ** 2 for value in parameters.values()]))


def covariance_of(model: JobModel, problem: Problem, point: Array) -> Covariance:
    """The covariance of all parameters of a model that was fitted as `problem`, which ended at `point`.

    Where no joules were measured, those of the power are uncertain by PRIOR_SPREAD.
    """
    names = tuple(model.parameters())
    steps = np.vstack([np.zeros(len(point)), np.diag(problem.scale) * DIFFERENCE_STEP])
    found = problem.parameters(point[None, :] + steps)
    slopes = (found[:, 1:] - found[:, :1]) / DIFFERENCE_STEP
    matrix = slopes @ covariance_at(problem, point) @ slopes.T
    whole = np.zeros((len(names), len(names)))
    whole[: len(matrix), : len(matrix)] = matrix
    if len(problem.groups) == 1:
        own = np.array(list(model.parameters().values()))
        powers = [name not in TIME_PARAMETER_NAMES for name in names]
        whole += np.diag(np.where(powers, PRIOR_SPREAD * own, 0.0) ** 2)
    return _covariance(names, whole)


def _covariance(names: tuple[str, ...], matrix: Array) -> Covariance:
    return Covariance(names, tuple(tuple(row) for row in ((matrix + matrix.T) / 2).tolist()))


def upper_quantiles(
    model: JobModel,
    covariance: Covariance,
    gpus: int | Array,
    nodes: int | Array,
    global_batch_size: float | Array,
    clocks_megahertz: Sequence[int] | Array | None = None,
    *,
    probability: float = 0.9,
) -> Quantiles:
    """What the mean seconds and joules of an iteration are at most with this probability (delta method on logarithms).

    Arguments and shapes as for `JobModel.curves`; `model` and `covariance` as a fit returned them. At a probability of one
    half they are the predictions themselves. It is the uncertainty of the mean under the model: single iterations scatter
    beside it, and what no parameters could describe is in it only as far as it enlarged the residuals. Raises ValueError
    for a probability that is not within 0 and 1, or a covariance of other parameters.
    """
    if not 0.0 < probability < 1.0:
        raise ValueError(f"probability is {probability}, and must be above 0 and below 1")
    clocks = model.gpu_model.clock_array() if clocks_megahertz is None else np.asarray(clocks_megahertz, dtype=float)
    rows = np.broadcast_arrays(np.atleast_1d(gpus), np.atleast_1d(nodes), np.atleast_1d(global_batch_size))
    gpu_column, node_column, batch_column = (np.asarray(row, dtype=np.float64) for row in rows)
    slopes = _Slopes.of(model, covariance, gpu_column, node_column, batch_column, clocks[None, :])
    score = NormalDist().inv_cdf(probability)

    def quantile(logs: Array, gradients: Array) -> Array:
        return np.asarray(np.exp(logs + score * np.sqrt(slopes.variance(gradients))))

    return Quantiles(quantile(*slopes.seconds), quantile(*slopes.joules))


def ratios(
    model: JobModel,
    covariance: Covariance,
    ran: Place,
    instead: Place,
    global_batch_size: int,
    *,
    misfit: tuple[float, float] = (0.0, 0.0),
    probability: float = 0.9,
) -> Ratios:
    """What an iteration takes at `instead` over what it takes where it `ran`, each within its band with this probability.

    What the two have in common, such as the scale of all watts, is in neither band (delta method on the logarithm of the
    ratio). `misfit`: by which shares seconds and joules are off at a place, on average, by what no parameters describe; of
    two places each adds its own. At one and the same place the ratio is 1. Raises ValueError as `upper_quantiles`.
    """
    if not 0.0 < probability < 1.0:
        raise ValueError(f"probability is {probability}, and must be above 0 and below 1")
    if ran == instead:
        return Ratios(Band(1.0, 1.0, 1.0), Band(1.0, 1.0, 1.0))
    gpus, nodes, clocks = (np.array(pair, dtype=np.float64) for pair in zip(ran, instead, strict=True))
    slopes = _Slopes.of(model, covariance, gpus, nodes, np.full(2, float(global_batch_size)), clocks[:, None])
    score = NormalDist().inv_cdf(0.5 + probability / 2)

    def band(logs: Array, gradients: Array, off: float) -> Band:
        log = float(logs[1, 0] - logs[0, 0])
        variance = float(slopes.variance(gradients[:, 1:] - gradients[:, :1])[0, 0]) + 2 * off**2
        width = score * variance**0.5
        with np.errstate(over="ignore"):  # a band without an end is what nothing is known of
            return Band(float(np.exp(log - width)), float(np.exp(log)), float(np.exp(log + width)))

    return Ratios(band(*slopes.seconds, misfit[0]), band(*slopes.joules, misfit[1]))


@dataclass(frozen=True, slots=True)
class _Slopes:
    """Logarithms of seconds and of joules (rows, clocks), and how they move with parameters (parameters, rows, clocks)."""

    seconds: tuple[Array, Array]
    joules: tuple[Array, Array]
    matrix: Array

    @classmethod
    def of(
        cls, model: JobModel, covariance: Covariance, gpus: Array, nodes: Array, batch: Array, clocks: Array
    ) -> _Slopes:
        """At (rows,) sizes; clocks are (1 or rows, clocks). Raises ValueError for a covariance of other parameters."""
        if covariance.names != tuple(model.parameters()):
            raise ValueError("the covariance is not of this model's parameters: they must come from the same fit")
        matrix = covariance.as_array()
        moved = np.flatnonzero(np.diag(matrix) > 0)
        steps = _STEP * np.sqrt(np.diag(matrix)[moved])
        copies = np.repeat(parameter_matrix([model])[:, :, 0], 1 + len(moved), axis=1)
        copies[moved, 1 + np.arange(len(moved))] += steps
        count, every = len(gpus), copies.shape[1]
        curves = evaluate(
            np.repeat(copies, count, axis=1)[:, :, None],
            model.gpu_model,
            np.tile(gpus, every)[:, None],
            np.tile(nodes, every)[:, None],
            np.tile(batch, every)[:, None],
            clocks if len(clocks) == 1 else np.tile(clocks, (every, 1)),
        )

        def slopes(values: Array) -> tuple[Array, Array]:
            logs = np.log(values.reshape(every, count, -1))
            return logs[0], np.asarray((logs[1:] - logs[0]) / steps[:, None, None])

        return cls(slopes(curves.seconds), slopes(curves.joules), matrix[np.ix_(moved, moved)])

    def variance(self, gradients: Array) -> Array:
        """Of logarithms with these gradients (parameters, rows, clocks)."""
        found = np.einsum("irc,ij,jrc->rc", gradients, self.matrix, gradients)
        return np.asarray(np.maximum(found, 0.0))
