"""The relaxation of a pipeline as the minimum-cost flow that it is the dual of.

Watts flow through the graph from the beginning of an iteration to its end. Through a computation they are worth its
longest time, as long as they are fewer than what a second of it saves there, then the next shorter corner of its hull,
and so on; past all of it they are worth the iteration's time. What flows at the optimum is the price of time, and the
potentials of the nodes are start times. Only what goes past changes its worth with the iteration's time, so the
network simplex goes on from the last optimum. All is in whole numbers: there are no tolerances.

A steady state is one layer through which watts go round, a lap for each layer that it stands for, and each lap is worth a
period less. The period is the one unknown that is in no potential; the flow tells on which side of it costs fall.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pylmcf
from numpy.typing import NDArray

from flyball_frontiers.frontier import RELATIVE_TOLERANCE
from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.solver.cells import CellGraph, finishes
from flyball_frontiers.pipeline.solver.convex import CostCurve
from flyball_frontiers.pipeline.solver.steady import Ties
from flyball_frontiers.pipeline.solver.tangents import Tangent, Tangents

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

TIME_UNITS = 1 << 50
"""Into how many whole units the longest iteration is divided."""

FLOW_UNITS = 1 << 40
"""Into how many the steepest slope of a hull (J/s) is divided at the most."""

LARGEST_FLOW = 1 << 60
"""What no flow exceeds. The steepest slope is divided into fewer units where all computations times all laps would."""

ARCS_PER_STEP = 1000
"""The solver hears no interrupt, so a graph of so many arcs goes from the longest iteration to the shortest in one call,
one of ten times as many in ten: each takes some tenths of a second at the most, and all together no longer."""

PERIOD_TOLERANCE = 1e-11
"""How much more than the least a plan may cost for its period, as a share of what the shortest durations cost more than the
longest: about what the sum of a flow's worth is rounded by."""

MOST_PERIODS = 60
"""How many periods are tried at one time; five are as a rule."""


class NetworkError(RuntimeError):
    """There is no optimum, or the solver knows none; says which."""


@dataclass(frozen=True, eq=False)
class _Arcs:
    """Arcs in the order that the solver wants: by source, then target. `laps` is what a period adds to their cost."""

    source: Integers
    target: Integers
    cost: Integers
    laps: Integers
    capacity: Integers
    past: int  # the arc that goes past all computations


class TimeCostNetwork:
    """Optima of one graph, cell by cell of its `ties`; cheapest where times change in small steps.

    `kinds[c]` is the curve of cell c. Nodes are the cells' beginnings and ends, in the order in which they can run, then
    the iteration's. The solver takes no negative costs, so they are relative to a plan that fits at every period: all take
    longest, but what repeats takes shortest, where watts through the longer corners count as given back.
    """

    def __init__(self, graph: ComputationGraph, curves: Sequence[CostCurve], kinds: Integers, ties: Ties) -> None:
        self._kinds, self._curves = kinds, curves
        self._cells = CellGraph.of(graph, ties)
        copies = ties.copies
        longest = np.array([curve.hull_times[-1] for curve in curves])[kinds]
        self._unit = float(finishes(graph, longest[ties.cell]).max()) / TIME_UNITS
        self._corners = [np.round(curve.hull_times / self._unit).astype(np.int64) for curve in curves]
        self._longest = np.array([corners[-1] for corners in self._corners])[kinds]
        self._shortest = np.array([corners[0] for corners in self._corners])[kinds]
        self._least = int(finishes(graph, self._shortest[ties.cell]).max())
        self._most = int(finishes(graph, self._longest[ties.cell]).max())
        self._begin, self._end = 2 * self._cells.place, 2 * self._cells.place + 1
        slopes = [-np.diff(curve.hull_costs) / np.diff(curve.hull_times) for curve in curves]
        laps = 1 + self._cells.laps_in_all
        units = min(FLOW_UNITS, LARGEST_FLOW // (len(ties.cell) * laps))
        self._watts = max([float(each[0]) for each in slopes if len(each)], default=1.0) / units
        rates = [np.round(each / self._watts).astype(np.int64) for each in slopes]
        steepest = np.array([int(each[0]) if len(each) else 0 for each in rates])
        self._supply = 1 + int(copies @ steepest[kinds])
        self._periods = self._cells.least_period(self._shortest), self._cells.least_period(self._longest)
        self._ground = np.where(self._cells.repeated, self._shortest, self._longest)
        self._starts = self._cells.starts(self._ground, self._periods[0])
        first, last = (np.array([curve.hull_costs[at] for curve in curves])[kinds] for at in (0, -1))
        self._ground_cost = float(copies @ np.where(self._cells.repeated, first, last))
        self._tolerance = PERIOD_TOLERANCE * float(copies @ (first - last))
        self._given = np.zeros(2 * len(kinds) + 2, dtype=np.int64)
        self._arcs = self._built(rates, self._supply * laps)
        self._lapping = np.flatnonzero(self._arcs.laps)
        self.forget()

    def _built(self, rates: Sequence[Integers], unbounded: int) -> _Arcs:
        """An arc for each corner of each cell's hull, each dependency, the first and last cells, the way past.

        Through the corners of a cell the flow is bounded by what the slopes differ by, from flat to steep, times its
        copies; the shortest time takes what is left.
        """
        cells, starts, ground = self._cells, self._starts, self._ground
        growth, copies = cells.growth, cells.ties.copies
        beginning, end = 2 * len(self._kinds), 2 * len(self._kinds) + 1
        parts: list[tuple[Integers, ...]] = []

        def arcs(
            source: Integers | int,
            target: Integers | int,
            cost: Integers | int,
            capacity: Integers | int,
            laps: Integers | int = 0,
        ) -> None:
            parts.append(np.broadcast_arrays(source, target, cost, capacity, laps))

        for kind, (corners, falling) in enumerate(zip(self._corners, rates, strict=True)):
            capacities = np.diff(falling[::-1], prepend=0).tolist()
            members = np.flatnonzero((self._kinds == kind) & ~cells.repeated)
            for corner, capacity in zip(corners[::-1].tolist(), [*capacities, unbounded], strict=True):
                arcs(self._begin[members], self._end[members], int(corners[-1]) - corner, capacity)
            members = np.flatnonzero((self._kinds == kind) & cells.repeated)
            for corner, capacity in zip(corners[:0:-1].tolist(), capacities, strict=True):
                given = capacity * copies[members]
                arcs(self._end[members], self._begin[members], corner - int(corners[0]), given)
                self._given[self._begin[members]] -= given
                self._given[self._end[members]] += given
            arcs(self._begin[members], self._end[members], 0, unbounded)
        before, after = cells.before, cells.after
        arcs(
            self._end[before],
            self._begin[after],
            starts[after] - starts[before] - ground[before],
            unbounded,
            cells.laps + growth[after] - growth[before],
        )
        arcs(beginning, self._begin[cells.first], starts[cells.first], unbounded, growth[cells.first])
        last, last_lap = cells.last
        ends = starts[last] + ground[last]
        self._horizon = max(self._most, int(ends.max()))
        arcs(self._end[last], end, self._horizon - ends, unbounded, cells.laps_in_all - growth[last] - last_lap)
        arcs(np.array([beginning]), end, self._horizon, self._supply, cells.laps_in_all)
        source, target, cost, capacity, laps = (np.concatenate(each) for each in zip(*parts, strict=True))
        rank = np.lexsort((target, source))
        past = int(np.flatnonzero(rank == len(source) - 1)[0])
        return _Arcs(source[rank], target[rank], cost[rank], laps[rank], capacity[rank], past)

    def forget(self) -> None:
        """Begin again with the longest iteration."""
        arcs, nodes = self._arcs, len(self._given)
        self._solver = pylmcf.Graph(nodes, arcs.source, arcs.target)
        supply = self._given.copy()
        supply[-2:] = self._supply, -self._supply
        self._solver.set_node_supply(supply)
        self._solver.set_edge_capacities(arcs.capacity)
        self._tangents = Tangents()
        self._at, self._period = self._most, self._periods[1]
        self._drift = 1 / (1 + self._cells.laps_in_all)  # how much longer a period is for each unit of the iteration

    def solve(self, time_seconds: float) -> tuple[Floats, float, float]:
        """The durations (s) of all cells within an iteration of `time_seconds`, the price of time (J/s) and the period (s).
        Raises NetworkError below the shortest iteration."""
        shortest = self._least * self._unit
        if time_seconds < shortest * (1 - RELATIVE_TOLERANCE):
            raise NetworkError(f"no plan takes {time_seconds} s: the shortest iteration takes {shortest} s")
        wanted = min(max(round(time_seconds / self._unit), self._least), self._most)
        whole = max(1, self._most - self._least)
        steps = math.ceil(abs(wanted - self._at) / whole * len(self._arcs.source) / ARCS_PER_STEP)
        for time in np.linspace(self._at, wanted, max(steps, 1) + 1)[1:-1]:
            self._go_to(round(float(time)))
        self._go_to(wanted)
        past = int(self._solver.result()[self._arcs.past])
        if (
            not past and self._solver.reduced_costs()[self._arcs.past] > 0
        ):  # at no period is it as short: without one it is
            return self._seconds(self._shortest), 0.0, self._period * self._unit
        return self._durations(), (self._supply - past) * self._watts, self._period * self._unit

    def _go_to(self, time: int) -> None:
        """Solve at the period that costs least: first at the one that the last two times lead to, then where tangents meet,
        but no further than they are to be trusted."""
        low, high = self._periods
        last = self._period
        period = min(max(last + round(self._drift * (time - self._at)), low), high)
        reach = max(abs(period - last) // 50, self._most >> 36)
        best = found = self._solve_at(time, period)
        tried = {period}
        while found.per_period != 0.0 and low < high:
            low, high = (period, high) if found.per_period < 0 else (low, period)
            wanted, bound = self._tangents.least(time, low, high)
            if best.value - bound <= self._tolerance:
                break
            nearest = min(max(wanted, period - reach), period + reach)
            if nearest != wanted:
                reach *= 4
            period = (low + high) // 2 if nearest in tried else nearest
            if period in tried or len(tried) == MOST_PERIODS:
                break
            tried.add(period)
            found = self._solve_at(time, period)
            best = min(best, found, key=lambda each: each.value)
        if best is not found:
            self._solve_at(time, best.period)
        if time != self._at:
            self._drift = (best.period - last) / (time - self._at)
        self._at, self._period = time, best.period

    def _solve_at(self, time: int, period: int) -> Tangent:
        arcs = self._arcs
        cost = arcs.cost.copy()
        cost[self._lapping] += arcs.laps[self._lapping] * period
        cost[arcs.past] -= time
        self._solver.set_edge_costs(cost)
        try:
            self._solver.solve()
        except RuntimeError as error:
            raise NetworkError(f"no optimum at {time * self._unit} s: the network simplex says {error}") from error
        if self._periods[0] == self._periods[1]:
            return Tangent(0.0, time, period, 0.0, 0.0)
        flow = self._solver.result()
        through = self._supply - int(flow[arcs.past])
        flow[arcs.past] = -through  # all that is supplied is worth the iteration's time where it goes past
        joules = self._watts * self._unit
        found = Tangent(
            self._ground_cost - joules * _sum_of_products(cost, flow),
            time,
            period,
            -joules * through,
            -joules * _sum_of_products(arcs.laps[self._lapping], flow[self._lapping]),
        )
        self._tangents.add(found)
        return found

    def _durations(self) -> Floats:
        """Seconds between the potentials of a cell's two nodes; those that are on a corner are the corner's own."""
        potentials = self._solver.raw_potentials()  # of the basis: nothing to compute
        if np.abs(potentials).max() > LARGEST_FLOW:  # where no watt flows a node may hang on the solver's own dear arcs
            potentials = self._solver.potentials()
        units = np.clip(self._ground - (potentials[self._end] - potentials[self._begin]), self._shortest, self._longest)
        return self._seconds(units)

    def _seconds(self, units: Integers) -> Floats:
        durations = np.empty(len(units))
        for kind, (curve, corners) in enumerate(zip(self._curves, self._corners, strict=True)):
            members = np.flatnonzero(self._kinds == kind)
            durations[members] = np.interp(units[members], corners, curve.hull_times)
        return durations


def _sum_of_products(left: Integers, right: Integers) -> float:
    """In floats, since it exceeds 64 bits; and not by BLAS, whose threads take longer to meet than this does."""
    return float(np.multiply(left, right, dtype=np.float64).sum())
