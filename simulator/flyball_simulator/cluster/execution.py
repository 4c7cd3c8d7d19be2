"""What happens to a job between two decisions: it boots, restarts, is measured, runs, ends."""

from __future__ import annotations

import math
from collections import deque

from flyball_planner.models.gpu import GpuModel
from flyball_planner.policies.view import Choice, Policy

from flyball_simulator.cluster.agenda import Agenda, Event
from flyball_simulator.cluster.meter import Meter
from flyball_simulator.cluster.runs import Phase, Run, restart_seconds
from flyball_simulator.knowledge import Predictor, Sizes
from flyball_simulator.settings import SimulationSettings

MEASURE_SECONDS = 240.0  # PowerFlow section 5.2: four minutes through all clocks
OBSERVE_SECONDS = 60.0  # what a policy that does not run through the clocks has learnt from after a start


Kind = tuple[str, int]  # model class and global batch size: runs of one program


class Execution:
    """Moves jobs from phase to phase, reports to the meter what they draw, and schedules what comes next.

    A job has its cells before `start` and gives them up after `leave`; which ones is the engine's affair.
    """

    def __init__(
        self,
        settings: SimulationSettings,
        policy: Policy,
        gpu: GpuModel,
        predictor: Predictor,
        meter: Meter,
        agenda: Agenda,
    ) -> None:
        self._settings = settings
        self._traits = policy.traits
        self._idle_watts = gpu.idle_power_watts
        self._predictor = predictor
        self._meter = meter
        self._agenda = agenda
        self._measures = predictor.learns and policy.traits.measures and settings.measure_clocks
        self._measuring: dict[int, tuple[Kind, int]] = {}  # by the job's index
        self._to_measure: deque[Run] = deque()
        self._seen: dict[Kind, Sizes] = {}  # the sizes at which a kind was measured
        self.restarts = 0
        self.profiling_joules = 0.0

    def limit_watts(self, run: Run, choice: Choice) -> float:
        """What the power limits of a job's GPUs allow together under this choice; infinite where none are set."""
        if self._meter.cap_watts is None or not self._traits.holds_limits:
            return math.inf
        known = run.view.performance
        predicted = known.watts_rows[known.position[choice.gpus]][choice.clock_index]
        return predicted * (1.0 + self._settings.guard_fraction)

    def start(self, run: Run, choice: Choice, ready_at: float, now: float) -> None:
        """The job begins at a new size or on new nodes, which are up at `ready_at`."""
        self.leave(run)
        limit = self.limit_watts(run, choice)
        delay = max(0.0, ready_at - now)
        if run.ran:
            resumes = run.last_gpus == choice.gpus and self._traits.suspend_seconds is not None
            delay += (self._traits.suspend_seconds or 0.0) if resumes else self._restart_seconds(choice.gpus)
            self.restarts += 1
        run.save()  # what is stopped in order loses nothing
        run.gpus = run.last_gpus = choice.gpus
        run.limit_watts = limit
        run.view.gpus = choice.gpus
        run.view.clock_index = choice.clock_index
        run.view.since_seconds = now
        run.view.restart_seconds = self._restart_seconds(choice.gpus)
        self._meter.change(run.gpus, 0.0)
        if delay > 0:
            self._set_motion(run, Phase.STARTING, 0.0, run.gpus * self._idle_watts)
            self._agenda.schedule(now + delay, Event.PHASE_END, run.index, run.version)
        else:
            self._go(run, now)

    def stop(self, run: Run, now: float) -> None:
        """The job waits from now on."""
        self.leave(run)
        run.move(Phase.WAITING, 0.0, 0.0)
        run.view.gpus = 0
        run.view.since_seconds = now

    def end(self, run: Run, now: float) -> None:
        """The job has done its last iteration."""
        self.leave(run)
        run.move(Phase.DONE, 0.0, 0.0)
        run.view.gpus = 0
        run.completed_seconds = now - run.job.submit_seconds

    def leave(self, run: Run) -> None:
        """The job's GPUs and watts are no longer its own."""
        if run.phase is Phase.MEASURING:
            self._stop_measuring(run)
        self._meter.change(-run.gpus, -run.watts)
        run.watts = 0.0
        run.gpus = 0

    def change_clock(self, run: Run, choice: Choice, now: float) -> None:
        """The job goes on where it is, at another clock or limit."""
        limit = self.limit_watts(run, choice)
        if run.view.clock_index == choice.clock_index and run.limit_watts == limit:
            return
        run.view.clock_index = choice.clock_index
        run.limit_watts = limit
        if run.phase is Phase.MEASURING and run.watts > limit:  # there is no room for the measurement any more
            self._stop_measuring(run)
            self._run(run, now)
        elif run.phase is Phase.RUNNING:
            self._run(run, now)

    def end_phase(self, run: Run, now: float) -> bool:
        """The job's phase has ended: started, or measured; whether something was learnt."""
        run.advance(now)
        if run.phase is Phase.STARTING:
            self._go(run, now)
            return False
        self._stop_measuring(run)
        self.learn(run, now)
        self._run(run, now)
        while self._to_measure and len(self._measuring) < self._settings.max_measured:
            other = self._to_measure.popleft()
            if other.phase is Phase.RUNNING and self._is_new(other):
                other.advance(now)
                self._go(other, now)
        return True

    def learn(self, run: Run, now: float) -> None:
        """The job's present size has been seen: its model, and that of every job like it, is fitted anew."""
        run.advance(now)
        run.measured |= {run.gpus}
        kind = _kind(run)
        self._seen[kind] = self._seen.get(kind, frozenset()) | {run.gpus}

    def update_view(self, run: Run) -> None:
        """Give the job the tables that are known of its kind by now."""
        kind = _kind(run)
        run.view.performance = self._predictor.predict(*kind, run.truth, self._seen.get(kind, frozenset()))

    def _restart_seconds(self, gpus: int) -> float:
        return self._settings.restart_scale * restart_seconds(gpus)

    def _set_motion(self, run: Run, phase: Phase, iterations_per_second: float, watts: float) -> None:
        self._meter.change(0, watts - run.watts)
        run.move(phase, iterations_per_second, watts)

    def _is_new(self, run: Run) -> bool:
        """Whether this size is to be measured at every clock: no job of this kind was, or is being, measured at it."""
        if self._settings.measure_every_job:
            return run.gpus not in run.measured
        kind = _kind(run)
        return run.gpus not in self._seen.get(kind, frozenset()) and (kind, run.gpus) not in self._measuring.values()

    def _go(self, run: Run, now: float) -> None:
        """Make progress: through the clocks where this size is new and there is somebody to learn, else at its clock."""
        run.ran = True
        if self._measures and self._is_new(run):
            if len(self._measuring) < self._settings.max_measured:
                self._measuring[run.index] = _kind(run), run.gpus
                self._set_motion(run, Phase.MEASURING, *run.speed_through_clocks())
                run.measuring_since = now
                self._agenda.schedule(now + MEASURE_SECONDS, Event.PHASE_END, run.index, run.version)
                self._schedule_completion(run, now)
                return
            self._to_measure.append(run)
        self._run(run, now)

    def _run(self, run: Run, now: float) -> None:
        self._set_motion(run, Phase.RUNNING, *run.speed_at(run.view.clock_index))
        self._schedule_completion(run, now)
        if self._predictor.learns and not self._measures and run.gpus not in run.measured:
            self._agenda.schedule(now + OBSERVE_SECONDS, Event.LEARN, run.index, run.version)

    def _schedule_completion(self, run: Run, now: float) -> None:
        left = run.seconds_left()
        if math.isfinite(left):
            self._agenda.schedule(now + left, Event.COMPLETION, run.index, run.version)

    def _stop_measuring(self, run: Run) -> None:
        del self._measuring[run.index]
        self.profiling_joules += run.watts * (run.time - run.measuring_since)


def _kind(run: Run) -> Kind:
    return run.job.model_class, run.job.global_batch_size
