"""Robust least squares within bounds: scipy's trust region, step for step, without what it spends between the steps.

The method is Branch, Coleman and Li's reflective trust region as `scipy.optimize.least_squares` has it (method `trf`, exact
steps, soft-L1 loss, no scaling of its own), with its constants and its stopping rules; tests hold the two together. A fit
has a dozen coordinates, and scipy's checks, wrappers and problems of any other kind took most of its time. Errors and their
slopes are asked for at once here, because nearly every step that is tried is taken.

In "hat" space a coordinate is divided by the square root of its distance from the bound that the descent pushes it to, so
that steps shorten as they come near one. A step that leaves the bounds is reflected at the first that it meets; the best of
that one, the step cut short and the steepest descent is tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

GRADIENT_TOLERANCE = 1e-8
START_MARGIN = 1e-10  # how far within its bounds the search begins
LEAST_CURVATURE = float(np.finfo(np.float64).eps)  # what of a disturbed error's weight is kept
NEARLY_SOLVED, MAX_ROOT_STEPS = 0.01, 10  # of the radius; for the damping under which a step is as long as it


class _Damped(NamedTuple):
    """Errors and slopes as the robust loss weighs them, for a Gauss-Newton step, and the gradient of the loss."""

    errors: Array
    slopes: Array
    gradient: Array


class _Quadratic(NamedTuple):
    """The loss near a point in hat space: slopes, gradient, and what the bounds add to the curvature."""

    slopes: Array
    gradient: Array
    bound_curvature: Array

    def value(self, step: Array) -> float:
        return 0.5 * self._curvature(step, step) + float(step.dot(self.gradient))

    def least_along(self, step: Array, shortest: float, longest: float, beyond: Array | None = None) -> _Along:
        """The multiple of a step, within these two, with the least value; `beyond` is gone before it."""
        square, slope, constant = 0.5 * self._curvature(step, step), float(self.gradient.dot(step)), 0.0
        if beyond is not None:
            slope += self._curvature(beyond, step)
            constant = self.value(beyond)
        multiples = [shortest, longest]
        if square != 0:
            extremum = -0.5 * slope / square
            if shortest < extremum < longest:
                multiples.append(extremum)
        values = [multiple * (square * multiple + slope) + constant for multiple in multiples]
        best = min(range(len(values)), key=values.__getitem__)
        return _Along(multiples[best], values[best])

    def _curvature(self, first: Array, second: Array) -> float:
        return float(self.slopes.dot(first).dot(self.slopes.dot(second)) + (first * self.bound_curvature).dot(second))


class _Along(NamedTuple):
    multiple: float
    value: float


def minimise(
    evaluate: Callable[[Array], tuple[Array, Array]],
    start: Array,
    low: Array,
    high: Array,
    *,
    robust_scale: float,
    tolerance: float,
    max_evaluations: int,
) -> tuple[Array, float]:
    """The point (coordinates,) within the bounds where the robust sum of squares is least, and half that sum.

    `evaluate` gives the errors (errors,) at a point and their slopes (errors, coordinates). `high` may be infinite, and
    `low` is finite. An error much larger than `robust_scale` counts linearly. The search ends where the sum, or the step,
    changes by less than `tolerance` of itself, or after `max_evaluations`.
    """
    bounded = np.isfinite(high)
    point = np.maximum(start, low + START_MARGIN * np.maximum(1.0, np.abs(low)))
    nearest = high[bounded] - START_MARGIN * np.maximum(1.0, np.abs(high[bounded]))
    point[bounded] = np.minimum(point[bounded], nearest)
    least, most = np.nextafter(low, high), np.nextafter(high, low)
    errors, slopes = evaluate(point)
    evaluations = 1
    cost = _loss(errors, robust_scale)
    damped = _damped(errors, slopes, robust_scale)
    room, _ = _room(point, damped.gradient, low, high, bounded)
    radius = _norm(point / np.sqrt(room)) or 1.0
    damping = 0.0
    ended = False
    while True:
        room, towards = _room(point, damped.gradient, low, high, bounded)
        steepest = float(np.abs(damped.gradient * room).max())
        if ended or steepest < GRADIENT_TOLERANCE or evaluations == max_evaluations:
            return point, cost
        stretch = np.sqrt(room)
        bound_curvature = damped.gradient * towards
        model = _Quadratic(damped.slopes * stretch, stretch * damped.gradient, bound_curvature)
        stacked = np.concatenate([model.slopes, np.diag(np.sqrt(bound_curvature))])
        left, singular, right = np.linalg.svd(stacked, full_matrices=False)
        along = left[: len(damped.errors)].T.dot(damped.errors)
        step_back = max(0.995, 1.0 - steepest)
        gain = -1.0
        while gain <= 0 and evaluations < max_evaluations:
            hat_step, damping = _within_radius(len(stacked), along, singular, right, radius, damping)
            step, hat_step, promised = _step(model, point, hat_step, stretch, radius, low, high, step_back)
            trial = np.minimum(np.maximum(point + step, least), most)
            errors, slopes = evaluate(trial)
            evaluations += 1
            length = _norm(hat_step)
            trial_cost = _loss(errors, robust_scale)
            if not math.isfinite(trial_cost):
                radius = 0.25 * length
                continue
            gain = cost - trial_cost
            kept = gain / promised if promised > 0 else float(promised == gain == 0)
            ended = (gain < tolerance * cost and kept > 0.25) or _norm(step) < tolerance * (tolerance + _norm(point))
            if ended:
                break
            before = radius
            if kept < 0.25:
                radius = 0.25 * length
            elif kept > 0.75 and length > 0.95 * radius:
                radius *= 2.0
            damping *= before / radius
        if gain > 0:
            point, cost = trial, trial_cost
            damped = _damped(errors, slopes, robust_scale)


def _norm(vector: Array) -> float:
    return math.sqrt(vector.dot(vector))


def _loss(errors: Array, scale: float) -> float:
    """Half the sum of squares, of which the large ones count linearly (soft L1)."""
    return float(0.5 * scale**2 * np.sum(2.0 * (np.sqrt(1.0 + (errors / scale) ** 2) - 1.0)))


def _damped(errors: Array, slopes: Array, scale: float) -> _Damped:
    bent = 1.0 + (errors / scale) ** 2
    first, second = bent**-0.5, -0.5 * bent**-1.5 / scale**2
    weight = np.sqrt(np.maximum(first + 2.0 * second * errors**2, LEAST_CURVATURE))
    errors, slopes = errors * (first / weight), slopes * weight[:, None]
    return _Damped(errors, slopes, slopes.T.dot(errors))


def _room(point: Array, gradient: Array, low: Array, high: Array, bounded: NDArray[np.bool_]) -> tuple[Array, Array]:
    """How far each coordinate is from the bound that the descent pushes it to (1: there is none), and which bound that is.

    1 for the lower, -1 for the upper, 0 for neither.
    """
    down, up = gradient > 0, (gradient < 0) & bounded
    room = np.where(down, point - low, np.where(up, high - point, 1.0))
    return room, down.astype(np.float64) - up


def _within_radius(
    rows: int, along: Array, singular: Array, right: Array, radius: float, damping: float
) -> tuple[Array, float]:
    """The step in hat space that is best within a radius, and its damping (More's iteration on the secular equation)."""
    weighted = singular * along
    full_rank = bool(singular[-1] > LEAST_CURVATURE * rows * singular[0])
    lowest = 0.0
    if full_rank:
        step = -right.T.dot(along / singular)
        if _norm(step) <= radius:
            return step, 0.0
        beyond, slope = _beyond(0.0, weighted, singular, radius)
        lowest = -beyond / slope
    highest = _norm(weighted) / radius
    if not full_rank and damping == 0:
        damping = max(0.001 * highest, math.sqrt(lowest * highest))
    for _ in range(MAX_ROOT_STEPS):
        if damping < lowest or damping > highest:
            damping = max(0.001 * highest, math.sqrt(lowest * highest))
        beyond, slope = _beyond(damping, weighted, singular, radius)
        if beyond < 0:
            highest = damping
        ratio = beyond / slope
        lowest = max(lowest, damping - ratio)
        damping -= (beyond + radius) * ratio / radius
        if abs(beyond) < NEARLY_SOLVED * radius:
            break
    step = -right.T.dot(weighted / (singular**2 + damping))
    step *= radius / _norm(step)
    return step, damping


def _beyond(damping: float, weighted: Array, singular: Array, radius: float) -> tuple[float, float]:
    """By how much the step of a damping is longer than the radius, and how that changes with the damping."""
    weights = singular**2 + damping
    length = _norm(weighted / weights)
    return length - radius, -float(np.sum(weighted**2 / weights**3)) / length


def _step(
    model: _Quadratic,
    point: Array,
    hat_step: Array,
    stretch: Array,
    radius: float,
    low: Array,
    high: Array,
    step_back: float,
) -> tuple[Array, Array, float]:
    """The step to try, the same in hat space, and by how much it should lower the loss."""
    step = stretch * hat_step
    to = point + step
    if bool(((to >= low) & (to <= high)).all()):
        return step, hat_step, -model.value(hat_step)
    share, hits = _to_bound(point, step, low, high)
    reflected = np.where(hits, -hat_step, hat_step)
    hat_step = hat_step * share
    on_bound = point + share * step
    to_bound, _ = _to_bound(on_bound, stretch * reflected, low, high)
    to_radius = _to_radius(hat_step, reflected, radius)
    longest = min(to_bound, to_radius)
    reflection = _Along(0.0, math.inf)
    if longest > 0:
        shortest = (1.0 - step_back) * share / longest
        longest = step_back * to_bound if longest == to_bound else to_radius
        if shortest <= longest:
            reflection = model.least_along(reflected, shortest, longest, beyond=hat_step)
            reflected = reflected * reflection.multiple + hat_step
    cut = hat_step * step_back
    cut_value = model.value(cut)
    descent = -model.gradient
    to_bound, _ = _to_bound(point, stretch * descent, low, high)
    to_radius = radius / _norm(descent)
    plain = model.least_along(descent, 0.0, step_back * to_bound if to_bound < to_radius else to_radius)
    if cut_value < reflection.value and cut_value < plain.value:
        best, value = cut, cut_value
    elif reflection.value < cut_value and reflection.value < plain.value:
        best, value = reflected, reflection.value
    else:
        best, value = descent * plain.multiple, plain.value
    return stretch * best, best, -value


def _to_bound(point: Array, step: Array, low: Array, high: Array) -> tuple[float, NDArray[np.bool_]]:
    """The multiple of a step that meets the first bound, and which coordinates meet theirs there."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        shares = np.where(step != 0, np.maximum((low - point) / step, (high - point) / step), np.inf)
    least = shares.min()
    return float(least), (shares == least) & (step != 0)


def _to_radius(begin: Array, step: Array, radius: float) -> float:
    """How often a step can be taken, from a point `begin` within the radius, until it is at the radius."""
    square, half, rest = float(step.dot(step)), float(begin.dot(step)), float(begin.dot(begin)) - radius**2
    root = math.sqrt(half * half - square * min(rest, 0.0))
    far = -(half + math.copysign(root, half))
    return max(far / square, min(rest, 0.0) / far)
