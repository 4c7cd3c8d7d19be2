"""How the starts of one job have gone: its failures, the pauses that follow from them, and what the API server refuses.

Failures, pauses and counts are in the job's status as well, so that the next operator goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from flyball_api.energy_aware_job import BackOff, EnergyAwareJob, IncarnationFailure
from flyball_api.values.times import whole_second
from flyball_api.workloads import IncarnationView, PodView

from flyball_operator.cluster.outcome import Outcome, WriteResult
from flyball_operator.jobs.runs.endings import Ending, Evidence, gathered
from flyball_operator.jobs.runs.lifecycle import Action, CreateIncarnation, JobPhase, JobStep
from flyball_operator.jobs.starts.obstacles import NO_NODES, NodeLoss, StartObstacle, refused_action, start_obstacle
from flyball_operator.jobs.starts.pauses import (
    DISRUPTED,
    FAILED,
    GIVES_BACK_AFTER_SECONDS,
    LONGEST_OF_FIRST,
    NOT_OF_A_FAILURE,
    NOT_STARTED,
    POWER_PAUSED,
    Pause,
    doubled_seconds,
    pause_seconds,
)

FAILURES_SHOWN = 5
# The scheduler's cache may be a moment behind the pods that have left: what passes at once is not worth a word.
OBSTACLE_SECONDS = 1.0
# Pauses between attempts at a write that is refused, and at one that got no answer.
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, LONGEST_UNANSWERED_SECONDS = 0.5, 64.0, 8.0
MAX_WORDS = 1000


@dataclass(frozen=True, slots=True)
class RestartRules:
    """The operator's settings for starts: the first pause after one that failed, and the time that one may take."""

    first_pause_seconds: float = 10.0
    startup_timeout_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class RefusedWrite:
    """A write that has not taken effect so many times in a row; the next attempt is at `next_at` (monotonic seconds)."""

    repeats: int
    next_at: float
    obstacle: StartObstacle | None


@dataclass(slots=True)
class Attempts:
    """What one operator knows of a job's starts.

    `failures` counts those that count; `highest_incarnation` is the highest number ever seen or given.
    """

    rules: RestartRules
    failures: int = 0
    counted_incarnation: int = 0
    judged_incarnation: int = 0
    highest_incarnation: int = 0
    shown: tuple[IncarnationFailure, ...] = ()
    ends_in_a_row: int = 0
    starts_in_a_row: int = 0
    pause: Pause | None = None
    evidence: Evidence = field(default_factory=Evidence)
    _ran_incarnation: int = 0
    _ran_since: float = 0.0
    _starting_seconds: float = 0.0
    _refused: dict[type[Action], RefusedWrite] = field(default_factory=dict)
    _tried_generation: int = 0
    _obstacle: StartObstacle | None = None
    _obstacle_since: float = 0.0

    @staticmethod
    def of(job: EnergyAwareJob, rules: RestartRules, now: datetime, monotonic: float) -> Attempts:
        """What the operator before this one knew of a job's starts, by its status."""
        status = job.status
        counted, shown = status.last_failed_incarnation or 0, status.failures or ()
        made = Attempts(
            rules,
            failures=status.restarts or 0,
            counted_incarnation=counted,
            judged_incarnation=max([counted, *(item.incarnation for item in shown)]),
            shown=shown,
            starts_in_a_row=status.start_attempts or 0,
            _tried_generation=status.observed_generation or 0,
        )
        back_off = status.back_off
        if back_off is not None:
            made.ends_in_a_row = 0 if back_off.reason in NOT_OF_A_FAILURE else back_off.repeats
            # A clock that was ahead then must not keep the job from starting until the calendar has come there.
            longest = rules.first_pause_seconds * LONGEST_OF_FIRST
            if back_off.reason == POWER_PAUSED:
                longest = job.spec.elasticity.min_seconds_between_resizes
            until = min(back_off.until, whole_second(now + timedelta(seconds=longest)))
            left = (until - now).total_seconds()
            gives_back = back_off.reason in NOT_OF_A_FAILURE or left > GIVES_BACK_AFTER_SECONDS
            made.pause = Pause(monotonic + left, until, back_off.reason, back_off.message, back_off.repeats, gives_back)
        return made

    # --- what has happened -------------------------------------------------------------------------------------------

    def take_in(
        self, job: EnergyAwareJob, incarnations: Sequence[IncarnationView], pods: Sequence[PodView], monotonic: float
    ) -> None:
        """Raise the highest incarnation seen to what status, batch Jobs and pods show, and drop pauses that are over."""
        numbers = [
            job.last_incarnation,
            *(item.incarnation for item in incarnations),
            *(pod.incarnation for pod in pods),
        ]
        self.highest_incarnation = max(self.highest_incarnation, *numbers)
        live = [item for item in incarnations if not item.deleting]
        if live:
            newest = max(live, key=lambda item: item.incarnation)
            own = [pod for pod in pods if pod.incarnation == newest.incarnation]
            self.evidence = gathered(self.evidence, newest, own)
        if self.pause is not None and self.pause.over(monotonic):
            self.pause = None
        if job.generation != self._tried_generation:  # what was refused, or could not start, may be mended
            self._refused.clear()
            if self.pause is not None and self.pause.reason in NOT_OF_A_FAILURE:
                self.pause = None
            self._tried_generation = job.generation

    def given(self, incarnation: int) -> None:
        """An incarnation of this number was made, whether or not anything of it is ever seen."""
        self.highest_incarnation = max(self.highest_incarnation, incarnation)

    def follow(
        self,
        job: EnergyAwareJob,
        step: JobStep,
        pods: Sequence[PodView],
        pods_refused: str,
        lost_nodes: Mapping[str, NodeLoss] = NO_NODES,
        *,
        wanted: bool,
        elapsed_seconds: float,
        now: datetime,
        monotonic: float,
    ) -> None:
        """Take in the step that was decided on: an end is judged once, a start that takes too long is given up.

        `lost_nodes` are nodes from whose kubelets nobody hears. `wanted`: the plan gives the job GPUs. `elapsed_seconds` is
        the time since the last call.
        """
        if step.phase == JobPhase.FAILED and step.current is not None and step.ending is not None:
            self._judge(job, step.current, step.ending, now, monotonic)
        if step.phase == JobPhase.RUNNING and step.current is not None:
            self._runs(job, step.current.incarnation, monotonic)
        seen = start_obstacle(step, pods, pods_refused, lost_nodes)
        if seen is None or self._obstacle is None or seen.reason != self._obstacle.reason:
            self._obstacle_since = monotonic
        self._obstacle = seen
        if not wanted:
            self._refused.pop(CreateIncarnation, None)
        if not wanted or step.phase in (JobPhase.STOPPING, JobPhase.WAITING, JobPhase.FAILED, JobPhase.COMPLETE):
            self._starting_seconds = 0.0
        elif self._is_starting(step):
            self._starting_seconds += elapsed_seconds
            if self._starting_seconds >= self.startup_timeout_seconds(job):
                self._give_up_start(job, now, monotonic)

    def _is_starting(self, step: JobStep) -> bool:
        """Whether the time counts against the start: not while its gates wait for watts, nor once all ranks have run."""
        if step.current is not None and step.current.incarnation == self._ran_incarnation:
            return False
        held = step.phase == JobPhase.GATED and bool(self._refused)
        return held or step.phase in (JobPhase.CREATING, JobPhase.STARTING)

    def startup_timeout_seconds(self, job: EnergyAwareJob) -> float:
        return float(job.spec.startup_timeout_seconds or self.rules.startup_timeout_seconds)

    def _runs(self, job: EnergyAwareJob, incarnation: int, monotonic: float) -> None:
        if incarnation != self._ran_incarnation:
            self._ran_incarnation, self._ran_since = incarnation, monotonic
        window = job.spec.failure_policy.restarts_window_seconds
        if window is not None and monotonic - self._ran_since >= window:
            self.failures = 0
        self._starting_seconds, self.starts_in_a_row = 0.0, 0
        if monotonic - self._ran_since >= self.rules.first_pause_seconds * LONGEST_OF_FIRST:
            self.ends_in_a_row = 0

    def _judge(
        self, job: EnergyAwareJob, incarnation: IncarnationView, ending: Ending, now: datetime, monotonic: float
    ) -> None:
        number = incarnation.incarnation
        if number <= self.judged_incarnation:
            return
        self.judged_incarnation = number
        if ending.counts:
            self.counted_incarnation = number
            self.failures += 1
        pod = ending.pod
        failure = IncarnationFailure(
            incarnation=number,
            time=whole_second(now),
            counted=ending.counts,
            reason=ending.reason,
            message=ending.message,
            pod=pod.name if pod is not None else None,
            node=pod.node or None if pod is not None else None,
            exit_code=pod.exit_code if pod is not None else None,
        )
        self.shown = (failure, *self.shown)[:FAILURES_SHOWN]
        self.ends_in_a_row += 1
        # The first disruption is nobody's fault and nobody waits for it; what is disrupted at each start is.
        repeats = self.ends_in_a_row if ending.counts else self.ends_in_a_row - 1
        seconds = pause_seconds(self.rules.first_pause_seconds, repeats)
        if seconds > 0 and not self.out_of_restarts(job):
            reason = FAILED if ending.counts else DISRUPTED
            counted = f"; restart {self.failures} of {job.spec.failure_policy.max_restarts}" if ending.counts else ""
            words = f"incarnation {number}: {ending.words}{counted}"
            self._pause(seconds, reason, words, self.ends_in_a_row, now, monotonic)

    def out_of_restarts(self, job: EnergyAwareJob) -> bool:
        return self.failures > job.spec.failure_policy.max_restarts

    def _give_up_start(self, job: EnergyAwareJob, now: datetime, monotonic: float) -> None:
        why = self.obstacle(monotonic) or self._obstacle
        words = f"not running {self.startup_timeout_seconds(job):.0f} s after its start"
        words += f": {why.reason}: {why.message}" if why is not None else ""
        self.starts_in_a_row += 1
        self._starting_seconds = 0.0
        seconds = pause_seconds(self.rules.first_pause_seconds, self.starts_in_a_row)
        self._pause(seconds, NOT_STARTED, words, self.starts_in_a_row, now, monotonic)

    def paused_for_power(
        self, job: EnergyAwareJob, started: datetime | None, why: str, now: datetime, monotonic: float
    ) -> None:
        """A cap has taken the job's watts, `why` is the plan's sentence: so soon after `started` it is not started again
        before its `minSecondsBetweenResizes` are over, whatever the cap does meanwhile."""
        bound = job.spec.elasticity.min_seconds_between_resizes
        if self.pause is not None or started is None:
            return
        seconds = bound - max(0.0, (now - started).total_seconds())
        if seconds > 0:
            words = f"paused less than minSecondsBetweenResizes {bound} s after its last start: {why.rstrip('.')}"
            self._pause(seconds, POWER_PAUSED, words, 1, now, monotonic)

    def _pause(self, seconds: float, reason: str, words: str, repeats: int, now: datetime, monotonic: float) -> None:
        gives_back = reason in NOT_OF_A_FAILURE or seconds > GIVES_BACK_AFTER_SECONDS
        until = whole_second(now + timedelta(seconds=seconds))
        self.pause = Pause(monotonic + seconds, until, reason, words[:MAX_WORDS], repeats, gives_back)

    # --- what follows ------------------------------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """Nothing follows from time alone: no pause, no refusal, no obstacle, no start under way."""
        return self.pause is None and not self._refused and self._obstacle is None and not self._starting_seconds

    @property
    def gives_back(self) -> bool:
        """Others may have the job's GPUs and watts for now."""
        return self.pause is not None and self.pause.gives_back

    def obstacle(self, monotonic: float) -> StartObstacle | None:
        """What keeps the job from running now; None where nothing does that has lasted."""
        refused = next((item.obstacle for item in self._refused.values() if item.obstacle is not None), None)
        if refused is not None:
            return refused
        return self._obstacle if monotonic - self._obstacle_since >= OBSTACLE_SECONDS else None

    def holds_back(self, action: type[Action], monotonic: float) -> bool:
        """Whether an action of this kind must wait: for the end of the pause, or after it was refused."""
        if action is CreateIncarnation and self.pause is not None:
            return True
        refused = self._refused.get(action)
        return refused is not None and monotonic < refused.next_at

    def answered(self, action: type[Action], result: WriteResult, monotonic: float) -> None:
        """Take in what became of an action."""
        if result.done:
            self._refused.pop(action, None)
            return
        before = self._refused.get(action)
        repeats = 1 if before is None else before.repeats + 1
        refused = result.outcome is Outcome.REFUSED
        longest = LONGEST_RETRY_SECONDS if refused else LONGEST_UNANSWERED_SECONDS
        pause = doubled_seconds(FIRST_RETRY_SECONDS, repeats - 1, longest)
        obstacle = None if before is None else before.obstacle
        # Another was first, or it is gone already: only where that stays so is it worth a word.
        passing = (result.conflict or result.not_found) and repeats < 2
        if refused and result.message and not passing:
            obstacle = refused_action(action, result.message)
        if result.conflict and action is CreateIncarnation and repeats >= 2:
            self.highest_incarnation += 1  # somebody else's Job has the name
        self._refused[action] = RefusedWrite(repeats, monotonic + pause, obstacle)

    def next_seconds(self, job: EnergyAwareJob, monotonic: float) -> float:
        """Seconds until something follows from time alone; infinite where nothing does."""
        times = [item.next_at - monotonic for item in self._refused.values()]
        if self.pause is not None:
            times.append(self.pause.until - monotonic)
        if self._obstacle is not None:
            times.append(self._obstacle_since + OBSTACLE_SECONDS - monotonic)
        if self._starting_seconds > 0:
            times.append(self.startup_timeout_seconds(job) - self._starting_seconds)
        return min((time for time in times if time > 0), default=float("inf"))

    def back_off(self) -> BackOff | None:
        """The pause, as the status has it."""
        pause = self.pause
        return None if pause is None else BackOff(pause.until_time, pause.reason, pause.message, pause.repeats)
