"""Stragglers: which point is looked up, when, and that nothing is solved."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from flyball_frontiers.frontier import Frontier
from flyball_frontiers.pipeline.perseus import PerseusPlanner, PipelinePlan
from flyball_frontiers.pipeline.profile import PipelineProfile
from flyball_frontiers.pipeline.schedules import Schedule, pipeline_graph
from flyball_frontiers.pipeline.solver.relaxation import RelaxedPlan, TimeCostProgram
from flyball_frontiers.pipeline.straggler import StragglerTable


@pytest.fixture
def frontier(made_up: Callable[..., PipelineProfile]) -> Frontier[PipelinePlan]:
    return PerseusPlanner(pipeline_graph(made_up(1.0, 1.2, 1.1), Schedule.ONE_F_ONE_B, 6), 30.0).frontier(60)


def test_the_slowest_straggler_sets_the_time_and_degree_1_restores(frontier: Frontier[PipelinePlan]) -> None:
    table = StragglerTable(frontier)
    own = table.deployment(0.0)
    assert own.point == frontier.at(frontier.t_min)
    first = table.set_straggler("a", 0.0, 1.1)
    assert first.iteration_seconds == pytest.approx(1.1 * frontier.t_min)
    assert first.point == frontier.at(1.1 * frontier.t_min)
    assert table.set_straggler("b", 0.0, 1.05).point == first.point
    assert table.set_straggler("a", 0.0, 1.0).point == frontier.at(1.05 * frontier.t_min)
    assert table.set_straggler("b", 0.0, 1.0) == own


def test_beyond_t_star_nothing_is_slowed_further(frontier: Frontier[PipelinePlan]) -> None:
    deployment = StragglerTable(frontier).set_straggler("a", 0.0, 10.0)
    assert deployment.point == frontier.points[-1]
    assert deployment.iteration_seconds == pytest.approx(10 * frontier.t_min)


def test_a_straggler_counts_from_when_it_is_announced_for(frontier: Frontier[PipelinePlan]) -> None:
    table = StragglerTable(frontier)
    later = table.set_straggler("a", 30.0, 1.2, now_seconds=100.0)
    assert later.from_seconds == 130.0
    assert [table.degree(when) for when in (0, 129.9, 130.0, 1e9)] == [1.0, 1.0, 1.2, 1.2]
    assert table.deployment(110.0).point == frontier.at(frontier.t_min)
    table.set_straggler("a", 60.0, 1.0, now_seconds=100.0)
    assert [table.degree(when) for when in (129, 131, 159, 160)] == [1.0, 1.2, 1.2, 1.0]
    table.set_straggler("a", 5.0, 1.4, now_seconds=100.0)  # withdraws what was announced for later
    assert [table.degree(when) for when in (104, 105, 131, 170)] == [1.0, 1.4, 1.4, 1.4]
    for when in range(200, 300):
        table.set_straggler("a", 1.0, 1.0 + when / 1000, now_seconds=when)
    assert [table.degree(when) for when in (299, 299.9, 300)] == [1.298, 1.298, 1.299]


def test_energy_saved_grows_to_t_star_and_wanes_after(frontier: Frontier[PipelinePlan]) -> None:
    """Perseus, section 6.2.2: in an iteration that lasts T', against running flat out and waiting until T'."""
    table = StragglerTable(frontier)
    degrees = [1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 2.0, 3.0]
    saved, share = [], []
    for degree in degrees:
        deployment = table.set_straggler("a", 0.0, degree)
        flat_out = frontier.energy_within(frontier.fastest, deployment.iteration_seconds)
        energy = frontier.energy_within(deployment.point, deployment.iteration_seconds)
        saved.append(flat_out - energy)
        share.append((flat_out - energy) / flat_out)
    assert all(left <= right + 1e-9 for left, right in pairwise(saved))
    peak = max(range(len(share)), key=share.__getitem__)
    assert degrees[peak] * frontier.t_min <= frontier.t_star * 1.3
    assert share[-1] < share[peak] > share[0]


def test_a_lookup_never_solves(
    frontier: Frontier[PipelinePlan], made_up: Callable[..., PipelineProfile], monkeypatch: pytest.MonkeyPatch
) -> None:
    solve = TimeCostProgram.solve
    solved: list[float] = []

    def counted(program: TimeCostProgram, time_seconds: float) -> RelaxedPlan:
        solved.append(time_seconds)
        return solve(program, time_seconds)

    monkeypatch.setattr(TimeCostProgram, "solve", counted)
    found = StragglerTable(frontier).set_straggler("a", 0.0, 1.3).point
    assert solved == []
    planner = PerseusPlanner(pipeline_graph(made_up(1.0, 1.2, 1.1), Schedule.ONE_F_ONE_B, 6), 30.0)
    assert planner.plan(1.3 * planner.t_min).realised_time_seconds <= 1.3 * frontier.t_min
    assert len(solved) > 0, "whereas a plan does"
    assert found.time_seconds <= 1.3 * frontier.t_min


def test_wrong_numbers_are_refused(frontier: Frontier[PipelinePlan]) -> None:
    table = StragglerTable(frontier)
    with pytest.raises(ValueError, match=r"straggler a: degree 0.9 must be"):
        table.set_straggler("a", 0.0, 0.9)
    with pytest.raises(ValueError, match="straggler a: degree nan"):
        table.set_straggler("a", 0.0, float("nan"))
    with pytest.raises(ValueError, match=r"straggler a: delay -1.0 s"):
        table.set_straggler("a", -1.0, 1.2)
    assert table.degree(1e9) == 1.0
