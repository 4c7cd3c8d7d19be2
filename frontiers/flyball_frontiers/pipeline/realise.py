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

import numpy as np
from numpy.typing import NDArray

from flyball_frontiers.pipeline.convex import CostCurve
from flyball_frontiers.pipeline.graph import ComputationGraph

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_Pick = Callable[[Integers, Floats], Integers]

SNAP_SHARE = 1e-6
"""A planned duration this near (as a share) to a corner of its hull is that corner: what the solver's tolerance is."""

ROUNDING_SHARE = 1e-12
"""What summing seconds forwards and backwards may differ by; sweeps keep this far from the end of the iteration."""

RATE_LEVELS = 14
"""In how many rounds the greedy repair goes down the hulls' slopes, from the most joules saved per second to the least."""


class Realiser:
    """Rounds plans on one graph. Choices are places in the operation's `CostCurve`, 0 the fastest, shape
    (operations, plans); `curves` and `kinds` as in `TimeCostProgram`."""

    def __init__(self, graph: ComputationGraph, curves: Sequence[CostCurve], kinds: Integers) -> None:
        self._count = len(kinds)
        self._kinds = kinds
        self._hull = [curve.hull for curve in curves]
        width = max(len(curve.times) for curve in curves)
        self._times = np.full((len(curves), width), np.inf)
        self._costs = np.zeros((len(curves), width))
        self._corners = np.full((len(curves), width), np.inf)
        self._rates = np.full((len(curves), width, width), -np.inf)
        for kind, curve in enumerate(curves):
            size = len(curve.times)
            self._times[kind, :size] = curve.times
            self._costs[kind, :size] = curve.costs
            self._corners[kind, curve.hull] = curve.hull_times
            for fast in range(size - 1):
                saved, taken = curve.costs[fast] - curve.costs[fast + 1 :], curve.times[fast + 1 :] - curve.times[fast]
                self._rates[kind, fast, fast + 1 : size] = saved / taken
        slopes = [-np.diff(curve.hull_costs) / np.diff(curve.hull_times) for curve in curves]
        falling = np.sort(np.concatenate([np.zeros(1), *slopes]))[::-1]
        self._thresholds = falling[np.linspace(0, len(falling) - 1, RATE_LEVELS).round().astype(np.int64)]
        self._forward = _levels(graph.predecessors, graph.topological_order, self._count)
        self._backward = _levels(graph.successors, graph.topological_order[::-1], self._count)

    def realise(self, durations: Floats, times_seconds: Floats) -> Integers:
        """The choices for plans with `durations` (operations, plans) within `times_seconds` (plans), which rise.

        Where rounding cannot keep a plan's time (the solver's tolerance used it up), the choices of the faster plan
        before it stand in, and for the first one the fastest there are.
        """
        planned, ends = self._snap(durations), times_seconds * (1 - ROUNDING_SHARE)
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
            cost = np.where(self.makespan(choices) <= times_seconds, self._cost(choices), np.inf)
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
        return np.where(self.makespan(spent) <= times_seconds, spent, chosen)

    def durations(self, choices: Integers) -> Floats:
        """Measured seconds of the choices."""
        return self._times[self._kinds[:, None], choices]

    def makespan(self, choices: Integers) -> Floats:
        """Iteration time (s) of each plan's choices."""
        return np.asarray(self._earliest_finish(self.durations(choices)).max(axis=0))

    def _cost(self, choices: Integers) -> Floats:
        return np.asarray(self._costs[self._kinds[:, None], choices].sum(axis=0))

    def _earliest_finish(self, durations: Floats) -> Floats:
        finish = np.zeros((self._count + 1, durations.shape[1]))
        for members, neighbours in self._forward:
            finish[members] = finish[neighbours].max(axis=1) + durations[members]
        return finish

    def _latest_start(self, durations: Floats, times_seconds: Floats) -> Floats:
        start = np.empty((self._count + 1, durations.shape[1]))
        start[-1] = times_seconds
        for members, neighbours in self._backward:
            start[members] = start[neighbours].min(axis=1) - durations[members]
        return start

    def _snap(self, durations: Floats) -> Floats:
        snapped = durations.copy()
        for kind, hull in enumerate(self._hull):
            members = np.flatnonzero(self._kinds == kind)
            corners = self._times[kind, hull]
            nearest = corners[np.abs(durations[members, :, None] - corners).argmin(axis=2)]
            near = np.abs(durations[members] - nearest) <= SNAP_SHARE * nearest
            snapped[members] = np.where(near, nearest, durations[members])
        return snapped

    def _round_down(self, durations: Floats) -> Integers:
        """The slowest choice that is no slower than planned."""
        choices = np.zeros(durations.shape, dtype=np.int64)
        for kind in range(len(self._times)):
            members = np.flatnonzero(self._kinds == kind)
            choices[members] = np.searchsorted(self._times[kind], durations[members], side="right") - 1
        return np.maximum(choices, 0)

    def _sweep(self, along: bool, durations: Floats, times_seconds: Floats, pick: _Pick) -> Integers:
        """Choose level by level, along the graph or against it; `pick(members, room)` gets the room each operation
        has, between what is already chosen on the one side and `durations` on the other."""
        choices = np.empty(durations.shape, dtype=np.int64)
        levels = self._forward if along else self._backward
        if along:
            limit = self._latest_start(durations, times_seconds) + np.vstack([durations, np.zeros_like(times_seconds)])
            reached = np.zeros((self._count + 1, durations.shape[1]))
        else:
            limit = self._earliest_finish(durations) - np.vstack([durations, np.zeros_like(times_seconds)])
            reached = np.empty((self._count + 1, durations.shape[1]))
            reached[-1] = times_seconds
        for members, neighbours in levels:
            if along:
                start = reached[neighbours].max(axis=1)
                choices[members] = pick(members, limit[members] - start)
                reached[members] = start + self._times[self._kinds[members, None], choices[members]]
            else:
                finish = reached[neighbours].min(axis=1)
                choices[members] = pick(members, finish - limit[members])
                reached[members] = finish - self._times[self._kinds[members, None], choices[members]]
        return choices

    def _fits(self, members: Integers, room: Floats) -> Integers:
        """The slowest choice within the room each has; the fastest where none is, which callers must not trust."""
        within: Integers = (self._times[self._kinds[members], :, None] <= room[:, None, :]).sum(axis=1)
        return np.maximum(within - 1, 0)

    def _spend(self, choices: Integers, times_seconds: Floats, *, along: bool) -> Integers:
        """Let each operation in turn take the slowest clock that fits, first come first served."""

        def pick(members: Integers, room: Floats) -> Integers:
            return np.maximum(choices[members], self._fits(members, room))

        return self._sweep(along, self.durations(choices), times_seconds, pick)

    def _spread(self, durations: Floats, times_seconds: Floats, *, along: bool) -> Integers:
        """The slowest corner of the hull that ends no later than the plan has it, however early it could start."""

        def pick(members: Integers, room: Floats) -> Integers:
            corners = self._corners[self._kinds[members]]
            fits = corners[:, :, None] <= room[:, None, :] * (1 + 2 * ROUNDING_SHARE)
            last: Integers = fits.shape[1] - 1 - np.argmax(fits[:, ::-1], axis=1)
            return np.where(fits.any(axis=1), last, 0)

        return self._sweep(along, durations, times_seconds, pick)

    def _spend_best_first(self, choices: Integers, times_seconds: Floats, *, along: bool) -> Integers:
        """Sweeps in which an operation slows down only where that saves at least so many joules per second; the
        threshold falls from sweep to sweep."""
        for threshold in self._thresholds:
            reach, current = _reach(self._rates, threshold), choices

            def pick(members: Integers, room: Floats, reach: Integers = reach, current: Integers = current) -> Integers:
                picked: Integers = reach[self._kinds[members, None], current[members], self._fits(members, room)]
                return picked

            choices = self._sweep(along, self.durations(choices), times_seconds, pick)
        return choices


def _reach(rates: Floats, threshold: float) -> Integers:
    """Where to go from each choice (kind, choice, slowest that fits) if each second must save `threshold` joules: the
    slowest such choice that fits, or nowhere."""
    kinds, width, _ = rates.shape
    targets = np.where(rates >= threshold, np.arange(width), -1)
    reach = np.maximum.accumulate(targets, axis=2)
    here = np.broadcast_to(np.arange(width)[None, :, None], (kinds, width, width))
    return np.where(reach < 0, here, reach)


def _levels(neighbours: Sequence[Sequence[int]], order: Sequence[int], count: int) -> list[tuple[Integers, Integers]]:
    """Operations in groups that do not depend on each other, each with its neighbours, padded with `count`."""
    depth = np.zeros(count, dtype=np.int64)
    for place in order:
        depth[place] = 1 + max((depth[each] for each in neighbours[place]), default=-1)
    groups: list[list[int]] = [[] for _ in range(int(depth.max()) + 1)]
    for place in range(count):
        groups[depth[place]].append(place)
    levels: list[tuple[Integers, Integers]] = []
    for group in groups:
        padded = np.full((len(group), max(1, *(len(neighbours[place]) for place in group))), count)
        for row, place in enumerate(group):
            padded[row, : len(neighbours[place])] = neighbours[place]
        levels.append((np.array(group), padded))
    return levels
