"""Two acknowledgements of one node, in its GPUNode and its BrakeAcknowledgement: the later one of a session counts."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_api.brake_acknowledgement import (
    brake_acknowledgement_object,
    brake_acknowledgement_patch,
    read_brake_acknowledgement,
)
from flyball_api.gpu_node import Acknowledgement, GpuNode, gpu_node_object, read_gpu_node
from flyball_api.grant import Grant, PowerBound
from flyball_api.values.units import NodeMilliwatts
from msgspec.structs import replace

from tests.support.crd_schema import assert_valid

BRAKED = Acknowledgement(
    3, 5, NodeMilliwatts(100), "boot-1", "driver-1", None, NodeMilliwatts(120), "2.0", boottime_nanoseconds=2000
)


def gpu_node(**acknowledged: Any) -> GpuNode:
    raw = gpu_node_object("n", {}, Grant(3, 5, 60, PowerBound(NodeMilliwatts(200), NodeMilliwatts(150))))
    raw["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    own = {"epoch": 3, "generation": 5, "limitsMilliwatts": 200, "bootID": "boot-1", "driverSession": "driver-1"}
    own |= {"boundMilliwatts": 200, "boundBy": "2.0", "boottimeNanoseconds": 1000, **acknowledged}
    session = {"bootID": "boot-1", "driverSession": "driver-1", "agentVersion": "2.0"}
    return read_gpu_node({**raw, "status": {**session, "acknowledged": own}})


def test_what_is_written_is_read_back() -> None:
    made = brake_acknowledgement_object("n", "u", BRAKED)
    assert_valid("BrakeAcknowledgement", "spec", made["spec"])
    read = read_brake_acknowledgement(made)
    assert (read.node, read.acknowledged) == ("n", BRAKED)
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert brake_acknowledgement_patch(BRAKED)["spec"]["boundMilliwatts"] == 120


def test_the_later_one_counts() -> None:
    assert gpu_node().with_acknowledgement(BRAKED).acknowledged == BRAKED
    assert gpu_node().with_acknowledgement(BRAKED).braked_milliwatts == 120


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ({"boottimeNanoseconds": 2000}, {}),  # the status has said so itself
        ({"boottimeNanoseconds": 3000}, {}),  # a GPU has drifted up since
        ({}, {"boot_id": "boot-0"}),
        ({}, {"driver_load": "driver-0"}),
        ({}, {"bound_by": "1.0"}),  # of an agent that another version has replaced
        ({"bootID": "boot-0"}, {}),  # nothing is acknowledged in this session yet
        ({"driverSession": "driver-0"}, {"driver_load": "driver-0"}),  # the driver has been loaded anew since both
    ],
)
def test_any_other_one_does_not(own: dict[str, Any], other: dict[str, Any]) -> None:
    node = gpu_node(**own)
    assert node.with_acknowledgement(replace(BRAKED, **other)) is node


def test_a_node_without_an_acknowledgement_of_its_own_gets_none() -> None:
    session = {"bootID": "boot-1", "driverSession": "driver-1", "agentVersion": "2.0"}
    node = read_gpu_node({"metadata": {"name": "n"}, "spec": {}, "status": session})
    assert node.with_acknowledgement(BRAKED) is node
