"""The solver of fits goes the way that scipy's goes, within bounds, on disturbed data and on data that tell too little."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flyball_planner.fitting.trust_region import Array, minimise
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares

from tests.support.examples import examples

ROBUST_SCALE, TOLERANCE, MAX_EVALUATIONS = 0.1, 1e-7, 60


class Curve:
    """Log errors of a*exp(-b*t) + c + d*t over times, with springs as weak as a fit's; counts how often it is asked."""

    def __init__(self, seed: int, coordinates: int, *, disturbed: bool, bound_share: float) -> None:
        draw = np.random.default_rng(seed)
        self.times = np.sort(draw.uniform(0.0, 4.0, size=int(draw.integers(2, 30))))
        self.truth = draw.uniform(0.05, 2.0, size=4)
        self.measured = self._curve(self.truth) * np.exp(draw.normal(0.0, 0.03, size=len(self.times)))
        if disturbed:
            self.measured[draw.integers(len(self.times))] *= 3.0
        self.start = (self.truth * np.exp(draw.normal(0.0, 0.7, size=4)))[:coordinates]
        self.low = np.where(draw.random(coordinates) < bound_share, self.truth[:coordinates] * 1.05, 0.0)
        self.high = np.where(
            draw.random(coordinates) < bound_share, np.maximum(self.truth[:coordinates], self.low) * 1.2, np.inf
        )
        self.start = np.clip(self.start, self.low, self.high)
        self.asked = 0

    def _curve(self, point: Array) -> Array:
        a, b, c, d = point
        return np.asarray(a * np.exp(-b * self.times) + c + d * self.times + 1e-3)

    def errors(self, free: Array) -> Array:
        point = self.truth.copy()
        point[: len(free)] = free
        return np.concatenate([np.log(self._curve(point) / self.measured), 0.06 * (free - self.start)])

    def slopes(self, free: Array) -> Array:
        steps = np.eye(len(free)) * 1e-6
        return np.array([(self.errors(free + step) - self.errors(free)) / 1e-6 for step in steps]).T

    def both(self, free: Array) -> tuple[Array, Array]:
        self.asked += 1
        return self.errors(free), self.slopes(free)

    def minimise(self) -> tuple[Array, float]:
        return minimise(
            self.both,
            self.start,
            self.low,
            self.high,
            robust_scale=ROBUST_SCALE,
            tolerance=TOLERANCE,
            max_evaluations=MAX_EVALUATIONS,
        )


@settings(max_examples=examples(150), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    coordinates=st.integers(1, 4),
    disturbed=st.booleans(),
    bound_share=st.sampled_from([0.0, 0.3, 0.8]),
)
def test_it_ends_where_scipy_ends_after_as_many_evaluations(
    seed: int, coordinates: int, disturbed: bool, bound_share: float
) -> None:
    curve = Curve(seed, coordinates, disturbed=disturbed, bound_share=bound_share)
    point, cost = curve.minimise()
    theirs = least_squares(
        curve.errors,
        curve.start,
        jac=curve.slopes,
        bounds=(curve.low, curve.high),
        loss="soft_l1",
        f_scale=ROBUST_SCALE,
        max_nfev=MAX_EVALUATIONS,
        xtol=TOLERANCE,
        ftol=TOLERANCE,
    )
    assert (point >= curve.low).all()
    assert (point <= curve.high).all()
    assert cost == pytest.approx(theirs.cost, rel=1e-6)
    assert abs(curve.asked - theirs.nfev) <= 2  # rounding may decide the last step


def test_a_bound_that_the_best_point_is_beyond_is_where_it_ends() -> None:
    curve = Curve(7, 4, disturbed=False, bound_share=0.0)
    free, _ = curve.minimise()
    curve.high = free * [0.8, np.inf, np.inf, np.inf]
    curve.start = np.minimum(curve.start, curve.high)
    held, _ = curve.minimise()
    assert held[0] == pytest.approx(curve.high[0], rel=1e-3)
    assert held[0] <= curve.high[0]


def test_a_step_to_where_errors_are_no_numbers_is_made_shorter() -> None:
    beyond = []

    def both(point: Array) -> tuple[Array, Array]:
        x = float(point[0])
        if x > 3.2:
            beyond.append(x)
            return np.array([math.nan]), np.array([[math.nan]])
        return np.array([x**4 - 81.0]), np.array([[4 * x**3]])

    point, cost = minimise(
        both,
        np.array([0.9]),
        np.array([0.0]),
        np.array([np.inf]),
        robust_scale=1e3,
        tolerance=TOLERANCE,
        max_evaluations=MAX_EVALUATIONS,
    )
    assert beyond
    assert point[0] == pytest.approx(3.0, rel=1e-3)
    assert cost < 1e-3


def test_it_stops_after_the_evaluations_that_it_is_given() -> None:
    curve = Curve(11, 4, disturbed=True, bound_share=0.3)
    minimise(curve.both, curve.start, curve.low, curve.high, robust_scale=0.1, tolerance=0.0, max_evaluations=3)
    assert curve.asked == 3
