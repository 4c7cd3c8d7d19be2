"""A recurring job's costs on one GPU model, estimated by its runs on another (Zeus, section 7, "heterogeneous GPUs").

How many samples a batch size takes to the target does not depend on the GPU; what a sample costs does. So what one has
cost there is made what it will cost here, by what the job's models say of both: where they are wrong about both alike, as
about a job's own pace, nothing is wrong here.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from flyball_planner.models.job import JobModel
from flyball_planner.recurrences.cost import energy_time_cost
from flyball_planner.recurrences.recurring import RecurringJob, Run


@dataclass(frozen=True, slots=True)
class RunShape:
    """How runs are compared: on so many GPUs on so many nodes, and what a joule weighs against a second, 0 to 1."""

    gpus: int
    nodes: int
    energy_weight: float

    def joules_per_sample(self, model: JobModel, batch_sizes: Sequence[int]) -> dict[int, float]:
        """What a sample costs by `model` at each batch size, at the clock where it costs least (Zeus, equation 2)."""
        watts = self.gpus * model.gpu_model.max_power_limit_watts
        found = {}
        for size in batch_sizes:
            curves = model.curves(self.gpus, self.nodes, size)
            costs = (
                energy_time_cost(float(joules), float(seconds), self.energy_weight, watts)
                for joules, seconds in zip(curves.joules[0], curves.seconds[0], strict=True)
            )
            found[size] = min(costs) / size
        return found


@dataclass(frozen=True, slots=True)
class Carried:
    """A search for the best batch size that begins with estimates by runs on GPUs of another `product`."""

    search: RecurringJob
    product: str


def carried(
    search: RecurringJob,
    batch_sizes: Sequence[int],
    there: JobModel,
    here: JobModel,
    shape: RunShape,
    seed: int,
) -> RecurringJob | None:
    """A `search` on the GPUs of model `there`, converted to those of `here`; None where that is not possible.

    The costs of its runs are what theirs come to. A batch size that has not reached the target there is left out; of
    `batch_sizes` those that were never offered there take part.
    """
    search = replace(search, runs=tuple(run for run in search.runs if run.epochs > 0))
    measured = {size: cost for size in search.batch_sizes if (cost := _measured(search.runs, size)) is not None}
    if not measured:
        return None
    modelled = shape.joules_per_sample(there, batch_sizes)
    # Of a size that was never run there the others say how far the model is from the job.
    error = math.fsum(cost / modelled[size] for size, cost in measured.items()) / len(measured)
    costs = {
        size: modelled_here * measured.get(size, error * modelled[size]) / modelled[size]
        for size, modelled_here in shape.joules_per_sample(here, batch_sizes).items()
    }
    begun = search.carried_to(costs, seed)
    return None if begun.exploring else begun


def without_runs_of(search: RecurringJob, batch_sizes: Container[int]) -> RecurringJob:
    """`search` without what was carried to it of these batch sizes, as something was measured of them."""
    return replace(search, runs=tuple(run for run in search.runs if run.batch_size not in batch_sizes))


def _measured(runs: Sequence[Run], batch_size: int) -> float | None:
    """The joules per sample of the runs with a batch size that have reached the target; None without any."""
    reached = [run for run in runs if run.batch_size == batch_size and run.reached]
    samples = math.fsum(run.epochs for run in reached)
    return math.fsum(run.cost for run in reached) / samples if reached else None
