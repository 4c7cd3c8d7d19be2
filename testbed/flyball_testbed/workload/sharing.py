"""How a simulated node hands out its GPUs: whole, in time slices, by MPS, or as MIG instances.

What NVIDIA's device plugin and feature discovery say of each on the Node is said here, and the simulated kubelet gives out
what was asked for by their ids. A board has one instance, the whole of it, for that is what the simulated driver shows.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from flyball_api.names import GPU_RESOURCE, LABEL_GPU_COUNT, LABEL_GPU_PRODUCT, LABEL_GPU_REPLICAS
from flyball_simulated_gpu.device import DeviceFault
from flyball_simulated_gpu.shared import SimulatedNode

from flyball_testbed.controlplane.api import ApiClient
from flyball_testbed.controlplane.nodes import NODES
from flyball_testbed.controlplane.stages import MIG_RESOURCE
from flyball_testbed.workload.devices import NodeDevices, hardware_path, replicas_path

LABEL_STRATEGY, LABEL_MIG_STRATEGY = "nvidia.com/gpu.sharing-strategy", "nvidia.com/mig.strategy"
SHARED_PRODUCT = "-SHARED"
DEFAULT_REPLICAS = 4


class Sharing(StrEnum):
    """What a unit of the node's extended resource is."""

    WHOLE = "whole"
    TIME_SLICING = "time-slicing"
    MPS = "mps"
    MIG = "mig"


def share_gpus(api: ApiClient, hardware: Path, node: str, sharing: Sharing, replicas: int = DEFAULT_REPLICAS) -> None:
    """Have a node hand out its GPUs so from now on; `replicas` pods to each under time slicing and MPS.

    Raises ValueError where pods hold some of them: a device plugin is configured anew on a drained node. Raises
    FileNotFoundError where the node has no simulated GPUs in `hardware`.
    """
    sliced = sharing in (Sharing.TIME_SLICING, Sharing.MPS)
    if sliced and replicas < 2:
        raise ValueError(f"{replicas} replicas share nothing (2 or more)")
    devices = NodeDevices(hardware, node)
    try:
        if devices.holders:
            held = len(devices.holders)
            raise ValueError(
                f"{held} pod{'s hold' if held > 1 else ' holds'} GPUs of {node}: cordon and drain it first"
            )
    finally:
        devices.close()
    with SimulatedNode.open(hardware_path(hardware, node)) as board:
        count, product = len(board.devices), board.devices[0].constants.product_name.replace(" ", "-")
        for device in board.devices:
            partitioned = device.flags | DeviceFault.MIG if sharing is Sharing.MIG else device.flags & ~DeviceFault.MIG
            device.flags = partitioned
    if sliced:
        replicas_path(hardware, node).write_text(str(replicas))
    else:
        replicas_path(hardware, node).unlink(missing_ok=True)
    labels = {
        LABEL_GPU_PRODUCT: f"{product}{SHARED_PRODUCT if sliced else ''}",
        LABEL_GPU_COUNT: None if sharing is Sharing.WHOLE else str(count),
        LABEL_GPU_REPLICAS: str(replicas) if sliced else None,
        LABEL_STRATEGY: sharing.value if sliced else None,
        LABEL_MIG_STRATEGY: "mixed" if sharing is Sharing.MIG else None,
    }
    whole = 0 if sharing is Sharing.MIG else count * replicas if sliced else count
    units = {GPU_RESOURCE: str(whole), MIG_RESOURCE: str(count) if sharing is Sharing.MIG else None}
    path = f"{NODES}/{node}"
    api.patch(path, {"metadata": {"labels": labels}})
    api.patch(f"{path}/status", {"status": {"capacity": units, "allocatable": units}})
