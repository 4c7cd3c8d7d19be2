"""What a run of a recurring job has cost, and when that is too much.

Zeus, section 3.1, equation 2: joules and seconds weighed against each other, a second of a GPU at its largest power limit.
"""

from __future__ import annotations

from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_planner.recurrences.cost import energy_time_cost

from flyball_operator.jobs.runs.progress import JobProgress


def run_cost_joules(job: EnergyAwareJob, progress: JobProgress) -> int | None:
    """What the run has cost so far; None of a job that does not recur, or has no batch size yet."""
    recurrence, run = job.spec.recurrence, job.run
    if recurrence is None or run is None:
        return None
    return round(
        energy_time_cost(
            progress.consumed_millijoules / 1e3,
            progress.attained_gpu_seconds,
            recurrence.energy_weight,
            run.watts_per_gpu,
        )
    )


def costs_too_much(job: EnergyAwareJob, progress: JobProgress) -> bool:
    """Whether the run has cost so much that it is to be stopped (section 4.4, early stopping)."""
    run, cost = job.run, run_cost_joules(job, progress)
    return run is not None and run.cost_limit_joules is not None and cost is not None and cost >= run.cost_limit_joules
