"""EnergyAwareJob.status as a whole: what the plan wants, what is observed, what the job has cost and will cost, and why."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec
from flyball_api.energy_aware_job import (
    MAX_EXPLANATION_LENGTH,
    EnergyAwareJob,
    EnergyAwareJobStatus,
    EnergyUse,
    IncarnationEnergy,
    JobAllocation,
    JobSummary,
    NodeGpus,
    Progress,
    QueuePlace,
    RecurringRun,
)
from flyball_api.reading import MAX_INTEGER
from flyball_api.values.conditions import merge_conditions
from flyball_api.values.times import whole_second
from flyball_api.values.units import MILLIWATTS_PER_WATT, allowed_watts

from flyball_operator.jobs.runs.cost import run_cost_joules
from flyball_operator.jobs.runs.lifecycle import JobPhase
from flyball_operator.jobs.runs.progress import JobProgress
from flyball_operator.jobs.status.conditions import conditions_of, explanation_of, state_of
from flyball_operator.jobs.status.facts import JobFacts
from flyball_operator.jobs.status.outlook import LONGEST_REMAINING_SECONDS, projected_kilojoules, seconds_to_end
from flyball_operator.jobs.status.prediction import prediction_of
from flyball_operator.jobs.status.reasons import WAITS
from flyball_operator.jobs.status.summary import kilojoules_text, summary_of

# A wait that is worth an Event.
LONG_WAIT_SECONDS = 60.0
# An object may have 1.5 MiB. Of a job on more nodes than these, names are not repeated that its allocation has.
MOST_LISTED_TWICE = 4096


def job_status(job: EnergyAwareJob, facts: JobFacts) -> EnergyAwareJobStatus:
    """The whole status of `job`, but for what time costs, which is left to who knows its model."""
    progress, before = facts.progress, job.status
    projected = projected_kilojoules(job, facts)
    conditions = conditions_of(job, facts, projected)
    now, applied, remaining_seconds = whole_second(facts.now), _applied(facts), seconds_to_end(job, facts)
    end, earliest, latest = _ends(facts, remaining_seconds)
    return EnergyAwareJobStatus(
        observed_generation=job.generation,
        time=now,
        conditions=merge_conditions(before.conditions, conditions, job.generation, facts.now),
        allocation=_allocation(job, facts),
        applied=applied,
        progress=Progress(
            iterations=int(progress.iterations),
            iterations_per_kilosecond=round(progress.iterations_per_second * 1000),
            attained_gpu_seconds=int(progress.attained_gpu_seconds),
            estimated=progress.estimated,
            incarnation=progress.reported_by or None,
            iterations_lost=progress.iterations_lost or None,
            last_report_time=None if progress.last_report is None else whole_second(progress.last_report),
            estimated_completion_time=end,
            earliest_completion_time=earliest,
            latest_completion_time=latest,
        ),
        energy=_energy(progress, projected, facts.watts),
        prediction=None if facts.outcome else prediction_of(facts),
        recurrence=_run(job, facts.run, progress),
        measured_plan=facts.measured_plan,
        queue=_queue(facts),
        waiting_since=(before.waiting_since or now) if conditions[0].reason in WAITS else None,
        explanation=explanation_of(facts, conditions)[:MAX_EXPLANATION_LENGTH],
        state=state_of(job, facts, conditions),
        summary=summary_of(job, facts, remaining_seconds, (end, earliest, latest)),
        restarts=facts.restarts,
        last_failed_incarnation=facts.last_failed or None,
        failures=facts.failures or None,
        start_attempts=facts.start_attempts or None,
        back_off=facts.back_off,
        start_time=before.start_time or (now if applied else None),
        last_resize_time=facts.last_resize,
        completion_time=before.completion_time or (now if facts.outcome else None),
    )


def _ends(facts: JobFacts, remaining_seconds: float | None) -> tuple[datetime | None, datetime | None, datetime | None]:
    """When the job ends, and between which times it does; None where that is not known."""
    if remaining_seconds is None or facts.outcome:
        return None, None, None

    def after(seconds: float) -> datetime:
        return whole_second(facts.now + timedelta(seconds=seconds))

    end = after(remaining_seconds)
    if facts.pace_band is None:
        return end, None, None
    least, most = facts.pace_band
    if remaining_seconds * most > LONGEST_REMAINING_SECONDS:
        return end, after(remaining_seconds * least), None
    return end, after(remaining_seconds * least), after(remaining_seconds * most)


def _queue(facts: JobFacts) -> QueuePlace | None:
    place = facts.queue
    if place is None or facts.outcome:
        return None
    return QueuePlace(
        position=place.position,
        waiting=place.waiting,
        time=whole_second(place.planned_at),
        basis=place.basis[:MAX_EXPLANATION_LENGTH],
        expected_start_time=None if place.start is None else whole_second(place.start),
    )


def _run(job: EnergyAwareJob, run: RecurringRun | None, progress: JobProgress) -> RecurringRun | None:
    """The run of a recurring job with what it has cost."""
    return None if run is None else msgspec.structs.replace(run, cost_joules=run_cost_joules(job, progress))


def energy_status(job: EnergyAwareJob, progress: JobProgress) -> EnergyAwareJobStatus:
    """The status of a job that has ended, with the one thing that can still change: what its last pods have used."""
    kilojoules = progress.consumed_millijoules / 1e6
    summary = msgspec.structs.replace(job.status.summary or JobSummary(), energy=kilojoules_text(kilojoules))
    return msgspec.structs.replace(
        job.status,
        energy=_energy(progress, kilojoules, 0),
        recurrence=_run(job, job.run, progress),
        summary=summary,
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
        None if status.recurrence is None else msgspec.structs.replace(status.recurrence, cost_joules=None),
        status.measured_plan,
        status.restarts or 0,
        status.failures or (),
        status.start_attempts or 0,
        status.back_off,
        status.last_resize_time,
        status.completion_time,
    )


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
    if current is None or facts.step.phase != JobPhase.RUNNING:
        return None
    return JobAllocation(
        gpus=current.gpus,
        epoch=facts.epoch,
        incarnation=current.incarnation,
        nodes=tuple(NodeGpus(*item) for item in current.nodes if not _listed_once(facts)),
        clock_megahertz=facts.progress.clock_megahertz,
        power_limit_watts=allowed_watts(facts.applied_milliwatts / MILLIWATTS_PER_WATT) or None,
    )


def _listed_once(facts: JobFacts) -> bool:
    """Whether the names of a job's nodes are in its allocation alone, for there are thousands of them."""
    current, planned = facts.step.current, None if facts.decision is None else facts.decision.allocation
    if current is None or planned is None or len(current.nodes) <= MOST_LISTED_TWICE:
        return False
    return planned.nodes == current.nodes


def _energy(progress: JobProgress, projected_kilojoules: float | None, watts: int | None) -> EnergyUse:
    return EnergyUse(
        consumed_kilojoules=progress.consumed_millijoules // 1_000_000,
        projected_kilojoules=None if projected_kilojoules is None else min(round(projected_kilojoules), MAX_INTEGER),
        watts=watts,
        settled_millijoules=progress.settled_millijoules,
        settled_incarnation=progress.settled_incarnation,
        incarnations=tuple(IncarnationEnergy(*item) for item in sorted(progress.open_millijoules.items())),
    )
