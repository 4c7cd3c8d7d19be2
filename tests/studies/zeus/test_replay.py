"""The replay: its cluster against arithmetic by hand, and Zeus against grid search on a small trace of our own."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from flyball_studies.zeus.replay import (
    Policy,
    ReplayedCluster,
    drift_of,
    recurrences_of_paper,
    replay_bandit,
    replay_default,
    replay_grid_search,
)
from flyball_studies.zeus.study import epoch_costs, replay_seed, study_transfer, summarise
from flyball_studies.zeus.trace import EpochProfile, WorkloadName, WorkloadTrace, read_workload

LIMITS = (100, 150, 200, 250)
EPOCHS: dict[int, tuple[float | None, ...]] = {
    16: (None, None, 30.0),
    32: (14.0, 15.0, 16.0),
    64: (15.0, 16.0, 18.0),
    128: (24.0, 25.0, 27.0),
    256: (None, None, None),
}


def small_trace(scale: float = 1.0, sizes: tuple[int, ...] = tuple(EPOCHS)) -> WorkloadTrace:
    """An epoch takes less time at larger batches and higher limits; a limit above the draw changes nothing."""
    profiles = {}
    for size in sizes:
        draw = 230.0 - 800.0 / size
        profiles[size] = {
            limit: EpochProfile(scale * (60.0 + 900.0 / size) * (draw / min(limit, draw)) ** 0.6, min(limit, draw) - 4)
            for limit in LIMITS
        }
    return WorkloadTrace("small", 128, 40, {size: EPOCHS[size] for size in sizes}, profiles)


TRACE = small_trace()


def test_the_expectations_are_means_over_the_recorded_seeds() -> None:
    profile = TRACE.profiles[32][150]
    assert TRACE.expected(32, 150) == pytest.approx((15 * profile.seconds, 15 * profile.joules))
    assert TRACE.expected_cost(32, 150, 0.5) == pytest.approx(15 * profile.seconds * (0.5 * 146.0 + 0.5 * 250.0))
    assert [TRACE.reliable(size) for size in TRACE.batch_sizes] == [False, True, True, True, False]
    with pytest.raises(ValueError, match="not every recorded run at batch size 16"):
        TRACE.expected(16, 150)
    costs = {(b, p): TRACE.expected_cost(b, p, 0.5) for b in (32, 64, 128) for p in LIMITS}
    assert TRACE.optimum(0.5) == min(costs, key=lambda c: costs[c])


def test_a_run_takes_its_epochs_and_is_stopped_at_its_limit_or_its_last_epoch() -> None:
    cluster, profile = ReplayedCluster(TRACE, 0.5, seed=0), TRACE.profiles[64][200]
    run = cluster.run(64, 200)
    assert run.epochs in EPOCHS[64]
    assert run.time_seconds == pytest.approx(run.epochs * profile.seconds)
    assert run.energy_joules == pytest.approx(run.epochs * profile.joules)
    assert run.cost_joules == pytest.approx(0.5 * run.energy_joules + 0.5 * 250.0 * run.time_seconds)
    assert run.reached
    stopped = cluster.run(64, 200, cost_limit_joules=run.cost_joules / 3)
    assert not stopped.reached
    assert stopped.cost_joules == pytest.approx(run.cost_joules / 3)
    never = cluster.run(256, 200)
    assert (never.reached, never.epochs) == (False, 40.0)


def test_a_profiled_run_costs_the_slices_and_goes_on_at_the_best_limit() -> None:
    cluster = ReplayedCluster(TRACE, 0.5, seed=0)
    run = cluster.run_profiled(64, None)
    by_limit = TRACE.profiles[64]
    best = min(LIMITS, key=lambda limit: 0.5 * by_limit[limit].joules + 0.5 * 250 * by_limit[limit].seconds)
    assert run.power_limit_watts == best
    assert run.reached
    assert run.epochs in EPOCHS[64]
    sliced = [5.0 / by_limit[limit].seconds for limit in LIMITS]  # epochs done in each five seconds
    time = 5.0 * len(LIMITS) + (run.epochs - math.fsum(sliced)) * by_limit[best].seconds
    assert run.time_seconds == pytest.approx(time, rel=1e-6)
    energy = math.fsum(5.0 * by_limit[limit].average_power_watts for limit in LIMITS)
    energy += (run.epochs - math.fsum(sliced)) * by_limit[best].joules
    assert run.energy_joules == pytest.approx(energy, rel=1e-6)


def test_every_policy_faces_the_same_draws() -> None:
    first, second = ReplayedCluster(TRACE, 0.5, seed=3), ReplayedCluster(TRACE, 0.5, seed=3)
    ours = [first.run(64, 100).epochs for _ in range(20)]
    second.run(32, 100)
    theirs = [second.run(64, 250).epochs for _ in range(20)]
    assert ours == theirs
    assert len(set(ours)) > 1


def test_grid_search_tries_every_configuration_that_lives_once_then_repeats_the_cheapest() -> None:
    replay = replay_grid_search(TRACE, 0.5, seed=1, recurrences=recurrences_of_paper(TRACE))
    runs = [run for recurrence in replay.recurrences for run in recurrence.runs]
    tried = [(run.batch_size, run.power_limit_watts) for run in runs]
    reliable = [(size, limit) for size in (128, 32, 64) for limit in sorted(LIMITS, reverse=True)]
    assert [configuration for configuration in dict.fromkeys(tried) if configuration[0] in (32, 64, 128)] == reliable
    assert sum(size == 256 for size, _ in tried) == 1, "a batch size that fails is pruned"
    last = tried[-10:]
    assert len(set(last)) == 1
    cheapest = min((run for run in runs[:20] if run.reached), key=lambda run: run.cost_joules)
    assert last[0] == (cheapest.batch_size, cheapest.power_limit_watts)


def test_a_recurrence_pays_for_what_failed_on_the_way() -> None:
    replay = replay_bandit(Policy.ZEUS, TRACE, 0.5, seed=1, recurrences=12)
    assert all(recurrence.runs[-1].reached for recurrence in replay.recurrences)
    assert all(not run.reached for recurrence in replay.recurrences for run in recurrence.runs[:-1])
    retried = [recurrence for recurrence in replay.recurrences if len(recurrence.runs) > 1]
    assert retried, "pruning meets batch sizes that do not reach the target"
    assert retried[0].cost_joules == pytest.approx(sum(run.cost_joules for run in retried[0].runs))


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_zeus_finds_the_optimum_and_regrets_less_than_grid_search(eta: float) -> None:
    recurrences = recurrences_of_paper(TRACE)
    results = [replay_seed(TRACE, eta, seed) for seed in range(4)]
    study = summarise(TRACE, eta, results)
    zeus, grid = study.summaries[Policy.ZEUS], study.summaries[Policy.GRID_SEARCH]
    assert zeus.regret.shape == (4, recurrences)
    assert study.seeds_of_less_regret(Policy.ZEUS, Policy.GRID_SEARCH) == 4
    assert zeus.final_regret < grid.final_regret
    for result in results:
        tail = [recurrence.runs[-1] for recurrence in result.replays[Policy.ZEUS].recurrences[-20:]]
        counts = {size: sum(run.batch_size == size for run in tail) for size in EPOCHS}
        assert max(counts, key=lambda size: counts[size]) == study.optimum[0]
        assert {run.power_limit_watts for run in tail if run.batch_size == study.optimum[0]} == {study.optimum[1]}
    json.dumps(study.to_json(), allow_nan=False)


def test_regret_is_cost_above_the_best_configuration_summed() -> None:
    replay = replay_default(TRACE, 0.5, seed=0, recurrences=9)
    best = TRACE.expected_cost(*TRACE.optimum(0.5), 0.5)
    wanted = np.cumsum([recurrence.cost_joules - best for recurrence in replay.recurrences])
    assert replay.cumulative_regret() == pytest.approx(wanted)
    assert all(run.power_limit_watts == 250 for recurrence in replay.recurrences for run in recurrence.runs)


def test_a_replay_is_reproducible_and_its_seed_matters() -> None:
    assert (
        replay_bandit(Policy.ZEUS, TRACE, 0.5, 5, 40).recurrences
        == replay_bandit(Policy.ZEUS, TRACE, 0.5, 5, 40).recurrences
    )
    assert (
        replay_bandit(Policy.ZEUS, TRACE, 0.5, 5, 40).recurrences
        != replay_bandit(Policy.ZEUS, TRACE, 0.5, 6, 40).recurrences
    )


def test_carried_costs_save_the_exploration_on_another_gpu() -> None:
    study = study_transfer(TRACE, small_trace(scale=1.7), 0.5, range(4), recurrences=30)
    assert study.carried_regret < study.cold_regret / 2
    costs = epoch_costs(TRACE, 0.5)
    assert costs[64] == pytest.approx(min(0.5 * p.joules + 125.0 * p.seconds for p in TRACE.profiles[64].values()))


def test_a_target_out_of_reach_ends_the_replay_with_a_sentence() -> None:
    hopeless = WorkloadTrace("hopeless", 64, 10, {64: (None,)}, {64: TRACE.profiles[64]})
    with pytest.raises(RuntimeError, match="hopeless: recurrence 0 missed its target 20 times"):
        replay_default(hopeless, 0.5, 0, 3)


def test_tables_are_read_and_what_is_missing_is_said() -> None:
    training = [
        "dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch",
        "d,n,4,o,0.1,1,0.5,9",
        "d,n,8,o,0.1,1,0.5,7",
        "d,n,8,o,0.1,2,0.5,nan",
        "d,n,8,o,0.1,2,0.6,99",
        "d,n,16,o,0.1,1,0.5,5",
        "d,n,512,o,0.1,1,0.5,5",
    ]
    power = ["dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"]
    power += [f"d,n,{size},o,{limit},{600 / size},{limit - 9}" for size in (4, 8, 16, 32) for limit in (100, 200)]
    trace = read_workload(WorkloadName("t", "d", "n", "o", "0.5", 1024, 12), training, power)
    assert trace.epochs == {8: (7.0, None), 16: (5.0,)}
    assert trace.default_batch_size == 16, "the default does not fit: the largest that does"
    assert trace.profiles[8][200] == EpochProfile(75.0, 191.0)
    with pytest.raises(ValueError, match="no row of both tables has dataset d, network x"):
        read_workload(WorkloadName("t", "d", "x", "o", "0.5", 1024, 12), training, power)
    with pytest.raises(ValueError, match="must be the same"):
        WorkloadTrace("t", 8, 9, {8: (1.0,)}, {16: TRACE.profiles[16]})
    with pytest.raises(ValueError, match="same power limits"):
        WorkloadTrace("t", 8, 9, {8: (1.0,), 16: (1.0,)}, {8: TRACE.profiles[16], 16: {100: EpochProfile(1.0, 90.0)}})


def test_grid_search_that_is_stopped_early_regrets_less_and_finds_as_good_a_configuration() -> None:
    recurrences = recurrences_of_paper(TRACE)
    for seed in range(3):
        plain = replay_grid_search(TRACE, 0.5, seed, recurrences)
        stopped = replay_grid_search(TRACE, 0.5, seed, recurrences, stop_factor=2.0)
        assert (plain.policy, stopped.policy) == (Policy.GRID_SEARCH, Policy.GRID_STOPPED)
        assert stopped.cumulative_regret()[-1] < plain.cumulative_regret()[-1]
        chosen = [each.recurrences[-1].runs[-1] for each in (plain, stopped)]
        costs = [TRACE.expected_cost(run.batch_size, run.power_limit_watts, 0.5) for run in chosen]
        assert costs[1] <= 1.1 * costs[0]


def test_after_a_drift_regret_is_against_what_is_best_then() -> None:
    size, limit = TRACE.optimum(0.5)
    drift = drift_of(TRACE, 0.5, 3.0, 60)
    assert drift.first_recurrence == 30
    assert drift.trace.expected(size, limit) == pytest.approx(tuple(3 * each for each in TRACE.expected(size, limit)))
    assert drift.trace.optimum(0.5)[0] != size
    still, moved = (replay_default(TRACE, 0.5, 0, 60, each) for each in (None, drift))
    before, after = (
        TRACE.expected_cost(*TRACE.optimum(0.5), 0.5),
        drift.trace.expected_cost(*drift.trace.optimum(0.5), 0.5),
    )
    steps = np.diff(still.cumulative_regret()) - np.diff(moved.cumulative_regret())
    assert steps[:29] == pytest.approx(0.0)
    assert steps[29:] == pytest.approx(after - before), "the default is not what drifted"
    followed = replay_bandit(Policy.KNOWLEDGE_GRADIENT, TRACE, 0.5, 0, 60, window=10, drift=drift)
    assert followed.recurrences[-1].runs[-1].batch_size != size
