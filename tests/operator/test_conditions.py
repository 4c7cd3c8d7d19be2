"""Conditions: the time of a transition moves only when the status does."""

from __future__ import annotations

from datetime import timedelta

import pytest
from flyball_crds.models import Condition as ConditionModel
from flyball_operator.conditions import MAX_MESSAGE_LENGTH, Condition, merge_conditions
from operator_objects import NOW, Json

LATER = NOW + timedelta(minutes=5)


def merged(before: list[Json], *wanted: Condition) -> list[Json]:
    return merge_conditions({item["type"]: item for item in before}, wanted, 3, LATER)


FIRST = merge_conditions({}, [Condition("Ready", True, "AllThere", "all are there")], 2, NOW)


def test_a_first_condition() -> None:
    assert FIRST == [
        {
            "type": "Ready",
            "status": "True",
            "observedGeneration": 2,
            "lastTransitionTime": "2030-06-01T12:00:00Z",
            "reason": "AllThere",
            "message": "all are there",
        }
    ]


def test_a_new_reason_is_no_transition() -> None:
    (condition,) = merged(FIRST, Condition("Ready", True, "StillThere"))
    assert condition["lastTransitionTime"] == "2030-06-01T12:00:00Z"
    assert (condition["reason"], condition["observedGeneration"]) == ("StillThere", 3)


@pytest.mark.parametrize(("status", "word"), [(False, "False"), (None, "Unknown")])
def test_a_new_status_is(status: bool | None, word: str) -> None:
    (condition,) = merged(FIRST, Condition("Ready", status, "Gone"))
    assert (condition["status"], condition["lastTransitionTime"]) == (word, "2030-06-01T12:05:00Z")


def test_the_order_is_that_of_what_is_wanted_and_the_rest_is_dropped() -> None:
    before = [*FIRST, *merge_conditions({}, [Condition("Old", True, "Past")], 1, NOW)]
    assert [item["type"] for item in merged(before, Condition("New", True, "Now"), Condition("Ready", True, "X"))] == [
        "New",
        "Ready",
    ]


def test_messages_are_bounded_and_every_condition_is_as_the_crd_has_it() -> None:
    (condition,) = merged([], Condition("Ready", True, "Long", "x" * 50_000))
    assert len(condition["message"]) == MAX_MESSAGE_LENGTH
    ConditionModel.model_validate(condition)
