"""Schedules against what is known of them in closed form, and graphs that cannot be run."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from flyball_frontiers.pipeline.evaluate import execute
from flyball_frontiers.pipeline.graph import (
    ComputationGraph,
    GraphError,
    Operation,
    graph_from_json,
    graph_to_json,
)
from flyball_frontiers.pipeline.perseus import PerseusPlanner
from flyball_frontiers.pipeline.profile import OperatingPoint, PipelineProfile, ProfileError
from flyball_frontiers.pipeline.schedules import Schedule, early_recompute, interleaved, one_f_one_b, pipeline_graph

SHAPES = [(1, 1), (1, 5), (4, 1), (4, 2), (4, 4), (4, 8), (3, 7), (8, 12)]


def fastest_time(graph: ComputationGraph) -> float:
    points = [min(operation.points, key=lambda point: point.time_seconds) for operation in graph.operations]
    return execute(graph, points, 0.0).time_seconds


@pytest.mark.parametrize(("stages", "microbatches"), SHAPES)
@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.GPIPE])
def test_balanced_pipelines_take_their_known_time(
    made_up: Callable[..., PipelineProfile], schedule: Schedule, stages: int, microbatches: int
) -> None:
    graph = pipeline_graph(made_up(*[1.0] * stages), schedule, microbatches)
    assert len(graph.operations) == 2 * stages * microbatches
    assert fastest_time(graph) == pytest.approx((microbatches + stages - 1) * 3.0)


@pytest.mark.parametrize(("stages", "microbatches"), SHAPES)
def test_1f1b_holds_no_more_activations_than_stages_follow(stages: int, microbatches: int) -> None:
    for stage, program in enumerate(one_f_one_b(stages, microbatches)):
        held, most = 0, 0
        for step in program:
            held += 1 if step.instruction == "forward" else -1
            most = max(most, held)
        assert most == min(stages - stage, microbatches)


@pytest.mark.parametrize(("gpus", "chunks", "microbatches"), [(2, 2, 2), (2, 2, 6), (4, 2, 8), (4, 3, 12), (2, 1, 3)])
def test_interleaving_divides_the_bubble(
    made_up: Callable[..., PipelineProfile], gpus: int, chunks: int, microbatches: int
) -> None:
    parts = gpus * chunks
    graph = pipeline_graph(made_up(*[1.0] * parts), Schedule.INTERLEAVED, microbatches, chunks_per_gpu=chunks)
    assert graph.gpus == gpus
    assert sorted((o.instruction, o.chunk, o.microbatch) for o in graph.operations) == sorted(
        (what, part, microbatch)
        for what in ("forward", "backward")
        for part in range(parts)
        for microbatch in range(microbatches)
    )
    assert all(operation.chunk % gpus == operation.stage for operation in graph.operations)
    # Megatron-LM: work of M x v chunks, and a bubble of (G - 1) chunks instead of (G - 1) x v
    assert fastest_time(graph) == pytest.approx((microbatches * chunks + gpus - 1) * 3.0)


def test_early_recomputation_runs_while_the_gradient_is_on_its_way(made_up: Callable[..., PipelineProfile]) -> None:
    programs = early_recompute(3, 5)
    assert [f"{step.instruction} {step.microbatch}" for step in programs[1]] == [
        "forward 0",
        *("forward 1", "recompute_backward 0", "forward 2", "recompute_backward 1", "forward 3"),
        *("recompute_backward 2", "forward 4", "recompute_backward 3", "recompute 4", "backward 4"),
    ]
    assert {step.instruction for step in programs[2]} == {"forward", "recompute_backward"}
    profile = made_up(1.0, 1.0, 1.0)
    early = pipeline_graph(profile, Schedule.EARLY_RECOMPUTE, 5)
    place = {(o.instruction, o.chunk, o.microbatch): number for number, o in enumerate(early.operations)}
    points = [operation.points[0] for operation in early.operations]
    run = execute(early, points, 0.0)
    # on the way out, stage 1 has recomputed microbatch 4 by the time its gradient arrives, and so has stage 0
    assert run.finishes[place["recompute", 1, 4]] <= run.starts[place["backward", 1, 4]]
    assert run.starts[place["backward", 1, 4]] == run.finishes[place["recompute_backward", 2, 4]]
    late, recomputation = (5 + 3 - 1) * 4.0, 1.0
    assert run.time_seconds == pytest.approx(late - 2 * recomputation)


def test_loading_comes_before_each_forward_where_it_was_measured() -> None:
    header = "stage,instruction,frequency,time,energy\n"
    profile = PipelineProfile.from_csv(
        header + "0,forward,1400,1,9\n0,backward,1400,2,9\n0,load,,0.5,1\n1,forward,1400,1,9\n1,backward,1400,2,9\n"
    )
    graph = pipeline_graph(profile, Schedule.ONE_F_ONE_B, 3)
    assert [graph.operations[place].instruction for place in graph.programs[0]][:4] == [*("load", "forward") * 2]
    assert fastest_time(graph) > fastest_time(
        pipeline_graph(PipelineProfile({k: v for k, v in profile.points.items() if k[1] != "load"}), Schedule.GPIPE, 3)
    )


def test_numbers_that_do_not_fit_are_refused(made_up: Callable[..., PipelineProfile]) -> None:
    profile = made_up(1, 1, 1, 1)
    with pytest.raises(GraphError, match="microbatches must be at least 1, not 0"):
        pipeline_graph(profile, Schedule.ONE_F_ONE_B, 0)
    with pytest.raises(GraphError, match="4 stages do not divide into 3"):
        interleaved(4, 4, 3)
    with pytest.raises(GraphError, match="multiples of its 2 GPUs: 3"):
        pipeline_graph(profile, Schedule.INTERLEAVED, 3, chunks_per_gpu=2)
    with pytest.raises(GraphError, match="only interleaved-1f1b"):
        pipeline_graph(profile, Schedule.GPIPE, 4, chunks_per_gpu=2)
    with pytest.raises(ProfileError, match="stage 1 has no backward rows"):
        pipeline_graph(
            PipelineProfile({key: v for key, v in profile.points.items() if key != (1, "backward")}), Schedule.GPIPE, 2
        )


def test_a_circle_is_spelt_out() -> None:
    points = (OperatingPoint(1.0, 1.0, 1000),)
    operations = tuple(Operation("work", 0, number, points, name=name) for number, name in enumerate("abcd"))
    with pytest.raises(GraphError, match=r"circle: (b -> c -> d -> b|c -> d -> b -> c|d -> b -> c -> d)$"):
        ComputationGraph(operations, ((0,), (1,), (2,), (3,)), ((0, 1), (1, 2), (2, 3), (3, 1)))
    with pytest.raises(GraphError, match="nothing to run"):
        ComputationGraph((), (), ())
    with pytest.raises(GraphError, match="exactly once"):
        ComputationGraph(operations, ((0,), (1,), (2,)), ())
    with pytest.raises(GraphError, match=r"dependency \(0, 9\)"):
        ComputationGraph(operations, ((0,), (1,), (2,), (3,)), ((0, 9),))


def test_a_graph_goes_through_json_and_back(made_up: Callable[..., PipelineProfile]) -> None:
    graph = pipeline_graph(made_up(1.0, 1.3), Schedule.ONE_F_ONE_B, 3)
    again = graph_from_json(json.loads(json.dumps(graph_to_json(graph))))
    assert [o.points for o in again.operations] == [o.points for o in graph.operations]
    assert again.programs == graph.programs
    assert set(again.edges) == set(graph.edges)


def test_a_written_graph_takes_points_from_the_profile_and_its_own(made_up: Callable[..., PipelineProfile]) -> None:
    document = {
        "operations": [
            {"name": "load", "stage": None, "points": [{"time": 0.5, "energy": 2.0}]},
            {"name": "F", "stage": 0, "instruction": "forward", "microbatch": 0},
            {"name": "B", "stage": 0, "instruction": "backward", "microbatch": 0},
        ],
        "dependencies": [["load", "B"]],
    }
    profile = made_up(1.0)
    graph = graph_from_json(document, profile)
    assert graph.operations[1].points == profile.of(0, "forward")
    assert (graph.gpus, set(graph.edges)) == (1, {(0, 2), (1, 2)})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "operations"),
        ({"operations": [{"stage": 0}]}, r"operations\[0\]: wanted an object with a \"name\""),
        ({"operations": [{"name": "a", "stage": -1}]}, r"\(a\): stage -1"),
        ({"operations": [{"name": "a", "stage": 0, "microbatch": "x"}]}, r"\(a\): microbatch 'x'"),
        ({"operations": [{"name": "a", "stage": 0}]}, r"\(a\) has no points"),
        (
            {"operations": [{"name": "a", "stage": 0, "points": [{"frequency": 900, "time": -1, "energy": 2}]}]},
            r"operations\[0\] \(a\), points: row 1 .*time must be",
        ),
        ({"operations": [{"name": "a", "stage": 0, "points": []}]}, r"\(a\), points: the profile has no rows"),
        (
            {"operations": [{"name": "a", "stage": 0, "points": [{"time": 1, "energy": 2}]}] * 2},
            r"operations\[1\]: the name 'a' is taken by \[0\]",
        ),
        (
            {
                "operations": [{"name": "a", "stage": 0, "points": [{"time": 1, "energy": 2}]}],
                "dependencies": [["a", "z"]],
            },
            r"dependencies\[0\] is \['a', 'z'\]",
        ),
        (
            {
                "operations": [
                    {"name": "a", "stage": 0, "points": [{"time": 1, "energy": 2}]},
                    {"name": "b", "stage": 0, "points": [{"time": 1, "energy": 2}]},
                ],
                "dependencies": [["b", "a"]],
            },
            "circle: (a -> b -> a|b -> a -> b)",
        ),
    ],
)
def test_a_wrong_graph_names_the_operation(document: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        graph_from_json(document)


def with_transfers(profile: PipelineProfile, forward: float, backward: float) -> PipelineProfile:
    sent = {
        (stage, name): (OperatingPoint(seconds, 1.0, None),)
        for stage in range(profile.stages)
        for name, seconds in (("send_forward", forward), ("send_backward", backward))
    }
    return PipelineProfile({**profile.points, **sent})


def test_transfers_delay_what_waits_for_them_and_occupy_no_gpu(made_up: Callable[..., PipelineProfile]) -> None:
    plain = made_up(1.0, 1.0, 1.0)
    profile = with_transfers(plain, 0.25, 0.5)
    once = pipeline_graph(profile, Schedule.ONE_F_ONE_B, 1)
    assert fastest_time(once) == pytest.approx(9.0 + 2 * 0.25 + 2 * 0.5)  # two boundaries, there and back
    assert once.gpus == 3
    # GPipe sends while it computes: only the way of the first forward and of the last gradient is seen
    graph = pipeline_graph(profile, Schedule.GPIPE, 6)
    assert fastest_time(graph) == pytest.approx(fastest_time(pipeline_graph(plain, Schedule.GPIPE, 6)) + 1.5)
    points = [min(operation.points, key=lambda point: point.time_seconds) for operation in graph.operations]
    assert execute(graph, points, 0.0).computation_joules == pytest.approx(sum(point.energy_joules for point in points))
    assert sum(operation.stage is None for operation in graph.operations) == 2 * 2 * 6


@pytest.mark.slow
@pytest.mark.parametrize("schedule", list(Schedule))
def test_every_schedule_is_planned_with_transfers(made_up: Callable[..., PipelineProfile], schedule: Schedule) -> None:
    chunks = 2 if schedule is Schedule.INTERLEAVED else 1
    graph = pipeline_graph(with_transfers(made_up(1.0, 1.1, 1.0, 1.2), 0.2, 0.1), schedule, 40, chunks_per_gpu=chunks)
    once, alone = PerseusPlanner(graph, 20.0), PerseusPlanner(graph, 20.0, repeat=False)
    assert once.t_min == pytest.approx(fastest_time(graph))
    for share in (1.0, 1.1):
        plans = [planner.plan(share * once.t_min) for planner in (once, alone)]
        assert plans[0].energy_joules == pytest.approx(plans[1].energy_joules, rel=1e-6)
        assert plans[0].realised_time_seconds <= plans[0].time_seconds
