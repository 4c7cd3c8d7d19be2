"""A frontier of Kareus as a job's plan: what the client of each stage reads is what was planned, at every point."""

from __future__ import annotations

import json

import pytest
from flyball.pipelines.plan import InvalidPlan, StagePlans
from flyball_frontiers.frontier import Frontier, FrontierPoint
from flyball_frontiers.kareus import KernelSchedule, MicrobatchSchedule, iteration_frontier, kareus_document
from flyball_frontiers.pipeline.profile import BACKWARD, FORWARD

STATIC, STAGES = 100.0, 2
# Two of one clock, which only their kernels tell apart; the last runs one kernel after the other.
CHOICES = (
    (1.0, 400.0, 1410, (("attention", KernelSchedule(1410, 12, 3, 5)), ("mlp", KernelSchedule(1410, 6, 0)))),
    (1.2, 370.0, 1410, (("attention", KernelSchedule(1410, 6, 3)), ("mlp", KernelSchedule(1410, 6, 0)))),
    (1.5, 330.0, 1200, (("attention", KernelSchedule(1200, 3, -1)), ("mlp", KernelSchedule(1200, 3, 1)))),
    (1.9, 285.0, 1005, ()),
)


def microbatches(stage: int) -> Frontier[MicrobatchSchedule]:
    return Frontier.of(
        (
            FrontierPoint(t * (1 + stage / 10), e, MicrobatchSchedule(clock, partitions))
            for t, e, clock, partitions in CHOICES
        ),
        STATIC,
    )


@pytest.mark.parametrize("count", [3, 40])
def test_each_stage_reads_the_clock_and_the_kernels_of_each_of_its_computations(count: int) -> None:
    of_stages = {
        (stage, instruction): microbatches(stage) for stage in range(STAGES) for instruction in (FORWARD, BACKWARD)
    }
    frontier, graph = iteration_frontier(of_stages, count, STATIC, points=12)
    document = json.loads(json.dumps(kareus_document(frontier, graph, STATIC), allow_nan=False))
    assert document["planner"] == "kareus"
    told = set()
    for stage in range(STAGES):
        plans = StagePlans(document, stage)
        assert plans.stages == STAGES
        assert plans.microbatches_fit(count)
        for point in frontier.points:
            plan = plans.at(point.realised_time_seconds)
            assert plan.seconds == pytest.approx(point.realised_time_seconds)
            ran = dict.fromkeys((FORWARD, BACKWARD), 0)
            for place in graph.programs[stage]:
                operation, schedule = graph.operations[place], point.plan.schedules[place]
                number = ran[operation.instruction]
                ran[operation.instruction] += 1
                assert plan.clock_megahertz(operation.instruction, number) == schedule.clock_megahertz
                kernels = plan.kernels(operation.instruction, number)
                assert kernels is not None
                assert {
                    name: (each.communication_sms, each.launch_kernel, each.last_kernel, each.threads_per_block)
                    for name, each in kernels.items()
                } == {
                    name: (each.communication_sms, each.launch_kernel, each.last_kernel, each.threads_per_block)
                    for name, each in schedule.partitions
                }
                told.add(schedule)
            assert plan.kernels(FORWARD, count) is None
            assert plan.kernels("recompute", 0) is None
    assert any(schedule.sequential for schedule in told)
    assert len({schedule.partitions for schedule in told if schedule.clock_megahertz == 1410}) == 2


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        ([], "none of the 0 that are listed"),
        ([{"partitions": [["attention", {"communication_sms": 3}]]}], "KeyError"),
        (
            [
                {
                    "partitions": [
                        [
                            "a",
                            {"communication_sms": -1, "launch_kernel": 0, "last_kernel": None, "threads_per_block": 0},
                        ]
                    ]
                }
            ],
            "no SMs or threads below 0",
        ),
    ],
)
def test_kernels_that_nobody_can_run_by_are_no_plan(kernels: list[object], words: str) -> None:
    of_stages = {
        (stage, instruction): microbatches(stage) for stage in range(STAGES) for instruction in (FORWARD, BACKWARD)
    }
    frontier, graph = iteration_frontier(of_stages, 2, STATIC, points=4)
    with pytest.raises(InvalidPlan, match=words):
        StagePlans(kareus_document(frontier, graph, STATIC) | {"kernels": kernels}, 0)
