"""Simulated GPUs in memory under a clock that the caller moves: thousands of nodes in one process, deterministic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import NAMESPACE_URL, uuid5

from flyball_simulated_gpu import physics
from flyball_simulated_gpu.device import (
    DeviceFault,
    check_activity,
    check_locked_clocks,
    check_power_limit,
    taken_milliwatts,
)
from flyball_simulated_gpu.physics import DeviceConstants, DeviceState


class VirtualDevice:
    """One GPU; the methods of `SimulatedDevice`, without file, lock or latency."""

    def __init__(self, node: VirtualNode, index: int, uuid: str, constants: DeviceConstants) -> None:
        self._node = node
        self.uuid = uuid
        self.index = index
        self.constants = constants
        self.flags = DeviceFault(0)
        self.state = physics.power_on(constants, node.clock_ns())
        self.xid_errors = (0, 0)  # how many the driver has reported, and which the last one was

    def read(self) -> DeviceState:
        """The GPU as it is now. The object is live: it changes with the next call."""
        physics.settle(self.state, self._node.clock_ns())
        return self.state

    def set_power_limit_milliwatts(self, limit_milliwatts: int) -> None:
        """Set the requested limit. Raises ValueError out of the GPU's range."""
        check_power_limit(self, limit_milliwatts)
        limit_milliwatts = taken_milliwatts(self, limit_milliwatts)
        settle_ns = self._node.settle_milliseconds * 1_000_000
        physics.set_power_limit(self.constants, self.state, self._node.clock_ns(), limit_milliwatts, settle_ns)

    def set_locked_clocks_megahertz(self, min_megahertz: int, max_megahertz: int) -> None:
        """Lock the SM clock to a range. Raises ValueError where it is empty or outside the GPU's clocks."""
        check_locked_clocks(self, min_megahertz, max_megahertz)
        physics.set_locked_clocks(self.constants, self.state, self._node.clock_ns(), min_megahertz, max_megahertz)

    def reset_locked_clocks(self) -> None:
        physics.set_locked_clocks(self.constants, self.state, self._node.clock_ns(), 0, 0)

    def set_activity(self, activity: float) -> None:
        """Say how busy the GPU is: 0 idle .. 1 the heaviest kernel. Raises ValueError outside."""
        check_activity(self, activity)
        physics.set_activity(self.constants, self.state, self._node.clock_ns(), activity)

    def set_out_of_band_cap_milliwatts(self, cap_milliwatts: int) -> None:
        """Impose a limit that the driver did not ask for, as a BMC can; 0 takes it away."""
        physics.set_out_of_band_cap(self.constants, self.state, self._node.clock_ns(), cap_milliwatts)

    def reset_energy_counter(self) -> None:
        """Start the driver's energy counter from zero, as some drivers do by themselves."""
        physics.settle(self.state, self._node.clock_ns())
        physics.reset_counter(self.state)

    def jump_energy_counter(self, millijoules: int) -> None:
        """Let the driver's energy counter leap ahead, as some drivers' do."""
        physics.settle(self.state, self._node.clock_ns())
        physics.jump_counter(self.state, millijoules)

    def report_xid_error(self, xid: int) -> None:
        """Have the driver report an Xid error of this GPU."""
        self.xid_errors = (self.xid_errors[0] + 1, xid)

    def reload(self) -> None:
        """What a driver reload does to this GPU."""
        physics.reload_driver(self.constants, self.state, self._node.clock_ns())


class VirtualNode:
    """The GPUs of one node in memory; `clock_ns` is the simulation's time. UUIDs follow from the name."""

    def __init__(
        self,
        name: str,
        devices: Sequence[DeviceConstants],
        clock_ns: Callable[[], int],
        *,
        boot_id: str = "boot-1",
        settle_milliseconds: int = 0,
    ) -> None:
        self.name = name
        self.clock_ns = clock_ns
        self.boot_id = boot_id
        self.driver_load = 1
        self.settle_milliseconds = settle_milliseconds
        self.devices = [
            VirtualDevice(self, index, f"GPU-{uuid5(NAMESPACE_URL, f'{name}/{index}')}", constants)
            for index, constants in enumerate(devices)
        ]
        self._by_uuid = {device.uuid: device for device in self.devices}

    def device(self, uuid: str) -> VirtualDevice:
        """The GPU of that UUID. Raises KeyError, naming those that there are."""
        try:
            return self._by_uuid[uuid]
        except KeyError:
            raise KeyError(f"{self.name}: no device {uuid}, only {', '.join(self._by_uuid)}") from None

    @property
    def counter_milliseconds(self) -> int:
        """How often the energy counters move; 0: with the energy."""
        return self.devices[0].state.counter_period_ns // 1_000_000

    @counter_milliseconds.setter
    def counter_milliseconds(self, value: int) -> None:
        for device in self.devices:
            device.state.counter_period_ns = value * 1_000_000

    def reload_driver(self) -> None:
        """Reload the driver: defaults, nothing running, counters from zero, and a new driver session."""
        for device in self.devices:
            device.reload()
        self.driver_load += 1

    def reboot(self, boot_id: str) -> None:
        """Reboot the node: as a driver reload, with a new boot id."""
        self.boot_id = boot_id
        self.reload_driver()

    def close(self) -> None:
        """Nothing is held; here so that a virtual node can stand wherever a file-backed one does."""
