"""The outer loop over the price of a joule: it meets what can be met, and does not wind up where nothing can."""

from __future__ import annotations

import math

import pytest
from flyball_planner.policies.energy_budget import HIGHEST_PRICE, LARGEST_STEP, LEAST_PRICE, EnergyBudget
from hypothesis import given
from hypothesis import strategies as st

STEP_SECONDS = 300.0


def watts_at(price: float, most: float, least: float) -> float:
    """A cluster whose draw falls with the price, half-way at 3e-4."""
    return least + (most - least) / (1.0 + price / 3e-4)


def settle(budget: EnergyBudget, price: float, most: float, least: float, steps: int = 3000) -> float:
    for _ in range(steps):
        price = budget.next_price(price, watts_at(price, most, least) * STEP_SECONDS, STEP_SECONDS)
    return price


@given(share=st.floats(0.1, 0.9), start=st.sampled_from([0.0, 1e-4, 1e-2]), most=st.floats(1e3, 1e7))
def test_it_settles_where_the_draw_is_the_budget(share: float, start: float, most: float) -> None:
    least = 0.4 * most
    budget = EnergyBudget(least + share * (most - least))
    assert watts_at(settle(budget, start, most, least), most, least) == pytest.approx(budget.watts, rel=1e-3)


def test_a_budget_out_of_reach_leaves_the_price_at_its_end_and_does_not_wind_up() -> None:
    assert settle(EnergyBudget(100.0), 1e-4, 1000.0, 400.0) == HIGHEST_PRICE
    slack = EnergyBudget(5000.0)
    price = settle(slack, 1e-4, 1000.0, 400.0)
    assert price == LEAST_PRICE
    after_days = settle(slack, price, 1000.0, 400.0, 10_000)
    tight = EnergyBudget(700.0)
    assert settle(tight, after_days, 1000.0, 400.0) == settle(tight, price, 1000.0, 400.0)


@given(price=st.floats(0.0, 1.0), joules=st.floats(0.0, 1e15), seconds=st.floats(0.0, 1e9), watts=st.floats(1.0, 1e8))
def test_a_step_is_bounded_and_goes_the_right_way(price: float, joules: float, seconds: float, watts: float) -> None:
    now = min(max(price, LEAST_PRICE), HIGHEST_PRICE)
    following = EnergyBudget(watts).next_price(now, joules, seconds)
    assert LEAST_PRICE <= following <= HIGHEST_PRICE
    assert abs(math.log(following / now)) <= LARGEST_STEP + 1e-9
    if joules > watts * seconds:
        assert following >= now
    else:
        assert following <= now


@pytest.mark.parametrize(("watts", "window"), [(0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, 0.0), (math.inf, 1.0)])
def test_a_budget_is_positive(watts: float, window: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        EnergyBudget(watts, window)
