"""What a deletion releases, and when: nothing at once."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_api.gpu_node import GpuNode, gpu_node_object, read_gpu_node
from flyball_api.power_cap import PowerCap, read_power_cap
from flyball_operator.power.holds import HoldAction, Holds

from tests.support.operator_objects import CREATED, Json, grant

HELD = {"finalizers": ["flyball.dev/hold"]}
DELETED = HELD | {"deletionTimestamp": CREATED}
WORD = {"annotations": {"flyball.dev/release": "true"}}


def cap(metadata: Json, **spec: Any) -> PowerCap:
    spec = {"watts": 1000, **spec}
    return read_power_cap({"metadata": {"name": "row", "uid": "uid-row", **metadata}, "spec": spec})


def gpu_node(metadata: Json) -> GpuNode:
    raw = gpu_node_object("a", {}, grant(800_000))
    return read_gpu_node({**raw, "metadata": {"name": "a", "uid": "uid-a", **metadata}})


def actions(holds: Holds, *items: PowerCap | GpuNode, at: float = 0.0, may_release: bool = True) -> list[HoldAction]:
    caps = [item for item in items if isinstance(item, PowerCap)]
    nodes = [item for item in items if isinstance(item, GpuNode)]
    return [change.action for change in holds.step(caps, nodes, at, may_release)]


def test_caps_and_gpu_nodes_are_held_from_the_first_look() -> None:
    assert actions(Holds(), cap({}), gpu_node({}), may_release=False) == [HoldAction.HOLD, HoldAction.HOLD]
    assert actions(Holds(), cap(HELD), gpu_node(HELD)) == []


def test_a_first_grant_makes_an_object_that_is_held() -> None:
    assert gpu_node_object("a", {}, grant(800_000))["metadata"]["finalizers"] == ["flyball.dev/hold"]


@pytest.mark.parametrize(("spec", "seconds"), [({}, 600.0), ({"releaseSeconds": 20}, 20.0)])
def test_a_deleted_cap_holds_for_its_release_seconds(spec: Json, seconds: float) -> None:
    holds = Holds()
    assert actions(holds, cap(DELETED, **spec), at=5000.0) == []
    assert actions(holds, cap(DELETED, **spec), at=5000.0 + seconds - 0.1) == []
    assert actions(holds, cap(DELETED, **spec), at=5000.0 + seconds) == [HoldAction.RELEASE_UNLESS_KIND_GOES]
    assert actions(Holds(), cap(DELETED, **spec), at=5000.0 + seconds) == []  # a new leader counts anew
    holds = Holds()  # the time is the deletion's, however long the cap has stood before
    assert actions(holds, cap(HELD, **spec), at=0.0) == []
    assert actions(holds, cap(DELETED, **spec), at=5000.0) == []


def test_a_cap_that_cannot_be_read_is_held_as_long_as_any() -> None:
    holds = Holds()
    unreadable = read_power_cap({"metadata": {"name": "row", "uid": "uid-row", **DELETED}, "spec": {}})
    assert actions(holds, unreadable, at=0.0) == []
    assert actions(holds, unreadable, at=600.0) == [HoldAction.RELEASE_UNLESS_KIND_GOES]


def test_the_word_releases_a_deleted_cap_at_once_and_one_that_is_not_deleted_never() -> None:
    assert actions(Holds(), cap(DELETED | WORD)) == [HoldAction.RELEASE]
    assert actions(Holds(), cap(HELD | WORD)) == []


def test_a_gpu_node_is_released_by_the_word_alone() -> None:
    holds = Holds()
    assert actions(holds, gpu_node(DELETED)) == []
    assert actions(holds, gpu_node(DELETED), at=1e6) == []
    assert actions(holds, gpu_node(HELD | WORD)) == []
    assert actions(holds, gpu_node(DELETED | WORD)) == [HoldAction.RELEASE]


def test_nothing_is_released_on_an_old_copy() -> None:
    """The cap could have been made again since, or the word taken back."""
    holds = Holds()
    assert actions(holds, cap(DELETED), at=0.0) == []
    assert actions(holds, cap(DELETED), cap(DELETED | WORD), gpu_node(DELETED | WORD), at=1e6, may_release=False) == []


@pytest.mark.parametrize("word", ["", "yes", "True", "false"])
def test_only_true_is_the_word(word: str) -> None:
    said = DELETED | {"annotations": {"flyball.dev/release": word}}
    assert actions(Holds(), cap(said), gpu_node(said)) == []


def test_a_cap_that_others_still_hold_is_released_only_by_us() -> None:
    others = {"finalizers": ["example.com/other"], "deletionTimestamp": CREATED}
    holds = Holds()
    for seconds in (0.0, 1e6):
        assert (
            actions(holds, cap(others), gpu_node(others), cap(others | WORD), gpu_node(others | WORD), at=seconds) == []
        )
