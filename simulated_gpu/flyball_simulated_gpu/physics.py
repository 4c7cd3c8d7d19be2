"""The one physical model of a simulated GPU: clock, power and energy as functions of limits, locks and activity.

    V(f) = 1 + s * max(0, f - f_b) / f_max
    P(f) = P_idle * V(f) + activity * A * V(f)^2 * f

The clock is the highest supported one that the lock allows and whose power fits under the enforced limit, never under
the smallest clock. Energy is the integral of power; power is constant between two changes of a device, so the integral
is exact. The same functions serve the shared hardware file (real time) and the in-memory device (virtual time), and the
C library repeats them operation by operation, so that all three give the same milliwatts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

NANOSECONDS_PER_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class DeviceConstants:
    """What never changes about a GPU: milliwatts, megahertz, and the two coefficients of the power curve.

    `voltage_slope` is s, `knee_megahertz` f_b, `watts_per_megahertz` A (at activity 1).
    Raises ValueError where the numbers cannot describe a device.
    """

    product_name: str
    min_limit_milliwatts: int
    max_limit_milliwatts: int
    default_limit_milliwatts: int
    idle_milliwatts: int
    clock_min_megahertz: int
    clock_max_megahertz: int
    clock_step_megahertz: int
    knee_megahertz: int
    voltage_slope: float
    watts_per_megahertz: float

    def __post_init__(self) -> None:
        if not 0 < self.min_limit_milliwatts <= self.default_limit_milliwatts <= self.max_limit_milliwatts < 2**32:
            raise ValueError(
                f"{self.product_name}: power limits min {self.min_limit_milliwatts}, default "
                f"{self.default_limit_milliwatts}, max {self.max_limit_milliwatts} mW are not in ascending order"
            )
        span = self.clock_max_megahertz - self.clock_min_megahertz
        if self.clock_step_megahertz <= 0 or span < 0 or self.clock_min_megahertz <= 0:
            raise ValueError(
                f"{self.product_name}: clocks {self.clock_min_megahertz}..{self.clock_max_megahertz} MHz step "
                f"{self.clock_step_megahertz} are not an ascending range"
            )
        if span % self.clock_step_megahertz:
            raise ValueError(
                f"{self.product_name}: {span} MHz between the smallest and the largest clock is not a multiple of the "
                f"step, {self.clock_step_megahertz} MHz"
            )
        if not (math.isfinite(self.voltage_slope) and self.voltage_slope >= 0):
            raise ValueError(f"{self.product_name}: voltage slope {self.voltage_slope} is not a number >= 0")
        if not (math.isfinite(self.watts_per_megahertz) and self.watts_per_megahertz > 0):
            raise ValueError(f"{self.product_name}: watts per megahertz {self.watts_per_megahertz} is not above 0")


@dataclass(slots=True)
class DeviceState:
    """What changes. `energy_millijoules` is the true integral up to `updated_ns`, never reset.

    `pending_at_ns` is 0, or the instant at which the device goes over, by itself, to the `pending_*` values (a new
    limit that settles). `out_of_band_cap_milliwatts` is a limit that another controller imposes (0: none): it lowers
    the enforced limit and leaves the requested one. `energy_base_millijoules` is what the driver's counter subtracts.

    The counter moves every `counter_period_ns` (0: with the energy), at the multiples of it: `ticked_millijoules` is the
    true energy at the last one, `ticked_ns`.
    """

    requested_limit_milliwatts: int
    enforced_limit_milliwatts: int
    locked_min_megahertz: int
    locked_max_megahertz: int  # 0: unlocked
    activity: float
    sm_clock_megahertz: int
    power_milliwatts: int
    updated_ns: int
    energy_millijoules: float
    pending_at_ns: int = 0
    energy_base_millijoules: int = 0
    pending_enforced_limit_milliwatts: int = 0
    pending_sm_clock_megahertz: int = 0
    pending_power_milliwatts: int = 0
    out_of_band_cap_milliwatts: int = 0
    ticked_ns: int = 0
    ticked_millijoules: float = 0.0
    counter_period_ns: int = 0


def power_milliwatts(constants: DeviceConstants, clock_megahertz: int, activity: float) -> int:
    """Draw at a clock, in mW, rounded to the nearest."""
    above = clock_megahertz - constants.knee_megahertz
    voltage = 1.0 + constants.voltage_slope * (above if above > 0 else 0) / constants.clock_max_megahertz
    dynamic = activity * (constants.watts_per_megahertz * 1000.0) * (voltage * voltage) * clock_megahertz
    return int(constants.idle_milliwatts * voltage + dynamic + 0.5)


def supported_clocks_megahertz(constants: DeviceConstants) -> range:
    """Every clock that the device can run at, ascending."""
    return range(constants.clock_min_megahertz, constants.clock_max_megahertz + 1, constants.clock_step_megahertz)


def operating_point(
    constants: DeviceConstants,
    enforced_limit_milliwatts: int,
    locked_min_megahertz: int,
    locked_max_megahertz: int,
    activity: float,
) -> tuple[int, int]:
    """(SM clock in MHz, power in mW) of a device: the rule of this module's first paragraph.

    An idle device (activity 0) rests at its smallest clock, unless the lower bound of a lock holds it up.
    """
    clocks = supported_clocks_megahertz(constants)
    step = constants.clock_step_megahertz
    wanted = constants.clock_max_megahertz if locked_max_megahertz == 0 else locked_max_megahertz
    if activity == 0.0:
        wanted = min(wanted, max(locked_min_megahertz, constants.clock_min_megahertz))
    top = min(max((wanted - constants.clock_min_megahertz) // step, 0), len(clocks) - 1)
    power = power_milliwatts(constants, clocks[top], activity)
    if power <= enforced_limit_milliwatts:
        return clocks[top], power
    low, high = 0, top  # power rises with the clock: find the last index that fits, or stay at the smallest clock
    while high - low > 1:
        middle = (low + high) // 2
        if power_milliwatts(constants, clocks[middle], activity) <= enforced_limit_milliwatts:
            low = middle
        else:
            high = middle
    return clocks[low], power_milliwatts(constants, clocks[low], activity)


def power_on(constants: DeviceConstants, now_ns: int) -> DeviceState:
    """The state of a device that has just been powered: default limit, unlocked, idle, no energy counted."""
    limit = constants.default_limit_milliwatts
    clock, power = operating_point(constants, limit, 0, 0, 0.0)
    return DeviceState(limit, limit, 0, 0, 0.0, clock, power, now_ns, 0.0)


def settle(state: DeviceState, now_ns: int) -> None:
    """Bring the integral of power, and a limit that was settling, up to now (in place)."""
    if state.pending_at_ns and now_ns >= state.pending_at_ns:
        _integrate(state, state.pending_at_ns)
        state.enforced_limit_milliwatts = state.pending_enforced_limit_milliwatts
        state.sm_clock_megahertz = state.pending_sm_clock_megahertz
        state.power_milliwatts = state.pending_power_milliwatts
        state.pending_at_ns = 0
    _integrate(state, now_ns)


def _integrate(state: DeviceState, now_ns: int) -> None:
    if state.counter_period_ns:
        tick_ns = now_ns - now_ns % state.counter_period_ns
        if tick_ns >= state.updated_ns and tick_ns != state.ticked_ns:
            elapsed_ns = tick_ns - state.updated_ns
            state.ticked_millijoules = state.energy_millijoules + state.power_milliwatts * (
                elapsed_ns / NANOSECONDS_PER_SECOND
            )
            state.ticked_ns = tick_ns
    elapsed_ns = now_ns - state.updated_ns
    if elapsed_ns > 0:
        state.energy_millijoules += state.power_milliwatts * (elapsed_ns / NANOSECONDS_PER_SECOND)
        state.updated_ns = now_ns


COUNTER_RANGE = 2**64


def counter_millijoules(state: DeviceState) -> int:
    """What the driver's energy counter shows for a settled state."""
    energy = state.ticked_millijoules if state.counter_period_ns and state.ticked_ns else state.energy_millijoules
    return (int(energy) - state.energy_base_millijoules) % COUNTER_RANGE


def temperature_celsius(constants: DeviceConstants, state: DeviceState) -> int:
    """A plausible die temperature: 30 degrees and up to 50 more at the GPU's largest limit."""
    return 30 + 50 * state.power_milliwatts // constants.max_limit_milliwatts


THROTTLE_GPU_IDLE, THROTTLE_APPLICATIONS_CLOCKS, THROTTLE_SW_POWER_CAP = 0x1, 0x2, 0x4


def throttle_reasons(constants: DeviceConstants, state: DeviceState) -> int:
    """Why the clock is below the highest, as NVML's clocks event reasons: idle, a lock, the power limit."""
    if state.activity == 0.0:
        return THROTTLE_GPU_IDLE
    lock = (state.locked_min_megahertz, state.locked_max_megahertz)
    unlimited, _ = operating_point(constants, 2**32 - 1, *lock, state.activity)
    reasons = THROTTLE_SW_POWER_CAP if state.sm_clock_megahertz < unlimited else 0
    if unlimited < constants.clock_max_megahertz:
        reasons |= THROTTLE_APPLICATIONS_CLOCKS
    return reasons


def set_power_limit(
    constants: DeviceConstants, state: DeviceState, now_ns: int, limit_milliwatts: int, settle_ns: int
) -> None:
    """Request a limit: read back at once, enforced (with its clock and power) `settle_ns` later."""
    settle(state, now_ns)
    state.requested_limit_milliwatts = limit_milliwatts
    _go_to(constants, state, now_ns, settle_ns)


def set_locked_clocks(
    constants: DeviceConstants, state: DeviceState, now_ns: int, min_megahertz: int, max_megahertz: int
) -> None:
    """Lock the SM clock to a range; (0, 0) unlocks."""
    settle(state, now_ns)
    state.locked_min_megahertz = min_megahertz
    state.locked_max_megahertz = max_megahertz
    _repoint(constants, state)


def set_activity(constants: DeviceConstants, state: DeviceState, now_ns: int, activity: float) -> None:
    """Say how busy the device is: 0 idle, 1 the heaviest kernel."""
    settle(state, now_ns)
    state.activity = activity
    _repoint(constants, state)


def set_out_of_band_cap(
    constants: DeviceConstants, state: DeviceState, now_ns: int, cap_milliwatts: int, settle_ns: int = 0
) -> None:
    """Impose a limit from outside the driver (a BMC's); 0 takes it away."""
    settle(state, now_ns)
    state.out_of_band_cap_milliwatts = cap_milliwatts
    _go_to(constants, state, now_ns, settle_ns)


def reload_driver(constants: DeviceConstants, state: DeviceState, now_ns: int) -> None:
    """What a driver reload or a reboot does: default limit, unlocked, idle, the counter from zero again."""
    settle(state, now_ns)
    state.requested_limit_milliwatts = constants.default_limit_milliwatts
    state.locked_min_megahertz = state.locked_max_megahertz = 0
    state.activity = 0.0
    reset_counter(state)
    _go_to(constants, state, now_ns, 0)


def reset_counter(state: DeviceState) -> None:
    """Start the driver's energy counter from zero (the true integral goes on)."""
    state.ticked_millijoules = state.energy_millijoules
    state.energy_base_millijoules = int(state.energy_millijoules)


def jump_counter(state: DeviceState, millijoules: int) -> None:
    """Let the driver's energy counter leap ahead (the true integral goes on as it was)."""
    state.energy_base_millijoules = (state.energy_base_millijoules - millijoules) % COUNTER_RANGE


def _target_limit(state: DeviceState) -> int:
    cap = state.out_of_band_cap_milliwatts
    return min(state.requested_limit_milliwatts, cap) if cap else state.requested_limit_milliwatts


def _go_to(constants: DeviceConstants, state: DeviceState, now_ns: int, settle_ns: int) -> None:
    target = _target_limit(state)
    if settle_ns > 0 and target != state.enforced_limit_milliwatts:
        state.pending_at_ns = now_ns + settle_ns
        state.pending_enforced_limit_milliwatts = target
    else:
        state.pending_at_ns = 0
        state.enforced_limit_milliwatts = target
    _repoint(constants, state)


def _repoint(constants: DeviceConstants, state: DeviceState) -> None:
    lock = (state.locked_min_megahertz, state.locked_max_megahertz)
    state.sm_clock_megahertz, state.power_milliwatts = operating_point(
        constants, state.enforced_limit_milliwatts, *lock, state.activity
    )
    if state.pending_at_ns:
        state.pending_sm_clock_megahertz, state.pending_power_milliwatts = operating_point(
            constants, state.pending_enforced_limit_milliwatts, *lock, state.activity
        )
    else:
        state.pending_enforced_limit_milliwatts = 0
        state.pending_sm_clock_megahertz = state.pending_power_milliwatts = 0
