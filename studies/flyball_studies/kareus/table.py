"""A partition measured over its whole search space: the one public Kareus table, or any in its layout.

One line a schedule: overlap_start, overlap_end (-1: not overlapped), comm_sm_number, comm_block_size, and for each
repetition i `i:time (s)` and `i:total energy (J)`. The clock is of the whole file. Text in, values out.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from flyball_frontiers.frontier import Frontier, FrontierPoint
from flyball_frontiers.kareus.schedule import NOT_OVERLAPPED, KernelSchedule, Measurement

A100_STATIC_POWER_WATTS = 60.0
"""One A100 in P0 without work: Table 1's 5,372 J of static energy over 5.60 s on 16 GPUs."""


@dataclass(frozen=True)
class RecordedTable:
    """Every schedule's mean measurement, and how much its repetitions differ (relative standard deviations)."""

    measurements: Mapping[KernelSchedule, Measurement]
    time_spread: float
    energy_spread: float

    @property
    def schedules(self) -> tuple[KernelSchedule, ...]:
        return tuple(self.measurements)

    def measure(self, schedule: KernelSchedule) -> Measurement:
        """The recorded measurement: a `Measure`; raises KeyError where the schedule was not recorded."""
        return self.measurements[schedule]

    @cached_property
    def frontier(self) -> Frontier[KernelSchedule]:
        """The frontier of the full table."""
        return Frontier.of(
            FrontierPoint(m.time_seconds, m.energy_joules, schedule) for schedule, m in self.measurements.items()
        )

    def merged(self, other: RecordedTable) -> RecordedTable:
        """Both tables as one search space, as of two clocks; raises ValueError where a schedule is in both."""
        both = set(self.measurements) & set(other.measurements)
        if both:
            raise ValueError(f"{len(both)} schedules are in both tables, as {next(iter(both))}")
        counts = len(self.measurements), len(other.measurements)
        return RecordedTable(
            {**self.measurements, **other.measurements},
            (counts[0] * self.time_spread + counts[1] * other.time_spread) / sum(counts),
            (counts[0] * self.energy_spread + counts[1] * other.energy_spread) / sum(counts),
        )


def read_table(lines: Iterable[str], clock_megahertz: int) -> RecordedTable:
    """The table of one clock from the lines of its CSV; raises ValueError that names the line where it is wrong."""
    reader = csv.DictReader(lines)
    columns = reader.fieldnames or []
    times = [name for name in columns if name.endswith(":time (s)")]
    energies = [name for name in columns if name.endswith(":total energy (J)")]
    if not times or len(times) != len(energies):
        raise ValueError(f"columns {columns}: wanted `0:time (s)`, `0:total energy (J)`, and so on")
    measurements: dict[KernelSchedule, Measurement] = {}
    spreads: list[tuple[float, float]] = []
    for row in reader:
        number = reader.line_num
        try:
            first = int(row["overlap_start"])
            schedule = KernelSchedule(
                clock_megahertz,
                int(row["comm_sm_number"]),
                NOT_OVERLAPPED if first < 0 else first,
                None if first < 0 else int(row["overlap_end"]),
                int(row["comm_block_size"]),
            )
            seconds, joules = [float(row[name]) for name in times], [float(row[name]) for name in energies]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"line {number}: {error!r}") from error
        if not all(math.isfinite(value) and value > 0 for value in (*seconds, *joules)):
            raise ValueError(f"line {number}: seconds {seconds}, joules {joules}: wanted finite numbers above 0")
        if schedule in measurements:
            raise ValueError(f"line {number}: {schedule} is there twice")
        measurements[schedule] = Measurement(statistics.fmean(seconds), statistics.fmean(joules))
        spreads.append(
            (
                statistics.pstdev(seconds) / statistics.fmean(seconds),
                statistics.pstdev(joules) / statistics.fmean(joules),
            )
        )
    if not measurements:
        raise ValueError("the table has no lines")
    return RecordedTable(measurements, statistics.fmean(t for t, _ in spreads), statistics.fmean(e for _, e in spreads))
