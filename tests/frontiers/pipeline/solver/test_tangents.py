"""Tangents of a convex function: never above it, and where they meet is where it is least."""

from __future__ import annotations

import numpy as np
import pytest
from flyball_frontiers.pipeline.solver.tangents import KEPT, Tangent, Tangents
from hypothesis import given
from hypothesis import strategies as st


def touching(planes: np.ndarray, time: int, period: int) -> Tangent:
    """The greatest of `planes` (height, slope in time, slope in period) there."""
    height, per_time, per_period = max(
        planes.tolist(), key=lambda plane: plane[0] + plane[1] * time + plane[2] * period
    )
    return Tangent(height + per_time * time + per_period * period, time, period, per_time, per_period)


def planes_of(seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return draw.normal(size=(int(draw.integers(2, 9)), 3)) * np.array([1000, 1, 5])


@given(st.integers(0, 2**32), st.integers(-1000, 1000))
def test_the_least_is_found_and_nothing_is_below_what_they_say(seed: int, time: int) -> None:
    planes, tangents, low, high = planes_of(seed), Tangents(), -200, 200
    period, best = low, float("inf")
    for _ in range(len(planes) + 2):
        found = touching(planes, time, period)
        tangents.add(found)
        best = min(best, found.value)
        period, bound = tangents.least(time, low, high)
        assert low <= period <= high
        assert bound <= best + 1e-9
    least = min(touching(planes, time, each).value for each in range(low, high + 1))
    assert best == pytest.approx(least, abs=abs(planes[:, 2]).max())  # between two whole periods
    assert bound <= least + 1e-9


def test_what_was_learnt_at_one_time_holds_at_the_next() -> None:
    """Two sides of a ridge: after one time the period of every other is known."""
    planes, tangents = np.array([[0.0, -1.0, 4.0], [100.0, -2.0, -1.0]]), Tangents()
    for period in (0, 50):
        tangents.add(touching(planes, 10, period))
    for time in (0, 5, 20):
        period, bound = tangents.least(time, 0, 50)
        assert touching(planes, time, period).value == pytest.approx(bound, abs=4)
        assert period == round((100 - time) / 5)


def test_the_oldest_are_forgotten() -> None:
    tangents = Tangents()
    tangents.add(Tangent(1e9, 0, 0, 0.0, 0.0))
    for _ in range(KEPT):
        tangents.add(Tangent(1.0, 0, 0, 0.0, 1.0))
    assert tangents.least(0, 0, 10) == (0, 1.0)
