"""How a job will end if it goes on as it does: when, and with how much energy; None where that is not known."""

from __future__ import annotations

from flyball_api.energy_aware_job import EnergyAwareJob

from flyball_operator.jobs.runs.progress import JobProgress
from flyball_operator.jobs.status.facts import JobFacts

# An end further away (a century) is not worth naming, and may be beyond the calendar.
LONGEST_REMAINING_SECONDS = 100 * 365 * 86400.0


def projected_kilojoules(job: EnergyAwareJob, facts: JobFacts) -> float | None:
    """Energy at the end, if the job goes on as planned; None where its end or its plan is not known."""
    consumed = facts.progress.consumed_millijoules / 1e6
    if facts.outcome:
        return consumed
    decision = facts.decision
    if job.spec.training.iterations is None or decision is None or decision.allocation is None:
        return None
    if decision.predicted_iteration_seconds <= 0:
        return None
    if _beyond_estimate(job, facts.progress):
        return None
    remaining = max(0.0, job.spec.training.iterations - facts.progress.iterations)
    joules = decision.predicted_gpu_watts * decision.allocation.gpus * decision.predicted_iteration_seconds
    return consumed + remaining * joules / 1e3


def seconds_to_end(job: EnergyAwareJob, facts: JobFacts) -> float | None:
    """Time to the end at the present pace; None where there is no pace or no end, or none within a century."""
    iterations, progress = job.spec.training.iterations, facts.progress
    if iterations is None or progress.iterations_per_second <= 0 or not facts.runs:
        return None
    if _beyond_estimate(job, progress):
        return None
    seconds = max(0.0, iterations - progress.iterations) / progress.iterations_per_second
    return seconds if seconds <= LONGEST_REMAINING_SECONDS else None


def _beyond_estimate(job: EnergyAwareJob, progress: JobProgress) -> bool:
    """By the model the job is at its end and yet it goes on: what remains is then unknown, not nothing."""
    iterations = job.spec.training.iterations
    return progress.estimated and iterations is not None and progress.iterations >= iterations
