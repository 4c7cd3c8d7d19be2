"""Strategies against each other on a modelled pipeline whose every schedule can be enumerated."""

from __future__ import annotations

import json

import pytest
from flyball_frontiers.kareus.search import SearchBudget
from flyball_studies.kareus.pipeline_study import ModelledPipeline, PipelineStudy, Strategy, study_pipeline


@pytest.fixture(scope="module")
def study_results() -> PipelineStudy:
    pipeline = ModelledPipeline(
        blocks=(2, 2),
        microbatches=4,
        clocks_megahertz=(930, 1020, 1110, 1200, 1290, 1410),
        communication_sms=(3, 6, 12, 24),
    )
    return study_pipeline(pipeline, seed=0, points=25, budget=lambda partition: SearchBudget(20, 2, 10, tolerance=0.0))


@pytest.mark.slow
def test_joint_choice_is_never_worse_than_either_half(study_results: PipelineStudy) -> None:
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


def test_the_search_comes_close_to_the_enumeration_with_a_part_of_its_measurements(
    study_results: PipelineStudy,
) -> None:
    searched, all_of_it = (study_results.results[s] for s in (Strategy.JOINT, Strategy.EXHAUSTIVE))
    assert searched.measurements < all_of_it.measurements / 1.9
    reference = (1.1 * all_of_it.frontier.t_star, 1.1 * all_of_it.frontier.fastest.energy_joules)
    share = searched.frontier.hypervolume(reference) / all_of_it.frontier.hypervolume(reference)
    assert share >= 0.99


def test_the_table_of_strategies_is_told_against_its_baselines(study_results: PipelineStudy) -> None:
    assert study_results.at_full_speed(Strategy.SEQUENTIAL) == (0.0, 0.0)
    assert study_results.iso_time_energy_saved(Strategy.PERSEUS) == pytest.approx(0.0)
    assert study_results.iso_energy_time_saved(Strategy.PERSEUS) == pytest.approx(0.0)
    assert study_results.iso_energy_time_saved(Strategy.SEQUENTIAL) is None, "never so cheap"
    time_saved, energy_saved = study_results.at_full_speed(Strategy.JOINT)
    assert time_saved > 0.05
    assert energy_saved > 0.0
    record = json.loads(json.dumps(study_results.to_json(), allow_nan=False))
    assert set(record) == {strategy.name.lower() for strategy in Strategy}
