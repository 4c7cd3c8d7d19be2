"""Holding choices under a power limit."""

from __future__ import annotations

import pytest
from flyball_planner.policies.capping import counted_watts, within_limit
from flyball_planner.policies.view import Choice
from hypothesis import given
from hypothesis import strategies as st

from tests.support.policy_views import CLOCKS, cluster, job, table


@given(
    watts=st.lists(st.floats(60.0, 300.0), min_size=1, max_size=6),
    clocks=st.lists(st.integers(0, len(CLOCKS) - 1), min_size=6, max_size=6),
    limit=st.floats(10.0, 3000.0),
)
def test_the_limit_holds_wherever_the_idle_cluster_fits(watts: list[float], clocks: list[int], limit: float) -> None:
    jobs = [job(f"j{index}", table([1.0, 0.6], each)) for index, each in enumerate(watts)]
    view = cluster(jobs, gpus=16, idle_gpu_watts=40.0, power_limit_watts=limit, guard_fraction=0.05)
    choices = [Choice(one.uid, 1 + index % 2, clocks[index]) for index, one in enumerate(jobs)]
    held = within_limit(view, choices)
    if limit >= 16 * 40.0:
        assert counted_watts(view, held) <= limit + 1e-6
    else:
        assert held == []
    if counted_watts(view, choices) <= limit:
        assert held == choices
    assert [choice.uid for choice in held] == [choice.uid for choice in choices][: len(held)]
    for before, after in zip(choices, held, strict=False):
        assert after.gpus == before.gpus
        assert after.clock_index <= before.clock_index


def test_clocks_go_before_jobs_and_the_last_job_first() -> None:
    jobs = [job("first", table([1.0])), job("second", table([1.0]))]
    choices = [Choice("first", 1, 2), Choice("second", 1, 2)]
    free = cluster(jobs, gpus=2, power_limit_watts=1e9)
    assert within_limit(free, choices) == choices
    slow = [Choice("first", 1, 0), Choice("second", 1, 0)]
    at_lowest = cluster(jobs, gpus=2, power_limit_watts=counted_watts(free, slow))
    assert within_limit(at_lowest, choices) == slow
    for_one = cluster(jobs, gpus=2, power_limit_watts=counted_watts(free, slow[:1]) + 1.0)
    assert within_limit(for_one, choices) == slow[:1]


def test_without_a_limit_nothing_changes() -> None:
    choices = [Choice("first", 1, 2)]
    assert within_limit(cluster([job("first", table([1.0]))]), choices) == choices
    assert counted_watts(cluster([job("first", table([1.0], 200.0))]), choices) == pytest.approx(200.0)
