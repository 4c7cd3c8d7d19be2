"""The frontier type itself: look-up against brute force, hypervolume, round trip, and what it refuses."""

from __future__ import annotations

import json
import math

import pytest
from flyball_frontiers.frontier import Frontier, FrontierPoint, frontier_from_json
from hypothesis import given
from hypothesis import strategies as st

numbers = st.integers(1, 40).map(float)
clouds = st.lists(st.tuples(numbers, numbers, numbers, numbers), min_size=1, max_size=30)


def frontier_of(cloud: list[tuple[float, float, float, float]]) -> Frontier[int]:
    return Frontier.of(FrontierPoint(t, e, index, rt, re) for index, (t, e, rt, re) in enumerate(cloud))


@given(clouds)
def test_of_keeps_exactly_what_nothing_dominates(cloud: list[tuple[float, float, float, float]]) -> None:
    pairs = {(t, e) for t, e, _, _ in cloud}
    wanted = {a for a in pairs if not any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in pairs)}
    assert {(p.time_seconds, p.energy_joules) for p in frontier_of(cloud).points} == wanted


@given(clouds, numbers)
def test_at_is_the_least_realised_energy_within_the_time(
    cloud: list[tuple[float, float, float, float]], time: float
) -> None:
    frontier = frontier_of(cloud)
    within = [p.realised_energy_joules for p in frontier.points if p.realised_time_seconds <= time]
    if within:
        found = frontier.at(time)
        assert found.realised_time_seconds <= time
        assert found.realised_energy_joules == min(within)
    else:
        with pytest.raises(ValueError, match="the fastest takes"):
            frontier.at(time)


@given(clouds, numbers)
def test_at_energy_is_the_fastest_within_the_energy(
    cloud: list[tuple[float, float, float, float]], energy: float
) -> None:
    frontier = frontier_of(cloud)
    within = [p.realised_time_seconds for p in frontier.points if p.realised_energy_joules <= energy]
    if within:
        assert frontier.at_energy(energy).realised_time_seconds == min(within)
    else:
        with pytest.raises(ValueError, match="the least is"):
            frontier.at_energy(energy)


@given(clouds)
def test_hypervolume_counts_the_unit_cells_that_are_dominated(cloud: list[tuple[float, float, float, float]]) -> None:
    frontier = frontier_of(cloud)
    planned = [(t, e) for t, e, _, _ in cloud]
    cells = sum(any(t <= x and e <= y for t, e in planned) for x in range(45) for y in range(45))
    assert frontier.hypervolume((45.0, 45.0)) == pytest.approx(cells)


def test_hypervolume_of_what_is_realised() -> None:
    frontier = Frontier.of([FrontierPoint(1, 9, "a", 2, 5), FrontierPoint(2, 8, "b", 3, 6), FrontierPoint(9, 1, "c")])
    # (3, 6) is dominated by (2, 5) once realised: 8 x 5 below (10, 10), and 1 x 4 more from (9, 1)
    assert frontier.hypervolume((10, 10), realised=True) == pytest.approx(44)


@given(clouds)
def test_json_gives_the_same_frontier_back(cloud: list[tuple[float, float, float, float]]) -> None:
    frontier = frontier_of([(t / 3, e / 7, rt / 3, re / 7) for t, e, rt, re in cloud])
    assert frontier_from_json(frontier.dumps(lambda plan: {"plan": plan}), lambda plan: int(plan["plan"])) == frontier
    document = json.loads(frontier.dumps())
    assert set(document) == {"t_min", "t_star", "points"}
    assert set(document["points"][0]) == {"time", "energy", "realised_time", "realised_energy"}


def test_interpolation_is_linear_between_points_and_flat_beyond() -> None:
    frontier = Frontier.of([FrontierPoint(1, 10, None), FrontierPoint(3, 6, None), FrontierPoint(5, 5, None)])
    assert [frontier.interpolate(t) for t in (1, 2, 3, 4, 5, 50)] == [10, 8, 6, 5.5, 5, 5]
    with pytest.raises(ValueError, match="the fastest takes 1"):
        frontier.interpolate(0.5)
    assert (frontier.t_min, frontier.t_star, len(frontier)) == (1, 5, 3)


@given(clouds, numbers, st.floats(0.1, 3.0))
def test_at_counts_the_waiting(cloud: list[tuple[float, float, float, float]], time: float, watts: float) -> None:
    frontier = Frontier.of(
        (FrontierPoint(t, e, index, rt, re) for index, (t, e, rt, re) in enumerate(cloud)), waiting_power_watts=watts
    )
    within = [
        p.realised_energy_joules + watts * (time - p.realised_time_seconds)
        for p in frontier.points
        if p.realised_time_seconds <= time
    ]
    if within:
        assert frontier.energy_within(frontier.at(time), time) == pytest.approx(min(within))
    dominated = {
        (t, e) for t, e, _, _ in cloud if any(x < t and y + watts * (t - x) <= e + 1e-12 for x, y, _, _ in cloud)
    }
    assert not dominated & {(p.time_seconds, p.energy_joules) for p in frontier.points}


def test_with_waiting_a_slower_point_may_need_more() -> None:
    points = [FrontierPoint(1, 10, "fast"), FrontierPoint(2, 9, "thrifty"), FrontierPoint(3, 9.5, "patient")]
    frontier = Frontier.of(points, waiting_power_watts=2)
    assert [p.plan for p in frontier.points] == ["fast", "thrifty", "patient"]
    assert (frontier.cheapest.plan, frontier.at(3).plan, frontier.at(2.9).plan) == ("thrifty", "patient", "thrifty")
    assert (frontier.energy_within(frontier.at(2.9), 2.9), frontier.interpolate(4)) == (10.8, 11.5)
    assert frontier.at_energy(9.2).plan == "thrifty"
    assert frontier_from_json(frontier.dumps(str), str) == frontier
    assert [p.plan for p in Frontier.of(points).points] == ["fast", "thrifty"]
    with pytest.raises(ValueError, match="-1"):
        Frontier.of(points, waiting_power_watts=-1)


def test_wrong_points_are_named() -> None:
    with pytest.raises(ValueError, match="at least one point"):
        Frontier.of([])
    with pytest.raises(ValueError, match=r"points 0 .* and 1"):
        Frontier((FrontierPoint(1.0, 1.0, None), FrontierPoint(2.0, 3.0, None)))
    with pytest.raises(ValueError, match="-1"):
        FrontierPoint(-1.0, 3.0, None)
    with pytest.raises(ValueError, match="realised nan"):
        FrontierPoint(1.0, 3.0, None, math.nan)
    with pytest.raises(ValueError, match="inf"):
        FrontierPoint(1.0, math.inf, None)
    with pytest.raises(ValueError, match=r"points\[1\]"):
        frontier_from_json({"points": [{"time": 1, "energy": 2}, {"time": 2}]}, lambda plan: plan)
