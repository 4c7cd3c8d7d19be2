"""The solver under the fits, beside scipy's on problems of their kind."""

from __future__ import annotations

import numpy as np
import pytest
from flyball_planner.fitting.descent import descend
from numpy.typing import NDArray
from scipy.optimize import least_squares

Array = NDArray[np.float64]
ROBUST = 0.1


def described(seed: int, noise: float, count: int) -> tuple[Array, Array, Array, Array, Array]:
    """Inputs, log values of (a + b*x)^g + c*exp(-x) with noise, a start, and bounds that some truths are beyond."""
    draw = np.random.default_rng(seed)
    x = np.sort(draw.uniform(0.1, 4.0, count))
    truth = np.array([draw.uniform(0.0, 1.0), draw.uniform(0.2, 2.0), draw.uniform(1.0, 3.0), draw.uniform(0.0, 2.0)])
    noisy = np.log(model(truth[None, :], x)[0]) + draw.normal(0.0, noise, count)
    noisy[draw.integers(count)] += draw.choice([0.0, 1.5])  # a disturbed window
    low = np.array([draw.choice([0.0, 0.5]), 0.0, 1.0, 0.0])
    high = np.array([np.inf, draw.choice([1.0, np.inf]), 10.0, draw.choice([0.5, np.inf])])
    return x, noisy, np.array([0.5, 0.7, 1.5, 0.3]), low, high


def model(points: Array, x: Array) -> Array:
    a, b, g, c = points.T[:, :, None]
    return np.asarray((a + b * x) ** g + c * np.exp(-x))


def solved(
    x: Array, values: Array, start: Array, low: Array, high: Array, evaluations: int = 60
) -> tuple[Array, float]:
    def residuals(points: Array) -> Array:
        return np.concatenate([np.log(model(points, x)) - values, 0.06 * (points - start)], axis=1)

    return descend(
        residuals,
        start,
        low,
        high,
        robust_scale=ROBUST,
        difference_step=1e-6,
        tolerance=1e-7,
        evaluations=evaluations,
    )


def by_scipy(x: Array, values: Array, start: Array, low: Array, high: Array) -> float:
    found = least_squares(
        lambda point: np.concatenate([np.log(model(point[None, :], x))[0] - values, 0.06 * (point - start)]),
        np.clip(start, low, high),
        bounds=(low, high),
        loss="soft_l1",
        f_scale=ROBUST,
        xtol=1e-9,
        ftol=1e-9,
        max_nfev=400,
    )
    return float(found.cost)


def test_it_ends_no_higher_than_scipys_and_seldom_in_another_valley() -> None:
    seeds = range(60)
    higher = []
    for seed in seeds:
        problem = described(seed, (0.0, 0.03, 0.2)[seed % 3], 6 + seed % 30)
        point, cost = solved(*problem)
        assert (point >= problem[3]).all()
        assert (point <= problem[4]).all()
        if cost > by_scipy(*problem) * (1 + 1e-3) + 1e-9:
            higher.append(seed)
    assert len(higher) <= len(seeds) // 10, higher


def test_what_a_bound_holds_comes_near_it() -> None:
    mixed = np.array([[1.0, 0.2, 0.1], [0.2, 1.0, 0.0], [0.1, 0.0, 1.0]])

    def residuals(points: Array) -> Array:
        return np.asarray((points - np.array([2.0, -1.0, 0.5])) @ mixed)

    point, _ = descend(
        residuals,
        np.array([0.3, 0.3, 0.3]),
        np.zeros(3),
        np.array([1.0, 1.0, np.inf]),
        robust_scale=10.0,
        difference_step=1e-6,
        tolerance=1e-7,
        evaluations=60,
    )
    assert point[:2] == pytest.approx([1.0, 0.0], abs=1e-3)
    assert 0.5 < point[2] < 1.0, "and what is free makes up for it"


def test_a_trial_that_is_no_number_is_not_taken() -> None:
    """Beyond 1 there is nothing: the least that can be reached is at its edge."""

    def residuals(points: Array) -> Array:
        return np.where(points > 1.0, np.nan, points - 5.0)

    point, cost = descend(
        residuals,
        np.array([0.0]),
        np.array([-np.inf]),
        np.array([np.inf]),
        robust_scale=10.0,
        difference_step=1e-6,
        tolerance=1e-7,
        evaluations=60,
    )
    assert 0.9 < point[0] <= 1.0
    assert np.isfinite(cost)


@pytest.mark.parametrize("evaluations", [1, 3])
def test_it_asks_no_more_often_than_it_may(evaluations: int) -> None:
    problem = described(7, 0.03, 20)
    asked = 0

    def counted(points: Array) -> Array:
        nonlocal asked
        asked += 1
        return np.log(model(points, problem[0])) - problem[1]

    descend(
        counted,
        problem[2],
        problem[3],
        problem[4],
        robust_scale=ROBUST,
        difference_step=1e-6,
        tolerance=0.0,
        evaluations=evaluations,
    )
    assert asked == evaluations
