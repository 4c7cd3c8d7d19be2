"""GPUNodes: which acknowledgement counts, and what the GPUs come to that nobody has measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from flyball_api.gpu_node import GpuNode, gpu_node_object, read_gpu_node
from flyball_api.grant import Grant, JobGrant, PowerBound
from flyball_api.units import MilliwattsPerGpu, NodeMilliwatts

JOBS = tuple(JobGrant("team", uid, uid, 1, f"{uid}-p", 1, MilliwattsPerGpu(100), 0, 1410) for uid in ("a", "b"))
GRANT = Grant(3, 5, 60, PowerBound(NodeMilliwatts(200), NodeMilliwatts(150)), jobs=JOBS)


def gpu_node(**status: Any) -> GpuNode:
    raw = gpu_node_object("n", {"rack": "r1"}, GRANT)
    raw["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    return read_gpu_node({**raw, "status": {"bootID": "boot-1", "driverSession": "driver-1", **status}})


def test_a_grant_is_read_back_as_it_was_written() -> None:
    node = gpu_node()
    assert node.grant == GRANT
    assert node.labels == {"rack": "r1"}


def test_jobs_listed_in_another_order_are_the_same_grant() -> None:
    raw = gpu_node_object("n", {}, GRANT)
    raw["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    raw["spec"]["jobs"].reverse()
    assert read_gpu_node(raw).grant == GRANT


@pytest.mark.parametrize(
    ("changes", "since_driver_load", "current"),
    [
        (None, False, False),  # nothing acknowledged
        ({}, True, True),
        ({"generation": 4}, True, False),
        ({"epoch": 4}, True, False),
        ({"bootID": "boot-0"}, False, False),
        ({"driverSession": "driver-0"}, False, False),
    ],
)
def test_only_the_grant_that_stands_acknowledged_since_the_last_driver_load_is_current(
    changes: dict[str, Any] | None, since_driver_load: bool, current: bool
) -> None:
    acknowledged = {
        "epoch": 3,
        "generation": 5,
        "limitsMilliwatts": 200,
        "bootID": "boot-1",
        "driverSession": "driver-1",
    }
    node = gpu_node() if changes is None else gpu_node(acknowledged={**acknowledged, **changes})
    assert (node.acknowledged_since_driver_load, node.acknowledged_current) == (since_driver_load, current)


def test_a_bound_that_another_version_of_the_agent_held_to_is_worth_nothing() -> None:
    acknowledged = {
        "epoch": 3,
        "generation": 5,
        "limitsMilliwatts": 100,
        "bootID": "boot-1",
        "driverSession": "driver-1",
    }
    acknowledged |= {"boundMilliwatts": 100, "boundBy": "2.0"}
    assert gpu_node(acknowledged=acknowledged, agentVersion="2.0").braked_milliwatts == 100
    # A merge patch of an agent that does not know the field leaves it as it was.
    assert gpu_node(acknowledged=acknowledged, agentVersion="1.0").braked_milliwatts is None


def test_a_digest_that_another_version_of_the_agent_left_is_of_no_grant() -> None:
    acknowledged = {
        "epoch": 3,
        "generation": 5,
        "limitsMilliwatts": 100,
        "bootID": "boot-1",
        "driverSession": "driver-1",
        "digest": "d0",
        "boundBy": "2.0",
    }

    def current(version: str) -> bool:
        node = gpu_node(acknowledged=acknowledged, agentVersion=version)
        assert node.grant is not None
        return replace(node, grant=msgspec.structs.replace(node.grant, digest="d1")).acknowledged_current

    assert not current("2.0"), "it is another grant's of that version"
    assert current("1.0"), "the agent knows none"
