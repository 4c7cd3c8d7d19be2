"""A day-ahead cap and a price signal from the grid's hourly carbon intensity."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

from flyball_simulator.settings import CapStep

HOUR_SECONDS = 3600.0
FIRST_DAY = "2022-04-18"  # a spring day: the sun's share swings most
DAYS = 6  # the traces' last jobs end within these
TIGHT, LOOSE = 0.3, 0.5  # of the cluster's power, at the dirtiest and at the cleanest hour


def hourly_carbon(path: Path) -> list[tuple[float, float]]:
    """(second since the first day's midnight, g/kWh), hour by hour, repeated from the first day on for DAYS.

    Raises ValueError where the file lacks the day or the column avg_CI.
    """
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    start = next((index for index, row in enumerate(rows) if row["timestamp"].startswith(FIRST_DAY)), None)
    if start is None or "avg_CI" not in rows[0]:
        raise ValueError(f"{path}: no hour of {FIRST_DAY} with a column avg_CI")
    hours = rows[start : start + 24 * DAYS]
    return [(index * HOUR_SECONDS, float(row["avg_CI"])) for index, row in enumerate(hours)]


def day_ahead_caps(carbon: list[tuple[float, float]]) -> list[CapStep]:
    """The cap of each hour: loose where the grid is clean, tight where it is dirty, linear in between."""
    grams = [value for _, value in carbon]
    low, high = min(grams), max(grams)
    return [CapStep(at, LOOSE - (LOOSE - TIGHT) * (value - low) / (high - low)) for at, value in carbon]


def price_signal(carbon: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Each hour's intensity over the mean, squared: dirty hours dear, clean hours cheap."""
    mean = sum(value for _, value in carbon) / len(carbon)
    return [(at, (value / mean) ** 2) for at, value in carbon]
