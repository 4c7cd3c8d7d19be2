"""What time costs in an iteration, by a model: the choices that a job has, as its profile and its status tell them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from flyball_api.energy.frontier import FrontierBounds, IterationChoice, unbeaten
from flyball_api.reading import MAX_INTEGER
from flyball_planner.models.job import JobModel

MAX_CHOICES = 32
# Of more running jobs with models of their own, some are worked out anew with each of their statuses.
REMEMBERED = 4096


@lru_cache(maxsize=REMEMBERED)
def iteration_choices(bounds: FrontierBounds, model: JobModel, gpus_per_node: int) -> tuple[IterationChoice, ...]:
    """Over all sizes and clocks within the bounds, those that no other beats in time and energy of an iteration.

    At most 32, from the fastest to the thriftiest; empty where the GPU has no clock within the bounds.
    """
    clocks = [
        clock
        for clock in model.gpu_model.clocks_megahertz
        if (bounds.min_megahertz or 0) <= clock <= (bounds.max_megahertz or clock)
    ]
    if not clocks:
        return ()
    sizes = [bounds.min_gpus * 2**step for step in range((bounds.max_gpus // bounds.min_gpus).bit_length())]
    curves = model.curves(
        np.array(sizes), np.array([-(-size // gpus_per_node) for size in sizes]), bounds.global_batch_size, clocks
    )
    points = unbeaten(
        (
            max(1, round(min(float(curves.seconds[row, column]) * 1e6, MAX_INTEGER))),
            max(1, round(min(float(curves.joules[row, column]) * 1e3, MAX_INTEGER))),
            size,
            clock,
        )
        for row, size in enumerate(sizes)
        for column, clock in enumerate(clocks)
    )
    if len(points) > MAX_CHOICES:
        last = len(points) - 1
        points = [points[round(index * last / (MAX_CHOICES - 1))] for index in range(MAX_CHOICES)]
    return tuple(IterationChoice(gpus, clock, time, energy) for time, energy, gpus, clock in points)
