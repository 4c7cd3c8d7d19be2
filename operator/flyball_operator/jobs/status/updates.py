"""When a job's status is worth a write: at once where something happened, at an interval where only figures have moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

import msgspec
from flyball_api.energy.frontier import Tradeoff
from flyball_api.energy_aware_job import EnergyAwareJob, EnergyAwareJobStatus
from flyball_planner.models.gpu import GpuModel
from flyball_planner.models.job import JobModel

from flyball_operator.jobs.frontier import LargestNode, tradeoff
from flyball_operator.jobs.runs.lifecycle import JobPhase
from flyball_operator.jobs.status.contents import LONG_WAIT_SECONDS, job_status, significant_fields
from flyball_operator.jobs.status.facts import JobFacts
from flyball_operator.power.nodes.info import NodeInfo

# How much more seldom a job is told of its place for each one before it: 1 + 1/2 + 1/3 ... grows with the logarithm alone.
SECONDS_PER_PLACE = 1.0
# And how much later that it has waited long: ten thousand that came together are told over some minutes.
LONG_WAIT_SECONDS_PER_PLACE = 0.1
# A new clock is granted, sent and acknowledged within this time, mostly: one status says all of it.
POWER_SETTLES_SECONDS = 1.0
# So old figures are written again though they are the same: that they are old would else say nothing.
SIGN_OF_LIFE_SECONDS = 60.0


class ModelSource(Protocol):
    """Where a job's time and energy model comes from."""

    def model_for(self, job: EnergyAwareJob, nodes: Mapping[str, NodeInfo]) -> JobModel: ...


class PaceSource(ModelSource, Protocol):
    """Where a job's model comes from, and within which band of the model's seconds its iterations are expected."""

    def pace_band(
        self, job: EnergyAwareJob, gpu_model: GpuModel, gpus: int, nodes: int, clock_megahertz: int
    ) -> tuple[float, float] | None: ...


@dataclass(slots=True)
class StatusHistory:
    """When one job's status was last made, and from which significant facts, limits and measurements; since when the
    limits are others."""

    looked_at: float = float("-inf")
    significant: tuple[object, ...] = ()
    power: tuple[object, ...] = ()
    power_changed_at: float | None = None
    measured: tuple[object, ...] = ()


class StatusUpdates:
    """Decides on every job's status: what is `urgent` is written at once, else figures that are `due`, once per interval.

    Of jobs that wait, each is told of its place after as many seconds as there are jobs before it, so that all of them
    together are told of ten places a second at the most, however many there are.
    """

    def __init__(self, interval_seconds: float, models: PaceSource) -> None:
        self._interval_seconds = interval_seconds
        self._models = models
        self._largest_node = LargestNode()

    @staticmethod
    def urgent(job: EnergyAwareJob, facts: JobFacts, history: StatusHistory) -> bool:
        """Whether something has happened since the job was last looked at, other than to its clock and limits."""
        return (job.generation, *_significant_facts(facts)) != history.significant

    @staticmethod
    def note_power(facts: JobFacts, history: StatusHistory, monotonic: float) -> bool:
        """Note a job's clock and limits; true where they have changed since it was looked at, and have settled."""
        if _power_facts(facts) == history.power:
            history.power_changed_at = None
            return False
        if history.power_changed_at is None:
            history.power_changed_at = monotonic
        return monotonic - history.power_changed_at >= POWER_SETTLES_SECONDS

    @staticmethod
    def seconds_to_power(history: StatusHistory, monotonic: float) -> float:
        """When that is due next, in seconds; infinite where nothing has changed."""
        changed_at = history.power_changed_at
        return float("inf") if changed_at is None else max(0.0, changed_at + POWER_SETTLES_SECONDS - monotonic)

    def due(
        self, job: EnergyAwareJob, position: int | None, now: datetime, history: StatusHistory, monotonic: float
    ) -> bool:
        """Whether it is time to look at the job's figures, most of which move by themselves.

        `position` is its place among those that wait, None where it does not.
        """
        since, place = job.status.waiting_since, position or 0
        shown_long = since is None or _waited_long(since, job.status.time)
        if since is not None and not shown_long and _waited_long(since, now, place * LONG_WAIT_SECONDS_PER_PLACE):
            return monotonic - history.looked_at >= self._interval_seconds
        behind = place * SECONDS_PER_PLACE
        return monotonic - history.looked_at >= max(self._interval_seconds, behind)

    @staticmethod
    def has_news(facts: JobFacts, history: StatusHistory, monotonic: float) -> bool:
        """Whether figures that are due can be others than before: those of a running job come with its agents' reports."""
        running = facts.step.phase == JobPhase.RUNNING
        old = monotonic - history.looked_at >= SIGN_OF_LIFE_SECONDS
        return not running or old or facts.measured != history.measured

    def make(
        self,
        job: EnergyAwareJob,
        facts: JobFacts,
        history: StatusHistory,
        nodes: Mapping[str, NodeInfo],
        monotonic: float,
    ) -> EnergyAwareJobStatus | None:
        """The status to write now, looked at now; None where nothing in it is new."""
        first = history.looked_at == float("-inf")
        # A new leader finds thousands of jobs at once: figures that have moved since are written in their turn.
        position = None if facts.queue is None else facts.queue.position
        due = not first and self.due(job, position, facts.now, history, monotonic)
        history.significant, history.measured = (job.generation, *_significant_facts(facts)), facts.measured
        history.power, history.power_changed_at = _power_facts(facts), None
        if due or first:
            history.looked_at = monotonic
        if facts.pace_band is None and facts.step.phase == JobPhase.RUNNING and nodes:
            facts = replace(facts, pace_band=self._pace_band(job, facts, nodes))
        status = job_status(job, facts)
        before = msgspec.structs.replace(job.status, tradeoff=None)
        if significant_fields(status) == significant_fields(before) and not (due and _moved(before, status)):
            return None
        if not facts.outcome and nodes:
            status = msgspec.structs.replace(status, tradeoff=self._tradeoff(job, facts, nodes))
        history.looked_at = monotonic
        return status

    def _pace_band(
        self, job: EnergyAwareJob, facts: JobFacts, nodes: Mapping[str, NodeInfo]
    ) -> tuple[float, float] | None:
        """How uncertain the model leaves the time of an iteration where the job runs now."""
        current, decision = facts.step.current, facts.decision
        if current is None or job.spec.training.iterations is None:
            return None
        planned = decision.allocation.clock_megahertz if decision is not None and decision.allocation else 0
        clock = facts.progress.clock_megahertz or planned
        first = nodes.get(current.nodes[0][0]) if current.nodes else None
        if not clock or first is None or first.gpu_model is None:
            return None
        return self._models.pace_band(job, first.gpu_model, current.gpus, len(current.nodes), clock)

    def _tradeoff(self, job: EnergyAwareJob, facts: JobFacts, nodes: Mapping[str, NodeInfo]) -> Tradeoff | None:
        """What time costs for the rest of the job."""
        model, gpus_per_node = self._models.model_for(job, nodes), self._largest_node.gpus_of(nodes)
        return tradeoff(job, model, facts.progress.iterations, gpus_per_node)


def _moved(before: EnergyAwareJobStatus, status: EnergyAwareJobStatus) -> bool:
    """Whether a status has other figures than the one before, is of a wait that has become long, or stands for a minute."""
    if before.time is None or status.time is None:
        return True
    since, shown = status.waiting_since, status.applied is not None or status.queue is not None
    if shown and (status.time - before.time).total_seconds() >= SIGN_OF_LIFE_SECONDS:
        return True
    if since is not None and _waited_long(since, status.time) != _waited_long(since, before.time):
        return True
    queue = status.queue
    if queue is not None and before.queue is not None:
        queue = msgspec.structs.replace(queue, time=before.queue.time)
    return msgspec.structs.replace(status, time=before.time, queue=queue) != before


def _waited_long(since: datetime, now: datetime | None, more_seconds: float = 0.0) -> bool:
    return now is not None and (now - since).total_seconds() >= LONG_WAIT_SECONDS + more_seconds


def _power_facts(facts: JobFacts) -> tuple[object, ...]:
    """What of the facts decides what a status says of a job's clock and limits."""
    return facts.granted, None if facts.decision is None else facts.decision.allocation


def _significant_facts(facts: JobFacts) -> tuple[object, ...]:
    """What of the facts decides a status' other significant fields: as long as it is the same, no write is urgent."""
    decision, step = facts.decision, facts.step
    nodes = None if decision is None or decision.allocation is None else decision.allocation.nodes
    return (
        facts.outcome,
        facts.refusal,
        facts.restarts,
        facts.failures,
        facts.start_attempts,
        facts.bounds_beyond,
        facts.back_off,
        None if facts.obstacle is None else facts.obstacle.reason,
        facts.highest_incarnation,
        facts.last_resize,
        facts.measured_plan,
        None if facts.run is None else (facts.run.gpu_model, facts.run.decision),
        step.phase,
        step.bound,
        None if step.current is None else step.current.incarnation,
        None if decision is None else (nodes, decision.admission, decision.deadline_at_risk),
    )
