"""The flow that a pipeline without ties is the dual of: exact on corners, the same from every side, refused below."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from flyball_frontiers.pipeline.perseus import PerseusPlanner
from flyball_frontiers.pipeline.profile import PipelineProfile
from flyball_frontiers.pipeline.schedules import Schedule, pipeline_graph
from flyball_frontiers.pipeline.solver import network
from flyball_frontiers.pipeline.solver.optimality import least_costs
from flyball_frontiers.pipeline.solver.relaxation import SolverError, TimeCostProgram


@pytest.fixture
def program(made_up: Callable[..., PipelineProfile]) -> TimeCostProgram:
    profile = made_up(1.0, 1.1, 1.3, clocks=tuple(range(1400, 800, -45)))
    return TimeCostProgram(pipeline_graph(profile, Schedule.GPIPE, 6), 20.0)


def times_of(program: TimeCostProgram, count: int = 9) -> np.ndarray:
    return np.linspace(program.makespan(program.shortest), program.makespan(program.longest), count)


def test_plans_keep_their_time_and_are_proven(program: TimeCostProgram) -> None:
    plans = [program.solve(time) for time in times_of(program).tolist()]
    durations = np.stack([plan.durations for plan in plans], axis=1)
    for plan in plans:
        assert program.makespan(plan.durations) <= plan.time_seconds * (1 + 1e-12)
    proven = least_costs(program.graph, program.curves, program.kinds, durations, times_of(program))
    assert [plan.cost_joules for plan in plans] == pytest.approx(proven.tolist(), rel=1e-7)


def test_most_durations_are_corners_to_the_last_digit(program: TimeCostProgram) -> None:
    plan = program.solve(float(times_of(program)[3]))
    corners = np.concatenate([curve.hull_times for curve in program.curves])
    assert np.isin(plan.durations, corners).mean() > 0.5


def test_the_way_to_a_time_changes_nothing_of_its_cost(program: TimeCostProgram) -> None:
    times = times_of(program).tolist()
    falling = {time: program.solve(time).cost_joules for time in reversed(times)}
    rising = {time: program.solve(time).cost_joules for time in times}
    program.forget()
    from_nothing = program.solve(times[0]).cost_joules
    assert rising == pytest.approx(falling, rel=1e-12)
    assert from_nothing == pytest.approx(falling[times[0]], rel=1e-12)


def test_long_ways_are_gone_in_steps_between_which_an_interrupt_is_heard(
    program: TimeCostProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "ARCS_PER_STEP", 40)
    solve, solved = network.TimeCostNetwork._go_to, []

    def interrupted(it: network.TimeCostNetwork, time: int) -> None:
        solved.append(time)
        if len(solved) == 3:
            raise KeyboardInterrupt
        solve(it, time)

    fastest = float(times_of(program)[0])
    with monkeypatch.context() as context:
        context.setattr(network.TimeCostNetwork, "_go_to", interrupted)
        with pytest.raises(KeyboardInterrupt):
            program.solve(fastest)
    steps = np.diff(solved)
    assert steps == pytest.approx(steps[0], abs=2)
    assert program.solve(fastest).cost_joules == pytest.approx(program.cost(program.solve(fastest).durations))


def test_below_the_shortest_iteration_nothing_is_solved(program: TimeCostProgram) -> None:
    with pytest.raises(SolverError, match=r"no plan takes .* s: the shortest iteration takes"):
        program.solve(0.999 * float(times_of(program)[0]))


def test_what_the_solver_refuses_is_said(program: TimeCostProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(program._solver, network.TimeCostNetwork)
    program._solver._solver.set_node_supply(np.zeros(2 * len(program.kinds) + 2, dtype=np.int64) + 1)
    with pytest.raises(SolverError, match="the network simplex says"):
        program.solve(float(times_of(program)[1]))


def test_a_walk_down_the_curve_leaves_as_many_points_as_wanted_and_evenly(
    made_up: Callable[..., PipelineProfile],
) -> None:
    """Also where most have time to spare, so that the curve's range is a small share of what all could cost."""
    for profile, microbatches in ((made_up(1.0, 1.1, 1.2), 6), (made_up(*[0.05] * 3, 1.0), 3)):
        planner = PerseusPlanner(pipeline_graph(profile, Schedule.GPIPE, microbatches), 20.0)
        told: list[tuple[int, int]] = []
        frontier = planner.frontier(40, lambda done, of, told=told: told.append((done, of)))
        assert len(frontier) == 40
        assert told == sorted(told)
        assert told[-1] == (40, 40)
        times = np.array([point.time_seconds for point in frontier.points])
        effective = [p.energy_joules - frontier.waiting_power_watts * p.time_seconds for p in frontier.points]
        steps = np.diff(times) / np.ptp(times) - 3 * np.diff(effective) / np.ptp(effective)
        assert steps.max() < 2.5 * steps.mean()


class _FarAway:
    """A solver whose basis hangs on its own dear arcs."""

    def __init__(self, solver: object) -> None:
        self._solver = solver

    def __getattr__(self, name: str) -> object:
        return getattr(self._solver, name)

    def raw_potentials(self) -> np.ndarray:
        count = self._solver.no_nodes()  # type: ignore[attr-defined]
        return np.where(np.arange(count) % 2, 1 << 62, -(1 << 62))


def test_potentials_of_the_solvers_own_arcs_are_no_start_times(program: TimeCostProgram) -> None:
    time = float(times_of(program)[2])
    wanted = program.solve(time)
    assert isinstance(program._solver, network.TimeCostNetwork)
    program._solver._solver = _FarAway(program._solver._solver)
    found = program.solve(time)
    assert found.cost_joules == pytest.approx(wanted.cost_joules, rel=1e-12)
    assert program.makespan(found.durations) <= time * (1 + 1e-12)
