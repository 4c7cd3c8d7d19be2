"""One type for every time-energy frontier: Perseus, EnvPipe, Zeus and Kareus all return a `Frontier`.

A frontier is a Pareto front: its points rise in time and fall in energy. What a point *is* differs by method (a clock
per computation, a power limit, a kernel schedule); that is the point's `plan`, and the frontier does not look into it.

A point may be planned and realised at different places: Perseus plans on a continuous relaxation and realises on the
clocks that the GPU has. Order and shape are those of the planned points; `at` and `at_energy` answer by what is
realised, because that is what the cluster will see.

A pipeline that has finished and waits for a straggler draws its blocking power. `waiting_power_watts` is that power,
zero for everything else: a point is on the front where no other is cheaper in an iteration that lasts as long
(Perseus, section 4.1, Equation 4), so that with it a slower point may need more energy than a faster one, and still be
the best there is for whoever has to wait that long anyway.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

PlanT = TypeVar("PlanT")

RELATIVE_TOLERANCE = 1e-9
"""Two times (or energies) nearer than this share of their size are the same: what rounding in a sum can cost."""


def rounded_up(seconds: float) -> str:
    """To a tenth of a millisecond, in six digits below a tenth of a second, and never below it: who asks for a time as it
    was told is not refused."""
    if seconds >= 0.1:
        return f"{math.ceil(seconds * 1e4 - 1e-6) / 1e4:.4f}"
    digit = 10.0 ** (math.floor(math.log10(seconds)) - 5) if seconds > 0 else 1.0
    return f"{math.ceil(seconds / digit - 5e-5) * digit:.6g}"


_AS_PLANNED = -math.inf  # no time or energy is, so it can stand for "not given" and every other number be checked


@dataclass(frozen=True, slots=True)
class FrontierPoint(Generic[PlanT]):
    """One point of a frontier: seconds, joules, and the plan that gives them.

    `realised_time_seconds` and `realised_energy_joules` default to the planned values (a measured point is its own
    realisation). Raises ValueError on numbers that are not finite, or on a time below zero.
    """

    time_seconds: float
    energy_joules: float
    plan: PlanT
    realised_time_seconds: float = _AS_PLANNED
    realised_energy_joules: float = _AS_PLANNED

    def __post_init__(self) -> None:
        if self.realised_time_seconds == _AS_PLANNED:
            object.__setattr__(self, "realised_time_seconds", self.time_seconds)
        if self.realised_energy_joules == _AS_PLANNED:
            object.__setattr__(self, "realised_energy_joules", self.energy_joules)
        numbers = (self.time_seconds, self.energy_joules, self.realised_time_seconds, self.realised_energy_joules)
        if not all(math.isfinite(number) for number in numbers) or min(self.time_seconds, numbers[2]) < 0:
            raise ValueError(
                f"frontier point at {self.time_seconds} s, {self.energy_joules} J (realised {numbers[2]} s, "
                f"{numbers[3]} J): times must be finite and not negative, energies finite"
            )


@dataclass(frozen=True)
class Frontier(Generic[PlanT]):
    """A Pareto front of `points` in rising time; their energy, less what waiting as long costs, falls; never empty.

    With `waiting_power_watts` zero, energy itself falls. Build it from any points with `Frontier.of`; the constructor
    itself only checks. Raises ValueError where there are no points, or where two neighbours are not in order.
    """

    points: tuple[FrontierPoint[PlanT], ...]
    waiting_power_watts: float = 0.0

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("a frontier needs at least one point")
        if not (math.isfinite(self.waiting_power_watts) and self.waiting_power_watts >= 0):
            raise ValueError(f"waiting power {self.waiting_power_watts} W must be finite and not negative")
        for index, (faster, slower) in enumerate(zip(self.points, self.points[1:], strict=False)):
            if faster.time_seconds < slower.time_seconds and self._effective(faster) > self._effective(slower):
                continue
            raise ValueError(
                f"frontier points {index} ({faster.time_seconds} s, {faster.energy_joules} J) and {index + 1} "
                f"({slower.time_seconds} s, {slower.energy_joules} J): time must rise, and energy less "
                f"{self.waiting_power_watts} W times the time must fall (Frontier.of drops dominated points)"
            )

    @classmethod
    def of(cls, points: Iterable[FrontierPoint[PlanT]], waiting_power_watts: float = 0.0) -> Frontier[PlanT]:
        """The Pareto front of `points` in any order: dominated points and repetitions are dropped (first one kept)."""

        def effective(point: FrontierPoint[PlanT]) -> float:
            return point.energy_joules - waiting_power_watts * point.time_seconds

        kept: list[FrontierPoint[PlanT]] = []
        for point in sorted(points, key=lambda point: (point.time_seconds, point.energy_joules)):
            if not kept or effective(point) < effective(kept[-1]):
                kept.append(point)
        return cls(tuple(kept), waiting_power_watts)

    def __len__(self) -> int:
        return len(self.points)

    def _effective(self, point: FrontierPoint[PlanT]) -> float:
        return point.energy_joules - self.waiting_power_watts * point.time_seconds

    @property
    def fastest(self) -> FrontierPoint[PlanT]:
        return self.points[0]

    @cached_property
    def cheapest(self) -> FrontierPoint[PlanT]:
        """The point of least energy when no other pipeline is waited for; the slowest one where waiting draws nothing."""
        return min(self.points, key=lambda point: point.energy_joules)

    @property
    def t_min(self) -> float:
        """The least time in seconds that is planned (Perseus, section 3.1: every computation as fast as it goes)."""
        return self.points[0].time_seconds

    @property
    def t_star(self) -> float:
        """The slowest time in seconds worth taking, however slow another pipeline is (Perseus, section 3.1)."""
        return self.points[-1].time_seconds

    @cached_property
    def _realised_waiting(self) -> tuple[list[FrontierPoint[PlanT]], list[float]]:
        """The points that are best for some iteration that lasts a given time, once realised, and their times."""
        front: list[FrontierPoint[PlanT]] = []
        least = math.inf
        for point in sorted(self.points, key=lambda p: (p.realised_time_seconds, p.realised_energy_joules)):
            effective = point.realised_energy_joules - self.waiting_power_watts * point.realised_time_seconds
            if effective < least:
                least = effective
                front.append(point)
        return front, [point.realised_time_seconds for point in front]

    @cached_property
    def _realised(self) -> tuple[list[FrontierPoint[PlanT]], list[float]]:
        """The Pareto front of realised time and energy, with its negated energies (rising, for bisection)."""
        front: list[FrontierPoint[PlanT]] = []
        for point in sorted(self.points, key=lambda p: (p.realised_time_seconds, p.realised_energy_joules)):
            if not front or point.realised_energy_joules < front[-1].realised_energy_joules:
                front.append(point)
        return front, [-point.realised_energy_joules for point in front]

    def at(self, time_seconds: float) -> FrontierPoint[PlanT]:
        """The best point for an iteration that lasts `time_seconds`: a bisection.

        Of the points realised within that time, the one of least realised energy, what it draws while it waits
        for the end included. Raises ValueError, naming the fastest time, where nothing is that fast.
        """
        front, times = self._realised_waiting
        index = bisect_right(times, time_seconds + RELATIVE_TOLERANCE * abs(time_seconds))
        if index == 0:
            raise ValueError(
                f"no point of the frontier is as fast as {time_seconds} s; the fastest takes {rounded_up(times[0])} s"
            )
        return front[index - 1]

    def at_energy(self, energy_joules: float) -> FrontierPoint[PlanT]:
        """The fastest point whose realised energy is not above `energy_joules`: a bisection.

        Raises ValueError, naming the least energy, where nothing is that cheap.
        """
        front, negated = self._realised
        index = bisect_left(negated, -energy_joules - RELATIVE_TOLERANCE * abs(energy_joules))
        if index == len(front):
            raise ValueError(f"no point of the frontier needs {energy_joules} J or less; the least is {-negated[-1]} J")
        return front[index]

    def energy_within(self, point: FrontierPoint[PlanT], time_seconds: float) -> float:
        """Realised joules of `point` in an iteration that lasts `time_seconds`, waiting included (Equation 3)."""
        return point.realised_energy_joules + self.waiting_power_watts * (time_seconds - point.realised_time_seconds)

    def interpolate(self, time_seconds: float) -> float:
        """Planned energy in joules at `time_seconds`, linear between points; beyond `t_star`, its last point waits.

        The exact value wherever the frontier is piecewise linear and has all its corners. Raises ValueError below
        `t_min`.
        """
        if time_seconds < self.t_min * (1 - RELATIVE_TOLERANCE):
            raise ValueError(f"no plan takes {time_seconds} s; the fastest takes {rounded_up(self.t_min)} s")
        times = self._planned_times
        index = bisect_right(times, time_seconds)
        if index == len(times):
            return self.points[-1].energy_joules + self.waiting_power_watts * max(0.0, time_seconds - times[-1])
        if index == 0:
            return self.fastest.energy_joules
        left, right = self.points[index - 1], self.points[index]
        share = (time_seconds - left.time_seconds) / (right.time_seconds - left.time_seconds)
        return left.energy_joules + share * (right.energy_joules - left.energy_joules)

    @cached_property
    def _planned_times(self) -> list[float]:
        return [point.time_seconds for point in self.points]

    def hypervolume(self, reference: tuple[float, float], *, realised: bool = False) -> float:
        """The area in joule-seconds that the points dominate below `reference` (seconds, joules): a staircase.

        The larger, the better the frontier; points beyond the reference add nothing.
        """
        reference_time, reference_energy = reference
        points = self._realised[0] if realised else self.points
        corners = [
            (p.realised_time_seconds, p.realised_energy_joules) if realised else (p.time_seconds, p.energy_joules)
            for p in points
        ]
        area, ceiling = 0.0, reference_energy
        for time, energy in corners:
            if time < reference_time and energy < ceiling:
                area += (reference_time - time) * (ceiling - energy)
                ceiling = energy
        return area

    def to_json(self, plan_to_json: Callable[[PlanT], Any] | None = None) -> dict[str, Any]:
        """What `json.dumps` takes: t_min, t_star and points (time, energy, realised_time, realised_energy, plan).

        `plan_to_json` writes one plan; without it the points carry none, as reports for people want it.
        """
        points: list[dict[str, Any]] = []
        for point in self.points:
            record: dict[str, Any] = {
                "time": point.time_seconds,
                "energy": point.energy_joules,
                "realised_time": point.realised_time_seconds,
                "realised_energy": point.realised_energy_joules,
            }
            if plan_to_json is not None:
                record["plan"] = plan_to_json(point.plan)
            points.append(record)
        document = {"t_min": self.t_min, "t_star": self.t_star, "points": points}
        return document | ({"waiting_power": self.waiting_power_watts} if self.waiting_power_watts else {})

    def dumps(self, plan_to_json: Callable[[PlanT], Any] | None = None) -> str:
        """`to_json` as text; floats keep every digit, so that `frontier_from_json` gives the same frontier back."""
        return json.dumps(self.to_json(plan_to_json), allow_nan=False)


def frontier_from_json(document: str | Mapping[str, Any], plan_from_json: Callable[[Any], PlanT]) -> Frontier[PlanT]:
    """The frontier that `Frontier.to_json` (or `dumps`) wrote; `plan_from_json` gets each point's plan, or None.

    Raises ValueError that names the point where a number is missing or wrong.
    """
    record = json.loads(document) if isinstance(document, str) else document
    points: list[FrontierPoint[PlanT]] = []
    for index, entry in enumerate(record.get("points", ())):
        try:
            points.append(
                FrontierPoint(
                    float(entry["time"]),
                    float(entry["energy"]),
                    plan_from_json(entry.get("plan")),
                    float(entry.get("realised_time", entry["time"])),
                    float(entry.get("realised_energy", entry["energy"])),
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"points[{index}]: {error!r} (wanted: numbers under time and energy)") from error
    return Frontier(tuple(points), float(record.get("waiting_power", 0.0)))
