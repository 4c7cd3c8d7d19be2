"""Which agents report: counted from when a change of their status was seen, by one clock."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from flyball_api.gpu_node import GpuNode
from flyball_operator.power.heartbeats import Heartbeats

from tests.support.operator_objects import gpu_node_view, grant, raw_device


def reported(energy: int, *, name: str = "a") -> GpuNode:
    """A GPUNode as its agent reports it once its GPU has used so much energy."""
    device = raw_device(0) | {"energyMillijoules": energy}
    return gpu_node_view(name, grant(100_000), devices=[device], limits=100_000)


def test_a_report_that_is_the_same_as_before_proves_nothing() -> None:
    beats = Heartbeats(75.0)
    assert beats.update({"a": reported(1)}, 100.0) == {}
    assert beats.update({"a": reported(1)}, 175.0) == {}
    assert beats.update({"a": reported(1)}, 175.5) == {"a": 75.5}


def test_another_report_does_and_a_grant_is_none() -> None:
    beats = Heartbeats(75.0)
    beats.update({"a": reported(1)}, 100.0)
    assert beats.update({"a": reported(2)}, 170.0) == {}
    # The operator's own writes change the object too.
    granted = replace(reported(2), grant=grant(200_000, generation=2))
    granted = replace(granted, metadata=msgspec.structs.replace(granted.metadata, resource_version="99"))
    assert beats.update({"a": granted}, 245.0) == {}
    assert beats.update({"a": granted}, 246.0) == {"a": 76.0}
    assert beats.update({"a": reported(3)}, 247.0) == {}


def test_each_node_counts_for_itself_and_is_forgotten_with_its_object() -> None:
    beats = Heartbeats(75.0)
    beats.update({"a": reported(1), "b": reported(1, name="b")}, 0.0)
    assert beats.update({"a": reported(2), "b": reported(1, name="b")}, 80.0) == {"b": 80.0}
    beats.update({}, 81.0)
    assert beats.update({"b": reported(1, name="b")}, 82.0) == {}


def test_after_a_sign_of_a_boot_only_the_next_report_is_one() -> None:
    beats = Heartbeats(75.0)
    assert beats.update({"a": reported(1), "b": reported(1, name="b")}, 100.0, {"a"}) == {"a": 0.0}
    assert beats.update({"a": reported(1), "b": reported(1, name="b")}, 101.0) == {"a": 1.0}
    assert beats.update({"a": reported(2), "b": reported(1, name="b")}, 102.0, {"a"}) == {"a": 0.0}
    assert beats.update({"a": reported(3), "b": reported(1, name="b")}, 103.0) == {}
