"""The bound that no policy can pass: by hand, and under every policy on small clusters."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.policies.registry import policy_names
from flyball_planner.policies.view import Performance
from flyball_simulator.engine import simulate
from flyball_simulator.experiments.at_equal_energy import Point
from flyball_simulator.knowledge import decision_clocks
from flyball_simulator.measured.oracle import Oracle
from flyball_simulator.settings import REFERENCE_GPU, SimulationSettings
from flyball_simulator.workloads.workload import SimulatedJob
from flyball_studies.evaluation import lower_bound, tables
from flyball_studies.evaluation.lower_bound import BoundJob, Bounds, LeastJct, LeastJctOnGpus

# One size, two clocks: 2 s and 100 J, or 1 s and 300 J.
TWO = Performance([1], np.array([[2.0, 1.0]]), np.array([[100.0, 300.0]]))
# One or two GPUs, slow or fast; whole iterations in whole seconds, so that schedules can be enumerated.
RATES = np.array([[1.0, 2.0], [2.0, 3.0]])
WATTS = np.array([[100.0, 300.0], [200.0, 600.0]])
SMALL = Performance([1, 2], 1.0 / RATES, WATTS / RATES)


def test_a_job_with_two_clocks_can_be_anywhere_on_the_line_between_them() -> None:
    found = LeastJct([BoundJob(0.0, 10.0, TWO)]).at(np.array([1000.0, 2000.0, 3000.0, 9000.0]))
    assert found == pytest.approx([20.0, 15.0, 10.0, 10.0], rel=0.05), "prices are a grid, so a little below at corners"
    assert (found <= np.array([20.0, 15.0, 10.0, 10.0]) + 1e-9).all()


def test_nobody_meets_an_energy_below_the_least() -> None:
    assert LeastJct([BoundJob(0.0, 10.0, TWO)]).at(np.array([500.0]))[0] > 50.0
    with pytest.raises(ValueError, match="at least one job"):
        LeastJct([])


JOBS = [
    SimulatedJob(f"j{index}", 40.0 * index, 1 << index % 3, model_class, batch, 400.0 * (1 + index % 4))
    for index, (model_class, batch) in enumerate([("vgg16", 64), ("resnet50", 128), ("bert", 64)] * 3)
]


@cache
def _least_costs(joule_price: float) -> tuple[float, float]:
    """Of JOBS on eight GPUs: without and with counting these."""
    gpu = gpu_model_for(REFERENCE_GPU)
    assert gpu is not None
    oracle = Oracle(gpu, decision_clocks(gpu), 8)
    tables = [oracle.performance(job.model_class, job.global_batch_size, 8) for job in JOBS]
    known = [BoundJob(job.submit_seconds, job.iterations, table) for job, table in zip(JOBS, tables, strict=True)]
    alone = sum(
        job.iterations * float((job.performance.seconds + joule_price * job.performance.joules).min()) for job in known
    )
    return alone, LeastJctOnGpus(known, 8).least_cost(joule_price)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [*policy_names(), "afs+zeus"])
def test_no_policy_passes_either(policy: str) -> None:
    result = simulate(JOBS, SimulationSettings(policy=policy, gpus=8, power_off_empty_nodes=True))
    seconds, joules = sum(result.completion_seconds.values()), sum(result.joules.values())
    for joule_price in (0.0, 3e-4):
        alone, together = _least_costs(joule_price)
        assert seconds + joule_price * joules >= together
        assert together > 1.05 * alone > 0.0, "eight GPUs are scarce here, and counting them says more"


@pytest.mark.slow
def test_where_gpus_abound_the_two_are_one() -> None:
    jobs = [BoundJob(10.0 * index, 5.0 + index, SMALL) for index in range(6)]
    joules = np.array([4000.0, 6000.0, 9000.0])
    assert LeastJctOnGpus(jobs, 64).at(joules) == pytest.approx(LeastJct(jobs).at(joules), rel=1e-9)


@pytest.mark.parametrize("count", [2, 5, 20])
def test_jobs_that_come_at_once_to_one_gpu_go_one_after_the_other(count: int) -> None:
    one_clock = Performance([1], np.array([[1.0]]), np.array([[100.0]]))
    jobs = [BoundJob(0.0, 100.0, one_clock)] * count
    best = 100.0 * (count + 1) / 2
    found = LeastJctOnGpus(jobs, 1).least_cost(0.0) / count
    assert 0.96 * best <= found <= best


@pytest.mark.slow
@pytest.mark.parametrize("joule_price", [0.0, 0.002])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_near_the_best_of_all_schedules(seed: int, joule_price: float) -> None:
    drawn = np.random.default_rng(seed)
    jobs = [BoundJob(float(drawn.integers(0, 4)), float(6 * drawn.integers(1, 4)), SMALL) for _ in range(3)]
    best = _least_of_all_schedules(jobs, 2, joule_price)
    found = LeastJctOnGpus(jobs, 2).least_cost(joule_price)
    assert 0.93 * best <= found <= best * (1.0 + 1e-9)


def _least_of_all_schedules(jobs: list[BoundJob], gpus: int, joule_price: float) -> float:
    """The sum of JCTs and priced joules of the best schedule that changes at whole seconds."""
    choices = [(0, 0.0, 0.0)] + [
        (size, RATES[row, clock], WATTS[row, clock]) for row, size in enumerate(SMALL.sizes) for clock in range(2)
    ]

    @cache
    def least(second: int, remaining: tuple[float, ...]) -> float:
        if not any(remaining):
            return 0.0
        present = sum(1 for job, left in zip(jobs, remaining, strict=True) if left and job.submit_seconds <= second)

        def extend(index: int, free: int, joules: float, after: tuple[float, ...]) -> float:
            if index == len(jobs):
                if after == remaining and present:
                    return np.inf  # somebody always works: waiting gains nobody anything
                return present + joule_price * joules + least(second + 1, after)
            if not remaining[index] or jobs[index].submit_seconds > second:
                return extend(index + 1, free, joules, (*after, remaining[index]))
            return min(
                extend(index + 1, free - size, joules + watts, (*after, max(0.0, remaining[index] - rate)))
                for size, rate, watts in choices
                if size <= free
            )

        return extend(0, gpus, 0.0, ())

    return least(0, tuple(job.iterations for job in jobs))


@pytest.mark.slow
def test_more_gpus_never_make_it_worse() -> None:
    jobs = [BoundJob(3.0 * index, 20.0, SMALL) for index in range(12)]
    by_gpus = [LeastJctOnGpus(jobs, gpus).least_cost(0.001) for gpus in (2, 4, 8)]
    assert by_gpus[0] > 1.05 * by_gpus[1] > by_gpus[2]
    with pytest.raises(ValueError, match="at least one job"):
        LeastJctOnGpus([], 8)


@pytest.mark.slow
def test_the_highest_ratios_are_the_others_jct_over_the_bounds() -> None:
    bound = Bounds.of([BoundJob(0.0, 10.0, TWO)] * 2, 1)
    ours = {0: [Point(2000.0, 30.0, 20.0), Point(6000.0, 15.0, 10.0)]}
    theirs = {0: [Point(2000.0, 60.0, 40.0), Point(6000.0, 15.0, 10.0)]}
    alone, together = tables.highest_ratios(ours, theirs, {0: bound}, 0.0)
    assert alone == pytest.approx(3.0, rel=0.05), "each alone takes 20 s at its thriftiest clock"
    assert together == pytest.approx(2.0, rel=0.05), "and one after the other 30 s on average"
    with pytest.raises(ValueError, match="no seed"):
        tables.highest_ratios({0: [Point(5.0, 1.0, 1.0)]}, theirs, {0: bound}, 0.0)


@pytest.mark.slow
def test_where_nodes_stay_on_what_idle_gpus_draw_is_sunk() -> None:
    jobs = [BoundJob(0.0, 10.0, TWO), BoundJob(5.0, 10.0, TWO)]
    on, off = Bounds.of(jobs, 2, sunk_gpu_watts=20.0), Bounds.of(jobs, 2)
    # At the high clock both take 10 s; two GPUs at 20 W for 15 s are 600 J, and 280 W above that for 10 s twice 5,600 J.
    all_fast = np.array([6200.0])
    assert on.sunk_joules == 600.0
    assert on.at(all_fast)[1] == pytest.approx(10.0, rel=1e-6)
    assert on.at(all_fast - 200.0)[1] > 10.0
    assert off.at(all_fast - 200.0)[1] == pytest.approx(10.0, rel=1e-6), "6,000 J where nodes are off"


def test_what_was_found_is_found_again_by_the_next_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, few in {"INTERVALS": 4, "LATER_INTERVALS": 2, "WORTHS": 4, "FINAL_WORTHS": 8, "ASCENTS": 2}.items():
        monkeypatch.setattr(lower_bound, name, few)
    jobs = [BoundJob(float(index), 10.0, SMALL) for index in range(3)]
    joules, kept = np.array([3000.0, 5000.0]), tmp_path / "bounds" / "three.json"
    found = LeastJctOnGpus(jobs, 2, kept).at(joules)
    with monkeypatch.context() as patched:
        patched.setattr(LeastJctOnGpus, "_ascend", None)
        assert (LeastJctOnGpus(jobs, 2, kept).at(joules) == found).all()
    whole = kept.read_text()
    for damaged in (whole[: len(whole) // 2], "[[0, 1.0, [0.0]]]", "{}", "[1]"):
        kept.write_text(damaged)
        assert (LeastJctOnGpus(jobs, 2, kept).at(joules) == found).all()
        assert kept.read_text() == whole
