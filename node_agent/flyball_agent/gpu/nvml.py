"""Real GPUs through NVML, by nvidia-ml-py.

Power limits by `nvmlDeviceSetPowerManagementLimit` only: the binding's `_v2` setter returns success whatever the driver
said. Field values carry a return code each, which is checked. The energy counter is the measure of energy; power is
for people to look at: the sensor looks at 25 of every 100 ms on A100 and H100.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pynvml
from flyball_api.values.units import MilliwattsPerGpu

from flyball_agent.clock import boottime_ns
from flyball_agent.gpu.gpu import (
    CallTimedOut,
    DriverUnavailable,
    Gpu,
    GpuDriver,
    GpuError,
    GpuLimits,
    GpuNotFound,
    GpuReading,
    ImplausibleReading,
    LimitUnsupported,
    NotSupported,
    PowerLimitReading,
    UnknownDriverError,
    UnopenedGpu,
    XidError,
    claimed_device_id,
    driver_error,
    plausible,
)

BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"

# Without persistence mode a GPU takes seconds to come up; one that takes longer than this is left to itself.
OPEN_SECONDS = 15.0
OPENING, WATCHING = "open-gpu-", "xid-errors"

# After so long a wait for Xid errors ends by itself, and the library may be shut down.
XID_WAIT_MILLISECONDS = 500
XID_REGISTER_SECONDS = 5.0

T = TypeVar("T")


def _address(handle: Any) -> int | None:
    """What tells the handles of GPUs apart."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def _call(operation: str, uuid: str, function: Callable[..., T], *arguments: Any) -> T:
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise driver_error(int(error.value), operation, uuid) from error
    except (ValueError, TypeError, ctypes.ArgumentError) as error:  # the binding could not read the driver's answer
        raise UnknownDriverError(operation, uuid, detail=repr(error)) from error


class NvmlGpu(Gpu):
    """One GPU by its NVML handle. A measurement that the GPU does not support is asked for once only; one that fails is
    missing from that reading, which has the limits all the same.

    Raises GpuError at construction where the GPU's power cannot be governed.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.uuid = ""
        self.handle = self._ask("handle", pynvml.nvmlDeviceGetHandleByIndex, index)
        self.uuid = str(self._ask("UUID", pynvml.nvmlDeviceGetUUID, self.handle))
        self.model = str(self._ask("name", pynvml.nvmlDeviceGetName, self.handle)).replace(" ", "-")
        try:
            low, high = self._ask("limits", pynvml.nvmlDeviceGetPowerManagementLimitConstraints, self.handle)
            default = self._ask("default limit", pynvml.nvmlDeviceGetPowerManagementDefaultLimit, self.handle)
        except NotSupported as error:
            raise LimitUnsupported(error.operation, self.uuid, error.code) from error
        try:
            self.limits = GpuLimits(
                MilliwattsPerGpu(int(low)),
                MilliwattsPerGpu(int(high)),
                MilliwattsPerGpu(int(default)),
                self._supported_clocks(),
            )
        except ValueError as error:
            raise ImplausibleReading("limits", self.uuid, detail=str(error)) from error
        self._unsupported: set[str] = set()
        self._failed: list[GpuError] = []
        self._minor: int | None = None

    def _ask(self, operation: str, function: Callable[..., T], *arguments: Any) -> T:
        return _call(operation, self.uuid or f"GPU {self.index}", function, *arguments)

    def _supported_clocks(self) -> tuple[int, ...]:
        """Every SM clock, ascending; none where the GPU does not let clocks be chosen, or does not say which."""
        try:
            memory = self._ask("memory clocks", pynvml.nvmlDeviceGetSupportedMemoryClocks, self.handle)
            if not memory:
                return ()
            clocks = self._ask("graphics clocks", pynvml.nvmlDeviceGetSupportedGraphicsClocks, self.handle, max(memory))
        except GpuError:
            return ()
        return tuple(sorted(int(clock) for clock in clocks))

    def _measure(self, operation: str, function: Callable[..., T], *arguments: Any) -> T | None:
        if operation in self._unsupported:
            return None
        try:
            return self._ask(operation, function, self.handle, *arguments)
        except NotSupported:
            self._unsupported.add(operation)
        except GpuError as error:
            self._failed.append(error)
        return None

    def read_power_limit(self) -> PowerLimitReading:
        return PowerLimitReading(
            MilliwattsPerGpu(int(self._ask("requested limit", pynvml.nvmlDeviceGetPowerManagementLimit, self.handle))),
            MilliwattsPerGpu(int(self._ask("enforced limit", pynvml.nvmlDeviceGetEnforcedPowerLimit, self.handle))),
        )

    def read(self) -> GpuReading:
        limit = self.read_power_limit()
        self._failed = []
        average, instant = self._power_fields()
        if average is None:
            average = self._measure("power", pynvml.nvmlDeviceGetPowerUsage)
        energy, energy_read_ns = self._energy()
        utilization = self._measure("utilization", pynvml.nvmlDeviceGetUtilizationRates)
        reading = GpuReading(
            limit=limit,
            sm_clock_megahertz=self._measure("SM clock", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            average_power_milliwatts=average,
            instant_power_milliwatts=instant,
            energy_millijoules=energy,
            energy_read_ns=energy_read_ns,
            utilization_percent=None if utilization is None else int(utilization.gpu),
            temperature_celsius=self._temperature_celsius(),
            throttle_reasons=self._measure("clock reasons", pynvml.nvmlDeviceGetCurrentClocksEventReasons) or 0,
            persistence_mode=self._persistence_mode(),
            handed_out_as=(*self._claimed_as(), *self._parts()),
            failed=tuple(self._failed),
        )
        return plausible(self.uuid, reading, self.limits)

    def _energy(self) -> tuple[int | None, int | None]:
        """The counter, and when it was read: in the middle of a call that takes milliseconds (3 to 17 on an H200)."""
        asked_ns = boottime_ns()
        energy = self._measure("energy", pynvml.nvmlDeviceGetTotalEnergyConsumption)
        return energy, None if energy is None else (asked_ns + boottime_ns()) // 2

    def _claimed_as(self) -> tuple[str, ...]:
        """Its id in claims, whose driver numbers by index in older versions, and by minor since: where both agree."""
        if self._minor is None:
            self._minor = self._measure("minor number", pynvml.nvmlDeviceGetMinorNumber)
        return (claimed_device_id(self.index),) if self._minor == self.index else ()

    def _parts(self) -> tuple[str, ...]:
        mode = self._measure("MIG mode", pynvml.nvmlDeviceGetMigMode)
        if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return ()
        found = []
        for index in range(self._measure("MIG devices", pynvml.nvmlDeviceGetMaxMigDeviceCount) or 0):
            try:
                part = self._ask("MIG device", pynvml.nvmlDeviceGetMigDeviceHandleByIndex, self.handle, index)
                found.append(str(self._ask("MIG device's UUID", pynvml.nvmlDeviceGetUUID, part)))
            except GpuNotFound:  # fewer are made than there may be
                continue
            except GpuError as error:
                self._failed.append(error)
        return tuple(found)

    def _persistence_mode(self) -> bool | None:
        mode = self._measure("persistence mode", pynvml.nvmlDeviceGetPersistenceMode)
        return None if mode is None else mode == pynvml.NVML_FEATURE_ENABLED

    def _temperature_celsius(self) -> int | None:
        sensor = pynvml.NVML_TEMPERATURE_GPU
        celsius = self._measure("temperature", pynvml.nvmlDeviceGetTemperatureV, sensor)
        if celsius is None:  # drivers before R570 have the older call only
            celsius = self._measure("temperature (older call)", pynvml.nvmlDeviceGetTemperature, sensor)
        return celsius

    def _power_fields(self) -> tuple[MilliwattsPerGpu | None, MilliwattsPerGpu | None]:
        fields = [pynvml.NVML_FI_DEV_POWER_AVERAGE, pynvml.NVML_FI_DEV_POWER_INSTANT]
        values = self._measure("field values", pynvml.nvmlDeviceGetFieldValues, fields)
        if values is None:
            return None, None
        succeeded = (
            MilliwattsPerGpu(int(value.value.uiVal)) if value.nvmlReturn == pynvml.NVML_SUCCESS else None
            for value in values
        )
        average, instant = succeeded
        return average, instant

    def set_power_limit_milliwatts(self, limit_milliwatts: MilliwattsPerGpu) -> None:
        self._ask("set power limit", pynvml.nvmlDeviceSetPowerManagementLimit, self.handle, limit_milliwatts)

    def set_locked_clocks_megahertz(self, min_megahertz: int, max_megahertz: int) -> None:
        self._ask("lock clocks", pynvml.nvmlDeviceSetGpuLockedClocks, self.handle, min_megahertz, max_megahertz)

    def reset_locked_clocks(self) -> None:
        self._ask("unlock clocks", pynvml.nvmlDeviceResetGpuLockedClocks, self.handle)

    def enable_persistence_mode(self) -> None:
        enabled = pynvml.NVML_FEATURE_ENABLED
        self._ask("enable persistence mode", pynvml.nvmlDeviceSetPersistenceMode, self.handle, enabled)


def _boot_id() -> str:
    with open(BOOT_ID_FILE, encoding="ascii") as file:  # pathlib would be 0.7 MiB in the worker
        return file.read().strip()


def _register(gpu: NvmlGpu, events: object) -> None:
    """Have the driver report this GPU's Xid errors, where it does so."""
    with contextlib.suppress(GpuError):
        kind = pynvml.nvmlEventTypeXidCriticalError
        _call("events", gpu.uuid, pynvml.nvmlDeviceRegisterEvents, gpu.handle, kind, events)


def _open_all(count: int, open_seconds: float) -> list[NvmlGpu | UnopenedGpu]:
    """Every GPU by index, opened, or as much of it as could be found out."""
    opened: dict[int, NvmlGpu | UnopenedGpu] = {}

    def open_one(index: int) -> None:
        try:
            opened[index] = NvmlGpu(index)
        except GpuError as error:
            opened[index] = _unopened(index, error)

    threads = [
        threading.Thread(target=open_one, args=(index,), name=f"{OPENING}{index}", daemon=True)
        for index in range(count)
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + open_seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    late = f"the GPU did not open within {open_seconds:g} s"
    return [
        opened.get(index) or UnopenedGpu(index, "", "", None, CallTimedOut("open", f"GPU {index}", detail=late))
        for index in range(count)
    ]


def _unopened(index: int, error: GpuError) -> UnopenedGpu:
    uuid = model = ""
    largest: int | None = None
    with contextlib.suppress(GpuError):
        handle = _call("handle", "", pynvml.nvmlDeviceGetHandleByIndex, index)
        uuid = str(_call("UUID", "", pynvml.nvmlDeviceGetUUID, handle))
        model = str(_call("name", "", pynvml.nvmlDeviceGetName, handle)).replace(" ", "-")
        low, high = _call("limits", "", pynvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
        default = _call("default limit", "", pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
        largest = max(int(low), int(high), int(default)) or None
    return UnopenedGpu(index, uuid, model, None if largest is None else MilliwattsPerGpu(largest), error)


class NvmlDriver(GpuDriver):
    """Every GPU that NVML shows. The library is NVIDIA's, found as `libnvidia-ml.so.1`, or the one at `library`.

    Raises GpuError at construction where the driver cannot be used. The GPUs are opened at the same time; one that
    cannot be opened, or not within `open_seconds`, is in `unopened`.
    """

    name = "nvml"

    def __init__(
        self,
        library: str | os.PathLike[str] | None = None,
        boot_id: str | None = None,
        *,
        open_seconds: float = OPEN_SECONDS,
    ) -> None:
        if library is not None:
            # The dynamic loader finds a library that is already loaded by its soname, which is what the binding asks.
            try:
                ctypes.CDLL(os.fspath(library))
            except OSError as error:
                raise DriverUnavailable("load library", detail=str(error)) from error
        _call("init", "", pynvml.nvmlInit)
        self._open = True
        self._closing = False
        self._watch: threading.Thread | None = None
        self._boot_id = _boot_id() if boot_id is None else boot_id
        self._version = str(_call("driver version", "", pynvml.nvmlSystemGetDriverVersion))
        opened = _open_all(int(_call("count", "", pynvml.nvmlDeviceGetCount)), open_seconds)
        self._gpus = [gpu for gpu in opened if isinstance(gpu, NvmlGpu)]
        self._unopened = [gpu for gpu in opened if isinstance(gpu, UnopenedGpu)]

    def watch_xid_errors(self, seen: Callable[[XidError], None]) -> None:
        """Call `seen` in a thread of its own for each Xid error that the driver reports from now on.

        GPUs of which it reports none are left out, and one that hangs as it is asked to is left behind; where errors cannot
        be waited for any more, the watch ends.
        """
        handles = {_address(gpu.handle): gpu.uuid for gpu in self._gpus}
        try:
            events = _call("event set", "", pynvml.nvmlEventSetCreate)
        except GpuError:
            return
        registering = [
            threading.Thread(target=_register, args=(gpu, events), name=f"{WATCHING}-{gpu.index}", daemon=True)
            for gpu in self._gpus
        ]
        for thread in registering:
            thread.start()
        end = time.monotonic() + XID_REGISTER_SECONDS
        for thread in registering:
            thread.join(max(0.0, end - time.monotonic()))

        def watch() -> None:
            while not self._closing:
                try:
                    event = pynvml.nvmlEventSetWait_v2(events, XID_WAIT_MILLISECONDS)
                except pynvml.NVMLError as error:
                    if error.value == pynvml.NVML_ERROR_TIMEOUT:
                        continue
                    return
                uuid = handles.get(_address(event.device))
                if uuid is not None and event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                    seen(XidError(uuid, int(event.eventData)))

        self._watch = threading.Thread(target=watch, name=WATCHING, daemon=True)
        self._watch.start()

    @property
    def boot_id(self) -> str:
        return self._boot_id

    @property
    def driver_load(self) -> str:
        """The driver's version: NVML does not distinguish two loads of one version, but energy counters that restart do."""
        return self._version

    @property
    def version(self) -> str:
        return self._version

    def gpus(self) -> Sequence[Gpu]:
        return self._gpus

    @property
    def unopened(self) -> Sequence[UnopenedGpu]:
        return self._unopened

    def close(self) -> None:
        self._closing = True
        if self._watch is not None:
            self._watch.join(2 * XID_WAIT_MILLISECONDS / 1000)
        calling = any(thread.name.startswith((OPENING, WATCHING)) for thread in threading.enumerate())
        if self._open and not calling:  # a library that is shut down under a call of its own takes the process with it
            self._open = False
            _call("shutdown", "", pynvml.nvmlShutdown)
