"""Which power limit a job should run at, from a few seconds of measurement at each (Zeus, section 4.2).

A batch size fixes what is computed; the power limit only changes how fast and at how many watts. So a short slice at
each limit tells everything, and the choice is a look-up by the selector that the user's objective names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from flyball_planner.recurrences.cost import check_weights, energy_time_cost

from flyball_frontiers.frontier import Frontier, FrontierPoint


@dataclass(frozen=True, slots=True)
class PowerLimitMeasurement:
    """One slice of training at one power limit.

    `power_limit_milliwatts` is the limit of each GPU; `time_seconds` and `energy_joules` are of the whole slice, the
    energy summed over the job's GPUs; `iterations` is how many iterations the slice held. Raises ValueError where a
    number is not positive.
    """

    power_limit_milliwatts: int
    time_seconds: float
    energy_joules: float
    iterations: float = 1.0

    def __post_init__(self) -> None:
        numbers = (self.power_limit_milliwatts, self.time_seconds, self.energy_joules, self.iterations)
        if not all(number > 0 and math.isfinite(number) for number in numbers):
            raise ValueError(
                f"slice at {self.power_limit_milliwatts} mW: {self.time_seconds} s, {self.energy_joules} J, "
                f"{self.iterations} iterations: every number must be positive and finite"
            )

    @property
    def seconds_per_iteration(self) -> float:
        return self.time_seconds / self.iterations

    @property
    def joules_per_iteration(self) -> float:
        return self.energy_joules / self.iterations

    @property
    def average_power_watts(self) -> float:
        """The job's average draw over the slice, all its GPUs together."""
        return self.energy_joules / self.time_seconds


class Selector(Protocol):
    """A rule that picks one of the measured power limits; equal ones go to the lowest limit."""

    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> PowerLimitMeasurement: ...


@dataclass(frozen=True, slots=True)
class LeastEnergy:
    """The limit of least energy per iteration (Zeus, equation 7 with eta = 1)."""

    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> PowerLimitMeasurement:
        return min(_checked(measurements), key=lambda m: (m.joules_per_iteration, m.power_limit_milliwatts))


@dataclass(frozen=True, slots=True)
class LeastTime:
    """The limit of least time per iteration (Zeus, equation 7 with eta = 0); the lowest such limit.

    Not always the largest: where the job never reaches its limit, a lower one costs no time.
    """

    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> PowerLimitMeasurement:
        return min(_checked(measurements), key=lambda m: (m.seconds_per_iteration, m.power_limit_milliwatts))


@dataclass(frozen=True, slots=True)
class LeastCost:
    """argmin of [eta * AvgPower + (1 - eta) * MAXPOWER] / Throughput (Zeus, section 4.1, equation 7).

    `energy_weight` is eta. `maximum_power_watts` is MAXPOWER over all GPUs of the job; None takes the largest measured
    limit times `gpus`. Raises ValueError on an eta outside [0, 1] or fewer than one GPU.
    """

    energy_weight: float = 0.5
    gpus: int = 1
    maximum_power_watts: float | None = None

    def __post_init__(self) -> None:
        check_weights(self.energy_weight, 1.0 if self.maximum_power_watts is None else self.maximum_power_watts)
        if self.gpus < 1:
            raise ValueError(f"{self.gpus} GPUs: a job has at least one")

    def cost(self, measurement: PowerLimitMeasurement, maximum_power_watts: float) -> float:
        """Joules per iteration as eta weighs them."""
        return energy_time_cost(
            measurement.joules_per_iteration,
            measurement.seconds_per_iteration,
            self.energy_weight,
            maximum_power_watts,
        )

    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> PowerLimitMeasurement:
        checked = _checked(measurements)
        maximum = self.maximum_power_watts
        if maximum is None:
            maximum = self.gpus * max(m.power_limit_milliwatts for m in checked) / 1000.0
        return min(checked, key=lambda m: (self.cost(m, maximum), m.power_limit_milliwatts))


@dataclass(frozen=True, slots=True)
class LeastEnergyWithin:
    """The least energy among the limits that slow the job by no more than `slowdown` (1.1: ten per cent).

    The slowdown is against the largest measured limit, which is what the job would run at without Flyball. Raises
    ValueError on a slowdown below 1.
    """

    slowdown: float

    def __post_init__(self) -> None:
        if not self.slowdown >= 1.0:
            raise ValueError(f"slowdown {self.slowdown} is below 1 (1.1 allows ten per cent more time)")

    def select(self, measurements: Sequence[PowerLimitMeasurement]) -> PowerLimitMeasurement:
        checked = _checked(measurements)
        allowed = self.slowdown * unlimited(checked).seconds_per_iteration
        return LeastEnergy().select([m for m in checked if m.seconds_per_iteration <= allowed])


@dataclass(frozen=True, slots=True)
class WouldSave:
    """What observer mode reports: the limit a selector would set, against staying at the largest (Zeus, section 5).

    The fractions are of the time and energy at the largest limit; `time_added_fraction` is negative where the chosen
    limit is faster. Neither says anything was changed.
    """

    power_limit_milliwatts: int
    current_power_limit_milliwatts: int
    energy_saved_fraction: float
    time_added_fraction: float
    joules_saved_per_iteration: float
    seconds_added_per_iteration: float


def unlimited(measurements: Iterable[PowerLimitMeasurement]) -> PowerLimitMeasurement:
    """The measurement at the largest limit: how the job runs when nobody limits it."""
    return max(measurements, key=lambda m: m.power_limit_milliwatts)


def would_save(measurements: Sequence[PowerLimitMeasurement], selector: Selector) -> WouldSave:
    """What `selector` would gain over the largest limit, from a finished profile (Zeus, section 5, observer mode)."""
    chosen, now = selector.select(measurements), unlimited(_checked(measurements))
    return WouldSave(
        power_limit_milliwatts=chosen.power_limit_milliwatts,
        current_power_limit_milliwatts=now.power_limit_milliwatts,
        energy_saved_fraction=1.0 - chosen.joules_per_iteration / now.joules_per_iteration,
        time_added_fraction=chosen.seconds_per_iteration / now.seconds_per_iteration - 1.0,
        joules_saved_per_iteration=now.joules_per_iteration - chosen.joules_per_iteration,
        seconds_added_per_iteration=chosen.seconds_per_iteration - now.seconds_per_iteration,
    )


def power_limit_frontier(measurements: Iterable[PowerLimitMeasurement]) -> Frontier[int]:
    """The time-energy frontier of one iteration over the measured limits; each point's plan is a limit in mW."""
    return Frontier.of(
        FrontierPoint(m.seconds_per_iteration, m.joules_per_iteration, m.power_limit_milliwatts)
        for m in sorted(measurements, key=lambda m: m.power_limit_milliwatts)
    )


def _checked(measurements: Sequence[PowerLimitMeasurement]) -> Sequence[PowerLimitMeasurement]:
    if not measurements:
        raise ValueError("no power limit has been measured yet; profile at least one slice first")
    limits = [m.power_limit_milliwatts for m in measurements]
    if len(set(limits)) < len(limits):
        raise ValueError(f"power limits {sorted(limits)} mW are measured twice; hand over one measurement of each")
    return measurements
