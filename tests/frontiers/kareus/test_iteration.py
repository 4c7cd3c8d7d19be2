"""From microbatches to the iteration, against enumeration on small pipelines."""

from __future__ import annotations

import itertools

import pytest
from flyball_frontiers.frontier import Frontier, FrontierPoint
from flyball_frontiers.kareus import KernelSchedule, MicrobatchSchedule, iteration_frontier
from flyball_frontiers.pipeline.evaluate import execute
from flyball_frontiers.pipeline.profile import BACKWARD, FORWARD

STATIC = 100.0
CHOICES = {
    FORWARD: [(1.0, 400.0, 1410), (1.3, 380.0, 1200), (1.8, 370.0, 1000)],
    BACKWARD: [(2.0, 800.0, 1410), (2.5, 760.0, 1200)],
}


def frontier(instruction: str, stage: int) -> Frontier[MicrobatchSchedule]:
    return Frontier.of(
        (
            FrontierPoint(t * (1 + stage / 10), e, MicrobatchSchedule(clock, (("p", KernelSchedule(clock, stage, 0)),)))
            for t, e, clock in CHOICES[instruction]
        ),
        STATIC,
    )


def test_plans_are_real_schedules_that_take_what_they_say_and_beat_no_enumeration() -> None:
    microbatches = {(s, i): frontier(i, s) for s in range(2) for i in (FORWARD, BACKWARD)}
    found, graph = iteration_frontier(microbatches, 2, STATIC, points=25)
    for point in found.points:
        took = execute(graph, point.plan.pipeline.chosen, STATIC)
        assert took.time_seconds == pytest.approx(point.realised_time_seconds)
        assert took.energy_joules == pytest.approx(point.realised_energy_joules)
        assert took.time_seconds <= point.time_seconds * (1 + 1e-9)
        for operation, chosen, schedule in zip(
            graph.operations, point.plan.pipeline.chosen, point.plan.schedules, strict=True
        ):
            assert chosen.clock_megahertz == schedule.clock_megahertz
            assert dict(schedule.partitions)["p"].communication_sms == operation.chunk, "the stage's own schedule"
    everything = [
        execute(graph, combination, STATIC)
        for combination in itertools.product(*(operation.points for operation in graph.operations))
    ]
    for point in found.points:
        within = [e.energy_joules for e in everything if e.time_seconds <= point.time_seconds * (1 + 1e-9)]
        waiting = [
            e.energy_joules + graph.gpus * STATIC * (point.time_seconds - e.time_seconds)
            for e in everything
            if e.time_seconds <= point.time_seconds * (1 + 1e-9)
        ]
        assert point.realised_energy_joules >= min(within) * (1 - 1e-9)
        assert point.energy_joules <= min(waiting) * (1 + 1e-9), "the relaxation is a bound"
    assert found.fastest.realised_time_seconds == pytest.approx(min(e.time_seconds for e in everything))
