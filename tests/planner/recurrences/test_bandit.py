"""Beliefs against Bayes' rule on a grid, Thompson's choices against their analytic probability, and what a run is worth."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from flyball_planner.recurrences.bandit import (
    FLAT_PRIOR,
    LEAST_SPREAD,
    UNSEEN_SPREAD,
    Belief,
    choose_arm,
    learn,
    most_valuable_arm,
    pooled_spread,
)
from hypothesis import given
from hypothesis import strategies as st

costs_lists = st.lists(st.floats(50.0, 200.0), min_size=2, max_size=12)


@given(costs_lists)
def test_under_the_flat_prior_the_belief_is_the_mean_and_its_standard_error(costs: list[float]) -> None:
    belief = learn(costs)
    deviation = max(statistics.stdev(costs), LEAST_SPREAD * statistics.fmean(costs))
    assert belief.mean == pytest.approx(statistics.fmean(costs))
    assert math.sqrt(belief.variance) == pytest.approx(deviation / math.sqrt(len(costs)))
    assert belief.observations == len(costs)


def test_a_prior_is_weighed_in_as_bayes_rule_weighs_it() -> None:
    costs, prior = [90.0, 110.0, 130.0], Belief(80.0, 15.0**2, 0)
    belief = learn(costs, prior)
    means = np.linspace(0.0, 200.0, 200_001)
    log_density = -((means - prior.mean) ** 2) / (2 * prior.variance)
    for cost in costs:
        log_density -= (cost - means) ** 2 / (2 * statistics.variance(costs))
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    mean = float((means * density).sum())
    assert belief.mean == pytest.approx(mean, rel=1e-6)
    assert belief.variance == pytest.approx(float(((means - mean) ** 2 * density).sum()), rel=1e-4)


def test_one_cost_is_believed_loosely_and_equal_costs_not_for_certain() -> None:
    assert math.sqrt(learn([100.0]).variance) == pytest.approx(100.0 * UNSEEN_SPREAD)
    equal = learn([100.0] * 4)
    assert math.sqrt(equal.variance) == pytest.approx(100.0 * LEAST_SPREAD / 2)
    assert learn([]) == FLAT_PRIOR


def test_arms_are_chosen_as_often_as_they_may_be_the_cheapest() -> None:
    beliefs = {32: Belief(100.0, 36.0, 5), 64: Belief(108.0, 64.0, 5)}
    rng = np.random.default_rng(7)
    draws = 4000
    chosen = sum(choose_arm(beliefs, rng) == 32 for _ in range(draws))
    # P(N(100, 6) < N(108, 8)) = Phi(8 / 10); four standard deviations of a binomial
    expected = 0.5 * (1 + math.erf(0.8 / math.sqrt(2)))
    assert abs(chosen / draws - expected) < 4 * math.sqrt(expected * (1 - expected) / draws)


def test_arms_never_seen_go_first_each_of_them() -> None:
    beliefs = {8: Belief(1.0, 1e-9, 9), 16: FLAT_PRIOR, 32: FLAT_PRIOR}
    rng = np.random.default_rng(0)
    assert {choose_arm(beliefs, rng) for _ in range(64)} == {16, 32}


@pytest.mark.parametrize("costs", [[0.0], [-1.0], [math.nan], [1.0, math.inf]])
def test_a_cost_that_is_none_is_refused(costs: list[float]) -> None:
    with pytest.raises(ValueError, match="every cost must be a positive number"):
        learn(costs)


def test_no_arm_is_no_choice() -> None:
    with pytest.raises(ValueError, match="no arm"):
        choose_arm({}, np.random.default_rng(0))


def test_the_spread_is_that_of_all_arms_around_their_own_means() -> None:
    draw = np.random.default_rng(3)
    costs = [(mean * draw.normal(1.0, 0.05, 8)).tolist() for mean in (10.0, 300.0, 9000.0) for _ in range(20)]
    assert pooled_spread(costs) == pytest.approx(0.05, rel=0.1)
    assert pooled_spread([[100.0], [700.0]]) == UNSEEN_SPREAD, "arms of one run each say nothing of it"
    assert pooled_spread([[100.0] * 10_000]) == LEAST_SPREAD


@given(
    means=st.lists(st.floats(50, 200), min_size=2, max_size=6, unique=True),
    counts=st.lists(st.integers(1, 9), min_size=6, max_size=6),
    horizon=st.floats(0, 1000),
)
def test_an_arm_is_worth_what_its_next_cost_is_expected_to_save(
    means: list[float], counts: list[int], horizon: float
) -> None:
    """The closed form against the expectation itself, on quantiles of the mean after one more cost."""
    spread = 0.1
    costs = {arm: [mean] * count for arm, (mean, count) in enumerate(zip(means, counts, strict=False))}
    normal = statistics.NormalDist()
    quantiles = [normal.inv_cdf((step + 0.5) / 4000) for step in range(4000)]

    def index(arm: int) -> float:
        moves = spread * means[arm] * math.sqrt(1 / counts[arm] - 1 / (counts[arm] + 1))
        others = min(mean for other, mean in enumerate(means) if other != arm)
        after = statistics.fmean(min(means[arm] + moves * each, others) for each in quantiles)
        return means[arm] - horizon * (min(means) - after)

    chosen = most_valuable_arm(costs, spread, horizon)
    assert index(chosen) == pytest.approx(min(map(index, costs)), abs=1e-3 * (1 + horizon) * max(means) / 50)


def test_without_a_future_the_least_mean_is_taken_and_with_one_the_unsure() -> None:
    costs = {8: [104.0], 16: [100.0] * 30, 32: [150.0]}
    assert most_valuable_arm(costs, 0.05, 0.0) == 16
    assert most_valuable_arm(costs, 0.05, 100.0) == 8
    assert most_valuable_arm({**costs, 64: [], 4: []}, 0.05, 0.0) == 4, "what was never seen goes first"
    with pytest.raises(ValueError, match="no arm"):
        most_valuable_arm({}, 0.05, 1.0)
