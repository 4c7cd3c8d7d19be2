"""What time costs for the rest of a job: its sizes and clocks, and which of them nothing beats."""

from __future__ import annotations

import numpy as np
from flyball_api.energy_aware_job import EnergyAwareJob, FrontierPoint
from flyball_planner.models.job import JobModel

FRONTIER_POINTS = 32


def remaining_frontier(
    job: EnergyAwareJob, model: JobModel, iterations_done: float, gpus_per_node: int
) -> tuple[FrontierPoint, ...]:
    """What time costs for the rest of a job: over all its sizes and clocks, the points that no other beats in both.

    At most 32 points, from the fastest to the thriftiest, as EnergyAwareJob.status.frontier has them.
    """
    spec, iterations = job.spec, job.spec.training.iterations
    if iterations is None:
        return ()
    remaining = max(0.0, iterations - iterations_done)
    clocks = [
        clock
        for clock in model.gpu_model.clocks_megahertz
        if (spec.clocks.min_megahertz or 0) <= clock <= (spec.clocks.max_megahertz or clock)
    ]
    if not clocks:
        return ()
    sizes = [spec.gpus.min * 2**step for step in range((spec.gpus.max // spec.gpus.min).bit_length())]
    curves = model.curves(
        np.array(sizes),
        np.array([-(-size // gpus_per_node) for size in sizes]),
        spec.training.global_batch_size,
        clocks,
    )
    # Whole seconds and kilojoules, as the status has them: of what is equal then, one is enough.
    points = sorted(
        (
            round(float(curves.seconds[row, column]) * remaining),
            round(float(curves.joules[row, column]) * remaining / 1e3),
            size,
            clock,
        )
        for row, size in enumerate(sizes)
        for column, clock in enumerate(clocks)
    )
    frontier: list[tuple[int, int, int, int]] = []
    for point in points:
        if not frontier or point[1] < frontier[-1][1]:
            frontier.append(point)
    if len(frontier) > FRONTIER_POINTS:
        last = len(frontier) - 1
        frontier = [frontier[round(index * last / (FRONTIER_POINTS - 1))] for index in range(FRONTIER_POINTS)]
    return tuple(FrontierPoint(gpus, clock, seconds, kilojoules) for seconds, kilojoules, gpus, clock in frontier)
