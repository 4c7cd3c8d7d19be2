"""AFS-L against its algorithm as printed: all pairs at every step, without any bookkeeping."""

from __future__ import annotations

import math

from flyball_planner.policies.baselines.afs import Afs
from flyball_planner.policies.view import ClusterView, JobView
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.policy_views import cluster, job, table


def as_printed(view: ClusterView) -> dict[str, int]:
    """Algorithm 1 with steps that double, the throughput of one more GPU on the straight line to the next size."""
    given = {one.uid: 0 for one in view.jobs}
    free = view.gpus

    def throughput(one: JobView, gpus: int) -> float:
        return 1.0 / one.performance.seconds_rows[one.performance.position[gpus]][-1] if gpus else 0.0

    def length(one: JobView) -> float:
        gpus = given[one.uid]
        return one.remaining_iterations / throughput(one, gpus) if gpus else math.inf

    def following(one: JobView) -> int:
        return given[one.uid] * 2 or one.performance.sizes[0]

    def one_more(one: JobView) -> float:
        gpus, more = given[one.uid], following(one)
        now = throughput(one, gpus)
        return now + (throughput(one, more) - now) / (more - gpus)

    def open_to() -> list[JobView]:
        rest = [one for one in view.jobs if following(one) in one.performance.position]
        rest = [
            one
            for one in rest
            if following(one) - given[one.uid] <= free and one_more(one) > throughput(one, given[one.uid])
        ]
        alone = sorted(rest, key=lambda one: (one.remaining_iterations / throughput(one, 1), one.uid))
        return sorted(alone, key=length)

    while jobs := open_to():
        best = jobs[0]
        for other in jobs[1:]:
            if not given[best.uid] and not given[other.uid]:
                continue  # the shorter of the two stands before
            now, then = throughput(best, given[best.uid]), one_more(best)
            gain = (then - now) / now if now else math.inf
            if (one_more(other) - throughput(other, given[other.uid])) / one_more(other) > gain:
                best = other
        more = following(best)
        free -= more - given[best.uid]
        given[best.uid] = more
    return {uid: gpus for uid, gpus in given.items() if gpus}


@given(
    curves=st.lists(
        # No 0.5: perfect doublings tie (1 -> 2 against 2 -> 4 GPUs), and rounding would decide.
        st.lists(st.sampled_from([0.45, 0.51, 0.53, 0.6, 0.7, 0.9, 1.1]), max_size=4),
        min_size=1,
        max_size=7,
    ),
    gpus=st.integers(1, 20),
    data=st.data(),
)
@settings(max_examples=examples(200))
def test_shares_are_those_of_the_printed_algorithm(curves: list[list[float]], gpus: int, data: st.DataObject) -> None:
    jobs = []
    for index, factors in enumerate(curves):
        seconds = [1.0 + index / 64]
        for factor in factors:
            seconds.append(seconds[-1] * factor)
        # Irrational and different: no two jobs ever end at the same instant, where either order would be right.
        iterations = data.draw(st.integers(1, 10_000)) + math.sqrt(index + 2) / 8
        jobs.append(job(f"job-{index}", table(seconds), iterations))
    view = cluster(jobs, gpus)
    assert {choice.uid: choice.gpus for choice in Afs().decide(view)} == as_printed(view)


def test_who_is_shorter_depends_on_what_each_has_been_given() -> None:
    # Alone `steep` takes 120 s and `flat` 100 s, so that flat is the shorter one with a GPU each. flat gains 1 / 0.9 - 1
    # = 0.11 by its second GPU, steep 1 - 0.6 = 0.4 of what it then has: steep gets it, and is from now on the one
    # that ends first (72 s). For GPUs 4 and 5 it offers (1 / 0.45 - 1 / 0.6) / (1 / 0.6) / 2 = 0.17 for each, flat 0.1.
    steep, flat = job("steep", table([1.2, 0.72, 0.54]), 100.0), job("flat", table([1.0, 0.9]), 100.0)
    assert {choice.uid: choice.gpus for choice in Afs().decide(cluster([steep, flat], gpus=5))} == {
        "steep": 4,
        "flat": 1,
    }


def test_a_large_step_counts_by_the_gpu() -> None:
    # `wide` goes from 4 to 8 GPUs for 60 % more: 0.15 for each of four GPUs. `narrow`, which ends later, offers
    # 0.35 / 1.35 = 0.26 with its second. What is left then is no step of anybody's.
    wide = job("wide", table([1.0, 0.5, 0.25, 0.15625]), 100.0)
    narrow = job("narrow", table([1.0, 1.0 / 1.35]), 10_000.0)
    assert {choice.uid: choice.gpus for choice in Afs().decide(cluster([wide, narrow], gpus=9))} == {
        "wide": 4,
        "narrow": 2,
    }
