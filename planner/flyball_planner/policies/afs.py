"""AFS-L (Hwang et al., NSDI 2021, section 4): GPUs one step at a time to the job for which they shorten most.

Of two jobs, a with less remaining time and b with more, b gets the GPUs iff (p_b' - p_b) / p_b' > (p_a' - p_a) / p_a, with
throughput p now and p' after the step: a shorter job's end frees its GPUs for the longer one, never the other way round.
Both without GPUs: the shorter first. Steps double a job's GPUs. The winner of a step is found by one pass in the order of
remaining time, as the paper's algorithm does. Not aware of energy, and restarts jobs as often as the shares change.
"""

from __future__ import annotations

import numpy as np

from flyball_planner.policies.view import Choice, ClusterView, JobView, Knob

NEVER = -1.0


class Afs:
    """Elastic sharing for mean JCT; one clock for all."""

    name = "afs"
    knob = Knob.CLOCK
    elastic = True
    repacks = True
    measures = False
    holds_limits = False
    interval_seconds: float | None = None
    suspend_seconds: float | None = None

    def decide(self, view: ClusterView) -> list[Choice]:
        fixed = [job for job in view.jobs if job.gpus and not job.resizable]
        free = view.gpus - sum(job.gpus for job in fixed)
        jobs = sorted((job for job in view.jobs if job.resizable or not job.gpus), key=lambda job: _left(view, job))
        rows = [-1] * len(jobs)
        for index, job in enumerate(jobs):  # a job without GPUs wins over any that has some
            if job.performance.sizes[0] <= free:
                rows[index] = 0
                free -= job.performance.sizes[0]
        speeds = [_speeds(view, job) for job in jobs]
        as_shorter, as_longer = np.full(len(jobs), NEVER), np.full(len(jobs), NEVER)
        steps = [0] * len(jobs)
        for index, row in enumerate(rows):
            _weigh(jobs[index], speeds[index], row, index, as_shorter, as_longer, steps)
        while free > 0:
            winner = _winner(as_shorter, as_longer)
            if winner is None:
                break
            if steps[winner] > free:  # sizes only grow: it will not fit later either
                as_shorter[winner] = as_longer[winner] = NEVER
                continue
            free -= steps[winner]
            rows[winner] += 1
            _weigh(jobs[winner], speeds[winner], rows[winner], winner, as_shorter, as_longer, steps)
        choices = [(job, job.gpus) for job in fixed]
        choices += [(job, job.performance.sizes[row]) for job, row in zip(jobs, rows, strict=True) if row >= 0]
        return [Choice(job.uid, gpus, view.clock_of(job, gpus)) for job, gpus in choices]


def _left(view: ClusterView, job: JobView) -> tuple[float, float, str]:
    smallest = job.performance.sizes[0]
    seconds = job.performance.seconds_rows[0][view.clock_of(job, smallest)]
    return (job.remaining_iterations * seconds, *job.order)


def _speeds(view: ClusterView, job: JobView) -> list[float]:
    table = job.performance
    return [1.0 / table.seconds_rows[row][view.clock_of(job, gpus)] for row, gpus in enumerate(table.sizes)]


def _weigh(
    job: JobView,
    speeds: list[float],
    row: int,
    index: int,
    as_shorter: np.ndarray[tuple[int], np.dtype[np.float64]],
    as_longer: np.ndarray[tuple[int], np.dtype[np.float64]],
    steps: list[int],
) -> None:
    """What the next step of a job is worth against a longer and against a shorter one; NEVER where it gains nothing."""
    as_shorter[index] = as_longer[index] = NEVER
    if row < 0 or row + 1 == len(speeds) or speeds[row + 1] <= speeds[row]:
        return
    gained = speeds[row + 1] - speeds[row]
    as_shorter[index], as_longer[index] = gained / speeds[row], gained / speeds[row + 1]
    steps[index] = job.performance.sizes[row + 1] - job.performance.sizes[row]


def _winner(
    as_shorter: np.ndarray[tuple[int], np.dtype[np.float64]], as_longer: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> int | None:
    """One pass from the shortest job on: whoever beats the winner so far takes its place."""
    if not len(as_shorter):
        return None
    best = int((as_shorter > NEVER).argmax())
    if as_shorter[best] == NEVER:
        return None
    while True:
        beaten = as_longer[best + 1 :] > as_shorter[best]
        following = int(beaten.argmax()) if len(beaten) else 0
        if not len(beaten) or not beaten[following]:
            return best
        best += 1 + following
