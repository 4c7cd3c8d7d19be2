"""Figures as people read them, everywhere alike: watts, shares, times and ages. What is not known is a dash."""

from __future__ import annotations

from datetime import datetime

UNKNOWN = "-"
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_KILOJOULES_PER_KILOWATT_HOUR = 3600


def watts_text(watts: float | None) -> str:
    """`412 W`, `36.4 kW`, `2.15 MW`; exact to the watt below 10 kW."""
    if watts is None:
        return UNKNOWN
    if abs(watts) < 9_999.5:
        return f"{watts:.0f} W"
    return f"{watts / 1e3:.1f} kW" if abs(watts) < 999_950 else f"{watts / 1e6:.2f} MW"


def energy_text(kilojoules: float | None) -> str:
    """`820 kJ`, `3.1 kWh`, `2.40 MWh`."""
    if kilojoules is None:
        return UNKNOWN
    hours = kilojoules / _KILOJOULES_PER_KILOWATT_HOUR
    if abs(hours) < 1:
        return f"{kilojoules:.0f} kJ"
    return f"{hours:.1f} kWh" if abs(hours) < 1000 else f"{hours / 1000:.2f} MWh"


def share_text(part: float | None, whole: float | None) -> str:
    """`63%`, rounded down, so that only what is done reads 100%."""
    if part is None or not whole:
        return UNKNOWN
    return f"{int(100 * part / whole + 1e-9)}%"  # 0.29 of 1 is 28.999999999999996 %


def duration_text(seconds: float | None) -> str:
    """Two units at most, as kubectl has ages: `45s`, `3m20s`, `2h5m`, `3d4h`; `0s` for what is not positive."""
    if seconds is None:
        return UNKNOWN
    whole = max(0, round(seconds))
    if whole < 2 * _MINUTE:
        return f"{whole}s"
    for large, small, names in ((_MINUTE, 1, "ms"), (_HOUR, _MINUTE, "hm"), (_DAY, _HOUR, "dh")):
        limit = {_MINUTE: _HOUR, _HOUR: _DAY, _DAY: float("inf")}[large]
        if whole < limit:
            first, rest = divmod(whole, large)
            return f"{first}{names[0]}" + (f"{rest // small}{names[1]}" if rest // small and first < 10 else "")
    raise AssertionError("the last unit has no end")


def age_text(then: datetime | None, now: datetime) -> str:
    """How long ago."""
    return UNKNOWN if then is None else duration_text((now - then).total_seconds())


def until_text(then: datetime | None, now: datetime) -> str:
    """How long until then; `3m ago` where it has passed."""
    if then is None:
        return UNKNOWN
    seconds = (then - now).total_seconds()
    return duration_text(seconds) if seconds >= 0 else f"{duration_text(-seconds)} ago"


def yes_no_text(value: bool | None) -> str:
    """`yes`, `no`, or `?` for what nobody knows: other than a figure, that is news."""
    return "?" if value is None else "yes" if value else "no"


def counted(number: int, thing: str) -> str:
    """`1 node`, `3 nodes`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
