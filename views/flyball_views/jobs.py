"""An EnergyAwareJob as a row: what it has, how far it is, what it has cost and will cost, and why."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from flyball_api.energy.frontier import FrontierPoint, Tradeoff, for_iterations
from flyball_api.energy.profile import EnergyProfile
from flyball_api.energy_aware_job import EnergyAwareJob, Prediction, RecurringRun

from flyball_views.row import Aspect, Row, aspect, aspect_if_any

# An estimate never says that a running job is done.
MOST_ESTIMATED_FRACTION = 0.99


class ProgressRow(Row, frozen=True):
    """How far a job is; `fraction` (0 to 1) is None where it has no end, and `estimated`: by its model, not by its word.

    `gpu_seconds` is the time of its GPUs so far, all of them added up.
    """

    iterations: int
    total: int | None = None
    fraction: float | None = None
    iterations_per_second: float | None = None
    estimated: bool = False
    reported: datetime | None = None
    gpu_seconds: int | None = None


class JobEnergyRow(Row, frozen=True):
    """What a job has used, will have used at its end, and may use, in kilojoules."""

    consumed_kilojoules: int
    projected_kilojoules: int | None = None
    budget_kilojoules: int | None = None


class QueueRow(Row, frozen=True):
    """A job's place among the `waiting`; `start` is None where it is not known, and `basis` says what it rests on, or why.

    `time` is when that was found.
    """

    position: int
    waiting: int
    time: datetime
    start: datetime | None = None
    basis: str = ""


class JobRow(Row, frozen=True):
    """One EnergyAwareJob.

    `gpus` and `nodes` are what its running pods hold (0 and none while they do not all run), `planned_gpus` and
    `planned_nodes` what the plan gives it. `watts` is what its GPUs draw (None where its training does not report),
    `clock_megahertz` and `power_limit_watts` (of each GPU) are as in force. `why` is the operator's sentence.
    `current` is False while the status still speaks of an earlier spec. `finish` lies between `earliest_finish` and
    `latest_finish` nine times out of ten each. `figures` is when
    what it has used and done was found, `waiting` since when it waits. `tradeoff` has the fastest and the thriftiest of the
    choices for its rest. `run` is which run of a recurring job it is: its batch size, and what it costs.
    `prediction` has what the plan expects of it, and how far off that is.
    """

    namespace: str
    name: str
    uid: str
    state: str
    min_gpus: int
    max_gpus: int
    gpus: int
    planned_gpus: int
    admitted: Aspect
    placed: Aspect
    ready: Aspect
    limits_enforced: Aspect
    budget_healthy: Aspect
    deadline_at_risk: Aspect
    resizing: Aspect
    bounds_kept: Aspect | None = None
    succeeded: Aspect | None = None
    failed: Aspect | None = None
    nodes: tuple[str, ...] = ()
    planned_nodes: tuple[str, ...] = ()
    incarnation: int | None = None
    watts: int | None = None
    clock_megahertz: int | None = None
    power_limit_watts: int | None = None
    progress: ProgressRow | None = None
    energy: JobEnergyRow | None = None
    tradeoff: Tradeoff | None = None
    finish: datetime | None = None
    earliest_finish: datetime | None = None
    latest_finish: datetime | None = None
    queue: QueueRow | None = None
    waiting: datetime | None = None
    figures: datetime | None = None
    deadline: datetime | None = None
    flexible_until: datetime | None = None
    objective: str = ""
    priority: int = 0
    restarts: int | None = None
    max_restarts: int | None = None
    created: datetime | None = None
    started: datetime | None = None
    resized: datetime | None = None
    completed: datetime | None = None
    prediction: Prediction | None = None
    run: RecurringRun | None = None
    why: str = ""
    current: bool = True
    suspended: bool = False
    deleting: bool = False
    problems: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def finished(self) -> bool:
        return any(end is not None and end.status is True for end in (self.succeeded, self.failed))


def job_row(job: EnergyAwareJob) -> JobRow:
    """One job's row."""
    spec, status = job.spec, job.status
    applied, allocation, conditions = status.applied, status.allocation, status.conditions
    planned_nodes = () if allocation is None else allocation.nodes
    return JobRow(
        namespace=job.namespace,
        name=job.name,
        uid=job.uid,
        state=status.state or "",
        min_gpus=spec.gpus.min,
        max_gpus=spec.gpus.max,
        gpus=0 if applied is None else applied.gpus,
        planned_gpus=0 if allocation is None else allocation.gpus,
        admitted=aspect(conditions, "Admitted"),
        placed=aspect(conditions, "Placed"),
        ready=aspect(conditions, "PodsReady"),
        limits_enforced=aspect(conditions, "PowerLimitsEnforced"),
        budget_healthy=aspect(conditions, "BudgetHealthy"),
        deadline_at_risk=aspect(conditions, "DeadlineAtRisk"),
        resizing=aspect(conditions, "Resizing"),
        bounds_kept=aspect_if_any(conditions, "BoundsKept"),
        succeeded=aspect_if_any(conditions, "Succeeded"),
        failed=aspect_if_any(conditions, "Failed"),
        nodes=() if applied is None else tuple(node.name for node in (applied.nodes or planned_nodes)),
        planned_nodes=tuple(node.name for node in planned_nodes),
        incarnation=job.last_incarnation or None,
        # 0 is what a job without GPUs draws, and what earlier operators wrote where nobody had told the draw.
        watts=None if status.energy is None else status.energy.watts or None,
        clock_megahertz=None if applied is None else applied.clock_megahertz or None,
        power_limit_watts=None if applied is None else applied.power_limit_watts,
        progress=_progress(job),
        energy=None
        if status.energy is None
        else JobEnergyRow(
            status.energy.consumed_kilojoules, status.energy.projected_kilojoules, spec.energy.budget_kilojoules
        ),
        tradeoff=status.tradeoff,
        finish=None if status.progress is None else status.progress.estimated_completion_time,
        earliest_finish=None if status.progress is None else status.progress.earliest_completion_time,
        latest_finish=None if status.progress is None else status.progress.latest_completion_time,
        queue=_queue(job),
        waiting=status.waiting_since,
        figures=status.time,
        deadline=spec.deadline,
        flexible_until=spec.flexible_until,
        objective=spec.objective,
        priority=spec.priority,
        restarts=status.restarts,
        max_restarts=spec.failure_policy.max_restarts,
        created=job.created,
        started=status.start_time,
        resized=status.last_resize_time,
        completed=status.completion_time,
        prediction=status.prediction,
        run=job.run,
        why=status.explanation or "",
        current=(status.observed_generation or 0) >= job.generation,
        suspended=spec.suspend,
        deleting=job.deleting,
        problems=job.problems,
    )


def frontier_of(job: EnergyAwareJob, profiles: Iterable[EnergyProfile]) -> tuple[FrontierPoint, ...]:
    """The choices of size and clock for the rest of a job that no other beats in time and energy, from the fastest on.

    They follow from its profile among `profiles`; empty where that has none, as before anything was measured.
    """
    tradeoff, total, progress = job.status.tradeoff, job.spec.training.iterations, job.status.progress
    if tradeoff is None or total is None:
        return ()
    about = (job.namespace, job.profile_key, tradeoff.gpu_model)
    for profile in profiles:
        if (profile.metadata.namespace, profile.spec.profile_key, profile.spec.gpu_model) != about:
            continue
        for frontier in profile.status.frontiers or ():
            if frontier.bounds == job.frontier_bounds:
                done = 0 if progress is None else progress.iterations
                return for_iterations(frontier.choices, max(0, total - done))
    return ()


def ends_of(tradeoff: Tradeoff | None) -> tuple[FrontierPoint, ...]:
    """The choices that a job's status itself tells."""
    if tradeoff is None:
        return ()
    return (tradeoff.fastest,) if tradeoff.choices == 1 else (tradeoff.fastest, tradeoff.thriftiest)


def _queue(job: EnergyAwareJob) -> QueueRow | None:
    place = job.status.queue
    if place is None:
        return None
    return QueueRow(place.position, place.waiting, place.time, place.expected_start_time, place.basis)


def _progress(job: EnergyAwareJob) -> ProgressRow | None:
    progress, total = job.status.progress, job.spec.training.iterations
    if progress is None:
        return None
    fraction = None
    if total:
        fraction = min(1.0, progress.iterations / total)
        if progress.estimated and not job.has("Succeeded"):
            fraction = min(fraction, MOST_ESTIMATED_FRACTION)
    return ProgressRow(
        iterations=progress.iterations,
        total=total,
        fraction=fraction,
        iterations_per_second=progress.iterations_per_kilosecond / 1000 or None,
        estimated=progress.estimated,
        reported=progress.last_report_time,
        gpu_seconds=progress.attained_gpu_seconds,
    )
