"""The evaluator against a longest path and against watts integrated over time."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
from flyball_frontiers.pipeline.evaluate import execute, run
from flyball_frontiers.pipeline.graph import ComputationGraph, Operation
from flyball_frontiers.pipeline.profile import OperatingPoint
from hypothesis import given
from hypothesis import strategies as st


@st.composite
def graphs(draw: st.DrawFn) -> ComputationGraph:
    """Up to 12 operations on up to 3 GPUs and none, dependencies always from a lower to a higher number."""
    count = draw(st.integers(1, 12))
    stages = draw(st.lists(st.sampled_from([None, 0, 1, 2]), min_size=count, max_size=count))
    operations = tuple(
        Operation("work", 0, stage, (OperatingPoint(draw(st.integers(1, 9)) / 4, draw(st.integers(0, 50)), 1000),))
        for stage in stages
    )
    pairs = [(before, after) for after in range(count) for before in range(after)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=15, unique=True)) if pairs else []
    programs = (tuple(i for i, stage in enumerate(stages) if stage == gpu) for gpu in range(3) if gpu in stages)
    return ComputationGraph(operations, tuple(programs), tuple(chosen))


@given(graphs(), st.sampled_from([0.0, 3.0, 80.0]))
def test_execution_is_the_longest_path_and_every_gpu_draws_power_to_the_end(
    graph: ComputationGraph, blocking: float
) -> None:
    points = [operation.points[0] for operation in graph.operations]
    execution = execute(graph, points, blocking)
    paths = networkx.DiGraph()
    for place, point in enumerate(points):
        paths.add_edge(("start", place), ("end", place), weight=point.time_seconds)
    for before, after in graph.edges:
        paths.add_edge(("end", before), ("start", after), weight=0.0)
    assert execution.time_seconds == pytest.approx(networkx.dag_longest_path_length(paths))
    joules = sum(point.energy_joules for place, point in enumerate(points) if graph.operations[place].stage is None)
    for program in graph.programs:
        moment = 0.0
        for place in program:
            assert execution.starts[place] >= moment
            joules += blocking * (execution.starts[place] - moment) + points[place].energy_joules
            moment = execution.starts[place] + points[place].time_seconds
        joules += blocking * (execution.time_seconds - moment)
    assert execution.energy_joules == pytest.approx(joules)


@given(graphs())
def test_many_runs_at_once_are_each_run_alone(graph: ComputationGraph) -> None:
    durations = np.random.default_rng(5).uniform(0.1, 2.0, (len(graph.operations), 4))
    together = run(graph, durations)
    for column in range(4):
        alone = run(graph, durations[:, [column]])
        assert all((a[:, column] == b[:, 0]).all() for a, b in zip(together, alone, strict=True))
