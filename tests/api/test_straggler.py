"""The annotation that announces a straggler: what it says, and what is said of one that cannot be read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from flyball_api.energy_aware_job import Straggler, read_energy_aware_job, read_straggler
from flyball_api.names import ANNOTATION_STRAGGLER
from flyball_api.values.times import format_time
from hypothesis import given
from hypothesis import strategies as st

from tests.support.operator_objects import raw_job

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
WHEN = st.none() | st.integers(0, 10**6).map(lambda seconds: NOON + timedelta(seconds=seconds))


@given(st.integers(100, 10_000), st.none() | st.integers(0, 999_999), WHEN, WHEN, st.permutations([0, 1, 2]))
def test_what_is_written_in_any_order_is_read(
    percent: int, replica: int | None, since: datetime | None, until: datetime | None, order: list[int]
) -> None:
    words = [
        "" if replica is None else f"replica {replica}",
        "" if since is None else f"from {format_time(since)}",
        "" if until is None else f"until {format_time(until)}",
    ]
    text = " ".join([f"{percent / 100:.2f}", *(words[place] for place in order)])
    if since is not None and until is not None and until <= since:
        with pytest.raises(ValueError, match="no later than it begins"):
            read_straggler(text)
    else:
        assert read_straggler(text) == Straggler(percent / 100, replica, since, until)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("slow", "'slow' is no degree of 1 to 100"),
        ("  ", "'' is no degree"),
        ("0.9", "'0.9' is no degree"),
        ("101", "'101' is no degree"),
        ("nan", "'nan' is no degree"),
        ("1e1", "'1e1' is no degree"),
        ("1.2 stage 3", "'stage 3' cannot be read"),
        ("1.2 until", "'until' cannot be read"),
        ("1.2 until 2026-01-31T12:00:00Z until 2026-01-31T12:00:00Z", "cannot be read"),
        ("1.2 replica -1", "replica '-1' is no number from 0"),
        ("1.2 until noon", "'noon' is no time"),
        ("1.2 until 2026-01-31T12:00:00", "does not say of which time zone"),
    ],
)
def test_what_cannot_be_read_is_named_and_the_job_goes_on_without(text: str, why: str) -> None:
    raw = raw_job()
    raw["metadata"]["annotations"] = {ANNOTATION_STRAGGLER: text}
    job = read_energy_aware_job(raw)
    assert job.straggler is None
    (problem,) = job.problems
    assert problem.startswith("metadata.annotations[flyball.dev/straggler]: ")
    assert why in problem
    assert "wanted: DEGREE [replica NUMBER] [from TIME] [until TIME], as 1.2" in problem


def test_a_job_without_one_has_no_problem() -> None:
    job = read_energy_aware_job(raw_job())
    assert (job.straggler, job.problems) == (None, ())
