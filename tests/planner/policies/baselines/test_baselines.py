"""Small instances of the baselines, worked by hand from their papers' rules."""

from __future__ import annotations

import math
from itertools import product

import pytest
from flyball_planner.policies.baselines.afs import Afs
from flyball_planner.policies.baselines.first_come import FirstCome
from flyball_planner.policies.baselines.gandiva import Gandiva, share_nodes
from flyball_planner.policies.baselines.pollux import Pollux, slowness_rows
from flyball_planner.policies.baselines.sia import WAITING_COST, Sia, best_assignment
from flyball_planner.policies.baselines.srtf import Srtf
from flyball_planner.policies.baselines.tiresias import Tiresias, TiresiasGittins, gittins_index
from flyball_planner.policies.baselines.zeus import Zeus, zeus_clocks
from flyball_planner.policies.view import Choice
from hypothesis import given
from hypothesis import strategies as st

from tests.support.policy_views import cluster, job, table


def sizes(choices: list[Choice]) -> dict[str, int]:
    return {choice.uid: choice.gpus for choice in choices}


def test_first_come_does_not_backfill() -> None:
    flat = table([1.0, 1.0, 1.0, 1.0])
    jobs = [job("a", flat, requested=4), job("b", flat, requested=8, submit=1.0), job("c", flat, submit=2.0)]
    assert sizes(FirstCome().decide(cluster(jobs))) == {"a": 4}


def test_tiresias_prefers_little_service_and_skips_what_does_not_fit() -> None:
    flat = table([1.0, 1.0, 1.0, 1.0])
    jobs = [
        job("old", flat, requested=4, attained_gpu_seconds=8_000.0),
        job("middle", flat, requested=4, submit=1.0, attained_gpu_seconds=4_000.0),
        job("large", flat, requested=8, submit=2.0),
        job("small", flat, requested=2, submit=3.0),
    ]
    # Queue 1: large, small. large takes all 8.
    assert sizes(Tiresias().decide(cluster(jobs))) == {"large": 8}
    # On 4 GPUs large does not fit and is skipped; small, then (2 left) neither middle nor old.
    assert sizes(Tiresias().decide(cluster(jobs, gpus=4))) == {"small": 2}
    # 3,250 GPU-s are the end of the first queue: just below it is still in it, and older than small.
    jobs[1].attained_gpu_seconds = 3_249.0
    assert sizes(Tiresias().decide(cluster(jobs, gpus=4))) == {"middle": 4}


def test_gittins_index_is_the_chance_to_end_over_the_service_that_it_takes() -> None:
    services = [1_000.0, 2_000.0, 10_000.0]
    sums = [0.0, 1_000.0, 3_000.0, 13_000.0]
    # At 0: two of three end within 3,250; they take 1,000 + 2,000, the third the whole quantum.
    assert gittins_index(services, sums, 0.0) == pytest.approx(2 / (1_000 + 2_000 + 3_250))
    # At 1,500 one of two ends after 500 more.
    assert gittins_index(services, sums, 1_500.0) == pytest.approx(1 / (500 + 3_250))
    assert gittins_index(services, sums, 10_000.0) == 0.0


def test_gittins_runs_who_will_probably_end_soon() -> None:
    kind = table([1.0])
    jobs = [
        job("long", kind, 50_000.0, attained_gpu_seconds=5_000.0),
        job("short", kind, 500.0, submit=5.0, attained_gpu_seconds=100.0),
    ]
    assert sizes(TiresiasGittins().decide(cluster(jobs, gpus=1))) == {"short": 1}


def test_gandiva_shares_nodes_in_proportion_and_rotates() -> None:
    # 4 nodes of 8: class 1 wants 24 GPUs, class 8 wants 8: three nodes and one.
    assert share_nodes({1: 24, 8: 8}, 4, 8) == {1: 24, 8: 8}
    assert share_nodes({1: 48, 8: 16}, 4, 8) == {1: 24, 8: 8}
    flat = table([1.0])
    jobs = [job(f"j{index}", flat, submit=float(index), since_seconds=float(index)) for index in range(3)]
    jobs[0].gpus = jobs[1].gpus = 1
    view = cluster(jobs, gpus=2, now=30.0)
    assert sizes(Gandiva().decide(view)) == {"j0": 1, "j1": 1}  # within their slice
    later = cluster(jobs, gpus=2, now=100.0)
    assert sizes(Gandiva().decide(later)) == {"j2": 1, "j1": 1}  # the one that has run longest makes room


def test_afs_gives_to_the_longer_job_only_what_helps_it_more() -> None:
    # From (1, 1) on 3 GPUs; the step to 2: short gains 1/0.9 - 1 = 0.11 of its speed.
    short, long = table([1.0, 0.9]), table([1.0, 0.55])
    jobs = [job("short", short, 100.0), job("long", long, 10_000.0)]
    # long: (1.818 - 1) / 1.818 = 0.45 > 0.11: long gets it.
    assert sizes(Afs().decide(cluster(jobs, gpus=3))) == {"short": 1, "long": 2}
    # The same curve for both: (p' - p) / p' < (p' - p) / p, so the shorter one gets it.
    jobs = [job("short", long, 100.0), job("long", long, 10_000.0)]
    assert sizes(Afs().decide(cluster(jobs, gpus=3))) == {"short": 2, "long": 1}
    # One GPU for two jobs: the shorter first.
    assert sizes(Afs().decide(cluster(jobs, gpus=1))) == {"short": 1}


def test_afs_does_not_grow_what_would_slow_down() -> None:
    assert sizes(Afs().decide(cluster([job("flat", table([1.0, 1.0, 0.5]))]))) == {"flat": 1}


def test_pollux_levels_speedups_and_counts_restarts() -> None:
    good, bad = table([1.0, 0.5, 0.25]), table([1.0, 0.9, 0.85])
    jobs = [job("good", good), job("bad", bad)]
    assert sizes(Pollux().decide(cluster(jobs, gpus=5))) == {"good": 4, "bad": 1}
    # bad has just got its two GPUs; giving one back would cost more than it brings while nobody needs it.
    jobs[1].gpus, jobs[1].since_seconds = 1, 990.0
    assert sizes(Pollux().decide(cluster(jobs, gpus=8, now=1000.0)))["bad"] == 1


def test_pollux_measures_speedups_by_the_fair_share() -> None:
    # Two jobs on 6 GPUs: 2 is the size within a fair share of 3.
    steep, flat = job("steep", table([1.0, 0.1, 0.06])), job("flat", table([1.0, 0.8, 0.75]))
    assert slowness_rows(cluster([steep, flat]), steep, 3.0) == pytest.approx([10.0, 1.0, 0.6])
    # Both get 2. Of the last two GPUs steep makes 1 - 0.6, flat 1 - 0.9375; by seconds on one GPU it would be 0.04
    # and 0.05, and flat's.
    assert sizes(Pollux().decide(cluster([steep, flat], gpus=6))) == {"steep": 4, "flat": 2}


@given(
    costs=st.lists(
        st.dictionaries(st.sampled_from([1, 2, 4]), st.floats(0.1, 1.5), min_size=1, max_size=3), min_size=1, max_size=4
    ),
    gpus=st.integers(0, 9),
)
def test_sia_assigns_as_well_as_any(costs: list[dict[int, float]], gpus: int) -> None:
    costs = [dict(sorted(options.items())) for options in costs]

    def total(chosen: tuple[int, ...]) -> float:
        return sum(options[size] if size else WAITING_COST for options, size in zip(costs, chosen, strict=True))

    found = tuple(best_assignment(costs, gpus))
    assert sum(found) <= gpus
    best = min(total(chosen) for chosen in product(*[(0, *options) for options in costs]) if sum(chosen) <= gpus)
    assert math.isclose(total(found), best, abs_tol=1e-9)


def test_sia_grows_at_most_twofold_a_round() -> None:
    one = job("one", table([1.0, 0.5, 0.25, 0.125]), gpus=1)
    assert sizes(Sia().decide(cluster([one], now=1e5))) == {"one": 2}


def test_srtf_lets_the_shortest_take_what_pays() -> None:
    steep = table([1.0, 0.5, 0.26, 0.2])  # doubling gains 100 %, 92 %, 30 %
    jobs = [job("short", steep, 100.0), job("long", steep, 1_000.0)]
    assert sizes(Srtf().decide(cluster(jobs, gpus=6))) == {"short": 4, "long": 2}


def test_zeus_takes_the_clock_of_least_cost() -> None:
    kind = table([1.0])
    costs = [
        0.5 * joules + 0.5 * 300.0 * seconds
        for joules, seconds in zip(kind.joules_rows[0], kind.seconds_rows[0], strict=True)
    ]
    assert zeus_clocks(kind, 300.0) == (costs.index(min(costs)),)
    chosen = Zeus(Tiresias()).decide(cluster([job("one", kind)]))
    assert chosen == [Choice("one", 1, costs.index(min(costs)))]
