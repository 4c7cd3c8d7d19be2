"""Which jobs' statuses to write in a cycle, and what they are made from.

What happens to a job is told at once, figures every so often, and nothing is worked out for a job that goes on waiting.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from operator import is_, itemgetter

from flyball_api.energy_aware_job import EnergyAwareJobStatus
from flyball_kube.logs import get_logger
from flyball_planner.snapshot import JobDecision

from flyball_operator.jobs.feasibility.bounds import GpuRanges, bounds_beyond, gpu_ranges
from flyball_operator.jobs.jobs_step import LiveJob
from flyball_operator.jobs.lifecycle import Phase
from flyball_operator.jobs.memory import wants_gpus
from flyball_operator.jobs.outcomes import outcome_of
from flyball_operator.jobs.preemption import still_preempted
from flyball_operator.jobs.queue import JobQueue
from flyball_operator.jobs.record import JobRecord
from flyball_operator.jobs.status import JobFacts
from flyball_operator.jobs.status.updates import PaceSource, StatusUpdates
from flyball_operator.power.node_info import NodeInfo, PodLimit, pod_limits

logger = get_logger(__name__)

# Statuses under way beyond which none is begun: a few are written at a time, and to make thousands would hold up a cut.
STATUSES_AT_ONCE = 256
# And beyond which none is begun for its figures alone: what happens must not queue up behind them.
ROUTINE_AT_ONCE = 32


class JobStatuses:
    """The statuses of all jobs during one leader's term; by `models` is what users are told that time costs."""

    def __init__(self, status_interval_seconds: float, models: PaceSource, *, observe: bool) -> None:
        self._observe = observe
        self._updates = StatusUpdates(status_interval_seconds, models)
        self._ranges: GpuRanges | None = None

    def due(
        self,
        jobs: Iterable[LiveJob],
        records: Mapping[str, JobRecord],
        decisions: Mapping[str, JobDecision],
        queue: JobQueue,
        nodes: Mapping[str, NodeInfo],
        writes: Collection[str],
        *,
        epoch: int,
        now: datetime,
        monotonic: float,
    ) -> tuple[list[tuple[LiveJob, EnergyAwareJobStatus]], frozenset[str]]:
        """The statuses to write now, and the uids of the jobs of which only figures have moved.

        None is of a job in `writes`, whose last one is still being written.
        """
        limits = pod_limits(nodes.values())
        ranges = gpu_ranges(nodes.values())
        self._ranges = self._ranges if ranges == self._ranges else ranges
        about_jobs = []
        for job in jobs:
            uid = job.view.uid
            record, decision = records[uid], decisions.get(uid)
            if uid in writes or self._still_idle(job, record, decision, queue, now, monotonic):
                continue
            try:
                facts = self._facts(job, record, decision, queue, limits, epoch, now, monotonic)
            except Exception:
                logger.exception("job status not written", job=job.view.key)
                continue
            if facts is not None:
                about_jobs.append((job, record, facts))
        return self._in_turn(about_jobs, nodes, len(writes), monotonic)

    def _in_turn(
        self,
        jobs: Sequence[tuple[LiveJob, JobRecord, JobFacts]],
        nodes: Mapping[str, NodeInfo],
        under_way: int,
        monotonic: float,
    ) -> tuple[list[tuple[LiveJob, EnergyAwareJobStatus]], frozenset[str]]:
        """The statuses to write now: those in which something has happened, and then figures, who was looked at longest ago
        first, as far as there is room beside those `under_way`; those with nothing new in them are left out. Of which jobs
        they are figures alone."""
        found: list[tuple[LiveJob, EnergyAwareJobStatus]] = []

        def make(job: LiveJob, record: JobRecord, facts: JobFacts) -> bool:
            try:
                status = self._updates.made(job.view, facts, record.status, nodes, monotonic)
            except Exception:
                logger.exception("job status not written", job=job.view.key)
                return False
            if status is not None:
                found.append((job, status))
            return status is not None

        happened, figures = [], []
        for job, record, facts in jobs:
            history, position = record.status, None if facts.queue is None else facts.queue.position
            if self._updates.urgent(job.view, facts, history):
                happened.append((history.looked_at, job, record, facts))
                record.idle = None
            elif self._updates.due(job.view, position, facts.now, history, monotonic):
                figures.append((history.looked_at, job, record, facts))
        for waiting, most in ((happened, STATUSES_AT_ONCE), (figures, ROUTINE_AT_ONCE)):
            waiting.sort(key=itemgetter(0))
            for _, job, record, facts in waiting:
                if under_way >= most:
                    break
                under_way += make(job, record, facts)
        return found, frozenset(job.view.uid for _, job, _, _ in figures)

    def _still_idle(
        self,
        job: LiveJob,
        record: JobRecord,
        decision: JobDecision | None,
        queue: JobQueue,
        now: datetime,
        monotonic: float,
    ) -> bool:
        """Whether a job did nothing but wait when its status was last made, all of that is the same, and no figure is due.

        Nothing has to be worked out for such a job: there may be ten thousand.
        """
        view, attempts = job.view, record.attempts
        if job.step.phase != Phase.WAITING or job.pods or attempts.pause is not None:
            record.idle = None
            return False
        objects = (view, decision, self._ranges)  # compared by identity, for to compare them whole costs as much
        values = (
            job.memory.refusal,
            job.memory.run,
            job.memory.given_back,
            attempts.failures,
            attempts.starts_in_a_row,
            attempts.highest_incarnation,
            record.last_resize,
        )
        before, record.idle = record.idle, (objects, values)
        same = before is not None and before[1] == values and all(map(is_, before[0], objects))
        return same and not self._updates.due(view, queue.position_of(view.uid), now, record.status, monotonic)

    def _facts(
        self,
        job: LiveJob,
        record: JobRecord,
        decision: JobDecision | None,
        queue: JobQueue,
        limits: Mapping[tuple[str, str], PodLimit],
        epoch: int,
        now: datetime,
        monotonic: float,
    ) -> JobFacts | None:
        """What the job's status is made from; None before a new leader's first plan, which knows less than the status."""
        view, memory, attempts = job.view, job.memory, record.attempts
        outcome, message = outcome_of(job, attempts)
        wants = wants_gpus(view, memory.progress, memory.refusal) and not attempts.gives_back
        seen = view.status.observed_generation == view.generation
        if wants and decision is None and not outcome and seen:
            return None
        if decision is not None:
            decision, _ = still_preempted(record.preempted, decision)
        nothing = PodLimit()
        pods = [
            limits.get((pod.namespace, pod.name), nothing) for pod in job.pods if not pod.finished and not pod.deleting
        ]
        return JobFacts(
            progress=memory.progress,
            step=job.step,
            decision=decision if wants else None,
            epoch=epoch,
            granted=job.step.phase == Phase.RUNNING and all(pod.acknowledged for pod in pods),
            # Where no further restart is allowed the last failure was followed by none.
            restarts=min(attempts.failures, view.spec.failure_policy.max_restarts) if outcome else attempts.failures,
            now=now,
            last_failed=attempts.counted_incarnation,
            failures=attempts.shown,
            start_attempts=attempts.starts_in_a_row,
            highest_incarnation=attempts.highest_incarnation,
            back_off=None if outcome else attempts.back_off(),
            gives_back=attempts.gives_back,
            bounds_beyond=bounds_beyond(view, self._ranges),
            obstacle=None if outcome else attempts.obstacle(monotonic),
            applied_milliwatts=max((pod.highest_milliwatts for pod in pods), default=0),
            outcome=outcome,
            outcome_message=message,
            refusal=memory.refusal,
            last_resize=record.last_resize,
            observing=self._observe,
            run=memory.run,
            queue=queue.place_of(view.uid) if wants and decision is not None and decision.allocation is None else None,
        )
