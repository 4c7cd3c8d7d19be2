"""What time costs for the rest of a job, by its model."""

from __future__ import annotations

from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.frontier import Tradeoff, for_iterations
from flyball_planner.models.job import JobModel

from flyball_operator.learning.frontiers import iteration_choices


def tradeoff(job: EnergyAwareJob, model: JobModel, iterations_done: float, gpus_per_node: int) -> Tradeoff | None:
    """The ends of a job's choices of size and clock, as EnergyAwareJob.status.tradeoff has them.

    None of a job without an end, and where no clock is within its bounds.
    """
    iterations = job.spec.training.iterations
    if iterations is None:
        return None
    choices = iteration_choices(job.frontier_bounds, model, gpus_per_node)
    if not choices:
        return None
    remaining = max(0.0, iterations - iterations_done)
    (fastest,), (thriftiest,) = for_iterations(choices[:1], remaining), for_iterations(choices[-1:], remaining)
    return Tradeoff(model.gpu_model.product, len(choices), fastest, thriftiest)
