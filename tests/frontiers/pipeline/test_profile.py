"""Profiles: what is read, and that what cannot be measured is refused with its row."""

from __future__ import annotations

import pytest
from flyball_frontiers.pipeline.profile import OperatingPoint, PipelineProfile, ProfileError
from flyball_frontiers.pipeline.solver.convex import cost_curve
from hypothesis import given
from hypothesis import strategies as st

HEADER = "stage,instruction,frequency,time,energy\n"
GOOD = "0,forward,1410,0.05,23\n0,backward,1410,0.09,44\n"


def test_reads_columns_in_any_order_with_others_between() -> None:
    profile = PipelineProfile.from_csv("energy, time,note,frequency,instruction,stage\n23,0.05,x,1410, Forward ,0\n")
    assert profile.points == {(0, "forward"): (OperatingPoint(0.05, 23.0, 1410),)}
    assert profile.stages == 1


def test_clocks_fall_whatever_the_order_of_the_rows() -> None:
    profile = PipelineProfile.from_csv(HEADER + "0,forward,900,2,1\n0,forward,1410,1,3\n0,forward,1200,1.5,2\n")
    assert [point.clock_megahertz for point in profile.of(0, "forward")] == [1410, 1200, 900]


def test_repeated_measurements_count_by_their_mean() -> None:
    profile = PipelineProfile.from_csv(HEADER + "0,forward,1410,1,10\n0,forward,1410,2,14\n0,forward,1410,3,12\n")
    assert profile.of(0, "forward") == (OperatingPoint(2.0, 12.0, 1410),)


def test_an_operation_without_a_clock() -> None:
    profile = PipelineProfile.from_csv(HEADER + GOOD + "0,load,,0.01,1\n")
    assert profile.of(0, "load") == (OperatingPoint(0.01, 1.0, None),)
    with pytest.raises(ProfileError, match="stage 0 load: a row without a frequency"):
        PipelineProfile.from_csv(HEADER + "0,load,,0.01,1\n0,load,1410,0.01,1\n")


def test_recomputation_is_derived_where_it_was_not_measured() -> None:
    rows = "0,forward,1410,1,10\n0,forward,1200,2,8\n0,backward,1410,3,30\n0,backward,1200,4,20\n0,backward,900,9,19\n"
    profile = PipelineProfile.from_csv(HEADER + rows)
    assert profile.of(0, "recompute") == profile.of(0, "forward")
    assert profile.of(0, "recompute_backward") == (OperatingPoint(4, 40, 1410), OperatingPoint(6, 28, 1200))
    measured = PipelineProfile.from_csv(HEADER + rows + "0,recompute,1410,0.5,4\n")
    assert measured.of(0, "recompute_backward") == (OperatingPoint(3.5, 34, 1410),)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0,forward,1395,-0.05,23", "row 3 .*-0.05.*time must be"),
        ("0,forward,1395,nan,23", "row 3 .*time must be"),
        ("0,forward,1395,inf,23", "row 3 .*time must be"),
        ("0,forward,1395,0,23", "row 3 .*time must be"),
        ("0,forward,1395,1e300,23", "row 3 .*time must be seconds from 1e-07 to 100,000"),
        ("0,forward,1395,1e-12,23", "row 3 .*time must be"),
        ("0,forward,1395,0.05,1e308", "row 3 .*energy must be joules from 0 to 1,000,000,000"),
        ("0,forward,1000000000,0.05,23", "row 3 .*frequency must be a whole number of MHz from 1 to 100,000"),
        ("0,forward,1395,0.05,-1", "row 3 .*energy must be"),
        ("0,forward,1395,0.05,nan", "row 3 .*energy must be"),
        ("0,forward,1395,0.05", "row 3 .*energy must be"),
        ("0,forward,1395,soon,23", "row 3 .*soon.*time must be"),
        ("0,forward,-5,0.05,23", "row 3 .*frequency must be"),
        ("0,forward,1395.5,0.05,23", "row 3 .*frequency must be"),
        ("0,forward,fast,0.05,23", "row 3 .*frequency must be"),
        ("-1,forward,1395,0.05,23", "row 3 .*stage must be"),
        ("x,forward,1395,0.05,23", "row 3 .*stage must be"),
        ("0,,1395,0.05,23", "row 3 .*instruction must be"),
        ("2,forward,1395,0.05,23", "stage 1 is missing"),
        ("1e15,forward,1395,0.05,23", "stage 1 is missing"),
    ],
)
def test_a_wrong_row_is_named(row: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        PipelineProfile.from_csv(HEADER + GOOD + row + "\n")


def test_a_wrong_file_is_said() -> None:
    with pytest.raises(ProfileError, match="no column time, energy"):
        PipelineProfile.from_csv("stage,instruction,frequency\n0,forward,1410\n")
    with pytest.raises(ProfileError, match="no rows"):
        PipelineProfile.from_csv(HEADER)
    with pytest.raises(ProfileError, match="stage 1 has no backward rows, only forward"):
        PipelineProfile.from_csv(HEADER + GOOD + "1,forward,1410,0.05,23\n").of(1, "backward")


whole = st.integers(1, 30).map(float)


@given(st.lists(st.tuples(whole, whole), min_size=1, max_size=25), st.sampled_from([0.0, 0.5, 2.0]))
def test_curve_is_the_pareto_front_and_its_lower_hull(pairs: list[tuple[float, float]], power: float) -> None:
    points = [OperatingPoint(time, energy, 900 + place) for place, (time, energy) in enumerate(pairs)]
    curve = cost_curve(points, power)
    effective = {(time, energy - power * time) for time, energy in pairs}
    front = {a for a in effective if not any(b != a and b[0] <= a[0] and b[1] <= a[1] for b in effective)}
    assert set(zip(curve.times.tolist(), curve.costs.tolist(), strict=True)) == front
    assert curve.hull[0] == 0
    assert curve.hull[-1] == len(curve.times) - 1
    assert (curve.relaxed_cost(curve.times) <= curve.costs + 1e-9).all()
    slopes = [
        (curve.hull_costs[i + 1] - curve.hull_costs[i]) / (curve.hull_times[i + 1] - curve.hull_times[i])
        for i in range(len(curve.hull) - 1)
    ]
    assert slopes == sorted(set(slopes))
    assert all(slope < 0 for slope in slopes)


def test_of_equal_points_the_lowest_clock_is_chosen() -> None:
    curve = cost_curve([OperatingPoint(1, 5, 1400), OperatingPoint(1, 5, 900), OperatingPoint(1, 6, 300)], 0.0)
    assert curve.points == (OperatingPoint(1, 5, 900),)


def test_what_is_no_csv_is_refused_by_its_line() -> None:
    with pytest.raises(ProfileError, match="line 3 cannot be read as CSV: field larger"):
        PipelineProfile.from_csv(HEADER + GOOD.splitlines()[0] + "\n0," + "a" * 200_000 + ",1,1,1\n")
    with pytest.raises(ProfileError, match="line 1 cannot be read as CSV: field larger"):
        PipelineProfile.from_csv("a" * 200_000)
