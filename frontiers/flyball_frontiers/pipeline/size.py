"""How large a pipeline is to plan: said before it is planned, and refused where it would not end.

What counts is how many computations are planned one by one. A pipeline that repeats itself (1F1B, early recomputation)
has as many for any number of microbatches once it is long; in the others each microbatch adds its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from flyball_frontiers.pipeline.profile import LOAD, SEND_BACKWARD, SEND_FORWARD, PipelineProfile
from flyball_frontiers.pipeline.schedules import Schedule
from flyball_frontiers.pipeline.solver.steady import FEWEST_TIED_LAYERS, boundary_layers

MOST_OPERATIONS = 300_000
"""Operations of a graph that can be built and run: about a gigabyte."""

MOST_PLANNED = 40_000
"""Computations planned one by one: about eight minutes for a frontier of 200 points beside a steady state that is tied."""

SECONDS_OF_A_THOUSAND = 0.9
"""CPU seconds of 200 points where a thousand computations are planned one by one beside tied ones (8 GPUs: about 460,
0.7 s; 16: 1,820, 2.6 s; 64: 28,800, 162 s). Where stages drift apart it is about three times as much."""

SECONDS_OF_A_THOUSAND_UNTIED = 0.4
"""The same where none is tied (16,384: 46 s, on a machine at a load of 20 to 30)."""

SECONDS_OF_A_THOUSAND_REPEATED = 0.09
"""CPU seconds for a thousand operations that repeat what is planned, which the layers are found in, and some plans run and
proven on (131,072 in 8 stages take 18 times as long as 2,048, which have as many planned one by one)."""

GROWTH = 1.7
"""The power of their number that the solver's time grows with (measured from 500 to 16,000)."""

BYTES_PER_OPERATION, BYTES_PER_PLANNED = 2_500, 50_000


class SizeError(ValueError):
    """A pipeline that is too large to be planned; says what would fit."""


@dataclass(frozen=True, slots=True)
class PlanSize:
    """`operations` of an iteration, of which `planned` one by one; about how long 200 points take, and the memory."""

    operations: int
    planned: int

    @property
    def seconds(self) -> float:
        thousand = SECONDS_OF_A_THOUSAND if self.planned < self.operations else SECONDS_OF_A_THOUSAND_UNTIED
        repeated = SECONDS_OF_A_THOUSAND_REPEATED * (self.operations - self.planned) / 1000
        return float(thousand * (self.planned / 1000) ** GROWTH + repeated)

    @property
    def bytes(self) -> int:
        return BYTES_PER_OPERATION * self.operations + BYTES_PER_PLANNED * self.planned

    @property
    def fits(self) -> bool:
        return self.operations <= MOST_OPERATIONS and self.planned <= MOST_PLANNED

    def __str__(self) -> str:
        return (
            f"{self.operations:,} operations, {self.planned:,} planned one by one: about "
            f"{_duration(self.seconds)} of one core for 200 points, {self.bytes / 1e6:,.0f} MB"
        )


def plan_size(profile: PipelineProfile, schedule: Schedule, microbatches: int, *, chunks_per_gpu: int = 1) -> PlanSize:
    """The size of a pipeline under a named schedule, from its numbers alone."""
    others = sum(
        profile.has(stage, what) for stage in range(profile.stages) for what in (LOAD, SEND_FORWARD, SEND_BACKWARD)
    )
    of_a_microbatch = 2 * profile.stages + others
    operations = of_a_microbatch * microbatches
    if schedule not in (Schedule.ONE_F_ONE_B, Schedule.EARLY_RECOMPUTE):
        return PlanSize(operations, operations)
    gpus = profile.stages // chunks_per_gpu
    tied = microbatches - gpus - sum(boundary_layers(gpus))
    saved = of_a_microbatch * (tied - 1) if tied >= FEWEST_TIED_LAYERS else 0
    return PlanSize(operations, operations - saved)


def check_size(profile: PipelineProfile, schedule: Schedule, microbatches: int, *, chunks_per_gpu: int = 1) -> PlanSize:
    """The size, or SizeError that says how many microbatches, or else stages, would fit."""
    size = plan_size(profile, schedule, microbatches, chunks_per_gpu=chunks_per_gpu)
    if size.fits:
        return size
    least, most = 0, microbatches
    while most - least > 1:
        middle = (least + most) // 2
        fits = plan_size(profile, schedule, middle, chunks_per_gpu=chunks_per_gpu).fits
        least, most = (middle, most) if fits else (least, middle)
    raise SizeError(
        f"{profile.stages} stages x {microbatches} microbatches are too many to plan ({size}); "
        f"with {profile.stages} stages up to {least} microbatches fit"
    )


def _duration(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{max(seconds, 0.1):,.1f} s"
