"""Pipelines that wait for each other: against enumeration, against one program of all of them, and behind a straggler."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from flyball_frontiers.frontier import Frontier, FrontierPoint
from flyball_frontiers.pipeline.evaluate import execute
from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.group_layout import Group, groups_from_json
from flyball_frontiers.pipeline.groups import SynchronisedGroups, plan_groups
from flyball_frontiers.pipeline.perseus import PerseusPlanner
from flyball_frontiers.pipeline.plan import PipelinePlan
from flyball_frontiers.pipeline.profile import PipelineProfile
from flyball_frontiers.pipeline.schedules import Schedule, pipeline_graph
from flyball_frontiers.pipeline.solver.relaxation import TimeCostProgram
from hypothesis import given
from hypothesis import strategies as st

numbers = st.integers(1, 40).map(float)
measured = st.builds(
    lambda cloud, power: Frontier.of((FrontierPoint(t, e, (t, e)) for t, e in cloud), power),
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6),
    st.integers(0, 3).map(float),
)
several = st.lists(measured, min_size=1, max_size=3).map(lambda each: {str(i): f for i, f in enumerate(each)})


def least_by_trying(frontiers: Mapping[str, Frontier[Any]], degrees: Mapping[str, float], seconds: float) -> float:
    """Joules of the best of all ways to give each group a point, in an iteration of `seconds`; infinite if none is in time.
    A slow group takes its degree times as long, and is counted as it was measured."""
    energies = []
    for points in itertools.product(*(frontier.points for frontier in frontiers.values())):
        total = 0.0
        for (name, frontier), point in zip(frontiers.items(), points, strict=True):
            if degrees.get(name, 1.0) * point.time_seconds > seconds * (1 + 1e-9):
                break
            waited = seconds / degrees.get(name, 1.0) - point.time_seconds
            total += point.energy_joules + frontier.waiting_power_watts * waited
        else:
            energies.append(total)
    return min(energies, default=float("inf"))


@given(several, numbers)
def test_the_groups_frontier_is_the_best_of_all_choices(
    frontiers: dict[str, Frontier[tuple[float, float]]], seconds: float
) -> None:
    together = SynchronisedGroups(frontiers)
    frontier = together.frontier()
    least = least_by_trying(frontiers, {}, seconds)
    if seconds < together.t_min:
        assert least == float("inf")
        with pytest.raises(ValueError, match="the fastest takes"):
            frontier.at(seconds)
    else:
        point = frontier.at(seconds)
        assert frontier.energy_within(point, seconds) == pytest.approx(least, abs=1e-9)
        assert max(each.time_seconds for each in point.plan.values()) == point.realised_time_seconds <= seconds


@given(several, st.lists(st.sampled_from([1.0, 1.1, 1.5, 3.0]), min_size=3, max_size=3), numbers)
def test_behind_stragglers_nothing_is_cheaper_and_no_iteration_shorter(
    frontiers: dict[str, Frontier[tuple[float, float]]], slow: list[float], wanted: float
) -> None:
    degrees = dict(zip(frontiers, slow, strict=False))
    together = SynchronisedGroups(frontiers)
    deployment = together.behind(degrees, wanted)
    seconds = deployment.iteration_seconds
    assert seconds == max(wanted, *(degrees[name] * each.t_min for name, each in frontiers.items()))
    total = sum(
        point.energy_joules + frontiers[name].waiting_power_watts * (seconds / degrees[name] - point.time_seconds)
        for name, point in deployment.points.items()
    )
    assert total == pytest.approx(least_by_trying(frontiers, degrees, seconds), abs=1e-9)


def side_by_side(*graphs: ComputationGraph) -> ComputationGraph:
    """One graph of several that share nothing."""
    operations: list[Any] = []
    programs: list[tuple[int, ...]] = []
    dependencies: list[tuple[int, int]] = []
    for graph in graphs:
        offset = len(operations)
        operations += graph.operations
        programs += [tuple(offset + place for place in program) for program in graph.programs]
        dependencies += [(offset + before, offset + after) for before, after in graph.dependencies]
    return ComputationGraph(tuple(operations), tuple(programs), tuple(dependencies))


@pytest.fixture
def unequal(made_up: Callable[..., PipelineProfile]) -> list[ComputationGraph]:
    """A small quick pipeline, and a long slow one with other clocks."""
    return [
        pipeline_graph(made_up(0.7, 0.8), Schedule.ONE_F_ONE_B, 4),
        pipeline_graph(made_up(0.6, 0.9, 0.7, clocks=(1700, 1500, 1100)), Schedule.GPIPE, 5),
    ]


@pytest.fixture
def planned(unequal: list[ComputationGraph]) -> SynchronisedGroups[PipelinePlan]:
    return plan_groups({str(i): PerseusPlanner(graph, 40.0) for i, graph in enumerate(unequal)}, 25)


def test_groups_need_what_one_program_of_all_of_them_needs(
    unequal: list[ComputationGraph], planned: SynchronisedGroups[PipelinePlan]
) -> None:
    """Pipelines without a dependency between them, and one end: the linear program that knows nothing of groups."""
    both = side_by_side(*unequal)
    program = TimeCostProgram(both, 40.0)
    frontier = planned.frontier()
    assert frontier.t_min == pytest.approx(program.makespan(program.shortest))
    assert frontier.t_star == pytest.approx(program.cheapest().time_seconds)
    assert len(frontier) > 10
    for point in frontier.points:
        joules = program.solve(point.time_seconds).cost_joules + 40.0 * both.gpus * point.time_seconds
        assert point.energy_joules == pytest.approx(joules, rel=1e-7)


def test_what_is_realised_is_what_the_evaluator_says_of_all_together(
    unequal: list[ComputationGraph], planned: SynchronisedGroups[PipelinePlan]
) -> None:
    both = side_by_side(*unequal)
    for point in planned.frontier().points:
        run = execute(both, [chosen for each in point.plan.values() for chosen in each.plan.chosen], 40.0)
        assert run.time_seconds == pytest.approx(point.realised_time_seconds)
        assert run.time_seconds <= point.time_seconds * (1 + 1e-9)
        assert run.energy_joules == pytest.approx(point.realised_energy_joules)


def test_a_straggler_with_time_to_spare_holds_nobody_up(planned: SynchronisedGroups[PipelinePlan]) -> None:
    quick, slow = sorted(planned.frontiers, key=lambda name: planned.frontiers[name].t_min)
    room = planned.t_min / planned.frontiers[quick].t_min
    assert room > 1.2
    before, within = planned.behind({}), planned.behind({quick: 1.15})
    assert within.iteration_seconds == before.iteration_seconds == pytest.approx(planned.t_min)
    assert within.points[quick].time_seconds < before.points[quick].time_seconds
    assert within.points[slow] == before.points[slow]
    beyond = planned.behind({quick: 1.1 * room})
    assert beyond.iteration_seconds == pytest.approx(1.1 * planned.t_min)
    assert beyond.points[slow].realised_energy_joules < before.points[slow].realised_energy_joules


def test_equal_groups_are_as_one_with_more_replicas(unequal: list[ComputationGraph]) -> None:
    twice = plan_groups({name: PerseusPlanner(unequal[0], 40.0) for name in "ab"}, 12).frontier()
    once = PerseusPlanner(unequal[0], 40.0, replicas=2)
    assert twice.t_star == pytest.approx(once.t_star)
    for point in twice.points:
        assert point.energy_joules == pytest.approx(once.relaxed(point.time_seconds).energy_joules, rel=1e-7)


def test_progress_counts_to_the_end(unequal: list[ComputationGraph]) -> None:
    seen: list[tuple[int, int]] = []
    plan_groups({"only": PerseusPlanner(unequal[0], 40.0)}, 8, lambda done, of: seen.append((done, of)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


def test_what_cannot_be_planned_is_refused(planned: SynchronisedGroups[PipelinePlan]) -> None:
    with pytest.raises(ValueError, match="no group: wanted at least one"):
        SynchronisedGroups({})
    with pytest.raises(ValueError, match="no group 'x', only 0, 1"):
        planned.behind({"x": 2.0})
    with pytest.raises(ValueError, match=r"group 0: degree 0.5 must be finite and at least 1"):
        planned.behind({"0": 0.5})
    with pytest.raises(ValueError, match="at least 2 points, not 1"):
        plan_groups({}, 1)


GROUP = {"name": "a", "profile": "a.csv", "microbatches": 4}


def read(groups: Any, made_up: Callable[..., PipelineProfile]) -> dict[str, Group]:
    return groups_from_json({"groups": groups}, lambda name: made_up(1.0, 1.3))


def test_a_layout_says_what_each_group_runs(made_up: Callable[..., PipelineProfile]) -> None:
    groups = read(
        [GROUP, GROUP | {"name": "b", "schedule": "gpipe", "blocking_power": 50, "pipelines": 3, "tensor_parallel": 2}],
        made_up,
    )
    assert list(groups) == ["a", "b"]
    assert (groups["a"].replicas, groups["a"].gpus, groups["a"].blocking_power_watts) == (1, 2, 0.0)
    assert (groups["b"].replicas, groups["b"].gpus, groups["b"].blocking_power_watts) == (6, 12, 50.0)
    assert groups["b"].graph == pipeline_graph(made_up(1.0, 1.3), Schedule.GPIPE, 4)
    assert groups["b"].planner().replicas == 6


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (None, 'wanted an object with "groups", a list of 1 to 64'),
        ([], 'wanted an object with "groups", a list of 1 to 64'),
        ([GROUP] * 65, "a list of 1 to 64"),
        ([7], r"groups\[0\]: wanted an object with a \"name\""),
        ([GROUP, GROUP], r"groups\[1\]: wanted an object with a \"name\" that no other group has"),
        ([GROUP | {"profile": 7}], r"groups\[0\] \(a\): profile 7 must be the name of a CSV file"),
        ([GROUP | {"microbatches": True}], "microbatches True must be a whole number from 1"),
        ([GROUP | {"pipelines": 0}], "pipelines 0 must be a whole number from 1"),
        ([GROUP | {"blocking_power": float("nan")}], "blocking_power nan must be watts"),
        ([GROUP | {"blocking_power": "7"}], "blocking_power '7' must be watts"),
        ([GROUP | {"blocking_power": 8000}], r"blocking_power 8000: no GPU draws more than 1400 W"),
        ([GROUP | {"schedule": "2f2b"}], "schedule '2f2b' is none of 1f1b, gpipe"),
        ([GROUP | {"schedule": ["1f1b"]}], "is none of 1f1b, gpipe"),
        ([GROUP | {"watts": 1}], "there is no field 'watts', only blocking_power, "),
        ([GROUP | {"microbatches": 10**9}], "are too many to plan"),
        ([GROUP | {"chunks_per_gpu": 3}], "chunks_per_gpu is 3: only interleaved-1f1b runs several"),
    ],
)
def test_a_wrong_layout_names_group_and_field(
    groups: Any, message: str, made_up: Callable[..., PipelineProfile]
) -> None:
    with pytest.raises(ValueError, match=message):
        read(groups, made_up)
