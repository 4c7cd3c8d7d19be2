"""Which nodes are alike to the planner, whatever some of them report of their GPUs."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from flyball_planner.ledger.pools import unified_models
from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_planner.models.priors import model_class_prior
from flyball_planner.planner import plan
from flyball_planner.snapshot import CapConstraint, ClusterSnapshot, JobState, NodeState

PRODUCT = "NVIDIA-A100-SXM4-40GB"
A100 = gpu_model_for(PRODUCT)
assert A100 is not None


def reports(
    lowest: float = 100.0, highest: float = 400.0, clocks: tuple[int, ...] = tuple(range(210, 1411, 15))
) -> GpuModel:
    return GpuModel.from_device(PRODUCT, lowest, highest, highest, clocks)


ODD = {
    "a few low clocks": reports(clocks=(210, 225)),
    "clocks far apart": reports(clocks=(210, 810, 1410)),
    "clocks of another grid": reports(clocks=tuple(range(211, 1412, 15))),
    "no more than the smallest limit": reports(highest=101.0),
    "no less than nearly the largest limit": reports(lowest=390.0),
    "limits that no other board has": reports(lowest=5000.0, highest=9000.0),
}
odd = pytest.mark.parametrize("model", ODD.values(), ids=list(ODD))


def nodes_of(*models: GpuModel) -> list[NodeState]:
    return [NodeState(f"n{index}", model, 4) for index, model in enumerate(models)]


@odd
def test_what_one_node_reports_bounds_no_other(model: GpuModel) -> None:
    """Whoever has one agent's token, or a driver that reads nonsense, would else have all jobs at the lowest clock."""
    assert A100 is not None
    tight = reports(lowest=110.0)
    for order in permutations([A100, A100, tight, model]):
        found = unified_models(nodes_of(*order))
        assert found[model] == model
        assert found[A100] == found[tight] == replace(A100, min_power_limit_watts=110.0)


@odd
def test_nor_does_it_stop_their_jobs_or_take_their_watts(model: GpuModel) -> None:
    assert A100 is not None
    nodes, sixth = nodes_of(*[A100] * 5), NodeState("odd", A100, 4, schedulable=False)
    jobs = tuple(
        JobState(
            str(index), f"team/{index}", 4, 4, 256, model_class_prior("vgg16", A100), 0.0, remaining_iterations=1e6
        )
        for index in range(5)
    )
    cap = CapConstraint("all", frozenset(f"n{index}" for index in range(5)), 20 * 250.0)
    made, ordinary = (
        plan(ClusterSnapshot((*nodes, last), jobs, (cap,), joules_per_job_second=200.0))
        for last in (replace(sixth, gpu_model=model), sixth)
    )
    assert [each.allocation for each in made.decisions] == [each.allocation for each in ordinary.decisions]


def test_boards_that_differ_a_little_are_planned_with_by_what_all_of_them_can_do() -> None:
    assert A100 is not None
    other = reports(lowest=150.0, highest=350.0, clocks=tuple(range(210, 1396, 15)))
    found = unified_models(nodes_of(A100, other))
    assert found[A100] == found[other]
    common = found[other]
    assert (common.min_power_limit_watts, common.max_power_limit_watts, common.max_clock_megahertz) == (150, 350, 1395)


def test_so_are_boards_that_differ_much_where_they_are_not_few() -> None:
    assert A100 is not None
    other = reports(lowest=150.0, highest=250.0)
    for order in ([A100, other], [A100, A100, other, other]):
        found = unified_models(nodes_of(*order))
        assert found[A100] == found[other]
        assert (found[other].min_power_limit_watts, found[other].max_power_limit_watts) == (150, 250)
    few = unified_models(nodes_of(A100, other, A100))
    assert (few[A100], few[other]) == (A100, other)


def test_where_no_kind_of_board_is_usual_all_are_planned_with_by_what_they_can_do_together() -> None:
    kinds = [reports(highest=highest) for highest in (150.0, 220.0, 300.0, 400.0)]
    found = unified_models(nodes_of(*kinds))
    assert {found[kind].max_power_limit_watts for kind in kinds} == {150.0}
