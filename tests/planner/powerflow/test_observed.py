"""Jobs that are only observed: their clocks are as high as may be, and the plan says what governing them would come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_planner.models.priors import known_model_classes, model_class_prior
from flyball_planner.planner import plan
from flyball_planner.snapshot import (
    CapConstraint,
    ClusterSnapshot,
    Enforcement,
    JobDecision,
    JobState,
    NodeState,
    Objective,
    Plan,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples


def a100() -> GpuModel:
    model = gpu_model_for("NVIDIA-A100-SXM4-40GB")
    assert model is not None
    return model


NODES = (NodeState("n0", a100(), 8), NodeState("n1", a100(), 8))


def job(name: str, low: int = 2, high: int = 8, model_class: str = "gpt2", **fields: object) -> JobState:
    state = JobState(name, f"team/{name}", low, high, 256, model_class_prior(model_class, a100()), 0.0)
    known = {"remaining_iterations": 1e5, "objective": Objective.ENERGY, **fields}
    return replace(state, **known)  # type: ignore[arg-type]


def capped(watts: float, enforcement: Enforcement = Enforcement.HARD) -> tuple[CapConstraint, ...]:
    return (CapConstraint("hall", frozenset(node.name for node in NODES), watts, enforcement),)


def decided(made: Plan, uid: str = "a") -> JobDecision:
    found = made.decision(uid)
    assert found is not None
    assert found.allocation is not None
    return found


def pair(*jobs: JobState, caps: Sequence[CapConstraint] = (), policy: str = "powerflow-strict") -> tuple[Plan, Plan]:
    """The plan of the jobs as they are, and of the same jobs, all only observed."""
    observed = tuple(replace(state, observed=True) for state in jobs)
    return plan(ClusterSnapshot(NODES, jobs, tuple(caps)), policy), plan(
        ClusterSnapshot(NODES, observed, tuple(caps)), policy
    )


@pytest.mark.parametrize("objective", Objective)
def test_it_runs_at_the_highest_clock_where_it_would_run_and_is_told_its_own(objective: Objective) -> None:
    governed, observed = (decided(made) for made in pair(job("a", objective=objective)))
    assert governed.allocation is not None
    assert observed.allocation is not None
    assert observed.allocation.nodes == governed.allocation.nodes
    assert observed.allocation.clock_megahertz == max(a100().clocks_megahertz)
    assert observed.governed_clock_megahertz == governed.allocation.clock_megahertz
    assert governed.governed_clock_megahertz is None


def test_it_says_what_it_would_save() -> None:
    state = job("a")
    governed, observed = (decided(made) for made in pair(state))
    assert governed.allocation is not None
    size = governed.allocation.gpus, len(governed.allocation.nodes)
    low, high = governed.allocation.clock_megahertz, max(a100().clocks_megahertz)
    saved = state.model.iteration_joules(*size, low, 256) / state.model.iteration_joules(*size, high, 256) - 1
    longer = state.model.iteration_seconds(*size, low, 256) / state.model.iteration_seconds(*size, high, 256) - 1
    assert saved < -0.05
    words = f"governed, it would run at {low} MHz: {100 * saved:+.1f} % energy, {100 * longer:+.1f} % time by its model"
    assert f"it is only observed; {words}." in observed.explanation
    same = decided(pair(job("a", objective=Objective.TIME))[1])
    assert "it is only observed, and governed it would have the same clock." in same.explanation


def test_no_limit_is_set_below_the_boards_own_unless_a_cap_counts_it_or_the_user_does() -> None:
    def limit(*caps: CapConstraint, **fields: Any) -> float:
        allocation = decided(pair(job("a", **fields), caps=caps)[1]).allocation
        assert allocation is not None
        return allocation.power_limit_watts

    most = a100().max_power_limit_watts
    assert limit() == most
    assert limit(*capped(6400.0, Enforcement.EXPECTED)) == most
    assert limit(*capped(6400.0)) < most
    assert limit(power_limit_max_watts=350.0) == 350.0


def test_its_own_bounds_and_budget_hold() -> None:
    bounded = decided(pair(job("a", clock_max_megahertz=1110))[1])
    assert bounded.allocation is not None
    assert bounded.allocation.clock_megahertz == 1110
    throttled = job("a", throttled=True, remaining_energy_joules=0.0)
    governed, observed = (decided(made) for made in pair(throttled))
    assert observed.allocation is not None
    assert governed.allocation is not None
    assert observed.allocation.clock_megahertz == governed.allocation.clock_megahertz


@pytest.mark.parametrize("policy", ["price", "powerflow-paper", "afs+zeus", "fifo"])
def test_under_every_policy(policy: str) -> None:
    governed, observed = (decided(made) for made in pair(job("a"), policy=policy))
    assert observed.allocation is not None
    assert governed.allocation is not None
    assert observed.allocation.clock_megahertz == max(a100().clocks_megahertz)
    assert observed.governed_clock_megahertz == governed.allocation.clock_megahertz
    assert "only observed" in observed.explanation


@given(
    st.lists(
        st.tuples(st.sampled_from(known_model_classes()), st.sampled_from(Objective), st.booleans()),
        min_size=1,
        max_size=4,
    ),
    st.floats(1000.0, 6400.0),
    st.sampled_from(Enforcement),
)
@settings(max_examples=examples(60))
def test_caps_hold_with_observed_jobs_among_others_and_planning_again_changes_nothing(
    kinds: list[tuple[str, Objective, bool]], watts: float, enforcement: Enforcement
) -> None:
    jobs = tuple(
        replace(job(f"j{index}", 1, 4, model_class), objective=objective, observed=observed)
        for index, (model_class, objective, observed) in enumerate(kinds)
    )
    snapshot = ClusterSnapshot(NODES, jobs, capped(watts, enforcement))
    made = plan(snapshot)
    assert not made.caps[0].feasible or made.caps[0].committed_watts <= watts + 1e-6
    for decision, state in zip(made.decisions, jobs, strict=True):
        governed = decision.governed_clock_megahertz
        assert (governed is not None) == (state.observed and decision.allocation is not None)
        assert governed is None or (decision.allocation and governed <= decision.allocation.clock_megahertz)
    allocations = {decision.uid: decision.allocation for decision in made.decisions}
    again = plan(replace(snapshot, jobs=tuple(replace(state, current=allocations[state.uid]) for state in jobs)))
    assert [item.allocation for item in again.decisions] == [item.allocation for item in made.decisions]
