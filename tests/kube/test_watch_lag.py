"""How late a watch brings things, by writes of ours that come back through it."""

from __future__ import annotations

from flyball_kube.watch_lag import MOST_WRITES, WatchLag
from hypothesis import given
from hypothesis import strategies as st


def test_a_write_that_comes_back_says_how_late_and_that_fades_by_a_second_a_second() -> None:
    lag = WatchLag()
    lag.written(7, 100.0)
    lag.written(9, 102.0)
    assert lag.seconds(103.0) == 3.0, "one is on its way for so long already"
    lag.come_to(8, 104.0)
    assert lag.seconds(104.0) == 4.0
    assert lag.seconds(105.0) == 3.0, "the one that came back a second ago after four; the other one waits for three"
    lag.come_to(9, 105.0)
    assert lag.seconds(106.0) == 2.0
    assert lag.seconds(120.0) == 0.0


def test_what_was_behind_by_more_counts_beside_what_comes_quickly_afterwards() -> None:
    lag = WatchLag()
    lag.written(1, 0.0)
    lag.come_to(1, 10.0)
    lag.written(2, 10.5)
    lag.come_to(2, 10.6)
    assert lag.seconds(11.0) == 9.0


def test_of_more_writes_than_are_remembered_the_first_says_how_far_the_watch_is_behind() -> None:
    """As where a new leader grants anew to thousands of nodes."""
    lag = WatchLag()
    for version in range(10 * MOST_WRITES):
        lag.written(version, 0.01 * version)
    assert lag.seconds(120.0) == 120.0
    lag.come_to(4 * MOST_WRITES, 120.0)
    assert lag.seconds(120.0) == 120.0, "the first one came back after so long"
    assert lag.seconds(160.0) >= 119.0, (
        "the first of those that have yet to come, or one shortly behind it, waits as long"
    )


@given(st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.0, 60.0)), min_size=1, max_size=30))
def test_no_change_that_comes_right_behind_a_write_is_later_than_is_known(writes: list[tuple[float, float]]) -> None:
    """Each write is stored after the one before it, and comes back so late, or with the one before it if that is later."""
    lag, stored, comes = WatchLag(), 0.0, 0.0
    events = []
    for version, (pause, late) in enumerate(writes):
        stored += pause
        comes = max(comes, stored + late)
        events += [(stored, 0, version), (comes, 1, version)]
    at = {version: moment for moment, kind, version in events if kind == 0}
    for moment, kind, version in sorted(events):
        if kind == 0:
            lag.written(version, moment)
        else:
            lag.come_to(version, moment)
            assert lag.seconds(moment) >= moment - at[version] - 1e-9
