"""Plans, look-up tables and searches through JSON and back."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flyball_frontiers.frontier import frontier_from_json
from flyball_frontiers.pipeline import (
    ComputationGraph,
    OperatingPoint,
    Operation,
    PerseusPlanner,
    PipelineProfile,
    PlanCodec,
    Schedule,
    StragglerTable,
    pipeline_graph,
)


def through_json(record: Any) -> Any:
    return json.loads(json.dumps(record, allow_nan=False))


@pytest.mark.parametrize(
    ("schedule", "microbatches", "chunks"),
    [
        (Schedule.ONE_F_ONE_B, 5, 1),
        (Schedule.ONE_F_ONE_B, 100, 1),
        (Schedule.GPIPE, 6, 1),
        (Schedule.INTERLEAVED, 6, 2),
        (Schedule.EARLY_RECOMPUTE, 90, 1),
    ],
)
def test_a_frontier_with_its_plans_comes_back_the_same(
    made_up: Callable[..., PipelineProfile], schedule: Schedule, microbatches: int, chunks: int
) -> None:
    graph = pipeline_graph(made_up(1.0, 1.1, 1.2, 1.0), schedule, microbatches, chunks_per_gpu=chunks)
    frontier = PerseusPlanner(graph, 20.0).frontier(5)
    codec = PlanCodec(graph)
    assert frontier_from_json(frontier.dumps(codec.to_json), PlanCodec(graph).from_json) == frontier


def test_a_steady_state_is_written_once(made_up: Callable[..., PipelineProfile]) -> None:
    sizes = []
    for microbatches in (200, 2000):
        graph = pipeline_graph(made_up(1.0, 1.1, 1.2), Schedule.ONE_F_ONE_B, microbatches)
        planner = PerseusPlanner(graph, 20.0)
        point = planner.plan(1.1 * planner.t_min)
        sizes.append(len(json.dumps(PlanCodec(graph).to_json(point.plan))))
    assert sizes[1] < 1.3 * sizes[0]


def test_what_runs_on_no_gpu_is_kept_too() -> None:
    points = (OperatingPoint(1.0, 10.0, 1400), OperatingPoint(2.0, 9.0, 1000))
    sent = (OperatingPoint(0.5, 1.0, None),)
    graph = ComputationGraph(
        (Operation("work", 0, 0, points), Operation("send", 0, None, sent), Operation("work", 0, 1, points)),
        ((0,), (2,)),
        ((0, 1), (1, 2)),
    )
    plan = PerseusPlanner(graph, 1.0).frontier(3).fastest.plan
    codec = PlanCodec(graph)
    record = through_json(codec.to_json(plan))
    assert record["clocks"]["elsewhere"] == {"send": [[[None], 1]]}
    assert codec.from_json(record) == plan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.pop("joules"), "joules, GPU 0, forward: wanted"),
        (lambda record: record["clocks"].pop("1"), "clocks, GPU 1, forward: wanted"),
        (
            lambda record: record["clocks"]["0"].update(forward=[[[1400], 2]]),
            "clocks, GPU 0, forward: wanted 3 numbers",
        ),
        (lambda record: record["clocks"]["0"].update(forward=[[[7], 3]]), "was not measured at 7 MHz"),
        (
            lambda record: record["seconds"]["0"].update(forward=[[["x"], 3]]),
            "seconds, GPU 0, forward: wanted 3 numbers",
        ),
        (lambda record: record["seconds"]["0"].update(forward=5), "seconds, GPU 0, forward: wanted"),
    ],
)
def test_a_plan_of_another_graph_is_refused(
    made_up: Callable[..., PipelineProfile], change: Callable[[Any], Any], message: str
) -> None:
    graph = pipeline_graph(made_up(1.0, 1.1), Schedule.ONE_F_ONE_B, 3)
    codec = PlanCodec(graph)
    record = through_json(codec.to_json(PerseusPlanner(graph, 20.0).frontier(2).fastest.plan))
    change(record)
    with pytest.raises(ValueError, match=message):
        codec.from_json(record)
    with pytest.raises(ValueError, match="a plan is None"):
        codec.from_json(None)


def test_a_straggler_table_goes_on_where_it_was(made_up: Callable[..., PipelineProfile]) -> None:
    graph = pipeline_graph(made_up(1.0, 1.2), Schedule.ONE_F_ONE_B, 4)
    codec = PlanCodec(graph)
    table = StragglerTable(PerseusPlanner(graph, 20.0).frontier(12))
    table.set_straggler("a", 5.0, 1.1)
    table.set_straggler("b", 9.0, 1.3, now_seconds=1.0)
    again = StragglerTable.from_json(through_json(table.to_json(codec.to_json)), codec.from_json)
    for moment in (0.0, 4.0, 6.0, 11.0):
        assert again.deployment(moment) == table.deployment(moment)
    assert again.set_straggler("b", 0.0, 1.0, now_seconds=12.0) == table.set_straggler("b", 0.0, 1.0, now_seconds=12.0)
    good = table.to_json(codec.to_json)
    for wrong, message in (
        ({}, "needs frontier and stragglers"),
        (good | {"stragglers": {"a": [[1.0, 0.5]]}}, "straggler a: .* degrees at least 1"),
        (good | {"stragglers": {"a": 3}}, "straggler a: 3 must be"),
    ):
        with pytest.raises(ValueError, match=message):
            StragglerTable.from_json(wrong, codec.from_json)


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).parents[3] / "examples" / "python" / "plan_a_pipeline.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "behind a straggler" in printed
    assert "50 points, the same: True" in printed
