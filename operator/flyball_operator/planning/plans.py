"""The plan in force during one leader term, and the next one, which another process makes meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Protocol

from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.values.units import allowed_watts
from flyball_kube.process.logs import get_logger
from flyball_planner.snapshot import ClusterSnapshot, JobDecision, Plan, PlanningFailure

from flyball_operator.jobs.runs.queue import NO_QUEUE, JobQueue
from flyball_operator.planning.worker import PlanFailed
from flyball_operator.power.cycle import PlanInForce

logger = get_logger(__name__)


# Jobs that come by the thousand make a new plan due at all times, and one of ten thousand takes a core for seconds: after
# one that took longer than the first of these, as much longer is left to writing what was decided, at most the second.
QUICK_SECONDS, LONGEST_REST_SECONDS = 0.5, 2.0


class Planner(Protocol):
    """What makes plans."""

    async def plan(self, snapshot: ClusterSnapshot, policy: str) -> Plan: ...


class SnapshotMaker(Protocol):
    """What gives the planner's input."""

    def __call__(self, *, timeless: bool) -> ClusterSnapshot: ...


class PlanMetrics(Protocol):
    """Where the time and the failures of plans are counted."""

    def observe_plan(self, seconds: float) -> None: ...

    def count_plan_failure(self) -> None: ...


class Plans:
    """Makes one plan at a time, where what plans depend on has changed or at the latest after `replan_seconds`.

    `wake` is called when a plan has become ready; `take` then puts it in force.
    """

    def __init__(
        self,
        planner: Planner,
        policy: str,
        replan_seconds: float,
        epoch: int,
        wake: Callable[[], None],
        metrics: PlanMetrics,
    ) -> None:
        self._planner = planner
        self._policy = policy
        self._replan_seconds = replan_seconds
        self._epoch = epoch
        self._wake = wake
        self._metrics = metrics
        self._decisions: dict[str, JobDecision] = {}
        self._infeasible: frozenset[str] = frozenset()
        self._queue = NO_QUEUE
        self._next: asyncio.Task[Plan] | None = None
        self._next_key: ClusterSnapshot | None = None
        self._next_since = 0.0
        self._next_moment: datetime | None = None
        self._taken_key: ClusterSnapshot | None = None
        self._taken_at = self._rests_until = float("-inf")
        self._any_taken = False
        self._failures: tuple[PlanningFailure, ...] = ()

    @property
    def in_force(self) -> PlanInForce:
        return PlanInForce(self._decisions, self._infeasible, self._next is not None, made=self._any_taken)

    @property
    def queue(self) -> JobQueue:
        """The places of the jobs that wait under the plan in force."""
        return self._queue

    def start(self, snapshot: SnapshotMaker, now: datetime, monotonic: float) -> None:
        """Begin the next plan if one is due and none is being made.

        `snapshot` gives the planner's input, a timeless one without what changes by the second: as long as that is the
        same, no plan is due before the next regular one.
        """
        if self._next is not None or monotonic < self._rests_until:
            return
        key = snapshot(timeless=True)
        if key == self._taken_key and monotonic - self._taken_at < self._replan_seconds:
            return
        self._next_key = key
        self._next_since = monotonic
        self._next_moment = now
        self._next = asyncio.create_task(self._planner.plan(snapshot(timeless=False), self._policy))
        self._next.add_done_callback(lambda task: self._wake())

    def take(self, jobs: Mapping[str, EnergyAwareJob], monotonic: float) -> None:
        """Put a plan that has become ready in force, for the jobs that still exist; a failed one leaves the old plan."""
        if self._next is None or not self._next.done():
            return
        task, self._next = self._next, None
        self._taken_at = monotonic
        self._taken_key = self._next_key
        try:
            plan = task.result()
        except PlanFailed as error:
            self._metrics.count_plan_failure()
            logger.error("no new plan", error=str(error))
            return
        nodes = 0 if self._taken_key is None else len(self._taken_key.nodes)
        seconds = round(monotonic - self._next_since, 3)
        self._rests_until = monotonic + min(LONGEST_REST_SECONDS, max(0.0, seconds - QUICK_SECONDS))
        self._metrics.observe_plan(seconds)
        self._tell_failures(plan.failures, jobs)
        before = self._decisions
        # What has not changed stays the same object: by that others know that nothing follows anew.
        self._decisions = {
            decision.uid: old if (old := before.get(decision.uid)) == decision and old is not None else decision
            for decision in plan.decisions
            if decision.uid in jobs
        }
        if self._next_moment is not None:
            self._queue = JobQueue.of(plan.queue, self._next_moment)
        self._infeasible = frozenset(outcome.name for outcome in plan.caps if not outcome.feasible)
        if not self._any_taken:
            self._any_taken = True
            logger.info(
                "first plan",
                epoch=self._epoch,
                jobs=len(plan.decisions),
                nodes=nodes,
                seconds=round(seconds, 3),
            )
        waiting: Counter[str] = Counter()
        for uid, decision in self._decisions.items():
            old = before.get(uid)
            if old is decision:
                continue
            if decision.allocation is not None or (old is not None and old.allocation is not None):
                if old is None or (old.allocation, old.admission) != (decision.allocation, decision.admission):
                    self._log(jobs[uid], decision)
            elif old is None or old.admission != decision.admission:
                waiting[str(decision.admission)] += 1
        if waiting:  # a line for each of ten thousand would hold up the cycle
            logger.info("jobs wait", epoch=self._epoch, **waiting)

    def next_seconds(self, monotonic: float) -> float:
        """In how many seconds the next plan may begin; infinite where it may now."""
        return self._rests_until - monotonic if monotonic < self._rests_until else float("inf")

    def cancel(self) -> None:
        """Give up the plan that is being made."""
        if self._next is not None:
            self._next.cancel()

    def _tell_failures(self, failures: tuple[PlanningFailure, ...], jobs: Mapping[str, EnergyAwareJob]) -> None:
        """Count a plan that had to be made around jobs as one that failed; name them where they are others."""
        if failures:
            self._metrics.count_plan_failure()
        if failures != self._failures:
            for failure in failures:
                job = jobs.get(failure.uid)
                logger.error("planning fails with a job", job="" if job is None else job.key, error=failure.error)
        self._failures = failures

    def _log(self, job: EnergyAwareJob, decision: JobDecision) -> None:
        allocation = decision.allocation
        logger.info(
            "plan",
            job=job.key,
            epoch=self._epoch,
            gpus=0 if allocation is None else allocation.gpus,
            nodes=[] if allocation is None else [name for name, _ in allocation.nodes],
            clock_megahertz=None if allocation is None else allocation.clock_megahertz,
            power_limit_watts=None if allocation is None else allowed_watts(allocation.power_limit_watts),
            reason=str(decision.admission),
            why=decision.explanation,
        )
