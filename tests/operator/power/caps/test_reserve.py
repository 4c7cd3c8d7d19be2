"""What a cap holds back for nodes that nobody knows yet to be at their largest limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from flyball_api.workloads import read_node
from flyball_operator.power.caps.reserve import reserve_under
from flyball_operator.power.caps.state import CapState
from flyball_operator.power.caps.tracker import CapTracker
from flyball_operator.power.nodes.info import NodeInfo, read_nodes
from hypothesis import given
from hypothesis import strategies as st

from tests.support.operator_objects import NOW, cap_view, gpu_node_view, grant, raw_node

LARGEST = 3200  # watts of a node of eight A100s


def node(name: str, watts: int, *, booted: bool = False, arrived: bool = False) -> NodeInfo:
    raw = raw_node(name)
    raw["status"]["nodeInfo"] = {"bootID": "boot-2" if booted else "boot-1"}
    view = gpu_node_view(name, grant(watts * 1000), limits=None if arrived else watts * 1000)
    return read_nodes([read_node(raw)], {name: view}, [], frozenset())[name]


def state_of(watts: int, reserve: int, nodes: Mapping[str, NodeInfo], **spec: Any) -> CapState:
    cap = cap_view("row", watts=watts, reserveNodes=reserve, **spec)
    (state,) = CapTracker().step([cap], nodes, NOW, 0.0).states
    return state


@pytest.mark.parametrize(("reserve", "held"), [(0, 0), (1, 2400), (2, 2400 + 1200), (3, 3600), (9, 3600)])
def test_the_largest_distances_are_held_back(reserve: int, held: int) -> None:
    nodes = {"a": node("a", 800), "b": node("b", 2000), "c": node("c", LARGEST)}
    state = state_of(10_000, reserve, nodes)
    assert state.reserve_milliwatts == held * 1000
    assert state.budget().reserve == state.planning_budget().reserve == state.reserve
    assert state.enforced
    fits = 6000 + held
    assert not state_of(fits, reserve, nodes).is_over_budget
    assert state_of(fits - 1, reserve, nodes).is_over_budget


def test_the_reserve_is_in_use_by_a_node_that_has_jumped_and_by_none_that_has_just_arrived() -> None:
    jumped = {"a": node("a", 800, booted=True), "b": node("b", 800)}
    assert state_of(10_000, 1, jumped).reserve_milliwatts == 0
    assert state_of(10_000, 2, jumped).reserve_milliwatts == 2400_000
    arrived = {"a": node("a", 800, arrived=True), "b": node("b", 800)}
    assert state_of(10_000, 1, arrived).reserve_milliwatts == 2400_000


def test_a_node_that_has_more_gpus_than_it_offers_jumps_with_all_of_them() -> None:
    raw = raw_node("a", 4)
    view = gpu_node_view("a", grant(800_000), limits=800_000)  # of eight A100s
    nodes = read_nodes([read_node(raw)], {"a": view}, [], frozenset())
    assert nodes["a"].max_limits_milliwatts == LARGEST * 1000 // 2
    assert state_of(10_000, 1, nodes).reserve_milliwatts == 2400_000


def test_a_cap_that_adds_up_predicted_draw_holds_back_predicted_draw() -> None:
    view = gpu_node_view("a", grant(1600_000, expected=1000_000), limits=1600_000)
    nodes = read_nodes([read_node(raw_node("a"))], {"a": view}, [], frozenset())
    assert state_of(10_000, 1, nodes, enforcement="Expected").reserve_milliwatts == 2200_000
    assert state_of(10_000, 1, nodes).reserve_milliwatts == 1600_000


watts_of_nodes = st.lists(st.integers(8, 32).map(lambda hundreds: hundreds * 100), min_size=1, max_size=5)


@given(
    watts=watts_of_nodes,
    reserve=st.integers(0, 3),
    jumps=st.sets(st.integers(0, 4), max_size=3),
    cap=st.integers(1, 16_000),
)
def test_nodes_in_reserve_may_jump_to_their_largest_limits_and_the_cap_holds(
    watts: list[int], reserve: int, jumps: set[int], cap: int
) -> None:
    nodes = {f"n{index}": node(f"n{index}", each) for index, each in enumerate(watts)}
    state = state_of(cap, reserve, nodes)
    if state.is_over_budget or len(jumps) > reserve:
        return
    after = {
        name: node(name, each, booted=index in jumps)
        for index, (name, each) in enumerate(zip(nodes, watts, strict=True))
    }
    jumped = state_of(cap, reserve, after)
    assert jumped.enforced
    # And nobody else is lowered for it: the reserve is there to be used.
    assert not jumped.is_over_budget


@given(watts=watts_of_nodes, reserve=st.integers(0, 3), which=st.integers(0, 4), to=st.integers(8, 32))
def test_no_cut_makes_what_is_committed_and_held_back_more_and_no_raise_makes_it_less(
    watts: list[int], reserve: int, which: int, to: int
) -> None:
    """So what a cap lacks can be searched for by halves, and a cap that is reckoned with later breaks none before it."""

    def total(each: list[int]) -> int:
        nodes = {f"n{index}": node(f"n{index}", watts) for index, watts in enumerate(each)}
        held = reserve_under(nodes, reserve).of((f"n{i}", watts * 1000) for i, watts in enumerate(each))
        return sum(each) * 1000 + int(held)

    changed = list(watts)
    which %= len(changed)
    changed[which] = to * 100
    rise = (changed[which] - watts[which]) * 1000
    assert min(0, rise) <= total(changed) - total(watts) <= max(0, rise)
