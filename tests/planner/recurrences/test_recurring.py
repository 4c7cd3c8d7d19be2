"""The batch size of a recurring job: Algorithm 3 step by step, concurrency, early stopping, drift, storage, transfer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flyball_planner.recurrences.pruning import Explored, PruningRound
from flyball_planner.recurrences.recurring import ChoiceRule, Decision, NoBatchSizeReachesTarget, Purpose, RecurringJob
from hypothesis import given
from hypothesis import strategies as st

SIZES = (8, 16, 32, 64, 128, 256)
CONVEX = {8: 400.0, 16: 150.0, 32: 100.0, 64: 110.0, 128: 180.0, 256: 900.0}


def zeus(*arguments: Any, **knobs: Any) -> RecurringJob:
    """A job as in the paper."""
    return RecurringJob(*arguments, **{"choice": ChoiceRule.THOMPSON, "pruning_rounds": 2, **knobs})


def run_once(job: RecurringJob, costs: Mapping[int, float], spread: float = 0.0) -> tuple[RecurringJob, Decision]:
    """One recurrence: its cost is drawn around `costs`, and cut at the limit."""
    job, decision = job.decide()
    rng = np.random.default_rng([99, decision.number])
    cost = costs[decision.batch_size] * (1 + spread * float(rng.uniform(-1, 1)))
    limit = decision.cost_limit_joules or math.inf
    return job.finish(decision.number, min(cost, limit), reached=cost <= limit, epochs=cost / 10), decision


def run_many(
    job: RecurringJob, costs: Mapping[int, float], times: int, spread: float = 0.0
) -> tuple[RecurringJob, list[Decision]]:
    decisions = []
    for _ in range(times):
        job, decision = run_once(job, costs, spread)
        decisions.append(decision)
    return job, decisions


@given(st.sets(st.integers(1, 99), min_size=1, max_size=9), st.data())
def test_a_round_explores_the_run_around_the_default_to_the_first_failures(
    sizes: set[int], data: st.DataObject
) -> None:
    ordered = sorted(sizes)
    default = data.draw(st.sampled_from(ordered))
    reaches = {size: data.draw(st.booleans()) for size in ordered}
    pruning = PruningRound(tuple(ordered), default)
    visited = []
    while (size := pruning.next_batch_size) is not None:
        visited.append(size)
        pruning = pruning.after(Explored(size, float(size), reaches[size]))
        assert PruningRound.from_json(json.loads(json.dumps(pruning.to_json()))) == pruning
    down = [size for size in reversed(ordered) if size <= default]
    up = [size for size in ordered if size > default]
    wanted = []
    for direction in (down, up):
        failures = [index for index, size in enumerate(direction) if not reaches[size]]
        wanted += direction[: failures[0] + 1] if failures else direction
    assert visited == wanted
    assert pruning.survivors == tuple(sorted(size for size in visited if reaches[size]))


def test_two_rounds_of_pruning_then_sampling() -> None:
    job, decisions = run_many(zeus(SIZES, 128, seed=1), CONVEX, 40)
    # Round 1 from 128 down: 8 costs more than twice the least (100 J), so it is stopped; up: 256 is stopped.
    assert [d.batch_size for d in decisions[:6]] == [128, 64, 32, 16, 8, 256]
    # Round 2 from the cheapest survivor, 32; every survivor stays below 2 x 100 J.
    assert [d.batch_size for d in decisions[6:10]] == [32, 16, 64, 128]
    assert {d.purpose for d in decisions[:10]} == {Purpose.EXPLORE}
    assert {d.purpose for d in decisions[10:]} == {Purpose.SAMPLE}
    assert job.arms == (16, 32, 64, 128)
    assert job.best_batch_size == 32
    assert {d.batch_size for d in decisions[-10:]} == {32}, "costs without noise are learnt exactly"


def test_runs_are_stopped_at_twice_the_least_cost_so_far() -> None:
    job, decisions = run_many(zeus(SIZES, 128, seed=1), CONVEX, 12)
    assert decisions[0].cost_limit_joules is None, "nothing is known before the first run"
    assert [d.cost_limit_joules for d in decisions[1:4]] == [360.0, 220.0, 200.0]
    assert all(d.cost_limit_joules == 200.0 for d in decisions[4:])
    stopped = [run for run in job.runs if not run.reached]
    assert [(run.batch_size, run.cost) for run in stopped] == [(8, 200.0), (256, 200.0)]
    unlimited, _ = run_many(zeus(SIZES, 128, seed=1, stop_factor=math.inf), CONVEX, 12)
    assert all(run.reached for run in unlimited.runs)


def test_noisy_costs_are_told_apart_by_sampling_more_where_it_matters() -> None:
    _, decisions = run_many(zeus(SIZES, 128, seed=3), CONVEX, 300, spread=0.2)
    sampled = [d.batch_size for d in decisions if d.purpose is Purpose.SAMPLE]
    assert sampled.count(32) > len(sampled) / 2
    assert sampled[-50:].count(32) >= sampled[:50].count(32)
    assert sampled.count(128) < sampled.count(64) + 5, "clearly worse sizes are given up sooner"


def test_concurrent_submissions_in_pruning_get_the_best_known() -> None:
    job = zeus(SIZES, 128, seed=1)
    job, first = job.decide()
    job, second = job.decide()
    assert (first.purpose, first.batch_size) == (Purpose.EXPLORE, 128)
    assert (second.purpose, second.batch_size) == (Purpose.BEST_KNOWN, 128), "nothing known yet: the default"
    job = job.finish(first.number, 180.0, reached=True, epochs=18.0)
    job, third = job.decide()
    assert (third.purpose, third.batch_size) == (Purpose.EXPLORE, 64)
    job = job.finish(third.number, 110.0, reached=True, epochs=11.0)
    job, fourth = job.decide()
    job, fifth = job.decide()
    assert (fourth.batch_size, fifth.purpose, fifth.batch_size) == (32, Purpose.BEST_KNOWN, 64)
    # The concurrent runs end in any order, and leave the exploration where it was.
    job = job.finish(fifth.number, 111.0, reached=True, epochs=11.1).finish(
        second.number, 179.0, reached=True, epochs=17.9
    )
    assert job.rounds[-1].next_batch_size == 32
    assert job.costs(64) == (110.0, 111.0)
    assert job.costs(128) == (180.0, 179.0)
    assert [d.number for d in job.pending] == [fourth.number]


def test_an_abandoned_exploration_is_repeated() -> None:
    job, first = zeus(SIZES, 128, seed=1).decide()
    job, again = job.abandon(first.number).decide()
    assert (again.batch_size, again.purpose) == (128, Purpose.EXPLORE)
    with pytest.raises(KeyError, match="decision 0 is not out"):
        job.finish(first.number, 1.0, reached=True, epochs=1.0)


def sampling(costs: Mapping[int, float], **knobs: int | None) -> RecurringJob:
    job, _ = run_many(zeus(tuple(costs), max(costs), seed=5, **knobs), costs, 4 * len(costs))
    assert not job.exploring
    return job


def test_a_drift_that_swaps_the_best_is_followed_within_the_window() -> None:
    before, after = {32: 100.0, 64: 120.0, 128: 140.0}, {32: 170.0, 64: 120.0, 128: 90.0}
    job = sampling(before, window=10)
    job, decisions = run_many(job, after, 60, spread=0.05)
    assert decisions[0].batch_size == 32
    assert {d.batch_size for d in decisions[-15:]} == {128}
    assert all(len(job.costs(size)) <= 10 for size in before)


@pytest.mark.parametrize("window", [4, None])
@pytest.mark.parametrize("factor", [3.0, 10.0, 100.0])
def test_a_drift_beyond_the_stop_limit_costs_a_constant_factor_and_ends(factor: float, window: int | None) -> None:
    costs = {32: 100.0, 64: 120.0}
    job = sampling(costs, window=window)
    drifted = {size: factor * cost for size, cost in costs.items()}
    spent = 0.0
    for _ in range(20):
        job, _ = run_once(job, drifted)
        spent += job.runs[-1].cost
        if job.runs[-1].reached:
            break
    assert job.runs[-1].reached, "limits rise until a run is let through"
    assert spent <= 2 * 2 * drifted[64], "what was stopped adds up to a geometric series"
    if window is not None:
        job, decisions = run_many(job, drifted, 30)
        assert decisions[-1].cost_limit_joules == pytest.approx(2 * drifted[32]), "the window forgot the old least cost"


def test_where_nothing_reaches_the_target_it_is_said() -> None:
    job, decision = zeus((16, 32, 64), 32, seed=0).decide()
    job = job.finish(decision.number, 50.0, reached=False, epochs=9.0)
    job, decision = job.decide()
    assert decision.batch_size == 64, "the default failed: down is over, up is tried"
    job = job.finish(decision.number, 50.0, reached=False, epochs=9.0)
    with pytest.raises(NoBatchSizeReachesTarget, match=r"none of the batch sizes \(16, 32, 64\)"):
        job.decide()


def test_a_second_round_that_loses_everything_keeps_the_first_s_survivors() -> None:
    job, _ = run_many(zeus((16, 32), 32, seed=0), {16: 100.0, 32: 110.0}, 2)
    for _ in range(2):
        job, decision = job.decide()
        job = job.finish(decision.number, 200.0, reached=False, epochs=5.0)
    assert job.arms == (16, 32)


@pytest.mark.parametrize("stored", [False, True])
def test_the_same_seed_decides_the_same_and_storage_changes_nothing(stored: bool) -> None:
    def through(job: RecurringJob) -> RecurringJob:
        return RecurringJob.from_json(json.loads(json.dumps(job.to_json()))) if stored else job

    plain, plain_decisions = run_many(zeus(SIZES, 128, seed=11), CONVEX, 60, spread=0.2)
    job, decisions = through(zeus(SIZES, 128, seed=11)), []
    for _ in range(60):
        job, decision = run_once(through(job), CONVEX, spread=0.2)
        decisions.append(decision)
    assert decisions == plain_decisions
    assert through(job) == plain
    _, other = run_many(zeus(SIZES, 128, seed=12), CONVEX, 60, spread=0.2)
    assert [d.batch_size for d in other] != [d.batch_size for d in plain_decisions]


def test_a_decision_can_be_made_again_from_the_same_state() -> None:
    job = sampling({32: 100.0, 64: 101.0, 128: 102.0})
    assert job.decide() == job.decide()


def test_what_is_stored_stays_small() -> None:
    job, _ = run_many(zeus(SIZES, 128, seed=1), CONVEX, 1000, spread=0.2)
    assert len(json.dumps(job.to_json())) < 20_000


def carried(job: RecurringJob, cost: Callable[[int], float], sizes: tuple[int, ...]) -> RecurringJob:
    return job.carried_to({size: cost(size) for size in sizes}, seed=2)


def test_on_another_gpu_costs_are_epochs_times_what_an_epoch_costs_there() -> None:
    job, _ = run_many(zeus(SIZES, 128, seed=1), CONVEX, 40)
    job, unlucky = job.decide()
    job = job.finish(unlucky.number, 200.0, reached=False, epochs=3.0)
    assert unlucky.batch_size in (job.arms or ())
    epoch_costs = {size: 3.0 + size / 100 for size in SIZES}
    there = job.carried_to(epoch_costs, seed=2)
    assert there.arms == job.arms
    for size in (16, 32, 64, 128):
        epochs = [run.epochs for run in job.runs if run.batch_size == size and run.reached]
        assert there.costs(size) == pytest.approx([e * epoch_costs[size] for e in epochs])
    assert all(run.reached for run in there.runs), "a stopped run says nothing about epochs to the target"
    _, decision = there.decide()
    assert decision.purpose is Purpose.SAMPLE
    assert decision.cost_limit_joules == pytest.approx(2 * min(there.costs(32) + there.costs(16) + there.costs(64)))


def test_sizes_that_do_not_fit_there_are_left_and_new_ones_are_tried_first() -> None:
    costs = {16: 150.0, 32: 100.0, 64: 90.0}
    job = sampling(costs)
    smaller = carried(job, lambda size: 1.0, (16, 32))
    assert smaller.arms == (16, 32)
    assert smaller.default_batch_size == 32
    larger = carried(job, lambda size: 1.0, (16, 32, 64, 128, 256))
    assert larger.arms == (16, 32, 64, 128, 256)
    _, decision = larger.decide()
    assert decision.batch_size in (128, 256)
    # 256 was stopped by pruning on the first GPU, so nothing beyond it is worth a try.
    pruned, _ = run_many(zeus(SIZES, 128, seed=1), CONVEX, 40)
    assert carried(pruned, lambda size: 1.0, (*SIZES, 512)).arms == (16, 32, 64, 128)


def test_with_nothing_in_common_exploration_begins_anew() -> None:
    fresh = carried(sampling({16: 150.0, 32: 100.0}), lambda size: 1.0, (4, 8))
    assert fresh.exploring
    assert fresh.runs == ()
    assert fresh.decide()[1].batch_size == 8


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: zeus((8, 16), 32, 0), "default batch size 32 is not one of"),
        (lambda: zeus((), 32, 0), "at least one"),
        (lambda: zeus((8, 8), 8, 0), "each once"),
        (lambda: zeus((8,), 8, 0, stop_factor=1.0), "stop factor 1.0"),
        (lambda: zeus((8,), 8, 0, window=1), "window 1"),
        (lambda: zeus((8,), 8, 0, pruning_rounds=0), "0 rounds"),
        (lambda: zeus((8,), 8, 0).carried_to({}, 0), "at least one batch size"),
        (lambda: zeus((8,), 8, 0).carried_to({8: 0.0}, 0), "positive cost"),
        (lambda: zeus((8,), 8, 0).decide()[0].finish(0, 0.0, reached=True, epochs=1.0), "cost 0.0 J"),
        (lambda: PruningRound((8, 16), 8).after(Explored(16, 1.0, True)), "waits for 8"),
        (lambda: PruningRound((8, 16), 8).following(), "reached the target"),
    ],
)
def test_what_is_wrong_is_said(build: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build()


def test_batch_sizes_may_come_in_any_order() -> None:
    job = zeus((64, 8, 32), 32, seed=0)
    assert job.batch_sizes == (8, 32, 64)
    assert replace(job) == job


def test_one_round_of_pruning_then_what_a_run_teaches_is_weighed_against_what_it_costs() -> None:
    job, decisions = run_many(RecurringJob(SIZES, 128, seed=1), CONVEX, 60, spread=0.05)
    assert [d.batch_size for d in decisions[:6]] == [128, 64, 32, 16, 8, 256]
    assert {d.purpose for d in decisions[6:]} == {Purpose.SAMPLE}
    later = [d.batch_size for d in decisions[6:]]
    assert job.best_batch_size == 32
    assert later.count(32) > 0.8 * len(later)
    assert set(later) <= {32, 64}, "what is clearly dearer is worth no further run"
    assert RecurringJob.from_json(json.loads(json.dumps(job.to_json()))) == job


def test_an_unlucky_first_run_of_the_best_is_found_out() -> None:
    job = RecurringJob((32, 64), 64, seed=0)
    for size, cost in ((64, 103.0), (32, 106.0)):
        job, decision = job.decide()
        assert decision.batch_size == size
        job = job.finish(decision.number, cost, reached=True, epochs=1.0)
    job, decisions = run_many(job, {32: 100.0, 64: 103.0}, 40, spread=0.02)
    assert {d.batch_size for d in decisions[-10:]} == {32}


def test_runs_that_are_out_count_so_that_others_are_tried_beside_them() -> None:
    job, _ = run_many(RecurringJob((32, 64), 64, seed=0), {32: 100.0, 64: 100.4}, 20, spread=0.1)
    chosen = []
    for _ in range(40):
        job, decision = job.decide()
        chosen.append(decision.batch_size)
    assert set(chosen) == {32, 64}


def test_a_drift_is_followed_by_what_a_run_teaches_too() -> None:
    before, after = {32: 100.0, 64: 120.0, 128: 140.0}, {32: 300.0, 64: 150.0, 128: 130.0}
    job, _ = run_many(RecurringJob(tuple(before), 128, seed=5, window=10), before, 20)
    job, decisions = run_many(job, after, 60, spread=0.05)
    assert decisions[0].batch_size == 32
    assert {d.batch_size for d in decisions[-10:]} == {128}
