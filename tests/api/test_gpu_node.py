"""GPUNodes: which acknowledgement counts, and what the GPUs come to that nobody has measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from flyball_api.gpu_node import (
    GpuNode,
    former_labels_annotation,
    gpu_node_object,
    read_former_labels,
    read_gpu_node,
)
from flyball_api.grant import Grant, JobGrant, PowerBound
from flyball_api.reading import InvalidObject
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts

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


ACKNOWLEDGED = {
    "epoch": 3,
    "generation": 5,
    "limitsMilliwatts": 100,
    "bootID": "boot-1",
    "driverSession": "driver-1",
    "boundMilliwatts": 100,
    "boundBy": "2.0",
}


@pytest.mark.parametrize(
    ("changes", "braked"),
    [
        ({"boundMilliwatts": 199}, 199),
        ({"boundMilliwatts": 200}, None),  # the grant's own: there is no brake
        ({"boundMilliwatts": 0}, 0),
        ({"boundMilliwatts": None}, None),
        ({"generation": 4}, None),  # of an earlier grant, which this one supersedes
        ({"driverSession": "driver-0"}, None),  # the driver has put all limits back since
    ],
)
def test_what_a_brake_leaves_counts_under_the_grant_that_stands_where_it_is_less(
    changes: dict[str, Any], braked: int | None
) -> None:
    assert gpu_node(acknowledged={**ACKNOWLEDGED, **changes}, agentVersion="2.0").braked_milliwatts == braked


def test_without_an_acknowledgement_or_a_grant_nothing_is_braked_or_current() -> None:
    without_grant = replace(gpu_node(acknowledged=ACKNOWLEDGED, agentVersion="2.0"), grant=None)
    assert without_grant.acknowledged_since_driver_load
    assert gpu_node().acknowledged is None
    for node in (gpu_node(), without_grant):
        assert (node.acknowledged_current, node.braked_milliwatts) == (False, None)


@pytest.mark.parametrize(
    ("acknowledged", "granted", "current"),
    [("d1", "d1", True), ("d0", "d1", False), ("", "d1", True), ("d1", "", True)],
)
def test_digests_tell_grants_of_one_version_apart_where_both_sides_know_them(
    acknowledged: str, granted: str, current: bool
) -> None:
    node = gpu_node(acknowledged={**ACKNOWLEDGED, "digest": acknowledged}, agentVersion="2.0")
    assert node.grant is not None
    assert replace(node, grant=msgspec.structs.replace(node.grant, digest=granted)).acknowledged_current is current


@pytest.mark.parametrize(
    ("what", "last_round", "acknowledged", "alive"),
    [
        ("it has looked since", (20, "2.0"), ("boot-1", 10), 20),
        ("it has acknowledged a brake since", (20, "2.0"), ("boot-1", 30), 30),
        ("it has acknowledged in another boot, whose clock says nothing", (20, "2.0"), ("boot-0", 30), 20),
        ("it has acknowledged nothing", (20, "2.0"), None, 20),
        ("one before it said so", (20, "1.0"), ("boot-1", 30), None),
        ("it does not say", None, ("boot-1", 30), None),
    ],
)
def test_an_agent_was_alive_when_it_last_looked_or_acknowledged_in_this_boot(
    what: str, last_round: tuple[int, str] | None, acknowledged: tuple[str, int] | None, alive: int | None
) -> None:
    status: dict[str, Any] = {"agentVersion": "2.0"}
    if last_round is not None:
        status["lastRound"] = dict(zip(("boottimeNanoseconds", "by"), last_round, strict=True))
    if acknowledged is not None:
        boot, nanoseconds = acknowledged
        status["acknowledged"] = {**ACKNOWLEDGED, "bootID": boot, "boottimeNanoseconds": nanoseconds}
    assert gpu_node(**status).alive_nanoseconds == alive, what


@pytest.mark.parametrize(
    ("uuid", "conditions", "healthy"),
    [
        ("GPU-0", [], True),
        ("GPU-0", [("Healthy", "True")], True),
        ("GPU-0", [("Healthy", "False")], False),
        ("GPU-0", [("Healthy", "Unknown"), ("Persistent", "False")], True),
        ("GPU-0", [("Persistent", "False"), ("Healthy", "False")], False),
        ("", [("Healthy", "True")], False),  # the report of it cannot be read
    ],
)
def test_a_gpu_is_healthy_unless_it_is_said_not_to_be_or_its_report_cannot_be_read(
    uuid: str, conditions: list[tuple[str, str]], healthy: bool
) -> None:
    said = [{"type": kind, "status": status} for kind, status in conditions]
    (gpu,) = gpu_node(devices=[{"uuid": uuid, "conditions": said}]).gpus
    assert gpu.healthy is healthy


def annotated(**annotations: str) -> GpuNode:
    raw = gpu_node_object("n", {}, GRANT)
    raw["metadata"]["annotations"] = {
        f"flyball.dev/{name.replace('_', '-')}": text for name, text in annotations.items()
    }
    return read_gpu_node(raw)


def test_only_the_word_true_releases_a_node() -> None:
    assert annotated(release="true").release_asked
    assert not annotated(release="false").release_asked
    assert not gpu_node().release_asked


def test_former_labels_are_read_back_and_what_are_none_are_named() -> None:
    former = ({"rack": "r1"}, {"rack": "r2", "row": "a"})
    annotation = former_labels_annotation(former)
    assert annotation is not None
    assert annotated(former_labels=annotation).former_labels == former
    assert former_labels_annotation(()) is None
    assert (gpu_node().former_labels, gpu_node().problems) == ((), ())
    spoilt = annotated(former_labels="r1")
    assert spoilt.former_labels == ()
    assert ["metadata.annotations[flyball.dev/former-labels]" in problem for problem in spoilt.problems] == [True]
    with pytest.raises(InvalidObject):
        read_former_labels('{"rack": "r1"}')


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
        ("more at the very instant of the acknowledgement", [(300, 300), (100, 100)], (10, "2.0"), 400),
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
