"""Sia (Jayaram Subramanya et al., SOSP 2023, section 3.4) on one GPU model with fixed batches: an exact assignment a round.

Each job is given one of its sizes, or none, so that the sum of (r * speed-up)^p is least, with p = -1/2, the speed-up over
its smallest size and the restart factor r of a change, here age / (age + restart) with the age since the last change; a job
without GPUs costs 1.1, a little more than one at its smallest size. Where there are fewer GPUs than jobs this formula
rather doubles a job that scales well than starts another. A job grows at most twofold a round. The integer program of the
paper is, on one kind of GPU, a knapsack with multiple choices, solved exactly over the number of GPUs.
"""

from __future__ import annotations

import numpy as np

from flyball_planner.policies.view import Array, Choice, ClusterView, JobView, Knob, Traits

POWER = -0.5
WAITING_COST = 1.1
TIE = 1e-12


class Sia:
    """The best assignment of sizes; one clock for all."""

    name = "sia"
    traits = Traits(knob=Knob.CLOCK, elastic=True, repacks=True, preempts=True, interval_seconds=60.0)

    def decide(self, view: ClusterView) -> list[Choice]:
        fixed = [job for job in view.jobs if job.gpus and not job.resizable]
        free = view.gpus - sum(job.gpus for job in fixed)
        jobs = sorted((job for job in view.jobs if job.resizable or not job.gpus), key=lambda job: job.order)
        sizes = best_assignment([size_costs(view, job) for job in jobs], free)
        chosen = [(job, job.gpus) for job in fixed]
        chosen += [(job, gpus) for job, gpus in zip(jobs, sizes, strict=True) if gpus]
        return [Choice(job.uid, gpus, view.clock_of(job, gpus)) for job, gpus in chosen]

    def precedence(self, view: ClusterView) -> list[str]:
        """By submission: jobs of the same sizes cost the same while they wait, and ties are broken so."""
        return [job.uid for job in sorted(view.jobs, key=lambda job: job.order)]


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
    """A size for each job, 0 for none, with the least total cost over at most `gpus` GPUs (exact; ties to fewer GPUs).

    `least[j][g]` is the least total cost of the first j jobs on at most g GPUs.
    """
    gpus = min(gpus, sum(max(options) for options in costs))
    if gpus <= 0:
        return [0] * len(costs)
    least: list[Array] = [np.zeros(gpus + 1)]
    for options in costs:
        before = least[-1]
        best = before + WAITING_COST
        for size, cost in options.items():
            if size > gpus:
                break
            np.minimum(best[size:], before[: gpus + 1 - size] + cost, out=best[size:])
        least.append(best)
    left = gpus
    sizes = []
    for options, before, best in zip(reversed(costs), reversed(least[:-1]), reversed(least[1:]), strict=True):
        enough = best[left] + TIE
        ways = ((0, WAITING_COST), *((size, cost) for size, cost in options.items() if size <= left))
        size = next(size for size, cost in ways if before[left - size] + cost <= enough)
        sizes.append(size)
        left -= size
    return sizes[::-1]
