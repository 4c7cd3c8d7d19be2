"""Tied steady states, by the network simplex and by HiGHS: the same where one period does, and what it costs where not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.optimize
from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.profile import PipelineProfile
from flyball_frontiers.pipeline.schedules import Schedule, pipeline_graph
from flyball_frontiers.pipeline.solver.relaxation import SolverError, TimeCostProgram
from flyball_frontiers.pipeline.solver.steady import find_layers, middle, tie
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.unequal_pipelines import unequal_pipeline
from tests.support.examples import examples


def programs_of(graph: ComputationGraph, power: float) -> tuple[TimeCostProgram, TimeCostProgram]:
    """In a common period, and drifting."""
    layers = find_layers(graph)
    assert layers is not None
    tied = middle(layers, graph.gpus)
    assert tied is not None
    ties = tie(layers, tied)
    return TimeCostProgram(graph, power, ties), TimeCostProgram(graph, power, ties, drifting=True)


def least_cost_with_one_period(program: TimeCostProgram, time_seconds: float) -> float:
    """The linear program with every copy's dependencies written out: starts, a period, seconds and joules of each cell."""
    graph, cell, lap = program.graph, program.ties.cell, program.ties.lap
    cells = len(program.kinds)
    rows, limits = [], []

    def at_most(limit: float, *terms: tuple[int, float]) -> None:
        row = np.zeros(3 * cells + 1)
        for column, factor in terms:
            row[column] += factor
        rows.append(row)
        limits.append(limit)

    for before, after in {(cell[b], cell[a], lap[b], lap[a]): (b, a) for b, a in graph.edges}.values():
        at_most(
            0.0, (cell[before], 1), (cells + cell[before], 1), (cell[after], -1), (3 * cells, lap[before] - lap[after])
        )
    for place in np.flatnonzero([not successors for successors in graph.successors]):
        at_most(time_seconds, (cell[place], 1), (cells + cell[place], 1), (3 * cells, lap[place]))
    for each, kind in enumerate(program.kinds):
        times, costs = program.curves[kind].hull_times, program.curves[kind].hull_costs
        for slope, time, cost in zip(np.diff(costs) / np.diff(times), times, costs, strict=False):
            at_most(slope * time - cost, (cells + each, slope), (2 * cells + each, -1))
        at_most(-costs[-1], (2 * cells + each, -1))
    bounds = [(0, None)] * cells + list(zip(program.shortest, program.longest, strict=True)) + [(None, None)] * cells
    worth = np.concatenate([np.zeros(2 * cells), program.ties.copies, [0.0]])
    found = scipy.optimize.linprog(worth, np.array(rows), limits, bounds=[*bounds, (0, None)])
    return float(found.fun) if found.success else float("inf")


@settings(max_examples=examples(10))
@given(st.integers(0, 2**32), st.floats(0.02, 1))
def test_the_network_has_the_optimum_of_the_linear_program_with_one_period(seed: int, share: float) -> None:
    graph, power = unequal_pipeline(seed, most_stages=3)
    program = programs_of(graph, power)[0]
    fastest, slowest = program.makespan(program.shortest), program.makespan(program.longest)
    time = fastest + share * (slowest - fastest)
    plan = program.solve(time)
    assert program.makespan(plan.durations) <= time * (1 + 1e-9)
    least = least_cost_with_one_period(program, time)
    if np.isfinite(least):
        waiting = power * graph.gpus * time
        assert plan.cost_joules + waiting == pytest.approx(least + waiting, rel=1e-6)


@settings(max_examples=examples(20))
@given(st.integers(0, 2**32), st.floats(0, 1))
def test_intervals_of_their_own_cost_no_more_than_one_period_for_all(seed: int, share: float) -> None:
    graph, power = unequal_pipeline(seed)
    together, apart = programs_of(graph, power)
    fastest, slowest = together.makespan(together.shortest), together.makespan(together.longest)
    time = fastest + share * (slowest - fastest)
    plans = [program.solve(time) for program in (together, apart)]
    waiting = power * graph.gpus * time
    assert plans[1].cost_joules + waiting <= (plans[0].cost_joules + waiting) * (1 + 1e-7)
    for plan in plans:
        assert together.makespan(plan.durations) <= time * (1 + 1e-6)


@pytest.mark.parametrize("seconds", [(1.0, 1.0, 1.0), (1.0, 1.1, 1.3), (1.2, 1.0, 0.9)])
def test_of_stages_nearly_alike_both_say_the_same(
    made_up: Callable[..., PipelineProfile], seconds: tuple[float, ...]
) -> None:
    profile = made_up(*seconds, clocks=tuple(range(1400, 900, -45)))
    together, apart = programs_of(pipeline_graph(profile, Schedule.ONE_F_ONE_B, 40), 20.0)
    fastest, slowest = together.makespan(together.shortest), together.makespan(together.longest)
    for share in (1.0, 0.6, 0.3, 0.1, 0.01, 0.0):
        time = fastest + share * (slowest - fastest)
        plans = [program.solve(time) for program in (together, apart)]
        assert plans[0].cost_joules == pytest.approx(plans[1].cost_joules, rel=1e-7)
        assert plans[0].layer_seconds == pytest.approx(plans[1].layer_seconds, rel=0.05)


def test_below_the_shortest_iteration_neither_has_a_plan(made_up: Callable[..., PipelineProfile]) -> None:
    for program in programs_of(pipeline_graph(made_up(1.0, 1.2), Schedule.ONE_F_ONE_B, 30), 20.0):
        with pytest.raises(SolverError):
            program.solve(0.9 * program.makespan(program.shortest))
