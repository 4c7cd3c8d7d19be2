"""What is drawn outside the GPUs: the middle of what meter and reports differ by."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flyball_operator.power.caps.overhead import MAX_SAMPLES, WINDOW_SECONDS, Overhead, follow_overhead


def followed(
    seconds: int,
    gpus: Callable[[float], float],
    reports_late: float = 0.0,
    hosts: float = 150.0,
    started: int = 0,
) -> Overhead:
    """After so many seconds of readings every two seconds from `started` on, of GPUs whose reports are late."""
    overhead = Overhead()
    for at in range(0, seconds + 1, 2):
        reported = gpus(max(0.0, at - reports_late))
        overhead = follow_overhead(overhead, gpus(at) + hosts, reported, 1000.0, float(started + at))
    return overhead


@pytest.mark.parametrize("started", [0, 10_000])
def test_it_is_known_after_a_minute(started: int) -> None:
    assert followed(58, lambda at: 600.0, started=started).watts is None
    assert followed(60, lambda at: 600.0, started=started).watts == 150


def test_a_start_and_an_end_that_reports_tell_late_are_no_overhead() -> None:
    assert followed(300, lambda at: 800.0 if 200 <= at < 260 else 300.0, reports_late=30.0).watts == 150


def test_it_is_shown_anew_only_where_it_has_moved_by_more_than_a_hundredth_of_the_cap() -> None:
    overhead = followed(120, lambda at: 600.0)
    for at in range(122, 500, 2):
        overhead = follow_overhead(overhead, 600.0 + 160.0, 600.0, 1000.0, float(at))
    assert overhead.watts == 150
    for at in range(500, 800, 2):
        overhead = follow_overhead(overhead, 600.0 + 200.0, 600.0, 1000.0, float(at))
    assert overhead.watts == 200


def test_a_meter_below_the_reports_shows_none_and_no_more_is_kept_than_is_needed() -> None:
    overhead = Overhead()
    for at in range(1000):
        overhead = follow_overhead(overhead, 500.0, 600.0, 1000.0, float(at))
    assert overhead.watts == 0
    assert len(overhead.samples) <= MAX_SAMPLES + 1
    assert 999 - overhead.samples[0][0] == WINDOW_SECONDS


def test_what_one_agent_leaves_out_shows_as_overhead_of_all() -> None:
    """Why nothing is decided by it: the word of one node would take the others' watts."""
    honest, lying = 6 * 3200.0, 3200.0
    overhead = followed(300, lambda at: honest + lying, hosts=150.0)
    assert overhead.watts == 150
    for at in range(302, 500, 2):
        overhead = follow_overhead(overhead, honest + lying + 150.0, honest, 25_000.0, float(at))
    assert overhead.watts == 150 + 3200
