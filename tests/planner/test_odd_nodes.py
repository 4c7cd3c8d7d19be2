"""Nodes whose number of GPUs is no power of two: which jobs they take, and that every GPU of them can be in use."""

from __future__ import annotations

from collections import Counter

import pytest
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.models.priors import model_class_prior
from flyball_planner.planner import plan
from flyball_planner.snapshot import ClusterSnapshot, JobState, NodeState

A100 = gpu_model_for("NVIDIA-A100-SXM4-40GB")
assert A100 is not None


def snapshot(node_gpus: int, nodes: int, sizes: list[int]) -> ClusterSnapshot:
    assert A100 is not None
    jobs = tuple(
        JobState(
            uid=f"{index}",
            name=f"team/{index}",
            gpus_min=size,
            gpus_max=size,
            global_batch_size=256,
            model=model_class_prior("vgg16", A100),
            submit_time_seconds=float(index),
            remaining_iterations=1e6,
        )
        for index, size in enumerate(sizes)
    )
    return ClusterSnapshot(tuple(NodeState(f"n{index}", A100, node_gpus) for index in range(nodes)), jobs)


def placed(case: ClusterSnapshot) -> tuple[list[tuple[int, ...]], Counter[str]]:
    """Of each job in order, its GPUs on each of its nodes (none: it waits); and the GPUs in use on each node."""
    shapes, used = [], Counter[str]()
    for decision in plan(case).decisions:
        cells = () if decision.allocation is None else decision.allocation.nodes
        shapes.append(tuple(sorted(gpus for _, gpus in cells)))
        used.update(dict(cells))
    return shapes, used


@pytest.mark.parametrize(
    ("node_gpus", "sizes"), [(3, [2, 1]), (6, [4, 2]), (10, [8, 2]), (12, [8, 4]), (12, [4, 4, 4]), (24, [16, 8])]
)
def test_every_gpu_of_a_node_can_be_in_use(node_gpus: int, sizes: list[int]) -> None:
    shapes, used = placed(snapshot(node_gpus, 1, sizes))
    assert shapes == [(size,) for size in sizes]
    assert used == {"n0": node_gpus}


@pytest.mark.parametrize(
    ("node_gpus", "nodes", "size", "shape"),
    [
        (3, 2, 4, (2, 2)),
        (6, 2, 8, (4, 4)),
        (12, 2, 16, (8, 8)),
        (24, 2, 32, (16, 16)),
        (24, 1, 32, ()),  # its largest block is of 16, and a second one is not there
        (6, 1, 8, ()),
    ],
)
def test_a_job_over_several_nodes_takes_the_largest_block_of_each(
    node_gpus: int, nodes: int, size: int, shape: tuple[int, ...]
) -> None:
    rest = node_gpus - max(shape, default=0)
    shapes, used = placed(
        snapshot(node_gpus, nodes, [size, *([rest] * nodes if shape and rest & (rest - 1) == 0 else [])])
    )
    assert shapes[0] == shape
    if shape:
        assert all(used[f"n{index}"] == node_gpus for index in range(nodes)), "others have the rest"
