"""A bound that no plan of a pipeline can be below, from one plan and a flow that fits it.

Send P watts along paths of the graph, y_i of it through computation i. No path is longer than the iteration, so whatever
the durations d are, sum(y_i d_i) is at most P T, and sum(c_i(d_i)) at least sum(min over d of c_i(d) + y_i d) - P T: weak
duality of the relaxation, whose dual is a minimum-cost flow. A plan is optimal where the two sides meet. That needs a flow
over critical dependencies alone, with as much through each computation as a second more or less of it is worth; whether
there is one is a maximum flow, at a hundredth of what a solve from nothing takes. The flow is in whole numbers, so that
what is found is a flow exactly; what rounding loses is in the bound. The solver's numbers have 32 bits, too few for long
pipelines: what a flow lacks in finer units is a second, smaller flow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse.csgraph import maximum_flow

from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.solver.convex import CostCurve

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

LARGEST_FLOW = 1 << 30
"""Flows are 32-bit integers; watts are scaled so that all that must flow somewhere is this."""

FINE_UNITS = 1 << 17
"""Into how many units what flows through a computation is divided, on average, before no finer ones are needed."""

SLACKS = (1e-7, 1e-6)
"""How much later than it must, in iterations, an operation may end and count as critical: what the solver's tolerances
leave, which adds up along long pipelines. Watts that flow across slack lower the bound by what they waste, no more, so the
next is tried only where with the one before it there is no flow."""

CORNER = 1e-6
"""How near a corner of its hull, in the hull's width, a duration counts as on it."""


@dataclass(frozen=True, eq=False)
class _Timing:
    """Seconds of each operation (operations, plans): the earliest start and finish, and the latest finish within the
    iteration."""

    start: Floats
    finish: Floats
    latest: Floats


def least_costs(
    graph: ComputationGraph, curves: Sequence[CostCurve], kinds: Integers, durations: Floats, times_seconds: Floats
) -> Floats:
    """For each plan (column of `durations`, seconds of all operations) effective joules that no plan of its iteration
    time can be below; minus infinity where no flow fits it, which says nothing.

    `kinds[i]` is the curve of operation i. With the costs of the plans these are equal where the plans are optimal.
    """
    timing = _timing(graph, durations, times_seconds)
    edges = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
    found = np.full(len(times_seconds), -np.inf)
    for slack in SLACKS:
        for plan in np.flatnonzero(np.isinf(found)).tolist():
            time = float(times_seconds[plan])
            found[plan] = _least_cost(curves, kinds, edges, durations[:, plan], timing, plan, time, slack * time)
    return found


def _timing(graph: ComputationGraph, durations: Floats, times_seconds: Floats) -> _Timing:
    start, latest = np.zeros_like(durations), np.empty_like(durations)
    finish = np.zeros_like(durations)
    for place in graph.topological_order:
        for before in graph.predecessors[place]:
            np.maximum(start[place], finish[before], out=start[place])
        finish[place] = start[place] + durations[place]
    for place in reversed(graph.topological_order):
        latest[place] = times_seconds
        for after in graph.successors[place]:
            np.minimum(latest[place], latest[after] - durations[after], out=latest[place])
    return _Timing(start, finish, latest)


def _least_cost(
    curves: Sequence[CostCurve],
    kinds: Integers,
    edges: Integers,
    durations: Floats,
    timing: _Timing,
    plan: int,
    time_seconds: float,
    slack: float,
) -> float:
    start, finish, latest = timing.start[:, plan], timing.finish[:, plan], timing.latest[:, plan]
    critical = latest - finish <= slack
    least, most = _worth(curves, kinds, durations)
    least[~critical] = 0.0
    through, value = _flow(
        least,
        most,
        critical,
        edges[critical[edges[:, 0]] & (latest[edges[:, 1]] - durations[edges[:, 1]] - finish[edges[:, 0]] <= slack)],
        first=critical & (start <= slack),
        last=critical & (time_seconds - finish <= slack),
    )
    if value < 0:
        return -np.inf
    cost = -value * time_seconds
    for kind, curve in enumerate(curves):
        members = through[kinds == kind]
        if members.size:
            cost += float((curve.hull_costs[:, None] + curve.hull_times[:, None] * members).min(axis=0).sum())
    return cost


def _worth(curves: Sequence[CostCurve], kinds: Integers, durations: Floats) -> tuple[Floats, Floats]:
    """What a second less and a second more of each operation is worth, in watts: the range of the flow through it."""
    least, most = np.zeros(len(kinds)), np.zeros(len(kinds))
    for kind, curve in enumerate(curves):
        members = np.flatnonzero(kinds == kind)
        times = curve.hull_times
        slopes = np.concatenate([[np.inf], -np.diff(curve.hull_costs) / np.diff(times), [0.0]])
        near = CORNER * (times[-1] - times[0])
        least[members] = slopes[np.searchsorted(times, durations[members] + near, side="right")]
        most[members] = slopes[np.searchsorted(times, durations[members] - near, side="left")]
    return least, most


def _flow(
    least: Floats, most: Floats, critical: Flags, edges: Integers, *, first: Flags, last: Flags
) -> tuple[Floats, float]:
    """Watts through each operation and in all, between `least` and `most` of each; a negative sum where there are none.

    Nodes are the beginnings of the operations, their ends, the beginning and the end of the iteration.
    """
    count = len(least)
    needed = float(least.sum())
    if needed <= 0.0:
        return np.zeros(count), 0.0
    begins, ends, beginning, end = np.arange(count), count + np.arange(count), 2 * count, 2 * count + 1
    active, firsts, lasts = np.flatnonzero(critical & (most > 0)), np.flatnonzero(first), np.flatnonzero(last)
    source = np.concatenate([begins[active], ends[edges[:, 0]], np.full(len(firsts), beginning), ends[lasts], [end]])
    target = np.concatenate([ends[active], begins[edges[:, 1]], begins[firsts], np.full(len(lasts), end), [beginning]])
    scale = (LARGEST_FLOW - 2 * count) / needed
    finer = 1 if len(active) <= LARGEST_FLOW // FINE_UNITS else LARGEST_FLOW // (4 * len(active))
    flow = np.zeros(len(source), dtype=np.int64)
    for units in (scale, scale * finer) if finer > 1 else (scale,):
        flow *= round(units / scale)
        low, high = np.zeros_like(flow), np.full_like(flow, 1 << 60)
        low[: len(active)] = np.maximum(np.floor(least[active] * units) - 1, 0)
        high[: len(active)] = np.minimum(np.ceil(most[active] * units) + 1, float(1 << 60))
        added = _circulation(2 * count + 2, source, target, low - flow, high - flow)
        if added is None:
            return np.zeros(count), -1.0
        flow += added
    through = np.zeros(count)
    through[active] = flow[: len(active)] / units
    return through, int(flow[-1]) / units


def _circulation(nodes: int, source: Integers, target: Integers, low: Integers, high: Integers) -> Integers | None:
    """A flow along arcs that leaves no node with more or less than came in, between `low` and `high` of each arc; both
    may be negative. None if there is none.

    What must flow somewhere does; two more nodes hand out and take what is too much or too little for it at each node.
    """
    base = np.clip(0, low, high)
    rising = np.minimum(high - base, LARGEST_FLOW)
    falling = np.minimum(base - low, LARGEST_FLOW)
    excess = np.zeros(nodes, dtype=np.int64)
    np.add.at(excess, target, base)
    np.subtract.at(excess, source, base)
    over, under = np.flatnonzero(excess > 0), np.flatnonzero(excess < 0)
    giver, taker = nodes, nodes + 1
    network = scipy.sparse.csr_matrix(
        (
            np.concatenate([rising, falling, excess[over], -excess[under]]).astype(np.int32),
            (
                np.concatenate([source, target, np.full(len(over), giver), under]).astype(np.int32),
                np.concatenate([target, source, over, np.full(len(under), taker)]).astype(np.int32),
            ),
        ),
        shape=(nodes + 2, nodes + 2),
    )
    network.eliminate_zeros()
    found = maximum_flow(network, giver, taker)
    if found.flow_value < int(excess[over].sum()):
        return None
    flow: Integers = base + np.asarray(found.flow.tocsr()[source, target]).reshape(-1)
    return flow
