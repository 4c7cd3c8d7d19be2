"""Power-limit profiles as text: what a profiler wrote down, one line a slice.

Two layouts are read, told apart by their header: `power_limit_watts,time_seconds,energy_joules[,iterations]`, and the
window log of Zeus's own library, `start_time,window_name,elapsed_time,gpu0_energy[,gpu1_energy...]`, whose window names
end in `_<watts>`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable

from flyball_frontiers.zeus.power_limit import PowerLimitMeasurement

ITERATIONS_PER_WINDOW = 40.0
"""Zeus's library profiles 40 steps at each limit unless told otherwise."""


def read_profile(
    lines: Iterable[str], iterations_per_window: float | None = None
) -> tuple[tuple[PowerLimitMeasurement, ...], int]:
    """The measurements of a profile in either layout, and how many GPUs they sum over (1 where it does not say).

    `iterations_per_window` counts where the file does not say; by default a window has 40, and a row of the other layout 1.
    Raises ValueError that names the line, where a column is missing or a number is wrong.
    """
    reader = csv.DictReader(lines)
    columns = reader.fieldnames or []
    gpu_columns = [name for name in columns if name.startswith("gpu") and name.endswith("_energy")]
    if {"power_limit_watts", "time_seconds", "energy_joules"} <= set(columns):
        measured = [_ours(number, row, iterations_per_window or 1.0) for number, row in enumerate(reader, start=2)]
        return tuple(measured), 1
    if {"window_name", "elapsed_time"} <= set(columns) and gpu_columns:
        windows = [
            _window(number, row, gpu_columns, iterations_per_window or ITERATIONS_PER_WINDOW)
            for number, row in enumerate(reader, start=2)
        ]
        return tuple(windows), len(gpu_columns)
    raise ValueError(
        f"columns {columns}: wanted power_limit_watts,time_seconds,energy_joules[,iterations] or "
        "window_name,elapsed_time,gpu0_energy"
    )


def _ours(number: int, row: dict[str, str], iterations: float) -> PowerLimitMeasurement:
    try:
        return PowerLimitMeasurement(
            round(1000 * _positive(row, "power_limit_watts")),
            _positive(row, "time_seconds"),
            _positive(row, "energy_joules"),
            float(row.get("iterations") or iterations),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"line {number}: {error}") from error


def _window(number: int, row: dict[str, str], gpus: list[str], iterations: float) -> PowerLimitMeasurement:
    try:
        return PowerLimitMeasurement(
            1000 * int(row["window_name"].rsplit("_", 1)[-1]),
            _positive(row, "elapsed_time"),
            math.fsum(float(row[gpu]) for gpu in gpus),
            iterations,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"line {number}: {error} (a window's name ends in _<watts>)") from error


def _positive(row: dict[str, str], column: str) -> float:
    """A number above 0; raises ValueError that names the column where there is none."""
    try:
        number = float(row[column])
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(f"{column} is {row[column]!r}: wanted a number above 0, without a unit")
    return number
