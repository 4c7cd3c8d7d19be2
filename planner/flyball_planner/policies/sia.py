"""Sia (Jayaram Subramanya et al., SOSP 2023, section 3.4) on one GPU model with fixed batches: an exact assignment a round.

Each job is given one of its sizes, or none, so that the sum of (r * speed-up)^p is best, with p = -1/2, speed-up over its
smallest size and restart factor r = age / (age + restart) for a change; a job without GPUs costs 1.1, more than the worst
that runs. A job grows at most twofold a round. The integer program of the paper is, on one kind of GPU, a knapsack with
multiple choices, solved exactly over the number of GPUs.
"""

from __future__ import annotations

import numpy as np

from flyball_planner.policies.view import Choice, ClusterView, JobView, Knob

POWER = -0.5
WAITING_COST = 1.1


class Sia:
    """The best assignment of sizes; one clock for all."""

    name = "sia"
    knob = Knob.CLOCK
    elastic = True
    repacks = True
    measures = False
    holds_limits = False
    interval_seconds: float | None = 60.0
    suspend_seconds: float | None = None

    def decide(self, view: ClusterView) -> list[Choice]:
        fixed = [job for job in view.jobs if job.gpus and not job.resizable]
        free = view.gpus - sum(job.gpus for job in fixed)
        jobs = sorted((job for job in view.jobs if job.resizable or not job.gpus), key=lambda job: job.order)
        sizes = best_assignment([size_costs(view, job) for job in jobs], free)
        chosen = [(job, job.gpus) for job in fixed]
        chosen += [(job, gpus) for job, gpus in zip(jobs, sizes, strict=True) if gpus]
        return [Choice(job.uid, gpus, view.clock_of(job, gpus)) for job, gpus in chosen]


def size_costs(view: ClusterView, job: JobView) -> dict[int, float]:
    """What each size that a job may have now costs; the smaller, the better."""
    table = job.performance
    base = table.seconds_rows[0][view.clock_of(job, table.sizes[0])]
    age = max(view.now_seconds - job.since_seconds, 1.0)
    factor = age / (age + job.restart_seconds) if job.gpus else 1.0
    costs = {}
    for row, gpus in enumerate(table.sizes):
        if gpus > 2 * max(job.gpus, table.sizes[0]):
            break
        speedup = base / table.seconds_rows[row][view.clock_of(job, gpus)]
        costs[gpus] = (speedup * (1.0 if gpus == job.gpus else factor)) ** POWER
    return costs


def best_assignment(costs: list[dict[int, float]], gpus: int) -> list[int]:
    """A size for each job, 0 for none, with the least total cost over at most `gpus` GPUs (exact; ties to fewer GPUs)."""
    if gpus <= 0:
        return [0] * len(costs)
    least = np.zeros(gpus + 1)
    taken: list[np.ndarray[tuple[int], np.dtype[np.int32]]] = []
    for options in costs:
        best = least + WAITING_COST
        size_at = np.zeros(gpus + 1, dtype=np.int32)
        for size, cost in options.items():
            if size > gpus:
                break
            candidate = least[: gpus + 1 - size] + cost
            better = candidate < best[size:] - 1e-12
            best[size:][better] = candidate[better]
            size_at[size:][better] = size
        least = best
        taken.append(size_at)
    left = gpus
    sizes = []
    for size_at in reversed(taken):
        size = int(size_at[left])
        sizes.append(size)
        left -= size
    return sizes[::-1]
