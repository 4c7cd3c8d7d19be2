"""What a plan really takes where a change of clock takes its time: 10 to 20 ms on real boards.

A GPU's new clock is asked for when its last computation ends. Until it is there the GPU goes on at the old one, through
whatever comes first: a gap, or the beginning of the next computation, which then does a part of its work at the old
clock's speed and power. A change that was not yet there when the next is asked for never comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flyball_frontiers.frontier import RELATIVE_TOLERANCE, FrontierPoint
from flyball_frontiers.pipeline.evaluate import in_order
from flyball_frontiers.pipeline.graph import ComputationGraph, Operation
from flyball_frontiers.pipeline.perseus import PerseusPlanner
from flyball_frontiers.pipeline.plan import PipelinePlan
from flyball_frontiers.pipeline.profile import OperatingPoint

TRIES = 8
"""How many plans are tried for one iteration time: each halves what is left of the difference."""


@dataclass(frozen=True, slots=True)
class LaggedExecution:
    """An iteration with clocks that lag: seconds, joules (blocking included), and changes of clock by GPU."""

    time_seconds: float
    energy_joules: float
    clock_changes: tuple[int, ...]


def execute_with_lag(
    graph: ComputationGraph, chosen: Sequence[OperatingPoint], blocking_power_watts: float, lag_seconds: float
) -> LaggedExecution:
    """Run the graph as `execute` does, with every change of clock `lag_seconds` late. A computation that was not
    measured at the old clock counts at the nearest one that was. Raises ValueError on a lag that is negative or not finite.
    """
    if not (lag_seconds >= 0 and np.isfinite(lag_seconds)):
        raise ValueError(f"clock lag {lag_seconds} s must be finite and not negative")
    free = [0.0] * graph.gpus
    clocks: list[int | None] = [None] * graph.gpus
    changes = [0] * graph.gpus
    finishes = [0.0] * len(graph.operations)
    busy = joules = 0.0
    for gpu, place, needs in in_order(graph):
        point = chosen[place]
        if gpu == graph.gpus:
            finishes[place] = max((finishes[before] for before in needs), default=0.0) + point.time_seconds
            joules += point.energy_joules
            continue
        start = max((finishes[before] for before in needs), default=0.0)
        start = max(start, free[gpu])
        old, wanted = clocks[gpu], point.clock_megahertz
        seconds, energy = point.time_seconds, point.energy_joules
        if wanted is not None and old is not None and wanted != old:
            changes[gpu] += 1
            left = max(0.0, lag_seconds - (start - free[gpu]))
            before = _at(graph.operations[place], old)
            share = min(1.0, left / before.time_seconds)
            seconds = share * before.time_seconds + (1 - share) * point.time_seconds
            energy = share * before.energy_joules + (1 - share) * point.energy_joules
            wanted = old if share == 1.0 else wanted
        clocks[gpu] = old if wanted is None else wanted
        free[gpu] = finishes[place] = start + seconds
        busy += seconds
        joules += energy
    time = max(finishes)
    return LaggedExecution(time, joules + blocking_power_watts * (graph.gpus * time - busy), tuple(changes))


@dataclass(frozen=True, slots=True)
class LaggedPoint:
    """A point of the frontier, and what it takes with clocks that lag."""

    point: FrontierPoint[PipelinePlan]
    execution: LaggedExecution


def plan_with_lag(planner: PerseusPlanner, time_seconds: float, lag_seconds: float) -> LaggedPoint:
    """The cheapest of a few plans for an iteration that lasts `time_seconds` and whose clocks lag: plans for less time are
    tried until one ends within it. The fastest plan where none does; its time says so. Raises ValueError below t_min.
    """

    def lagged(time: float) -> LaggedPoint:
        point = planner.plan(time)
        execution = execute_with_lag(planner.graph, point.plan.chosen, planner.blocking_power_watts, lag_seconds)
        energy = planner.replicas * execution.energy_joules
        return LaggedPoint(point, LaggedExecution(execution.time_seconds, energy, execution.clock_changes))

    def effective(point: LaggedPoint) -> float:
        """Joules less those of waiting as long: what tells plans apart in an iteration that lasts a given time."""
        return point.execution.energy_joules - planner.waiting_power_watts * point.execution.time_seconds

    limit = time_seconds * (1 + RELATIVE_TOLERANCE)
    best = lagged(time_seconds)
    if best.execution.time_seconds <= limit:
        return best
    fastest = lagged(planner.t_min)
    low, high = planner.t_min, time_seconds
    best = fastest
    for _ in range(TRIES):
        middle = (low + high) / 2
        tried = lagged(middle)
        if tried.execution.time_seconds <= limit:
            low = middle
            if best.execution.time_seconds > limit or effective(tried) < effective(best):
                best = tried
        else:
            high = middle
    return best


def _at(operation: Operation, clock: int) -> OperatingPoint:
    """The operation's measurement at a clock, or at the nearest there is."""
    return min(operation.points, key=lambda point: abs((point.clock_megahertz or 0) - clock))
