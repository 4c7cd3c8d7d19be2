"""Who owes an acknowledgement, and for too long."""

from __future__ import annotations

from collections.abc import Mapping

from flyball_api.gpu_node import GpuNode
from flyball_operator.power.nodes.acknowledgements import Acknowledgements

from tests.support.operator_objects import gpu_node_view, grant


def node(generation: int, acknowledged: int | None) -> dict[str, GpuNode]:
    """A node with this generation granted, and the last one that its agent acknowledged."""
    given = grant(100, generation=generation)
    if acknowledged is None:
        return {"a": gpu_node_view("a", given)}
    return {"a": gpu_node_view("a", given, limits=100, acknowledged=(1, acknowledged))}


def unresponsive_after(owed: Acknowledgements, gpu_nodes: Mapping[str, GpuNode], monotonic: float) -> frozenset[str]:
    """Who has owed an acknowledgement for too long, once these GPUNodes are seen."""
    owed.update(gpu_nodes, monotonic)
    return owed.unresponsive


def test_a_node_that_has_answered_owes_nothing() -> None:
    owed = Acknowledgements(10.0)
    assert unresponsive_after(owed, node(1, 1), 0.0) == frozenset()
    assert unresponsive_after(owed, node(1, 1), 1000.0) == frozenset()
    assert owed.owing == set()


def test_a_node_that_owes_for_too_long_is_silent() -> None:
    owed = Acknowledgements(10.0)
    assert unresponsive_after(owed, node(2, 1), 0.0) == frozenset()
    assert owed.owing == {"a"}
    assert unresponsive_after(owed, node(2, 1), 10.0) == frozenset()
    assert unresponsive_after(owed, node(2, 1), 10.1) == {"a"}
    assert unresponsive_after(owed, node(2, 2), 10.2) == frozenset()
    assert owed.owing == set()


def test_newer_grants_do_not_set_the_clock_back() -> None:
    owed = Acknowledgements(10.0)
    silent = [bool(unresponsive_after(owed, node(2 + second, 1), float(second))) for second in range(13)]
    assert silent == [False] * 11 + [True] * 2


def test_an_agent_that_answers_each_grant_late_is_not_silent() -> None:
    owed = Acknowledgements(10.0)
    for second in range(60):
        # Whenever it is looked at, a newer grant has just been sent.
        assert unresponsive_after(owed, node(2 + second // 6, 1 + second // 6), float(second)) == frozenset()
    assert owed.owing == {"a"}


def test_an_agent_that_has_never_answered_is_told_otherwise() -> None:
    owed = Acknowledgements(10.0)
    assert [unresponsive_after(owed, node(1, None), second) for second in (0.0, 100.0)] == [frozenset()] * 2
    assert unresponsive_after(owed, node(2, 1), 105.0) == frozenset()  # its clock starts with its first answer
    assert unresponsive_after(owed, node(2, 1), 116.0) == {"a"}


def test_nodes_that_are_gone_are_forgotten() -> None:
    owed = Acknowledgements(10.0)
    unresponsive_after(owed, node(2, 1), 0.0)
    assert unresponsive_after(owed, {}, 100.0) == frozenset()
    assert owed.owing == set()


def test_a_node_without_a_grant_owes_nothing() -> None:
    owed = Acknowledgements(10.0)
    assert unresponsive_after(owed, {"a": gpu_node_view("a", None)}, 0.0) == frozenset()
    assert owed.owing == set()
