"""Consolidation within a plan: only where asked for, where it pays, and where nobody wants the emptied node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_planner.models.priors import model_class_prior
from flyball_planner.planner import plan
from flyball_planner.snapshot import Allocation, ClusterSnapshot, Consolidation, JobState, NodeState, Objective


def a100() -> GpuModel:
    model = gpu_model_for("NVIDIA-A100-SXM4-40GB")
    assert model is not None
    return model


def node(name: str, **keywords: object) -> NodeState:
    return replace(NodeState(name, a100(), 8), **keywords)  # type: ignore[arg-type]


def running(name: str, gpus: int, on: str, **keywords: object) -> JobState:
    made = JobState(
        uid=name,
        name=f"default/{name}",
        gpus_min=gpus,
        gpus_max=gpus,
        global_batch_size=256,
        model=model_class_prior("vgg16", a100()),
        submit_time_seconds=0.0,
        remaining_iterations=1e7,
        objective=Objective.TIME,
        current=Allocation(((on, gpus),), 1410, 300.0),
    )
    return replace(made, **keywords)  # type: ignore[arg-type]


SAVES = Consolidation(node_watts=400.0, empty_seconds=3600.0)
TWO = (node("n0"), node("n1"))
PAIR = (running("a", 4, "n0"), running("b", 2, "n1"))


def test_nothing_moves_unless_empty_nodes_are_said_to_save_something() -> None:
    made = plan(ClusterSnapshot(TWO, PAIR))
    assert made.migrations == ()
    assert [item.allocation and item.allocation.nodes for item in made.decisions] == [(("n0", 4),), (("n1", 2),)]


def test_the_cheaper_job_moves_and_says_why() -> None:
    made = plan(ClusterSnapshot(TWO, PAIR, consolidation=SAVES))
    assert made.migrations == ("b",)
    decision = made.decision("b")
    assert decision is not None
    assert decision.allocation is not None
    assert decision.allocation.nodes == (("n0", 2),)
    assert " It moves from n1 to n0, so that n1 is left empty, which saves 3.11 MJ for " in decision.explanation


def test_a_node_that_a_waiting_job_wants_is_not_emptied_for_nothing() -> None:
    """With room for it the waiting job starts anyhow; without, migrations for its sake are the placement's business."""
    waiting = running("c", 8, "n0", current=None)
    made = plan(ClusterSnapshot(TWO, (*PAIR, waiting), consolidation=SAVES))
    assert made == plan(ClusterSnapshot(TWO, (*PAIR, waiting)))


def test_a_job_that_could_grow_into_the_emptied_node_gets_no_migrations_for_it() -> None:
    members = (node("n0"), node("n1"), node("n2"))
    grower = running("c", 8, "n2", gpus_max=16, model=model_class_prior("resnet50", a100()))
    snapshot = ClusterSnapshot(members, (*PAIR, grower))
    plain = plan(snapshot)
    grown = plain.decision("c")
    assert grown is not None
    assert grown.allocation is not None
    assert grown.allocation.gpus == 8, "neither n0 nor n1 is whole"
    assert plan(replace(snapshot, consolidation=SAVES)) == plain


@pytest.mark.parametrize(
    "change",
    [
        {"resizable": False},
        {"seconds_to_deadline": 1e8},
        {"remaining_energy_joules": 1e12},
        {"remaining_iterations": 100.0},
    ],
)
def test_some_jobs_are_never_moved_for_watts(change: dict[str, object]) -> None:
    jobs = tuple(replace(job, **change) for job in PAIR)  # type: ignore[arg-type]
    made = plan(ClusterSnapshot(TWO, jobs, consolidation=SAVES))
    assert made.migrations == ()


def test_a_node_with_foreign_pods_stays_on_and_so_is_where_jobs_go() -> None:
    members = (node("n0"), node("n1", foreign_gpus=2, foreign_power_limit_watts=400.0))
    made = plan(ClusterSnapshot(members, PAIR, consolidation=SAVES))
    assert made.migrations == ("a",)


def test_figures_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="empty_seconds is inf, and must be finite"):
        Consolidation(400.0, float("inf"))
