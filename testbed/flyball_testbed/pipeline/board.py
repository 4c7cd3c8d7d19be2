"""A simulated GPU that computes as a measured profile says, at the clock that it really has at each moment."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from flyball_frontiers.pipeline.profile import OperatingPoint
from flyball_simulated_gpu.physics import DeviceConstants, DeviceState

# How often a computation looks at its clock: what it ran at meanwhile is known to this.
LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Ran:
    """One computation as it went: seconds of the training's own clock, and the SM clock that most of it ran at."""

    start: float
    end: float
    clock_megahertz: int


class MeasuredComputation:
    """Seconds and watts of one computation at any clock, on straight lines between those that were measured."""

    def __init__(self, points: Sequence[OperatingPoint]) -> None:
        by_clock = sorted((point.clock_megahertz or 0, point) for point in points)
        self._clocks = [clock for clock, _ in by_clock]
        self._points = [point for _, point in by_clock]

    def at(self, clock_megahertz: int) -> tuple[float, float]:
        """(seconds, watts); below the lowest measured clock it takes longer, and draws less, in proportion, above the
        highest it is no faster."""
        above = bisect_left(self._clocks, clock_megahertz)
        if above == len(self._clocks):
            return self._of(self._points[-1])
        if above == 0:
            seconds, watts = self._of(self._points[0])
            share = clock_megahertz / self._clocks[0]
            return seconds / share, watts * share
        low, high = self._clocks[above - 1], self._clocks[above]
        share = (clock_megahertz - low) / (high - low)
        (slow, less), (fast, more) = self._of(self._points[above - 1]), self._of(self._points[above])
        return slow + (fast - slow) * share, less + (more - less) * share

    def _of(self, point: OperatingPoint) -> tuple[float, float]:
        return point.time_seconds, point.energy_joules / point.time_seconds


def activity_for(constants: DeviceConstants, clock_megahertz: int, watts: float) -> float:
    """How busy the simulated GPU has to be to draw that much at a clock; within 0.001 (it computes) and 1."""
    above = max(0, clock_megahertz - constants.knee_megahertz)
    voltage = 1.0 + constants.voltage_slope * above / constants.clock_max_megahertz
    dynamic = constants.watts_per_megahertz * voltage * voltage * clock_megahertz
    return min(1.0, max(0.001, (watts - constants.idle_milliwatts / 1000 * voltage) / dynamic))


class Device(Protocol):
    """What a board needs of a simulated GPU, in a file or in virtual time."""

    constants: DeviceConstants

    def read(self) -> DeviceState: ...

    def set_activity(self, activity: float) -> None: ...


class Board:
    """One GPU, and the process that computes on it.

    Times are of a clock of the training's own, which a process that is woken late does not set back: what it computes next
    begins when it could have begun, so that a busy machine lengthens nothing.
    """

    def __init__(
        self,
        device: Device,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._device = device
        self._now = now
        self._sleep = sleep

    @property
    def joules(self) -> float:
        """What the GPU has used so far, now."""
        return self._device.read().energy_millijoules / 1000

    def compute(self, computation: MeasuredComputation, start: float) -> Ran:
        """Compute from `start` on, at whatever clock the board has from moment to moment."""
        device, left, at = self._device, 1.0, start
        seconds_at: dict[int, float] = {}
        while left > 1e-9:
            clock = self._busy(computation)
            seconds, _ = computation.at(clock)
            until = min(at + left * seconds, at + LOOK_SECONDS)
            self._until(until)
            left -= (until - at) / seconds
            seconds_at[clock] = seconds_at.get(clock, 0.0) + until - at
            at = until
        device.set_activity(0.0)
        return Ran(start, at, max(seconds_at, key=lambda clock: seconds_at[clock]))

    def _busy(self, computation: MeasuredComputation) -> int:
        """Draw what the computation draws at the clock that the board has; that clock."""
        state = self._device.read()
        if state.activity == 0.0:  # an idle board rests at a low clock: what it runs at shows once it computes
            self._device.set_activity(0.001)
            state = self._device.read()
        # A board at its power limit lowers its clock, and then draws less: a few looks settle that.
        for _ in range(3):
            clock = state.sm_clock_megahertz
            activity = activity_for(self._device.constants, clock, computation.at(clock)[1])
            if abs(activity - state.activity) < 1e-4:
                break
            self._device.set_activity(activity)
            state = self._device.read()
        return self._device.read().sm_clock_megahertz

    def _until(self, moment: float) -> None:
        while (left := moment - self._now()) > 0:
            self._sleep(left)
