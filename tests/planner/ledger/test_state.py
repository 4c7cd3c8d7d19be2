"""The plan's state: steps are undone exactly, and a question about a step changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_planner import CapConstraint, ClusterSnapshot, JobState, NodeState
from flyball_planner.ledger.options import BASE
from flyball_planner.ledger.state import Candidate, PlanState
from flyball_planner.ledger.workspace import Workspace
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.models.priors import model_class_prior
from flyball_planner.powerflow.greedy import allocate
from flyball_planner.snapshot import Objective


def settled(budget_watts: float, jobs: int = 2) -> tuple[PlanState, list[Candidate]]:
    """Two nodes of eight A100s under one cap, and jobs that want all of them, allocated."""
    gpu = gpu_model_for("NVIDIA-A100-SXM4-40GB")
    assert gpu is not None
    nodes = tuple(NodeState(name, gpu, 8) for name in ("a", "b"))
    wanting = tuple(
        JobState(
            f"uid-{index}",
            f"ns/job-{index}",
            gpus_min=1,
            gpus_max=16,
            global_batch_size=256,
            model=model_class_prior("vgg16", gpu),
            submit_time_seconds=float(index),
            remaining_iterations=1e6,
            objective=Objective.TIME,
        )
        for index in range(jobs)
    )
    cap = CapConstraint("row", frozenset({"a", "b"}), budget_watts)
    workspace = Workspace(ClusterSnapshot(nodes, wanting, (cap,)))
    allocate(workspace.state, workspace.candidates, workspace.stepper)
    return workspace.state, workspace.candidates


def everything(state: PlanState, candidates: list[Candidate]) -> tuple[Any, ...]:
    slots = state.slots
    held = [(one.option, one.parts, one.staying, one.contribution) for one in candidates]
    counts = [[list(row) for row in rows] for rows in (slots.free, slots.open, slots.free_room, slots.open_room)]
    return [list(watts) for watts in state.slack], list(state.base_speed_gain), counts, held


def test_a_question_names_the_cap_that_is_short_and_changes_nothing_to_the_last_digit() -> None:
    state, candidates = settled(budget_watts=2200.0)
    growing = candidates[0]
    larger = growing.gpus * 2
    before = everything(state, candidates)
    shortages = state.what_if(growing, larger)
    assert everything(state, candidates) == before
    assert [shortage.cap for shortage in shortages] == [0]
    assert shortages[0].needs_watts > shortages[0].spare_watts >= 0.0
    spare = state.slack[BASE][0]
    assert shortages[0].spare_watts == pytest.approx(max(0.0, spare), abs=1e-6)


def test_no_cap_is_short_where_it_is_gpus_that_lack() -> None:
    state, candidates = settled(budget_watts=1e6)
    largest = max(candidates, key=lambda one: one.gpus)
    assert sum(one.gpus for one in candidates) == 16
    assert state.what_if(largest, 16) == ()


def test_going_back_restores_every_count() -> None:
    state, candidates = settled(budget_watts=1e6)
    (watts, gains, counts, held) = everything(state, candidates)
    for candidate in candidates:
        former = state.leave(candidate)
        assert candidate.option is None
        state.go_back(candidate, former)
    (again_watts, again_gains, again_counts, again_held) = everything(state, candidates)
    assert (again_counts, again_held) == (counts, held)
    assert again_gains == pytest.approx(gains)
    assert again_watts == [pytest.approx(level) for level in watts]
