"""Calibration: made-up boards are found again, weak knees are called weak, and bad CSVs are named by line and column."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flyball_planner.models.calibration import calibrate
from flyball_planner.models.gpu import catalogue
from flyball_planner.models.measurements import Series, read_measurements

A100 = catalogue()["NVIDIA-A100-SXM4-40GB"]


def sweep(
    activities: dict[str, float], noise: float, idle: float = 55.0, knee: float = 1110.0, slope: float = 0.9
) -> list[Series]:
    """An A100 with these constants, measured every 30 MHz; an activity of 0 is the idle board."""
    generator = random.Random(5)
    clocks = np.arange(720.0, 1411.0, 30.0)
    voltage = 1 + slope * np.maximum(0, clocks - knee) / 1410
    found = []
    for name, activity in activities.items():
        watts = idle * voltage + activity * voltage**2 * clocks
        factors = np.array([generator.lognormvariate(0, noise) for _ in clocks])
        found.append(Series(name, activity == 0, clocks, watts * factors))
    return found


def test_a_made_up_board_is_found_again() -> None:
    result = calibrate(sweep({"a": 0.17, "b": 0.08, "idle": 0.0}, noise=0.005), 1410, 700)
    assert result.idle.value == pytest.approx(55, rel=0.02)
    assert result.knee.value == pytest.approx(1110, abs=20)
    assert result.slope.value == pytest.approx(0.9, rel=0.05)
    assert result.activities == pytest.approx({"a": 0.17, "b": 0.08, "idle": 0.0}, rel=0.02)
    assert not result.knee_is_weak
    for estimate, truth in ((result.idle, 55), (result.knee, 1110), (result.slope, 0.9)):
        assert estimate.low <= truth <= estimate.high
    assert result.mean_error < 0.006


@pytest.mark.slow
def test_intervals_hold_the_truth_as_noise_grows_and_widen_with_it() -> None:
    widths = []
    for noise in (0.002, 0.02, 0.05):
        result = calibrate(sweep({"a": 0.17, "b": 0.08}, noise), 1410, 700)
        assert result.knee.low <= 1110 <= result.knee.high
        assert result.slope.low <= 0.9 <= result.slope.high
        widths.append(result.knee.high - result.knee.low)
    assert widths == sorted(widths)
    assert widths[2] > 2 * widths[0]


def test_a_board_without_a_knee_has_a_weak_one() -> None:
    result = calibrate(sweep({"a": 0.17}, noise=0.02, slope=0.0), 1410, 700)
    assert result.knee_is_weak
    assert result.slope.low == 0


def test_a_given_idle_power_is_kept() -> None:
    result = calibrate(sweep({"a": 0.17}, noise=0.01), 1410, 700, idle_watts=50.0)
    assert result.idle_was_given
    assert (result.idle.value, result.idle.low, result.idle.high) == (50, 50, 50)


@pytest.mark.slow
def test_points_at_the_power_limit_are_left_out() -> None:
    throttled = [replace(each, watts=np.minimum(each.watts, 300.0)) for each in sweep({"a": 0.19, "b": 0.1}, 0.005)]
    result = calibrate(throttled, 1410, 300)
    assert result.limited_points > 0
    assert result.used_points + result.limited_points == sum(len(each.watts) for each in throttled)
    assert result.knee.value == pytest.approx(1110, abs=60)
    assert not result.passed(300)
    # More than the limit was drawn: it was not the board's, and nothing is left out.
    assert calibrate(sweep({"a": 0.19}, 0.005), 1410, 300).limited_points == 0
    assert calibrate(sweep({"a": 0.19}, 0.005), 1410, 300).passed(300)


def test_too_little_to_fit_is_refused() -> None:
    few = [
        replace(each, clocks_megahertz=each.clocks_megahertz[:3], watts=each.watts[:3]) for each in sweep({"a": 0.1}, 0)
    ]
    with pytest.raises(ValueError, match=r"3 points of running workloads .* at least 6 are needed"):
        calibrate(few, 1410, 400)
    with pytest.raises(ValueError, match="above the GPU's highest, 1000 MHz"):
        calibrate(sweep({"a": 0.1}, 0), 1000, 400)


def test_every_spelling_of_the_columns_is_read() -> None:
    (power,) = read_measurements("clock_megahertz,power_watts\n1410,300\n\n1005,150.5\n")
    assert power.clocks_megahertz.tolist() == [1005, 1410]
    assert power.watts.tolist() == [150.5, 300]
    forward, idle = read_measurements(
        "Stage,Instruction,Frequency,Time,Energy,GPUs\n0,forward,1410,0.1,60,2\n0,idle,1410,1,140,2\n"
    )
    assert (forward.name, forward.idle, forward.watts.tolist()) == ("0 forward", False, [300])
    assert (idle.name, idle.idle, idle.watts.tolist()) == ("0 idle", True, [70])


def test_a_repeated_series_counts_once() -> None:
    text = "stage,frequency,power\n" + "".join(
        f"{stage},{clock},{clock / 5}\n" for stage in (0, 1) for clock in (900, 950)
    )
    assert [each.name for each in read_measurements(text)] == ["0"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no column for the clock"),
        ("clock,watt\n", "line 1: column 'watt' is none of clock_megahertz"),
        ("clock,time\n1,1\n", "line 1: no column for the power"),
        ("clock,frequency,power\n", "line 1: columns 'clock' and 'frequency' both say the clock"),
        ("clock,power\n", "line 2: no measurement follows"),
        ("clock,power\n900,100\n960\n", "line 3: 1 values, and the header names 2 columns"),
        ("clock,power\n900,100\n960,a lot\n", "line 3, column 'power': 'a lot' must be a number above 0"),
        ("clock,power\n900,100\n-1,100\n", "line 3, column 'clock': '-1' must be a number above 0"),
    ],
)
def test_a_bad_csv_is_refused_by_line_and_column(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_measurements(text)


@pytest.mark.parametrize(
    ("gpu", "top", "limit", "error", "weak"), [("a100_sxm", 1410, 400, 0.012, False), ("a40", 1740, 300, 0.012, False)]
)
def test_the_profiles_of_perseus_are_fitted(
    measured_data: Path, gpu: str, top: int, limit: int, error: float, weak: bool
) -> None:
    path = measured_data / "perseus-sosp24" / "stage_profile" / f"gpt3-175b+{gpu}_bf16.csv"
    series = read_measurements(path.read_text(encoding="utf-8"))
    assert len(series) == 4, "stages 0 to 6 repeat one measurement"
    result = calibrate(series, top, limit)
    assert result.mean_error < error
    assert result.knee_is_weak == weak
