"""What the pipelines of training jobs want now: to be told their point, and plans made of what they have measured."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from operator import itemgetter

from flyball_kube.process.logs import get_logger

from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.pipeline_plans import (
    RETRY_SECONDS,
    PlanMaking,
    PlanPipeline,
    measured_plan,
    measured_stages,
    plan_to_make,
)
from flyball_operator.jobs.pipeline_points import (
    PAUSE_SECONDS,
    STRAGGLER_PAUSE_SECONDS,
    PointChange,
    point_change,
)
from flyball_operator.jobs.runs.lifecycle import JobPhase
from flyball_operator.jobs.steps.record import JobRecord
from flyball_operator.jobs.steps.step import LiveJob

logger = get_logger(__name__)

Pipelines = Iterable[tuple[LiveJob, JobRecord]]


def take_point_changes(pipelines: Pipelines, now: datetime, monotonic: float) -> list[PointChange]:
    """The points that pipelines are to change to, of each job at most every few seconds; they count as sent."""
    found = []
    for job, record in pipelines:
        current, granted = job.step.current, job.memory.current
        pause = PAUSE_SECONDS if record.straggler_sent == job.view.straggler else STRAGGLER_PAUSE_SECONDS
        if current is None or monotonic < record.point_sent_at + pause:
            continue
        if job.step.phase not in (JobPhase.STARTING, JobPhase.RUNNING):
            continue
        clock = None if granted is None else granted.clock_megahertz
        try:
            point = point_change(job.view, current.incarnation, job.pods, record.progress.iterations, clock, now)
        except Exception:
            # One job that cannot be understood must not end the cycle that decides on all.
            logger.exception("pipeline not told its point", job=job.view.key)
            record.point_sent_at = monotonic
            continue
        if point is not None:
            record.point_sent_at, record.straggler_sent = monotonic, job.view.straggler
            found.append(point)
    return found


def plans_to_make(pipelines: Pipelines, cluster: ClusterState, monotonic: float) -> list[PlanPipeline]:
    """The plans to make of what jobs have measured of their pipelines, whose was made longest ago first."""
    found: list[tuple[float, PlanPipeline]] = []
    for job, record in pipelines:
        pipeline, current = job.view.spec.pipeline, job.step.current
        if pipeline is None or current is None or monotonic < record.plan_at:
            continue
        measured = measured_stages(job.view, current, cluster.reports_of.get(job.view.uid, ()))
        if measured is None:
            continue
        # Of a thousand stages it takes a fifth of a second: not in every cycle.
        if record.to_plan is None or record.to_plan[0] != (pipeline, measured):
            record.to_plan = (pipeline, measured), plan_to_make(job.view, measured, record.measured_plan)
        plan = record.to_plan[1]
        if plan is not None:
            found.append((record.plan_at, plan))
    return [plan for _, plan in sorted(found, key=itemgetter(0))]


def plan_ended(record: JobRecord, plan: PlanPipeline, making: PlanMaking, now: datetime, monotonic: float) -> None:
    """Note what became of a job's plan, and when it may be made again."""
    record.measured_plan, record.to_plan = measured_plan(plan, making, record.measured_plan, now), None
    record.plan_at = monotonic + (0.0 if making.final else RETRY_SECONDS)
