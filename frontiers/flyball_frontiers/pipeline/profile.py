"""What is measured of a pipeline: seconds and joules of each stage's instructions at each clock.

Reading is strict, because a wrong row here becomes a wrong clock on a GPU: every refusal names the row.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

FORWARD = "forward"
BACKWARD = "backward"
RECOMPUTE = "recompute"
RECOMPUTE_BACKWARD = "recompute_backward"
LOAD = "load"
SEND_FORWARD = "send_forward"
SEND_BACKWARD = "send_backward"
INSTRUCTIONS = (FORWARD, BACKWARD, RECOMPUTE, RECOMPUTE_BACKWARD, LOAD, SEND_FORWARD, SEND_BACKWARD)
"""What the schedules that have a name run; a graph of its own may have any others."""

LEAST_SECONDS, MOST_SECONDS = 1e-7, 1e5
MOST_JOULES, MOST_MEGAHERTZ = 1e9, 100_000
"""No computation of a GPU is beyond these, and solvers lose their digits where numbers are."""

COLUMNS = ("stage", "instruction", "frequency", "time", "energy")


class ProfileError(ValueError):
    """A profile that cannot be what was measured; says in which row and why."""


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """One way to run a computation: seconds, joules of its GPU, and the SM clock (None: the clock does not matter)."""

    time_seconds: float
    energy_joules: float
    clock_megahertz: int | None


@dataclass(frozen=True)
class PipelineProfile:
    """The measured points of each (stage, instruction), fastest clock first; stages count from 0 without gaps.

    Constant-time operations (Perseus, section 4.4) have a single point. Build it with `from_rows` or `from_csv`, which
    keep in `first_rows` where each was first named, for messages.
    """

    points: Mapping[tuple[int, str], tuple[OperatingPoint, ...]]
    first_rows: Mapping[tuple[int, str], str] = field(default_factory=dict, compare=False)

    @property
    def stages(self) -> int:
        return 1 + max(stage for stage, _ in self.points)

    def has(self, stage: int, instruction: str) -> bool:
        return (stage, instruction) in self.points

    def of(self, stage: int, instruction: str) -> tuple[OperatingPoint, ...]:
        """The points of one instruction. Where the recomputation of activations was not measured, it is a forward
        pass again, and `recompute_backward` is that and the backward pass in sequence at one clock.

        Raises ProfileError that names what is there, where the instruction was not measured.
        """
        if (measured := self.points.get((stage, instruction))) is not None:
            return measured
        if instruction == RECOMPUTE:
            return self.of(stage, FORWARD)
        if instruction == RECOMPUTE_BACKWARD:
            recompute = {point.clock_megahertz: point for point in self.of(stage, RECOMPUTE)}
            both = tuple(
                OperatingPoint(
                    point.time_seconds + recompute[point.clock_megahertz].time_seconds,
                    point.energy_joules + recompute[point.clock_megahertz].energy_joules,
                    point.clock_megahertz,
                )
                for point in self.of(stage, BACKWARD)
                if point.clock_megahertz in recompute
            )
            if both:
                return both
            raise ProfileError(f"stage {stage}: {RECOMPUTE} and {BACKWARD} have no clock in common to be run at")
        there = sorted(name for number, name in self.points if number == stage)
        raise ProfileError(f"stage {stage} has no {instruction} rows, only {', '.join(there) or 'none at all'}")

    @classmethod
    def from_csv(cls, text: str) -> PipelineProfile:
        """The profile in a CSV text with the columns stage, instruction, frequency (MHz), time (s), energy (J)."""
        reader = csv.DictReader(text.removeprefix("\ufeff").splitlines(), skipinitialspace=True)
        try:
            header = [name.strip() for name in reader.fieldnames or ()]
            if missing := [name for name in COLUMNS if name not in header]:
                raise ProfileError(f"the header has no column {', '.join(missing)}: wanted {','.join(COLUMNS)}")
            reader.fieldnames = header
            return cls._of((f"row {number} (line {reader.line_num}", row) for number, row in enumerate(reader, start=1))
        except csv.Error as error:
            raise ProfileError(f"line {reader.line_num + 1} cannot be read as CSV: {error}") from error

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, object]]) -> PipelineProfile:
        """The profile in rows under the names of the CSV's columns, in any order.

        Rows that repeat a stage, instruction and clock are repeated measurements: their mean counts. Raises
        ProfileError that names the row (the first is row 1), or the stage that is missing.
        """
        return cls._of((f"row {number} (", row) for number, row in enumerate(rows, start=1))

    @classmethod
    def _of(cls, rows: Iterable[tuple[str, Mapping[str, object]]]) -> PipelineProfile:
        measured: dict[tuple[int, str], dict[int | None, list[tuple[float, float]]]] = {}
        first_rows: dict[tuple[int, str], str] = {}
        for where, row in rows:
            stage, instruction, clock, time, energy = _read_row(where, row)
            first_rows.setdefault(
                (stage, instruction), where.removesuffix(" (") if where.endswith("(") else f"{where})"
            )
            measured.setdefault((stage, instruction), {}).setdefault(clock, []).append((time, energy))
        if not measured:
            raise ProfileError("the profile has no rows")
        stages = {stage for stage, _ in measured}
        # The first gap is at most as high as there are stages, however high a wrong row's number is.
        if gaps := sorted(set(range(len(stages))) - stages):
            raise ProfileError(f"stage {gaps[0]} is missing: the profile has stages {sorted(stages)}, counted from 0")
        points: dict[tuple[int, str], tuple[OperatingPoint, ...]] = {}
        for (stage, instruction), by_clock in measured.items():
            if None in by_clock and len(by_clock) > 1:
                raise ProfileError(
                    f"stage {stage} {instruction}: a row without a frequency is for operations that have only one "
                    f"point, and this one has {len(by_clock)}"
                )
            points[stage, instruction] = tuple(
                OperatingPoint(
                    math.fsum(time for time, _ in repeats) / len(repeats),
                    math.fsum(energy for _, energy in repeats) / len(repeats),
                    clock,
                )
                for clock, repeats in sorted(by_clock.items(), key=lambda item: -(item[0] or 0))
            )
        return cls(points, first_rows)


def _read_row(where: str, row: Mapping[str, object]) -> tuple[int, str, int | None, float, float]:
    def refuse(column: str, wanted: str) -> ProfileError:
        there = ",".join("" if row.get(name) is None else str(row.get(name)) for name in COLUMNS)
        separator = "" if where.endswith("(") else ": "
        return ProfileError(f"{where}{separator}{there}): {column} must be {wanted}")

    def read_number(column: str) -> float:
        try:
            return float(str(row.get(column)))
        except ValueError:
            return math.nan

    stage, clock, time, energy = (read_number(column) for column in ("stage", "frequency", "time", "energy"))
    instruction = str(row.get("instruction") or "").strip().lower()
    if not (stage >= 0 and stage.is_integer()):
        raise refuse("stage", "a whole number from 0")
    if not instruction:
        raise refuse("instruction", f"a name such as {FORWARD} or {BACKWARD}")
    if str(row.get("frequency") if row.get("frequency") is not None else "").strip() == "":
        megahertz = None
    elif 0 < clock <= MOST_MEGAHERTZ and clock.is_integer():
        megahertz = int(clock)
    else:
        wanted = f"a whole number of MHz from 1 to {MOST_MEGAHERTZ:,}, or empty where the clock does not matter"
        raise refuse("frequency", wanted)
    if not LEAST_SECONDS <= time <= MOST_SECONDS:
        raise refuse("time", f"seconds from {LEAST_SECONDS:g} to {MOST_SECONDS:,.0f}")
    if not 0 <= energy <= MOST_JOULES:
        raise refuse("energy", f"joules from 0 to {MOST_JOULES:,.0f}")
    return int(stage), instruction, megahertz, time, energy
