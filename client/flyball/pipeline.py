"""Pipeline parallel training by an energy plan: each computation at its own clock, slower while others are waited for.

Perseus (SOSP 2024): what is not on the critical path of an iteration runs slower without making it longer, and where a
straggler makes all replicas of the pipeline wait, the others run by the plan for an iteration of that length (4.1).
"""

from __future__ import annotations

import logging
import time
from types import TracebackType
from typing import Callable

from flyball.clocks import Clock
from flyball.environment import PipelineSection
from flyball.pipeline_plan import InvalidPlan, Plan, StagePlans
from flyball.shared_values import SharedValues

logger = logging.getLogger("flyball")

# Replicas whose iterations differ by less are as fast as each other.
LEAST_DEGREE = 1.03
_PACE = "pace-"


class Pipeline:
    """One stage of one replica of a pipeline. Without a plan it measures and asks for nothing, with the same interface.

    `iteration_seconds` is how long an iteration takes that waits for nobody; by default as long as by the fastest plan.

    The stage that ends an iteration last, the first one, tells the other replicas how long theirs takes by itself; all
    read that after they have waited for each other, and so change plans in the same iteration.
    """

    def __init__(
        self,
        plans: StagePlans | None,
        clock: Clock | None,
        *,
        stage: int,
        replica: int = 0,
        replicas: int = 1,
        values: SharedValues | None = None,
        iteration_seconds: float | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plans = plans
        self._seconds = (
            (plans.fastest_seconds if plans is not None else 0.0) if iteration_seconds is None else iteration_seconds
        )
        self._clock = clock
        self._stage = stage
        self._replica = replica
        self._replicas = replicas
        self._values = values
        self._monotonic = monotonic
        self._plan: Plan | None = None if plans is None else plans.at(self._seconds)
        self._told_degree = 1.0
        self._began: float | None = None
        self._iteration = 0
        self._warned = False
        self._computation = _Computation(self)
        self._waiting = _Waiting(self)
        self.straggler_degree = 1.0

    @property
    def plan(self) -> Plan | None:
        """By which plan this iteration runs; None without one."""
        return self._plan

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
        self._told_degree = degree

    def _begin(self, instruction: str, microbatch: int) -> None:
        if self._began is None:
            self._began = self._monotonic()
        if self._plan is not None and self._clock is not None:
            megahertz = self._plan.clock_megahertz(instruction, microbatch)
            if megahertz is not None:
                self._clock.ask(megahertz)

    def _ended(self) -> None:
        """This stage has nothing left to compute; the first stage's end is that of its replica."""
        plan, plans = self._plan, self._plans
        if self._stage == 0 and plan is not None and plans is not None and self._began is not None:
            own = (self._monotonic() - self._began) * plans.fastest_seconds / plan.seconds
            # Of one length always: a value is written over the one before.
            value = f"{self._iteration:015d} {own:020.9f}"
            self._tell(f"{_PACE}{self._replica}", value)

    def _synchronized(self) -> None:
        """Everybody's gradients are there: choose the plan of the next iteration."""
        if self._plans is not None:
            degree = max(self._told_degree, self._found_degree())
            self.straggler_degree = degree if degree >= LEAST_DEGREE else 1.0
            self._plan = self._plans.at(self._seconds * self.straggler_degree)
        self._iteration += 1
        self._began = self._monotonic()

    def _found_degree(self) -> float:
        """How much longer the slowest replica takes than this one would if it waited for nobody."""
        paces: dict[int, float] = {}
        # The first iteration says nothing: it begins when each process does, and has what is done once in it.
        for replica in range(self._replicas) if self._replicas > 1 and self._iteration > 0 else ():
            iteration, _, seconds = (self._read(f"{_PACE}{replica}") or "").partition(" ")
            if iteration.isdecimal() and int(iteration) == self._iteration:
                paces[replica] = float(seconds)
        own = paces.get(self._replica, 0.0)
        return max(paces.values()) / own if own > 0 else 1.0

    def _tell(self, name: str, value: str) -> None:
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


class _Computation:
    """`with pipeline.forward(microbatch):`"""

    __slots__ = ("_pipeline", "instruction", "microbatch")

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.instruction, self.microbatch = "", 0

    def __enter__(self) -> None:
        self._pipeline._begin(self.instruction, self.microbatch)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


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


def read_plans(path: str, stage: int, world_size: int, section: PipelineSection | None = None) -> StagePlans | None:
    """The plans in a file; None, with a warning, where there are none that this training can run by.

    Plans of other pipelines than the job's `section` says are none.
    """
    try:
        plans = StagePlans.read(path, stage)
    except (OSError, InvalidPlan) as error:
        logger.warning("no clocks are asked for, training goes on: %s", error)
        return None
    stages = plans.stages
    why = ""
    if world_size % stages:
        why = f"{world_size} processes are no whole number of pipelines of {stages} stages"
    elif section is not None and section.stages not in (None, stages):
        why = f"{path} is a plan of {stages} stages, and the job's spec.pipeline has {section.stages}"
    elif section is not None and section.microbatches and not plans.microbatches_fit(section.microbatches):
        why = f"{path} is no plan of the {section.microbatches} microbatches of the job's spec.pipeline"
    if why:
        logger.warning("no clocks are asked for, training goes on: %s", why)
        return None
    return plans
