"""How a simulated node hands out its GPUs: what its Node says, what pods get, and that a node in use is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flyball_api.workloads import read_node
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_testbed.controlplane.nodes import gpu_node
from flyball_testbed.workload.devices import NodeDevices, create_hardware
from flyball_testbed.workload.pods import GpuPod
from flyball_testbed.workload.sharing import Sharing, share_gpus

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
EIGHT = 8


class OneNode:
    """An API server with one Node: a merge patch into its labels and resources."""

    def __init__(self) -> None:
        self.node = gpu_node("n0", gpus=EIGHT)

    def patch(self, path: str, body: Any) -> None:
        for section in ("metadata", "status"):
            for name, values in body.get(section, {}).items():
                changed = {**self.node[section][name], **values}
                self.node[section][name] = {key: value for key, value in changed.items() if value is not None}


@pytest.mark.parametrize(
    ("sharing", "replicas", "offered", "device"),
    [
        (Sharing.TIME_SLICING, 4, {"nvidia.com/gpu": "32"}, "::0"),
        (Sharing.MPS, 2, {"nvidia.com/gpu": "16"}, "::0"),
        (Sharing.MIG, 4, {"nvidia.com/gpu": "0", "nvidia.com/mig-7g.40gb": "8"}, "MIG-"),
    ],
)
def test_a_node_says_and_hands_out_what_its_plugin_would_and_is_whole_again(
    tmp_path: Path, sharing: Sharing, replicas: int, offered: dict[str, str], device: str
) -> None:
    create_hardware(tmp_path, ["n0"], A100, EIGHT)
    api: Any = OneNode()
    before = read_node(api.node)
    share_gpus(api, tmp_path, "n0", sharing, replicas)
    capacity = api.node["status"]["capacity"]
    assert {name: units for name, units in capacity.items() if name.startswith("nvidia.com/")} == offered
    read = read_node(api.node)
    assert (read.gpus, read.hidden_gpus) == (0, EIGHT), "boards, each once, and none that a pod has to itself"
    devices = NodeDevices(tmp_path, "n0")
    assert devices.allocate(GpuPod("ns", "pod", "uid", "n0", 1, "Running", False)) is not None
    (holder,) = devices._holders.values()
    assert device in holder.devices[0]
    with pytest.raises(ValueError, match="1 pod holds GPUs of n0: cordon and drain it first"):
        share_gpus(api, tmp_path, "n0", Sharing.WHOLE)
    devices.release("uid")
    share_gpus(api, tmp_path, "n0", Sharing.WHOLE)
    assert read_node(api.node) == before
    assert devices.allocate(GpuPod("ns", "pod", "uid", "n0", EIGHT, "Running", False)) is not None


def test_what_shares_nothing_and_what_is_not_there_is_refused(tmp_path: Path) -> None:
    api: Any = OneNode()
    with pytest.raises(ValueError, match="1 replicas share nothing"):
        share_gpus(api, tmp_path, "n0", Sharing.MPS, 1)
    with pytest.raises(FileNotFoundError):
        share_gpus(api, tmp_path, "n0", Sharing.MIG)
