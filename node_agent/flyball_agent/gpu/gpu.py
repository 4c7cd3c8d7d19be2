"""One abstract GPU with units in every name, and one table from driver errors to typed exceptions.

A driver gives `Gpu` objects through `GpuDriver`; everything above it (decisions, enforcement, attribution) knows only
these. Readings pass through `plausible` once, here, because drivers have been seen to report 3.7 kW with success.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from enum import IntFlag
from itertools import pairwise
from types import MappingProxyType
from typing import TypeVar

from flyball_api.values.units import MilliwattsPerGpu, in_whole_watts
from msgspec import Struct
from msgspec.structs import replace


class GpuError(Exception):
    """A driver call failed. `operation` is the call, `uuid` the GPU ("" for the library), `code` the driver's number.

    `reason` names the kind of failure in a status. `keeps_limits`: while this lasts, the GPU keeps the limits that it
    had. `fatal`: no call can succeed until an administrator changes something. `restart_may_help`: the library's state
    in this process may be what is broken.
    """

    reason = "ReadFailed"
    keeps_limits = False
    fatal = False
    restart_may_help = False
    meaning = "the driver call failed"

    def __init__(self, operation: str, uuid: str = "", code: int = 0, detail: str = "") -> None:
        where = uuid or "the driver"
        number = f" (NVML error {code})" if code else ""
        super().__init__(f"{where}: {operation}: {detail or self.meaning}{number}")
        self.operation = operation
        self.uuid = uuid
        self.code = code
        self.detail = detail


class NotSupported(GpuError):
    meaning = "not supported by this GPU or driver"


class NoPermission(GpuError):
    fatal = True
    meaning = "no permission: power limits and clocks need CAP_SYS_ADMIN"


class InvalidArgument(GpuError):
    meaning = "the driver does not take this value"


class GpuNotFound(GpuError):
    reason = "NotFound"
    keeps_limits = True
    meaning = "no such GPU"


class GpuLost(GpuError):
    reason = "Lost"
    keeps_limits = True
    meaning = "the GPU has fallen off the bus or is otherwise unreachable"


class ResetRequired(GpuError):
    reason = "ResetRequired"
    keeps_limits = True
    meaning = "the GPU needs a reset before it can be used"


class CallTimedOut(GpuError):
    reason = "CallTimedOut"
    meaning = "the driver call did not return within its deadline"


class LibraryMismatch(GpuError):
    reason = "DriverUnavailable"
    restart_may_help = True
    meaning = "the library's version is not the loaded driver's"


class DriverUnavailable(GpuError):
    reason = "DriverUnavailable"
    restart_may_help = True
    meaning = "the driver is not loaded, or its library cannot be found or was not initialised"


class GpusReleased(GpuError):
    reason = "Released"
    meaning = "an administrator asked the agent to let go of the GPUs"


class UnknownDriverError(GpuError):
    restart_may_help = True
    meaning = "the driver failed without saying why"


class LimitUnsupported(NotSupported):
    reason = "PowerLimitUnsupported"
    meaning = "this GPU's power cannot be limited"


class ImplausibleReading(GpuError):
    reason = "ImplausibleReading"
    meaning = "the driver reported an impossible value with success"


# NVML's return codes (nvml.h); a code that is not here is an UnknownDriverError.
ERROR_TABLE = MappingProxyType(
    {
        1: DriverUnavailable,  # UNINITIALIZED
        2: InvalidArgument,  # INVALID_ARGUMENT
        3: NotSupported,  # NOT_SUPPORTED
        4: NoPermission,  # NO_PERMISSION
        6: GpuNotFound,  # NOT_FOUND
        8: GpuLost,  # INSUFFICIENT_POWER: the GPU's power cables are not attached
        9: DriverUnavailable,  # DRIVER_NOT_LOADED
        10: CallTimedOut,  # TIMEOUT
        12: DriverUnavailable,  # LIBRARY_NOT_FOUND
        13: NotSupported,  # FUNCTION_NOT_FOUND: an older library
        15: GpuLost,  # GPU_IS_LOST
        16: ResetRequired,  # RESET_REQUIRED
        17: DriverUnavailable,  # OPERATING_SYSTEM: the device cgroup or the OS blocked the call
        18: LibraryMismatch,  # LIB_RM_VERSION_MISMATCH
        24: InvalidArgument,  # FREQ_NOT_SUPPORTED
        25: NotSupported,  # ARGUMENT_VERSION_MISMATCH
        26: NotSupported,  # DEPRECATED
        28: GpuNotFound,  # GPU_NOT_FOUND
        999: UnknownDriverError,  # UNKNOWN
    }
)


def driver_error(code: int, operation: str, uuid: str = "") -> GpuError:
    """The typed exception of one NVML return code."""
    return ERROR_TABLE.get(code, UnknownDriverError)(operation, uuid, code)


class ThrottleReason(IntFlag):
    """Why a clock is below what was asked for (NVML's clocks event reasons, the same bits)."""

    GPU_IDLE = 0x1
    APPLICATIONS_CLOCKS = 0x2
    SW_POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    HW_POWER_BRAKE = 0x80
    DISPLAY_CLOCKS = 0x100


class GpuLimits(Struct, frozen=True):
    """What a GPU can be set to: power limits in mW, SM clocks in MHz ascending (empty: no clock can be locked)."""

    min_milliwatts: MilliwattsPerGpu
    max_milliwatts: MilliwattsPerGpu
    default_milliwatts: MilliwattsPerGpu
    clocks_megahertz: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.min_milliwatts <= self.default_milliwatts <= self.max_milliwatts:
            raise ValueError(
                f"power limits min {self.min_milliwatts}, default {self.default_milliwatts}, max "
                f"{self.max_milliwatts} mW are not in ascending order"
            )

    @property
    def clock_step_megahertz(self) -> int:
        """The smallest distance between two supported clocks (0 where there is only one or none)."""
        clocks = self.clocks_megahertz
        return min((b - a for a, b in pairwise(clocks)), default=0)

    def clamp_limit(self, milliwatts: MilliwattsPerGpu) -> MilliwattsPerGpu:
        """The limit to set in place of a wanted one: not above it, but for the smallest, and in whole watts, as a driver
        may round a fraction up."""
        return max(self.min_milliwatts, in_whole_watts(min(self.max_milliwatts, milliwatts)))

    def clock_at_most(self, megahertz: int) -> int:
        """The highest supported clock that is not above a wanted one (the lowest, where all are)."""
        return self.clocks_megahertz[max(0, bisect_right(self.clocks_megahertz, megahertz) - 1)]


class PowerLimitReading(Struct, frozen=True):
    """One GPU's power limit as its driver reports it: what was requested, and what is enforced with every other limiter."""

    requested_milliwatts: MilliwattsPerGpu
    enforced_milliwatts: MilliwattsPerGpu

    @property
    def held_milliwatts(self) -> MilliwattsPerGpu:
        """The most that the GPU may draw by these: a limit that settles is still the old one, and an out-of-band cap
        may go as it came, so the larger of the two."""
        return max(self.requested_milliwatts, self.enforced_milliwatts)

    @property
    def above_requested_milliwatts(self) -> MilliwattsPerGpu:
        """By how much the driver enforces more than it was asked for: while a limit settles, or for good."""
        return MilliwattsPerGpu(max(self.enforced_milliwatts - self.requested_milliwatts, 0))


class GpuReading(Struct, frozen=True):
    """One reading of everything that a GPU measures; None where it does not measure it.

    `energy_millijoules` counts since the driver was loaded; `energy_read_ns` is when it was read, by CLOCK_BOOTTIME, where
    reading takes long enough to matter. Without `persistence_mode` the driver lets go of a GPU that nobody has open, and
    forgets its limits.
    """

    limit: PowerLimitReading
    sm_clock_megahertz: int | None = None
    average_power_milliwatts: MilliwattsPerGpu | None = None
    instant_power_milliwatts: MilliwattsPerGpu | None = None
    energy_millijoules: int | None = None
    utilization_percent: int | None = None
    temperature_celsius: int | None = None
    throttle_reasons: int = 0  # bits of ThrottleReason
    persistence_mode: bool | None = None
    handed_out_as: tuple[str, ...] = ()  # ids of the GPU beside its UUID (`claimed_device_id`), or of its MIG devices
    failed: tuple[GpuError, ...] = ()  # of measurements that could not be made now
    energy_read_ns: int | None = None


def claimed_device_id(number: int) -> str:
    """The id of a GPU in a claim of dynamic resource allocation: NVIDIA's driver for it, and the device's name there."""
    return f"gpu.nvidia.com/gpu-{number}"


# A GPU may pass its limit for milliseconds, by less than this; a reading above is the sensor's error.
_POWER_SPIKE_FACTOR = 2
_MAX_CLOCK_MEGAHERTZ = 10_000
_TEMPERATURE_RANGE_CELSIUS = range(-40, 151)

N = TypeVar("N", bound=int)


def _within(value: N | None, low: int, high: int) -> N | None:
    return value if value is not None and low <= value <= high else None


def plausible(uuid: str, reading: GpuReading, limits: GpuLimits) -> GpuReading:
    """The reading with every impossible measurement taken out (None).

    Raises ImplausibleReading where the limits themselves are impossible: without them nothing may be decided.
    """
    limit = reading.limit
    for name, value in (("requested", limit.requested_milliwatts), ("enforced", limit.enforced_milliwatts)):
        if not 0 < value <= limits.max_milliwatts * _POWER_SPIKE_FACTOR:
            raise ImplausibleReading(
                "power limit",
                uuid,
                detail=f"{name} limit {value} mW, the GPU's largest is {limits.max_milliwatts} mW",
            )
    most = limits.max_milliwatts * _POWER_SPIKE_FACTOR
    return replace(
        reading,
        sm_clock_megahertz=_within(reading.sm_clock_megahertz, 0, _MAX_CLOCK_MEGAHERTZ),
        average_power_milliwatts=_within(reading.average_power_milliwatts, 0, most),
        instant_power_milliwatts=_within(reading.instant_power_milliwatts, 0, most),
        energy_millijoules=_within(reading.energy_millijoules, 0, 2**63 - 1),
        utilization_percent=_within(reading.utilization_percent, 0, 100),
        temperature_celsius=_within(
            reading.temperature_celsius, _TEMPERATURE_RANGE_CELSIUS.start, _TEMPERATURE_RANGE_CELSIUS.stop - 1
        ),
    )


class Gpu(ABC):
    """One GPU. Every method may raise any GpuError; none changes anything but what it is named for."""

    uuid: str
    index: int
    model: str
    limits: GpuLimits

    @abstractmethod
    def read(self) -> GpuReading:
        """Everything that the GPU measures, plausible (see `plausible`)."""

    @abstractmethod
    def read_power_limit(self) -> PowerLimitReading:
        """Only the limits: the read-back after a set."""

    @abstractmethod
    def set_power_limit_milliwatts(self, limit_milliwatts: MilliwattsPerGpu) -> None:
        """Ask for a limit. Drivers have reported success and done nothing: read it back."""

    @abstractmethod
    def set_locked_clocks_megahertz(self, min_megahertz: int, max_megahertz: int) -> None:
        """Lock the SM clock to a range. There is no read-back: watch the clock under load."""

    @abstractmethod
    def reset_locked_clocks(self) -> None:
        """Remove the lock of the SM clock."""

    @abstractmethod
    def enable_persistence_mode(self) -> None:
        """Let the driver keep the GPU, and its limits, while nobody has it open."""


class UnopenedGpu(Struct, frozen=True):
    """A GPU that is there and cannot be governed: as much as is known of it ("" or None: not known), and why."""

    index: int
    uuid: str
    model: str
    max_milliwatts: MilliwattsPerGpu | None
    error: GpuError


class XidError(Struct, frozen=True):
    """One error of a GPU that its driver reported by itself; its `number` is NVIDIA's."""

    uuid: str
    number: int


# NVIDIA's "Xid Errors", those that a person should know of by name.
XID_MEANINGS = MappingProxyType(
    {
        13: "graphics engine exception, most often of the program",
        31: "memory page fault, most often of the program",
        43: "the GPU stopped processing, a fault of the program",
        45: "preemptive cleanup, after another error",
        48: "double bit ECC error",
        61: "internal microcontroller breakpoint",
        62: "internal microcontroller halt",
        63: "a memory page or row is to be retired",
        64: "a memory page or row could not be retired",
        74: "NVLink error",
        79: "the GPU has fallen off the bus",
        92: "a high rate of single bit ECC errors",
        94: "contained ECC error",
        95: "uncontained ECC error",
        119: "the GPU's system processor did not answer in time",
        120: "error of the GPU's system processor",
        140: "unrecovered ECC error",
    }
)


class GpuDriver(ABC):
    """The GPUs of one node."""

    name: str

    @property
    @abstractmethod
    def boot_id(self) -> str:
        """Changes with each boot of the node."""

    @property
    @abstractmethod
    def driver_load(self) -> str:
        """Changes with each load of the driver, as far as the driver shows it."""

    @property
    @abstractmethod
    def version(self) -> str:
        """The driver's version."""

    @abstractmethod
    def gpus(self) -> Sequence[Gpu]:
        """Every GPU, once found, in index order. Raises GpuError where the driver cannot be used at all."""

    @property
    def unopened(self) -> Sequence[UnopenedGpu]:
        """The GPUs that are there and could not be opened."""
        return ()

    def take_xid_errors(self) -> Sequence[XidError]:
        """What the driver has reported since the last call; none where it reports nothing by itself."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Release the driver. Limits and locks stay as they are."""
