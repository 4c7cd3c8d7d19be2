"""Real boards through NVML, by nvidia-ml-py.

Power limits by `nvmlDeviceSetPowerManagementLimit` only: the binding's `_v2` setter returns success whatever the driver
said. Field values carry a return code each, which is checked. The energy counter is the measure of energy; power is
for the eye: the sensor looks at 25 of every 100 ms on A100 and H100.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from flyball_agent.gpu import (
    DeviceLimits,
    DeviceReading,
    DriverUnavailable,
    Gpu,
    GpuDriver,
    GpuError,
    NotSupported,
    PowerLimitReading,
    driver_error,
    plausible,
)

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")

T = TypeVar("T")


def _call(operation: str, uuid: str, function: Callable[..., T], *arguments: Any) -> T:
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise driver_error(int(error.value), operation, uuid) from error


class NvmlGpu(Gpu):
    """One board by its NVML handle. A measurement that the board does not support is asked for once only."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.uuid = ""
        self._handle = self._ask("handle", pynvml.nvmlDeviceGetHandleByIndex, index)
        self.uuid = str(self._ask("UUID", pynvml.nvmlDeviceGetUUID, self._handle))
        self.model = str(self._ask("name", pynvml.nvmlDeviceGetName, self._handle)).replace(" ", "-")
        low, high = self._ask("limits", pynvml.nvmlDeviceGetPowerManagementLimitConstraints, self._handle)
        default = self._ask("default limit", pynvml.nvmlDeviceGetPowerManagementDefaultLimit, self._handle)
        self.limits = DeviceLimits(int(low), int(high), int(default), self._supported_clocks())
        self._unsupported: set[str] = set()

    def _ask(self, operation: str, function: Callable[..., T], *arguments: Any) -> T:
        return _call(operation, self.uuid or f"GPU {self.index}", function, *arguments)

    def _supported_clocks(self) -> tuple[int, ...]:
        """Every SM clock, ascending; none where the board does not let clocks be chosen."""
        try:
            memory = self._ask("memory clocks", pynvml.nvmlDeviceGetSupportedMemoryClocks, self._handle)
            clocks = self._ask(
                "graphics clocks", pynvml.nvmlDeviceGetSupportedGraphicsClocks, self._handle, max(memory)
            )
        except NotSupported:
            return ()
        return tuple(sorted(int(clock) for clock in clocks))

    def _measure(self, operation: str, function: Callable[..., T], *arguments: Any) -> T | None:
        if operation in self._unsupported:
            return None
        try:
            return self._ask(operation, function, self._handle, *arguments)
        except NotSupported:
            self._unsupported.add(operation)
            return None

    def read_power_limit(self) -> PowerLimitReading:
        return PowerLimitReading(
            int(self._ask("requested limit", pynvml.nvmlDeviceGetPowerManagementLimit, self._handle)),
            int(self._ask("enforced limit", pynvml.nvmlDeviceGetEnforcedPowerLimit, self._handle)),
        )

    def read(self) -> DeviceReading:
        limit = self.read_power_limit()
        average, instant = self._power_fields()
        if average is None:
            average = self._measure("power", pynvml.nvmlDeviceGetPowerUsage)
        utilization = self._measure("utilization", pynvml.nvmlDeviceGetUtilizationRates)
        reading = DeviceReading(
            limit=limit,
            sm_clock_megahertz=self._measure("SM clock", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            average_power_milliwatts=average,
            instant_power_milliwatts=instant,
            energy_millijoules=self._measure("energy", pynvml.nvmlDeviceGetTotalEnergyConsumption),
            utilization_percent=None if utilization is None else int(utilization.gpu),
            temperature_celsius=self._measure(
                "temperature", pynvml.nvmlDeviceGetTemperatureV, pynvml.NVML_TEMPERATURE_GPU
            ),
            throttle_reasons=self._measure("clock reasons", pynvml.nvmlDeviceGetCurrentClocksEventReasons) or 0,
        )
        return plausible(self.uuid, reading, self.limits)

    def _power_fields(self) -> tuple[int | None, int | None]:
        fields = [pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_FI_DEV_POWER_INSTANT]
        values = self._measure("field values", pynvml.nvmlDeviceGetFieldValues, fields)
        if values is None:
            return None, None
        average, instant = (
            int(value.value.uiVal) if value.nvmlReturn == pynvml.NVML_SUCCESS else None for value in values
        )
        return average, instant

    def set_power_limit_milliwatts(self, limit_milliwatts: int) -> None:
        self._ask("set power limit", pynvml.nvmlDeviceSetPowerManagementLimit, self._handle, limit_milliwatts)

    def set_locked_clocks_megahertz(self, min_megahertz: int, max_megahertz: int) -> None:
        self._ask("lock clocks", pynvml.nvmlDeviceSetGpuLockedClocks, self._handle, min_megahertz, max_megahertz)

    def reset_locked_clocks(self) -> None:
        self._ask("unlock clocks", pynvml.nvmlDeviceResetGpuLockedClocks, self._handle)


class NvmlDriver(GpuDriver):
    """Every board that NVML shows. The library is NVIDIA's, found as `libnvidia-ml.so.1`, or the one at `library`.

    Raises GpuError at construction where the driver cannot be used. A board that cannot be opened is left out and named
    in `failed`.
    """

    name = "nvml"
    calls_block = True

    def __init__(self, library: str | os.PathLike[str] | None = None, boot_id: str | None = None) -> None:
        if library is not None:
            # The dynamic loader finds a library that is already loaded by its soname, which is what the binding asks.
            try:
                ctypes.CDLL(os.fspath(library))
            except OSError as error:
                raise DriverUnavailable("load library", detail=str(error)) from error
        _call("init", "", pynvml.nvmlInit)
        self._open = True
        self._boot_id = boot_id if boot_id is not None else BOOT_ID_FILE.read_text().strip()
        self._version = str(_call("driver version", "", pynvml.nvmlSystemGetDriverVersion))
        self._gpus: list[Gpu] = []
        self.failed: dict[int, GpuError] = {}
        for index in range(int(_call("count", "", pynvml.nvmlDeviceGetCount))):
            try:
                self._gpus.append(NvmlGpu(index))
            except GpuError as error:
                self.failed[index] = error

    @property
    def boot_id(self) -> str:
        return self._boot_id

    @property
    def incarnation(self) -> str:
        """NVML does not tell one load of the same driver from the next; energy counters that fall back do."""
        return self._version

    @property
    def version(self) -> str:
        return self._version

    def gpus(self) -> Sequence[Gpu]:
        return self._gpus

    def close(self) -> None:
        if self._open:
            self._open = False
            _call("shutdown", "", pynvml.nvmlShutdown)
