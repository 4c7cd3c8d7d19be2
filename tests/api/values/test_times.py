"""Times of the API are written in UTC, as Kubernetes does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from flyball_api.values.times import format_micro_time, format_time, whole_second


def test_times_are_written_in_utc_and_whole_seconds() -> None:
    noon = datetime(2030, 6, 1, 14, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=2)))
    assert format_time(noon) == "2030-06-01T12:00:00Z"
    assert whole_second(noon) == datetime(2030, 6, 1, 12, tzinfo=UTC)
    assert format_time(datetime(33, 1, 2, tzinfo=UTC)) == "0033-01-02T00:00:00Z"


def test_micro_times_have_six_digits_also_of_a_whole_second() -> None:
    """Kubernetes takes a `MicroTime` in no other form."""
    noon = datetime(2030, 6, 1, 14, tzinfo=timezone(timedelta(hours=2)))
    assert format_micro_time(noon) == "2030-06-01T12:00:00.000000Z"
    assert format_micro_time(noon + timedelta(microseconds=1)) == "2030-06-01T12:00:00.000001Z"


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-23:00", "0001-01-01T00:00:00+10:00"])
def test_times_beyond_the_calendar_in_utc_are_kept_within_it(text: str) -> None:
    assert format_time(datetime.fromisoformat(text))[:19] == text[:19]
