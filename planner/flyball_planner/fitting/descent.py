"""Robust least squares within bounds: Levenberg and Marquardt's steps, on the coordinates that no bound holds.

Problems here are small (some sixteen coordinates, some hundred residuals) and each evaluation is a few dozen numpy calls
whatever its size, so what counts is how many evaluations there are and what happens between them. One evaluation gives
the residuals of a trial and its whole Jacobian. A step is the minimum of the damped quadratic model in a box that goes
half of the way to each bound: coordinates that leave it are held at its edge and the others solved for again. Without the
halving one step put several coordinates to their bounds at once, and the search stayed in that corner. The damping follows
how well the model foretold the last step (Nielsen, 1999). The loss is soft-L1 with its curvature (Triggs et al., 2000,
equation 11).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

FIRST_DAMPING = 1e-3  # of the largest curvature
LEAST_SHARE = 1.0 / 3.0  # by which a step that went as foretold lowers the damping at the most
FORETOLD = 0.25  # share of the foretold gain from which a small one ends the search
LEAST_GRADIENT = 1e-8
NEARER = 0.5  # of the way to a bound that a step goes at the most: who jumps into a corner stays there


class _Local(NamedTuple):
    """The cost at a point, and its quadratic model there."""

    cost: float
    gradient: Array
    curvature: Array


def descend(
    residuals: Callable[[Array], Array],
    start: Array,
    low: Array,
    high: Array,
    *,
    robust_scale: float,
    difference_step: float,
    tolerance: float,
    evaluations: int,
) -> tuple[Array, float]:
    """A point within the bounds where the robust sum of squares is least nearby, and half that sum.

    `residuals` takes (copies, coordinates) and gives (copies, residuals). It ends where a step gains less than `tolerance`
    of the cost or moves by less than that share of the point, and after so many `evaluations` at the latest.
    """
    steps = np.vstack([np.zeros(len(start)), np.eye(len(start)) * difference_step])

    def at(point: Array) -> _Local:
        found = residuals(point[None, :] + steps)
        return _local(found[0], (found[1:] - found[0]) / difference_step, robust_scale)

    point = np.minimum(np.maximum(start, low), high)
    with np.errstate(all="ignore"):  # a trial that is no number is no gain
        return _search(at, point, low, high, tolerance, evaluations)


def _search(
    at: Callable[[Array], _Local], point: Array, low: Array, high: Array, tolerance: float, evaluations: int
) -> tuple[Array, float]:
    here = at(point)
    damping, growth = FIRST_DAMPING * float(here.curvature.diagonal().max(initial=0.0)), 2.0
    for _ in range(evaluations - 1):
        held = ((point <= low) & (here.gradient > 0)) | ((point >= high) & (here.gradient < 0))
        if np.abs(np.where(held, 0.0, here.gradient)).max(initial=0.0) < LEAST_GRADIENT:
            break
        target = _step(point, here, damping, low, high, held)
        step = target - point
        foretold = -float(step @ here.gradient) - 0.5 * float(step @ here.curvature @ step)
        there = at(target)
        gained = here.cost - there.cost
        share = gained / foretold if foretold > 0 else 0.0
        small = float(np.linalg.norm(step)) < tolerance * (tolerance + float(np.linalg.norm(point)))
        done = small or (gained < tolerance * here.cost and share > FORETOLD)
        if gained > 0:
            point, here = target, there
            damping *= max(LEAST_SHARE, 1.0 - (2.0 * share - 1.0) ** 3)
            growth = 2.0
        else:
            damping *= growth
            growth *= 2.0
        if done:
            break
    return point, here.cost


def _local(errors: Array, slopes: Array, robust_scale: float) -> _Local:
    """Of residuals (residuals,) and their slopes (coordinates, residuals), under 2 C^2 (sqrt(1 + (r/C)^2) - 1)."""
    bent = 1.0 + (errors / robust_scale) ** 2
    root = np.sqrt(bent)
    cost = robust_scale**2 * float((root - 1.0).sum())
    return _Local(cost, slopes @ (errors / root), (slopes / (root * bent)) @ slopes.T)


def _step(point: Array, here: _Local, damping: float, low: Array, high: Array, held: Flags) -> Array:
    """Where the damped model is least in the box, nearly: coordinates that leave it are put to its edge for good."""
    low, high = point + NEARER * (low - point), point + NEARER * (high - point)
    low[held], high[held] = point[held], point[held]
    target = point.copy()
    free = ~held
    damped = here.curvature + damping * np.eye(len(point))
    for _ in range(len(point)):
        places = np.flatnonzero(free)
        if not len(places):
            break
        pull = here.gradient + here.curvature @ np.where(free, 0.0, target - point)
        wanted = point[places] - np.linalg.solve(damped[np.ix_(places, places)], pull[places])
        target[places] = np.minimum(np.maximum(wanted, low[places]), high[places])
        out = target[places] != wanted
        if not out.any():
            break
        free[places[out]] = False
    return target
