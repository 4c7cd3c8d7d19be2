"""What all rows are made of."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from flyball_api.values.conditions import StoredCondition
from flyball_api.values.units import MILLIWATTS_PER_WATT
from msgspec import Struct

_STATUSES = {"True": True, "False": False}


class Row(Struct, frozen=True, rename="camel", gc=False):
    """A part of an overview: camelCase in JSON, as the API's own objects are."""


class Aspect(Row, frozen=True):
    """A condition of an object: `status` None is unknown, and `since` when it became so."""

    status: bool | None
    reason: str = ""
    message: str = ""
    since: datetime | None = None


UNREPORTED = Aspect(None, "NotReported", "nobody has said anything of it yet")


def aspect(conditions: Iterable[StoredCondition], kind: str) -> Aspect:
    """The condition of that type; UNREPORTED where there is none."""
    return aspect_if_any(conditions, kind) or UNREPORTED


def aspect_if_any(conditions: Iterable[StoredCondition], kind: str) -> Aspect | None:
    """The condition of that type; None where there is none."""
    for item in conditions:
        if item.type == kind:
            return Aspect(_STATUSES.get(item.status), item.reason, item.message, item.last_transition_time)
    return None


def watts(milliwatts: int | None) -> float | None:
    """Milliwatts in watts; None stays unknown."""
    return None if milliwatts is None else milliwatts / MILLIWATTS_PER_WATT
