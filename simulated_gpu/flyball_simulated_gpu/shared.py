"""Simulated GPUs in real time, on a hardware file that every process of a simulated node shares.

Simulated training processes set the activity of these GPUs, tests inject faults into them, and the agent's adapter
(`flyball_agent.gpu.simulated`) drives them. The file is defined in docs/simulated-gpu.md.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import TracebackType

from flyball_simulated_gpu import physics
from flyball_simulated_gpu.clock import boottime_ns
from flyball_simulated_gpu.device import (
    DeviceFault,
    check_activity,
    check_locked_clocks,
    check_power_limit,
    taken_milliwatts,
)
from flyball_simulated_gpu.hardware_file import NodeFile, RecordFile
from flyball_simulated_gpu.physics import DeviceConstants, DeviceState


class SimulatedDevice:
    """One GPU in the hardware file. Every method is a complete, crash-safe change or a consistent read."""

    def __init__(self, node: NodeFile, record: RecordFile) -> None:
        self._node = node
        self._record = record
        self.uuid = record.uuid
        self.index = record.index
        self.constants = record.constants

    @property
    def flags(self) -> DeviceFault:
        return DeviceFault(self._record.flags)

    @flags.setter
    def flags(self, value: DeviceFault) -> None:
        self._record.flags = int(value)

    def read(self) -> DeviceState:
        """The GPU as it is now (a copy, settled to the time of the call)."""
        return self._record.read()

    def set_power_limit_milliwatts(self, limit_milliwatts: int) -> None:
        """Set the requested limit; takes the node's setter latency. Raises ValueError out of the GPU's range."""
        check_power_limit(self, limit_milliwatts)
        limit_milliwatts = taken_milliwatts(self, limit_milliwatts)
        self._wait_as_a_driver_does()
        settle_ns = self._node.settle_milliseconds * 1_000_000
        self._record.change(
            lambda constants, state, now: physics.set_power_limit(constants, state, now, limit_milliwatts, settle_ns)
        )

    def set_locked_clocks_megahertz(self, min_megahertz: int, max_megahertz: int) -> None:
        """Lock the SM clock to a range. Raises ValueError where it is empty or outside the GPU's clocks."""
        check_locked_clocks(self, min_megahertz, max_megahertz)
        self._wait_as_a_driver_does()
        self._record.change(
            lambda constants, state, now: physics.set_locked_clocks(constants, state, now, min_megahertz, max_megahertz)
        )

    def reset_locked_clocks(self) -> None:
        self._wait_as_a_driver_does()
        self._record.change(lambda constants, state, now: physics.set_locked_clocks(constants, state, now, 0, 0))

    def set_activity(self, activity: float) -> None:
        """Say how busy the GPU is: 0 idle .. 1 the heaviest kernel. Raises ValueError outside."""
        check_activity(self, activity)
        self._record.change(lambda constants, state, now: physics.set_activity(constants, state, now, activity))

    def set_out_of_band_cap_milliwatts(self, cap_milliwatts: int) -> None:
        """Impose a limit that the driver did not ask for, as a BMC can; 0 takes it away."""
        self._record.change(
            lambda constants, state, now: physics.set_out_of_band_cap(constants, state, now, cap_milliwatts)
        )

    def reset_energy_counter(self) -> None:
        """Start the driver's energy counter from zero, as some drivers do by themselves."""
        self._record.change(_reset_counter)

    def jump_energy_counter(self, millijoules: int) -> None:
        """Let the driver's energy counter leap ahead, as some drivers' do."""
        self._record.change(lambda constants, state, now: physics.jump_counter(state, millijoules))

    @property
    def xid_errors(self) -> tuple[int, int]:
        """How many Xid errors the driver has reported, and which the last one was."""
        return self._record.xid_errors

    def report_xid_error(self, xid: int) -> None:
        """Have the driver report an Xid error of this GPU."""
        self._record.report_xid_error(xid)

    def reload(self) -> None:
        """What a driver reload does to this GPU."""
        self._record.change(physics.reload_driver)

    def _wait_as_a_driver_does(self) -> None:
        latency = self._node.setter_latency_microseconds
        if latency:
            time.sleep(latency / 1e6)


def _reset_counter(constants: DeviceConstants, state: DeviceState, now_ns: int) -> None:
    physics.settle(state, now_ns)
    physics.reset_counter(state)


class SimulatedNode:
    """The GPUs of one node, opened from its hardware file.

    Raises FileNotFoundError, or HardwareFileError for a file that is something else.
    """

    def __init__(self, file: NodeFile) -> None:
        self.file = file
        self.devices = [SimulatedDevice(file, record) for record in file.records]
        self._by_uuid = {device.uuid: device for device in self.devices}

    @classmethod
    def open(cls, path: str | os.PathLike[str], clock_ns: Callable[[], int] = boottime_ns) -> SimulatedNode:
        return cls(NodeFile(path, clock_ns))

    def device(self, uuid: str) -> SimulatedDevice:
        """The GPU of that UUID. Raises KeyError, naming those that there are."""
        try:
            return self._by_uuid[uuid]
        except KeyError:
            raise KeyError(f"{self.file.path}: no device {uuid}, only {', '.join(self._by_uuid)}") from None

    @property
    def boot_id(self) -> str:
        return self.file.boot_id

    @property
    def driver_load(self) -> int:
        return self.file.driver_load

    @property
    def counter_milliseconds(self) -> int:
        """How often the energy counters move; 0: with the energy."""
        return self.file.counter_milliseconds

    @counter_milliseconds.setter
    def counter_milliseconds(self, value: int) -> None:
        self.file.counter_milliseconds = value

    def reload_driver(self) -> None:
        """Reload the driver: defaults, nothing running, counters from zero, and a new driver session."""
        for device in self.devices:
            device.reload()
        self.file.driver_load += 1

    def reboot(self, boot_id: str) -> None:
        """Reboot the node: as a driver reload, with a new boot id."""
        self.file.boot_id = boot_id
        self.reload_driver()

    def close(self) -> None:
        self.file.close()

    def __enter__(self) -> SimulatedNode:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
