"""From planned durations to the clocks that a GPU has, for many plans at once (Perseus, section 4.3, last paragraph).

Each operation first gets the slowest clock that is no slower than planned, as the paper does. What time that leaves
over is then spent: sweeps along the graph or against it give each operation the cheapest clock that still ends in time,
either whichever comes first, or those that save most per second first. A second start rounds the other way about: an
operation may take the corner of its hull beyond the plan where its neighbours have left it time, so that rounding errors
cancel along a path and do not add up; off the hull, between corners far apart, a plan would be dear to round down. The
best of all is kept for each plan; none ever ends later than its plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.solver.convex import CostCurve

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_Pick = Callable[["_Level", Floats], Integers]

GRID = 4096
"""Into how many equal steps the times of a kind are divided to look the last one within some seconds up."""

SNAP_SHARE = 1e-7
"""A planned duration this near (as a share) to a corner of its hull is that corner: what the solver's tolerance is."""

ROUNDING_SHARE = 1e-12
"""What summing seconds forwards and backwards may differ by; sweeps keep this far from the end of the iteration."""

PIN_TOLERANCE = 1e-10
"""What pinned starts and the times between them may be off by, as a share of the iteration: the solver's rounding."""

RATE_LEVELS = 10
"""In how many rounds the greedy repair goes down the hulls' slopes, from the most joules saved per second to the least."""


@dataclass(frozen=True, eq=False)
class Pins:
    """Operations that must start at given seconds, shape (pins, plans): where a block begins and ends that is repeated,
    so that each copy finds what the one before it found."""

    places: Integers
    starts: Floats

    def of(self, plans: slice | Integers) -> Pins:
        return Pins(self.places, self.starts[:, plans])


class Realiser:
    """Rounds plans on one graph. Choices are places in the operation's `CostCurve`, 0 the fastest, shape
    (operations, plans); `curves` and `kinds` are those of the operations, and `copies` says how many each stands for.

    Inside, operations are in the order of their levels: none depends on another of its level, so that a level is a slice
    of every array, and a sweep goes over the levels.
    """

    def __init__(
        self, graph: ComputationGraph, curves: Sequence[CostCurve], kinds: Integers, copies: Integers | None = None
    ) -> None:
        self._count = len(kinds)
        depth = _depths(graph)
        self._order = np.argsort(depth, kind="stable")
        self._place = np.argsort(self._order)
        bounds = np.concatenate([[0], np.cumsum(np.bincount(depth))]).tolist()
        slices = [slice(first, last) for first, last in pairwise(bounds)]
        self._kinds = kinds[self._order]
        self._copies = np.ones(self._count) if copies is None else copies[self._order].astype(np.float64)
        self._hull = [curve.hull for curve in curves]
        self._width = 1 + max(len(curve.times) for curve in curves)
        self._times = np.full((len(curves), self._width), np.inf)
        self._costs = np.zeros((len(curves), self._width))
        self._last_corner = np.zeros((len(curves), self._width), dtype=np.int64)
        self._rates = np.full((len(curves), self._width, self._width), -np.inf)
        for kind, curve in enumerate(curves):
            size = len(curve.times)
            self._times[kind, :size] = curve.times
            self._costs[kind, :size] = curve.costs
            self._last_corner[kind, curve.hull] = curve.hull
            for fast in range(size - 1):
                saved, taken = curve.costs[fast] - curve.costs[fast + 1 :], curve.times[fast + 1 :] - curve.times[fast]
                self._rates[kind, fast, fast + 1 : size] = saved / taken
        self._last_corner = np.maximum.accumulate(self._last_corner, axis=1)
        slopes = [-np.diff(curve.hull_costs) / np.diff(curve.hull_times) for curve in curves]
        falling = np.sort(np.concatenate([np.zeros(1), *slopes]))[::-1]
        thresholds = falling[np.linspace(0, len(falling) - 1, RATE_LEVELS).round().astype(np.int64)]
        self._reaches = [_reach(self._rates, threshold) for threshold in thresholds]
        self._row = (self._kinds * self._width)[:, None]
        grid = _Grid.of(curves, self._times)
        self._levels = [
            _Level(
                each,
                _padded(each, self._order, self._place, graph.predecessors),
                _padded(each, self._order, self._place, graph.successors),
                self._row[each],
                grid.of_kinds(self._kinds[each]),
            )
            for each in slices
        ]
        self._pin(None)

    def realise(self, durations: Floats, times_seconds: Floats, pins: Pins | None = None) -> Integers:
        """The choices for plans with `durations` (operations, plans) within `times_seconds` (plans), which rise.

        Where rounding cannot keep a plan's time (the solver's tolerance used it up), the choices of the faster plan
        before it stand in, and for the first one the fastest there are.
        """
        planned, ends = self.snap(durations)[self._order], times_seconds * (1 - ROUNDING_SHARE)
        self._pin(pins)
        down = self._round_down(planned)
        forth, back = self._spread(planned, ends, along=True), self._spread(planned, ends, along=False)
        candidates = [
            self._spend(down, ends, along=True),
            self._spend(down, ends, along=False),
            self._spend(forth, ends, along=False),
            self._spend_best_first(forth, ends, along=False),
            self._spend_best_first(back, ends, along=True),
        ]
        chosen, least = candidates[0], np.full(len(times_seconds), np.inf)
        for choices in candidates:
            cost = np.where(self._in_time(choices, times_seconds), self._cost(choices), np.inf)
            chosen = np.where(cost < least, choices, chosen)
            least = np.minimum(cost, least)
        fastest = np.zeros((self._count, 1), dtype=np.int64)
        kept, kept_cost = fastest[:, 0], float(self._cost(fastest)[0])
        for plan in range(len(times_seconds)):
            if least[plan] <= kept_cost:
                kept, kept_cost = chosen[:, plan].copy(), float(least[plan])
            else:
                chosen[:, plan] = kept
        spent = self._spend(chosen, ends, along=True)
        return np.where(self._in_time(spent, times_seconds), spent, chosen)[self._place]

    def keeps(self, durations: Floats, times_seconds: Floats, pins: Pins) -> NDArray[np.bool_]:
        """Which plans end within their time with `durations` (operations, plans), and start what is pinned on time."""
        self._pin(pins)
        return self._on_time(durations[self._order], times_seconds)

    def earliest_starts(self, durations: Floats) -> Floats:
        """Seconds (operations, plans) at which operations of such durations can start, nothing being pinned."""
        self._pin(None)
        ordered = durations[self._order]
        return (self._earliest_finish(ordered)[:-1] - ordered)[self._place]

    def snap(self, durations: Floats) -> Floats:
        """Durations (operations, plans) with those next to a corner of their hull set to it."""
        snapped = durations.copy()
        kinds = self._kinds[self._place]
        for kind, hull in enumerate(self._hull):
            members = np.flatnonzero(kinds == kind)
            corners = self._times[kind, hull]
            nearest = corners[np.searchsorted((corners[1:] + corners[:-1]) / 2, durations[members])]
            near = np.abs(durations[members] - nearest) <= SNAP_SHARE * nearest
            snapped[members] = np.where(near, nearest, durations[members])
        return snapped

    def _pin(self, pins: Pins | None) -> None:
        """No operation starts before `_release` or after `_due` (operations, plans), None without pins."""
        self._release: Floats | None = None
        self._due: Floats | None = None
        if pins is not None:
            self._release = np.zeros((self._count, pins.starts.shape[1]))
            self._due = np.full((self._count, pins.starts.shape[1]), np.inf)
            self._release[self._place[pins.places]] = pins.starts
            self._due[self._place[pins.places]] = pins.starts + PIN_TOLERANCE * pins.starts.max(axis=0)

    def _in_time(self, choices: Integers, times_seconds: Floats) -> NDArray[np.bool_]:
        return self._on_time(self._durations(choices), times_seconds)

    def _on_time(self, durations: Floats, times_seconds: Floats) -> NDArray[np.bool_]:
        finish = self._earliest_finish(durations)[:-1]
        on_time: NDArray[np.bool_] = finish.max(axis=0) <= times_seconds
        if self._due is not None:
            on_time &= (finish - durations <= self._due).all(axis=0)
        return on_time

    def _durations(self, choices: Integers) -> Floats:
        """Measured seconds of the choices."""
        return self._times.ravel().take(self._row + choices)

    def _cost(self, choices: Integers) -> Floats:
        return np.asarray(np.einsum("o,op->p", self._copies, self._costs.ravel().take(self._row + choices)))

    def _earliest_finish(self, durations: Floats) -> Floats:
        """Seconds, shape (operations + 1, plans); the last row is 0."""
        finish = np.zeros((self._count + 1, durations.shape[1]))
        for level in self._levels:
            np.add(self._start(level, finish), durations[level.places], out=finish[level.places])
        return finish

    def _start(self, level: _Level, finish: Floats) -> Floats:
        """When operations of a level can start, where `finish` has all before them."""
        start = _greatest(finish, level.before)
        if self._release is not None:
            np.maximum(start, self._release[level.places], out=start)
        return start

    def _latest_finish(self, durations: Floats, times_seconds: Floats) -> Floats:
        start = np.empty((self._count + 1, durations.shape[1]))
        finish = np.empty_like(durations)
        start[-1] = times_seconds
        for level in reversed(self._levels):
            places = level.places
            finish[places] = _least(start, level.after)
            np.subtract(finish[places], durations[places], out=start[places])
            if self._due is not None:
                np.minimum(start[places], self._due[places], out=start[places])
        return finish

    def _round_down(self, durations: Floats) -> Integers:
        """The slowest choice that is no slower than planned."""
        choices = np.zeros(durations.shape, dtype=np.int64)
        for kind in range(len(self._times)):
            members = np.flatnonzero(self._kinds == kind)
            choices[members] = np.searchsorted(self._times[kind], durations[members], side="right") - 1
        return np.maximum(choices, 0)

    def _sweep(self, along: bool, durations: Floats, times_seconds: Floats, pick: _Pick) -> Integers:
        """Choose level by level, along the graph or against it; `pick(level, room)` gets the room each operation
        has, between what is already chosen on the one side and `durations` on the other."""
        choices = np.empty(durations.shape, dtype=np.int64)
        times = self._times.ravel()
        reached = np.zeros((self._count + 1, durations.shape[1]))
        if along:
            limit = self._latest_finish(durations, times_seconds)
            for level in self._levels:
                start = self._start(level, reached)
                picked = choices[level.places] = pick(level, limit[level.places] - start)
                np.add(start, times.take(level.row + picked), out=reached[level.places])
        else:
            limit = self._earliest_finish(durations)[:-1] - durations
            reached[-1] = times_seconds
            for level in reversed(self._levels):
                places = level.places
                finish = _least(reached, level.after)
                picked = choices[places] = pick(level, finish - limit[places])
                np.subtract(finish, times.take(level.row + picked), out=reached[places])
                if self._due is not None:
                    np.minimum(reached[places], self._due[places], out=reached[places])
        return choices

    def _spend(self, choices: Integers, times_seconds: Floats, *, along: bool) -> Integers:
        """Let each operation in turn take the slowest clock that fits, first come first served."""

        def pick(level: _Level, room: Floats) -> Integers:
            return np.maximum(choices[level.places], level.slowest.within(room))

        return self._sweep(along, self._durations(choices), times_seconds, pick)

    def _spread(self, durations: Floats, times_seconds: Floats, *, along: bool) -> Integers:
        """The slowest corner of the hull that ends no later than the plan has it, however early it could start."""

        last_corner = self._last_corner.ravel()

        def pick(level: _Level, room: Floats) -> Integers:
            return last_corner.take(level.row + level.slowest.within(room * (1 + 2 * ROUNDING_SHARE)))

        return self._sweep(along, durations, times_seconds, pick)

    def _spend_best_first(self, choices: Integers, times_seconds: Floats, *, along: bool) -> Integers:
        """Sweeps in which an operation slows down only where that saves at least so many joules per second; the
        threshold falls from sweep to sweep."""
        for reach in self._reaches:
            flat = reach.ravel()

            rows = (self._row + choices) * self._width

            def pick(level: _Level, room: Floats, flat: Integers = flat, rows: Integers = rows) -> Integers:
                return flat.take(rows[level.places] + level.slowest.within(room))

            choices = self._sweep(along, self._durations(choices), times_seconds, pick)
        return choices


@dataclass(frozen=True, eq=False)
class _Level:
    """Operations that depend on none of each other: `places` in the arrays, the places `before` and `after` them (padded
    with the number of operations), where their kind's `row` begins in flat tables, and the `slowest` choice within some
    seconds."""

    places: slice
    before: Integers
    after: Integers
    row: Integers
    slowest: _Slowest


@dataclass(frozen=True, eq=False)
class _Slowest:
    """A grid's rows for some operations."""

    grid: _Grid
    first: Floats
    cells_per_second: Floats
    cells: Integers
    next: Integers

    def within(self, seconds: Floats) -> Integers:
        """The last place in the times of the operations (n) that is within `seconds` (n, plans), the fastest where none is,
        which callers must not trust."""
        grid = self.grid
        cell = (seconds - self.first) * self.cells_per_second
        np.maximum(cell, 0, out=cell)
        np.minimum(cell, GRID - 1, out=cell)
        place = grid.start.take(cell.astype(np.int64) + self.cells)
        for _ in range(grid.steps):
            place += grid.times.take(place + self.next) <= seconds
        return place


@dataclass(frozen=True, eq=False)
class _Grid:
    """The last of a kind's times within some seconds, without a search: a look-up, and `steps` steps from there. `start`
    and `times` are flat, GRID and `width` long for each kind."""

    first: Floats
    cells_per_second: Floats
    start: Integers
    times: Floats
    width: int
    steps: int

    @classmethod
    def of(cls, curves: Sequence[CostCurve], times: Floats) -> _Grid:
        first = np.array([curve.times[0] for curve in curves])
        extent = np.array([curve.times[-1] - curve.times[0] for curve in curves])
        per_second = GRID / np.where(extent > 0, extent, 1.0)
        start = np.zeros((len(curves), GRID), dtype=np.int64)
        steps = 1
        for kind, curve in enumerate(curves):
            edges = first[kind] + (np.arange(GRID + 3) - 1) / per_second[kind]  # a cell early: floor may round
            last = np.maximum(np.searchsorted(curve.times, edges, side="right") - 1, 0)
            start[kind] = last[:GRID]
            steps = max(steps, int((last[3:] - last[:GRID]).max()))
        return cls(first, per_second, start.ravel(), times.ravel(), times.shape[1], steps)

    def of_kinds(self, kinds: Integers) -> _Slowest:
        column = kinds[:, None]
        return _Slowest(self, self.first[column], self.cells_per_second[column], column * GRID, column * self.width + 1)


def _reach(rates: Floats, threshold: float) -> Integers:
    """Where to go from each choice (kind, choice, slowest that fits) if each second must save `threshold` joules: the
    slowest such choice that fits, or nowhere."""
    kinds, width, _ = rates.shape
    targets = np.where(rates >= threshold, np.arange(width), -1)
    reach = np.maximum.accumulate(targets, axis=2)
    here = np.broadcast_to(np.arange(width)[None, :, None], (kinds, width, width))
    return np.where(reach < 0, here, reach)


def _depths(graph: ComputationGraph) -> Integers:
    """How many operations, at the most, come one after the other before each."""
    depth = [0] * len(graph.operations)
    for place in graph.topological_order:
        depth[place] = 1 + max([depth[each] for each in graph.predecessors[place]], default=-1)
    return np.array(depth)


def _padded(level: slice, order: Integers, place: Integers, neighbours: Sequence[Sequence[int]]) -> Integers:
    """The neighbours of a level's operations, (operations, most neighbours), padded with the number of operations."""
    lists = [neighbours[each] for each in order[level].tolist()]
    padded = np.full((len(lists), max(1, *(len(each) for each in lists)) if lists else 1), len(order))
    for row, each in enumerate(lists):
        padded[row, : len(each)] = place[list(each)]
    return padded


def _greatest(values: Floats, neighbours: Integers) -> Floats:
    greatest = values.take(neighbours[:, 0], axis=0)
    for column in range(1, neighbours.shape[1]):
        np.maximum(greatest, values.take(neighbours[:, column], axis=0), out=greatest)
    return greatest


def _least(values: Floats, neighbours: Integers) -> Floats:
    least = values.take(neighbours[:, 0], axis=0)
    for column in range(1, neighbours.shape[1]):
        np.minimum(least, values.take(neighbours[:, column], axis=0), out=least)
    return least
