"""The chart's memory: bounded whatever comes, the worst of each step, and gaps where nothing was known."""

from __future__ import annotations

from flyball_page.history import PowerHistory, PowerSample
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples

watts = st.none() | st.integers(0, 10**8)
samples = st.builds(PowerSample, watts, watts, watts)
# Mostly forward in time, with jumps in both directions, as clocks make them.
moves = st.lists(st.tuples(st.floats(-5000, 5000), st.sampled_from(["a", "b", "c", "d"]), samples), max_size=120)


@given(moves)
@settings(max_examples=examples(300))
def test_its_memory_is_bounded_and_its_columns_are_in_order(moved: list[tuple[float, str, PowerSample]]) -> None:
    history, now = PowerHistory(600, steps=20, max_caps=3), 10_000.0
    for by, cap, sample in moved:
        now += by
        history.add(now, {cap: sample})
        assert len(list(history.names())) <= 3
        document = history.document(cap)
        assert document is not None
        times = document["time"]
        assert isinstance(times, list)
        assert len(times) <= 2 * 20
        assert times == sorted(set(times))
        assert now - times[0] <= 600 + 2 * history.step_seconds
        assert {len(document[key]) for key in ("time", "capWatts", "committedWatts", "measuredWatts")} == {len(times)}  # type: ignore[arg-type]


def test_a_step_keeps_the_worst_that_was_seen_in_it() -> None:
    history = PowerHistory(600, steps=10)
    for cap, committed, measured in ((1000, 900, 800), (700, 950, 990), (1000, 600, None)):
        history.add(120.0, {"row": PowerSample(cap, committed, measured)})
    document = history.document("row")
    assert document is not None
    assert (document["capWatts"], document["committedWatts"], document["measuredWatts"]) == ([700], [950], [990])


def test_what_was_not_known_is_a_gap() -> None:
    history = PowerHistory(600, steps=10)
    for at in (60.0, 120.0, 300.0):
        history.add(at, {"row": PowerSample(1, 2, 3)})
    document = history.document("row")
    assert document is not None
    assert document["time"] == [60, 120, 180, 300]
    assert document["capWatts"] == [1, 1, None, 1]


def test_a_cap_that_was_never_seen_has_no_history() -> None:
    assert PowerHistory(600).document("row") is None
