"""The continuous relaxation as one linear program, exact at every iteration time (Perseus, section 4.1, Equation 5).

On the lower convex hull of its measured points the cost of a computation is piecewise linear, so that minimising the
sum of costs under a bound on the makespan is a linear program in the start times and in how far each computation is
stretched along each edge of its hull. The paper fits exponentials and crawls up in units of time with one maximum flow
a unit; here only the bound moves, and a simplex goes on from the last optimum. Its pivots are that crawl, with
steps as long as the optimal cut stays the same, in real seconds and on the measured points.

Where nothing is tied, or all that is repeats with one common period, the program is the dual of a flow, and a network
simplex solves it (`network`). Where stages drift apart, so that each has intervals of its own, there is no such flow, and
HiGHS' dual simplex solves the program itself (`drifting`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.profile import OperatingPoint
from flyball_frontiers.pipeline.solver.convex import CostCurve, cost_curve
from flyball_frontiers.pipeline.solver.drifting import DriftingError, DriftingProgram
from flyball_frontiers.pipeline.solver.network import NetworkError, TimeCostNetwork
from flyball_frontiers.pipeline.solver.steady import Ties

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class SolverError(RuntimeError):
    """The linear program has no optimum where it must have one; says what the solver said."""


@dataclass(frozen=True, eq=False)
class RelaxedPlan:
    """An optimum at one iteration time: durations (s) of the cells, the cost of all operations (effective J), and the
    price of time, the effective joules that one second more would save (J/s). `layer_seconds` is what one more layer of
    tied operations takes, 0 where there are none."""

    time_seconds: float
    durations: Floats
    cost_joules: float
    joules_per_second: float
    layer_seconds: float = 0.0


class TimeCostProgram:
    """The linear program of one graph; `solve` may be called at any times, cheapest when they fall in small steps.

    `curves` are the kinds of computation, `kinds[c]` is that of cell c. Operations with equal points
    that occupy a GPU (or do not) share a kind; on no GPU nothing is blocked, and cost is plain energy. With `ties` the
    operations of a cell have one duration and start at even intervals, the same for all cells unless they may be
    `drifting`, which bounds the optimum from above; without, each operation is a cell.
    """

    def __init__(
        self,
        graph: ComputationGraph,
        blocking_power_watts: float,
        ties: Ties | None = None,
        *,
        drifting: bool = False,
    ) -> None:
        self.graph = graph
        self.ties = ties or Ties.none(len(graph.operations))
        self.curves: list[CostCurve] = []
        members = np.unique(self.ties.cell, return_index=True)[1]
        self._copies = self.ties.copies
        self.kinds: Integers = np.zeros(len(members), dtype=np.int64)
        known: dict[tuple[tuple[OperatingPoint, ...], bool], int] = {}
        by_identity: dict[tuple[int, bool], int] = {}
        for cell, place in enumerate(members.tolist()):
            operation = graph.operations[place]
            identity = (id(operation.points), operation.stage is None)
            if identity not in by_identity:
                kind = known.setdefault((operation.points, operation.stage is None), len(self.curves))
                if kind == len(self.curves):
                    power = 0.0 if operation.stage is None else blocking_power_watts
                    self.curves.append(cost_curve(operation.points, power))
                by_identity[identity] = kind
            self.kinds[cell] = by_identity[identity]
        self._members = [np.flatnonzero(self.kinds == kind) for kind in range(len(self.curves))]
        stages = [graph.operations[place].stage for place in members.tolist()]
        self._blocking = np.array([0.0 if stage is None else blocking_power_watts for stage in stages])
        self._stages = np.array([0 if stage is None else 1 + stage for stage in stages])
        self.shortest = np.array([curve.times[0] for curve in self.curves])[self.kinds]
        self.longest = np.array([curve.times[-1] for curve in self.curves])[self.kinds]
        solver = DriftingProgram if drifting else TimeCostNetwork
        self._solver: DriftingProgram | TimeCostNetwork = solver(graph, self.curves, self.kinds, self.ties)

    def makespan(self, durations: Floats) -> float:
        """The iteration time (s) of given durations of the cells: the longest path."""
        every = durations[self.ties.cell].tolist()
        finish = [0.0] * len(every)
        for place in self.graph.topological_order:
            start = max([finish[before] for before in self.graph.predecessors[place]], default=0.0)
            finish[place] = start + every[place]
        return max(finish)

    def costs(self, durations: Floats) -> Floats:
        """Effective joules of one operation of each cell, on its hull."""
        costs = np.empty_like(durations)
        for curve, members in zip(self.curves, self._members, strict=True):
            costs[members] = curve.relaxed_cost(durations[members])
        return costs

    def cost(self, durations: Floats) -> float:
        """Effective joules of all operations."""
        return float(self._copies @ self.costs(durations))

    def energies(self, durations: Floats) -> Floats:
        """Joules of one operation of each cell: what it costs, and what its GPU would draw blocked for as long."""
        return self.costs(durations) + self._blocking * durations

    def cheapest(self) -> RelaxedPlan:
        """Every operation at its least cost, in whatever time that takes; no solver is asked."""
        time = self.makespan(self.longest)
        several = self._copies > 1
        layer = np.bincount(self._stages[several], self.longest[several]).max(initial=0.0)
        return RelaxedPlan(time, self.longest, self.cost(self.longest), 0.0, float(layer))

    def forget(self) -> None:
        """Start the next `solve` from nothing: cheaper than going on from an optimum that is far away."""
        self._solver.forget()

    def solve(self, time_seconds: float) -> RelaxedPlan:
        """The optimum with a makespan of at most `time_seconds`. Raises SolverError below the shortest makespan."""
        try:
            durations, price, layer = self._solver.solve(time_seconds)
        except (NetworkError, DriftingError) as error:
            raise SolverError(str(error)) from error
        return RelaxedPlan(time_seconds, durations, self.cost(durations), price, layer)
