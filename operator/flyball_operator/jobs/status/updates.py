"""When a job's status is worth a write: at once where something happened, at an interval where only figures have moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec
from flyball_api.energy_aware_job import EnergyAwareJob, EnergyAwareJobStatus, FrontierPoint
from flyball_planner.models.job import JobModel

from flyball_operator.jobs.frontier import remaining_frontier
from flyball_operator.jobs.status.contents import job_status, significant_fields
from flyball_operator.jobs.status.facts import JobFacts
from flyball_operator.power.node_info import NodeInfo

# How often the frontier in a job's status is worked out anew.
FRONTIER_SECONDS = 30.0


class ModelSource(Protocol):
    """Where a job's time and energy model comes from."""

    def model_for(self, job: EnergyAwareJob, nodes: Mapping[str, NodeInfo]) -> JobModel: ...


@dataclass(slots=True)
class StatusHistory:
    """When one job's status and its frontier were last made, and from which significant facts."""

    written_at: float = float("-inf")
    frontier_at: float = float("-inf")
    significant: tuple[object, ...] = ()


class StatusUpdates:
    """Decides on every job's status; figures that move by themselves are written at most once per interval."""

    def __init__(self, interval_seconds: float, models: ModelSource) -> None:
        self._interval_seconds = interval_seconds
        self._models = models

    def due(
        self,
        job: EnergyAwareJob,
        facts: JobFacts,
        history: StatusHistory,
        nodes: Mapping[str, NodeInfo],
        monotonic: float,
    ) -> EnergyAwareJobStatus | None:
        """The status to write now, noted in `history`; None where nothing in it is new, or only figures too soon."""
        due = monotonic - history.written_at >= self._interval_seconds
        significant = (job.generation, *_significant_facts(facts))
        if significant == history.significant and not due:
            return None  # most jobs in most cycles: nothing is worked out for them
        status = job_status(job, facts)
        before = msgspec.structs.replace(job.status, frontier=None)
        history.significant = significant
        if significant_fields(status) == significant_fields(before) and not (due and status != before):
            return None
        if not facts.outcome and nodes:
            status = job_status(job, replace(facts, frontier=self._frontier(job, facts, history, nodes, monotonic)))
        history.written_at = monotonic
        return status

    def _frontier(
        self,
        job: EnergyAwareJob,
        facts: JobFacts,
        history: StatusHistory,
        nodes: Mapping[str, NodeInfo],
        monotonic: float,
    ) -> tuple[FrontierPoint, ...]:
        """What time costs for the rest of the job; worked out anew only now and then, as it costs the most of a status."""
        shown = job.status.frontier
        if shown and monotonic - history.frontier_at < FRONTIER_SECONDS:
            return shown
        history.frontier_at = monotonic
        per_node = max(info.gpus for info in nodes.values())
        model = self._models.model_for(job, nodes)
        return remaining_frontier(job, model, facts.progress.iterations, max(1, per_node))


def _significant_facts(facts: JobFacts) -> tuple[object, ...]:
    """What of the facts decides a status' significant fields: as long as it is the same, no write is urgent."""
    decision, step = facts.decision, facts.step
    return (
        facts.outcome,
        facts.refusal,
        facts.granted,
        facts.restarts,
        facts.failures,
        facts.start_attempts,
        facts.bounds_beyond,
        facts.back_off,
        None if facts.obstacle is None else facts.obstacle.reason,
        facts.highest_incarnation,
        facts.last_resize,
        step.phase,
        step.bound,
        None if step.current is None else step.current.incarnation,
        None if decision is None else (decision.allocation, decision.admission, decision.deadline_at_risk),
    )
