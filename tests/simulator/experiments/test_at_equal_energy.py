"""JCT at equal energy, on curves that one can reckon with."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flyball_simulator.experiments.at_equal_energy import Comparison, Envelope, Point, Ratio, compare_all
from hypothesis import given
from hypothesis import strategies as st


def line(*points: tuple[float, float]) -> list[Point]:
    """Points of (joules, mean JCT); the p99 is ten times the mean."""
    return [Point(joules, seconds, 10.0 * seconds) for joules, seconds in points]


def pair(found: list[Comparison], policy: str, against: str) -> list[Comparison]:
    return [entry for entry in found if (entry.policy, entry.against) == (policy, against)]


def test_an_envelope_keeps_what_nothing_beats() -> None:
    envelope = Envelope(line((4, 10), (2, 30), (3, 40), (5, 12), (6, 8)))
    assert [(p.energy_joules, p.mean_jct_seconds) for p in envelope.points] == [(2, 30), (4, 10), (6, 8)]
    mean, p99 = envelope.at(np.array([3.0, 5.0]))
    assert mean == pytest.approx([20.0, 9.0])
    assert p99 == pytest.approx([200.0, 90.0])
    with pytest.raises(ValueError, match="at least one point"):
        Envelope([])
    with pytest.raises(ValueError, match="positive and finite"):
        Envelope(line((1.0, math.nan)))


def test_two_are_compared_only_where_both_have_been() -> None:
    found = compare_all({"a": {0: line((2, 10), (4, 6))}, "b": {0: line((3, 16), (5, 8))}})
    entries = pair(found, "a", "b")
    assert [entry.energy_joules for entry in entries] == pytest.approx(np.linspace(3.0, 4.0, 11))
    assert entries[0].mean_jct_ratio == pytest.approx(16 / 8)
    assert entries[-1].mean_jct_ratio == pytest.approx(12 / 6)
    assert sum(entry.best for entry in entries) == sum(entry.median for entry in entries) == 1
    assert next(entry for entry in entries if entry.best).mean_jct_ratio == max(e.mean_jct_ratio or 0 for e in entries)


def test_a_pair_without_a_common_energy_says_so() -> None:
    found = compare_all({"a": {0: line((2, 10), (3, 6))}, "b": {0: line((4, 12), (5, 8))}})
    (entry,) = pair(found, "a", "b")
    assert entry.mean_jct_ratio is None
    assert "shares no energy range" in (entry.note or "")
    assert entry.mean_jct_ratio_at_less_energy == pytest.approx(12 / 6), "a's fastest against b's thriftiest"
    (other,) = pair(found, "b", "a")
    assert other.mean_jct_ratio_at_less_energy is None
    assert "note" in entry.to_json()


def test_seeds_that_share_nothing_are_left_out_and_counted() -> None:
    apart = {0: line((2, 10), (4, 6)), 1: line((2, 10), (4, 6)), 2: line((5, 9))}
    found = compare_all({"a": apart, "b": {0: line((2, 30), (4, 18)), 1: line((9, 5)), 3: line((2, 1))}})
    entries = pair(found, "a", "b")
    assert [entry.mean_jct_ratio for entry in entries] == pytest.approx([3.0] * 11)
    assert {entry.seeds for entry in entries} == {1}
    assert {entry.note for entry in entries} == {"1 of 2 seeds share an energy range"}
    assert (entries[0].low, entries[0].high) == (None, None), "one seed has no interval"
    (none,) = pair(compare_all({"a": {0: line((2, 10))}, "b": {1: line((2, 10))}}), "a", "b")
    assert none.note == "shares no energy range: no seed was run of both a and b"


def test_a_range_of_one_point_is_compared_once() -> None:
    (entry,) = pair(compare_all({"a": {0: line((2, 10), (3, 6))}, "b": {0: line((3, 12), (5, 8))}}), "a", "b")
    assert (entry.energy_joules, entry.fraction) == (3.0, 0.0)
    assert entry.mean_jct_ratio == pytest.approx(2.0)
    assert entry.best
    assert entry.median


def test_the_tail_is_of_the_settings_that_give_the_mean() -> None:
    """a has a setting of a shorter p99 that loses by its mean: nobody is credited with two settings at once."""
    ours = [Point(2.0, 10.0, 90.0), Point(3.0, 12.0, 20.0), Point(4.0, 6.0, 50.0)]
    found = pair(compare_all({"a": {0: ours}, "b": {0: line((2, 10), (4, 6))}}), "a", "b")
    assert [entry.p99_jct_ratio for entry in (found[0], found[5], found[-1])] == pytest.approx(
        [100 / 90, 80 / 70, 60 / 50]
    )


def test_the_interval_is_students_over_the_logarithms() -> None:
    ratio = Ratio.of([1.0, math.e**2])
    assert ratio.mean == pytest.approx(math.e)
    half = 12.706204736 * math.sqrt(2.0) / math.sqrt(2.0)  # t(0.975, 1 degree) times the standard error of (0, 2)
    assert math.log(ratio.high or 0.0) == pytest.approx(1.0 + half)
    assert math.log(ratio.low or 0.0) == pytest.approx(1.0 - half)
    assert Ratio.of([2.0]) == Ratio(pytest.approx(2.0), None, None)  # type: ignore[arg-type]


points = st.lists(
    st.tuples(st.floats(1.0, 100.0), st.floats(1.0, 1e4)).map(lambda p: Point(p[0], p[1], 2 * p[1])),
    min_size=1,
    max_size=6,
)


@given(st.dictionaries(st.sampled_from("ab"), st.dictionaries(st.integers(0, 2), points, min_size=1), min_size=2))
def test_one_way_round_is_the_reciprocal_of_the_other(curves: dict[str, dict[int, list[Point]]]) -> None:
    found = compare_all(curves)
    for one, other in zip(pair(found, "a", "b"), pair(found, "b", "a"), strict=True):
        assert one.fraction == other.fraction
        if one.mean_jct_ratio is not None and other.mean_jct_ratio is not None:
            assert one.mean_jct_ratio * other.mean_jct_ratio == pytest.approx(1.0)
