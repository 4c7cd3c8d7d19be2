"""Plans that repeat their steady state: what they lose (nothing), and what they are on real clocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flyball_frontiers.pipeline.evaluate import execute
from flyball_frontiers.pipeline.graph import ComputationGraph, Operation
from flyball_frontiers.pipeline.perseus import PerseusPlanner
from flyball_frontiers.pipeline.profile import OperatingPoint, PipelineProfile
from flyball_frontiers.pipeline.schedules import Schedule, pipeline_graph
from flyball_frontiers.pipeline.solver.relaxation import TimeCostProgram
from flyball_frontiers.pipeline.solver.steady import find_layers, middle, shorten, tie

from benchmarks.unequal_pipelines import unequal_pipeline

PROFILES = Path(__file__).parents[4] / "examples" / "profiles"
SHARES = (0.0, 0.003, 0.1, 0.5)


@pytest.mark.parametrize("seed", range(4))
def test_repeating_the_steady_state_loses_nothing_and_leaves_the_solver_less_to_know(seed: int) -> None:
    """Of any random pipeline it is `test_optimality.py` that says what the planner makes of it."""
    graph, power = unequal_pipeline(seed, most_stages=4)
    layers = find_layers(graph)
    assert layers is not None
    tied = middle(layers, graph.gpus)
    assert tied is not None
    free, repeated = TimeCostProgram(graph, power), TimeCostProgram(graph, power, tie(layers, tied))
    assert len(repeated.kinds) < len(free.kinds)
    fastest, slowest = free.makespan(free.shortest), free.makespan(free.longest)
    assert (repeated.makespan(repeated.shortest), repeated.makespan(repeated.longest)) == (fastest, slowest)
    for share in SHARES:
        time = fastest + share * (slowest - fastest)
        waiting = power * graph.gpus * time
        plan = repeated.solve(time)
        assert plan.cost_joules + waiting == pytest.approx(free.solve(time).cost_joules + waiting, rel=1e-6)
        assert repeated.makespan(plan.durations) <= time * (1 + 1e-6)


@pytest.mark.parametrize("seed", [*range(12), 14352])  # of the last no plan can be repeated as it is rounded
def test_a_repeated_plan_on_real_clocks_keeps_its_time(seed: int) -> None:
    graph, power = unequal_pipeline(seed, most_stages=3)
    planner = PerseusPlanner(graph, power)
    times = [planner.t_min + share * (planner.t_star - planner.t_min) for share in SHARES]
    for point in planner.frontier_at(times).points:
        assert len(point.plan.chosen) == len(point.plan.durations) == len(graph.operations)
        assert all(c in o.points for c, o in zip(point.plan.chosen, graph.operations, strict=True))
        execution = execute(graph, point.plan.chosen, power)
        assert execution.time_seconds == pytest.approx(point.realised_time_seconds, rel=1e-9)
        assert execution.energy_joules == pytest.approx(point.realised_energy_joules, rel=1e-9)
        assert point.realised_time_seconds <= point.time_seconds
        waiting = power * graph.gpus * (point.time_seconds - point.realised_time_seconds)
        assert point.realised_energy_joules + waiting >= point.energy_joules * (1 - 1e-9)


@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.EARLY_RECOMPUTE])
def test_every_whole_layer_has_each_computation_once(
    made_up: Callable[..., PipelineProfile], schedule: Schedule
) -> None:
    graph = pipeline_graph(made_up(1.0, 1.1, 1.2), schedule, 20)
    layers = find_layers(graph)
    assert layers is not None
    assert layers.whole >= 20 - 2 * 3
    for layer in range(layers.first, layers.last + 1):
        inside = [graph.operations[place] for place in np.flatnonzero(layers.layer == layer)]
        back = "b" if schedule is Schedule.ONE_F_ONE_B else "r"
        assert sorted((o.stage, o.instruction[0]) for o in inside) == sorted(
            (stage, first) for stage in range(3) for first in ("f", back)
        )
    spans = {int(layers.layer[after] - layers.layer[before]) for before, after in graph.edges}
    assert spans == {0, 1}


def test_what_does_not_repeat_is_planned_as_it_is(made_up: Callable[..., PipelineProfile]) -> None:
    profile = made_up(1.0, 1.1, 1.0, 1.2)
    for schedule, chunks in ((Schedule.GPIPE, 1), (Schedule.INTERLEAVED, 2)):
        layers = find_layers(pipeline_graph(profile, schedule, 40, chunks_per_gpu=chunks))
        assert layers is None or middle(layers, 4 // chunks) is None
    short = find_layers(pipeline_graph(profile, Schedule.ONE_F_ONE_B, 6))
    assert short is not None
    assert middle(short, 4) is None
    points = (OperatingPoint(1.0, 10.0, 1400),)
    same = ComputationGraph((Operation("work", 0, 0, points), Operation("work", 0, 0, points)), ((0, 1),), ())
    assert find_layers(same) is None


def test_a_layer_with_other_measurements_is_no_part_of_the_steady_state(
    made_up: Callable[..., PipelineProfile],
) -> None:
    graph = pipeline_graph(made_up(1.0, 1.2), Schedule.ONE_F_ONE_B, 40)
    slower = made_up(1.5, 1.5).of(0, "forward")
    changed = ComputationGraph(
        tuple(
            Operation(o.instruction, o.microbatch, o.stage, slower, o.chunk)
            if (o.stage, o.instruction, o.microbatch) == (0, "forward", 10)
            else o
            for o in graph.operations
        ),
        graph.programs,
        graph.dependencies,
    )
    layers = find_layers(changed)
    assert layers is not None
    assert layers.first > 10
    exact, free = PerseusPlanner(changed, 20.0), PerseusPlanner(changed, 20.0, repeat=False)
    time = 1.1 * exact.t_min
    assert exact.plan(time).energy_joules == pytest.approx(free.plan(time).energy_joules, rel=1e-6)


def test_a_shortened_pipeline_is_the_pipeline_of_fewer_microbatches(made_up: Callable[..., PipelineProfile]) -> None:
    profile = made_up(1.0, 1.1, 1.2)
    graph = pipeline_graph(profile, Schedule.ONE_F_ONE_B, 100)
    layers = find_layers(graph)
    assert layers is not None
    tied = middle(layers, 3)
    assert tied is not None
    short = shorten(graph, layers, tied)
    assert short is not None
    assert short.removed_layers % short.block_layers == 0
    fewer = pipeline_graph(profile, Schedule.ONE_F_ONE_B, 100 - short.removed_layers)

    def shape(graph: ComputationGraph) -> tuple[object, ...]:
        return graph.programs, set(graph.dependencies), [(o.stage, o.instruction) for o in graph.operations]

    assert shape(short.graph) == shape(fewer)
    for place, standing in enumerate(short.places.tolist()):
        own, other = graph.operations[place], short.graph.operations[standing]
        assert (own.stage, own.instruction) == (other.stage, other.instruction)


def test_a_thousand_microbatches_cost_no_more_to_plan_than_a_hundred(made_up: Callable[..., PipelineProfile]) -> None:
    """Counted in what the solver has to know, not in seconds; and the energy grows by the same for each microbatch."""
    profile = made_up(1.0, 1.1, 1.2, clocks=tuple(range(1400, 1000, -45)))
    planners = [
        PerseusPlanner(pipeline_graph(profile, Schedule.ONE_F_ONE_B, count), 20.0) for count in (400, 700, 1000)
    ]
    assert len({len(planner._program.kinds) for planner in planners}) == 1
    fastest = [planner.plan(planner.t_min) for planner in planners]
    energies = [point.energy_joules for point in fastest]
    assert energies[2] - energies[1] == pytest.approx(energies[1] - energies[0], rel=1e-9)
    for point, planner in zip(fastest, planners, strict=True):
        assert point.realised_time_seconds <= planner.t_min
        assert point.realised_energy_joules < 1.01 * point.energy_joules


def test_a_repeated_plan_is_judged_by_what_all_copies_of_its_block_cost() -> None:
    """Among others as alone: a faster plan stands in only where it costs less with its block as often as it is repeated."""
    profile = PipelineProfile.from_csv((PROFILES / "gpt3-a100-8-stages.csv").read_text(encoding="utf-8"))
    planner = PerseusPlanner(pipeline_graph(profile, Schedule.ONE_F_ONE_B, 128), 83.64)
    times = np.linspace(1.05, 1.12, 30) * planner.t_min
    together = planner.frontier_at(times.tolist()).points
    for point in together[::3]:
        alone = planner.frontier_at([point.time_seconds]).points[0]
        needed = [
            each.realised_energy_joules + 8 * 83.64 * (each.time_seconds - each.realised_time_seconds)
            for each in (point, alone)
        ]
        assert needed[0] <= needed[1] * 1.0005
