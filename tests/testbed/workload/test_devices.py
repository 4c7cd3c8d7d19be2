"""Who has which GPUs: given out once, told to the agent in a file, and remembered over a restart."""

from __future__ import annotations

import json
from pathlib import Path

from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.device import DeviceFault
from flyball_simulated_gpu.shared import SimulatedNode
from flyball_testbed.workload.devices import (
    DeviceManager,
    NodeDevices,
    create_hardware,
    hardware_path,
    pods_path,
    replicas_path,
)
from flyball_testbed.workload.pods import GpuPod

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]


def pod(uid: str, gpus: int) -> GpuPod:
    return GpuPod("ns", f"pod-{uid}", uid, "n0", gpus, "Running", False)


def held(directory: Path) -> dict[str, list[str]]:
    content = json.loads(pods_path(directory, "n0").read_text())
    return {entry["uid"]: entry["devices"] for entry in content["pods"]}


def test_no_gpu_is_given_twice(tmp_path: Path) -> None:
    create_hardware(tmp_path, ["n0"], A100, 8)
    node = NodeDevices(tmp_path, "n0")
    first, second = node.allocate(pod("a", 4)), node.allocate(pod("b", 3))
    assert first is not None
    assert second is not None
    assert len({device.uuid for device in [*first, *second]}) == 7
    assert node.allocate(pod("c", 2)) is None
    assert node.allocate(pod("a", 4)) == first
    assert held(tmp_path) == {"a": [d.uuid for d in first], "b": [d.uuid for d in second]}
    first[0].set_activity(0.5)
    node.release("a")
    assert first[0].read().activity == 0.0
    third = node.allocate(pod("c", 2))
    assert third is not None
    assert json.loads(pods_path(tmp_path, "n0").read_text())["pods"][1] == {
        "namespace": "ns",
        "name": "pod-c",
        "uid": "c",
        "devices": [device.uuid for device in third],
    }


def test_a_restart_finds_what_was_given_out_and_takes_back_what_the_dead_held(tmp_path: Path) -> None:
    create_hardware(tmp_path, ["n0"], A100, 8)
    node = NodeDevices(tmp_path, "n0")
    living, dead = node.allocate(pod("living", 4)), node.allocate(pod("dead", 4))
    assert living is not None
    assert dead is not None
    dead[0].set_activity(0.5)
    create_hardware(tmp_path, ["n0"], A100, 8)  # does not replace what is there

    manager = DeviceManager(tmp_path)
    manager.adopt(["living"])
    again = manager.node("n0")
    assert again is not None
    kept = again.allocate(pod("living", 4))
    assert kept is not None
    assert [device.uuid for device in kept] == [device.uuid for device in living]
    assert dead[0].read().activity == 0.0
    assert list(held(tmp_path)) == ["living"]


def test_a_node_without_hardware_is_not_ours(tmp_path: Path) -> None:
    assert DeviceManager(tmp_path).node("cpu-only") is None


def test_the_replicas_of_gpus_are_handed_out_in_turn_and_a_shared_one_is_busy_until_the_last_leaves(
    tmp_path: Path,
) -> None:
    create_hardware(tmp_path, ["n0"], A100, 2)
    replicas_path(tmp_path, "n0").write_text("2")
    node = NodeDevices(tmp_path, "n0")
    first, second, third = (node.allocate(pod(uid, gpus)) for uid, gpus in (("a", 2), ("b", 1), ("c", 1)))
    assert first is not None
    assert second is not None
    assert third is not None
    boards = [device.uuid for device in first]
    assert len(set(boards)) == 2
    assert [device.uuid for device in [*second, *third]] == boards
    assert node.allocate(pod("d", 1)) is None
    assert held(tmp_path) == {
        "a": [f"{uuid}::0" for uuid in boards],
        "b": [f"{boards[0]}::1"],
        "c": [f"{boards[1]}::1"],
    }
    first[0].set_activity(1.0)
    node.release("a")
    assert first[0].read().activity == 1.0, "b is on it"
    node.release("b")
    assert first[0].read().activity == 0.0


def test_a_partitioned_gpu_is_handed_out_as_its_instance(tmp_path: Path) -> None:
    create_hardware(tmp_path, ["n0"], A100, 2)
    with SimulatedNode.open(hardware_path(tmp_path, "n0")) as hardware:
        hardware.devices[0].flags |= DeviceFault.MIG
        uuids = [device.uuid for device in hardware.devices]
    node = NodeDevices(tmp_path, "n0")
    got = node.allocate(pod("a", 2))
    assert got is not None
    assert [device.uuid for device in got] == uuids
    assert held(tmp_path) == {"a": [f"MIG-{uuids[0].removeprefix('GPU-')}", uuids[1]]}
