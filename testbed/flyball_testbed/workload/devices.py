"""The kubelet's part in a simulated node: which pod has which GPUs, in a file that the node agent reads.

`<hardware directory>/<node>.pods.json` holds `{"pods": [{"namespace", "name", "uid", "devices": ["GPU-..."]}]}`. It is
replaced whole on each change, and is also how a restarted workload host knows what it had given out. A device is a whole
GPU, or, as NVIDIA's device plugin names them, a replica of one (`GPU-...::1`, where `<node>.replicas` says how many each
has) or a MIG instance (`MIG-...`, where the GPU is partitioned).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from flyball_simulated_gpu.device import DeviceFault
from flyball_simulated_gpu.hardware_file import create_node_file
from flyball_simulated_gpu.physics import DeviceConstants
from flyball_simulated_gpu.shared import SimulatedDevice, SimulatedNode

from flyball_testbed.workload.pods import GpuPod

GPU, MIG = "GPU-", "MIG-"


def hardware_path(directory: Path, node: str) -> Path:
    return directory / f"{node}.gpus"


def pods_path(directory: Path, node: str) -> Path:
    return directory / f"{node}.pods.json"


def replicas_path(directory: Path, node: str) -> Path:
    """How many pods may share each of the node's GPUs; one where there is no such file."""
    return directory / f"{node}.replicas"


def create_hardware(directory: Path, nodes: Iterable[str], product: DeviceConstants, gpus_per_node: int) -> None:
    """Power the GPUs of each node for the first time; hardware that is there already is left as it is."""
    directory.mkdir(parents=True, exist_ok=True)
    for node in nodes:
        if not hardware_path(directory, node).exists():
            create_node_file(hardware_path(directory, node), devices=[product] * gpus_per_node)


def _board(device: str) -> str:
    """The UUID of the GPU that a device is, or is a part of."""
    uuid = device.partition("::")[0]
    return f"{GPU}{uuid.removeprefix(MIG)}" if uuid.startswith(MIG) else uuid


@dataclass(frozen=True, slots=True)
class _Holder:
    namespace: str
    name: str
    devices: tuple[str, ...]


class NodeDevices:
    """The GPUs of one node and who holds them. Raises FileNotFoundError where the node has no hardware file."""

    def __init__(self, directory: Path, node: str) -> None:
        self.node = node
        self._hardware = SimulatedNode.open(hardware_path(directory, node))
        self._path = pods_path(directory, node)
        self._replicas_path = replicas_path(directory, node)
        self._holders: dict[str, _Holder] = {}
        if self._path.exists():
            for pod in json.loads(self._path.read_text())["pods"]:
                self._holders[pod["uid"]] = _Holder(pod["namespace"], pod["name"], tuple(pod["devices"]))

    @property
    def holders(self) -> tuple[str, ...]:
        """The UIDs of the pods that hold GPUs."""
        return tuple(self._holders)

    def allocate(self, pod: GpuPod) -> list[SimulatedDevice] | None:
        """The GPUs of a pod, given to it now if it has none yet; None while too few are free."""
        holder = self._holders.get(pod.uid)
        if holder is None:
            taken = {device for other in self._holders.values() for device in other.devices}
            free = [device for device in self._offered() if device not in taken]
            if len(free) < pod.gpus:
                return None
            holder = self._holders[pod.uid] = _Holder(pod.namespace, pod.name, tuple(free[: pod.gpus]))
            self._write()
        return self.held_by(pod.uid)

    def _offered(self) -> list[str]:
        """The ids of everything that pods can have, the GPUs in turn."""
        devices = self._hardware.devices
        path = self._replicas_path
        replicas = int(path.read_text()) if path.exists() else 1
        if replicas > 1:
            return [f"{device.uuid}::{replica}" for replica in range(replicas) for device in devices]
        return [
            f"{MIG}{device.uuid.removeprefix(GPU)}" if device.flags & DeviceFault.MIG else device.uuid
            for device in devices
        ]

    def held_by(self, pod_uid: str) -> list[SimulatedDevice]:
        """The GPUs that a pod holds, or holds parts of."""
        holder = self._holders.get(pod_uid)
        return [] if holder is None else [self._hardware.device(_board(device)) for device in holder.devices]

    def release(self, pod_uid: str) -> None:
        """Take a pod's GPUs back, idle unless others are on them; one that holds none is no error."""
        left = self._holders.pop(pod_uid, None)
        if left is None:
            return
        shared = {_board(device) for other in self._holders.values() for device in other.devices}
        for board in {_board(device) for device in left.devices} - shared:
            self._hardware.device(board).set_activity(0.0)
        self._write()

    def _write(self) -> None:
        pods = [
            {"namespace": holder.namespace, "name": holder.name, "uid": uid, "devices": list(holder.devices)}
            for uid, holder in self._holders.items()
        ]
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        temporary.write_text(json.dumps({"pods": pods}))
        temporary.rename(self._path)

    def close(self) -> None:
        self._hardware.close()


class DeviceManager:
    """The GPUs of every node that has a hardware file in `directory`; nodes without one are not ours."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._nodes: dict[str, NodeDevices] = {}

    def node(self, name: str) -> NodeDevices | None:
        """The node's devices; None where it has no hardware file (yet)."""
        found = self._nodes.get(name)
        if found is None:
            try:
                found = self._nodes[name] = NodeDevices(self._directory, name)
            except FileNotFoundError:
                return None
        return found

    def adopt(self, living: Iterable[str]) -> None:
        """Take back what pods held that are gone meanwhile; `living` are the UIDs of those that may still run."""
        alive = set(living)
        for path in self._directory.glob("*.pods.json"):
            node = self.node(path.name.removesuffix(".pods.json"))
            for uid in node.holders if node is not None else ():
                if node is not None and uid not in alive:
                    node.release(uid)

    def close(self) -> None:
        for node in self._nodes.values():
            node.close()
