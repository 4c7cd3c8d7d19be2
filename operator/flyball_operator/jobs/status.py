"""EnergyAwareJob.status: what the planner wants, what is observed, what the job has cost and will cost, and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from flyball_api.conditions import Condition, merge_conditions
from flyball_api.energy_aware_job import (
    MAX_EXPLANATION_LENGTH,
    BackOff,
    EnergyAwareJob,
    EnergyAwareJobStatus,
    EnergyUse,
    FrontierPoint,
    IncarnationEnergy,
    IncarnationFailure,
    JobAllocation,
    JobSummary,
    NodeGpus,
    Progress,
)
from flyball_api.times import format_time, whole_second
from flyball_api.units import MILLIWATTS_PER_WATT, allowed_watts
from flyball_planner.snapshot import Admission, JobDecision

from flyball_operator.jobs.lifecycle import JobStep, Phase
from flyball_operator.jobs.memory import Refusal
from flyball_operator.jobs.obstacles import PLACED_OBSTACLES, READY_OBSTACLES, StartObstacle
from flyball_operator.jobs.pauses import BACK_OFF_REASONS
from flyball_operator.jobs.progress import JobProgress

ESTIMATE_MARK = "~"  # before what the model says because the job itself reports nothing
# An end further away (a century) is not worth naming, and may be beyond the calendar.
LONGEST_REMAINING_SECONDS = 100 * 365 * 86400.0

_STEPS = frozenset(str(phase) for phase in Phase)
# The states of a job all of whose ranks run.
RUNNING_STATES = ("Running", "DeadlineAtRisk")
# The reasons that each condition can have; docs/api.md lists the same.
REASONS: dict[str, frozenset[str]] = {
    "Admitted": frozenset(
        {
            *(str(admission) for admission in Admission),
            "Planning",
            "Observing",
            "Suspended",
            "InvalidSpec",
            "UnknownGpuResource",
            "NotSupported",
            "BudgetTooSmall",
            "NoNodeFits",
            "ExceedsCluster",
            "QuotaExceeded",
            "Succeeded",
            "Failed",
            *BACK_OFF_REASONS,
        }
    ),
    "Placed": _STEPS | {"PodsBound"} | PLACED_OBSTACLES | BACK_OFF_REASONS,
    "PodsReady": _STEPS | {"AllRanksReady"} | READY_OBSTACLES | BACK_OFF_REASONS,
    "Resizing": _STEPS,
    "PowerLimitsEnforced": frozenset({"LimitsAcknowledged", "WaitingForAcknowledgements", "NotPlaced"}),
    "BudgetHealthy": frozenset({"NoBudget", "WithinBudget", "ProjectedOverBudget", "Exhausted"}),
    "DeadlineAtRisk": frozenset({"NoAllocationMeetsIt", "DeadlinePassed", "OnTime", "NoDeadline"}),
    "BoundsKept": frozenset({"NoBounds", "WithinRange", "OutOfRange"}),
    "Succeeded": frozenset({"Succeeded"}),
    "Failed": frozenset({"Failed"}),
}
# The condition Ready sums the others up: its reason is the state.
REASONS["Ready"] = frozenset(
    {
        *(REASONS["Admitted"] - {"Admitted"}),
        *PLACED_OBSTACLES,
        *READY_OBSTACLES,
        *BACK_OFF_REASONS,
        *RUNNING_STATES,
        "Starting",
        "Stopping",
        "Resizing",
    }
)


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Everything that a status is made from, beside the job itself.

    `granted`: every running pod has its planned limit in a grant that its agent acknowledged; `applied_milliwatts` is the
    highest limit read back from the job's GPUs (0: none known). `last_failed` is the last incarnation that `restarts`
    counts. `outcome` is "Succeeded" or "Failed" once the job has ended; `refusal` says why no pods can be made of it.
    `observing`: the operator does nothing of what is decided.

    `back_off` is the pause before its next start, in which it `gives_back` its GPUs or not; `obstacle` what keeps the pods
    of this start from running; `bounds_beyond` which of its bounds no GPU can take; `failures` how its last incarnations
    ended, the newest first.
    """

    progress: JobProgress
    step: JobStep
    decision: JobDecision | None
    epoch: int
    granted: bool
    restarts: int
    now: datetime
    last_failed: int = 0
    applied_milliwatts: int = 0
    outcome: str = ""
    outcome_message: str = ""
    refusal: Refusal | None = None
    last_resize: datetime | None = None
    frontier: tuple[FrontierPoint, ...] = ()
    observing: bool = False
    failures: tuple[IncarnationFailure, ...] = ()
    start_attempts: int = 0
    highest_incarnation: int = 0
    back_off: BackOff | None = None
    gives_back: bool = False
    bounds_beyond: str = ""
    obstacle: StartObstacle | None = None


def _next_start(back_off: BackOff) -> str:
    return f"{back_off.message}; the next start is at {format_time(back_off.until)}"


def _admitted(job: EnergyAwareJob, facts: JobFacts) -> Condition:
    decision = facts.decision
    if facts.outcome:
        return Condition("Admitted", False, facts.outcome, facts.outcome_message)
    if facts.refusal is not None:
        return Condition("Admitted", False, facts.refusal.reason, facts.refusal.message)
    if job.spec.suspend:
        return Condition("Admitted", False, "Suspended", "spec.suspend is true")
    energy = job.spec.energy
    if facts.progress.budget_spent(energy.budget_kilojoules) and energy.on_exhausted in ("Suspend", "Fail"):
        follows = {
            "Suspend": "raise energy.budgetKilojoules to go on",
            "Fail": "energy.onExhausted is Fail: it ends when its pods have left",
        }
        return Condition(
            "Admitted",
            False,
            "WaitingForBudget",
            f"the energy budget of {energy.budget_kilojoules} kJ is spent; {follows[energy.on_exhausted]}",
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


def _projected_kilojoules(job: EnergyAwareJob, facts: JobFacts) -> float | None:
    """Energy at the end, if the job goes on as planned; None where its end or its plan is not known."""
    consumed = facts.progress.consumed_millijoules / 1e6
    if facts.outcome:
        return consumed
    decision = facts.decision
    if job.spec.training.iterations is None or decision is None or decision.allocation is None:
        return None
    if _beyond_estimate(job, facts.progress):
        return None
    remaining = max(0.0, job.spec.training.iterations - facts.progress.iterations)
    joules = decision.predicted_gpu_watts * decision.allocation.gpus * decision.predicted_iteration_seconds
    return consumed + remaining * joules / 1e3


def _on_the_way(facts: JobFacts, kind: str, *, holds: bool, done: str) -> Condition:
    """Placed or PodsReady: what is observed of it, or what keeps it from coming true."""
    if holds:
        return Condition(kind, True, done)
    obstacle, back_off = facts.obstacle, facts.back_off
    if obstacle is not None and obstacle.before_placement == (kind == "Placed"):
        return Condition(kind, False, obstacle.reason, obstacle.message)
    if back_off is not None:
        return Condition(kind, False, back_off.reason, _next_start(back_off))
    return Condition(kind, False, str(facts.step.phase))


def _conditions(job: EnergyAwareJob, facts: JobFacts, projected: float | None) -> list[Condition]:
    step, decision = facts.step, facts.decision
    placed = step.bound or step.phase == Phase.COMPLETE
    ready = step.phase == Phase.RUNNING
    wants = decision is not None and decision.allocation is not None
    resizing = step.phase == Phase.STOPPING or (wants and step.phase in (Phase.CREATING, Phase.GATED))
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
            f"{total:.0f} kJ at the end, and {budget} kJ are allowed",
        )
    passed = not facts.outcome and job.spec.deadline is not None and job.spec.deadline <= facts.now
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
        _on_the_way(facts, "Placed", holds=placed, done="PodsBound"),
        _on_the_way(facts, "PodsReady", holds=ready, done="AllRanksReady"),
        Condition("Resizing", resizing, str(step.phase)),
        Condition(
            "PowerLimitsEnforced",
            facts.granted,
            "LimitsAcknowledged" if facts.granted else "WaitingForAcknowledgements" if placed else "NotPlaced",
        ),
        healthy,
        Condition(
            "DeadlineAtRisk",
            late,
            _lateness_reason(job, late=late, passed=passed),
            _lateness(job.spec.deadline, nearest, passed=passed) if late and job.spec.deadline else "",
        ),
    ]
    conditions.append(_bounds_kept(job, facts))
    state = _state(job, facts, conditions)
    conditions.append(Condition("Ready", state in RUNNING_STATES, state, _explanation(facts, conditions)))
    if facts.outcome:
        conditions.append(Condition(facts.outcome, True, facts.outcome, facts.outcome_message))
    return conditions


def _bounds_kept(job: EnergyAwareJob, facts: JobFacts) -> Condition:
    spec = job.spec
    if facts.bounds_beyond:
        return Condition("BoundsKept", False, "OutOfRange", facts.bounds_beyond)
    bounds = (spec.clocks.min_megahertz, spec.clocks.max_megahertz, spec.power_limit.max_watts)
    return Condition("BoundsKept", True, "NoBounds" if bounds == (None, None, None) else "WithinRange")


def _lateness_reason(job: EnergyAwareJob, *, late: bool, passed: bool) -> str:
    if passed:
        return "DeadlinePassed"
    return "NoAllocationMeetsIt" if late else "OnTime" if job.spec.deadline else "NoDeadline"


def _lateness(deadline: datetime, nearest: str, *, passed: bool) -> str:
    if passed:
        return f"{format_time(deadline)} is past: the job goes on as one without a deadline"
    return f"no allocation now possible meets {format_time(deadline)}{nearest}"


def _state(job: EnergyAwareJob, facts: JobFacts, conditions: list[Condition]) -> str:
    """The one word that a user should see first."""
    if facts.outcome:
        return facts.outcome
    admitted = conditions[0]
    if facts.step.phase == Phase.STOPPING:
        return "Stopping" if not admitted.status else "Resizing"
    if not admitted.status:
        return admitted.reason
    if facts.step.phase == Phase.RUNNING:
        return "DeadlineAtRisk" if facts.decision is not None and facts.decision.deadline_at_risk else "Running"
    if facts.obstacle is not None:
        return facts.obstacle.reason
    return facts.back_off.reason if facts.back_off is not None else "Starting"


def _explanation(facts: JobFacts, conditions: list[Condition]) -> str:
    """Why the job has what it has; why it does not run, where something keeps it from that."""
    if not facts.outcome and conditions[0].status:
        if facts.obstacle is not None:
            return facts.obstacle.message
        if facts.back_off is not None:
            return _next_start(facts.back_off)
    return conditions[0].message


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 2:
        return f"{seconds:.0f}s"
    return f"{minutes:.0f}m" if hours < 2 else f"{hours:.0f}h" if hours < 48 else f"{hours / 24:.0f}d"


def _kilojoules(value: float) -> str:
    return f"{value:.1f} kJ" if value < 1000 else f"{value / 1e3:.1f} MJ" if value < 1e6 else f"{value / 1e6:.1f} GJ"


def _progress_words(progress: JobProgress, iterations: int | None, *, ended: bool) -> str:
    """How far the job is: a share of its iterations where it has a number of them, marked where it is estimated.

    The model may be ahead of a job that says nothing, so that an estimate alone never calls a job done.
    """
    mark = ESTIMATE_MARK if progress.estimated else ""
    if iterations is None:
        return f"{mark}{progress.iterations:.0f}"
    percent = min(100.0, 100.0 * progress.iterations / max(1, iterations))
    return f"{mark}{min(percent, 99.0) if progress.estimated and not ended else percent:.0f}%"


def _beyond_estimate(job: EnergyAwareJob, progress: JobProgress) -> bool:
    """By the model the job is at its end and yet it goes on: what remains is then unknown, not nothing."""
    iterations = job.spec.training.iterations
    return progress.estimated and iterations is not None and progress.iterations >= iterations


def _summary(job: EnergyAwareJob, facts: JobFacts, remaining_seconds: float | None) -> JobSummary:
    progress, decision = facts.progress, facts.decision
    running = facts.step.phase == Phase.RUNNING
    iterations, budget = job.spec.training.iterations, job.spec.energy.budget_kilojoules
    guess = ESTIMATE_MARK if progress.estimated else ""
    planned_clock = decision.allocation.clock_megahertz if decision and decision.allocation else 0
    return JobSummary(
        clock=f"{progress.clock_megahertz or planned_clock} MHz" if running else "",
        power=f"{progress.watts:.0f} W" if running and progress.watts else "",
        progress=_progress_words(progress, iterations, ended=bool(facts.outcome)),
        energy=_kilojoules(progress.consumed_millijoules / 1e6),
        budget="" if not budget else f"{100 * progress.consumed_millijoules / (budget * 1e6):.0f}%",
        eta="" if remaining_seconds is None or facts.outcome else guess + _duration(remaining_seconds),
    )


def _energy(progress: JobProgress, projected_kilojoules: float | None, watts: float) -> EnergyUse:
    return EnergyUse(
        consumed_kilojoules=progress.consumed_millijoules // 1_000_000,
        projected_kilojoules=None if projected_kilojoules is None else round(projected_kilojoules),
        watts=round(watts),
        settled_millijoules=progress.settled_millijoules,
        settled_incarnation=progress.settled_incarnation,
        incarnations=tuple(IncarnationEnergy(*item) for item in sorted(progress.open_millijoules.items())),
    )


def energy_status(job: EnergyAwareJob, progress: JobProgress) -> EnergyAwareJobStatus:
    """The status of a job that has ended, with the one thing that can still change: what its last pods have used."""
    kilojoules = progress.consumed_millijoules / 1e6
    summary = msgspec.structs.replace(job.status.summary or JobSummary(), energy=_kilojoules(kilojoules))
    return msgspec.structs.replace(job.status, energy=_energy(progress, kilojoules, 0.0), summary=summary)


def _allocation(job: EnergyAwareJob, facts: JobFacts) -> JobAllocation | None:
    """What the plan wants the job to have; None for a job that has never had anything."""
    current, decision = facts.step.current, facts.decision
    number = max(job.last_incarnation, facts.highest_incarnation, 0 if current is None else current.incarnation)
    if decision is not None and decision.allocation is not None and not facts.outcome:
        return JobAllocation(
            gpus=decision.allocation.gpus,
            epoch=facts.epoch,
            incarnation=number,
            nodes=tuple(NodeGpus(*item) for item in decision.allocation.nodes),
            clock_megahertz=decision.allocation.clock_megahertz,
            power_limit_watts=allowed_watts(decision.allocation.power_limit_watts),
        )
    return JobAllocation(gpus=0, epoch=facts.epoch, incarnation=number) if number else None


def _applied(facts: JobFacts) -> JobAllocation | None:
    """What the job's pods hold; None unless all of them run."""
    current = facts.step.current
    if current is None or facts.step.phase != Phase.RUNNING:
        return None
    return JobAllocation(
        gpus=current.gpus,
        epoch=facts.epoch,
        incarnation=current.incarnation,
        nodes=tuple(NodeGpus(*item) for item in current.nodes),
        clock_megahertz=facts.progress.clock_megahertz,
        power_limit_watts=round(facts.applied_milliwatts / MILLIWATTS_PER_WATT) or None,
    )


def _remaining_seconds(job: EnergyAwareJob, facts: JobFacts) -> float | None:
    """Time to the end at the present pace; None where there is no pace or no end, or none within a century."""
    iterations, progress = job.spec.training.iterations, facts.progress
    if iterations is None or progress.iterations_per_second <= 0 or facts.step.phase != Phase.RUNNING:
        return None
    if _beyond_estimate(job, progress):
        return None
    seconds = max(0.0, iterations - progress.iterations) / progress.iterations_per_second
    return seconds if seconds <= LONGEST_REMAINING_SECONDS else None


def job_status(job: EnergyAwareJob, facts: JobFacts) -> EnergyAwareJobStatus:
    """The whole status of `job`."""
    progress, before = facts.progress, job.status
    projected = _projected_kilojoules(job, facts)
    conditions = _conditions(job, facts, projected)
    now, applied, remaining_seconds = whole_second(facts.now), _applied(facts), _remaining_seconds(job, facts)
    return EnergyAwareJobStatus(
        observed_generation=job.generation,
        conditions=merge_conditions(before.conditions, conditions, job.generation, facts.now),
        allocation=_allocation(job, facts),
        applied=applied,
        progress=Progress(
            iterations=int(progress.iterations),
            iterations_per_kilosecond=round(progress.iterations_per_second * 1000),
            attained_gpu_seconds=int(progress.attained_gpu_seconds),
            estimated=progress.estimated,
            last_report_time=None if progress.last_report is None else whole_second(progress.last_report),
            estimated_completion_time=None
            if remaining_seconds is None
            else whole_second(facts.now + timedelta(seconds=remaining_seconds)),
        ),
        energy=_energy(progress, projected, progress.watts),
        frontier=facts.frontier or None,
        explanation=_explanation(facts, conditions)[:MAX_EXPLANATION_LENGTH],
        state=_state(job, facts, conditions),
        summary=_summary(job, facts, remaining_seconds),
        restarts=facts.restarts,
        last_failed_incarnation=facts.last_failed or None,
        failures=facts.failures or None,
        start_attempts=facts.start_attempts or None,
        back_off=facts.back_off,
        start_time=before.start_time or (now if applied else None),
        last_resize_time=facts.last_resize,
        completion_time=before.completion_time or (now if facts.outcome else None),
    )


def significant_fields(status: EnergyAwareJobStatus) -> tuple[object, ...]:
    """The part of a status whose change is worth a write at once: everything but figures that move by themselves."""
    applied, allocation = status.applied, status.allocation
    return (
        status.observed_generation,
        [(item.type, item.status, item.reason) for item in status.conditions],
        # A new leader alone is not worth a write.
        None if allocation is None else msgspec.structs.replace(allocation, epoch=None),
        None if applied is None else (applied.incarnation, applied.gpus),
        status.state,
        status.restarts or 0,
        status.failures or (),
        status.start_attempts or 0,
        status.back_off,
        status.last_resize_time,
        status.completion_time,
    )
