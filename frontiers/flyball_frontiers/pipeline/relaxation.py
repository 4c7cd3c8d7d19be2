"""The continuous relaxation as one linear program, exact at every iteration time (Perseus, section 4.1, Equation 5).

On the lower convex hull of its measured points the cost of a computation is piecewise linear, so that minimising the
sum of costs under a bound on the makespan is a linear program in the start times and in how far each computation is
stretched along each edge of its hull. The paper fits exponentials and crawls up in units of time with one maximum flow
a unit; here only the bound moves, and a simplex goes on from the last optimum. Its pivots are that crawl, with
steps as long as the optimal cut stays the same, in real seconds and on the measured points.

Without ties the program is the dual of a flow, and a network simplex solves it (`network`); a tied duration stands in
several rows, which no network has, and HiGHS' dual simplex solves the program itself.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import highspy
import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from flyball_frontiers.pipeline.convex import CostCurve, cost_curve
from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.network import NetworkError, TimeCostNetwork
from flyball_frontiers.pipeline.profile import OperatingPoint
from flyball_frontiers.pipeline.steady import Ties

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


INTERRUPT_SECONDS = 0.2
"""How often a running solve looks up."""

PROMPT_CELLS = 1000
"""Programs of no more cells are solved in a tenth of a second, so that interrupts need no thread, which costs as much as
five pivots."""


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
    operations of a cell have one duration and start at even intervals, which bounds the optimum from above; without,
    each operation is a cell.
    """

    def __init__(self, graph: ComputationGraph, blocking_power_watts: float, ties: Ties | None = None) -> None:
        self.graph = graph
        self.ties = ties or Ties.none(len(graph.operations))
        self.curves: list[CostCurve] = []
        members, self._copies = np.unique(self.ties.cell, return_index=True, return_counts=True)[1:]
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
        self._unit = float(np.median(self.shortest))  # seconds: HiGHS' tolerances are absolute, so times are near 1
        self._slope_unit = 1.0
        self._solver: TimeCostNetwork | highspy.Highs
        self._solver = self._build() if ties else TimeCostNetwork(graph, self.curves, self.kinds)

    def _build(self) -> highspy.Highs:
        """Columns: the first and, where it has several operations, the last start of each cell, the iteration's end, a
        stretch per hull edge. Rows: start[after] - start[before] - stretches[before] >= shortest[before] for the edges of
        the graph and the last operations' ends. Of the edges between two cells, in which starts are linear, the first and
        the last stand for all."""
        first_start, last_start, starts = self._start_columns()
        end = starts
        before, after = self._edges_that_bind()
        sinks = np.array([place for place, successors in enumerate(self.graph.successors) if not successors])
        source = np.concatenate([before, sinks])
        cell, position = self.ties.cell, self.ties.position
        duration = cell[source]
        steps = [(np.diff(curve.hull_times), np.diff(curve.hull_costs)) for curve in self.curves]
        stretch_counts = np.array([len(times) for times, _ in steps])[self.kinds]
        first_stretch = end + 1 + np.concatenate([[0], np.cumsum(stretch_counts)])
        lengths = np.concatenate([np.zeros(0), *(steps[kind][0] for kind in self.kinds)]) / self._unit
        costs = np.concatenate([np.zeros(0), *(steps[kind][1] for kind in self.kinds)])
        slopes = costs / lengths
        self._slope_unit = float(np.median(-slopes)) if len(slopes) else 1.0
        rows, edges = np.arange(len(source)), np.arange(len(before))
        per_row = stretch_counts[duration]
        stretch_rows = np.repeat(rows, per_row)
        within = np.arange(len(stretch_rows)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
        stretch_columns = np.repeat(first_stretch[duration], per_row) + within
        matrix = scipy.sparse.csc_matrix(
            (
                np.concatenate(
                    [
                        1 - position[after],
                        position[after],
                        np.ones(len(sinks)),
                        position[source] - 1,
                        -position[source],
                        np.full(len(stretch_rows), -1.0),
                    ]
                ),
                (
                    np.concatenate([edges, edges, rows[len(before) :], rows, rows, stretch_rows]),
                    np.concatenate(
                        [
                            first_start[cell[after]],
                            last_start[cell[after]],
                            np.full(len(sinks), end),
                            first_start[duration],
                            last_start[duration],
                            stretch_columns,
                        ]
                    ),
                ),
            ),
            shape=(len(rows), int(first_stretch[-1])),
        )
        matrix.eliminate_zeros()
        program = highspy.HighsLp()
        program.num_row_, program.num_col_ = matrix.shape
        weights = np.repeat(self._copies, stretch_counts)
        program.col_cost_ = np.concatenate([np.zeros(end + 1), weights * slopes / self._slope_unit])
        program.col_lower_ = np.zeros(matrix.shape[1])
        program.col_upper_ = np.concatenate([np.full(end + 1, highspy.kHighsInf), lengths])
        program.row_lower_ = self.shortest[duration] / self._unit
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
        self._end = end
        self._stretches = first_stretch - end - 1
        self._last_start = last_start
        return highs

    def _start_columns(self) -> tuple[Integers, Integers, int]:
        """The columns of each cell's first and last start, and how many there are."""
        cells = len(self.kinds)
        several = self._copies > 1
        last = np.arange(cells)
        last[several] = cells + np.arange(int(several.sum()))
        return np.arange(cells), last, cells + int(several.sum())

    def _edges_that_bind(self) -> tuple[Integers, Integers]:
        """The edges of the graph, of those between the same two cells and as far apart only the first and the last."""
        edges = np.array(self.graph.edges, dtype=np.int64).reshape(-1, 2)
        before, after = edges[:, 0], edges[:, 1]
        if not (self._copies > 1).any():
            return before, after
        cell, order = self.ties.cell, self.ties.order
        group = (cell[before] * len(self.kinds) + cell[after]) * 2 + (order[after] - order[before])
        rank = np.lexsort((order[before], group))
        group = group[rank]
        starts = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
        ends = np.concatenate([starts[1:], [len(group)]]) - 1
        kept = rank[np.union1d(starts, ends)]
        return before[kept], after[kept]

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
        if isinstance(self._solver, TimeCostNetwork):
            self._solver.forget()
        else:
            self._solver.clearSolver()

    def _run(self, highs: highspy.Highs) -> None:
        """Run HiGHS where an interrupt of ours is heard: a solve may take minutes, and hears none itself. What was
        interrupted ends by itself and is not asked again."""
        if len(self.kinds) <= PROMPT_CELLS:
            highs.run()
            return
        solver = threading.Thread(target=highs.run, name="flyball-highs", daemon=True)
        solver.start()
        while solver.is_alive():
            solver.join(INTERRUPT_SECONDS)

    def solve(self, time_seconds: float) -> RelaxedPlan:
        """The optimum with a makespan of at most `time_seconds`. Raises SolverError below the shortest makespan."""
        if isinstance(self._solver, TimeCostNetwork):
            return self._solve_network(self._solver, time_seconds)
        return self._solve_tied(self._solver, time_seconds)

    def _solve_network(self, network: TimeCostNetwork, time_seconds: float) -> RelaxedPlan:
        try:
            durations, price = network.solve(time_seconds)
        except NetworkError as error:
            raise SolverError(str(error)) from error
        return RelaxedPlan(time_seconds, durations, self.cost(durations), price)

    def _solve_tied(self, highs: highspy.Highs, time_seconds: float) -> RelaxedPlan:
        end = self._end
        highs.changeColBounds(end, 0.0, time_seconds / self._unit)
        self._run(highs)
        status = highs.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            raise SolverError(f"no optimum at {time_seconds} s: HiGHS says {highs.modelStatusToString(status)}")
        solution = highs.getSolution()
        listed = solution.col_value  # each access copies all of them
        values = np.fromiter(listed, np.float64, len(listed))
        stretches = np.concatenate([np.zeros(1), np.cumsum(values[end + 1 :])]) * self._unit
        stretched = stretches[self._stretches[1:]] - stretches[self._stretches[:-1]]
        durations = np.clip(self.shortest + stretched, self.shortest, self.longest)
        price = -solution.col_dual[end] * self._slope_unit / self._unit
        starts = values[:end]
        several = np.flatnonzero(self._copies > 1)
        layer = ((starts[self._last_start[several]] - starts[several]) / (self._copies[several] - 1)).max(initial=0.0)
        return RelaxedPlan(time_seconds, durations, self.cost(durations), max(0.0, price), float(layer) * self._unit)
