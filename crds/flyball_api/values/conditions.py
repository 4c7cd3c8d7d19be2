"""Kubernetes conditions: merged so that a transition time moves only when the condition's status does."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct

from flyball_api.reading import ApiStruct, Count, Time
from flyball_api.values.times import whole_second

MAX_MESSAGE_LENGTH = 1000


class Condition(Struct, frozen=True):
    """One aspect of an object's state, as a controller finds it; `status` None stands for Unknown."""

    type: str
    status: bool | None
    reason: str
    message: str = ""


class StoredCondition(ApiStruct, frozen=True):
    """A condition as a status has it; `status` is "True", "False" or "Unknown"."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    observed_generation: Count | None = None
    last_transition_time: Time | None = None

    @property
    def is_true(self) -> bool:
        return self.status == "True"

    @property
    def is_false(self) -> bool:
        return self.status == "False"


def has_condition(conditions: Iterable[StoredCondition], kind: str) -> bool:
    """Whether the condition of this type is there with status True."""
    return any(condition.type == kind and condition.is_true for condition in conditions)


def merge_conditions(
    before: Iterable[StoredCondition], wanted: Iterable[Condition], generation: int | None, now: datetime
) -> tuple[StoredCondition, ...]:
    """The conditions as the status should list them, in the order of `wanted`, after those `before` by type."""
    stored = {condition.type: condition for condition in before}
    merged = []
    for condition in wanted:
        status = "Unknown" if condition.status is None else str(condition.status)
        last = stored.get(condition.type)
        since = last.last_transition_time if last is not None and last.status == status else None
        merged.append(
            StoredCondition(
                type=condition.type,
                status=status,
                reason=condition.reason,
                message=condition.message[:MAX_MESSAGE_LENGTH],
                observed_generation=generation,
                last_transition_time=since or whole_second(now),
            )
        )
    return tuple(merged)
