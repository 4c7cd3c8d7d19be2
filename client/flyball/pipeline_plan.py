"""A pipeline's plans as `flyball frontier --output` writes them: the clocks of one stage at each iteration time."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

# Of one stage in one iteration, whatever a file says: a training process has other uses for its memory.
MAX_COMPUTATIONS = 1_000_000
# What a look-up may be late by: the rounding of the times in the file.
TOLERANCE = 1e-6


class InvalidPlan(ValueError):
    """A file that is no plan of this pipeline; the message says what is wrong with it."""


class StagePlans:
    """What one stage of a pipeline runs at, by the seconds that an iteration may take.

    `stages` is how many the pipeline has. Raises InvalidPlan.
    """

    def __init__(self, document: Any, stage: int) -> None:
        try:
            self.stages = int(document["gpus"])
            points = [
                (float(point["realised_time"]), float(point["realised_energy"]), point["clocks"].get(str(stage)))
                for point in document["points"]
            ]
            waiting_watts = float(document.get("waiting_power", 0.0))
            least = [(int(clock), float(seconds)) for clock, seconds in document.get("least_times") or ()]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InvalidPlan(f"this is not what `flyball frontier --output` writes: {error!r}") from error
        if self.stages < 1:
            raise InvalidPlan(f"a pipeline has 1 stage or more, not {self.stages}")
        if not math.isfinite(waiting_watts):
            raise InvalidPlan("a GPU that waits draws finite watts")
        if not points or any(clocks is None for _, _, clocks in points):
            raise InvalidPlan(f"there is no plan for stage {stage}: the plan is of {self.stages} stages, from 0")
        if not all(math.isfinite(seconds + joules) and seconds > 0 for seconds, joules, _ in points):
            raise InvalidPlan("an iteration takes finite seconds above 0, and finite joules")
        if not all(clock > 0 and 0 < seconds < math.inf for clock, seconds in least):
            raise InvalidPlan("least_times are megahertz and finite seconds, both above 0")
        self._least_times = sorted(least)
        self._seconds: list[float] = []
        self._joules: list[float] = []
        self._clocks: list[dict[str, _Runs]] = []
        self._looked_up: tuple[int, Plan] | None = None  # the one plan that is written out, and its place
        fewest = math.inf
        for seconds, joules, clocks in sorted(points, key=lambda point: point[:2]):
            # A slower one is only of use where it needs less than a faster one that then waits.
            if joules - waiting_watts * seconds < fewest:
                fewest = joules - waiting_watts * seconds
                self._seconds.append(seconds)
                self._joules.append(joules)
                self._clocks.append(_runs(clocks))
        if not self._seconds:
            raise InvalidPlan("no point of the frontier needs fewer joules than one that waits for ever")

    @classmethod
    def read(cls, path: str, stage: int) -> StagePlans:
        """The plans in a file. Raises InvalidPlan, and OSError where it cannot be read."""
        try:
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
        except (ValueError, RecursionError) as error:
            raise InvalidPlan(f"{path}: {error}") from error
        try:
            return cls(document, stage)
        except InvalidPlan as error:
            raise InvalidPlan(f"{path}: {error}") from error

    @property
    def fastest_seconds(self) -> float:
        """How long an iteration takes at the least."""
        return self._seconds[0]

    @property
    def slowest_seconds(self) -> float:
        """How long it takes by the slowest plan: slower than this nothing is saved any more."""
        return self._seconds[-1]

    def microbatches_fit(self, microbatches: int) -> bool:
        """Whether these are plans of so many microbatches, as far as they tell."""
        forwards = self._clocks[0].get("forward")
        count = 0 if forwards is None else _count(forwards)
        return forwards is None or (count > 0 and count % microbatches == 0)

    def seconds_for(
        self, objective: str, longest_seconds: float | None = None, max_megahertz: float | None = None
    ) -> float:
        """How long an iteration is to take by a job's objective, and at the longest for its deadline to be met.

        *Time*: as fast as it goes. Otherwise the plan of the fewest joules that meets the deadline, the fastest where none
        does; without one *Energy* has that of the fewest joules, *Balanced* that of the least product of joules and
        seconds: to be slower by a second would save less than the pipeline draws in one. No GPU being granted more than
        `max_megahertz`, both take no plan for an iteration that is shorter than it can be then: by such a plan stages
        would run ahead, to wait.
        """
        if objective == "Time":
            return self.fastest_seconds
        return max(self._by_objective(objective, longest_seconds), self._least_seconds(max_megahertz))

    def _by_objective(self, objective: str, longest_seconds: float | None) -> float:
        both = list(zip(self._seconds, self._joules))
        if longest_seconds is not None:
            both = [item for item in both if item[0] <= longest_seconds] or both[:1]
        elif objective == "Balanced":
            return min(both, key=lambda item: item[0] * item[1])[0]
        return min(both, key=lambda item: item[1])[0]

    def _least_seconds(self, max_megahertz: float | None) -> float:
        """How long an iteration takes at the least where no clock may be above this; 0 where the plan does not say."""
        if max_megahertz is None or not self._least_times:
            return 0.0
        place = bisect_right(self._least_times, (max_megahertz, math.inf)) - 1
        return self._least_times[max(0, place)][1]

    def at(self, seconds: float) -> Plan:
        """The plan for an iteration of so many seconds: the slowest that is not slower, else the fastest."""
        place = max(0, bisect_right(self._seconds, seconds * (1 + TOLERANCE)) - 1)
        if self._looked_up is None or self._looked_up[0] != place:
            plan = Plan(self._seconds[place], self._joules[place], _written_out(self._clocks[place]))
            self._looked_up = place, plan
        return self._looked_up[1]


class Plan:
    """One plan: seconds and joules (of all GPUs) that it predicts of an iteration, and this stage's clocks."""

    __slots__ = ("_clocks", "joules", "seconds")

    def __init__(self, seconds: float, joules: float, clocks: Mapping[str, list[int | None]]) -> None:
        self.seconds = seconds
        self.joules = joules
        self._clocks = clocks

    def clock_megahertz(self, instruction: str, microbatch: int) -> int | None:
        """At which clock a computation runs; None where the plan says nothing of it."""
        clocks = self._clocks.get(instruction)
        return clocks[microbatch] if clocks is not None and 0 <= microbatch < len(clocks) else None


# Blocks of clocks in megahertz, and how often each is repeated.
_Runs = Sequence["tuple[list[int | None], int]"]


def _runs(clocks: Any) -> dict[str, _Runs]:
    """One plan's clocks by instruction, as in the file: all plans written out could be gigabytes."""
    found: dict[str, _Runs] = {}
    computations = 0
    try:
        for instruction, listed in clocks.items():
            runs = [([None if clock is None else int(clock) for clock in block], int(times)) for block, times in listed]
            if any(times < 0 for _, times in runs):
                raise ValueError(f"{instruction}: a block is repeated less than no time")
            computations += _count(runs)
            if computations > MAX_COMPUTATIONS:
                raise ValueError(f"{instruction}: more than {MAX_COMPUTATIONS} computations up to there")
            found[str(instruction)] = runs
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise InvalidPlan(f"clocks are [[[megahertz, ...], times], ...] for each instruction: {error}") from error
    if any(
        clock is not None and not 0 < clock < 100_000 for runs in found.values() for block, _ in runs for clock in block
    ):
        raise InvalidPlan("a clock is a whole number of megahertz above 0")
    return found


def _count(runs: _Runs) -> int:
    """How many computations they are."""
    return sum(len(block) * times for block, times in runs)


def _written_out(clocks: Mapping[str, _Runs]) -> dict[str, list[int | None]]:
    return {
        instruction: [clock for block, times in runs for clock in block * times] for instruction, runs in clocks.items()
    }
