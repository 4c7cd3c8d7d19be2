"""What time costs a job: choices of size and clock of which none is beaten in both time and energy.

Of one iteration they hold for all jobs of a profile that have the same bounds, and are kept there; for what is left of one
job they follow from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flyball_api.reading import MAX_INTEGER, ApiStruct, Count


class FrontierPoint(ApiStruct, frozen=True):
    """One choice of size and clock, and the time and energy to the end of the job at it."""

    gpus: Count
    clock_megahertz: Count
    seconds: Count
    kilojoules: Count


class Tradeoff(ApiStruct, frozen=True):
    """What time costs for the rest of a job on one GPU model: how many choices there are, and the two ends of them."""

    gpu_model: str
    choices: Count
    fastest: FrontierPoint
    thriftiest: FrontierPoint


class FrontierBounds(ApiStruct, frozen=True):
    """What of a job's spec its choices depend on."""

    global_batch_size: Count
    min_gpus: Count
    max_gpus: Count
    min_megahertz: Count | None = None
    max_megahertz: Count | None = None


class IterationChoice(ApiStruct, frozen=True):
    """One choice of size and clock, and the time and energy of an iteration at it, over all GPUs."""

    gpus: Count
    clock_megahertz: Count
    microseconds_per_iteration: Count
    millijoules_per_iteration: Count


class IterationFrontier(ApiStruct, frozen=True):
    """The choices of jobs with the same bounds, from the fastest to the thriftiest."""

    bounds: FrontierBounds
    choices: tuple[IterationChoice, ...] = ()


def unbeaten(points: Iterable[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Those of (time, energy, GPUs, clock) that no other beats in time and energy, from the fastest to the thriftiest."""
    kept: list[tuple[int, int, int, int]] = []
    for point in sorted(points):
        if not kept or point[1] < kept[-1][1]:
            kept.append(point)
    return kept


def for_iterations(choices: Sequence[IterationChoice], iterations: float) -> tuple[FrontierPoint, ...]:
    """What the choices of an iteration come to over so many: of what is the same in whole seconds and kilojoules, one.

    None is more than an integer of the API can say.
    """
    points = unbeaten(
        (
            min(round(choice.microseconds_per_iteration * iterations / 1e6), MAX_INTEGER),
            min(round(choice.millijoules_per_iteration * iterations / 1e6), MAX_INTEGER),
            choice.gpus,
            choice.clock_megahertz,
        )
        for choice in choices
    )
    return tuple(FrontierPoint(gpus, clock, seconds, kilojoules) for seconds, kilojoules, gpus, clock in points)
