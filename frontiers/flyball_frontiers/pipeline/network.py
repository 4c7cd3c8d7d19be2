"""The relaxation of a pipeline in which nothing is tied, as the minimum-cost flow that it is the dual of.

Watts flow through the graph from the beginning of an iteration to its end. Through a computation they are worth its
longest time, as long as they are fewer than what a second of it saves there, then the next shorter corner of its hull,
and so on; past all of it they are worth the iteration's time. What flows at the optimum is the price of time, and the
potentials of the nodes are start times. Only what goes past changes its worth with the iteration's time, so the
network simplex goes on from the last optimum. All is in whole numbers: there are no tolerances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pylmcf
from numpy.typing import NDArray

from flyball_frontiers.frontier import RELATIVE_TOLERANCE
from flyball_frontiers.pipeline.convex import CostCurve
from flyball_frontiers.pipeline.graph import ComputationGraph

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

TIME_UNITS = 1 << 50
"""Into how many whole units the longest iteration is divided."""

FLOW_UNITS = 1 << 40
"""Into how many the steepest slope of a hull (J/s) is divided: with 300,000 computations sums are below 2^63."""

ARCS_PER_STEP = 1000
"""The solver hears no interrupt, so a graph of so many arcs goes from the longest iteration to the shortest in one call,
one of ten times as many in ten: each takes some tenths of a second at the most, and all together no longer."""


class NetworkError(RuntimeError):
    """There is no optimum, or the solver knows none; says which."""


@dataclass(frozen=True, eq=False)
class _Arcs:
    """Arcs in the order that the solver wants: by source, then target."""

    source: Integers
    target: Integers
    cost: Integers
    capacity: Integers
    past: int  # the arc that goes past all computations


class TimeCostNetwork:
    """Optima of one graph, computation by computation; cheapest where times change in small steps.

    `kinds[i]` is the curve of operation i. Nodes are the operations' beginnings and ends, in the order in which they can
    run, then the iteration's. Costs are relative to the plan in which all take longest, so that none is negative.
    """

    def __init__(self, graph: ComputationGraph, curves: Sequence[CostCurve], kinds: Integers) -> None:
        self._kinds = kinds
        self._curves = curves
        longest = np.array([curve.hull_times[-1] for curve in curves])[kinds]
        self._unit = float(_finishes(graph, longest).max()) / TIME_UNITS
        self._corners = [np.round(curve.hull_times / self._unit).astype(np.int64) for curve in curves]
        self._longest = np.array([corners[-1] for corners in self._corners])[kinds]
        self._shortest = np.array([corners[0] for corners in self._corners])[kinds]
        self._least = int(_finishes(graph, self._shortest).max())
        order = np.empty(len(kinds), dtype=np.int64)
        order[list(graph.topological_order)] = np.arange(len(kinds))
        self._begin, self._end = 2 * order, 2 * order + 1
        slopes = [-np.diff(curve.hull_costs) / np.diff(curve.hull_times) for curve in curves]
        self._watts = max([float(each[0]) for each in slopes if len(each)], default=1.0) / FLOW_UNITS
        rates = [np.round(each / self._watts).astype(np.int64) for each in slopes]
        self._supply = 1 + sum(int(rates[kind][0]) for kind in kinds.tolist() if len(rates[kind]))
        finishes: Integers = _finishes(graph, self._longest).astype(np.int64)
        self._most = int(finishes.max())
        self._arcs = self._built(graph, finishes, rates)
        self.forget()

    def _built(self, graph: ComputationGraph, finishes: Integers, rates: Sequence[Integers]) -> _Arcs:
        """An arc for each corner of each operation's hull, each dependency, the first and last operations, the way past.

        Through the corners of an operation the flow is bounded by what the slopes differ by, from flat to steep; the
        shortest time takes what is left.
        """
        beginning, end = 2 * len(self._kinds), 2 * len(self._kinds) + 1
        starts = finishes - self._longest
        parts: list[tuple[Integers, Integers, Integers, Integers]] = []

        def arcs(source: Integers | int, target: Integers | int, cost: Integers | int, capacity: int) -> None:
            parts.append(tuple(np.broadcast_arrays(source, target, cost, capacity)))  # type: ignore[arg-type]

        for kind, (corners, falling) in enumerate(zip(self._corners, rates, strict=True)):
            members = np.flatnonzero(self._kinds == kind)
            capacities = [*np.diff(falling[::-1], prepend=0).tolist(), self._supply]
            for corner, capacity in zip(corners[::-1].tolist(), capacities, strict=True):
                arcs(self._begin[members], self._end[members], int(corners[-1]) - corner, capacity)
        before, after = np.array(graph.edges, dtype=np.int64).reshape(-1, 2).T
        arcs(self._end[before], self._begin[after], starts[after] - finishes[before], self._supply)
        first = np.flatnonzero([not places for places in graph.predecessors])
        last = np.flatnonzero([not places for places in graph.successors])
        arcs(beginning, self._begin[first], starts[first], self._supply)
        arcs(self._end[last], end, self._most - finishes[last], self._supply)
        arcs(np.array([beginning]), end, 0, self._supply)
        source, target, cost, capacity = (np.concatenate(each) for each in zip(*parts, strict=True))
        rank = np.lexsort((target, source))
        past = int(np.flatnonzero(rank == len(source) - 1)[0])
        return _Arcs(source[rank], target[rank], cost[rank], capacity[rank], past)

    def forget(self) -> None:
        """Begin again with the longest iteration."""
        arcs, nodes = self._arcs, 2 * len(self._kinds) + 2
        self._solver = pylmcf.Graph(nodes, arcs.source, arcs.target)
        supply = np.zeros(nodes, dtype=np.int64)
        supply[-2:] = self._supply, -self._supply
        self._solver.set_node_supply(supply)
        self._solver.set_edge_capacities(arcs.capacity)
        self._at = self._most

    def solve(self, time_seconds: float) -> tuple[Floats, float]:
        """The durations (s) of all operations within an iteration of `time_seconds`, and the price of time (J/s). Raises
        NetworkError below the shortest iteration."""
        shortest = self._least * self._unit
        if time_seconds < shortest * (1 - RELATIVE_TOLERANCE):
            raise NetworkError(f"no plan takes {time_seconds} s: the shortest iteration takes {shortest} s")
        wanted = min(max(round(time_seconds / self._unit), self._least), self._most)
        whole = max(1, self._most - self._least)
        steps = math.ceil(abs(wanted - self._at) / whole * len(self._arcs.source) / ARCS_PER_STEP)
        for time in np.linspace(self._at, wanted, max(steps, 1) + 1)[1:-1]:
            self._go_to(round(float(time)))
        self._go_to(wanted)
        return self._durations(), (self._supply - int(self._solver.result()[self._arcs.past])) * self._watts

    def _go_to(self, time: int) -> None:
        arcs = self._arcs
        arcs.cost[arcs.past] = self._most - time
        self._solver.set_edge_costs(arcs.cost)
        try:
            self._solver.solve()
        except RuntimeError as error:
            raise NetworkError(f"no optimum at {time * self._unit} s: the network simplex says {error}") from error
        self._at = time

    def _durations(self) -> Floats:
        """Seconds between the potentials of an operation's two nodes; those that are on a corner are the corner's own."""
        potentials = self._solver.raw_potentials()  # of the basis: nothing to compute
        if (
            np.abs(potentials).max() > 2 * TIME_UNITS
        ):  # where no watt flows a node may hang on the solver's own dear arcs
            potentials = self._solver.potentials()
        units = np.clip(
            self._longest - (potentials[self._end] - potentials[self._begin]), self._shortest, self._longest
        )
        durations = np.empty(len(units))
        for kind, (curve, corners) in enumerate(zip(self._curves, self._corners, strict=True)):
            members = np.flatnonzero(self._kinds == kind)
            durations[members] = np.interp(units[members], corners, curve.hull_times)
        return durations


def _finishes(graph: ComputationGraph, durations: NDArray[np.number]) -> NDArray[np.number]:
    """When operations of such durations end, if each starts as early as it can."""
    every = durations.tolist()
    finish = [0 * every[0]] * len(every)
    for place in graph.topological_order:
        finish[place] = max([finish[before] for before in graph.predecessors[place]], default=0) + every[place]
    return np.array(finish)
