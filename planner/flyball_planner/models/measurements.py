"""Reading measurements of a GPU over its clocks: one row is a clock and what the GPU drew, or took and used, there."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

IDLE = "idle"
_CLOCK, _POWER, _SECONDS, _JOULES, _GPUS = "clock", "power", "seconds", "joules", "gpus"
COLUMNS: Mapping[str, tuple[str, ...]] = {
    _CLOCK: ("clock_megahertz", "clock", "clock_mhz", "frequency", "frequency_mhz"),
    _POWER: ("power_watts", "power", "watts"),
    _SECONDS: ("seconds", "time", "time_seconds"),
    _JOULES: ("joules", "energy", "energy_joules"),
    _GPUS: ("gpus",),
}
SERIES_COLUMNS = ("model", "workload", "batch", "batch_size", "stage", "instruction")


@dataclass(frozen=True, slots=True)
class Series:
    """One workload over the clocks (ascending): MHz, and watts of one GPU. `idle`: nothing ran."""

    name: str
    idle: bool
    clocks_megahertz: Array
    watts: Array


def read_measurements(text: str) -> list[Series]:
    """The series of a CSV, each once: those that repeat another to the digit are left out.

    Columns, in any order: the clock in MHz (`clock_megahertz`, `clock`, `frequency`); `power_watts` (`power`), or `seconds`
    and `joules` (`time`, `energy`); optionally `gpus`, of which power and joules are the sum; and any of SERIES_COLUMNS,
    which tell workloads apart. A workload named `idle` is the idle GPU held at each clock. Raises ValueError naming line
    and column.
    """
    rows = csv.reader(io.StringIO(text))
    header = [name.strip().lower() for name in next(rows, [])]
    place = _places(header)
    points: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    labels = [index for index, name in enumerate(header) if name in SERIES_COLUMNS]
    for row in rows:
        if not any(cell.strip() for cell in row):
            continue
        line = rows.line_num
        if len(row) != len(header):
            raise ValueError(f"line {line}: {len(row)} values, and the header names {len(header)} columns")
        numbers = {kind: _number(row[index], line, header[index]) for kind, index in place.items()}
        gpus = numbers.get(_GPUS, 1.0)
        watts = numbers[_POWER] if _POWER in numbers else numbers[_JOULES] / numbers[_SECONDS]
        points.setdefault(tuple(row[index].strip() for index in labels), []).append((numbers[_CLOCK], watts / gpus))
    if not points:
        raise ValueError("line 2: no measurement follows the header")
    found: list[Series] = []
    for label, measured in points.items():
        clocks, watts = np.array(sorted(measured)).T
        if not any(np.array_equal(clocks, s.clocks_megahertz) and np.array_equal(watts, s.watts) for s in found):
            name = " ".join(label) or "measured"
            found.append(Series(name, IDLE in (part.lower() for part in label), clocks, watts))
    return found


def _places(header: list[str]) -> dict[str, int]:
    """Where each kind of number is; raises ValueError for columns that are missing, unknown or given twice."""
    place: dict[str, int] = {}
    for index, name in enumerate(header):
        kinds = [kind for kind, names in COLUMNS.items() if name in names]
        if kinds and kinds[0] in place:
            raise ValueError(f"line 1: columns {header[place[kinds[0]]]!r} and {name!r} both say the {kinds[0]}")
        if kinds:
            place[kinds[0]] = index
        elif name not in SERIES_COLUMNS:
            known = [each for names in COLUMNS.values() for each in names] + list(SERIES_COLUMNS)
            raise ValueError(f"line 1: column {name!r} is none of {', '.join(known)}")
    if _CLOCK not in place:
        raise ValueError("line 1: no column for the clock: clock_megahertz (or clock, frequency), in MHz")
    if _POWER not in place and not {_SECONDS, _JOULES} <= place.keys():
        raise ValueError("line 1: no column for the power: power_watts (or power), or both seconds and joules")
    return place


def _number(cell: str, line: int, column: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"line {line}, column {column!r}: {cell!r} must be a number above 0")
    return value
