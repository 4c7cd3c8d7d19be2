"""Bounds of which there may be none: None stands for one that nobody has set or said."""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

Bound = TypeVar("Bound", int, float, datetime)


def least(*bounds: Bound | None) -> Bound | None:
    """The least of the bounds that there are; None where there are none."""
    return min((bound for bound in bounds if bound is not None), default=None)
