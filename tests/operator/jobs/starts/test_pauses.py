"""Pauses grow while something fails, and come to a longest one however often it does."""

from __future__ import annotations

import pytest
from flyball_operator.jobs.starts.pauses import doubled_seconds, pause_seconds, refusal_seconds

OFTEN = 10**6


@pytest.mark.parametrize(
    ("repeats", "seconds"), [(0, 0.0), (1, 10.0), (2, 20.0), (6, 320.0), (7, 600.0), (8, 600.0), (OFTEN, 600.0)]
)
def test_each_start_that_comes_to_nothing_doubles_the_pause_before_the_next(repeats: int, seconds: float) -> None:
    assert pause_seconds(10.0, repeats) == seconds


@pytest.mark.parametrize(("before", "seconds"), [(0, 10.0), (1, 20.0), (5, 320.0), (6, 600.0), (OFTEN, 600.0)])
def test_what_is_refused_is_asked_for_after_longer_each_time(before: int, seconds: float) -> None:
    assert refusal_seconds(before) == seconds


def test_no_pause_is_above_its_longest_even_the_first() -> None:
    assert doubled_seconds(0.5, 0, 64.0) == 0.5
    assert doubled_seconds(0.5, 9, 8.0) == 8.0
    assert doubled_seconds(5.0, 0, 2.0) == 2.0
