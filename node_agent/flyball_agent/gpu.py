"""One abstract GPU with units in every name, and one table from driver errors to typed exceptions.

A driver gives `Gpu` objects through `GpuDriver`; everything above it (decisions, enforcement, attribution) knows only
these. Readings pass through `plausible` once, here, because drivers have been seen to report 3.7 kW with success.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag
from itertools import pairwise
from types import MappingProxyType


class GpuError(Exception):
    """A driver call failed. `operation` is the call, `uuid` the board ("" for the library), `code` the driver's number.

    `unusable`: the board takes no calls now. `fatal`: no call can succeed until an operator changes something.
    `restart_may_help`: the library's state in this process may be what is broken.
    """

    unusable = False
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


class NotSupported(GpuError):
    meaning = "not supported by this board or driver"


class NoPermission(GpuError):
    fatal = True
    meaning = "no permission: power limits and clocks need CAP_SYS_ADMIN"


class InvalidArgument(GpuError):
    meaning = "the driver does not take this value"


class GpuNotFound(GpuError):
    unusable = True
    meaning = "no such board"


class GpuLost(GpuError):
    unusable = True
    meaning = "the board has fallen off the bus or is otherwise unreachable"


class ResetRequired(GpuError):
    unusable = True
    meaning = "the board needs a reset before it can be used"


class CallTimedOut(GpuError):
    unusable = True
    meaning = "the driver call did not return within its deadline"


class LibraryMismatch(GpuError):
    restart_may_help = True
    meaning = "the library's version is not the loaded driver's"


class DriverUnavailable(GpuError):
    restart_may_help = True
    meaning = "the driver is not loaded, or its library cannot be found or was not initialised"


class UnknownDriverError(GpuError):
    restart_may_help = True
    meaning = "the driver failed without saying why"


class ImplausibleReading(GpuError):
    meaning = "the driver reported an impossible value with success"


# NVML's return codes (nvml.h); a code that is not here is an UnknownDriverError.
ERROR_TABLE = MappingProxyType(
    {
        1: DriverUnavailable,  # UNINITIALIZED
        2: InvalidArgument,  # INVALID_ARGUMENT
        3: NotSupported,  # NOT_SUPPORTED
        4: NoPermission,  # NO_PERMISSION
        6: GpuNotFound,  # NOT_FOUND
        8: GpuLost,  # INSUFFICIENT_POWER: the board's power cables are not attached
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


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What a board can be set to: power limits in mW, SM clocks in MHz ascending (empty: no clock can be locked)."""

    min_milliwatts: int
    max_milliwatts: int
    default_milliwatts: int
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

    def clamp_limit(self, milliwatts: int) -> int:
        """The settable limit nearest to a wanted one."""
        return max(self.min_milliwatts, min(self.max_milliwatts, milliwatts))

    def clock_at_most(self, megahertz: int) -> int:
        """The highest supported clock that is not above a wanted one (the lowest, where all are)."""
        fitting = [clock for clock in self.clocks_megahertz if clock <= megahertz]
        return fitting[-1] if fitting else self.clocks_megahertz[0]


@dataclass(frozen=True, slots=True)
class PowerLimitReading:
    """What the driver says of one board's limit: what was asked for, and what holds with every other limiter, mW."""

    requested_milliwatts: int
    enforced_milliwatts: int

    @property
    def held_milliwatts(self) -> int:
        """The most that the board may draw by these: a limit that settles is still the old one, and an out-of-band cap
        may go as it came, so the larger of the two."""
        return max(self.requested_milliwatts, self.enforced_milliwatts)


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One look at a board; None where the board does not say. `energy_millijoules` counts since driver load."""

    limit: PowerLimitReading
    sm_clock_megahertz: int | None = None
    average_power_milliwatts: int | None = None
    instant_power_milliwatts: int | None = None
    energy_millijoules: int | None = None
    utilization_percent: int | None = None
    temperature_celsius: int | None = None
    throttle_reasons: int = 0  # bits of ThrottleReason


# A board may pass its limit for milliseconds, by less than this; a reading above is the sensor's error.
_POWER_SPIKE_FACTOR = 2
_MAX_CLOCK_MEGAHERTZ = 10_000
_TEMPERATURE_RANGE_CELSIUS = range(-40, 151)


def _within(value: int | None, low: int, high: int) -> int | None:
    return value if value is not None and low <= value <= high else None


def plausible(uuid: str, reading: DeviceReading, limits: DeviceLimits) -> DeviceReading:
    """The reading with every impossible measurement taken out (None).

    Raises ImplausibleReading where the limits themselves are impossible: without them nothing may be decided.
    """
    limit = reading.limit
    for name, value in (("requested", limit.requested_milliwatts), ("enforced", limit.enforced_milliwatts)):
        if not 0 < value <= limits.max_milliwatts * _POWER_SPIKE_FACTOR:
            raise ImplausibleReading(
                "power limit",
                uuid,
                detail=f"{name} limit {value} mW, the board's largest is {limits.max_milliwatts} mW",
            )
    most = limits.max_milliwatts * _POWER_SPIKE_FACTOR
    return dataclasses.replace(
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
    """One board. Every method may raise any GpuError; none changes anything but what its name says."""

    uuid: str
    index: int
    model: str
    limits: DeviceLimits

    @abstractmethod
    def read(self) -> DeviceReading:
        """Everything that the board says, plausible (see `plausible`)."""

    @abstractmethod
    def read_power_limit(self) -> PowerLimitReading:
        """Only the limits: the read-back after a set."""

    @abstractmethod
    def set_power_limit_milliwatts(self, limit_milliwatts: int) -> None:
        """Ask for a limit. Success is the driver's word only: read it back."""

    @abstractmethod
    def set_locked_clocks_megahertz(self, min_megahertz: int, max_megahertz: int) -> None:
        """Lock the SM clock to a range. There is no read-back: watch the clock under load."""

    @abstractmethod
    def reset_locked_clocks(self) -> None:
        """Let the SM clock go."""


class GpuDriver(ABC):
    """The boards of one node. `calls_block`: a call may take milliseconds or hang, and belongs off the event loop."""

    name: str
    calls_block: bool

    @property
    @abstractmethod
    def boot_id(self) -> str:
        """Changes with each boot of the node."""

    @property
    @abstractmethod
    def incarnation(self) -> str:
        """Changes with each load of the driver, as far as the driver tells."""

    @property
    @abstractmethod
    def version(self) -> str:
        """The driver's version."""

    @abstractmethod
    def gpus(self) -> Sequence[Gpu]:
        """Every board, once found, in index order. Raises GpuError where the driver cannot be used at all."""

    @abstractmethod
    def close(self) -> None:
        """Let the driver go. Limits and locks stay as they are."""
