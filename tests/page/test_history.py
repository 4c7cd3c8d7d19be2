"""The chart's memory: bounded whatever comes, the worst of each step, and gaps where nothing was known."""

from __future__ import annotations

from typing import Any

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
        for whole in (False, True):
            document: dict[str, Any] = history.document(cap, whole=whole) or {}
            times = document["time"]
            assert len(times) <= 2 * 20
            assert times == sorted(set(times))
            assert now - times[0] <= 600 + 2 * history.step_seconds
            columns = ("time", "capWatts", "committedWatts", "measuredWatts")
            assert {len(document[key]) for key in columns} == {len(times)}


def test_a_step_keeps_the_moment_that_came_nearest_to_its_cap() -> None:
    history = PowerHistory(7200, steps=10)
    samples = [
        PowerSample(1000, 900, 800),
        PowerSample(700, 650, 600),
        PowerSample(700, 650, 720),
        PowerSample(None, 9999, None),
    ]
    for number, sample in enumerate(samples):
        history.add(7200.0 + number, {"row": sample})
    document = history.document("row", whole=True)
    assert document is not None
    assert (document["capWatts"], document["committedWatts"], document["measuredWatts"]) == ([700], [650], [720])


def test_a_cap_that_falls_within_a_step_is_not_drawn_as_a_breach() -> None:
    """The lower cap was never in force beside the higher draw: the two belong to different moments."""
    history = PowerHistory(7200, steps=10)
    for number, sample in enumerate([PowerSample(1000, 950, 900), PowerSample(500, 490, 450)]):
        history.add(7200.0 + number, {"row": sample})
    document = history.document("row", whole=True)
    assert document is not None
    assert document["measuredWatts"][0] < document["capWatts"][0]  # type: ignore[index]


def test_the_last_hour_is_kept_in_shorter_steps() -> None:
    history = PowerHistory(7200, steps=720)
    for at in range(0, 7200, 5):
        history.add(float(at), {"row": PowerSample(1, 1, at)})
    fine, whole = history.document("row"), history.document("row", whole=True)
    assert fine is not None
    assert whole is not None
    assert (fine["stepSeconds"], whole["stepSeconds"]) == (5, 10)
    assert [document["measuredWatts"][-1] for document in (fine, whole)] == [7195, 7195]  # type: ignore[index]
    assert (fine["time"][0], whole["time"][0]) == (3600, 0)  # type: ignore[index]


def test_what_was_not_known_is_a_gap() -> None:
    history = PowerHistory(600, steps=10)
    for at in (60.0, 180.0, 420.0):  # one step missed, then three
        history.add(at, {"row": PowerSample(1, 2, 3)})
    document = history.document("row")
    assert document is not None
    assert document["time"] == [60, 180, 240, 420]
    assert document["capWatts"] == [1, 1, None, 1]


def test_a_cap_that_was_never_seen_has_no_history() -> None:
    assert PowerHistory(600).document("row") is None
