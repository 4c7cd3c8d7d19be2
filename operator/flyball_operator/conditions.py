"""Kubernetes conditions: merged so that a transition time moves only when the status does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flyball_operator.requests import format_time

JsonObject = dict[str, Any]

MAX_MESSAGE_LENGTH = 1000


@dataclass(frozen=True, slots=True)
class Condition:
    """One aspect of an object's state; `status` None stands for Unknown."""

    type: str
    status: bool | None
    reason: str
    message: str = ""


def as_stored(value: Any) -> Any:
    """A status as the API server stores it after a merge patch: without the fields that were set to null."""
    if isinstance(value, dict):
        return {key: as_stored(item) for key, item in value.items() if item is not None}
    return value


def merge_conditions(
    before: Mapping[str, JsonObject], wanted: Iterable[Condition], generation: int, now: datetime
) -> list[JsonObject]:
    """The conditions as the status should list them, in the order of `wanted`, after those `before` by type."""
    merged = []
    for condition in wanted:
        status = "Unknown" if condition.status is None else str(condition.status)
        last = before.get(condition.type) or {}
        since = last.get("lastTransitionTime") if last.get("status") == status else None
        merged.append(
            {
                "type": condition.type,
                "status": status,
                "observedGeneration": generation,
                "lastTransitionTime": since or format_time(now),
                "reason": condition.reason,
                "message": condition.message[:MAX_MESSAGE_LENGTH],
            }
        )
    return merged
