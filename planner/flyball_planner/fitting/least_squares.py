"""Least squares of log errors, drawn weakly to a prior, from several starts, and what the data leave uncertain.

A fit is a `Problem`: coordinates with a start (what the prior says), a scale, bounds, and which of them the data can move.
The solver moves only those; the uncertainty is that of all of them, so that a prediction far from the data says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flyball_planner.fitting.trust_region import minimise

Array = NDArray[np.float64]

ROBUST_SCALE = 0.1  # log error from which an observation counts as disturbed
SPRING = 0.06  # log error that moving a coordinate by its own scale is worth, for one observation of weight 1
LEAST_NOISE = 0.005  # log error below which no window is taken to be exact
DIFFERENCE_STEP = 1e-6  # of a coordinate's scale, for the Jacobian
MAX_EVALUATIONS = 60
TOLERANCE = 1e-7  # of the sum of squares, or of the point: a step that changes less is the last
EXPECTED_ERROR = (
    0.03  # log error that windows of a well described job show: a fit this good is not searched for further
)


class Problem(Protocol):
    """`start`, `scale`, `stiffness`, `low` and `high` are (coordinates,); `free` has the positions that the data can move.

    `stiffness` is how many times as stiff as SPRING a coordinate's spring is; `groups` are the numbers of residuals, in
    their order, that share one noise.
    """

    start: Array
    scale: Array
    stiffness: Array
    low: Array
    high: Array
    free: NDArray[np.int64]

    @property
    def groups(self) -> tuple[int, ...]: ...

    def parameters(self, points: Array) -> Array:
        """PowerFlow's parameters, (parameters, copies), of coordinates (copies, coordinates)."""
        ...

    def residuals(self, points: Array) -> Array:
        """Log errors times the square root of their weight, (copies, observations), at (copies, coordinates)."""
        ...


def solve(problem: Problem, starts: Sequence[Array]) -> Array:
    """The coordinates of the best of the optima found from `starts` (each (coordinates,)), in a fixed order.

    A later start is tried only if the best so far leaves more than EXPECTED_ERROR in some group of residuals.
    """
    best, cost = _descend(problem, starts[0])
    for start in starts[1:]:
        if _largest_error(problem, best) <= EXPECTED_ERROR:
            break
        other, other_cost = _descend(problem, start)
        if other_cost < cost:
            best, cost = other, other_cost
    return best


def _largest_error(problem: Problem, point: Array) -> float:
    """The largest root mean square of the groups of residuals."""
    squares = np.split(problem.residuals(point[None, :])[0] ** 2, np.cumsum(problem.groups)[:-1])
    return math.sqrt(max(float(group.mean()) for group in squares))


def _descend(problem: Problem, start: Array) -> tuple[Array, float]:
    """Coordinates, and half their sum of squares, robust and with the springs."""
    free, scale = problem.free, problem.scale[problem.free]
    rest, spring = problem.start[free] / scale, SPRING * problem.stiffness[free]

    def errors(scaled: Array) -> Array:
        points = np.repeat(problem.start[None, :], len(scaled), axis=0)
        points[:, free] = scaled * scale
        return np.concatenate([problem.residuals(points), spring * (scaled - rest)], axis=1)

    found, cost = minimise(
        lambda scaled: _with_slopes(errors, scaled),
        np.clip(start, problem.low, problem.high)[free] / scale,
        problem.low[free] / scale,
        problem.high[free] / scale,
        robust_scale=ROBUST_SCALE,
        tolerance=TOLERANCE,
        max_evaluations=MAX_EVALUATIONS,
    )
    point = problem.start.copy()
    point[free] = found * scale
    return point, cost


def _with_slopes(errors: Callable[[Array], Array], point: Array) -> tuple[Array, Array]:
    """Residuals (residuals,) and their Jacobian (residuals, coordinates) at a point, in one evaluation of all steps."""
    found = errors(point + _steps(len(point)))
    return found[0], ((found[1:] - found[0]) / DIFFERENCE_STEP).T


@cache
def _steps(coordinates: int) -> Array:
    """From a point to itself and to a step along each coordinate, (1 + coordinates, coordinates)."""
    steps = np.vstack([np.zeros(coordinates), np.eye(coordinates) * DIFFERENCE_STEP])
    steps.flags.writeable = False
    return steps


def covariance_at(problem: Problem, point: Array) -> Array:
    """The covariance of all coordinates in units of their scale, (coordinates, coordinates): Gauss-Newton, and a prior.

    The prior is a normal one as wide as each coordinate's scale: a coordinate of which the data say nothing is uncertain by
    that. Disturbed observations count as little here as they did in the fit. The noise of each group of residuals is what
    they show, at least LEAST_NOISE.
    """
    errors = problem.residuals(point[None, :])[0]
    weight = 1.0 / np.sqrt(1.0 + (errors / ROBUST_SCALE) ** 2)  # the derivative of the soft-L1 loss
    spent = len(problem.free) / len(errors)  # degrees of freedom for each residual
    precision = np.empty_like(errors)
    first = 0
    for count in problem.groups:
        of_group = slice(first, first + count)
        freedom = max(1.0, float(weight[of_group].sum()) - spent * count)
        noise = max(float(weight[of_group] @ errors[of_group] ** 2) / freedom, LEAST_NOISE**2)
        precision[of_group] = weight[of_group] / noise
        first += count
    _, slopes = _with_slopes(lambda scaled: problem.residuals(scaled * problem.scale), point / problem.scale)
    return np.asarray(np.linalg.inv(slopes.T @ (slopes * precision[:, None]) + np.eye(len(point))))
