"""The operator's Lease: what is written is read again, and what makes no sense is nobody's claim and no error."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from flyball_api.lease import NOBODY, Leader, lease_spec, read_leader, released

NOON = datetime(2030, 6, 1, 12, tzinfo=UTC)
RENEWED = NOON + timedelta(microseconds=1)
SPEC = lease_spec("operator-1", 7, 15, acquired=NOON, renewed=RENEWED)


def test_what_is_written_is_read_again() -> None:
    assert read_leader({"spec": SPEC}) == Leader("operator-1", 7, RENEWED, 15)


def test_a_released_lease_has_no_holder_and_no_new_heartbeat() -> None:
    lease = {"metadata": {"name": "flyball-operator", "resourceVersion": "4"}, "spec": {**SPEC, "strategy": "none"}}
    given_up = released(lease)
    assert given_up == {**lease, "spec": {**lease["spec"], "holderIdentity": ""}}
    assert read_leader(given_up) == Leader("", 7, RENEWED, 15)
    assert lease["spec"]["holderIdentity"] == "operator-1", "what was read stays as it was"


@pytest.mark.parametrize(
    "spec", [{}, {"spec": None}, {"spec": {}}, {"spec": "text"}, {"spec": {"holderIdentity": None}}]
)
def test_a_lease_of_nobody(spec: dict[str, Any]) -> None:
    assert read_leader(spec) == NOBODY


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("holderIdentity", 5, Leader("", 7, RENEWED, 15)),
        ("leaseTransitions", -1, Leader("operator-1", 0, RENEWED, 15)),
        ("leaseTransitions", "8", Leader("operator-1", 0, RENEWED, 15)),
        ("leaseDurationSeconds", 0, Leader("operator-1", 7, RENEWED, None)),
        ("leaseDurationSeconds", "15", Leader("operator-1", 7, RENEWED, None)),
        ("renewTime", "a while ago", Leader("operator-1", 7, None, 15)),
        ("renewTime", None, Leader("operator-1", 7, None, 15)),
    ],
)
def test_a_field_that_makes_no_sense_costs_that_field_alone(field: str, value: Any, read: Leader) -> None:
    assert read_leader({"spec": {**SPEC, field: value}}) == read


def test_nobody_leads_once_the_holder_is_late_or_gone() -> None:
    leader = read_leader({"spec": SPEC})
    assert not leader.silent_at(RENEWED + timedelta(seconds=15))
    assert leader.silent_at(RENEWED + timedelta(seconds=15.1))
    assert NOBODY.silent_at(NOON)
    assert read_leader(released({"spec": SPEC})).silent_at(NOON)
