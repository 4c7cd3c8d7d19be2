"""What every simulated GPU has, wherever it lives: its interface, its scripted faults, and the values it accepts."""

from __future__ import annotations

from enum import IntFlag
from typing import Protocol

from flyball_simulated_gpu.physics import DeviceConstants, DeviceState


class DeviceFault(IntFlag):
    """What the driver of a simulated device does wrong (the `flags` of its record)."""

    LOST = 1
    RESET_REQUIRED = 2
    SETTERS_LIE = 4
    SETTERS_FAIL = 8
    NO_PERMISSION = 16
    HANG = 32
    IMPLAUSIBLE_POWER = 64
    NOT_PERSISTENT = 128  # persistence mode is off: an idle GPU forgets its limit with its last client
    COARSE = 256  # limits are rounded up to whole watts
    MIG = 512  # the GPU is partitioned: nobody measures how busy the whole of it is


SETTER_ERROR_SHIFT = 16
DEFAULT_SETTER_ERROR = 999


def setters_fail_with(code: int) -> DeviceFault:
    """SETTERS_FAIL with an NVML return code of its own, up to 1023."""
    return DeviceFault(DeviceFault.SETTERS_FAIL | code << SETTER_ERROR_SHIFT)


def setter_error(flags: DeviceFault) -> int:
    """The NVML return code with which setters fail."""
    return int(flags) >> SETTER_ERROR_SHIFT & 1023 or DEFAULT_SETTER_ERROR


def taken_milliwatts(device: PhysicalDevice, limit_milliwatts: int) -> int:
    """What the driver makes of a limit that it accepts."""
    return -(-limit_milliwatts // 1000) * 1000 if device.flags & DeviceFault.COARSE else limit_milliwatts


class PhysicalDevice(Protocol):
    """A simulated GPU, wherever it lives: in the shared file, or in memory with virtual time."""

    uuid: str
    index: int
    constants: DeviceConstants

    flags: DeviceFault

    @property
    def xid_errors(self) -> tuple[int, int]: ...

    def read(self) -> DeviceState: ...

    def set_power_limit_milliwatts(self, limit_milliwatts: int) -> None: ...

    def set_locked_clocks_megahertz(self, min_megahertz: int, max_megahertz: int) -> None: ...

    def reset_locked_clocks(self) -> None: ...


def check_power_limit(device: PhysicalDevice, limit_milliwatts: int) -> None:
    """Raises ValueError for a limit that the GPU does not take."""
    low, high = device.constants.min_limit_milliwatts, device.constants.max_limit_milliwatts
    if not low <= limit_milliwatts <= high:
        raise ValueError(f"{device.uuid}: power limit {limit_milliwatts} mW is not within {low}..{high} mW")


def check_locked_clocks(device: PhysicalDevice, min_megahertz: int, max_megahertz: int) -> None:
    """Raises ValueError for a range that is empty or wholly outside the GPU's clocks."""
    low, high = device.constants.clock_min_megahertz, device.constants.clock_max_megahertz
    if not 0 < min_megahertz <= max_megahertz or min_megahertz > high or max_megahertz < low:
        raise ValueError(
            f"{device.uuid}: clock range {min_megahertz}..{max_megahertz} MHz is not a range within {low}..{high} MHz"
        )


def check_activity(device: PhysicalDevice, activity: float) -> None:
    """Raises ValueError for an activity outside 0..1."""
    if not 0.0 <= activity <= 1.0:
        raise ValueError(f"{device.uuid}: activity {activity} is not within 0 (idle) .. 1 (the heaviest kernel)")
