"""GPUs left over on nodes that are powered anyway go to the jobs that make most of them.

Where empty nodes are powered off, an unused GPU costs nothing, except on a node that others keep on. There its idle watts,
and its share of the host's, are spent in any case, so taking it costs a job only what it draws more than they.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flyball_planner.policies.view import Array, ClusterView

Indices = NDArray[np.intp]


class Costs(Protocol):
    """What is known of every job and size: arrays (jobs, sizes[, clocks]); `remaining` iterations (jobs,).

    `dear_joules` are those that count, with the hosts' share."""

    view: ClusterView
    sizes: Array
    seconds: Array
    dear_joules: Array
    remaining: Array
    restart_seconds: Array
    barred: NDArray[np.bool_]
    everyone: Indices


def fill_nodes(costs: Costs, rows: Indices, clocks: Indices, joule_price: float) -> tuple[Indices, Indices]:
    """(size positions, clock positions) with what the last node has left given out, the largest gain for a GPU first.

    A job gains where its seconds and joules at the larger size, with the restart, are fewer than those of its size and of
    the idle GPUs beside it. Nothing changes where all idle GPUs draw power (the market counts that as sunk), or none does.
    """
    view = costs.view
    idle_watts = view.idle_gpu_watts + view.host_gpu_watts if view.sunk_gpu_watts == 0.0 else 0.0
    used = int(costs.sizes[costs.everyone, rows].sum())
    left = min(-(-used // view.gpus_per_node) * view.gpus_per_node, view.gpus) - used
    if left <= 0 or idle_watts == 0.0 or joule_price == 0.0:
        return rows, clocks
    rows, clocks = rows.copy(), clocks.copy()
    prices = costs.seconds + joule_price * costs.dear_joules
    best_clocks = prices.argmin(axis=2)
    at_best = costs.remaining[:, None] * prices.min(axis=2)
    at_best += costs.restart_seconds * (1.0 + joule_price * idle_watts * costs.sizes)
    while left > 0:
        now = costs.remaining * prices[costs.everyone, rows, clocks] + costs.restart_seconds[costs.everyone, rows]
        beside = joule_price * idle_watts * costs.remaining * costs.seconds[costs.everyone, rows, clocks]
        extra = costs.sizes - costs.sizes[costs.everyone, rows][:, None]
        fits = (extra > 0) & (extra <= left) & ~costs.barred
        gain = np.where(fits, (now[:, None] + beside[:, None] * extra - at_best) / np.where(fits, extra, 1.0), 0.0)
        job, row = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[job, row] <= 0.0:
            break
        left -= int(extra[job, row])
        rows[job], clocks[job] = row, best_clocks[job, row]
    return rows, clocks
