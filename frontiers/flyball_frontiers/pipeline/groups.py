"""Data-parallel groups that are not alike: separate pipelines that wait for each other at the end of each iteration.

In a job on several kinds of GPU, or with uneven parts of the model or of the batch, each group is a pipeline of its own,
and gradients are exchanged when the last of them is done. An iteration of T seconds is then cheapest where each group is
planned for T by itself and waits for what it does not need: nothing but T is shared, so the groups' frontiers add up
(Perseus, section 3.1, where every group but one has a straggler).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from flyball_frontiers.frontier import Frontier, FrontierPoint
from flyball_frontiers.pipeline.perseus import ENERGY_WEIGHT, PerseusPlanner, Progress
from flyball_frontiers.pipeline.plan import PipelinePlan

PlanT = TypeVar("PlanT")

COARSER = 4
"""How many times fewer points the groups' own curves get, from which the common times are chosen."""


@dataclass(frozen=True, slots=True)
class GroupsDeployment(Generic[PlanT]):
    """What each group is to run, by name, in iterations of `iteration_seconds`."""

    iteration_seconds: float
    points: Mapping[str, FrontierPoint[PlanT]]


class SynchronisedGroups(Generic[PlanT]):
    """Groups by name, each with the frontier of all its GPUs. Looks up, never solves.

    Raises ValueError where there is no group.
    """

    def __init__(self, frontiers: Mapping[str, Frontier[PlanT]]) -> None:
        if not frontiers:
            raise ValueError("there is no group: wanted at least one frontier")
        self.frontiers = dict(frontiers)

    @property
    def t_min(self) -> float:
        """Seconds that the slowest group takes at its fastest: no iteration is shorter."""
        return max(frontier.t_min for frontier in self.frontiers.values())

    @property
    def t_star(self) -> float:
        """Seconds beyond which no group can save more."""
        return max(frontier.t_star for frontier in self.frontiers.values())

    @property
    def waiting_power_watts(self) -> float:
        return sum(frontier.waiting_power_watts for frontier in self.frontiers.values())

    def frontier(self, times_seconds: Iterable[float] | None = None) -> Frontier[Mapping[str, FrontierPoint[PlanT]]]:
        """The frontier of all groups, whose plans say what each group runs.

        Its points are at `times_seconds` (those outside [t_min, t_star] count as its ends), without them at every time at
        which a group has a point. Planned energy is the groups' at that time, linear between their points.
        """
        if times_seconds is None:
            times_seconds = [point.time_seconds for each in self.frontiers.values() for point in each.points]
        times = sorted({min(max(time, self.t_min), self.t_star) for time in times_seconds})
        return Frontier.of((self._point(time) for time in times), self.waiting_power_watts)

    def _point(self, time_seconds: float) -> FrontierPoint[Mapping[str, FrontierPoint[PlanT]]]:
        points = {name: frontier.at(time_seconds) for name, frontier in self.frontiers.items()}
        realised = max(point.realised_time_seconds for point in points.values())
        return FrontierPoint(
            time_seconds,
            sum(frontier.interpolate(time_seconds) for frontier in self.frontiers.values()),
            points,
            realised,
            sum(self.frontiers[name].energy_within(point, realised) for name, point in points.items()),
        )

    def behind(self, degrees: Mapping[str, float], wanted_seconds: float = 0.0) -> GroupsDeployment[PlanT]:
        """What to run while the computations of some groups take `degrees` (by name) times as long, in iterations that
        last `wanted_seconds`, or longer where that is too short.

        A slow group that had time to spare runs faster clocks for it; only where these do not suffice does the iteration
        last longer, and the others save what they can by it. Raises ValueError on a group that is not there or a degree
        below 1.
        """
        for name, degree in degrees.items():
            if name not in self.frontiers:
                raise ValueError(f"there is no group {name!r}, only {', '.join(self.frontiers)}")
            if not 1 <= degree < math.inf:
                raise ValueError(f"group {name}: degree {degree} must be finite and at least 1 (1: as measured)")
        slowness = {name: degrees.get(name, 1.0) for name in self.frontiers}
        least = max(slowness[name] * frontier.t_min for name, frontier in self.frontiers.items())
        seconds = max(wanted_seconds, least)
        return GroupsDeployment(
            seconds, {name: each.at(seconds / slowness[name]) for name, each in self.frontiers.items()}
        )


def plan_groups(
    planners: Mapping[str, PerseusPlanner], points: int = 200, progress: Progress | None = None
) -> SynchronisedGroups[PipelinePlan]:
    """The groups, each planned exactly at the same `points` times, spread over [t_min, t_star] as one pipeline's are, and
    at a few shorter ones, which it needs to catch up once it is slow.

    `progress` is told how many plans are made, and of how many. Raises ValueError for less than two points.
    """
    if points < 2:
        raise ValueError(f"a frontier needs at least 2 points, not {points}")
    coarse = max(2, points // COARSER)
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, len(planners) * (coarse + points))

    known: dict[str, Frontier[PipelinePlan]] = {}
    for name, planner in planners.items():
        known[name] = planner.frontier(coarse)
        count(coarse)
    times = _spread(SynchronisedGroups(known), points)
    exact: dict[str, Frontier[PipelinePlan]] = {}
    for name, planner in planners.items():
        shorter = [point.time_seconds for point in known[name].points if point.time_seconds < times[0]]
        exact[name] = planner.frontier_at([*shorter, *times])
        count(points)
    return SynchronisedGroups(exact)


def _spread(groups: SynchronisedGroups[PipelinePlan], points: int) -> list[float]:
    """Times evenly along the groups' curve, as `PerseusPlanner.frontier` spreads those of one."""
    curve = groups.frontier().points
    times = np.array([point.time_seconds for point in curve])
    if len(times) == 1:
        return [float(times[0])]
    costs = np.array([point.energy_joules for point in curve]) - groups.waiting_power_watts * times
    steps = np.diff(times) / (times[-1] - times[0]) + ENERGY_WEIGHT * np.diff(costs) / (costs[-1] - costs[0])
    along = np.concatenate([[0.0], np.cumsum(steps)])
    spread: list[float] = np.interp(np.linspace(0, along[-1], points), along, times).tolist()
    return spread
