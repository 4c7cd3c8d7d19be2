"""From microbatches to the iteration: against enumeration on small pipelines, and strategies against each other."""

from __future__ import annotations

import itertools
import json

import pytest
from flyball_planner.frontier import Frontier, FrontierPoint
from flyball_planner.kareus import KernelSchedule, MicrobatchSchedule, iteration_frontier
from flyball_planner.kareus.pipeline_study import ModelledPipeline, Strategy, study_pipeline
from flyball_planner.kareus.search import SearchBudget
from flyball_planner.pipeline.evaluate import execute
from flyball_planner.pipeline.profile import BACKWARD, FORWARD

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


@pytest.fixture(scope="module")
def study_results():  # type: ignore[no-untyped-def]
    pipeline = ModelledPipeline(
        blocks=(2, 2),
        microbatches=4,
        clocks_megahertz=(930, 1020, 1110, 1200, 1290, 1410),
        communication_sms=(3, 6, 12, 24),
    )
    return study_pipeline(pipeline, seed=0, points=25, budget=lambda partition: SearchBudget(20, 2, 10, tolerance=0.0))


def test_joint_choice_is_never_worse_than_either_half(study_results) -> None:  # type: ignore[no-untyped-def]
    joint = study_results.results[Strategy.EXHAUSTIVE].frontier
    for half in (Strategy.SEQUENTIAL, Strategy.PERSEUS, Strategy.KERNELS):
        for point in study_results.results[half].frontier.points:
            # The enumerated space holds every choice of either half, so its bound is below theirs everywhere.
            ours = joint.interpolate(max(point.time_seconds, joint.t_min))
            assert ours <= point.energy_joules * (1 + 5e-3)
    assert joint.t_min < study_results.results[Strategy.PERSEUS].frontier.t_min
    assert study_results.iso_time_energy_saved(Strategy.EXHAUSTIVE) > 0.1
    kernels = study_results.results[Strategy.KERNELS].frontier
    assert (
        joint.at(kernels.fastest.realised_time_seconds).realised_energy_joules < kernels.fastest.realised_energy_joules
    )


def test_the_search_comes_close_to_the_enumeration_with_a_part_of_its_measurements(study_results) -> None:  # type: ignore[no-untyped-def]
    searched, all_of_it = (study_results.results[s] for s in (Strategy.JOINT, Strategy.EXHAUSTIVE))
    assert searched.measurements < all_of_it.measurements / 1.9
    reference = (1.1 * all_of_it.frontier.t_star, 1.1 * all_of_it.frontier.fastest.energy_joules)
    share = searched.frontier.hypervolume(reference) / all_of_it.frontier.hypervolume(reference)
    assert share >= 0.99


def test_the_table_of_strategies_is_told_against_its_baselines(study_results) -> None:  # type: ignore[no-untyped-def]
    assert study_results.at_full_speed(Strategy.SEQUENTIAL) == (0.0, 0.0)
    assert study_results.iso_time_energy_saved(Strategy.PERSEUS) == pytest.approx(0.0)
    assert study_results.iso_energy_time_saved(Strategy.PERSEUS) == pytest.approx(0.0)
    assert study_results.iso_energy_time_saved(Strategy.SEQUENTIAL) is None, "never so cheap"
    time_saved, energy_saved = study_results.at_full_speed(Strategy.JOINT)
    assert time_saved > 0.05
    assert energy_saved > 0.0
    record = json.loads(json.dumps(study_results.to_json(), allow_nan=False))
    assert set(record) == {strategy.name.lower() for strategy in Strategy}
