"""Hypervolume improvement: against the difference of two hypervolumes, and those against counting cells."""

from __future__ import annotations

import numpy as np
import pytest
from flyball_frontiers.frontier import Frontier, FrontierPoint
from flyball_frontiers.kareus.acquisition import (
    choose_by_improvement,
    frontier_indices,
    hypervolume,
    hypervolume_improvement,
    shortfall,
)
from hypothesis import given
from hypothesis import strategies as st

whole = st.integers(0, 12)
clouds = st.lists(st.tuples(whole, whole), min_size=1, max_size=12).map(lambda c: np.array(c, dtype=float))


@given(clouds, whole, whole)
def test_hypervolume_counts_the_cells_that_are_dominated(cloud: np.ndarray, right: int, top: int) -> None:
    # On whole numbers, the area is the number of unit cells whose lower corner some point dominates.
    cells = sum(any(t <= column and e <= row for t, e in cloud) for column in range(right) for row in range(top))
    assert hypervolume(cloud[:, 0], cloud[:, 1], (float(right), float(top))) == cells


@given(clouds, st.tuples(whole, whole))
def test_it_is_the_frontier_type_s_hypervolume(cloud: np.ndarray, reference: tuple[int, int]) -> None:
    frontier = Frontier.of(FrontierPoint(t, e, None) for t, e in cloud)
    corner = (float(reference[0]), float(reference[1]))
    assert hypervolume(cloud[:, 0], cloud[:, 1], corner) == pytest.approx(frontier.hypervolume(corner))


@given(clouds, clouds, st.tuples(whole, whole))
def test_improvement_is_what_the_union_has_more(
    measured: np.ndarray, candidates: np.ndarray, reference: tuple[int, int]
) -> None:
    corner = (float(reference[0]), float(reference[1]))
    front = frontier_indices(measured[:, 0], measured[:, 1])
    gained = hypervolume_improvement(candidates[:, 0], candidates[:, 1], measured[front, 0], measured[front, 1], corner)
    before = hypervolume(measured[:, 0], measured[:, 1], corner)
    for candidate, gain in zip(candidates, gained, strict=True):
        union = np.vstack([measured, candidate])
        assert gain == pytest.approx(hypervolume(union[:, 0], union[:, 1], corner) - before)


@given(clouds, clouds)
def test_shortfall_is_how_far_a_point_must_move_to_reach_the_frontier(
    measured: np.ndarray, candidates: np.ndarray
) -> None:
    front = measured[frontier_indices(measured[:, 0], measured[:, 1])]
    behind = shortfall(candidates[:, 0], candidates[:, 1], front[:, 0], front[:, 1])
    for (time, energy), distance in zip(candidates, behind, strict=True):
        strictly_dominated = any(t < time and e < energy for t, e in front)
        assert (distance > 0) == strictly_dominated
        if strictly_dominated:
            moved = np.array([time - distance, energy - distance])
            assert not any(t < moved[0] and e < moved[1] for t, e in front)


def test_the_frontier_s_indices_are_in_rising_time_and_falling_energy() -> None:
    time, energy = np.array([3.0, 1.0, 2.0, 1.0, 4.0]), np.array([1.0, 5.0, 3.0, 4.0, 1.0])
    assert frontier_indices(time, energy).tolist() == [3, 2, 0]


def choose(
    time: np.ndarray, energy: np.ndarray, candidates: np.ndarray, wanted: int, taken: frozenset[int]
) -> list[int]:
    return choose_by_improvement(
        time, energy, candidates[None, :, 0], candidates[None, :, 1], np.arange(len(candidates)), wanted, taken
    )


def test_a_batch_is_spread_along_the_frontier_where_one_ranking_would_take_copies() -> None:
    measured = np.array([[10.0, 10.0]])
    # Two copies of the best point, and two ends that win less each: the copy is worth nothing once the first is taken.
    candidates = np.array([[4.0, 4.0], [4.0, 4.0], [2.0, 9.0], [9.0, 2.0]])
    assert choose(measured[:, 0], measured[:, 1], candidates, 3, frozenset()) == [0, 2, 3]
    assert choose(measured[:, 0], measured[:, 1], candidates, 3, frozenset({0})) == [1, 2, 3]


@given(clouds, clouds, st.integers(1, 5))
def test_each_choice_is_the_largest_improvement_there_is_after_the_ones_before(
    measured: np.ndarray, candidates: np.ndarray, wanted: int
) -> None:
    measured, candidates = measured + 1, candidates + 1
    chosen = choose(measured[:, 0], measured[:, 1], candidates, wanted, frozenset())
    assert len(chosen) == len(set(chosen)) == min(wanted, len(candidates))
    reference = (1.1 * measured[:, 0].max(), 1.1 * measured[:, 1].max())
    known = measured
    for index in chosen:
        volumes = {
            other: hypervolume(with_it[:, 0], with_it[:, 1], reference)
            for other in range(len(candidates))
            if other not in chosen[: chosen.index(index)]
            for with_it in [np.vstack([known, candidates[other]])]
        }
        assert volumes[index] == pytest.approx(max(volumes.values()))
        known = np.vstack([known, candidates[index]])


def test_models_that_disagree_are_averaged_and_none_that_improves_falls_back_to_the_nearest() -> None:
    measured = np.array([[5.0, 5.0]])
    # The second model believes in candidate 1 alone; on average it wins most.
    time, energy = np.array([[4.0, 6.0], [4.0, 1.0]]), np.array([[4.0, 6.0], [4.0, 1.0]])
    order = np.arange(2)
    assert choose_by_improvement(measured[:, 0], measured[:, 1], time, energy, order, 1, frozenset()) == [1]
    behind = np.array([[9.0, 9.0], [6.0, 5.5], [5.5, 7.0]])
    assert choose(measured[:, 0], measured[:, 1], behind, 3, frozenset()) == [1, 2, 0]
