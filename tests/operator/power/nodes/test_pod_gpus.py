"""What agents say of each pod's GPUs: an unknown draw is no draw of zero."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_api.gpu_node import read_gpu_node
from flyball_operator.power.nodes.info import NodeInfo
from flyball_operator.power.nodes.pod_gpus import NO_GPUS, PodsGpus
from msgspec.structs import replace

from tests.support.operator_objects import FLOOR, grant, job_grant, raw_device, raw_gpu_node, ready_node, running_pod

POD = running_pod("p1", "a", gpus=2)


def node(*devices: Any, acknowledged: bool = True) -> NodeInfo:
    given = grant(8 * FLOOR, jobs=(job_grant("uid-train", 280_000, 2, pod="p1"),))
    raw = raw_gpu_node("a", given, devices=list(devices), limits=8 * FLOOR, acknowledged=(1, int(acknowledged)))
    return replace(ready_node("a"), gpu_node=read_gpu_node(raw))


def of_pod(index: int, milliwatts: int | None, name: str = "p1") -> Any:
    device = raw_device(index, pod=("team", name), enforcedMilliwatts=250_000 + index)
    device["powerMilliwatts"] = milliwatts
    return {key: value for key, value in device.items() if value is not None}


def drawn(info: NodeInfo) -> int | None:
    gpus = PodsGpus()
    gpus.observe({"a": info})
    return gpus.of(POD).drawn_milliwatts


@pytest.mark.parametrize(
    ("devices", "milliwatts"),
    [
        ([of_pod(0, 100_000), of_pod(1, 120_000), of_pod(2, 70_000, "other"), raw_device(3)], 220_000),
        ([of_pod(0, 0), of_pod(1, 0)], 0),
        ([of_pod(0, 100_000), of_pod(1, None)], None),
        ([of_pod(0, 100_000)], None),
        ([raw_device(0), raw_device(1)], None),
    ],
    ids=["all", "none of it", "one of them does not say", "one of them is not known", "no GPU is its"],
)
def test_the_draw_is_known_where_it_is_of_each_gpu(devices: list[Any], milliwatts: int | None) -> None:
    assert drawn(node(*devices)) == milliwatts


def test_of_a_node_in_doubt_nobody_knows_the_draw() -> None:
    info = replace(node(of_pod(0, 100_000), of_pod(1, 120_000)), doubt="its agent has reported nothing for 80 s")
    assert drawn(info) is None


@pytest.mark.parametrize("acknowledged", [True, False])
def test_limits_are_those_read_back(acknowledged: bool) -> None:
    gpus = PodsGpus()
    gpus.observe({"a": node(of_pod(0, 100_000), of_pod(1, 120_000), acknowledged=acknowledged)})
    found = gpus.of(POD)
    assert (found.highest_milliwatts, found.acknowledged) == (250_001, acknowledged)


def test_a_limit_that_cannot_be_read_back_leaves_those_of_the_others() -> None:
    lost = of_pod(1, 120_000)
    del lost["limits"]["enforcedMilliwatts"]
    gpus = PodsGpus()
    gpus.observe({"a": node(of_pod(0, 100_000), lost)})
    assert gpus.of(POD).highest_milliwatts == 250_000


def test_nothing_is_known_of_a_pod_whose_node_has_no_gpunode_any_more() -> None:
    gpus, info = PodsGpus(), node(of_pod(0, 100_000), of_pod(1, 120_000))
    gpus.observe({"a": info})
    assert gpus.of(POD) != NO_GPUS
    gpus.observe({"a": replace(info, gpu_node=None)})
    assert gpus.of(POD) == NO_GPUS


def test_each_report_is_looked_through_once_and_what_is_gone_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    by_pod = PodsGpus.of.__globals__["_by_pod"]

    def counted(item: NodeInfo) -> Any:
        looked.append(item.name)
        return by_pod(item)

    monkeypatch.setitem(PodsGpus.of.__globals__, "_by_pod", counted)
    gpus, info = PodsGpus(), node(of_pod(0, 100_000), of_pod(1, 120_000))
    for _ in range(3):
        gpus.observe({"a": info})
        assert gpus.of(POD).drawn_milliwatts == 220_000
    assert looked == ["a"]
    gpus.observe({"a": node(of_pod(0, 1), of_pod(1, 1))})
    assert gpus.of(POD).drawn_milliwatts == 2
    gpus.observe({})
    assert gpus.of(POD) == NO_GPUS
    assert gpus._known == {}
