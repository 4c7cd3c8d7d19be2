"""Of which jobs' pipelines a plan is to be made: of those that have measured all of their stages, by their agents' reports.

A job whose `spec.pipeline.plan.measure` says so measures itself as long as it has no plan. Who makes the plan, and where,
is not this module's: it follows from the reports and from what was made before, and needs no memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean

from flyball_api.energy_aware_job import EnergyAwareJob, MeasuredPlan, PlanSource
from flyball_api.gpu_node import PodReport, StageReport
from flyball_api.values.times import whole_second
from flyball_api.values.units import MILLIWATTS_PER_WATT
from flyball_api.workloads import IncarnationView
from msgspec.structs import replace

HEADER = "stage,instruction,frequency,time,energy\n"
# What could not be made for a reason that may pass is tried again after so long.
RETRY_SECONDS = 60.0
MAX_MESSAGE_LENGTH = 1024


@dataclass(frozen=True, slots=True)
class PlanPipeline:
    """Have a plan made of what a job has measured, and put where its spec has it.

    `profile` is CSV as `flyball frontier --profile` reads it, `digest` the same for the same measurements of such a
    pipeline, and different for all others.
    """

    job: EnergyAwareJob
    source: PlanSource
    microbatches: int
    profile: str
    blocking_watts: float
    digest: str


@dataclass(frozen=True, slots=True)
class PlanMaking:
    """What became of a plan that was to be made: in words where there is none; `final`: another try would end the same."""

    message: str
    made: bool = False
    final: bool = True


def measured_stages(
    job: EnergyAwareJob, incarnation: IncarnationView, reports: Iterable[tuple[str, PodReport]]
) -> tuple[StageReport, ...] | None:
    """What this start of a job has measured of its stages, in their order, by the `(node, report)` of its pods.

    None while a stage is missing, and where nothing is to be measured.
    """
    pipeline = job.spec.pipeline
    if pipeline is None or pipeline.plan is None or pipeline.plan.measure is None:
        return None
    nodes = {name for name, _ in incarnation.nodes}
    stages: dict[int, StageReport] = {}
    for node, report in reports:
        if node in nodes and report.incarnation == incarnation.incarnation and not report.ended:
            stages |= {stage.stage: stage for stage in report.stages}
    if not stages.keys() >= set(range(pipeline.stages)):
        return None
    return tuple(stages[number] for number in range(pipeline.stages))


def plan_to_make(
    job: EnergyAwareJob, measured: Sequence[StageReport], before: MeasuredPlan | None
) -> PlanPipeline | None:
    """The plan to make of what a job has measured; None where of the same none is to be made again (`before`)."""
    pipeline = job.spec.pipeline
    if pipeline is None or pipeline.plan is None:
        return None
    lines = [f"{stage.stage},{line}\n" for stage in measured for line in stage.rows.splitlines()]
    profile = HEADER + "".join(lines)
    watts = round(fmean(stage.waiting_milliwatts for stage in measured) / MILLIWATTS_PER_WATT, 3)
    identity = f"{pipeline.microbatches} {watts} {pipeline.plan.config_map}/{pipeline.plan.key}\n{profile}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
    if before is not None and before.profile == digest:
        return None
    return PlanPipeline(job, pipeline.plan, pipeline.microbatches, profile, watts, digest)


def measured_plan(plan: PlanPipeline, making: PlanMaking, before: MeasuredPlan | None, now: datetime) -> MeasuredPlan:
    """The entry of the job's status about this plan; without the profile's digest where it is to be tried again.

    The time of the first of several tries that ended the same is kept (`before`): the last is worth no other status.
    """
    found = MeasuredPlan(
        outcome="Made" if making.made else "NotMade",
        profile=plan.digest if making.final else "",
        time=whole_second(now),
        message=making.message[:MAX_MESSAGE_LENGTH],
    )
    return before if before is not None and replace(found, time=before.time) == before else found
