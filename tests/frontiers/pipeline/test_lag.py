"""Clocks that change late: by hand on small programs, and what planning for it is worth."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flyball_frontiers.pipeline.evaluate import execute
from flyball_frontiers.pipeline.graph import ComputationGraph, Operation
from flyball_frontiers.pipeline.lag import execute_with_lag, plan_with_lag
from flyball_frontiers.pipeline.perseus import PerseusPlanner
from flyball_frontiers.pipeline.profile import OperatingPoint, PipelineProfile
from flyball_frontiers.pipeline.schedules import Schedule, pipeline_graph

FAST, SLOW = OperatingPoint(1.0, 10.0, 1400), OperatingPoint(2.0, 6.0, 1000)


def one_gpu(*points: tuple[OperatingPoint, ...]) -> ComputationGraph:
    operations = tuple(Operation("work", number, 0, each) for number, each in enumerate(points))
    return ComputationGraph(operations, (tuple(range(len(points))),), ())


def test_a_computation_begins_at_the_old_clock() -> None:
    graph = one_gpu((FAST, SLOW), (FAST, SLOW))
    run = execute_with_lag(graph, [FAST, SLOW], 0.0, 0.5)
    # half of the second one's work is done in the 0.5 s at 1400 MHz, the other half takes 1 s at 1000 MHz
    assert run.time_seconds == pytest.approx(1.0 + 0.5 + 1.0)
    assert run.energy_joules == pytest.approx(10.0 + 5.0 + 3.0)
    assert run.clock_changes == (1,)


def test_a_change_that_is_late_for_a_whole_computation_never_comes() -> None:
    graph = one_gpu((FAST, SLOW), (FAST, SLOW), (FAST, SLOW))
    run = execute_with_lag(graph, [FAST, SLOW, FAST], 0.0, 3.0)
    assert run.time_seconds == pytest.approx(3.0)
    assert run.clock_changes == (1,)


def test_a_gap_hides_the_change() -> None:
    points = (FAST, SLOW)
    graph = ComputationGraph(
        (Operation("work", 0, 0, points), Operation("work", 0, 1, (SLOW,)), Operation("work", 1, 0, points)),
        ((0, 2), (1,)),
        ((1, 2),),
    )
    run = execute_with_lag(graph, [FAST, SLOW, SLOW], 5.0, 0.8)  # GPU 0 waits from 1 to 2 s: longer than the lag
    plain = execute(graph, [FAST, SLOW, SLOW], 5.0)
    assert run.time_seconds == pytest.approx(plain.time_seconds)
    assert run.energy_joules == pytest.approx(plain.energy_joules)


def test_what_has_no_clock_changes_none_and_what_was_not_measured_is_taken_from_next_to_it() -> None:
    load = OperatingPoint(0.5, 1.0, None)
    graph = one_gpu((FAST, SLOW), (load,), (OperatingPoint(2.0, 9.0, 1300), SLOW))
    run = execute_with_lag(graph, [FAST, load, SLOW], 0.0, 1.0)
    # asked for when the load ends; a second of the last one at 1300 MHz is half of it
    assert run.time_seconds == pytest.approx(1.0 + 0.5 + 1.0 + 1.0)
    assert run.energy_joules == pytest.approx(10.0 + 1.0 + 4.5 + 3.0)
    with pytest.raises(ValueError, match="clock lag -1"):
        execute_with_lag(graph, [FAST, load, SLOW], 0.0, -1.0)


@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.GPIPE])
def test_without_lag_it_is_the_plain_run(made_up: Callable[..., PipelineProfile], schedule: Schedule) -> None:
    graph = pipeline_graph(made_up(1.0, 1.3, 1.1), schedule, 6)
    planner = PerseusPlanner(graph, 20.0)
    chosen = planner.plan(1.1 * planner.t_min).plan.chosen
    lagged, plain = execute_with_lag(graph, chosen, 20.0, 0.0), execute(graph, chosen, 20.0)
    assert lagged.time_seconds == pytest.approx(plain.time_seconds)
    assert lagged.energy_joules == pytest.approx(plain.energy_joules)
    assert sum(lagged.clock_changes) > 0


@pytest.mark.slow
def test_planning_for_the_lag_keeps_the_time_that_the_plain_plan_misses(
    made_up: Callable[..., PipelineProfile],
) -> None:
    profile = made_up(1.0, 1.3, 1.1, 1.2, clocks=tuple(range(1400, 900, -30)))
    planner = PerseusPlanner(pipeline_graph(profile, Schedule.ONE_F_ONE_B, 12), 20.0, replicas=2)
    kept = missed = 0
    for share in (1.02, 1.05, 1.1, 1.2):
        time = share * planner.t_min
        plain = execute_with_lag(planner.graph, planner.plan(time).plan.chosen, 20.0, 0.2)
        planned = plan_with_lag(planner, time, 0.2)
        missed += plain.time_seconds > time
        kept += planned.execution.time_seconds <= time * (1 + 1e-9)
        assert planned.point.time_seconds <= time
        assert planned.execution.energy_joules >= 2 * plain.energy_joules * 0.9
    assert missed > 0
    assert kept == 4
