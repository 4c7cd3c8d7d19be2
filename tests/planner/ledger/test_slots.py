"""Room by count: pools that are alike need be looked at once, whoever tells them apart."""

from __future__ import annotations

from random import Random

import pytest
from flyball_planner import CapConstraint, ClusterSnapshot, JobState, NodeState
from flyball_planner.ledger.pools import build_pools
from flyball_planner.ledger.slots import Slots
from flyball_planner.ledger.workspace import Workspace
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.models.priors import model_class_prior

A100 = gpu_model_for("NVIDIA-A100-SXM4-40GB")
assert A100 is not None
MODEL = model_class_prior("vgg16", A100)
CHOICES = 6


def cluster() -> tuple[tuple[NodeState, ...], list[frozenset[str]]]:
    """Nodes of which some choices of them tell apart each one."""
    assert A100 is not None
    nodes = tuple(NodeState(f"n{index:02}", A100, 8) for index in range(2**CHOICES))
    chosen = [frozenset(node.name for at, node in enumerate(nodes) if at >> bit & 1) for bit in range(CHOICES)]
    return nodes, chosen


def test_nodes_that_a_few_jobs_tell_apart_are_one_to_all_others() -> None:
    """A dozen jobs of one tenant would else make each plan of a large cluster take longer than it may."""
    nodes, chosen = cluster()
    jobs = [
        JobState(f"{index}", f"team/{index}", 1, 1, 256, MODEL, 0.0, eligible_nodes=choice)
        for index, choice in enumerate([*chosen, None])
    ]
    row = CapConstraint("row", frozenset(node.name for node in nodes[:16]), 16_000.0)
    workspace = Workspace(ClusterSnapshot(nodes, tuple(jobs), (row,)))
    state, anywhere = workspace.state, workspace.candidates[-1]
    assert len(anywhere.pools) == len(nodes)
    assert len(state.unlike(anywhere)) == 2  # under the cap, and beside it
    picky = workspace.candidates[0]
    assert state.unlike(picky)[0] == picky.pools[0]
    option = state.book.at(anywhere.index, 0, 1)
    assert option is not None
    state.float_at(anywhere, option, ((0, 1),))
    assert len(state.unlike(anywhere)) == 3
    state.leave(anywhere)
    assert len(state.unlike(anywhere)) == 2


@pytest.mark.parametrize("seed", range(5))
def test_what_is_said_of_alike_pools_is_what_each_of_them_has(seed: int) -> None:
    nodes, chosen = cluster()
    pools, _ = build_pools(nodes, (), chosen)
    slots, draw = Slots(pools), Random(seed)
    held: list[tuple[int, int, int, bool]] = []
    for _ in range(300):
        if held and draw.random() < 0.45:
            slots.release(*held.pop(draw.randrange(len(held))))
        elif draw.random() < 0.5:
            slots.demand(draw.randrange(len(pools)), draw.randrange(4), draw.choice((1, 1, -1)))
        else:
            held.append((draw.randrange(len(pools)), 0, draw.choice((1, 2, 4)), draw.random() < 0.5))
            slots.hold(*held[-1])
        some = [pool for pool in range(len(pools)) if draw.random() < 0.5]
        bits = sum(1 << pool for pool in some)
        first: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        for pool in some:
            first.setdefault((tuple(slots.free_room[pool]), tuple(slots.open_room[pool])), pool)
        assert slots.first_of_alike(bits) == sorted(first.values())
        assert slots.free_gpus(bits) == sum(slots.free_room[pool][0] for pool in some)
