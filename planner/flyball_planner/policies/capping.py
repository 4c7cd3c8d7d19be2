"""Holding any policy's choices under a power limit: clocks down first, then the least important jobs out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from flyball_planner.ledger.caps import WATT_TOLERANCE
from flyball_planner.policies.view import Choice, ClusterView, JobView


def counted_watts(view: ClusterView, choices: Sequence[Choice]) -> float:
    """What a power limit counts: every chosen job's predicted draw with the guard, and the idle GPUs."""
    jobs = {job.uid: job for job in view.jobs}
    busy = sum(_watts(view, jobs[choice.uid], choice.gpus, choice.clock_index) for choice in choices)
    return busy + (view.gpus - sum(choice.gpus for choice in choices)) * view.idle_gpu_watts


def within_limit(view: ClusterView, choices: Sequence[Choice]) -> list[Choice]:
    """The choices, as they are where they fit the view's power limit; otherwise with as little lost as it takes.

    Clocks go down by the least relative speed for each watt saved; when all are as low as helps, choices are dropped from
    the end. The order is kept. An empty list where not even the idle GPUs fit.
    """
    limit = view.power_limit_watts
    if limit is None:
        return list(choices)
    over = counted_watts(view, choices) - limit
    if over <= WATT_TOLERANCE:
        return list(choices)
    jobs = {job.uid: job for job in view.jobs}
    held = list(choices)
    heap = [step for index, choice in enumerate(held) if (step := _step(view, jobs[choice.uid], choice, index))]
    heapify(heap)
    while heap and over > WATT_TOLERANCE:
        _, index, saved = heappop(heap)
        choice = held[index] = held[index]._replace(clock_index=held[index].clock_index - 1)
        over -= saved
        step = _step(view, jobs[choice.uid], choice, index)
        if step is not None:
            heappush(heap, step)
    while held and over > WATT_TOLERANCE:
        dropped = held.pop()
        watts = _watts(view, jobs[dropped.uid], dropped.gpus, dropped.clock_index)
        over -= watts - dropped.gpus * view.idle_gpu_watts
    return held


def _watts(view: ClusterView, job: JobView, gpus: int, clock: int) -> float:
    table = job.performance
    return table.watts_rows[table.position[gpus]][clock] * (1.0 + view.guard_fraction)


def _step(view: ClusterView, job: JobView, choice: Choice, index: int) -> tuple[float, int, float] | None:
    """(relative speed lost per watt, position, watts saved) of one clock step down; None where it saves nothing."""
    if choice.clock_index == 0:
        return None
    seconds = job.performance.seconds_rows[job.performance.position[choice.gpus]]
    saved = _watts(view, job, choice.gpus, choice.clock_index) - _watts(view, job, choice.gpus, choice.clock_index - 1)
    if saved <= 0:
        return None
    return math.log(seconds[choice.clock_index - 1] / seconds[choice.clock_index]) / saved, index, saved
