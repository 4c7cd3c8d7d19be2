"""Composition of partitions into microbatches: exact, against enumeration of every combination."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from flyball_frontiers.frontier import Frontier, FrontierPoint
from flyball_frontiers.kareus import (
    KernelSchedule,
    Measurement,
    MicrobatchSchedule,
    PartitionChoices,
    microbatch_frontier,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples

CLOCKS = (900, 1410)

measurements = st.builds(Measurement, st.integers(1, 9).map(float), st.integers(50, 80).map(float))
tables = st.dictionaries(
    st.builds(KernelSchedule, st.sampled_from(CLOCKS), st.sampled_from([3, 6]), st.integers(0, 1)),
    measurements,
    min_size=2,
    max_size=8,
)
partition_lists = st.lists(st.tuples(st.integers(1, 3), tables), min_size=1, max_size=3).map(
    lambda drawn: [PartitionChoices(f"p{i}", count, table) for i, (count, table) in enumerate(drawn)]
)
by_clock = st.dictionaries(st.sampled_from(CLOCKS), measurements, max_size=2)


def corners(frontier: Frontier[MicrobatchSchedule]) -> list[tuple[float, float]]:
    return [(point.time_seconds, point.energy_joules) for point in frontier.points]


def enumerated(
    partitions: list[PartitionChoices],
    alone: dict[int, Measurement],
    sequential: dict[int, Measurement],
    static_power: float,
) -> list[tuple[float, float]]:
    """Algorithm 2 as it is printed: every combination of one schedule a partition, at one clock."""
    points = [(m.time_seconds, m.energy_joules) for m in sequential.values()]
    for clock in CLOCKS:
        if alone and clock not in alone:
            continue
        base = alone.get(clock, Measurement(0.0, 0.0))
        choices = [[m for s, m in p.measured.items() if s.clock_megahertz == clock] for p in partitions]
        for combination in itertools.product(*choices):
            pairs = list(zip(partitions, combination, strict=True))
            points.append(
                (
                    base.time_seconds + sum(p.count * m.time_seconds for p, m in pairs),
                    base.energy_joules + sum(p.count * m.energy_joules for p, m in pairs),
                )
            )
    front: list[Any] = []
    for time, energy in sorted(set(points), key=lambda p: (p[0], p[1] - static_power * p[0])):
        if not front or energy - static_power * time < front[-1][1] - static_power * front[-1][0]:
            front.append((time, energy))
    return front


@settings(max_examples=examples(200))
@given(partition_lists, by_clock, by_clock, st.sampled_from([0.0, 1.0, 4.0]))
def test_the_frontier_is_that_of_every_combination(
    partitions: list[PartitionChoices],
    alone: dict[int, Measurement],
    sequential: dict[int, Measurement],
    static_power: float,
) -> None:
    wanted = enumerated(partitions, alone, sequential, static_power)
    if not wanted:
        with pytest.raises(ValueError, match="no clock at which every partition was measured"):
            microbatch_frontier(partitions, alone, sequential, static_power)
        return
    found = microbatch_frontier(partitions, alone, sequential, static_power)
    assert corners(found) == [pytest.approx(pair) for pair in wanted]
    assert found.waiting_power_watts == static_power
    for point in found.points:  # every plan is what it says: its parts add up to its point
        plan = point.plan
        if plan.sequential:
            took = sequential[plan.clock_megahertz]
            assert (took.time_seconds, took.energy_joules) == (point.time_seconds, point.energy_joules)
            continue
        schedules = dict(plan.partitions)
        assert {schedule.clock_megahertz for schedule in schedules.values()} == {plan.clock_megahertz}
        base = alone.get(plan.clock_megahertz, Measurement(0.0, 0.0))
        time = base.time_seconds + sum(p.count * p.measured[schedules[p.name]].time_seconds for p in partitions)
        energy = base.energy_joules + sum(p.count * p.measured[schedules[p.name]].energy_joules for p in partitions)
        assert (time, energy) == pytest.approx((point.time_seconds, point.energy_joules))


@given(partition_lists, by_clock, st.sampled_from([1.0, 4.0]))
def test_nothing_of_the_total_energy_frontier_is_lost_to_the_dynamic_one(
    partitions: list[PartitionChoices], sequential: dict[int, Measurement], static_power: float
) -> None:
    try:
        total = microbatch_frontier(partitions, {}, sequential)
    except ValueError:
        return
    dynamic = microbatch_frontier(partitions, {}, sequential, static_power)
    kept = Frontier.of(FrontierPoint(p.time_seconds, p.energy_joules, p.plan) for p in dynamic.points)
    assert corners(kept) == [pytest.approx(pair) for pair in corners(total)]


def test_small_work_switches_to_sequential_execution() -> None:
    # Section 4.5: where splitting costs more than overlap gains, the unsplit microbatch is on the frontier.
    overlapped = PartitionChoices("p", 4, {KernelSchedule(1410, 6, 0): Measurement(0.003, 2.0)})
    found = microbatch_frontier([overlapped], {1410: Measurement(0.001, 0.5)}, {1410: Measurement(0.012, 8.0)})
    assert [point.plan for point in found.points] == [MicrobatchSchedule(1410)]
    slower = microbatch_frontier([overlapped], {1410: Measurement(0.001, 0.5)}, {1410: Measurement(0.014, 9.0)})
    assert not slower.points[0].plan.sequential


def test_plans_go_through_json() -> None:
    plan = MicrobatchSchedule(1200, (("a", KernelSchedule(1200, 6, 1)), ("b", KernelSchedule(1200, 9, -1, None, 512))))
    assert MicrobatchSchedule.from_json(json.loads(json.dumps(plan.to_json()))) == plan
