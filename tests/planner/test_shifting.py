"""When a job that can wait starts: never too late, and where the signal is lowest while it runs."""

from __future__ import annotations

import time

import pytest
from flyball_planner.shifting import RESERVE, WORTH_WAITING, Signal, best_start
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples

HOUR = 3600.0
DAY = Signal.of([(index * HOUR, value) for index, value in enumerate([400, 300, 100, 100, 300, 400])])


def test_a_job_waits_for_the_hours_that_are_lowest_while_it_runs() -> None:
    start = best_start(DAY, 0.0, 6 * HOUR, 2 * HOUR)
    assert start is not None
    assert (start.second, start.mean, start.mean_now) == (2 * HOUR, 100.0, 350.0)


def test_it_is_done_in_time() -> None:
    start = best_start(DAY, 0.0, 4 * HOUR, 2 * HOUR)
    assert start is not None
    assert start.second == HOUR  # with half as long again kept for a job that gets less than was reckoned
    assert best_start(DAY, 0.0, 3 * HOUR, 2 * HOUR) is None


def test_it_starts_now_where_waiting_gains_nothing_or_nobody_knows() -> None:
    assert best_start(DAY, 2 * HOUR, 6 * HOUR, HOUR) is None
    assert best_start(Signal.of([(0, 100), (HOUR, 99)]), 0.0, 2 * HOUR, HOUR) is None
    assert best_start(DAY, -1.0, 6 * HOUR, HOUR) is None
    assert best_start(DAY, 0.0, 100 * HOUR, 7 * HOUR) is None


def test_what_is_no_signal_is_refused() -> None:
    for steps in ([], [(0, 1), (0, 2)], [(1, 1), (0, 2)], [(0, float("nan"))]):
        with pytest.raises(ValueError, match="signal"):
            Signal.of(steps)


def test_a_long_job_and_a_fine_signal_take_no_time() -> None:
    """Looked at for each of a thousand jobs in the loop that also cuts: what is summed up must not be summed up again."""
    month = Signal.of([(index * 300.0, float(index % 288)) for index in range(8064)])
    begun = time.process_time()
    for _ in range(10):
        assert best_start(month, 1.0, month.end, 7 * 24 * HOUR) is None  # it takes whole days
        assert best_start(month, 150 * 300.0, month.end, 12 * HOUR) is not None
    assert time.process_time() - begun < 2.0


def test_of_starts_that_are_the_same_the_earliest_is_taken() -> None:
    days = Signal.of([(1.9e9 + index * HOUR, [400.1, 100.3][index % 24 in (5, 6, 7)]) for index in range(240)])
    start = best_start(days, 1.9e9, days.end, 2.5 * HOUR)
    assert start is not None
    assert start.second == pytest.approx(1.9e9 + 5 * HOUR)


@settings(max_examples=examples(300))
@given(
    values=st.lists(st.integers(0, 1000), min_size=1, max_size=12),
    now=st.integers(0, 12 * 3600),
    span=st.integers(1, 15 * 3600),
    run=st.integers(1, 8 * 3600),
)
def test_no_other_start_is_better_and_none_is_too_late(values: list[int], now: int, span: int, run: int) -> None:
    signal = Signal.of([(index * HOUR, float(value)) for index, value in enumerate(values)])
    found = best_start(signal, float(now), float(now + span), float(run))
    mean_now = signal.mean(float(now), float(run))
    if found is not None:
        assert now < found.second <= now + span - RESERVE * run
        assert found.mean == pytest.approx(signal.mean(found.second, run))
        assert found.mean < found.mean_now == mean_now
    if mean_now is None:
        return
    best = mean_now if found is None else found.mean
    for start in range(now, now + span, 601):
        other = signal.mean(float(start), float(run))
        if other is not None and start + RESERVE * run <= now + span:
            assert other >= best - WORTH_WAITING * mean_now - 1e-6
