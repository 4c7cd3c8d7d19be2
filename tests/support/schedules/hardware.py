"""The machines: GPUs whose every change the referee sees, and what befalls whole nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from flyball_agent.gpu.gpu import DriverUnavailable
from flyball_agent.gpu.simulated import SimulatedDriver
from flyball_simulated_gpu.device import DeviceFault, check_power_limit
from flyball_simulated_gpu.physics import DeviceConstants, DeviceState
from flyball_simulated_gpu.virtual import VirtualDevice, VirtualNode

from tests.support.operator_objects import A100
from tests.support.power_cluster import DEFAULT, GPUS, LARGEST, MIN
from tests.support.schedules.memory_api import Json
from tests.support.schedules.processes import FailingDisk
from tests.support.schedules.referee import Referee
from tests.support.schedules.virtual_time import OUTSIDE

# The limits of tests.support.power_cluster; few clocks, as nobody here looks at them.
CONSTANTS = DeviceConstants(
    product_name=A100,
    min_limit_milliwatts=MIN * 1000,
    max_limit_milliwatts=LARGEST * 1000,
    default_limit_milliwatts=DEFAULT * 1000,
    idle_milliwatts=58_000,
    clock_min_megahertz=210,
    clock_max_megahertz=1410,
    clock_step_megahertz=300,
    knee_megahertz=1125,
    voltage_slope=1.0,
    watts_per_megahertz=0.162,
)


class WatchedDevice:
    """A GPU in memory; the referee looks after each change. While `late_seconds`, what is set takes effect that late; what
    is still to take effect when something else does never will: a driver works requests off in their order."""

    def __init__(self, device: VirtualDevice, node: VirtualNode, referee: Referee) -> None:
        self.device = device
        self.uuid = device.uuid
        self.index = device.index
        self.constants = device.constants
        self.late_seconds = 0.0
        self._asked, self._took = 0, 0  # the last request, and that which the limit is of
        self._node = node
        self._referee = referee
        self._loads = node.driver_load

    @property
    def flags(self) -> DeviceFault:
        return self.device.flags

    @flags.setter
    def flags(self, value: DeviceFault) -> None:
        self.device.flags = value

    @property
    def xid_errors(self) -> tuple[int, int]:
        return self.device.xid_errors

    def read(self) -> DeviceState:
        return self.device.read()

    def set_power_limit_milliwatts(self, limit_milliwatts: int) -> None:
        self._asked += 1
        if not self.late_seconds:
            self._take(limit_milliwatts, self._asked, self._node.driver_load)
            return
        check_power_limit(self.device, limit_milliwatts)
        taken = (limit_milliwatts, self._asked, self._node.driver_load)
        asyncio.get_running_loop().call_later(self.late_seconds, self._take, *taken, context=OUTSIDE)

    def _take(self, limit_milliwatts: int, request: int, driver_load: int) -> None:
        if driver_load != self._node.driver_load or request < self._took:
            return  # a driver that was loaded anew knows nothing of it
        self._took = request
        self.device.set_power_limit_milliwatts(limit_milliwatts)
        self._referee.commanded(self.device)
        if self._node.settle_milliseconds:
            settles = self._node.settle_milliseconds / 1000
            asyncio.get_running_loop().call_later(settles, self._referee.look, context=OUTSIDE)

    def set_locked_clocks_megahertz(self, min_megahertz: int, max_megahertz: int) -> None:
        self.device.set_locked_clocks_megahertz(min_megahertz, max_megahertz)

    def reset_locked_clocks(self) -> None:
        self.device.reset_locked_clocks()


class Machine:
    """One node: its GPUs, its boots, its disk, and the labels that say where it hangs. There is no driver before
    `driver_comes_at`, and so nothing that tells the kubelet of GPUs."""

    def __init__(self, name: str, labels: Mapping[str, str], loop: asyncio.AbstractEventLoop, referee: Referee) -> None:
        self.name = name
        self.labels = dict(labels)
        self.disk = FailingDisk()
        self.held: dict[int, str] = {}  # which pod, by its name, holds which GPU
        self.boots = 1
        self.driver_comes_at = 0.0
        self._loop = loop
        self._booted_at = loop.time() - 1000.0
        self._referee = referee
        self.node = VirtualNode(name, [CONSTANTS] * GPUS, self.physical_ns, boot_id=f"{name}-boot-1")
        self.devices = list(self.node.devices)
        self.node.devices = [WatchedDevice(device, self.node, referee) for device in self.devices]  # type: ignore[misc]

    def physical_ns(self) -> int:
        """The time of the world, which goes on through reboots."""
        return round((1000.0 + self._loop.time()) * 1e9)

    def boottime_ns(self) -> int:
        """CLOCK_BOOTTIME of this boot."""
        return round((self._loop.time() - self._booted_at) * 1e9)

    @property
    def watched(self) -> list[WatchedDevice]:
        return self.node.devices  # type: ignore[return-value]

    def driver(self) -> SimulatedDriver:
        """Open the driver; raises DriverUnavailable while there is none."""
        if not self.shows_gpus:
            raise DriverUnavailable("open", detail="it is still being installed")
        return SimulatedDriver(self.node)

    def reload_driver(self, cause: str, stays: DeviceFault = DeviceFault.NOT_PERSISTENT) -> None:
        """Everything at its default, and only so much of what was the matter with the GPUs left."""
        self.node.driver_load += 1
        for device in self.devices:
            device.flags &= stays
            self._referee.by_itself(device, cause, device.reload)

    def reboot(self) -> None:
        """Everything at its default, what was not synced lost, the clock from zero."""
        self.boots += 1
        self.node.boot_id = f"{self.name}-boot-{self.boots}"
        self._booted_at = self._loop.time()
        self.disk.lose_power()
        self.disk.sick = False
        for device in self.watched:
            device.late_seconds = 0.0
        self.reload_driver("reboot")

    @property
    def shows_gpus(self) -> bool:
        """Whether its kubelet shows GPUs: not before there is a driver."""
        return self._loop.time() >= self.driver_comes_at

    def as_node(self, *, ready: bool = True, labelled: bool = True) -> Json:
        """The Node object that its kubelet registers."""
        labels = self.labels if labelled else {}
        product = {"nvidia.com/gpu.product": A100} if self.shows_gpus else {}
        return {
            "kind": "Node",
            "metadata": {"name": self.name, "labels": {"kubernetes.io/hostname": self.name, **product, **labels}},
            "spec": {},
            "status": {
                "capacity": {"nvidia.com/gpu": str(GPUS)} if self.shows_gpus else {},
                "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
                "nodeInfo": {"bootID": self.node.boot_id},
            },
        }
