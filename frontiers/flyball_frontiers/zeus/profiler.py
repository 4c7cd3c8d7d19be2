"""The just-in-time profiler as a state machine: measurements in, the next thing to measure out.

It has no clock and no GPU. Whoever runs the training reads the counters at iteration boundaries, hands each reading to
`SliceProfiler.advance`, and sets the limit that the returned profiler asks for. Training goes on all the while: the
slices are real iterations, so profiling costs only the difference between limits (Zeus, sections 4.2 and 5).

Transitions:
    SETTLING  --reading, `settle_seconds` after the limit was applied-->  MEASURING   (the limit has taken effect)
    SETTLING  --reading at another limit than the one asked for-->        SETTLING    (from the start: not applied yet)
    MEASURING --reading, `slice_seconds` after the slice began-->         SETTLING    at the next smaller limit
    MEASURING --the same, and no limit is left-->                         DONE
    MEASURING --reading at another limit than the one asked for-->        SETTLING    (the slice is thrown away)
    SETTLING, MEASURING --interrupted-->                                  PAUSED      (the slice is thrown away)
    PAUSED    --reading-->                                                SETTLING    at the limit that was interrupted
    any but DONE --refused (a cap forbids the limit)-->                   SETTLING at the next limit, or DONE
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from flyball_frontiers.zeus.power_limit import PowerLimitMeasurement, Selector, WouldSave, unlimited, would_save

SLICE_SECONDS = 5.0
"""Zeus, section 5: five seconds of profiling for each power limit are enough to give stable results."""

SETTLE_SECONDS = 1.0
"""A limit takes some hundred milliseconds to bite, and NVML's counters update every 100 ms."""


class Phase(StrEnum):
    SETTLING = "Settling"
    MEASURING = "Measuring"
    PAUSED = "Paused"
    DONE = "Done"


@dataclass(frozen=True, slots=True)
class Reading:
    """The job's counters at one iteration boundary: all cumulative, from any origin.

    `energy_joules` is summed over the job's GPUs. `power_limit_milliwatts` is the limit that reads back from the GPUs.
    """

    iterations: float
    time_seconds: float
    energy_joules: float
    power_limit_milliwatts: int


@dataclass(frozen=True)
class SliceProfiler:
    """Where the profile of one job at one batch size stands; every step returns a new one, and any can be stored.

    `power_limits_milliwatts` are the limits to profile, per GPU; they are visited from the largest down, so that an
    early end leaves the fast ones known. With `observe_only`, the job goes back to the largest limit at the end
    whatever the selector says (`report` tells what it would have saved). Raises ValueError where there is no limit,
    one is repeated, or a duration is not positive.
    """

    power_limits_milliwatts: tuple[int, ...]
    selector: Selector
    slice_seconds: float = SLICE_SECONDS
    settle_seconds: float = SETTLE_SECONDS
    observe_only: bool = False
    measurements: tuple[PowerLimitMeasurement, ...] = ()
    refused_milliwatts: tuple[int, ...] = ()
    phase: Phase = Phase.SETTLING
    since: Reading | None = None  # when the limit was first seen applied (SETTLING), or the slice began (MEASURING)

    def __post_init__(self) -> None:
        limits = self.power_limits_milliwatts
        if not limits or len(set(limits)) < len(limits) or min(limits) <= 0:
            raise ValueError(f"power limits {limits} mW: at least one, all different and positive")
        if self.slice_seconds <= 0 or self.settle_seconds < 0:
            raise ValueError(
                f"slices of {self.slice_seconds} s after {self.settle_seconds} s to settle: a slice must be longer "
                "than 0 s and the settling not negative"
            )

    @property
    def remaining_milliwatts(self) -> tuple[int, ...]:
        """The limits still to be measured, the next one first."""
        over = {m.power_limit_milliwatts for m in self.measurements} | set(self.refused_milliwatts)
        return tuple(limit for limit in sorted(self.power_limits_milliwatts, reverse=True) if limit not in over)

    @property
    def wanted_power_limit_milliwatts(self) -> int:
        """The limit to set now, on every GPU of the job.

        The one under measurement; the largest while paused; at the end the selected one, or the largest allowed for an
        observer or where nothing could be measured.
        """
        if self.phase in (Phase.SETTLING, Phase.MEASURING):
            return self.remaining_milliwatts[0]
        if self.phase is Phase.DONE and self.measurements and not self.observe_only:
            return self.selector.select(self.measurements).power_limit_milliwatts
        allowed = set(self.power_limits_milliwatts) - set(self.refused_milliwatts)
        return max(allowed or self.power_limits_milliwatts)

    @property
    def done(self) -> bool:
        return self.phase is Phase.DONE

    def advance(self, reading: Reading) -> SliceProfiler:
        """The profiler after an iteration boundary.

        Raises ValueError where a counter runs backwards within a slice (a restarted job: call `interrupted` first).
        """
        if self.done:
            return self
        if self.phase is Phase.PAUSED:
            return replace(self, phase=Phase.SETTLING, since=None).advance(reading)
        if reading.power_limit_milliwatts != self.wanted_power_limit_milliwatts:
            return replace(self, phase=Phase.SETTLING, since=None)
        if self.since is None:
            return replace(self, phase=Phase.SETTLING if self.settle_seconds > 0 else Phase.MEASURING, since=reading)
        elapsed = reading.time_seconds - self.since.time_seconds
        if (
            elapsed < 0
            or reading.iterations < self.since.iterations
            or reading.energy_joules < self.since.energy_joules
        ):
            raise ValueError(
                f"counters ran backwards within a slice: {self.since} then {reading}; call interrupted() when a job "
                "restarts"
            )
        if self.phase is Phase.SETTLING:
            return replace(self, phase=Phase.MEASURING, since=reading) if elapsed >= self.settle_seconds else self
        iterations = reading.iterations - self.since.iterations
        energy = reading.energy_joules - self.since.energy_joules
        if elapsed < self.slice_seconds or iterations <= 0 or energy <= 0:
            return self  # a slice ends on an iteration boundary, once the counters have moved
        measured = PowerLimitMeasurement(reading.power_limit_milliwatts, elapsed, energy, iterations)
        return replace(self, measurements=(*self.measurements, measured))._to_next_limit()

    def interrupted(self) -> SliceProfiler:
        """The profiler after something that is not training (evaluation, a checkpoint, a restart): the slice is void.

        Until the next reading it asks for the largest limit, so that what interrupts is not slowed by the profile.
        """
        return self if self.done else replace(self, phase=Phase.PAUSED, since=None)

    def refused(self) -> SliceProfiler:
        """The profiler after the limit it wants was denied, as by a power cap: that limit is left out."""
        if self.done or not self.remaining_milliwatts:
            return self
        denied = self.remaining_milliwatts[0]
        return replace(self, refused_milliwatts=(*self.refused_milliwatts, denied))._to_next_limit()

    def report(self) -> WouldSave:
        """What the selector saves, or as an observer would save, against the largest measured limit (section 5).

        Raises ValueError before anything is measured.
        """
        if not self.measurements:
            raise ValueError("no power limit has been measured yet; advance the profiler through at least one slice")
        return would_save(self.measurements, self.selector)

    def current(self) -> PowerLimitMeasurement | None:
        """The measurement to run by after profiling: the chosen one, or an observer's, without a limit; None before."""
        if not self.done or not self.measurements:
            return None
        return unlimited(self.measurements) if self.observe_only else self.selector.select(self.measurements)

    def _to_next_limit(self) -> SliceProfiler:
        return replace(self, phase=Phase.SETTLING if self.remaining_milliwatts else Phase.DONE, since=None)

    def to_json(self) -> dict[str, Any]:
        """What `json.dumps` takes; the selector is configuration, not state, and is not written."""
        return {
            "power_limits_milliwatts": list(self.power_limits_milliwatts),
            "slice_seconds": self.slice_seconds,
            "settle_seconds": self.settle_seconds,
            "observe_only": self.observe_only,
            "measurements": [asdict(m) for m in self.measurements],
            "refused_milliwatts": list(self.refused_milliwatts),
            "phase": str(self.phase),
            "since": None if self.since is None else asdict(self.since),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any], selector: Selector) -> SliceProfiler:
        """The profiler that `to_json` wrote, with the selector of its configuration; raises KeyError or ValueError."""
        return cls(
            power_limits_milliwatts=tuple(record["power_limits_milliwatts"]),
            selector=selector,
            slice_seconds=record["slice_seconds"],
            settle_seconds=record["settle_seconds"],
            observe_only=record["observe_only"],
            measurements=tuple(PowerLimitMeasurement(**m) for m in record["measurements"]),
            refused_milliwatts=tuple(record["refused_milliwatts"]),
            phase=Phase(record["phase"]),
            since=None if record["since"] is None else Reading(**record["since"]),
        )
