"""The search of one partition: what it asks for, when it stops, and how much of a known frontier it finds."""

from __future__ import annotations

import json
import sys
from functools import partial

import pytest
from flyball_frontiers.frontier import Frontier, FrontierPoint
from flyball_frontiers.kareus import Kernel, KernelSchedule, Measurement, Partition, PartitionSearch, Pass, SearchBudget
from flyball_frontiers.kareus.partition import search_space
from flyball_frontiers.kareus.schedule import clock_choices, communication_sm_choices
from flyball_frontiers.kareus.search import MULTI_PASS, RANDOM_ONLY, SINGLE_ENERGY, SINGLE_TIME, Shares, optimise
from flyball_frontiers.kareus.surrogate import MissingXgboost, predict
from flyball_studies.kareus.model import GpuGroup, measure_partition
from flyball_studies.kareus.table import RecordedTable
from flyball_studies.kareus.table_study import References, search_table, summarise_method

GROUP = GpuGroup(gpus=2)
PARTITION = Partition(
    Kernel("AllReduce", True, memory_seconds=0.0006),
    (
        Kernel("Norm", memory_bound=True, compute_seconds=0.00002, memory_seconds=0.00015),
        Kernel("Linear 1", compute_seconds=0.0005, memory_seconds=0.0001),
        Kernel("Linear 2", compute_seconds=0.0004, memory_seconds=0.0001),
    ),
)
SPACE = search_space(clock_choices(900, 1410, 60), communication_sm_choices(8), range(3))  # 9 x 10 x 3
MEASURE = partial(measure_partition, GROUP, PARTITION)
TABLE = RecordedTable({schedule: MEASURE(schedule) for schedule in SPACE}, 0.0, 0.0)
BUDGET = SearchBudget(initial=30, batches=3, batch_size=20, tolerance=0.0)  # 90 of 270


def search(shares: Shares = MULTI_PASS, seed: int = 0, budget: SearchBudget = BUDGET) -> PartitionSearch:
    return search_table(TABLE, shares, GROUP.static_power_watts, budget, seed)


@pytest.mark.slow
def test_nothing_is_measured_twice_and_the_budget_is_kept() -> None:
    done = search()
    measured = [sample.schedule for sample in done.samples]
    assert len(measured) == len(set(measured)) == BUDGET.most == 90
    assert [sum(sample.batch == batch for sample in done.samples) for batch in range(4)] == [30, 20, 20, 20]
    assert done.done
    assert done.ask() == ()
    assert all(sample.measurement == TABLE.measure(sample.schedule) for sample in done.samples)


def test_a_batch_is_split_between_the_passes_as_appendix_c_says() -> None:
    done = search()
    for batch in (1, 2, 3):
        counts = {why: sum(s.batch == batch and s.found_by is why for s in done.samples) for why in Pass}
        assert [counts[why] for why in (Pass.TOTAL, Pass.DYNAMIC, Pass.STATIC, Pass.UNCERTAINTY)] == [8, 4, 4, 4]
    assert {sample.found_by for sample in done.samples if sample.batch == 0} == {Pass.INITIAL}


@pytest.mark.slow
def test_the_same_seed_asks_the_same_and_another_does_not() -> None:
    first, again, other = search(seed=3), search(seed=3), search(seed=4)
    assert first.samples == again.samples
    assert {s.schedule for s in first.samples} != {s.schedule for s in other.samples}
    begun = PartitionSearch(SPACE, GROUP.static_power_watts, BUDGET, 3)
    assert begun.ask() == begun.ask()


@pytest.mark.slow
def test_most_of_the_frontier_is_found_with_a_third_of_the_measurements_and_sooner_than_without_a_part() -> None:
    seeds = range(3)
    results = {
        name: summarise_method(name, TABLE, [search(shares, seed) for seed in seeds], BUDGET)
        for name, shares in (
            ("multi", MULTI_PASS),
            ("energy", SINGLE_ENERGY),
            ("time", SINGLE_TIME),
            ("random", RANDOM_ONLY),
        )
    }
    assert all(result.measured[:, -1].max() <= len(SPACE) / 3 for result in results.values())
    assert results["multi"].paper[:, -1].min() >= 0.99
    assert results["multi"].near[:, -1].mean() >= 0.97
    for baseline in ("energy", "time", "random"):
        assert results["multi"].near[:, -1].mean() > results[baseline].near[:, -1].mean()
    for result in results.values():
        assert (result.near[:, 1:] >= result.near[:, :-1] - 1e-12).all(), "measuring more never loses frontier"


def test_the_references_are_beyond_the_worst_of_the_table_and_of_its_frontier() -> None:
    references = References.of(TABLE)
    assert references.paper[0] == pytest.approx(1.1 * max(m.time_seconds for m in TABLE.measurements.values()))
    assert references.near[0] == pytest.approx(1.1 * TABLE.frontier.cheapest.time_seconds)
    assert references.near[1] == pytest.approx(1.1 * TABLE.frontier.fastest.energy_joules)


def test_it_stops_when_the_frontier_no_longer_grows() -> None:
    flat = {schedule: Measurement(1.0, 200.0) for schedule in SPACE}
    asked = optimise(SPACE, flat.__getitem__, 100.0, SearchBudget(20, 10, 10), seed=0)
    assert asked.batch - 1 == 2, "two batches without growth are the patience"
    never = optimise(SPACE, flat.__getitem__, 100.0, SearchBudget(20, 4, 10, tolerance=0.0), seed=0)
    assert len(never.samples) == 60


def test_a_space_smaller_than_the_budget_is_measured_whole() -> None:
    small = SPACE[:25]
    done = optimise(small, MEASURE, GROUP.static_power_watts, SearchBudget(10, 9, 10, tolerance=0.0), seed=0)
    assert {sample.schedule for sample in done.samples} == set(small)
    best = Frontier.of(FrontierPoint(m.time_seconds, m.energy_joules, s) for s, m in ((s, MEASURE(s)) for s in small))
    assert [p.plan for p in done.frontier.points] == [p.plan for p in best.points]


def test_the_caller_sees_every_batch() -> None:
    seen: list[int] = []
    optimise(
        SPACE, MEASURE, GROUP.static_power_watts, BUDGET, 0, RANDOM_ONLY, on_batch=lambda s: seen.append(len(s.samples))
    )
    assert seen == [30, 50, 70, 90]


def test_a_measurement_below_the_static_power_is_refused() -> None:
    begun = PartitionSearch(SPACE, 1e6, BUDGET, 0)
    asked = begun.ask()
    with pytest.raises(ValueError, match="static power is of all the partition's GPUs"):
        begun.tell(asked, [MEASURE(schedule) for schedule, _ in asked])
    with pytest.raises(ValueError, match="30 schedules were asked for, 1 measurements came"):
        begun.tell(asked, [Measurement(1.0, 1.0)])


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: PartitionSearch((SPACE[0],), 1.0, BUDGET, 0), "1 candidate schedules"),
        (lambda: PartitionSearch((SPACE[0], SPACE[0]), 1.0, BUDGET, 0), "each once"),
        (lambda: PartitionSearch(SPACE, -1.0, BUDGET, 0), "static power"),
        (lambda: PartitionSearch(SPACE, 1.0, BUDGET, 0, ((Pass.TOTAL, 0.5),)), "together 1"),
        (lambda: SearchBudget(1, 1, 1), "initial >= 2"),
        (lambda: SearchBudget(2, 1, 1, patience=0), "patience >= 1"),
    ],
)
def test_what_is_wrong_is_said(build: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build()  # type: ignore[operator]


def test_without_xgboost_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    done = PartitionSearch(SPACE, GROUP.static_power_watts, BUDGET, 0)
    asked = done.ask()
    with pytest.raises(MissingXgboost, match=r"flyball\[kareus\]"):
        done.tell(asked, [MEASURE(schedule) for schedule, _ in asked]).ask()


def test_surrogates_learn_what_they_are_shown_and_are_unsure_where_they_were_not() -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    seen = rng.uniform(0, 1, (200, 2)).astype(np.float32)
    truth = lambda x: np.exp(1.5 * x[:, 0] - x[:, 1])  # noqa: E731
    unseen = rng.uniform(0, 1, (100, 2)).astype(np.float32)
    found = predict(seen, truth(seen), 2 * truth(seen), unseen, rng)
    assert found.time.shape == (6, 100)
    assert np.median(np.abs(found.time[-1] / truth(unseen) - 1)) < 0.08
    assert np.median(np.abs(found.dynamic_energy[-1] / (2 * truth(unseen)) - 1)) < 0.08
    half = seen[seen[:, 0] < 0.5]
    beyond = predict(half, truth(half), truth(half), unseen, rng)
    error = np.abs(np.log(beyond.time[-1] / truth(unseen)))
    assert error[unseen[:, 0] > 0.6].mean() > 2 * error[unseen[:, 0] < 0.5].mean()
    assert (beyond.uncertainty > 0).any()


def test_schedules_are_hashable_keys() -> None:
    assert TABLE.measure(KernelSchedule(1410, 3, 0)) == MEASURE(SPACE[[*SPACE].index(KernelSchedule(1410, 3, 0))])


def test_a_search_goes_on_from_json_where_it_was() -> None:
    begun = PartitionSearch(SPACE, GROUP.static_power_watts, BUDGET, 5)
    for _ in range(2):
        again = PartitionSearch.from_json(json.loads(json.dumps(begun.to_json(), allow_nan=False)))
        assert again == begun
        asked = begun.ask()
        assert again.ask() == asked
        begun = begun.tell(asked, [MEASURE(schedule) for schedule, _ in asked])
    for missing in ("candidates", "samples", "budget"):
        record = begun.to_json()
        del record[missing]
        with pytest.raises(ValueError, match=f"no search that was written: .*{missing}"):
            PartitionSearch.from_json(record)
