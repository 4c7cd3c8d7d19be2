"""Perseus against an independent linear program, against enumeration, and on degenerate input."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.optimize
from flyball_frontiers.frontier import frontier_from_json
from flyball_frontiers.pipeline.evaluate import execute
from flyball_frontiers.pipeline.graph import ComputationGraph, Operation
from flyball_frontiers.pipeline.perseus import ENERGY_WEIGHT, PerseusPlanner
from flyball_frontiers.pipeline.plan import PipelinePlan
from flyball_frontiers.pipeline.profile import OperatingPoint, PipelineProfile
from flyball_frontiers.pipeline.schedules import Schedule, pipeline_graph
from flyball_frontiers.pipeline.solver.convex import cost_curve
from flyball_frontiers.pipeline.solver.relaxation import SolverError, TimeCostProgram
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples

HEADER = "stage,instruction,frequency,time,energy\n"


@st.composite
def graphs(draw: st.DrawFn, most_operations: int = 14, most_points: int = 6) -> ComputationGraph:
    """Random DAGs on three GPUs and none; points in any order, dominated and off their hull as they come."""
    count = draw(st.integers(1, most_operations))
    point = st.tuples(st.integers(1, 40), st.integers(0, 60))
    kinds = [
        tuple(
            OperatingPoint(time / 8, energy / 2, 1500 - 15 * place)
            for place, (time, energy) in enumerate(draw(st.lists(point, min_size=1, max_size=most_points)))
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    stages = draw(st.lists(st.sampled_from([None, 0, 1, 2]), min_size=count, max_size=count))
    operations = tuple(Operation("work", 0, stage, draw(st.sampled_from(kinds))) for stage in stages)
    pairs = [(before, after) for after in range(count) for before in range(after)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=2 * count, unique=True)) if pairs else []
    programs = (tuple(i for i, stage in enumerate(stages) if stage == gpu) for gpu in range(3) if gpu in stages)
    return ComputationGraph(operations, tuple(programs), tuple(chosen))


def independent_optimum(graph: ComputationGraph, power: float, time: float) -> float:
    """The relaxation written otherwise: a weight for every measured point, and path times through start and end."""
    points = [
        [(p.time_seconds, p.energy_joules - (0 if o.stage is None else power) * p.time_seconds) for p in o.points]
        for o in graph.operations
    ]
    first = list(itertools.accumulate([0, *(len(each) for each in points)]))
    count, weights = len(points), first[-1]
    costs = np.concatenate([[cost for each in points for _, cost in each], np.zeros(count)])
    equal = np.zeros((count, weights + count))
    rows: list[np.ndarray] = []
    limits: list[float] = []
    for place, each in enumerate(points):
        equal[place, first[place] : first[place + 1]] = 1
        finish = np.zeros(weights + count)
        finish[first[place] : first[place + 1]] = [duration for duration, _ in each]
        finish[weights + place] = 1
        rows.append(finish)
        limits.append(time)
        for after in graph.successors[place]:
            row = finish.copy()
            row[weights + after] -= 1
            rows.append(row)
            limits.append(0.0)
    solution = scipy.optimize.linprog(
        costs, np.array(rows), limits, equal, np.ones(count), bounds=(0, None), method="highs-ipm"
    )
    assert solution.success
    return float(solution.fun) + power * graph.gpus * time


@settings(max_examples=examples(40))
@given(graphs(), st.sampled_from([0.0, 1.0, 8.0]), st.floats(0, 1))
def test_planned_energy_is_the_optimum_of_the_relaxation(graph: ComputationGraph, power: float, share: float) -> None:
    planner = PerseusPlanner(graph, power)
    time = planner.t_min + share * (planner.t_star - planner.t_min)
    wanted = independent_optimum(graph, power, time)
    assert planner.plan(time).energy_joules == pytest.approx(wanted, rel=1e-6, abs=1e-6)
    frontier = planner.frontier(7)
    assert len(frontier) in ({7} if planner.t_star > planner.t_min else {1})
    for point in frontier.points:
        wanted = independent_optimum(graph, power, point.time_seconds)
        assert point.energy_joules == pytest.approx(wanted, rel=1e-6, abs=1e-6)


@settings(max_examples=examples(40))
@given(graphs(), st.sampled_from([0.0, 1.0, 8.0]))
def test_what_is_realised_keeps_its_time_and_is_what_running_it_gives(graph: ComputationGraph, power: float) -> None:
    frontier = PerseusPlanner(graph, power).frontier(9)
    for point in frontier.points:
        busy = sum(t for t, o in zip(point.plan.durations, graph.operations, strict=True) if o.stage is not None)
        planned = point.plan.energies.sum() + power * (graph.gpus * point.time_seconds - busy)
        assert planned == pytest.approx(point.energy_joules, rel=1e-6, abs=1e-6)
        assert all(c in o.points for c, o in zip(point.plan.chosen, graph.operations, strict=True))
        execution = execute(graph, point.plan.chosen, power)
        assert point.realised_time_seconds == pytest.approx(execution.time_seconds)
        assert point.realised_energy_joules == pytest.approx(execution.energy_joules)
        assert point.realised_time_seconds <= point.time_seconds
        waiting = power * graph.gpus * (point.time_seconds - point.realised_time_seconds)
        assert point.realised_energy_joules + waiting >= point.energy_joules - 1e-6


@settings(max_examples=examples(40))
@given(graphs(most_operations=5, most_points=4), st.sampled_from([0.0, 4.0]), st.floats(0, 1))
def test_nothing_beats_the_relaxation_and_the_repair_leaves_no_slack_unused(
    graph: ComputationGraph, power: float, share: float
) -> None:
    planner = PerseusPlanner(graph, power)
    time = planner.t_min + share * (planner.t_star - planner.t_min)
    point = planner.plan(time)

    def energy(chosen: tuple[OperatingPoint, ...]) -> float:
        execution = execute(graph, chosen, power)
        if execution.time_seconds > time:
            return math.inf
        return execution.energy_joules + power * graph.gpus * (time - execution.time_seconds)

    everything = [energy(chosen) for chosen in itertools.product(*(o.points for o in graph.operations))]
    realised = energy(point.plan.chosen)
    assert point.energy_joules - 1e-6 <= min(everything) <= realised + 1e-9
    for place, operation in enumerate(graph.operations):
        for other in operation.points:
            changed = (*point.plan.chosen[:place], other, *point.plan.chosen[place + 1 :])
            assert energy(changed) >= realised - 1e-6, f"{operation.label} could still run at {other}"


@pytest.mark.parametrize("schedule", list(Schedule))
def test_every_schedule_has_a_convex_frontier(made_up: Callable[..., PipelineProfile], schedule: Schedule) -> None:
    chunks = 2 if schedule is Schedule.INTERLEAVED else 1
    graph = pipeline_graph(made_up(1.0, 1.1, 1.0, 1.2), schedule, 6, chunks_per_gpu=chunks)
    planner = PerseusPlanner(graph, 20.0)
    frontier = planner.frontier(40)
    assert (frontier.t_min, frontier.t_star) == (planner.t_min, planner.t_star)
    assert len(frontier) == 40
    effective = [p.energy_joules - frontier.waiting_power_watts * p.time_seconds for p in frontier.points]
    times = [p.time_seconds for p in frontier.points]
    slopes = np.diff(effective) / np.diff(times)
    assert (np.diff(slopes) >= -1e-6 * np.abs(slopes[1:])).all()
    fastest = execute(graph, [o.points[0] for o in graph.operations], 20.0)
    assert frontier.fastest.realised_time_seconds == pytest.approx(fastest.time_seconds)
    assert frontier.fastest.realised_energy_joules < fastest.energy_joules


def test_points_lie_evenly_along_the_curve(made_up: Callable[..., PipelineProfile]) -> None:
    graph = pipeline_graph(made_up(1.0, 1.1, 1.2, clocks=tuple(range(1400, 800, -15))), Schedule.ONE_F_ONE_B, 8)
    frontier = PerseusPlanner(graph, 20.0).frontier(50)
    times = np.array([p.time_seconds for p in frontier.points])
    effective = np.array([p.energy_joules - frontier.waiting_power_watts * p.time_seconds for p in frontier.points])
    steps = np.diff(times) / (times[-1] - times[0])
    steps -= ENERGY_WEIGHT * np.diff(effective) / (effective[0] - effective[-1])
    assert steps.sum() == pytest.approx(1 + ENERGY_WEIGHT)
    assert steps.max() < 3 * steps.mean()


def test_repair_is_worth_more_than_the_papers_rounding(made_up: Callable[..., PipelineProfile]) -> None:
    """Section 4.3 takes the slowest clock no slower than planned; what time that leaves over must not be wasted."""
    graph = pipeline_graph(made_up(1.0, 1.1, 1.05, 1.2, clocks=tuple(range(1400, 800, -45))), Schedule.ONE_F_ONE_B, 8)
    frontier = PerseusPlanner(graph, 20.0).frontier(25)
    rounded, repaired = [], []
    for point in frontier.points:
        paper = [
            max((p for p in o.points if p.time_seconds <= planned * (1 + 1e-6)), key=lambda p: p.time_seconds)
            for o, planned in zip(graph.operations, point.plan.durations, strict=True)
        ]
        execution = execute(graph, paper, 20.0)
        waiting = frontier.waiting_power_watts * (point.time_seconds - execution.time_seconds)
        rounded.append(execution.energy_joules + waiting - point.energy_joules)
        repaired.append(frontier.energy_within(point, point.time_seconds) - point.energy_joules)
    assert all(ours <= theirs + 1e-6 for ours, theirs in zip(repaired, rounded, strict=True))
    assert sum(repaired) < 0.8 * sum(rounded)


def test_at_looks_up_what_frontier_knows(made_up: Callable[..., PipelineProfile]) -> None:
    planner = PerseusPlanner(pipeline_graph(made_up(1.0, 1.3), Schedule.ONE_F_ONE_B, 4), 20.0)
    times = np.linspace(planner.t_min, planner.t_star, 11)
    frontier = planner.frontier_at(times)
    assert [p.time_seconds for p in frontier.points] == pytest.approx(times)
    for time in times:
        assert frontier.at(time) in frontier.points
        assert frontier.at(time).realised_time_seconds <= time
    assert planner.frontier_at([0.0, 1e9]).t_min == planner.t_min
    with pytest.raises(ValueError, match="the fastest takes"):
        planner.plan(planner.t_min * 0.99)


def test_replicas_multiply_energy_and_change_no_clock(made_up: Callable[..., PipelineProfile]) -> None:
    graph = pipeline_graph(made_up(1.0, 1.3), Schedule.ONE_F_ONE_B, 4)
    one, many = PerseusPlanner(graph, 20.0).frontier(5), PerseusPlanner(graph, 20.0, replicas=16).frontier(5)
    for single, replicated in zip(one.points, many.points, strict=True):
        assert replicated.energy_joules == pytest.approx(16 * single.energy_joules)
        assert replicated.realised_energy_joules == pytest.approx(16 * single.realised_energy_joules)
        assert replicated.plan == single.plan
    assert many.waiting_power_watts == 16 * 2 * 20.0
    with pytest.raises(ValueError, match="replicas must be at least 1, not 0"):
        PerseusPlanner(graph, 20.0, replicas=0)
    with pytest.raises(ValueError, match="blocking power must be finite"):
        PerseusPlanner(graph, math.nan)
    with pytest.raises(ValueError, match="at least 2 points"):
        PerseusPlanner(graph, 20.0).frontier(1)


def test_one_stage_has_no_slack_and_slows_what_costs_least() -> None:
    profile = PipelineProfile.from_csv(
        HEADER + "0,forward,1400,1,10\n0,forward,1000,2,6\n0,backward,1400,2,20\n0,backward,1000,4,18\n"
    )
    planner = PerseusPlanner(pipeline_graph(profile, Schedule.ONE_F_ONE_B, 1), 0.0)
    frontier = planner.frontier_at([3, 4, 6])
    assert [(p.energy_joules, p.plan.clocks_megahertz) for p in frontier.points] == [
        (pytest.approx(30), (1400, 1400)),
        (pytest.approx(26), (1000, 1400)),
        (pytest.approx(24), (1000, 1000)),
    ]
    between = planner.plan(5)
    assert (between.energy_joules, between.realised_energy_joules) == (pytest.approx(25), pytest.approx(26))


def test_one_clock_is_one_point() -> None:
    profile = PipelineProfile.from_csv(HEADER + "0,forward,1400,1,10\n0,backward,1400,2,20\n")
    graph = pipeline_graph(profile, Schedule.GPIPE, 3)
    frontier = PerseusPlanner(graph, 5.0).frontier()
    assert [(p.time_seconds, p.energy_joules) for p in frontier.points] == [(9.0, 90.0)]
    assert frontier.at(100).plan.clocks_megahertz == (1400,) * 6
    assert PerseusPlanner(graph, 5.0).plan(20.0).energy_joules == pytest.approx(90)
    assert PerseusPlanner(pipeline_graph(profile, Schedule.ONE_F_ONE_B, 1), 5.0).frontier().t_star == 3.0


def test_repeated_dominated_and_off_hull_points_change_nothing() -> None:
    clean = "0,forward,1400,1,10\n0,forward,1000,2,6\n0,backward,1400,2,20\n0,backward,1000,4,18\n"
    noise = "0,forward,1400,1,10\n0,forward,1300,1.5,12\n0,backward,1300,3,19.9\n0,forward,900,3,7\n"
    planners = [
        PerseusPlanner(pipeline_graph(PipelineProfile.from_csv(HEADER + rows), Schedule.ONE_F_ONE_B, 3), 0.5)
        for rows in (clean, clean + noise)
    ]
    times = np.linspace(planners[0].t_min, planners[0].t_star, 9)
    assert planners[0].t_star == planners[1].t_star
    plain, noisy = (planner.frontier_at(times) for planner in planners)
    assert [p.energy_joules for p in noisy.points] == pytest.approx([p.energy_joules for p in plain.points])


def test_the_program_refuses_what_cannot_be(made_up: Callable[..., PipelineProfile]) -> None:
    program = TimeCostProgram(pipeline_graph(made_up(1.0, 1.0), Schedule.ONE_F_ONE_B, 2), 0.0)
    with pytest.raises(SolverError, match="the shortest iteration takes"):
        program.solve(0.5 * program.makespan(program.shortest))


def test_the_price_of_time_is_the_slope(made_up: Callable[..., PipelineProfile]) -> None:
    program = TimeCostProgram(pipeline_graph(made_up(1.0, 1.2), Schedule.ONE_F_ONE_B, 5), 10.0)
    middle = (program.makespan(program.shortest) + program.makespan(program.longest)) / 2
    below, plan, above = (program.solve(middle + step) for step in (-0.01, 0.0, 0.01))
    assert (above.cost_joules - plan.cost_joules) / 0.01 >= -plan.joules_per_second - 1e-6
    assert (plan.cost_joules - below.cost_joules) / 0.01 <= -plan.joules_per_second + 1e-6


def test_a_frontier_goes_through_json_and_back(made_up: Callable[..., PipelineProfile]) -> None:
    graph = pipeline_graph(made_up(1.0, 1.2), Schedule.ONE_F_ONE_B, 3)
    frontier = PerseusPlanner(graph, 10.0).frontier(6)

    def write(plan: PipelinePlan) -> dict[str, object]:
        planned = {"durations": plan.durations.tolist(), "energies": plan.energies.tolist()}
        return {**planned, "clocks": plan.clocks_megahertz}

    def read(record: dict[str, list[float]]) -> PipelinePlan:
        by_clock = [{p.clock_megahertz: p for p in operation.points} for operation in graph.operations]
        chosen = tuple(points[int(clock)] for points, clock in zip(by_clock, record["clocks"], strict=True))
        return PipelinePlan(np.array(record["durations"]), np.array(record["energies"]), chosen)

    assert frontier_from_json(frontier.dumps(write), read) == frontier


def test_costs_count_blocking_only_on_gpus() -> None:
    points = (OperatingPoint(1.0, 10.0, 1400), OperatingPoint(2.0, 9.0, 1000))
    assert cost_curve(points, 4.0).costs.tolist() == [6.0, 1.0]
    transfer = (OperatingPoint(3.0, 2.0, None),)
    graph = ComputationGraph(
        (Operation("work", 0, 0, points), Operation("send", 0, None, transfer), Operation("work", 0, 1, points)),
        ((0,), (2,)),
        ((0, 1), (1, 2)),
    )
    frontier = PerseusPlanner(graph, 4.0).frontier_at([5, 7])
    # 5 s: both GPUs compute 1 s at 10 J and block 4 s at 4 W, the transfer takes 2 J; then 2 s at 9 J and block 5 s
    assert [p.energy_joules for p in frontier.points] == pytest.approx([2 * (10 + 16) + 2, 2 * (9 + 20) + 2])
    assert [p.realised_energy_joules for p in frontier.points] == pytest.approx([54, 60])
