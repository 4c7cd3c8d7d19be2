"""A pipeline's plans as `flyball frontier --output` writes them: the clocks of one stage at each iteration time."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# Of one stage in one iteration, whatever a file says: a training process has other uses for its memory.
MAX_COMPUTATIONS = 1_000_000
# What a look-up may be late by: the rounding of the times in the file.
TOLERANCE = 1e-6


class InvalidPlan(ValueError):
    """A file that is no plan of this pipeline; the message says what is wrong with it."""


class Kernels(NamedTuple):
    """How one partition of a computation runs, as Kareus plans it (OSDI 2026, section 4.1).

    Its communication gets so many SMs (0: its library's default), and is launched together with the `launch_kernel`-th of
    its computation kernels (-1: by itself, after all of them); `last_kernel` is the last that may run beside it (None:
    any).
    """

    communication_sms: int
    launch_kernel: int
    last_kernel: int | None = None
    threads_per_block: int = 0


KernelsOf = Mapping[str, Kernels]
"""By the partition's name; empty: one kernel after the other."""


class StagePlans:
    """What one stage of a pipeline runs at, by the seconds that an iteration may take.

    `stages` is how many the pipeline has. Raises InvalidPlan.
    """

    def __init__(self, document: Any, stage: int) -> None:
        try:
            self.stages = int(document["gpus"])
            points = [
                (
                    float(point["realised_time"]),
                    float(point["realised_energy"]),
                    point["clocks"].get(str(stage)),
                    point.get("kernels", {}).get(str(stage)),
                )
                for point in document["points"]
            ]
            self._listed = [_kernels(listed["partitions"]) for listed in document.get("kernels") or ()]
            waiting_watts = float(document.get("waiting_power", 0.0))
            least = [(int(clock), float(seconds)) for clock, seconds in document.get("least_times") or ()]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InvalidPlan(f"this is not what `flyball frontier --output` writes: {error!r}") from error
        if self.stages < 1:
            raise InvalidPlan(f"a pipeline has 1 stage or more, not {self.stages}")
        if not math.isfinite(waiting_watts):
            raise InvalidPlan("a GPU that waits draws finite watts")
        if not points or any(point[2] is None for point in points):
            raise InvalidPlan(f"there is no plan for stage {stage}: the plan is of {self.stages} stages, from 0")
        if not all(math.isfinite(seconds + joules) and seconds > 0 for seconds, joules, *_ in points):
            raise InvalidPlan("an iteration takes finite seconds above 0, and finite joules")
        if not all(clock > 0 and 0 < seconds < math.inf for clock, seconds in least):
            raise InvalidPlan("least_times are megahertz and finite seconds, both above 0")
        self._least_times = sorted(least)
        self._seconds: list[float] = []
        self._joules: list[float] = []
        self._clocks: list[dict[str, _Runs]] = []
        self._kernels: list[dict[str, _Runs]] = []
        self._looked_up: tuple[int, Plan] | None = None  # the one plan that is written out, and its place
        fewest = math.inf
        for seconds, joules, clocks, kernels in sorted(points, key=lambda point: point[:2]):
            # A slower one is only of use where it needs less than a faster one that then waits.
            if joules - waiting_watts * seconds < fewest:
                fewest = joules - waiting_watts * seconds
                self._seconds.append(seconds)
                self._joules.append(joules)
                self._clocks.append(_runs(clocks))
                self._kernels.append(self._places(kernels))
        if not self._seconds:
            raise InvalidPlan("no point of the frontier needs fewer joules than one that waits for ever")

    def _places(self, kernels: Any) -> dict[str, _Runs]:
        """The places in the list of kernels of one plan's computations."""
        places = {} if kernels is None else _runs(kernels, least=0)
        listed = {place for runs in places.values() for block, _ in runs for place in block}
        if any(place is None or place >= len(self._listed) for place in listed):
            raise InvalidPlan(
                f"there is a computation whose kernels are none of the {len(self._listed)} that are listed"
            )
        return places

    @classmethod
    def read(cls, path: str, stage: int) -> StagePlans:
        """The plans in a file. Raises InvalidPlan, and OSError where it cannot be read."""
        try:
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
        except (ValueError, RecursionError) as error:
            raise InvalidPlan(f"{path}: this is no JSON, as `flyball frontier --output` writes: {error}") from error
        try:
            return cls(document, stage)
        except InvalidPlan as error:
            raise InvalidPlan(f"{path}: {error}") from error

    @property
    def fastest_seconds(self) -> float:
        """How long an iteration takes at the least."""
        return self._seconds[0]

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
            kernels = {
                instruction: [self._listed[number] for number in numbers if number is not None]
                for instruction, numbers in _written_out(self._kernels[place]).items()
            }
            plan = Plan(self._seconds[place], self._joules[place], _written_out(self._clocks[place]), kernels)
            self._looked_up = place, plan
        return self._looked_up[1]


class Plan:
    """One plan: seconds and joules (of all GPUs) that it predicts of an iteration, and this stage's clocks."""

    __slots__ = ("_clocks", "_kernels", "joules", "seconds")

    def __init__(
        self,
        seconds: float,
        joules: float,
        clocks: Mapping[str, list[int | None]],
        kernels: Mapping[str, list[KernelsOf]],
    ) -> None:
        self.seconds = seconds
        self.joules = joules
        self._clocks = clocks
        self._kernels = kernels

    @property
    def highest_megahertz(self) -> int | None:
        """The highest clock of any of the stage's computations; None where the plan has none."""
        return max((clock for clocks in self._clocks.values() for clock in clocks if clock is not None), default=None)

    def clock_megahertz(self, instruction: str, microbatch: int) -> int | None:
        """At which clock a computation runs; None where the plan says nothing of it."""
        clocks = self._clocks.get(instruction)
        return clocks[microbatch] if clocks is not None and 0 <= microbatch < len(clocks) else None

    def kernels(self, instruction: str, microbatch: int) -> KernelsOf | None:
        """How a computation's kernels run, by its partitions' names; None where the plan says nothing of it."""
        kernels = self._kernels.get(instruction)
        return kernels[microbatch] if kernels is not None and 0 <= microbatch < len(kernels) else None


# Blocks of clocks in megahertz, and how often each is repeated.
_Runs = Sequence["tuple[list[int | None], int]"]


def _kernels(partitions: Any) -> KernelsOf:
    """How a computation's kernels run, as the file lists it. Raises InvalidPlan."""
    found: dict[str, Kernels] = {}
    for name, record in partitions:
        last = record["last_kernel"]
        found[str(name)] = Kernels(
            int(record["communication_sms"]),
            int(record["launch_kernel"]),
            None if last is None else int(last),
            int(record["threads_per_block"]),
        )
    if any(kernels.communication_sms < 0 or kernels.threads_per_block < 0 for kernels in found.values()):
        raise InvalidPlan("a communication has no SMs or threads below 0")
    return found


def _runs(clocks: Any, least: int = 1) -> dict[str, _Runs]:
    """One plan's clocks by instruction, or other numbers, as in the file: all plans written out could be gigabytes."""
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
        clock is not None and not least <= clock < 100_000
        for runs in found.values()
        for block, _ in runs
        for clock in block
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
