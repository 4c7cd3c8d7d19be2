"""Stragglers by look-up: what a pipeline should run when another one is known to be slow (Perseus, sections 3.1, 5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from flyball_frontiers.frontier import Frontier, FrontierPoint, frontier_from_json

PlanT = TypeVar("PlanT")


@dataclass(frozen=True, slots=True)
class Deployment(Generic[PlanT]):
    """What to run from `from_seconds` on: the point of the frontier, and the iteration time T' that it is chosen for.

    `iteration_seconds` is the straggler's, or the pipeline's own where nobody is slower than it.
    """

    from_seconds: float
    iteration_seconds: float
    point: FrontierPoint[PlanT]


class StragglerTable(Generic[PlanT]):
    """Who is slow, from when on, and what that makes of the plan. Never solves: a bisection in a known frontier.

    `degree` is a straggler's iteration time over the one without stragglers; of several, the slowest counts. Time is
    whatever the caller counts it in; nothing here reads a clock.
    """

    def __init__(self, frontier: Frontier[PlanT]) -> None:
        self._frontier = frontier
        self._degrees: dict[str, list[tuple[float, float]]] = {}  # by id: (from when, degree), in order of time

    def set_straggler(self, id: str, delay: float, degree: float, *, now_seconds: float = 0.0) -> Deployment[PlanT]:
        """`id` will be slow by `degree` from `delay` seconds after `now_seconds`; degree 1 says that it is normal.

        What was announced for that id for a later time is withdrawn. Returns what to deploy at that time. Raises
        ValueError on a delay below 0 or a degree below 1.
        """
        if not (math.isfinite(delay) and delay >= 0):
            raise ValueError(f"straggler {id}: delay {delay} s must be finite and not negative")
        if not (math.isfinite(degree) and degree >= 1):
            raise ValueError(f"straggler {id}: degree {degree} must be finite and at least 1 (1: back to normal)")
        start = now_seconds + delay
        known = self._degrees.get(id, [])
        in_force = [change for change in known if change[0] <= now_seconds][-1:]
        announced = [change for change in known if now_seconds < change[0] < start]
        self._degrees[id] = [*in_force, *announced, (start, degree)]
        return self.deployment(start)

    def to_json(self, plan_to_json: Callable[[PlanT], Any]) -> dict[str, Any]:
        """What `json.dumps` takes: the frontier with its plans, and who is slow from when on."""
        return {
            "frontier": self._frontier.to_json(plan_to_json),
            "stragglers": {id: [list(change) for change in changes] for id, changes in self._degrees.items()},
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any], plan_from_json: Callable[[Any], PlanT]) -> StragglerTable[PlanT]:
        """The table that `to_json` wrote. Raises ValueError that names what is missing or wrong."""
        try:
            frontier, stragglers = record["frontier"], dict(record["stragglers"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"a straggler table needs frontier and stragglers: {error!r}") from error
        table = cls(frontier_from_json(frontier, plan_from_json))
        for id, changes in stragglers.items():
            try:
                table._degrees[id] = sorted((float(start), float(degree)) for start, degree in changes)
            except (TypeError, ValueError) as error:
                raise ValueError(f"straggler {id}: {changes!r} must be [[from seconds, degree], ...]") from error
            if not all(math.isfinite(start) and 1 <= degree < math.inf for start, degree in table._degrees[id]):
                raise ValueError(f"straggler {id}: {changes!r} must be finite, degrees at least 1")
        return table

    def degree(self, at_seconds: float) -> float:
        """The largest degree in force at a time, not before the last announcement; 1 where nobody is slow."""
        in_force = [1.0]
        for changes in self._degrees.values():
            in_force += [degree for start, degree in changes if start <= at_seconds][-1:]
        return max(in_force)

    def deployment(self, at_seconds: float) -> Deployment[PlanT]:
        """What to run at a time: T_opt = min(T*, T') (Equation 2), as the best point for an iteration of T' seconds."""
        frontier = self._frontier
        slowest = self.degree(at_seconds) * frontier.fastest.time_seconds
        return Deployment(at_seconds, slowest, frontier.at(min(slowest, frontier.t_star)))
