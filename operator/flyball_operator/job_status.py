"""EnergyAwareJob.status: what the planner wants, what is observed, what it has cost and will cost, and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from flyball_planner.cluster import Admission, JobDecision
from flyball_planner.models import JobModel

from flyball_operator.books import JobBooks
from flyball_operator.conditions import Condition, merge_conditions
from flyball_operator.incarnations import JobStep, Phase
from flyball_operator.requests import MANAGED_BY_FLYBALL, JobView, format_time

JsonObject = dict[str, Any]

FRONTIER_POINTS = 32
MAX_EXPLANATION_LENGTH = 1024  # as the CRD has it

_STEPS = frozenset(str(phase) for phase in Phase)
# The reasons that each condition can have; docs/api.md lists the same.
REASONS: dict[str, frozenset[str]] = {
    "Admitted": frozenset(
        {*(str(admission) for admission in Admission), "Planning", "Suspended", "InvalidSpec", "Succeeded", "Failed"}
    ),
    "Placed": _STEPS | {"PodsBound"},
    "PodsReady": _STEPS | {"AllRanksReady"},
    "Resizing": _STEPS,
    "PowerLimitsEnforced": frozenset({"LimitsAcknowledged", "WaitingForAcknowledgements", "NotPlaced"}),
    "BudgetHealthy": frozenset({"NoBudget", "WithinBudget", "ProjectedOverBudget", "Exhausted"}),
    "DeadlineAtRisk": frozenset({"NoAllocationMeetsIt", "OnTime", "NoDeadline"}),
    "Succeeded": frozenset({"Succeeded"}),
    "Failed": frozenset({"Failed"}),
}


@dataclass(frozen=True, slots=True)
class JobFacts:
    """All that a status is made from, beside the job itself.

    `granted`: every running pod has its planned limit in a grant that its agent acknowledged; `applied_milliwatts` is the
    highest limit read back from the job's GPUs (0: none known). `last_failed` is the last incarnation that `restarts`
    counts. `outcome` is "Succeeded" or "Failed" once the job has ended; `invalid` the API server's own words where it
    refuses the job's pods.
    """

    books: JobBooks
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
    invalid: str = ""
    last_resize: str | None = None
    frontier: tuple[JsonObject, ...] = ()


def _admitted(job: JobView, facts: JobFacts) -> Condition:
    decision = facts.decision
    if facts.outcome:
        return Condition("Admitted", False, facts.outcome, facts.outcome_message)
    if facts.invalid:
        return Condition("Admitted", False, "InvalidSpec", facts.invalid)
    if job.suspend or job.managed_by != MANAGED_BY_FLYBALL:
        held = "spec.suspend is true" if job.suspend else f"spec.managedBy is {job.managed_by}"
        return Condition("Admitted", False, "Suspended", held)
    if facts.books.budget_spent(job.energy_budget_kilojoules) and job.on_exhausted in ("Suspend", "Fail"):
        follows = {
            "Suspend": "raise energy.budgetKilojoules to go on",
            "Fail": "energy.onExhausted is Fail: it ends when its pods have left",
        }
        return Condition(
            "Admitted",
            False,
            "WaitingForBudget",
            f"the energy budget of {job.energy_budget_kilojoules} kJ is spent; {follows[job.on_exhausted]}",
        )
    if decision is None:
        return Condition("Admitted", None, "Planning", "the first plan with this job is on its way")
    return Condition(
        "Admitted", decision.admission == Admission.ADMITTED, str(decision.admission), decision.explanation
    )


def _projected_kilojoules(job: JobView, facts: JobFacts) -> float | None:
    """Energy at the end, if the job goes on as planned; None where its end or its plan is not known."""
    consumed = facts.books.consumed_millijoules / 1e6
    if facts.outcome:
        return consumed
    decision = facts.decision
    if job.iterations is None or decision is None or decision.allocation is None:
        return None
    remaining = max(0.0, job.iterations - facts.books.iterations)
    joules = decision.predicted_gpu_watts * decision.allocation.gpus * decision.predicted_iteration_seconds
    return consumed + remaining * joules / 1e3


def _conditions(job: JobView, facts: JobFacts, projected: float | None) -> list[Condition]:
    step, decision = facts.step, facts.decision
    placed = step.current is not None and step.phase in (Phase.STARTING, Phase.RUNNING, Phase.COMPLETE)
    ready = step.phase == Phase.RUNNING
    wants = decision is not None and decision.allocation is not None
    resizing = step.phase == Phase.STOPPING or (wants and step.phase in (Phase.CREATING, Phase.GATED))
    budget = job.energy_budget_kilojoules
    if budget is None:
        healthy: Condition = Condition("BudgetHealthy", True, "NoBudget", "no energy budget is set")
    else:
        total = facts.books.consumed_millijoules / 1e6 if projected is None else projected
        spent = facts.books.budget_spent(budget)
        healthy = Condition(
            "BudgetHealthy",
            total <= budget and not spent,
            "Exhausted" if spent else "WithinBudget" if total <= budget else "ProjectedOverBudget",
            f"{total:.0f} kJ at the end of {budget} kJ allowed",
        )
    late = decision is not None and decision.deadline_at_risk
    nearest = (
        ""
        if decision is None or decision.nearest_deadline_seconds is None
        else (
            f"; the earliest possible is {format_time(facts.now + timedelta(seconds=decision.nearest_deadline_seconds))}"
        )
    )
    conditions = [
        _admitted(job, facts),
        Condition("Placed", placed, "PodsBound" if placed else str(step.phase)),
        Condition("PodsReady", ready, "AllRanksReady" if ready else str(step.phase)),
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
            "NoAllocationMeetsIt" if late else "OnTime" if job.deadline else "NoDeadline",
            f"no allocation now possible meets {format_time(job.deadline)}{nearest}" if late and job.deadline else "",
        ),
    ]
    if facts.outcome:
        conditions.append(Condition(facts.outcome, True, facts.outcome, facts.outcome_message))
    return conditions


def _state(job: JobView, facts: JobFacts, conditions: list[Condition]) -> str:
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
    return "Starting"


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 2:
        return f"{seconds:.0f}s"
    return f"{minutes:.0f}m" if hours < 2 else f"{hours:.0f}h" if hours < 48 else f"{hours / 24:.0f}d"


def _kilojoules(value: float) -> str:
    return f"{value:.1f} kJ" if value < 1000 else f"{value / 1e3:.1f} MJ" if value < 1e6 else f"{value / 1e6:.1f} GJ"


def _summary(job: JobView, facts: JobFacts, remaining_seconds: float | None) -> JsonObject:
    books, decision = facts.books, facts.decision
    running = facts.step.phase == Phase.RUNNING
    done = "" if job.iterations is None else f"{100 * min(1.0, books.iterations / max(1, job.iterations)):.0f}%"
    budget = job.energy_budget_kilojoules
    planned_clock = decision.allocation.clock_megahertz if decision and decision.allocation else 0
    return {
        "clock": f"{books.clock_megahertz or planned_clock} MHz" if running else "",
        "power": f"{books.watts:.0f} W" if running and books.watts else "",
        "progress": done or f"{books.iterations:.0f}",
        "energy": _kilojoules(books.consumed_millijoules / 1e6),
        "budget": "" if not budget else f"{100 * books.consumed_millijoules / (budget * 1e6):.0f}%",
        "eta": "" if remaining_seconds is None or facts.outcome else _duration(remaining_seconds),
    }


def _energy(books: JobBooks) -> JsonObject:
    return {
        "consumedKilojoules": books.consumed_millijoules // 1_000_000,
        "settledMillijoules": books.settled_millijoules,
        "settledIncarnation": books.settled_incarnation,
        "incarnations": [
            {"key": key, "millijoules": millijoules} for key, millijoules in sorted(books.open_millijoules.items())
        ],
    }


def energy_status(books: JobBooks) -> JsonObject:
    """The part of the status of a job that has ended that can still change: what its last pods have used."""
    consumed = books.consumed_millijoules
    return {
        "energy": {**_energy(books), "projectedKilojoules": round(consumed / 1e6), "watts": 0},
        "summary": {"energy": _kilojoules(consumed / 1e6)},
    }


def job_status(job: JobView, facts: JobFacts) -> JsonObject:
    """The whole status of `job`; fields without a value are None, which removes them in a merge patch."""
    books, step, decision = facts.books, facts.step, facts.decision
    projected = _projected_kilojoules(job, facts)
    conditions = _conditions(job, facts, projected)
    before = job.status
    allocation: JsonObject | None = None
    number = max(job.last_incarnation, 0 if step.current is None else step.current.incarnation)
    if decision is not None and decision.allocation is not None and not facts.outcome:
        allocation = {
            "epoch": facts.epoch,
            "incarnation": number,
            "gpus": decision.allocation.gpus,
            "nodes": [{"name": node, "gpus": gpus} for node, gpus in decision.allocation.nodes],
            "clockMegahertz": decision.allocation.clock_megahertz,
            "powerLimitWatts": int(decision.allocation.power_limit_watts),
        }
    elif number:
        allocation = {"epoch": facts.epoch, "incarnation": number, "gpus": 0, "nodes": []}
    applied: JsonObject | None = None
    if step.current is not None and step.phase == Phase.RUNNING:
        applied = {
            "epoch": facts.epoch,
            "incarnation": step.current.incarnation,
            "gpus": step.current.gpus,
            "nodes": [{"name": node, "gpus": gpus} for node, gpus in step.current.nodes],
            "clockMegahertz": books.clock_megahertz,
            "powerLimitWatts": round(facts.applied_milliwatts / 1000) or None,
        }
    remaining_seconds = None
    if job.iterations is not None and books.iterations_per_second > 0 and step.phase == Phase.RUNNING:
        remaining_seconds = max(0.0, job.iterations - books.iterations) / books.iterations_per_second
    started = before.get("startTime") or (format_time(facts.now) if applied else None)
    ended = before.get("completionTime") or (format_time(facts.now) if facts.outcome else None)
    return {
        "observedGeneration": job.generation,
        "conditions": merge_conditions(job.conditions, conditions, job.generation, facts.now),
        "allocation": allocation,
        "applied": applied,
        "progress": {
            "iterations": int(books.iterations),
            "iterationsPerKilosecond": round(books.iterations_per_second * 1000),
            "attainedGpuSeconds": int(books.attained_gpu_seconds),
            "estimated": books.estimated,
            "lastReportTime": None if books.last_report is None else format_time(books.last_report),
            "estimatedCompletionTime": None
            if remaining_seconds is None
            else format_time(facts.now + timedelta(seconds=remaining_seconds)),
        },
        "energy": {
            **_energy(books),
            "projectedKilojoules": None if projected is None else round(projected),
            "watts": round(books.watts),
        },
        "frontier": list(facts.frontier) or None,
        "explanation": conditions[0].message[:MAX_EXPLANATION_LENGTH],
        "state": _state(job, facts, conditions),
        "summary": _summary(job, facts, remaining_seconds),
        "restarts": facts.restarts,
        "lastFailedIncarnation": facts.last_failed or None,
        "startTime": started,
        "lastResizeTime": facts.last_resize,
        "completionTime": ended,
    }


def story(status: JsonObject) -> Any:
    """The part of a status that is worth a write at once: everything but figures that move by themselves."""
    applied, allocation = status.get("applied") or {}, status.get("allocation") or {}
    return (
        status.get("observedGeneration"),
        [(item["type"], item["status"], item["reason"]) for item in status.get("conditions") or ()],
        {key: value for key, value in allocation.items() if key != "epoch"},  # a new leader alone is no news
        (applied.get("incarnation"), applied.get("gpus")),
        status.get("state"),
        status.get("restarts") or 0,
        status.get("lastResizeTime"),
        status.get("completionTime"),
    )


def remaining_frontier(
    job: JobView, model: JobModel, iterations_done: float, gpus_per_node: int
) -> tuple[JsonObject, ...]:
    """What time costs for the rest of a job: over all its sizes and clocks, the points that no other beats in both.

    At most 32 points, from the fastest to the thriftiest, as EnergyAwareJob.status.frontier has them.
    """
    if job.iterations is None:
        return ()
    remaining = max(0.0, job.iterations - iterations_done)
    clocks = [
        clock
        for clock in model.gpu_model.clocks_megahertz
        if (job.clock_min_megahertz or 0) <= clock <= (job.clock_max_megahertz or clock)
    ]
    if not clocks:
        return ()
    sizes = [job.gpus_min * 2**step for step in range((job.gpus_max // job.gpus_min).bit_length())]
    curves = model.curves(
        np.array(sizes),
        np.array([-(-size // gpus_per_node) for size in sizes]),
        job.global_batch_size,
        clocks,
    )
    # Whole seconds and kilojoules, as the status has them: of what is equal then, one is enough.
    points = sorted(
        (
            round(float(curves.seconds[row, column]) * remaining),
            round(float(curves.joules[row, column]) * remaining / 1e3),
            size,
            clock,
        )
        for row, size in enumerate(sizes)
        for column, clock in enumerate(clocks)
    )
    frontier: list[tuple[int, int, int, int]] = []
    for point in points:
        if not frontier or point[1] < frontier[-1][1]:
            frontier.append(point)
    if len(frontier) > FRONTIER_POINTS:
        last = len(frontier) - 1
        frontier = [frontier[round(index * last / (FRONTIER_POINTS - 1))] for index in range(FRONTIER_POINTS)]
    return tuple(
        {"gpus": gpus, "clockMegahertz": clock, "seconds": seconds, "kilojoules": kilojoules}
        for seconds, kilojoules, gpus, clock in frontier
    )
