"""What a job that runs as planned was expected to take, beside what it reports."""

from __future__ import annotations

from flyball_api.energy_aware_job import MAX_ERROR_PERMILLE, Prediction
from flyball_api.reading import MAX_INTEGER
from flyball_api.workloads import IncarnationView
from flyball_planner.snapshot import JobDecision

from flyball_operator.jobs.runs.lifecycle import JobPhase
from flyball_operator.jobs.runs.progress import JobProgress
from flyball_operator.jobs.status.facts import JobFacts

# A job that runs further from the planned clock than this does not run as predicted, and says nothing of the model.
SAME_CLOCK_SHARE = 0.02


def as_planned(
    progress: JobProgress, current: IncarnationView | None, decision: JobDecision | None
) -> JobDecision | None:
    """The decision where a running job runs as it says and reports what comes of it, so that the two can be compared."""
    if decision is None or decision.allocation is None or current is None or progress.estimated:
        return None
    planned = decision.allocation.clock_megahertz
    near = abs(progress.clock_megahertz - planned) <= SAME_CLOCK_SHARE * planned
    return decision if near and decision.allocation.gpus == current.gpus and progress.watts else None


def prediction_of(facts: JobFacts) -> Prediction | None:
    """Predicted against measured; None while there is nothing to compare."""
    progress, current = facts.progress, facts.step.current
    found = as_planned(progress, current, facts.decision) if facts.step.phase == JobPhase.RUNNING else None
    if found is None or current is None or progress.iterations_per_second <= 0:
        return None
    seconds, watts = found.predicted_iteration_seconds, found.predicted_gpu_watts * current.gpus
    if seconds * watts <= 0:
        return None
    measured = 1.0 / progress.iterations_per_second
    return Prediction(
        microseconds_per_iteration=max(1, min(round(seconds * 1e6), MAX_INTEGER)),
        watts=round(watts),
        time_error_permille=_permille(measured / seconds),
        energy_error_permille=_permille(measured * progress.watts / (seconds * watts)),
    )


def _permille(ratio: float) -> int:
    return round(1000 * min(ratio - 1.0, MAX_ERROR_PERMILLE / 1000))
