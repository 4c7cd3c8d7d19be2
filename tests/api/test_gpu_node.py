"""GPUNodes: which acknowledgement counts, and what the GPUs come to that nobody has measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from flyball_api.gpu_node import GpuNode, gpu_node_object, read_gpu_node
from flyball_api.grant import Grant, JobGrant, PowerBound
from flyball_api.reading import InvalidObject
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


@pytest.mark.parametrize("spec", [{"spec": {}}, {"spec": None}, {}])
def test_a_node_without_a_spec_has_no_grant(spec: dict[str, Any]) -> None:
    assert read_gpu_node({"metadata": {"name": "n"}, **spec}).grant is None


@pytest.mark.parametrize("spec", [[], "", 0, False, [{}], {"epoch": None}])
def test_a_spec_that_is_no_object_is_refused_and_not_taken_for_none(spec: Any) -> None:
    with pytest.raises(
        InvalidObject, match=r"^GPUNode n: spec: (Expected `object`|Object missing required field `epoch`)"
    ):
        read_gpu_node({"metadata": {"name": "n"}, "spec": spec})


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


def devices(*limits: tuple[int | None, int | None]) -> list[dict[str, Any]]:
    return [
        {
            "uuid": f"GPU-{index}",
            "limits": {"maxMilliwatts": 400, "requestedMilliwatts": requested, "enforcedMilliwatts": enforced},
        }
        for index, (requested, enforced) in enumerate(limits)
    ]


@pytest.mark.parametrize(
    ("what", "limits", "last_round", "wanted"),
    [
        ("as acknowledged", [(100, 100), (100, 100)], (20, "2.0"), 0),
        ("less", [(50, 50), (100, 100)], (20, "2.0"), 0),
        ("more", [(100, 400), (100, 100)], (20, "2.0"), 500),
        ("a limit that was raised and is not enforced yet", [(300, 100), (100, 100)], (20, "2.0"), 400),
        ("what cannot be read beside more", [(300, 300), (None, None)], (20, "2.0"), 700),
        ("what cannot be read beside less", [(100, 100), (None, None)], (20, "2.0"), 0),
        (
            "as much as all that was acknowledged, beside what cannot be read",
            [(200, 200), (None, None)],
            (20, "2.0"),
            600,
        ),
        ("read before the acknowledgement, which is of a brake", [(300, 300), (100, 100)], (9, "2.0"), 0),
        ("by an agent that another one has followed", [(300, 300), (100, 100)], (20, "1.0"), 0),
        ("by one that does not say when", [(300, 300), (100, 100)], None, 0),
        (
            "less, beside what held as much that cannot be read any more",
            [(190, 190), (None, None)],
            (20, "2.0", 290),
            290,
        ),
        ("as acknowledged, beside what cannot be read any more", [(100, 100), (None, None)], (20, "2.0", 200), 0),
        ("more, of which the agent says no more", [(300, 300), (100, 100)], (20, "2.0", 200), 400),
    ],
)
def test_what_is_read_back_after_an_acknowledgement_is_known_where_it_is_more(
    what: str,
    limits: list[tuple[int | None, int | None]],
    last_round: tuple[int, str] | tuple[int, str, int] | None,
    wanted: int,
) -> None:
    acknowledged = {
        "epoch": 3,
        "generation": 4,
        "limitsMilliwatts": 200,
        "bootID": "boot-1",
        "driverSession": "driver-1",
        "boottimeNanoseconds": 10,
    }
    status: dict[str, Any] = {"agentVersion": "2.0", "acknowledged": acknowledged, "devices": devices(*limits)}
    if last_round is not None:
        status["lastRound"] = dict(zip(("boottimeNanoseconds", "by", "limitsMilliwatts"), last_round, strict=False))
    assert gpu_node(**status).read_back_since_milliwatts == wanted, what
    elsewhere = {**status, "acknowledged": {**acknowledged, "driverSession": "driver-0"}}
    assert gpu_node(**elsewhere).read_back_since_milliwatts == 0
    del status["acknowledged"]
    assert gpu_node(**status).read_back_since_milliwatts == 0
