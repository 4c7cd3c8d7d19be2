"""A job's conditions, its state in one word, and why it has what it has."""

from __future__ import annotations

from datetime import datetime, timedelta

from flyball_api.energy_aware_job import BackOff, EnergyAwareJob
from flyball_api.values.conditions import Condition
from flyball_api.values.times import format_time
from flyball_planner.snapshot import Admission

from flyball_operator.jobs.runs.cost import costs_too_much
from flyball_operator.jobs.runs.lifecycle import JobPhase
from flyball_operator.jobs.runs.memory import stopped_for_energy
from flyball_operator.jobs.status.facts import JobFacts
from flyball_operator.jobs.status.outlook import LONGEST_REMAINING_SECONDS
from flyball_operator.jobs.status.reasons import RUNNING_STATES

# What a step says of the job's pods, where nothing keeps them from going on.
_STEP_TEXTS = {
    JobPhase.WAITING: "it has no pods, and none are to be made now",
    JobPhase.STOPPING: "its pods are told to end; the next step comes when they have",
    JobPhase.CREATING: "its pods are being made",
    JobPhase.GATED: "its pods are made, and wait for their GPUs and watts",
    JobPhase.STARTING: "its pods may start, and not all of them run yet",
    JobPhase.RUNNING: "its pods stand as planned",
    JobPhase.COMPLETE: "all of its pods have ended well",
    JobPhase.FAILED: "one of its pods has failed, and all have ended",
}


def conditions_of(job: EnergyAwareJob, facts: JobFacts, projected: float | None) -> list[Condition]:
    """All conditions of the job, Admitted first; `projected` is its energy at the end in kilojoules, None where unknown."""
    step, decision = facts.step, facts.decision
    placed = step.bound or step.phase == JobPhase.COMPLETE
    ready = facts.runs
    wants = decision is not None and decision.allocation is not None
    resizing = step.phase == JobPhase.STOPPING or (wants and step.phase in (JobPhase.CREATING, JobPhase.GATED))
    budget = job.spec.energy.budget_kilojoules
    if budget is None:
        healthy: Condition = Condition("BudgetHealthy", True, "NoBudget", "no energy budget is set")
    else:
        total = facts.progress.consumed_millijoules / 1e6 if projected is None else projected
        spent = facts.progress.budget_spent(budget)
        healthy = Condition(
            "BudgetHealthy",
            total <= budget and not spent,
            "Exhausted" if spent else "WithinBudget" if total <= budget else "ProjectedOverBudget",
            f"{total:.0f} kJ {'used so far' if projected is None else 'at the end'}, and {budget} kJ are allowed",
        )
    passed = not facts.outcome and job.due is not None and job.due <= facts.now
    late = passed or (decision is not None and decision.deadline_at_risk)
    nearest = (
        ""
        if decision is None
        or decision.nearest_deadline_seconds is None
        or decision.nearest_deadline_seconds > LONGEST_REMAINING_SECONDS
        else (
            f"; the earliest possible is {format_time(facts.now + timedelta(seconds=decision.nearest_deadline_seconds))}"
        )
    )
    conditions = [
        _admitted(job, facts),
        _on_the_way(facts, "Placed", holds=placed, done="PodsBound", words="every pod is on its node"),
        _on_the_way(facts, "PodsReady", holds=ready, done="AllRanksReady", words="every pod is ready"),
        Condition("Resizing", resizing, str(step.phase), _STEP_TEXTS[step.phase]),
        _limits_enforced(facts),
        healthy,
        Condition(
            "DeadlineAtRisk",
            late,
            _lateness_reason(job, late=late, passed=passed),
            _lateness(job.due, nearest, late=late, passed=passed),
        ),
    ]
    conditions.append(_bounds_kept(job, facts))
    state = state_of(job, facts, conditions)
    conditions.append(Condition("Ready", state in RUNNING_STATES, state, explanation_of(facts, conditions)))
    if facts.outcome:
        conditions.append(Condition(facts.outcome, True, facts.outcome, facts.outcome_message))
    return conditions


def state_of(job: EnergyAwareJob, facts: JobFacts, conditions: list[Condition]) -> str:
    """The job's state in one word, such as Running or WaitingForPower: what a user should see first."""
    if facts.outcome:
        return facts.outcome
    admitted = conditions[0]
    if facts.step.phase == JobPhase.STOPPING:
        if facts.on_lost_node:
            return "NodeLost"
        return "Stopping" if not admitted.status else "Resizing"
    if not admitted.status:
        return admitted.reason
    if facts.runs:
        return "DeadlineAtRisk" if facts.decision is not None and facts.decision.deadline_at_risk else "Running"
    if facts.obstacle is not None:
        return facts.obstacle.reason
    return facts.back_off.reason if facts.back_off is not None else "Starting"


def explanation_of(facts: JobFacts, conditions: list[Condition]) -> str:
    """Why the job has what it has; why it does not run, where something keeps it from that."""
    if not facts.outcome and conditions[0].status:
        if facts.obstacle is not None:
            return facts.obstacle.message
        if facts.back_off is not None:
            return _next_start(facts.back_off)
    return conditions[0].message


def _admitted(job: EnergyAwareJob, facts: JobFacts) -> Condition:
    decision = facts.decision
    if facts.outcome:
        return Condition("Admitted", False, facts.outcome, facts.outcome_message)
    if facts.refusal is not None:
        return Condition("Admitted", False, facts.refusal.reason, facts.refusal.message)
    if job.spec.suspend:
        return Condition("Admitted", False, "Suspended", "spec.suspend is true")
    energy = job.spec.energy
    if stopped_for_energy(job, facts.progress):
        follows = {
            "Suspend": "raise energy.budgetKilojoules to go on",
            "Throttle": f"so is what it may go beyond it (energy.maxOverrunPermille {energy.max_overrun_permille}); "
            "raise one of them to go on",
            "Fail": "energy.onExhausted is Fail: it ends when its pods have left",
        }
        return Condition(
            "Admitted",
            False,
            "WaitingForBudget",
            f"the energy budget of {energy.budget_kilojoules} kJ is spent; {follows[energy.on_exhausted]}",
        )
    if costs_too_much(job, facts.progress):
        return Condition(
            "Admitted", False, "CostLimitReached", "its batch size costs too much: it ends when its pods have left"
        )
    if facts.back_off is not None and facts.gives_back:
        return Condition("Admitted", False, facts.back_off.reason, _next_start(facts.back_off))
    if decision is None:
        return Condition("Admitted", None, "Planning", "the first plan with this job is on its way")
    if facts.observing and facts.step.current is None:
        would = "wait" if decision.allocation is None else f"run on {decision.allocation.gpus} GPUs"
        message = f"the operator only observes, and starts nothing; governed, it would {would}: {decision.explanation}"
        return Condition("Admitted", False, "Observing", message)
    return Condition(
        "Admitted", decision.admission == Admission.ADMITTED, str(decision.admission), decision.explanation
    )


def _next_start(back_off: BackOff) -> str:
    return f"{back_off.message}; the next start is at {format_time(back_off.until)}"


def _on_the_way(facts: JobFacts, kind: str, *, holds: bool, done: str, words: str) -> Condition:
    """Placed or PodsReady: what is observed of it, or what keeps it from coming true."""
    if holds:
        ended = facts.step.phase == JobPhase.COMPLETE
        return Condition(kind, True, done, _STEP_TEXTS[facts.step.phase] if ended else words)
    obstacle, back_off = facts.obstacle, facts.back_off
    if obstacle is not None and obstacle.before_placement == (kind == "Placed"):
        return Condition(kind, False, obstacle.reason, obstacle.message)
    if back_off is not None:
        return Condition(kind, False, back_off.reason, _next_start(back_off))
    return Condition(kind, False, str(facts.step.phase), _STEP_TEXTS[facts.step.phase])


def _limits_enforced(facts: JobFacts) -> Condition:
    kind = "PowerLimitsEnforced"
    if facts.granted:
        words = "the agents of all its nodes have acknowledged the limits of its GPUs"
        return Condition(kind, True, "LimitsAcknowledged", words)
    if facts.step.bound:
        words = "not every agent of its nodes has acknowledged the limits of its GPUs yet"
        return Condition(kind, False, "WaitingForAcknowledgements", words)
    return Condition(kind, False, "NotPlaced", "it has no GPUs that could be limited now")


def _bounds_kept(job: EnergyAwareJob, facts: JobFacts) -> Condition:
    spec = job.spec
    if facts.bounds_beyond:
        return Condition("BoundsKept", False, "OutOfRange", facts.bounds_beyond)
    bounds = (spec.clocks.min_megahertz, spec.clocks.max_megahertz, spec.power_limit.max_watts)
    if bounds == (None, None, None):
        return Condition("BoundsKept", True, "NoBounds", "no bounds on clocks or watts are set")
    return Condition("BoundsKept", True, "WithinRange", "its GPUs can take all of its bounds")


def _lateness_reason(job: EnergyAwareJob, *, late: bool, passed: bool) -> str:
    if passed:
        return "DeadlinePassed"
    return "NoAllocationMeetsIt" if late else "OnTime" if job.due else "NoDeadline"


def _lateness(deadline: datetime | None, nearest: str, *, late: bool, passed: bool) -> str:
    if deadline is None:
        return "no deadline is set"
    if passed:
        return f"{format_time(deadline)} is past: the job goes on as one without a deadline"
    if not late:
        return f"nothing known keeps it from ending by {format_time(deadline)}"
    return f"no allocation now possible meets {format_time(deadline)}{nearest}"
