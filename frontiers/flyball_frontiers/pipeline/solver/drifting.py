"""The relaxation of a pipeline whose steady state is tied and may drift: each computation at even intervals of its own.

Where stages drift apart over an iteration, no common period is the best (`network` knows of no other): a stage that has
time to spare takes a little longer for each microbatch than those after it, and starts the earlier for it. Then a tied
duration stands in two rows, those of its first and of its last copy, which no network has, and HiGHS' dual simplex
solves the linear program itself.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

import highspy
import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.solver.convex import CostCurve
from flyball_frontiers.pipeline.solver.steady import Ties

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

INTERRUPT_SECONDS = 0.2
"""How often a running solve looks up."""

PROMPT_CELLS = 1000
"""Programs of no more cells are solved in a tenth of a second, so that interrupts need no thread, which costs as much as
five pivots."""


class DriftingError(RuntimeError):
    """The linear program has no optimum where it must have one; says what the solver said."""


class _Starts(NamedTuple):
    """The columns of each cell's first and last start, and that of the iteration's end."""

    first: Integers
    last: Integers
    end: int


class _Stretches(NamedTuple):
    """How many columns stretch each cell, and the first of them (one more: where they end); of each column its length in
    the program's unit of time, and what all of it costs (J)."""

    counts: Integers
    first: Integers
    lengths: Floats
    costs: Floats


class DriftingProgram:
    """Optima of one graph in which the operations of a cell have one duration and start at even intervals, whatever those
    of others are; cheapest where times change in small steps. `kinds[c]` is the curve of cell c."""

    def __init__(self, graph: ComputationGraph, curves: Sequence[CostCurve], kinds: Integers, ties: Ties) -> None:
        self._graph, self._curves, self._kinds, self._ties = graph, curves, kinds, ties
        self._copies = ties.copies
        self._shortest = np.array([curve.times[0] for curve in curves])[kinds]
        self._longest = np.array([curve.times[-1] for curve in curves])[kinds]
        self._unit = float(np.median(self._shortest))  # seconds: HiGHS' tolerances are absolute, so times are near 1
        self._slope_unit = 1.0
        self._solver = self._build()

    def forget(self) -> None:
        """Start the next `solve` from nothing: cheaper than going on from an optimum that is far away."""
        self._solver.clearSolver()

    def solve(self, time_seconds: float) -> tuple[Floats, float, float]:
        """The durations (s) of all cells within an iteration of `time_seconds`, the price of time (J/s) and the longest of
        their intervals (s). Raises DriftingError below the shortest iteration."""
        highs, end = self._solver, self._end
        highs.changeColBounds(end, 0.0, time_seconds / self._unit)
        self._run(highs)
        status = highs.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            raise DriftingError(f"no optimum at {time_seconds} s: HiGHS says {highs.modelStatusToString(status)}")
        solution = highs.getSolution()
        listed = solution.col_value  # each access copies all of them
        values = np.fromiter(listed, np.float64, len(listed))
        stretches = np.concatenate([np.zeros(1), np.cumsum(values[end + 1 :])]) * self._unit
        stretched = stretches[self._stretches[1:]] - stretches[self._stretches[:-1]]
        durations = np.clip(self._shortest + stretched, self._shortest, self._longest)
        price = -solution.col_dual[end] * self._slope_unit / self._unit
        starts = values[:end]
        several = np.flatnonzero(self._copies > 1)
        layer = ((starts[self._last_start[several]] - starts[several]) / (self._copies[several] - 1)).max(initial=0.0)
        return durations, max(0.0, price), float(layer) * self._unit

    def _run(self, highs: highspy.Highs) -> None:
        """Run HiGHS where an interrupt of ours is heard: a solve may take minutes, and hears none itself. What was
        interrupted ends by itself and is not asked again."""
        if len(self._kinds) <= PROMPT_CELLS:
            highs.run()
            return
        solver = threading.Thread(target=highs.run, name="flyball-highs", daemon=True)
        solver.start()
        while solver.is_alive():
            solver.join(INTERRUPT_SECONDS)

    def _build(self) -> highspy.Highs:
        """Columns: the first and, where it has several operations, the last start of each cell, the iteration's end, a
        stretch per hull edge. Rows: start[after] - start[before] - stretches[before] >= shortest[before] for the edges of
        the graph and the last operations' ends. Of the edges between two cells, in which starts are linear, the first and
        the last stand for all."""
        first_start, last_start, end = self._start_columns()
        before, after = self._edges_that_bind()
        sinks = np.array([place for place, successors in enumerate(self._graph.successors) if not successors])
        stretches = self._stretch_columns(end + 1)
        matrix = self._precedence(_Starts(first_start, last_start, end), stretches, before, after, sinks)
        slopes = stretches.costs / stretches.lengths
        self._slope_unit = float(np.median(-slopes)) if len(slopes) else 1.0
        weights = np.repeat(self._copies, stretches.counts)
        program = highspy.HighsLp()
        program.num_row_, program.num_col_ = matrix.shape
        program.col_cost_ = np.concatenate([np.zeros(end + 1), weights * slopes / self._slope_unit])
        program.col_lower_ = np.zeros(matrix.shape[1])
        program.col_upper_ = np.concatenate([np.full(end + 1, highspy.kHighsInf), stretches.lengths])
        program.row_lower_ = self._shortest[self._ties.cell[np.concatenate([before, sinks])]] / self._unit
        program.row_upper_ = np.full(matrix.shape[0], highspy.kHighsInf)
        program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        program.a_matrix_.start_ = matrix.indptr
        program.a_matrix_.index_ = matrix.indices
        program.a_matrix_.value_ = matrix.data
        self._end = end
        self._stretches = stretches.first - end - 1
        self._last_start = last_start
        return _solver_of(program)

    def _precedence(
        self, starts: _Starts, stretches: _Stretches, before: Integers, after: Integers, sinks: Integers
    ) -> scipy.sparse.csc_matrix:
        """The program's matrix: a row for each of the edges `before[e]` to `after[e]`, then one for each of the `sinks`."""
        cell = self._ties.cell
        # 0 at the first start of its cell, 1 at the last
        position = self._ties.lap / np.maximum(self._copies[cell] - 1, 1)
        source = np.concatenate([before, sinks])
        duration = cell[source]
        rows, edges = np.arange(len(source)), np.arange(len(before))
        per_row = stretches.counts[duration]
        stretch_rows = np.repeat(rows, per_row)
        within = np.arange(len(stretch_rows)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
        stretch_columns = np.repeat(stretches.first[duration], per_row) + within
        ends = np.full(len(sinks), starts.end)
        entries = [  # their values, rows and columns
            (1 - position[after], edges, starts.first[cell[after]]),
            (position[after], edges, starts.last[cell[after]]),
            (np.ones(len(sinks)), rows[len(before) :], ends),
            (position[source] - 1, rows, starts.first[duration]),
            (-position[source], rows, starts.last[duration]),
            (np.full(len(stretch_rows), -1.0), stretch_rows, stretch_columns),
        ]
        values, in_rows, in_columns = (np.concatenate(parts) for parts in zip(*entries, strict=True))
        shape = (len(rows), int(stretches.first[-1]))
        matrix = scipy.sparse.csc_matrix((values, (in_rows, in_columns)), shape=shape)
        matrix.eliminate_zeros()
        return matrix

    def _stretch_columns(self, first_column: int) -> _Stretches:
        """The columns from `first_column` on, by which cells take longer than they must: one for each edge of a hull."""
        steps = [(np.diff(curve.hull_times), np.diff(curve.hull_costs)) for curve in self._curves]
        counts = np.array([len(times) for times, _ in steps])[self._kinds]
        first = first_column + np.concatenate([[0], np.cumsum(counts)])
        lengths = np.concatenate([np.zeros(0), *(steps[kind][0] for kind in self._kinds)]) / self._unit
        costs = np.concatenate([np.zeros(0), *(steps[kind][1] for kind in self._kinds)])
        return _Stretches(counts, first, lengths, costs)

    def _start_columns(self) -> tuple[Integers, Integers, int]:
        """The columns of each cell's first and last start, and how many there are."""
        cells = len(self._kinds)
        several = self._copies > 1
        last = np.arange(cells)
        last[several] = cells + np.arange(int(several.sum()))
        return np.arange(cells), last, cells + int(several.sum())

    def _edges_that_bind(self) -> tuple[Integers, Integers]:
        """The edges of the graph, of those between the same two cells and as far apart only the first and the last."""
        edges = np.array(self._graph.edges, dtype=np.int64).reshape(-1, 2)
        before, after = edges[:, 0], edges[:, 1]
        if not (self._copies > 1).any():
            return before, after
        cell, order = self._ties.cell, self._ties.order
        group = (cell[before] * len(self._kinds) + cell[after]) * 2 + (order[after] - order[before])
        rank = np.lexsort((order[before], group))
        group = group[rank]
        starts = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
        ends = np.concatenate([starts[1:], [len(group)]]) - 1
        kept = rank[np.union1d(starts, ends)]
        return before[kept], after[kept]


def _solver_of(program: highspy.HighsLp) -> highspy.Highs:
    """HiGHS with the program, to be solved by the simplex method from wherever it stands. Raises DriftingError."""
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in (("output_flag", False), ("threads", 1), ("presolve", "off"), ("solver", "simplex")):
        highs.setOptionValue(option, value)
    if highs.passModel(program) != highspy.HighsStatus.kOk:
        raise DriftingError("HiGHS refused the linear program")
    return highs
