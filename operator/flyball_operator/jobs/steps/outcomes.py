"""Whether a job has ended, and how: its work done, its restarts or its energy spent, or at more than the run is worth."""

from __future__ import annotations

from flyball_operator.jobs.runs.cost import costs_too_much, run_cost_joules
from flyball_operator.jobs.runs.lifecycle import JobPhase
from flyball_operator.jobs.starts.attempts import Attempts
from flyball_operator.jobs.steps.step import LiveJob


def outcome_of(job: LiveJob, attempts: Attempts) -> tuple[str, str]:
    """How the job has ended, "Succeeded" or "Failed", and why; two empty strings while it has not."""
    view, step = job.view, job.step
    if step.phase == JobPhase.COMPLETE:
        number = 0 if step.current is None else step.current.incarnation
        return "Succeeded", f"all ranks of incarnation {number} ended with exit code 0"
    if step.phase == JobPhase.FAILED and out_of_restarts(job, attempts):
        allowed = view.spec.failure_policy.max_restarts
        words = step.ending.words if step.ending is not None else ""
        return "Failed", f"{words}; failurePolicy.maxRestarts {allowed} allows no further restart"
    energy = view.spec.energy
    spent = job.memory.progress.budget_spent(energy.budget_kilojoules)
    if spent and energy.on_exhausted == "Fail" and step.phase == JobPhase.WAITING:
        return (
            "Failed",
            f"the energy budget of {energy.budget_kilojoules} kJ is spent, and energy.onExhausted is Fail",
        )
    run, progress = view.run, job.memory.progress
    if run is not None and step.phase == JobPhase.WAITING and costs_too_much(view, progress):
        return (
            "Failed",
            f"this run has cost {run_cost_joules(view, progress)} J, and a run with batch size {run.global_batch_size} may "
            f"cost {run.cost_limit_joules} J: what others have cost is in its EnergyProfile",
        )
    return "", ""


def out_of_restarts(job: LiveJob, attempts: Attempts) -> bool:
    """Its last incarnation failed, that counts, and no further restart is allowed."""
    return job.step.counts_as_failure and attempts.out_of_restarts(job.view)


def failure_is_recorded(job: LiveJob) -> bool:
    """The status has the failure of the incarnation that is to be removed: then no operator, however many come and go,
    loses it or counts it again."""
    current = job.step.current
    if not job.step.counts_as_failure or current is None:
        return True
    return (job.view.status.last_failed_incarnation or 0) >= current.incarnation
