"""What the API server says of an annotation that announces a straggler: refused where the operator could not read it."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_api.energy_aware_job import read_straggler
from flyball_api.names import ANNOTATION_STRAGGLER
from flyball_kube.errors import ApiError
from flyball_testbed.controlplane.processes import wait_until

TIMEOUT_SECONDS = 30.0
WANTED = "wanted: DEGREE (1 to 100) [replica NUMBER] [from TIME] [until TIME]"
NOON, LATER = "2026-01-31T12:00:00Z", "2026-01-31T13:10:00.5+01:00"


def _announcing(kinds: Any, text: str, name: str = "announcing") -> Any:
    manifest = kinds.object("EnergyAwareJob", name=name)
    manifest["metadata"]["annotations"] = {ANNOTATION_STRAGGLER: text}
    return manifest


def _refused(kinds: Any, text: str) -> bool:
    try:
        kinds.try_create(_announcing(kinds, text))
    except ApiError:
        return True
    return False


@pytest.fixture(scope="module")
def in_force(kinds: Any) -> None:
    """A policy is in force a moment after it was created."""
    assert wait_until(lambda: _refused(kinds, "slow"), TIMEOUT_SECONDS)


@pytest.mark.usefixtures("in_force")
@pytest.mark.parametrize(
    "text",
    [
        *("slow", "  ", "0.9", "100.5", "nan", "1e1", "1.2 stage 3", "1.2 until", "1.2 replica -1", "1.2 until noon"),
        *("1.2 until 2026-01-31T12:00:00", "1.2 until 2026-13-01T12:00:00Z", "1.2 replica 0 replica 1", "1.2until 1"),
        f"1.2 until {NOON} until {NOON}",
        f"1.2 from {NOON} until {NOON}",
        f"1.2 until {NOON} from {LATER}",
        f"1.2 from {LATER} until {NOON}",
    ],
)
def test_what_the_operator_cannot_read_is_refused_with_what_would_be_right(kinds: Any, text: str) -> None:
    with pytest.raises(ValueError, match="wanted: DEGREE"):
        read_straggler(text)
    refusal = kinds.refusal(kinds.try_create, _announcing(kinds, text))
    assert WANTED in refusal.message
    assert f'metadata.annotations[flyball.dev/straggler] "{text}" cannot be read' in refusal.message


@pytest.mark.usefixtures("in_force")
def test_a_day_that_no_month_has_is_refused(kinds: Any) -> None:
    assert _refused(kinds, "1.2 until 2026-02-30T12:00:00Z")


@pytest.mark.usefixtures("in_force")
@pytest.mark.parametrize(
    "text",
    [
        *("", "1", "100", "1.2", " 1.250  replica 3 ", f"1.2 until {NOON}", f"2 until {LATER} replica 0 from {NOON}"),
        f"1.2 from {NOON} until {LATER}",
    ],
)
def test_what_the_operator_reads_is_taken(kinds: Any, text: str) -> None:
    assert not text or read_straggler(text)
    kinds.try_create(_announcing(kinds, text))


@pytest.mark.usefixtures("in_force")
def test_a_change_of_the_annotation_is_looked_at_as_a_new_one_is(kinds: Any) -> None:
    stored = kinds.api.create(kinds.path("EnergyAwareJob"), _announcing(kinds, "1.2", "changing"))
    try:
        changed = {**stored, "metadata": {**stored["metadata"], "annotations": {ANNOTATION_STRAGGLER: "soon"}}}
        assert WANTED in kinds.refusal(kinds.try_update, changed, {}).message
        kinds.try_update(stored, {"priority": 1})
    finally:
        kinds.api.delete(kinds.path("EnergyAwareJob", "changing"))
