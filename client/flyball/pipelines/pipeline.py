"""Pipeline parallel training by an energy plan: each computation at its own clock, slower while others are waited for.

Perseus (SOSP 2024): what is not on the critical path of an iteration runs slower without making it longer, and where a
straggler makes all replicas of the pipeline wait, the others run by the plan for an iteration of that length (4.1).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Callable

from flyball.node.clocks import ClockRequests
from flyball.pipelines.clock_changes import ClockChanges
from flyball.pipelines.measured_stage import Keep
from flyball.pipelines.plan import TOLERANCE, KernelsOf, Plan, StagePlans
from flyball.pipelines.slow_stage import SharedDegree, SlowStage
from flyball.pipelines.stage_profile import StageProfile
from flyball.shared_values import SharedValues

logger = logging.getLogger("flyball")

# Replicas whose iterations differ by less are as fast as each other.
LEAST_DEGREE = 1.03
# How often, at the most, it is looked within an iteration whether a stage of another replica has become slower, or is said
# to be.
LOOK_SECONDS = 0.25
# Of what a stage tells within an iteration, so much has to be waited for in it for the next one to go by that.
LEAST_WAITED = 0.1
_PACE, _SLOW, _POINT = "pace-", "slow", "point"


class Pipeline:
    """One stage of one replica of a pipeline. Without a plan it measures and asks for nothing, with the same interface.

    `wanted_seconds` says how long an iteration is to take that waits for nobody; by default as long as by the fastest plan.
    The first stage of the first replica asks it anew in each iteration, and tells what it has become: all change in the
    same iteration, the one after the next. `set_seconds` says how long a clock takes to be set, None where that is not
    known: where it comes too late for an iteration to be as short as it can be, and that is wanted, the stage runs at its
    plan's highest clock instead, by which no computation becomes longer than planned.

    `announced_degree` is how many times as long this replica's iterations take by what was announced of a straggler; 1: by
    nothing.

    The stage that ends an iteration last, the first one, tells the other replicas how long theirs takes by itself; all
    read that after they have waited for each other, and so change plans in the same iteration. A stage whose computations
    become slower within an iteration tells that at once, and the stages of other replicas change with their next one: what
    was done faster before makes the iteration no longer.
    """

    def __init__(
        self,
        plans: StagePlans | None,
        clock: ClockRequests | None,
        *,
        stage: int,
        replica: int = 0,
        replicas: int = 1,
        values: SharedValues | None = None,
        wanted_seconds: Callable[[], float] | None = None,
        announced_degree: Callable[[], float] = lambda: 1.0,
        profile: StageProfile | None = None,
        keep_profile: Keep | None = None,
        set_seconds: Callable[[], float | None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plans = plans
        fastest_seconds = plans.fastest_seconds if plans is not None else 0.0
        self._seconds = fastest_seconds if wanted_seconds is None else wanted_seconds()
        self._wanted_seconds = wanted_seconds if stage == 0 and replica == 0 else None
        self._announced_degree = announced_degree
        # What the first stage has told last, and from which iteration on: a new word follows when all go by that.
        self._shared_point = (0, self._seconds)
        self._clock = clock
        self._profile = profile
        self._keep_profile = keep_profile
        self._stage = stage
        self._replica = replica
        self._replicas = replicas
        self._values = values
        self._monotonic = monotonic
        self._plan: Plan | None = None if plans is None else plans.at(self._seconds)
        self._replica_degree = 1.0
        self._began: float | None = None
        self._scaled: tuple[float, float] = (
            0.0,
            0.0,
        )  # the iteration's seconds by the fastest plan, up to which moment
        self._began_computation = 0.0
        self._asked: int | None = None
        self._planned: int | None = None
        self._clock_changes = ClockChanges(set_seconds)
        self._slow_stage = SlowStage()
        self._shared_degree = SharedDegree(lambda: self._read(_SLOW), lambda value: self._share(_SLOW, value))
        self._look_at = 0.0
        self._changed = False  # the plan, within the iteration
        self._iteration = 0
        self._warned = False
        self._computation = _Computation(self)
        self._waiting = _Waiting(self)
        self.straggler_degree = 1.0

    @property
    def plan(self) -> Plan | None:
        """By which plan this iteration runs; None without one."""
        return self._plan

    @property
    def follows_computations(self) -> bool:
        """Whether each computation runs at a clock of its own; else all of the stage's run at the plan's highest."""
        return self._clock_changes.followed

    def forward(self, microbatch: int) -> _Computation:
        """Around the forward pass of one microbatch on this stage, microbatches counted from 0."""
        return self.computation("forward", microbatch)

    def backward(self, microbatch: int) -> _Computation:
        """Around the backward pass of one microbatch on this stage."""
        return self.computation("backward", microbatch)

    def computation(self, instruction: str, microbatch: int) -> _Computation:
        """Around any computation, by its name in the profile: the `microbatch`-th of an iteration."""
        self._computation.instruction, self._computation.microbatch = instruction, microbatch
        return self._computation

    def synchronize(self) -> _Waiting:
        """Around that at the end of each iteration in which all replicas wait for each other: the gradients' exchange."""
        return self._waiting

    def set_straggler(self, degree: float) -> None:
        """Say that iterations take `degree` times as long as this pipeline needs, from the next one on; 1: no longer.

        Only for what the replicas of this job cannot find by themselves. Raises ValueError below 1.
        """
        if not 1.0 <= degree < float("inf"):
            raise ValueError(f"straggler degree {degree} is not a finite number of 1 or more")
        self._replica_degree = degree

    def _begin(self, instruction: str, microbatch: int) -> None:
        plan = self._plan
        if plan is None:
            self._begin_measured()
            return
        now = self._began_computation = self._monotonic()
        if self._began is None:
            self._began, self._scaled = now, (0.0, now)
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            plan = self._look(plan, now)
        self._computation.kernels = plan.kernels(instruction, microbatch)
        self._planned = self._asked = plan.clock_megahertz(instruction, microbatch)
        if self._asked is not None and not self._clock_changes.followed:
            self._asked = plan.highest_megahertz
        if self._clock is not None and self._asked is not None:
            self._clock.ask(self._asked)

    def _begin_measured(self) -> None:
        clock = None if self._profile is None else self._profile.clock_megahertz
        if clock is not None and self._clock is not None:
            self._began_computation = self._monotonic()
            self._clock.ask(clock)

    def _look(self, plan: Plan, now: float) -> Plan:
        """The plan to go on by: a slower one where another replica has become slower than this one, or will be."""
        degree = max(self._announced_degree(), self._slowed_degree())
        if degree < LEAST_DEGREE or self._plans is None:
            return plan
        slower = self._plans.at(self._seconds * degree)
        if slower.seconds <= plan.seconds:
            return plan
        self._scaled = self._by_the_fastest(now), now
        self._plan, self.straggler_degree, self._changed = slower, degree, True
        return slower

    def _slowed_degree(self) -> float:
        """How much longer the iteration becomes by a slow stage of another replica, as that has reported in it."""
        found = self._shared_degree.found(self._iteration) if self._replicas > 1 and self._iteration > 0 else None
        # Where all become slower, as under a cap that falls, nobody waits for anybody.
        return 1.0 if found is None or found[0] == self._replica else found[2] / self._slow_stage.possible_degree

    def _by_the_fastest(self, now: float) -> float:
        """How long the iteration would have taken up to now by the fastest plan."""
        seconds, since = self._scaled
        plan, plans = self._plan, self._plans
        return (
            seconds if plan is None or plans is None else seconds + (now - since) * plans.fastest_seconds / plan.seconds
        )

    def _computed(self, instruction: str) -> None:
        if self._profile is not None:
            self._profile.computed(instruction, self._began_computation, self._monotonic())
        if self._plan is None or self._began is None:
            return
        self._clock_changes.computed(self._planned, self._monotonic() - self._began_computation)
        if self._replicas == 1:
            return
        began = self._began_computation - self._began
        self._slow_stage.computed(instruction, self._asked, began, self._monotonic() - self._began)
        if self._iteration > 0:
            self._shared_degree.share(self._iteration, self._replica, self._stage, self._slow_stage.degree)

    def _ended(self) -> None:
        """Note that this stage has computed its last; where it is the first stage, share how long its replica takes."""
        if self._stage == 0 and self._plan is not None and self._began is not None:
            own = self._by_the_fastest(self._monotonic())
            # Of one length always: a value is written over the one before.
            value = f"{self._iteration:015d} {own:020.9f}"
            self._share(f"{_PACE}{self._replica}", value)
            if self._iteration == 0 and self._replica == 0 and self._replicas > 1:
                self._shared_degree.begin()
            self._write_point()

    def _write_point(self) -> None:
        """Tell all stages how long iterations are to take, where that has changed.

        From the iteration after the next: all will have begun no later one than the next by then, since none gets further
        without this stage.
        """
        if self._wanted_seconds is None:
            return
        seconds = self._wanted_seconds()
        if self._iteration == 0 or (self._iteration >= self._shared_point[0] and seconds != self._shared_point[1]):
            self._shared_point = self._iteration + 2, seconds
            self._share(_POINT, f"{self._iteration + 2:015d} {seconds:020.9f}")

    def _take_point(self) -> None:
        """Switch to the point that the first stage has chosen, once its iteration has come."""
        if self._iteration == 0:
            return
        if self._values is None:
            shared: tuple[int, float] | None = self._shared_point
        else:
            shared = _numbers(self._read(_POINT) or "")
        if shared is not None and shared[0] <= self._iteration + 1 and shared[1] > 0.0:
            self._seconds = shared[1]

    def _synchronized(self) -> None:
        """Everybody's gradients are there: choose the plan of the next iteration."""
        if self._profile is not None:
            self._profile.iteration_over()
            if self._profile.done:
                self._keep(self._profile)
                self._profile = None
        if self._plans is not None:
            self._take_point()
            fastest = self._seconds <= self._plans.fastest_seconds * (1 + TOLERANCE)
            self._clock_changes.iteration_over(self._stage, fastest=fastest)
            paces = self._paces()
            degree = max(self._replica_degree, self._announced_degree(), self._found_degree(paces))
            self.straggler_degree = degree if degree >= LEAST_DEGREE else 1.0
            plan = self._plans.at(self._seconds * self.straggler_degree)
            self._compare_next(paces, plan)
            self._plan = plan
        self._iteration += 1
        self._began = self._monotonic()
        self._scaled = 0.0, self._began

    def _paces(self) -> dict[int, float]:
        """How long each replica would have taken by the fastest plan without waiting for the others, in seconds."""
        paces: dict[int, float] = {}
        # The first iteration says nothing: it begins when each process does, and has what is done once in it.
        for replica in range(self._replicas) if self._replicas > 1 and self._iteration > 0 else ():
            seconds = _pace(self._read(f"{_PACE}{replica}") or "", self._iteration)
            if seconds is not None:
                paces[replica] = seconds
        return paces

    def _found_degree(self, paces: Mapping[int, float]) -> float:
        """How much longer the slowest replica takes than this one would without waiting for it."""
        own = paces.get(self._replica, 0.0)
        by_paces = max(paces.values()) / own if own > 0 else 1.0
        # One that became slower within this iteration, and was waited for, will take longer in all of the next.
        found = self._shared_degree.found(self._iteration) if self._replicas > 1 and self._iteration > 0 else None
        if found is None or found[0] == self._replica or by_paces - 1.0 < LEAST_WAITED * (found[2] - 1.0):
            return by_paces
        return max(by_paces, found[2] / self._slow_stage.possible_degree)

    def _compare_next(self, paces: Mapping[int, float], following: Plan) -> None:
        """Have the computations of the next iteration compared with those of this one, if both run by one plan."""
        own, plan, plans = paces.get(self._replica), self._plan, self._plans
        whole = None
        same = plan is not None and plan.seconds == following.seconds and not self._changed
        if own is not None and plan is not None and plans is not None and same:
            whole = own * plan.seconds / plans.fastest_seconds
        self._slow_stage.iteration_over(whole)
        self._changed = False

    def _keep(self, profile: StageProfile) -> None:
        """Leave what was measured of this stage where it was asked for."""
        try:
            if profile.failed:
                raise OSError(profile.failed)
            if self._keep_profile is not None:
                self._keep_profile(self._stage, profile)
            logger.info("stage %d is measured; while it waits it draws %.1f W", self._stage, profile.waiting_watts)
        except OSError as error:
            logger.warning("stage %d is not measured, training goes on: %s", self._stage, error)

    def _share(self, name: str, value: str) -> None:
        try:
            if self._values is not None:
                self._values.put(name, value)
        except OSError as error:
            self._warn(error)

    def _read(self, name: str) -> str | None:
        try:
            return None if self._values is None else self._values.get(name)
        except (OSError, ValueError) as error:
            self._warn(error)
            return None

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("stragglers are not looked for, training goes on: %s", error)


def _pace(text: str, iteration: int) -> float | None:
    """The seconds in `text` if they are of this iteration; None where they are of another, or cannot be read."""
    shared = _numbers(text)
    return shared[1] if shared is not None and shared[0] == iteration else None


def _numbers(text: str) -> tuple[int, float] | None:
    """The iteration and its seconds in `text`; None where it is no such pair."""
    number, _, rest = text.partition(" ")
    try:
        iteration, seconds = int(number), float(rest)
    except ValueError:
        return None
    return (iteration, seconds) if 0.0 <= seconds < float("inf") else None


class _Computation:
    """`with pipeline.forward(microbatch) as computation:`

    `kernels`, by the names of its partitions: with how many SMs, and beside which kernels, each one's communication is to
    run by a plan of Kareus (empty: by itself). None where the plan says nothing of kernels, as Perseus' does not.
    What comes of it is the script's: no agent can give SMs to a kernel.
    """

    __slots__ = ("_pipeline", "instruction", "kernels", "microbatch")

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.instruction, self.microbatch = "", 0
        self.kernels: KernelsOf | None = None

    def __enter__(self) -> _Computation:
        self._pipeline._begin(self.instruction, self.microbatch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._pipeline._computed(self.instruction)


class _Waiting:
    """`with pipeline.synchronize():`"""

    __slots__ = ("_pipeline",)

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def __enter__(self) -> None:
        self._pipeline._ended()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._pipeline._synchronized()
