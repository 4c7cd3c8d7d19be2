"""Which jobs' statuses to write in a cycle, and what they are made from.

What happens to a job is told at once, a new clock once it has settled, figures every so often, and nothing is worked out
for a job that goes on waiting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from flyball_api.energy_aware_job import EnergyAwareJobStatus
from flyball_api.values.units import MilliwattsPerGpu, of_nodes
from flyball_kube.process.logs import get_logger

from flyball_operator.jobs.feasibility.bounds import GpuRanges, bounds_beyond, gpu_ranges
from flyball_operator.jobs.preemption import still_preempted
from flyball_operator.jobs.runs.lifecycle import JobPhase
from flyball_operator.jobs.runs.memory import wants_gpus
from flyball_operator.jobs.status import JobFacts
from flyball_operator.jobs.status.updates import PaceSource, StatusUpdates
from flyball_operator.jobs.status_lanes import FEWEST_WAITING_AT_ONCE, Lane, Lanes
from flyball_operator.jobs.steps.outcomes import outcome_of
from flyball_operator.jobs.steps.record import Idle, JobRecord
from flyball_operator.jobs.steps.step import JobsCycle, LiveJob
from flyball_operator.power.nodes.info import NodeInfo
from flyball_operator.power.nodes.pod_gpus import PodsGpus

logger = get_logger(__name__)

# A new job is nearly always planned within this time, and its template looked at: that they will be is worth no write.
PLANNING_SECONDS = 2.0


class JobStatuses:
    """The statuses of all jobs during one leader's term; `models` give what users see of the cost of time.

    In `next_seconds` one will be due by time alone.
    """

    def __init__(self, status_interval_seconds: float, models: PaceSource, *, observe: bool) -> None:
        self._observe = observe
        self._updates = StatusUpdates(status_interval_seconds, models)
        self._ranges: GpuRanges | None = None
        self._gpus = PodsGpus()
        self._lanes = Lanes()
        self.next_seconds = float("inf")

    def step(
        self,
        jobs: Iterable[LiveJob],
        records: Mapping[str, JobRecord],
        cycle: JobsCycle,
    ) -> tuple[list[tuple[LiveJob, EnergyAwareJobStatus]], Mapping[str, Lane]]:
        """The statuses to write now, and what for, by the job's uid."""
        rooms = self._lanes.step(cycle.status_writes, figures_wait=cycle.figures_wait)
        self._gpus.observe(cycle.nodes)
        ranges = gpu_ranges(cycle.nodes.values())
        self._ranges = self._ranges if ranges == self._ranges else ranges
        about_jobs = []
        # Half of those that have news may have none that is worth a write.
        most = 2 * max(FEWEST_WAITING_AT_ONCE, rooms[Lane.WAITING])
        for job in self._take_jobs_to_look_at(jobs, records, cycle, most):
            record = records[job.view.uid]
            try:
                facts = self._make_facts(job, record, cycle)
            except Exception:
                logger.exception("job status not written", job=job.view.key)
                continue
            if facts is not None:
                about_jobs.append((job, record, facts))
        return self._in_turn(about_jobs, cycle.nodes, rooms, cycle.monotonic)

    def _take_jobs_to_look_at(
        self,
        jobs: Iterable[LiveJob],
        records: Mapping[str, JobRecord],
        cycle: JobsCycle,
        most_waiting: int,
    ) -> list[LiveJob]:
        """The jobs of whose statuses something may be new.

        Of those that wait no more than `most_waiting`, who was looked at longest ago first: after ten thousand have come,
        all the others would be worked out in vain.
        """
        found: list[LiveJob] = []
        waiting: list[LiveJob] = []
        for job in jobs:
            uid = job.view.uid
            record = records[uid]
            if uid in cycle.status_writes or self._note_idle(job, record, cycle):
                continue
            (found if record.idle is None else waiting).append(job)
        if len(waiting) > most_waiting:
            waiting.sort(key=lambda job: (job.view.uid not in cycle.decisions, records[job.view.uid].status.looked_at))
            for job in waiting[most_waiting:]:
                records[job.view.uid].idle = None  # it has not been looked at
        return found + waiting[:most_waiting]

    def _in_turn(
        self,
        jobs: Sequence[tuple[LiveJob, JobRecord, JobFacts]],
        nodes: Mapping[str, NodeInfo],
        rooms: Mapping[Lane, int],
        monotonic: float,
    ) -> tuple[list[tuple[LiveJob, EnergyAwareJobStatus]], Mapping[str, Lane]]:
        """The statuses to write now, in each lane who was looked at longest ago first, as far as there is room; those with
        nothing new in them are left out."""
        waiting: dict[Lane, list[tuple[float, LiveJob, JobRecord, JobFacts]]] = {lane: [] for lane in Lane}
        self.next_seconds = float("inf")
        for job, record, facts in jobs:
            history, position = record.status, None if facts.queue is None else facts.queue.position
            if self._updates.urgent(job.view, facts, history):
                waiting[_lane(facts)].append((history.looked_at, job, record, facts))
                record.idle = None
            elif self._updates.note_power(facts, history, monotonic):
                waiting[Lane.POWER].append((history.looked_at, job, record, facts))
            elif self._updates.due(job.view, position, facts.now, history, monotonic) and self._updates.has_news(
                facts, history, monotonic
            ):
                waiting[Lane.FIGURES].append((history.looked_at, job, record, facts))
            else:
                self.next_seconds = min(self.next_seconds, self._updates.seconds_to_power(history, monotonic))
        found: list[tuple[LiveJob, EnergyAwareJobStatus]] = []
        lane_of: dict[str, Lane] = {}
        room_for_all = rooms[Lane.NEWS]
        for lane, room in rooms.items():
            begun, most = 0, room if lane is Lane.WAITING else min(room, room_for_all)
            for _, job, record, facts in sorted(waiting[lane], key=itemgetter(0)):
                if begun >= most:
                    break
                status = self._make(job, record, facts, nodes, monotonic)
                if status is not None:
                    found.append((job, status))
                    lane_of[job.view.uid] = lane
                    begun += 1
            room_for_all -= 0 if lane is Lane.WAITING else begun
        self._lanes.begun(lane_of)
        return found, lane_of

    def _make(
        self, job: LiveJob, record: JobRecord, facts: JobFacts, nodes: Mapping[str, NodeInfo], monotonic: float
    ) -> EnergyAwareJobStatus | None:
        """The job's status; None where nothing in it is new."""
        try:
            return self._updates.make(job.view, facts, record.status, nodes, monotonic)
        except Exception:
            logger.exception("job status not written", job=job.view.key)
            return None

    def _note_idle(
        self,
        job: LiveJob,
        record: JobRecord,
        cycle: JobsCycle,
    ) -> bool:
        """Whether a job did nothing but wait when its status was last made, all of that is the same, and no figure is due.

        Nothing has to be worked out for such a job: there may be ten thousand.
        """
        view, attempts = job.view, record.attempts
        if job.step.phase != JobPhase.WAITING or job.pods or attempts.pause is not None:
            record.idle = None
            return False
        before, decision = record.idle, cycle.decisions.get(view.uid)
        # Compared by identity, for to compare them whole costs as much. Of what was worked out once nothing is other.
        same = before is not None and before.decision is decision and before.ranges is self._ranges
        if before is None or before.live is not job or not same:
            values = (
                job.memory.refusal,
                job.memory.run,
                job.memory.given_back,
                attempts.failures,
                attempts.starts_in_a_row,
                attempts.highest_incarnation,
                record.last_resize,
            )
            same = same and before is not None and before.live.view is view and before.values == values
            record.idle = Idle(job, decision, self._ranges, values)
        position = cycle.queue.position_of(view.uid)
        return same and not self._updates.due(view, position, cycle.now, record.status, cycle.monotonic)

    def _make_facts(
        self,
        job: LiveJob,
        record: JobRecord,
        cycle: JobsCycle,
    ) -> JobFacts | None:
        """What the job's status is made from.

        None before a new leader's first plan, which knows less than the status; and of a new job while its first one may
        be near, or the API server's word on its template: a job that was said to be admitted is not to be refused then.
        """
        view, memory, attempts = job.view, job.memory, record.attempts
        decision = cycle.decisions.get(view.uid)
        outcome, message = outcome_of(job, attempts)
        wants = wants_gpus(view, memory.progress, memory.refusal) and not attempts.gives_back
        seen = view.status.observed_generation == view.generation
        new = cycle.monotonic - record.known_since < PLANNING_SECONDS
        if wants and decision is None and not outcome and (seen or new):
            return None
        given = decision is not None and decision.allocation is not None and job.step.current is None
        if wants and given and new and not self._observe and record.template_is_unanswered(view):
            record.idle = None  # the answer is none of what makes a job that waits be looked at anew
            return None
        if decision is not None:
            decision, _ = still_preempted(record.preempted, decision)
        holding = [pod for pod in job.pods if pod.node and not pod.finished]
        pods = [self._gpus.of(pod) for pod in holding if not pod.deleting]
        drawn = [self._gpus.of(pod).drawn_milliwatts for pod in holding]
        waits = wants and decision is not None and decision.allocation is None
        return JobFacts(
            progress=memory.progress,
            step=job.step,
            decision=decision if wants else None,
            epoch=cycle.epoch,
            granted=job.step.bound and all(pod.acknowledged for pod in pods),
            # Where no further restart is allowed the last failure was followed by none.
            restarts=min(attempts.failures, view.spec.failure_policy.max_restarts) if outcome else attempts.failures,
            now=cycle.now,
            last_failed=attempts.counted_incarnation,
            failures=attempts.shown,
            start_attempts=attempts.starts_in_a_row,
            highest_incarnation=attempts.highest_incarnation,
            back_off=None if outcome else attempts.back_off(),
            gives_back=attempts.gives_back,
            bounds_beyond=bounds_beyond(view, self._ranges),
            obstacle=None if outcome else attempts.obstacle(cycle.monotonic),
            applied_milliwatts=max((pod.highest_milliwatts for pod in pods), default=MilliwattsPerGpu(0)),
            drawn_milliwatts=None if None in drawn else of_nodes(each for each in drawn if each is not None),
            outcome=outcome,
            outcome_message=message,
            unplanned=wants and decision is None and not outcome,
            refusal=memory.refusal,
            last_resize=record.last_resize,
            observing=self._observe,
            run=memory.run,
            measured_plan=record.measured_plan,
            queue=cycle.queue.place_of(view.uid) if waits else None,
        )


def _lane(facts: JobFacts) -> Lane:
    """In which turn the status of a job is written to which something has happened."""
    if facts.unplanned:
        # Where thousands come at once, most are planned before it is their turn to be told that they will be.
        return Lane.FIGURES
    placed = facts.decision is not None and facts.decision.allocation is not None
    idle = facts.step.phase == JobPhase.WAITING and not placed and not facts.outcome
    return Lane.WAITING if idle else Lane.NEWS
