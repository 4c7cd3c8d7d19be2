"""What jobs that are only observed would have used, had they been governed: what was measured, and what models say of it.

Measured joules and seconds are scaled by the ratio of the model at the clock and size that would have been chosen and at
those at which the job ran, so that an error of the model's scale cancels out; what does not is the band of that ratio.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from flyball_api.energy.report import ObservedUse
from flyball_planner.fitting.uncertainty import Place

from flyball_operator.report.job_series import runs

if TYPE_CHECKING:
    from flyball_api.energy_aware_job import EnergyAwareJob
    from flyball_planner.fitting.uncertainty import Ratios
    from flyball_planner.models.gpu import GpuModel
    from flyball_planner.snapshot import JobDecision

    from flyball_operator.jobs.runs.marks import Use
    from flyball_operator.jobs.steps.step import LiveJob
    from flyball_operator.power.nodes.info import NodeInfo


@dataclass(frozen=True, slots=True)
class Comparison:
    """A job that runs on so many GPUs, and what its iterations would take over what they take now, were it governed."""

    gpus: int
    ratios: Ratios


class RatioSource(Protocol):
    """What is known of jobs' iterations elsewhere (`Learner.ratios`)."""

    def ratios(self, job: EnergyAwareJob, gpu_model: GpuModel, ran: Place, instead: Place) -> Ratios | None: ...


def comparisons(
    jobs: Iterable[LiveJob],
    decisions: Mapping[str, JobDecision],
    nodes: Mapping[str, NodeInfo],
    models: RatioSource,
    *,
    everything: bool,
) -> dict[str, Comparison | None]:
    """The jobs that are only observed, by uid, each with what governing it would change (None: nobody knows).

    With `everything` the whole installation is only observed, and each decision is what governing would come to.
    """
    return {
        job.view.uid: _compared(job, decisions.get(job.view.uid), nodes, models)
        for job in jobs
        if everything or job.view.observed
    }


def _compared(
    job: LiveJob, decision: JobDecision | None, nodes: Mapping[str, NodeInfo], models: RatioSource
) -> Comparison | None:
    current, clock = job.step.current, job.memory.progress.clock_megahertz
    if current is None or not runs(job) or not clock or decision is None or decision.allocation is None:
        return None
    allocation, governed = decision.allocation, decision.governed_clock_megahertz
    where = [name for name, _ in (*current.nodes, *allocation.nodes)]
    found = {None if (info := nodes.get(name)) is None else info.gpu_model for name in where}
    gpu_model = found.pop() if len(found) == 1 else None
    # What the clocks of a pipeline's plan would save, the plan says.
    if gpu_model is None or job.view.spec.pipeline is not None:
        return None
    ran = Place(current.gpus, len(current.nodes), clock)
    instead = (
        Place(allocation.gpus, len(allocation.nodes), allocation.clock_megahertz)
        if governed is None
        else Place(current.gpus, len(current.nodes), min(governed, clock))
    )
    ratios = models.ratios(job.view, gpu_model, ran, instead)
    return None if ratios is None else Comparison(current.gpus, ratios)


def observed_use(use: Use, comparison: Comparison | None) -> ObservedUse | None:
    """What a job has used while it was only observed, and would have used; None where it has used nothing."""
    if not use.millijoules and not use.gpu_seconds:
        return None
    if comparison is None:
        return ObservedUse(unknown_millijoules=use.millijoules)
    milliseconds = use.gpu_seconds * 1000 / comparison.gpus
    joules, seconds = comparison.ratios.joules, comparison.ratios.seconds
    return ObservedUse(
        millijoules=use.millijoules,
        governed_millijoules=round(use.millijoules * joules.expected),
        least_millijoules=round(use.millijoules * joules.least),
        most_millijoules=round(use.millijoules * joules.most),
        milliseconds=round(milliseconds),
        governed_milliseconds=round(milliseconds * seconds.expected),
        least_milliseconds=round(milliseconds * seconds.least),
        most_milliseconds=round(milliseconds * seconds.most),
    )
