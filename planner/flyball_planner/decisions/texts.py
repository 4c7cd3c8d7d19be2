"""Figures as people read them in a sentence."""

from __future__ import annotations


def gpus_text(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def watts_text(watts: float) -> str:
    return f"{watts / 1000:.2f} kW" if abs(watts) >= 1000 else f"{round(watts)} W"


def joules_text(joules: float) -> str:
    for unit, size in (("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3)):
        if abs(joules) >= size:
            return f"{_three_digits(joules / size)} {unit}"
    return f"{_three_digits(joules)} J"


def seconds_text(seconds: float) -> str:
    if seconds >= 2 * 3600:
        return f"{_three_digits(seconds / 3600)} h"
    if seconds >= 10 * 60:
        return f"{_three_digits(seconds / 60)} min"
    return f"{_three_digits(seconds)} s"


def percent_text(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _three_digits(value: float) -> str:
    """Three digits, or all before the point: never an exponent, in which people do not read seconds."""
    return f"{value:.3g}" if 1e-3 <= abs(value) < 999.5 else f"{value:.0f}"
