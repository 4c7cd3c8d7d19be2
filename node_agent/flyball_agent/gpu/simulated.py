"""The agent's `Gpu` in front of a simulated GPU, real-time or virtual, with the driver faults of its flags."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from flyball_api.values.units import MilliwattsPerGpu
from flyball_simulated_gpu import physics
from flyball_simulated_gpu.device import DeviceFault, PhysicalDevice, setter_error
from flyball_simulated_gpu.shared import SimulatedNode

from flyball_agent.gpu.gpu import (
    CallTimedOut,
    Gpu,
    GpuDriver,
    GpuLimits,
    GpuLost,
    GpuReading,
    InvalidArgument,
    NoPermission,
    PowerLimitReading,
    ResetRequired,
    XidError,
    claimed_device_id,
    driver_error,
    plausible,
)

IMPLAUSIBLE_POWER_MILLIWATTS = 3_700_000
# As integers, whose operators are many times as fast: they are looked at in every call.
_IMPLAUSIBLE_POWER, _MIG, _NOT_PERSISTENT = (
    int(fault) for fault in (DeviceFault.IMPLAUSIBLE_POWER, DeviceFault.MIG, DeviceFault.NOT_PERSISTENT)
)
_READ_FAULTS = int(DeviceFault.LOST | DeviceFault.RESET_REQUIRED | DeviceFault.HANG)


class SimulatedGpu(Gpu):
    """One simulated GPU as the agent's driver sees it."""

    def __init__(self, device: PhysicalDevice) -> None:
        constants = device.constants
        self.device = device
        self.uuid = device.uuid
        self.index = device.index
        self.model = constants.product_name
        self.limits = GpuLimits(
            MilliwattsPerGpu(constants.min_limit_milliwatts),
            MilliwattsPerGpu(constants.max_limit_milliwatts),
            MilliwattsPerGpu(constants.default_limit_milliwatts),
            tuple(physics.supported_clocks_megahertz(constants)),
        )

    def read(self) -> GpuReading:
        flags = self._check("read")
        state = self.device.read()
        power = MilliwattsPerGpu(IMPLAUSIBLE_POWER_MILLIWATTS if flags & _IMPLAUSIBLE_POWER else state.power_milliwatts)
        reading = GpuReading(
            limit=_limit(state),
            sm_clock_megahertz=state.sm_clock_megahertz,
            average_power_milliwatts=power,
            instant_power_milliwatts=power,
            energy_millijoules=physics.counter_millijoules(state),
            utilization_percent=None if flags & _MIG else 100 if state.activity > 0 else 0,
            temperature_celsius=physics.temperature_celsius(self.device.constants, state),
            throttle_reasons=physics.throttle_reasons(self.device.constants, state),
            persistence_mode=not flags & _NOT_PERSISTENT,
            handed_out_as=(claimed_device_id(self.index), *self._parts(flags)),
        )
        return plausible(self.uuid, reading, self.limits) if flags else reading

    def _parts(self, flags: int) -> tuple[str, ...]:
        return (f"MIG-{self.uuid.removeprefix('GPU-')}",) if flags & _MIG else ()

    def read_power_limit(self) -> PowerLimitReading:
        self._check("read power limit")
        state = self.device.read()
        return _limit(state)

    def set_power_limit_milliwatts(self, limit_milliwatts: MilliwattsPerGpu) -> None:
        if self._may_set("set power limit"):
            try:
                self.device.set_power_limit_milliwatts(limit_milliwatts)
            except ValueError as error:
                raise InvalidArgument("set power limit", self.uuid, 2, str(error)) from error

    def set_locked_clocks_megahertz(self, min_megahertz: int, max_megahertz: int) -> None:
        if self._may_set("lock clocks"):
            try:
                self.device.set_locked_clocks_megahertz(min_megahertz, max_megahertz)
            except ValueError as error:
                raise InvalidArgument("lock clocks", self.uuid, 2, str(error)) from error

    def reset_locked_clocks(self) -> None:
        if self._may_set("unlock clocks"):
            self.device.reset_locked_clocks()

    def enable_persistence_mode(self) -> None:
        if self._may_set("enable persistence mode"):
            self.device.flags &= ~DeviceFault.NOT_PERSISTENT

    def _check(self, operation: str) -> int:
        flags = int(self.device.flags)
        if flags & _READ_FAULTS:
            if flags & DeviceFault.LOST:
                raise GpuLost(operation, self.uuid, 15)
            if flags & DeviceFault.RESET_REQUIRED:
                raise ResetRequired(operation, self.uuid, 16)
            raise CallTimedOut(operation, self.uuid)
        return flags

    def _may_set(self, operation: str) -> bool:
        """False where the driver reports success and does nothing."""
        flags = self._check(operation)
        if not flags:
            return True
        if flags & DeviceFault.NO_PERMISSION:
            raise NoPermission(operation, self.uuid, 4)
        if flags & DeviceFault.SETTERS_FAIL:
            raise driver_error(setter_error(self.device.flags), operation, self.uuid)
        return not flags & DeviceFault.SETTERS_LIE


def _limit(state: physics.DeviceState) -> PowerLimitReading:
    return PowerLimitReading(
        MilliwattsPerGpu(state.requested_limit_milliwatts), MilliwattsPerGpu(state.enforced_limit_milliwatts)
    )


class PhysicalNode(Protocol):
    """A simulated node: `SimulatedNode` or `VirtualNode`."""

    @property
    def devices(self) -> Sequence[PhysicalDevice]: ...

    @property
    def boot_id(self) -> str: ...

    @property
    def driver_load(self) -> int: ...

    def close(self) -> None: ...


class SimulatedDriver(GpuDriver):
    """The simulated GPUs of one node. Its calls take microseconds and are made without a thread."""

    name = "simulated"
    version = "simulated"

    def __init__(self, node: PhysicalNode) -> None:
        self.node = node
        self._gpus = [SimulatedGpu(device) for device in node.devices]
        self._xids_taken = {device.uuid: device.xid_errors[0] for device in node.devices}
        self._closed = False

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SimulatedDriver:
        """The node of a hardware file. Raises FileNotFoundError, or HardwareFileError for something else."""
        return cls(SimulatedNode.open(path))

    @property
    def boot_id(self) -> str:
        return self.node.boot_id

    @property
    def driver_load(self) -> str:
        return str(self.node.driver_load)

    def gpus(self) -> Sequence[Gpu]:
        return self._gpus

    def take_xid_errors(self) -> Sequence[XidError]:
        found = []
        for gpu in self._gpus:
            count, last = gpu.device.xid_errors
            if new := count - self._xids_taken[gpu.uuid]:
                found += [XidError(gpu.uuid, last)] * new
                self._xids_taken[gpu.uuid] = count
        return found

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for gpu in self._gpus:
            if gpu.device.flags & DeviceFault.NOT_PERSISTENT and gpu.device.read().activity == 0.0:
                gpu.device.set_power_limit_milliwatts(gpu.device.constants.default_limit_milliwatts)
        self.node.close()
