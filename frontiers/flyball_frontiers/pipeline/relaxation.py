"""The continuous relaxation as one linear program, exact at every iteration time (Perseus, section 4.1, Equation 5).

On the lower convex hull of its measured points the cost of a computation is piecewise linear, so that minimising the
sum of costs under a bound on the makespan is a linear program in the start times and in how far each computation is
stretched along each edge of its hull. The paper fits exponentials and crawls up in units of time with one maximum flow
a unit; here only the bound moves, and the dual simplex goes on from the last optimum. Its pivots are that crawl, with
steps as long as the optimal cut stays the same, in real seconds and on the measured points.
"""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from flyball_frontiers.pipeline.convex import CostCurve, cost_curve
from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.profile import OperatingPoint

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class SolverError(RuntimeError):
    """The linear program has no optimum where it must have one; says what HiGHS said."""


@dataclass(frozen=True, eq=False)
class RelaxedPlan:
    """An optimum at one iteration time: durations (s) of the operations, their cost (effective J), and the price of
    time, the effective joules that one second more would save (J/s)."""

    time_seconds: float
    durations: Floats
    cost_joules: float
    joules_per_second: float


class TimeCostProgram:
    """The linear program of one graph; `solve` may be called at any times, cheapest when they fall in small steps.

    `curves` are the kinds of computation, `kinds[i]` is that of operation i. Operations with equal points
    that occupy a GPU (or do not) share a kind; on no GPU nothing is blocked, and cost is plain energy.
    """

    def __init__(self, graph: ComputationGraph, blocking_power_watts: float) -> None:
        self.graph = graph
        self.curves: list[CostCurve] = []
        self.kinds: Integers = np.zeros(len(graph.operations), dtype=np.int64)
        known: dict[tuple[tuple[OperatingPoint, ...], bool], int] = {}
        by_identity: dict[tuple[int, bool], int] = {}
        for place, operation in enumerate(graph.operations):
            identity = (id(operation.points), operation.stage is None)
            if identity not in by_identity:
                kind = known.setdefault((operation.points, operation.stage is None), len(self.curves))
                if kind == len(self.curves):
                    power = 0.0 if operation.stage is None else blocking_power_watts
                    self.curves.append(cost_curve(operation.points, power))
                by_identity[identity] = kind
            self.kinds[place] = by_identity[identity]
        on_gpu = np.array([operation.stage is not None for operation in graph.operations])
        self._blocking = np.where(on_gpu, blocking_power_watts, 0.0)
        self.shortest = np.array([curve.times[0] for curve in self.curves])[self.kinds]
        self.longest = np.array([curve.times[-1] for curve in self.curves])[self.kinds]
        self._edges = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
        self._unit = float(np.median(self.shortest))  # seconds: HiGHS' tolerances are absolute, so times are near 1
        self._slope_unit = 1.0
        self._highs = self._build()

    def _build(self) -> highspy.Highs:
        """Columns: a start per operation, the iteration's end, a stretch per hull edge. Rows: an edge of the graph
        each, and the last operations' ends: start[after] - start[before] - stretches[before] >= shortest[before]."""
        count = len(self.kinds)
        end = count
        sinks = np.array([place for place, after in enumerate(self.graph.successors) if not after])
        before = np.concatenate([self._edges[:, 0], sinks])
        after = np.concatenate([self._edges[:, 1], np.full(len(sinks), end)])
        steps = [(np.diff(curve.hull_times), np.diff(curve.hull_costs)) for curve in self.curves]
        stretch_counts = np.array([len(times) for times, _ in steps])[self.kinds]
        first_stretch = end + 1 + np.concatenate([[0], np.cumsum(stretch_counts)])
        lengths = np.concatenate([np.zeros(0), *(steps[kind][0] for kind in self.kinds)]) / self._unit
        costs = np.concatenate([np.zeros(0), *(steps[kind][1] for kind in self.kinds)])
        slopes = costs / lengths
        self._slope_unit = float(np.median(-slopes)) if len(slopes) else 1.0
        rows = np.arange(len(before))
        per_row = stretch_counts[before]
        stretch_rows = np.repeat(rows, per_row)
        within = np.arange(len(stretch_rows)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
        stretch_columns = np.repeat(first_stretch[before], per_row) + within
        matrix = scipy.sparse.csc_matrix(
            (
                np.concatenate([np.ones(len(rows)), np.full(len(rows) + len(stretch_rows), -1.0)]),
                (
                    np.concatenate([rows, rows, stretch_rows]),
                    np.concatenate([after, before, stretch_columns]),
                ),
            ),
            shape=(len(rows), int(first_stretch[-1])),
        )
        program = highspy.HighsLp()
        program.num_row_, program.num_col_ = matrix.shape
        program.col_cost_ = np.concatenate([np.zeros(count + 1), slopes / self._slope_unit])
        program.col_lower_ = np.zeros(matrix.shape[1])
        program.col_upper_ = np.concatenate([np.full(count + 1, highspy.kHighsInf), lengths])
        program.row_lower_ = self.shortest[before] / self._unit
        program.row_upper_ = np.full(len(rows), highspy.kHighsInf)
        program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        program.a_matrix_.start_ = matrix.indptr
        program.a_matrix_.index_ = matrix.indices
        program.a_matrix_.value_ = matrix.data
        highs = highspy.Highs()  # type: ignore[no-untyped-call]
        for option, value in (("output_flag", False), ("threads", 1), ("presolve", "off"), ("solver", "simplex")):
            highs.setOptionValue(option, value)
        if highs.passModel(program) != highspy.HighsStatus.kOk:
            raise SolverError("HiGHS refused the linear program")
        return highs

    def makespan(self, durations: Floats) -> float:
        """The iteration time (s) of given durations: the longest path."""
        finish = [0.0] * len(durations)
        for place in self.graph.topological_order:
            start = max((finish[before] for before in self.graph.predecessors[place]), default=0.0)
            finish[place] = start + float(durations[place])
        return max(finish)

    def costs(self, durations: Floats) -> Floats:
        """Effective joules of each operation on its hull."""
        costs = np.empty_like(durations)
        for kind, curve in enumerate(self.curves):
            members = np.flatnonzero(self.kinds == kind)
            costs[members] = curve.relaxed_cost(durations[members])
        return costs

    def energies(self, durations: Floats) -> Floats:
        """Joules of each operation on its hull: what it costs, and what its GPU would draw blocked for as long."""
        return self.costs(durations) + self._blocking * durations

    def forget(self) -> None:
        """Start the next `solve` from nothing: cheaper than going on from an optimum that is far away."""
        self._highs.clearSolver()

    def solve(self, time_seconds: float) -> RelaxedPlan:
        """The optimum with a makespan of at most `time_seconds`. Raises SolverError below the shortest makespan."""
        highs, end = self._highs, len(self.kinds)
        highs.changeColBounds(end, 0.0, time_seconds / self._unit)
        highs.run()
        status = highs.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            raise SolverError(f"no optimum at {time_seconds} s: HiGHS says {highs.modelStatusToString(status)}")
        solution = highs.getSolution()
        starts = np.array(solution.col_value[: end + 1]) * self._unit
        room = np.full(end, starts[end]) - starts[:end]
        np.minimum.at(room, self._edges[:, 0], starts[self._edges[:, 1]] - starts[self._edges[:, 0]])
        durations = np.clip(room, self.shortest, self.longest)
        price = -float(solution.col_dual[end]) * self._slope_unit / self._unit
        return RelaxedPlan(time_seconds, durations, float(self.costs(durations).sum()), max(0.0, price))
