"""Keeps every live job's books and takes its steps: what to do for it now, and what its status should say.

The counts that a status alone cannot carry within one cycle (an incarnation already counted as failed, a refusal by the
API server) are kept here; a new leader starts with an empty keeper and reads the rest from the statuses.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from flyball_kube.logs import decision as log_decision
from flyball_planner.cluster import JobDecision
from flyball_planner.models import JobModel

from flyball_operator.books import JobBooks, recorded_books, take_energy, update_books
from flyball_operator.conditions import as_stored
from flyball_operator.execute import Executor
from flyball_operator.hold import JobGrant
from flyball_operator.incarnations import (
    Action,
    CreateIncarnation,
    JobStep,
    OpenGates,
    Phase,
    StopIncarnation,
    next_step,
)
from flyball_operator.job_status import JobFacts, energy_status, job_status, remaining_frontier, story
from flyball_operator.picture import NodePicture, PodLimit, pod_limits
from flyball_operator.requests import JobView, format_time, parse_time
from flyball_operator.settings import Settings
from flyball_operator.snapshot import JobMemory, recorded_allocation, wants_gpus
from flyball_operator.workloads import IncarnationView, PodView
from flyball_operator.world import World

logger = logging.getLogger(__name__)

# How often the frontier in a job's status is worked out anew.
FRONTIER_SECONDS = 30.0

JsonObject = dict[str, Any]


class ModelSource(Protocol):
    """Where a job's time and energy model comes from."""

    def model_for(self, job: JobView, pictures: Mapping[str, NodePicture]) -> JobModel: ...


@dataclass(frozen=True, slots=True)
class KeptJob:
    """One live job in this cycle."""

    view: JobView
    books: JobBooks
    memory: JobMemory
    step: JobStep
    desired: tuple[tuple[str, int], ...] | None
    incarnations: Sequence[IncarnationView]
    pods: Sequence[PodView]


@dataclass(slots=True)
class _Record:
    books: JobBooks
    updated_at: float
    restarts: int
    last_resize: str | None
    counted_incarnation: int  # the last one whose failure is among `restarts`
    invalid: str
    invalid_generation: int
    written_at: float = float("-inf")
    told: tuple[object, ...] = ()
    frontier_at: float = float("-inf")
    stop_reason: str = "the plan gives it no GPUs for now"


class JobKeeper:
    """All jobs of one reign; `learner` gives the models for estimates and for the frontiers shown to users."""

    def __init__(self, settings: Settings, learner: ModelSource) -> None:
        self._settings = settings
        self._learner = learner
        self._records: dict[str, _Record] = {}
        self._pictures: Mapping[str, NodePicture] = {}
        self._now = datetime.fromtimestamp(0, UTC)
        self._expiry_checked: datetime | None = None

    def keep(
        self,
        world: World,
        pictures: Mapping[str, NodePicture],
        decisions: Mapping[str, JobDecision],
        now: datetime,
        monotonic: float,
    ) -> dict[str, KeptJob]:
        """Every job that has not ended, by uid, with its books brought up to date."""
        self._pictures, self._now = pictures, now
        kept = {}
        for uid, job in world.jobs.items():
            if job.finished or job.deleting:
                continue
            try:
                kept[uid] = self._keep(job, world, decisions, monotonic)
            except Exception:
                # One job that cannot be understood must not end the cycle that holds the caps for everybody.
                logger.exception("EnergyAwareJob %s is left out of this cycle", job.key)
        for uid in self._records.keys() - kept.keys():
            del self._records[uid]
        return kept

    def _keep(self, job: JobView, world: World, decisions: Mapping[str, JobDecision], monotonic: float) -> KeptJob:
        record = self._records.get(job.uid)
        if record is None:
            record = self._records[job.uid] = _recorded(job, monotonic)
        incarnations = world.incarnations.get(job.uid, [])
        pods = world.pods_of.get(job.uid, [])
        decision = decisions.get(job.uid)
        current = recorded_allocation(job, incarnations) if decision is None else decision.allocation
        desired = None if current is None else current.nodes
        refused = self._refused(job, record)
        if not wants_gpus(job, record.books, refused):
            desired = None
        step = next_step(
            job_uid=job.uid,
            desired=desired,
            last_incarnation=job.last_incarnation,
            incarnations=incarnations,
            pods=pods,
            reserved=lambda pod, node: False,
            stop_reason=record.stop_reason,
        )
        running = step.phase == Phase.RUNNING and step.current is not None
        rate = 0.0
        if running and decision is not None and decision.predicted_iteration_seconds > 0:
            rate = 1.0 / decision.predicted_iteration_seconds
        record.books = update_books(
            record.books,
            world.reports_of.get(job.uid, ()),
            incarnation=step.current.incarnation if step.current is not None else job.last_incarnation,
            running_gpus=step.current.gpus if running and step.current is not None else 0,
            elapsed_seconds=max(0.0, monotonic - record.updated_at),
            model_iterations_per_second=rate,
        )
        record.updated_at = monotonic
        if (
            step.counts_as_failure
            and step.current is not None
            and step.current.incarnation > record.counted_incarnation
        ):
            record.counted_incarnation = step.current.incarnation
            record.restarts += 1
        holds_gpus = any(not pod.gated and not pod.finished for pod in pods)
        memory = JobMemory(record.books, current, running, holds_gpus, refused)
        return KeptJob(job, record.books, memory, step, desired, incarnations, pods)

    @staticmethod
    def _refused(job: JobView, record: _Record) -> bool:
        return bool(record.invalid) and record.invalid_generation == job.generation

    def plan_taken(self, decisions: Mapping[str, JobDecision]) -> None:
        """Remember why the new plan moves each job: a stop that follows from it is explained by it."""
        for uid, decision in decisions.items():
            record = self._records.get(uid)
            if record is not None:
                record.stop_reason = decision.explanation

    def actions(
        self,
        jobs: Mapping[str, KeptJob],
        decisions: Mapping[str, JobDecision],
        wanted: Mapping[tuple[str, str], JobGrant],
        granted: Collection[tuple[str, str, int]],
    ) -> list[tuple[KeptJob, Action]]:
        """What to do now for each job.

        `wanted` maps (pod name, job uid) to what the pod's node should be granted for it, `granted` holds
        (pod name, job uid, limit in milliwatts) as the API has it: a gate opens only where the two agree.
        """

        def reserved(pod: PodView, node: str) -> bool:
            want = wanted.get((pod.name, pod.job_uid))
            return want is not None and (pod.name, pod.job_uid, want.power_limit_milliwatts) in granted

        actions: list[tuple[KeptJob, Action]] = []
        for uid, kept in sorted(jobs.items(), key=lambda item: (item[1].view.created, item[0])):
            step = kept.step
            if step.phase == Phase.GATED:
                step = next_step(
                    job_uid=uid,
                    desired=kept.desired,
                    last_incarnation=kept.view.last_incarnation,
                    incarnations=kept.incarnations,
                    pods=kept.pods,
                    reserved=reserved,
                    stop_reason="",
                )
            if step.phase == Phase.FAILED and (self._out_of_restarts(kept) or not self._failure_told(kept)):
                continue  # without a restart its pods stay, with their logs
            for action in step.actions:
                if isinstance(action, CreateIncarnation) and uid not in decisions:
                    continue  # a new leader starts nothing before its first plan
                actions.append((kept, action))
        return actions

    async def act(self, executor: Executor, kept: KeptJob, action: Action, hostnames: Mapping[str, str]) -> bool:
        """Take one action for one job; True where it took effect."""
        job, record = kept.view, self._records[kept.view.uid]
        match action:
            case StopIncarnation(incarnation, reason):
                done = await executor.stop_incarnation(action)
                self._log("stop", job, incarnation.incarnation, reason, done)
            case OpenGates(pods):
                done = await executor.open_gates(action, hostnames)
                self._log(
                    "start", job, pods[0][0].incarnation, "every old pod is gone and the watts are reserved", done
                )
            case CreateIncarnation(_, number, nodes):
                try:
                    done, refused = await executor.create_incarnation(job, number, nodes)
                except ValueError as error:
                    done, refused = False, str(error)
                if refused:
                    record.invalid, record.invalid_generation = refused, job.generation
                if done:
                    record.last_resize = format_time(self._now)
                self._log("create", job, number, refused or f"on {', '.join(name for name, _ in nodes)}", done)
        return done

    @staticmethod
    def _log(event: str, job: JobView, incarnation: int, reason: str, done: bool) -> None:
        log_decision(logger, event, job=job.key, incarnation=incarnation, reason=reason, done=done)

    def _out_of_restarts(self, kept: KeptJob) -> bool:
        return kept.step.counts_as_failure and self._records[kept.view.uid].restarts > kept.view.max_restarts

    @staticmethod
    def _failure_told(kept: KeptJob) -> bool:
        """The status has the failure of the incarnation that is to be removed: then no operator, however many come and go,
        loses it or counts it again."""
        current = kept.step.current
        if not kept.step.counts_as_failure or current is None:
            return True
        return int(kept.view.status.get("lastFailedIncarnation") or 0) >= current.incarnation

    def _outcome(self, kept: KeptJob) -> tuple[str, str]:
        job, step = kept.view, kept.step
        if step.phase == Phase.COMPLETE:
            number = 0 if step.current is None else step.current.incarnation
            return "Succeeded", f"all ranks of incarnation {number} ended with exit code 0"
        if step.phase == Phase.FAILED and self._out_of_restarts(kept):
            return "Failed", f"{step.failure}; failurePolicy.maxRestarts {job.max_restarts} allows no further restart"
        spent = kept.books.budget_spent(job.energy_budget_kilojoules)
        if spent and job.on_exhausted == "Fail" and step.phase == Phase.WAITING:
            budget = job.energy_budget_kilojoules
            return "Failed", f"the energy budget of {budget} kJ is spent, and energy.onExhausted is Fail"
        return "", ""

    def statuses(
        self,
        jobs: Mapping[str, KeptJob],
        decisions: Mapping[str, JobDecision],
        epoch: int,
        now: datetime,
        monotonic: float,
    ) -> list[tuple[KeptJob, JsonObject]]:
        """The statuses to write now: at once where the story changed, at the interval where only figures did."""
        writes = []
        limits = pod_limits(self._pictures.values())
        for uid, kept in jobs.items():
            try:
                status = self._status(kept, decisions.get(uid), limits, epoch, now, monotonic)
            except Exception:
                logger.exception("EnergyAwareJob %s: its status is not written", kept.view.key)
                continue
            if status is not None:
                writes.append((kept, status))
        return writes

    def _status(
        self,
        kept: KeptJob,
        decision: JobDecision | None,
        limits: Mapping[tuple[str, str], PodLimit],
        epoch: int,
        now: datetime,
        monotonic: float,
    ) -> JsonObject | None:
        """The status to write now; None where nothing is news."""
        record = self._records[kept.view.uid]
        outcome, message = self._outcome(kept)
        wants = wants_gpus(kept.view, kept.books, kept.memory.refused)
        if (
            wants
            and decision is None
            and not outcome
            and kept.view.status.get("observedGeneration") == kept.view.generation
        ):
            return None  # a new leader knows less than the status does, until its first plan
        nothing = PodLimit()
        pods = [
            limits.get((pod.namespace, pod.name), nothing) for pod in kept.pods if not pod.finished and not pod.deleting
        ]
        facts = JobFacts(
            books=kept.books,
            step=kept.step,
            decision=decision if wants else None,
            epoch=epoch,
            granted=kept.step.phase == Phase.RUNNING and all(pod.acknowledged for pod in pods),
            restarts=record.restarts,
            now=now,
            last_failed=record.counted_incarnation,
            applied_milliwatts=max((pod.highest_milliwatts for pod in pods), default=0),
            outcome=outcome,
            outcome_message=message,
            invalid=record.invalid if kept.memory.refused else "",
            last_resize=record.last_resize,
        )
        due = monotonic - record.written_at >= self._settings.status_interval_seconds
        told = (kept.view.generation, *_told(facts))
        if told == record.told and not due:
            return None  # most jobs in most cycles: nothing is worked out for them
        status = job_status(kept.view, facts)
        before = {key: value for key, value in kept.view.status.items() if key != "frontier"}
        record.told = told
        if story(status) == story(before) and not (due and as_stored(status) != before):
            return None
        if not outcome and self._pictures:
            status = job_status(kept.view, replace(facts, frontier=self._frontier(kept, record, monotonic)))
        record.written_at = monotonic
        return status

    def _frontier(self, kept: KeptJob, record: _Record, monotonic: float) -> tuple[JsonObject, ...]:
        """What time costs for the rest of the job; worked out anew only now and then, as it costs the most of a status."""
        shown = kept.view.status.get("frontier")
        if shown and monotonic - record.frontier_at < FRONTIER_SECONDS:
            return tuple(shown)
        record.frontier_at = monotonic
        per_node = max(picture.gpus for picture in self._pictures.values())
        model = self._learner.model_for(kept.view, self._pictures)
        return remaining_frontier(kept.view, model, kept.books.iterations, max(1, per_node))

    def late_energy(self, world: World) -> list[tuple[JobView, JsonObject]]:
        """Statuses of ended jobs whose last pods are reported to have used more than what their books were closed with."""
        writes = []
        for uid, reports in world.reports_of.items():
            job = world.jobs.get(uid)
            if job is None or not job.finished or job.deleting:
                continue
            before = recorded_books(job)
            books = take_energy(before, reports)
            if books.consumed_millijoules != before.consumed_millijoules:
                writes.append((job, energy_status(books)))
        return writes

    def expired(self, jobs: Iterable[JobView], now: datetime) -> list[JobView]:
        """Finished jobs whose time to live is over; looked for once per status interval, as there can be thousands."""
        interval = timedelta(seconds=self._settings.status_interval_seconds)
        if self._expiry_checked is not None and now - self._expiry_checked < interval:
            return []
        self._expiry_checked = now
        expired = []
        for job in jobs:
            if job.ttl_seconds_after_finished is None or job.deleting or not job.finished:
                continue
            ended = parse_time(job.status.get("completionTime"))
            if ended is not None and now - ended >= timedelta(seconds=job.ttl_seconds_after_finished):
                expired.append(job)
        return expired


def _recorded(job: JobView, monotonic: float) -> _Record:
    """What the operator before us knew of a job, by its status."""
    return _Record(
        books=recorded_books(job),
        updated_at=monotonic,
        restarts=job.status.get("restarts") or 0,
        last_resize=job.status.get("lastResizeTime"),
        counted_incarnation=job.status.get("lastFailedIncarnation") or 0,
        invalid=job.refusal,
        invalid_generation=job.generation,
    )


def _told(facts: JobFacts) -> tuple[object, ...]:
    """What of the facts makes the story of a status: equal to the last one, there is nothing to tell at once."""
    decision, step = facts.decision, facts.step
    return (
        facts.outcome,
        facts.invalid,
        facts.granted,
        facts.restarts,
        facts.last_resize,
        step.phase,
        None if step.current is None else step.current.incarnation,
        None if decision is None else (decision.allocation, decision.admission, decision.deadline_at_risk),
    )
