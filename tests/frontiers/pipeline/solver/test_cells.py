"""Pipelines whose steady state is one layer: how short its period can be, and starts that fit every longer one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.profile import PipelineProfile
from flyball_frontiers.pipeline.schedules import Schedule, pipeline_graph
from flyball_frontiers.pipeline.solver.cells import CellGraph, finishes
from flyball_frontiers.pipeline.solver.steady import Ties, find_layers, middle, tie
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.unequal_pipelines import unequal_pipeline
from tests.support.examples import examples


def cells_of(graph: ComputationGraph) -> CellGraph:
    layers = find_layers(graph)
    assert layers is not None
    tied = middle(layers, graph.gpus)
    assert tied is not None
    return CellGraph.of(graph, tie(layers, tied))


@settings(max_examples=examples(20))
@given(st.integers(0, 2**32), st.floats(0, 2))
def test_starts_keep_every_dependency_at_every_longer_period(seed: int, longer: float) -> None:
    graph = unequal_pipeline(seed)[0]
    cells = cells_of(graph)
    durations = np.random.default_rng(seed).integers(1, 1000, len(cells.repeated))
    period = cells.least_period(durations)
    starts = cells.starts(durations, period) + round(longer * period) * cells.growth
    starts += period * cells.growth  # they are given for a period of none
    every = starts[cells.ties.cell] + cells.ties.lap * (period + round(longer * period))
    for before, after in graph.edges:
        assert every[after] >= every[before] + durations[cells.ties.cell[before]]


@settings(max_examples=examples(20))
@given(st.integers(0, 2**32))
def test_the_least_period_is_the_first_that_fits_and_no_stage_does_more_in_it(seed: int) -> None:
    graph = unequal_pipeline(seed)[0]
    cells = cells_of(graph)
    durations = np.random.default_rng(seed).integers(1, 1000, len(cells.repeated))
    period = cells.least_period(durations)
    stages = [graph.operations[place].stage or 0 for place in np.unique(cells.ties.cell, return_index=True)[1].tolist()]
    busiest = np.bincount(stages, durations * cells.repeated)
    assert period >= busiest.max()
    with pytest.raises(ValueError, match=f"follow each other after {period}, not after {period - 1}"):
        cells.starts(durations, period - 1)


def test_stages_alike_work_all_the_time(
    made_up: Callable[..., PipelineProfile],
) -> None:
    """A layer is a forward and a backward of each."""
    graph = pipeline_graph(made_up(1.0, 1.0), Schedule.ONE_F_ONE_B, 30)
    cells = cells_of(graph)
    assert cells.least_period(np.full(len(cells.repeated), 7)) == 14


def test_without_ties_cells_are_operations(made_up: Callable[..., PipelineProfile]) -> None:
    graph = pipeline_graph(made_up(1.0, 1.2), Schedule.GPIPE, 4)
    cells = CellGraph.of(graph, Ties.none(len(graph.operations)))
    durations = np.arange(1, len(graph.operations) + 1)
    assert cells.least_period(durations) == 0
    assert not cells.growth.any()
    assert sorted(zip(cells.before.tolist(), cells.after.tolist(), strict=True)) == list(graph.edges)
    assert (cells.starts(durations, 0) + durations == finishes(graph, durations)).all()
    assert [graph.operations[place].microbatch for place in cells.first] == [0]
    place = cells.place
    assert all(place[before] < place[after] for before, after in graph.edges)
