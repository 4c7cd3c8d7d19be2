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

from flyball_frontiers.pipeline.convex import CostCurve
from flyball_frontiers.pipeline.graph import ComputationGraph

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_Pick = Callable[[slice, Floats], Integers]

GRID = 4096
"""Into how many equal steps the times of a kind are divided to look the last one within some seconds up."""

SNAP_SHARE = 1e-6
"""A planned duration this near (as a share) to a corner of its hull is that corner: what the solver's tolerance is."""

ROUNDING_SHARE = 1e-12
"""What summing seconds forwards and backwards may differ by; sweeps keep this far from the end of the iteration."""

PIN_TOLERANCE = 1e-10
"""What pinned starts and the times between them may be off by, as a share of the iteration: the solver's rounding."""

RATE_LEVELS = 14
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
    (operations, plans); `curves` and `kinds` are those of the operations.

    Inside, operations are in the order of their levels: none depends on another of its level, so that a level is a slice
    of every array, and a sweep goes over the levels.
    """

    def __init__(self, graph: ComputationGraph, curves: Sequence[CostCurve], kinds: Integers) -> None:
        self._count = len(kinds)
        depth = _depths(graph)
        self._order = np.argsort(depth, kind="stable")
        self._place = np.argsort(self._order)
        bounds = np.concatenate([[0], np.cumsum(np.bincount(depth))]).tolist()
        levels = [slice(first, last) for first, last in pairwise(bounds)]
        before = [_padded(level, self._order, self._place, graph.predecessors) for level in levels]
        after = [_padded(level, self._order, self._place, graph.successors) for level in levels]
        self._forward = list(zip(levels, before, strict=True))
        self._backward = list(zip(levels, after, strict=True))[::-1]
        self._kinds = kinds[self._order]
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
        self._grid = _Grid.of(curves, self._times)
        self._row = (self._kinds * self._width)[:, None]
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
            self._spend_best_first(down, ends, along=True),
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
        seconds: Floats = self._times.ravel()[self._row + choices]
        return seconds

    def _cost(self, choices: Integers) -> Floats:
        return np.asarray(self._costs.ravel()[self._row + choices].sum(axis=0))

    def _earliest_finish(self, durations: Floats) -> Floats:
        """Seconds, shape (operations + 1, plans); the last row is 0."""
        finish = np.zeros((self._count + 1, durations.shape[1]))
        for level, neighbours in self._forward:
            start = _greatest(finish, neighbours)
            if self._release is not None:
                start = np.maximum(start, self._release[level])
            finish[level] = start + durations[level]
        return finish

    def _latest_finish(self, durations: Floats, times_seconds: Floats) -> Floats:
        start = np.empty((self._count + 1, durations.shape[1]))
        finish = np.empty_like(durations)
        start[-1] = times_seconds
        for level, neighbours in self._backward:
            finish[level] = _least(start, neighbours)
            start[level] = finish[level] - durations[level]
            if self._due is not None:
                start[level] = np.minimum(start[level], self._due[level])
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
            for level, neighbours in self._forward:
                start = _greatest(reached, neighbours)
                if self._release is not None:
                    start = np.maximum(start, self._release[level])
                picked = choices[level] = pick(level, limit[level] - start)
                reached[level] = start + times[self._row[level] + picked]
        else:
            limit = self._earliest_finish(durations)[:-1] - durations
            reached[-1] = times_seconds
            for level, neighbours in self._backward:
                finish = _least(reached, neighbours)
                picked = choices[level] = pick(level, finish - limit[level])
                reached[level] = finish - times[self._row[level] + picked]
                if self._due is not None:
                    reached[level] = np.minimum(reached[level], self._due[level])
        return choices

    def _fits(self, level: slice, room: Floats) -> Integers:
        """The slowest choice within the room each has; the fastest where none is, which callers must not trust."""
        return self._grid.last_within(self._kinds[level, None], room)

    def _spend(self, choices: Integers, times_seconds: Floats, *, along: bool) -> Integers:
        """Let each operation in turn take the slowest clock that fits, first come first served."""

        def pick(level: slice, room: Floats) -> Integers:
            return np.maximum(choices[level], self._fits(level, room))

        return self._sweep(along, self._durations(choices), times_seconds, pick)

    def _spread(self, durations: Floats, times_seconds: Floats, *, along: bool) -> Integers:
        """The slowest corner of the hull that ends no later than the plan has it, however early it could start."""

        def pick(level: slice, room: Floats) -> Integers:
            fits = self._fits(level, room * (1 + 2 * ROUNDING_SHARE))
            corners: Integers = self._last_corner.ravel()[self._row[level] + fits]
            return corners

        return self._sweep(along, durations, times_seconds, pick)

    def _spend_best_first(self, choices: Integers, times_seconds: Floats, *, along: bool) -> Integers:
        """Sweeps in which an operation slows down only where that saves at least so many joules per second; the
        threshold falls from sweep to sweep."""
        for reach in self._reaches:
            flat, current = reach.ravel(), choices

            def pick(level: slice, room: Floats, flat: Integers = flat, current: Integers = current) -> Integers:
                place = (self._row[level] + current[level]) * self._width + self._fits(level, room)
                picked: Integers = flat[place]
                return picked

            choices = self._sweep(along, self._durations(choices), times_seconds, pick)
        return choices


@dataclass(frozen=True, eq=False)
class _Grid:
    """The last of a kind's times within some seconds, without a search: a look-up, and `steps` steps from there."""

    first: Floats
    cells_per_second: Floats
    start: Integers
    times: Floats
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
        return cls(first, per_second, start, times, steps)

    def last_within(self, kinds: Integers, seconds: Floats) -> Integers:
        """The last place in the times of `kinds` (n, 1) that is within `seconds` (n, plans); 0 where none is."""
        cell = np.clip((seconds - self.first[kinds]) * self.cells_per_second[kinds], 0, GRID - 1).astype(np.int64)
        place: Integers = self.start.ravel()[kinds * GRID + cell]
        row, times = kinds * self.times.shape[1] + 1, self.times.ravel()
        for _ in range(self.steps):
            place += times[row + place] <= seconds
        return place


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
    greatest: Floats = values[neighbours[:, 0]]
    for column in range(1, neighbours.shape[1]):
        greatest = np.maximum(greatest, values[neighbours[:, column]])
    return greatest


def _least(values: Floats, neighbours: Integers) -> Floats:
    least: Floats = values[neighbours[:, 0]]
    for column in range(1, neighbours.shape[1]):
        least = np.minimum(least, values[neighbours[:, column]])
    return least
