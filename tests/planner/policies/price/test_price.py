"""The price-driven policy: what it promises about prices, caps, deadlines and budgets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from flyball_planner.policies.capping import counted_watts
from flyball_planner.policies.price.market import BISECTIONS, Indices, Market, _Demand
from flyball_planner.policies.price.policy import Price
from flyball_planner.policies.view import Choice, ClusterView, JobView, Performance
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.policy_views import cluster, job, table

GOOD, FAIR, POOR = table([1.0, 0.52, 0.28]), table([1.0, 0.65, 0.5]), table([1.0, 0.95, 0.94])


def decide(jobs: list[JobView], gpus: int = 8, **fields: Any) -> dict[str, Choice]:
    return {choice.uid: choice for choice in Price().decide(cluster(jobs, gpus, **fields))}


def test_time_alone_takes_every_gpu_that_helps_at_the_highest_clock() -> None:
    assert decide([job("only", GOOD)])["only"] == Choice("only", 4, 2)


def test_dear_joules_make_jobs_small_and_slow() -> None:
    dear = decide([job("only", POOR)], price=1.0)["only"]
    assert dear.gpus == 1
    assert dear.clock_index == POOR.efficient[0]


def test_where_a_node_draws_much_beside_its_gpus_a_job_hurries_to_be_done_with_it() -> None:
    slow = decide([job("only", FAIR)], price=1.0)["only"]
    fast = decide([job("only", FAIR)], price=1.0, host_gpu_watts=175.0)["only"]
    assert (slow.clock_index, fast.clock_index) == (0, 2)
    sunk = decide([job("only", FAIR)], price=1.0, host_gpu_watts=175.0, sunk_gpu_watts=175.0)["only"]
    assert sunk == slow, "what is drawn in any case moves nothing"


def test_gpus_go_where_they_shorten_most_when_there_are_few() -> None:
    found = decide([job("good", GOOD), job("poor", POOR)], gpus=5)
    assert (found["good"].gpus, found["poor"].gpus) == (4, 1)


def test_more_jobs_than_gpus_run_the_shortest() -> None:
    jobs = [job(f"j{index}", FAIR, 100.0 * (index + 1)) for index in range(6)]
    assert set(decide(jobs, gpus=4)) == {"j0", "j1", "j2", "j3"}


def test_priority_comes_before_remaining_time() -> None:
    jobs = [job("short", FAIR, 10.0), job("urgent", FAIR, 1e5, priority=1)]
    assert set(decide(jobs, gpus=1)) == {"urgent"}


@given(
    kinds=st.lists(st.sampled_from([GOOD, FAIR, POOR]), min_size=1, max_size=12),
    price=st.one_of(st.just(0.0), st.floats(1e-5, 1.0)),
    sunk=st.sampled_from([0.0, 60.0]),
)
@settings(max_examples=examples(100))
def test_clocks_that_are_left_out_are_chosen_by_nobody(kinds: list[Performance], price: float, sunk: float) -> None:
    """A promise that binds nobody has every clock looked at."""
    jobs = [job(f"j{index:02d}", kind, 100.0 * (index + 1)) for index, kind in enumerate(kinds)]
    promised = [job(f"j{index:02d}", kind, 100.0 * (index + 1)) for index, kind in enumerate(kinds)]
    promised[0].deadline_seconds = 1e12
    assert decide(jobs, price=price, sunk_gpu_watts=sunk) == decide(promised, price=price, sunk_gpu_watts=sunk)


class AskingEverybody(Market):
    """At every price all jobs are asked what they want."""

    def _between(
        self, low: float, high: float, joule_price: float, wanting: _Demand, fitting: _Demand
    ) -> tuple[Indices, float]:
        for _ in range(BISECTIONS):
            middle = (low + high) / 2 if low == 0 else math.sqrt(low * high)
            (found,) = self._demands((middle,), joule_price)
            if found.gpus <= self.view.gpus:
                high, fitting = middle, found
            else:
                low, wanting = middle, found
        return self._fill(fitting, wanting, self.view.gpus - fitting.gpus), high


@given(
    jobs=st.lists(
        st.tuples(st.sampled_from([GOOD, FAIR, POOR]), st.floats(1.0, 1e5), st.sampled_from([0, 1, 2, 4])),
        min_size=2,
        max_size=20,
    ),
    price=st.one_of(st.just(0.0), st.floats(1e-5, 1.0)),
    share=st.floats(0.2, 1.0),
)
@settings(max_examples=examples(300))
def test_asking_only_whom_a_price_still_moves_changes_nothing(
    jobs: list[tuple[Performance, float, int]], price: float, share: float
) -> None:
    views = [job(f"j{index:02d}", kind, left, gpus=gpus) for index, (kind, left, gpus) in enumerate(jobs)]
    view = cluster(views, max(len(views), int(4 * share * len(views))))
    for found, plain in zip(Market(view, views).clear(price), AskingEverybody(view, views).clear(price), strict=True):
        assert np.array_equal(found, plain)


def test_a_restart_that_does_not_pay_is_not_made() -> None:
    almost_done = job("almost", GOOD, 20.0, gpus=1, clock_index=2)
    assert decide([almost_done])["almost"].gpus == 1
    far_from_done = job("far", GOOD, 2000.0, gpus=1, clock_index=2)
    assert decide([far_from_done])["far"].gpus == 4


@given(price=st.floats(0.0, 0.02), more=st.floats(1.1, 10.0))
@settings(max_examples=examples(50))
def test_a_higher_price_never_draws_more_where_gpus_are_plenty(price: float, more: float) -> None:
    jobs = [job("good", GOOD), job("fair", FAIR), job("poor", POOR)]

    def watts(view: ClusterView) -> float:
        by_uid = {one.uid: one.performance for one in jobs}
        return sum(
            by_uid[choice.uid].watts_rows[by_uid[choice.uid].position[choice.gpus]][choice.clock_index]
            for choice in Price().decide(view)
        )

    cheap, dear = cluster(jobs, gpus=64, price=price), cluster(jobs, gpus=64, price=price * more)
    assert watts(dear) <= watts(cheap) * (1 + 1e-9)


@given(limit=st.floats(200.0, 4000.0), price=st.sampled_from([0.0, 1e-3]))
@settings(max_examples=examples(60))
def test_the_cap_holds_with_its_guard(limit: float, price: float) -> None:
    jobs = [job(f"j{index}", kind, 1000.0) for index, kind in enumerate([GOOD, FAIR, POOR, GOOD, FAIR])]
    view = cluster(jobs, 8, price=price, power_limit_watts=limit, guard_fraction=0.05, idle_gpu_watts=20.0)
    assert counted_watts(view, Price().decide(view)) <= limit + 1e-6


def test_a_cap_lowers_clocks_before_it_pauses_anybody() -> None:
    jobs = [job(f"j{index}", FAIR) for index in range(4)]
    lowest = 4 * FAIR.watts_rows[0][0]
    found = decide(jobs, gpus=4, power_limit_watts=lowest + 1.0)
    assert len(found) == 4


def test_a_deadline_is_met_with_what_it_takes() -> None:
    late = job("dated", GOOD, 1000.0, deadline_seconds=400.0)
    found = decide([late], price=1.0)["dated"]
    row = GOOD.position[found.gpus]
    assert 1000.0 * GOOD.seconds_rows[row][found.clock_index] <= 400.0
    hopeless = job("hopeless", GOOD, 1e6, deadline_seconds=400.0)
    assert decide([hopeless], price=1.0)["hopeless"] == Choice("hopeless", 4, 2)


def test_an_energy_budget_leaves_out_what_it_cannot_carry() -> None:
    least = min(min(row) for row in GOOD.joules_rows)
    short = job("short", GOOD, 1000.0, remaining_energy_joules=1000.0 * least * 1.02)
    found = decide([short])["short"]
    assert 1000.0 * GOOD.joules_rows[GOOD.position[found.gpus]][found.clock_index] <= 1000.0 * least * 1.02


def test_a_long_job_leaves_dear_gpus_to_short_ones() -> None:
    """Both make the same of GPUs; the one that outlasts the backlog grows when they are cheap again."""
    jobs = [job("long", FAIR, 50_000.0), *(job(f"short{index}", FAIR, 500.0) for index in range(3))]
    found = decide(jobs, gpus=7)
    assert found["long"].gpus < min(found[f"short{index}"].gpus for index in range(3))
    assert decide(jobs[:1], gpus=8)["long"].gpus == 4


def test_gpus_beside_busy_ones_are_taken_for_what_they_draw_more() -> None:
    """At this price one GPU is best alone, but the other seven idle for as long as it runs."""
    jobs = [job("only", FAIR)]
    price, idle_watts = 0.01, 40.0
    assert decide(jobs, price=price)["only"].gpus == 1
    found = decide(jobs, price=price, idle_gpu_watts=idle_watts)["only"]
    assert found.gpus == 4
    own = [seconds + price * joules for seconds, joules in zip(FAIR.seconds_rows[2], FAIR.joules_rows[2], strict=True)]
    assert found.clock_index == own.index(min(own))


@given(
    kinds=st.lists(st.sampled_from([GOOD, FAIR, POOR]), min_size=1, max_size=12),
    price=st.floats(1e-5, 0.1),
    gpus=st.sampled_from([8, 16, 24]),
)
@settings(max_examples=examples(60))
def test_filling_a_node_never_needs_another_one(kinds: list[Performance], price: float, gpus: int) -> None:
    jobs = [job(f"j{index:02d}", kind, 100.0 * (index + 1)) for index, kind in enumerate(kinds)]

    def used(idle_watts: float) -> int:
        found = Price().decide(cluster(jobs, gpus, gpus_per_node=8, price=price, idle_gpu_watts=idle_watts))
        return sum(choice.gpus for choice in found)

    assert -(-used(40.0) // 8) == -(-used(0.0) // 8)
