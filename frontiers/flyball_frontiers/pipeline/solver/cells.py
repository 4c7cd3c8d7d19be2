"""A pipeline whose steady state is one layer: what waits for what between cells, and for how many layers.

All operations of a cell share a duration, and all cells that have several start anew after one common period. Where cell b
waits for cell a some laps earlier, one inequality between their first starts stands for all copies of it, and the pipeline
has the size of one whose steady state is a single layer, from which dependencies lead back into itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.solver.steady import Ties

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CellGraph:
    """The cells of a graph, counted as in `ties`, in arrays with an entry per cell.

    `before`, `after` and `laps` are the dependencies: start[after] + laps x period >= start[before] + duration[before],
    where starts are those of the first copies.
    """

    graph: ComputationGraph
    ties: Ties
    before: Integers
    after: Integers
    laps: Integers

    @classmethod
    def of(cls, graph: ComputationGraph, ties: Ties) -> CellGraph:
        before, after = np.array(graph.edges, dtype=np.int64).reshape(-1, 2).T
        cell, lap = ties.cell, ties.lap
        each = np.stack([cell[before], cell[after], lap[after] - lap[before]])
        if (ties.copies > 1).any():
            each = np.unique(each, axis=1)
        return cls(graph, ties, *each)

    @cached_property
    def repeated(self) -> NDArray[np.bool_]:
        """Which cells have several operations."""
        return self.ties.copies > 1

    @cached_property
    def laps_in_all(self) -> int:
        """How many periods lie between the first and the last layer of the steady state."""
        return int(self.ties.lap.max())

    @cached_property
    def growth(self) -> Integers:
        """How many periods later than the first layer of the steady state a cell is at least: all of them behind it."""
        if not self.laps_in_all:
            return np.zeros(len(self.repeated), dtype=np.int64)
        order, cell = self.ties.order, self.ties.cell
        behind = (order > order[self.repeated[cell]].min()) & ~self.repeated[cell]
        growth = np.zeros(len(self.repeated), dtype=np.int64)
        growth[cell[behind]] = self.laps_in_all
        return growth

    @cached_property
    def place(self) -> Integers:
        """The cells in an order in which their first operations can run."""
        topological = np.array(self.graph.topological_order)
        _, first = np.unique(self.ties.cell[topological], return_index=True)
        place = np.empty(len(first), dtype=np.int64)
        place[np.argsort(first)] = np.arange(len(first))
        return place

    @cached_property
    def first(self) -> Integers:
        """Cells that wait for nothing, of those with several operations those whose first does."""
        free = np.array([not places for places in self.graph.predecessors]) & (self.ties.lap == 0)
        return np.unique(self.ties.cell[free])

    @cached_property
    def last(self) -> tuple[Integers, Integers]:
        """Cells that nothing waits for, and the lap of their last operation."""
        places = np.flatnonzero([not places for places in self.graph.successors])
        cells, lap = self.ties.cell[places], self.ties.lap[places]
        ends = np.zeros(len(self.repeated), dtype=np.int64)
        np.maximum.at(ends, cells, lap)
        cells = np.unique(cells)
        return cells, ends[cells]

    def least_period(self, durations: Integers) -> int:
        """The shortest period in which layers of such durations can follow each other; 0 where nothing repeats."""
        return self._steady(durations)[0] if self.laps_in_all else 0

    def starts(self, durations: Integers, period: int) -> Integers:
        """First starts that keep all dependencies with `period` or any longer one, if the cells behind the steady state
        start `growth` periods later still. Raises ValueError for a period in which `durations` do not fit."""
        every = durations[self.ties.cell]
        starts = np.zeros(len(durations), dtype=np.int64)
        first = self.ties.lap == 0
        starts[self.ties.cell[first]] = (finishes(self.graph, every) - every)[first]
        if not self.laps_in_all:
            return starts
        least, within = self._steady(durations, period)
        if least > period:
            raise ValueError(f"layers of such durations follow each other after {least}, not after {period}")
        into = ~self.repeated[self.before] & self.repeated[self.after]
        out = self.repeated[self.before] & ~self.repeated[self.after]
        before, after = self.before[into], self.after[into]
        starts[self.repeated] = within[self.repeated] + _most(starts[before] + durations[before] - within[after])
        before, after = self.before[out], self.after[out]
        starts[self.growth > 0] += _most(starts[before] + durations[before] - starts[after])
        return starts

    def _steady(self, durations: Integers, period: int = 0) -> tuple[int, Integers]:
        """The least period that is not below `period`, and starts within a layer, from 0, that fit it.

        Longest paths through the layer (Bellman and Ford); where they grow for ever there is a circle of dependencies, and
        the period must be its duration over its laps.
        """
        inside = self.repeated[self.before] & self.repeated[self.after]
        before, after, laps = self.before[inside], self.after[inside], self.laps[inside]
        while True:
            starts = np.zeros(len(durations), dtype=np.int64)
            reason = np.full(len(durations), -1)  # the dependency that a cell waits for last
            lengths = durations[before] - laps * period
            for _ in range(int(self.repeated.sum()) + 1):
                reached = starts[before] + lengths
                later = np.flatnonzero(reached > starts[after])
                if not later.size:
                    return period, starts
                later = later[np.argsort(reached[later], kind="stable")]
                starts[after[later]], reason[after[later]] = reached[later], later
            circle = _circle(reason, before, int(after[later[-1]]))
            period = -(-int(durations[before[circle]].sum()) // int(laps[circle].sum()))


def finishes(graph: ComputationGraph, durations: NDArray[np.number]) -> NDArray[np.number]:
    """When operations of such durations end, if each starts as early as it can."""
    every = durations.tolist()
    finish = [0 * every[0]] * len(every)
    for place in graph.topological_order:
        finish[place] = max([finish[before] for before in graph.predecessors[place]], default=0) + every[place]
    return np.array(finish)


def _circle(reason: Integers, before: Integers, cell: int) -> list[int]:
    """The dependencies of the circle that one comes to by following what each cell waits for."""
    for _ in range(len(reason)):
        cell = int(before[reason[cell]])
    circle, at = [int(reason[cell])], int(before[reason[cell]])
    while at != cell:
        circle.append(int(reason[at]))
        at = int(before[reason[at]])
    return circle


def _most(values: Integers) -> int:
    return int(values.max(initial=0))
