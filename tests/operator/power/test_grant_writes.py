"""Grants under way: what is remembered of those to nodes whose GPUNode is gone."""

from __future__ import annotations

import pytest
from flyball_operator.power import grant_writes
from flyball_operator.power.cycle import SendGrant
from flyball_operator.power.grant_writes import GrantWrites
from flyball_operator.power.nodes.info import NodeInfo, read_nodes

from tests.support.operator_objects import FLOOR, grant, node_view


def without_gpu_node(*names: str) -> dict[str, NodeInfo]:
    return read_nodes([node_view(name) for name in names], {}, [], frozenset())


def test_of_the_nodes_to_which_the_last_grants_went_the_next_generation_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grant_writes, "MOST_GENERATIONS", 2)
    nodes, writes = without_gpu_node("a", "b", "c"), GrantWrites()
    for generation, name in enumerate("abac", start=1):
        writes.begin(SendGrant(nodes[name], grant(8 * FLOOR, generation=generation), waits=False))
    power = {name: info.power.next_generation(1) for name, info in writes.counted(nodes).items()}
    assert power == {"a": 4, "b": 1, "c": 5}
