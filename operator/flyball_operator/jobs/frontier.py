"""What time costs for the rest of a job, by its model."""

from __future__ import annotations

from collections.abc import Mapping

from flyball_api.energy.frontier import Tradeoff, for_iterations
from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_planner.models.job import JobModel

from flyball_operator.learning.frontiers import iteration_choices
from flyball_operator.power.nodes.info import NodeInfo


class LargestNode:
    """How many GPUs the largest node has, looked for once for each cycle's nodes and not for each of thousands of jobs."""

    def __init__(self) -> None:
        self._nodes: Mapping[str, NodeInfo] = {}
        self._gpus = 1

    def gpus_of(self, nodes: Mapping[str, NodeInfo]) -> int:
        """At least 1."""
        if self._nodes is not nodes:
            self._nodes, self._gpus = nodes, max([1, *(info.gpus for info in nodes.values())])
        return self._gpus


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
