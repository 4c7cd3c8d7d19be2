"""The study of many days: which days it takes, and that those for tuning are not those of the claim."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flyball_planner.policies.view import Performance
from flyball_simulator.experiments.matrix import Outcome
from flyball_simulator.workloads.source import gpus_for_load
from flyball_simulator.workloads.traces import TraceJob
from flyball_studies.evaluation import days, studies
from flyball_studies.evaluation.lower_bound import BoundJob, Bounds


def day_of(jobs: int, seconds: float) -> list[TraceJob]:
    return [TraceJob(f"job-{index}", 860.0 * index, seconds, 1) for index in range(jobs)]


def test_days_of_small_clusters_are_taken_evenly() -> None:
    small, large, few = day_of(101, 64 * 0.8 * 860.0), day_of(101, 860.0 * 400), day_of(20, 64 * 0.8 * 860.0)
    assert gpus_for_load(small, 0.8, 8) == 64
    known = {day: (small, large, few)[day % 3] for day in range(60)}
    chosen = days.suitable_days(known)
    assert len(chosen) == days.DAYS_OF_A_TRACE
    assert all(day % 3 == 0 for day in chosen)
    assert chosen[0] == 0
    assert chosen[-1] > 40
    assert days.suitable_days({3: small, 1: large}) == [3]
    assert days.suitable_days({}) == []


def test_no_day_is_both_for_tuning_and_for_the_claim() -> None:
    tuning, claim = days.split([4, 8, 15, 16, 23, 42])
    assert (tuning, claim) == ([4, 23], [8, 15, 16, 42])


@pytest.mark.whole_data
def test_every_curve_is_run_on_every_day_of_the_claim(whole_data: Path) -> None:
    loads = studies.Workloads(str(whole_data))
    claim, tuning = (days.Days(loads, str(whole_data), tuning=each) for each in (False, True))
    assert not claim.jobs.keys() & tuning.jobs.keys()
    seeds = [days.TRACES[trace] + day for trace, day in claim.jobs]
    assert len(set(seeds)) == len(seeds), "which tell days apart"
    for trace in days.TRACES:
        cells = claim.cells(trace, 1.5)
        assert {cell.curve for cell in cells} == set(days.CURVES)
        assert all(16 <= cell.settings.gpus <= 128 for cell in cells)
        assert {cell.settings.seed for cell in cells} <= set(seeds)
    assert "| philly | " in claim.clusters()


def test_days_are_counted_and_pooled_over_traces() -> None:
    known = Bounds.of([BoundJob(0.0, 100.0, Performance([1], np.array([[0.5]]), np.array([[500.0]])))], 1)
    loads = studies.Workloads(None)

    def run(seed: int, seconds: dict[str, float]) -> list[Outcome]:
        cells = {
            cell.curve: cell for cell in studies.curves_of(loads, "synthetic", 1.5, seed, ("price", "afs"), days.SWEEPS)
        }
        return [
            Outcome(
                cells[curve],
                {"energy_joules": {"total": 1e6}, "mean_jct_seconds": jct, "p99_jct_seconds": 2 * jct},
            )
            for curve, jct in seconds.items()
        ]

    found = {
        ("philly", 1.5): run(0, {"price": 100.0, "afs": 110.0}),
        ("pai", 1.5): run(1, {"price": 100.0, "afs": 121.0}) + run(2, {"price": 100.0, "afs": 90.0}),
    }
    seeds = {"philly": [0], "pai": [1, 2], days.ALL: [0, 1, 2]}
    bounds = {(trace, 1.5, seed): known for trace, of in seeds.items() for seed in of}
    lines = days.days_table(found, bounds).splitlines()
    rows = {line.split(" |")[0].strip("| "): line for line in lines if line.startswith("| ")}
    assert "| **1.10** | 1 of 1 |" in rows["philly, load 1.5"]
    assert "| 1 of 2 |" in rows["pai, load 1.5"]
    assert "| 2 of 3 |" in rows["all, load 1.5"]
