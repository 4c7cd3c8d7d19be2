"""Power-limit selectors: against brute force over random profiles, and on the shape of a real one."""

from __future__ import annotations

import math

import pytest
from flyball_frontiers.zeus import (
    LeastCost,
    LeastEnergy,
    LeastEnergyWithin,
    LeastTime,
    PowerLimitMeasurement,
    power_limit_frontier,
    would_save,
)
from flyball_frontiers.zeus.profile_table import read_profile
from hypothesis import given
from hypothesis import strategies as st

# ResNet-50 on ImageNet at batch size 256 on a V100 PCIe: seconds an epoch and average watts by power limit, from the
# Zeus artifact's power trace (ml-energy/zeus, Apache-2.0), rounded.
RESNET50_V100 = {
    100: (6781.0, 98.4),
    125: (5065.0, 122.0),
    150: (4149.0, 144.6),
    175: (3852.0, 166.4),
    200: (3701.0, 184.9),
    225: (3584.0, 205.4),
    250: (3515.0, 220.3),
}
PROFILE = tuple(
    PowerLimitMeasurement(1000 * limit, seconds, seconds * watts) for limit, (seconds, watts) in RESNET50_V100.items()
)

profiles = st.dictionaries(
    st.integers(50, 700),
    st.tuples(st.floats(0.1, 100.0), st.floats(10.0, 1000.0), st.integers(1, 500)),
    min_size=1,
    max_size=12,
).map(lambda d: [PowerLimitMeasurement(1000 * w, t, e, float(i)) for w, (t, e, i) in d.items()])
weights = st.floats(0.0, 1.0)


@given(profiles, weights, st.integers(1, 8))
def test_least_cost_is_equation_7(profile: list[PowerLimitMeasurement], eta: float, gpus: int) -> None:
    maximum = gpus * max(m.power_limit_milliwatts for m in profile) / 1000

    def equation_7(m: PowerLimitMeasurement) -> float:  # [eta * AvgPower + (1 - eta) * MAXPOWER] / Throughput
        return (eta * m.average_power_watts + (1 - eta) * maximum) / (m.iterations / m.time_seconds)

    chosen = LeastCost(eta, gpus).select(profile)
    assert equation_7(chosen) <= min(map(equation_7, profile)) * (1 + 1e-12)


@given(profiles)
def test_the_ends_of_eta_are_the_energy_and_the_time_selector(profile: list[PowerLimitMeasurement]) -> None:
    assert LeastCost(1.0).select(profile).joules_per_iteration == LeastEnergy().select(profile).joules_per_iteration
    fastest = LeastTime().select(profile)
    assert math.isclose(LeastCost(0.0).select(profile).seconds_per_iteration, fastest.seconds_per_iteration)


@given(profiles, st.floats(1.0, 3.0))
def test_no_selector_picks_what_another_choice_beats(profile: list[PowerLimitMeasurement], slowdown: float) -> None:
    reference = max(profile, key=lambda m: m.power_limit_milliwatts).seconds_per_iteration
    within = [m for m in profile if m.seconds_per_iteration <= slowdown * reference]
    chosen = LeastEnergyWithin(slowdown).select(profile)
    assert chosen in within
    assert chosen.joules_per_iteration == min(m.joules_per_iteration for m in within)
    assert LeastTime().select(profile).seconds_per_iteration == min(m.seconds_per_iteration for m in profile)
    assert LeastEnergy().select(profile).joules_per_iteration == min(m.joules_per_iteration for m in profile)


def test_equal_limits_go_to_the_lowest() -> None:
    flat = [PowerLimitMeasurement(limit, 2.0, 100.0) for limit in (300_000, 100_000, 200_000)]
    for selector in (LeastEnergy(), LeastTime(), LeastCost(0.5), LeastEnergyWithin(1.0)):
        assert selector.select(flat).power_limit_milliwatts == 100_000


def test_resnet50_on_a_v100_is_chosen_as_measured() -> None:
    assert LeastEnergy().select(PROFILE).power_limit_milliwatts == 150_000
    assert LeastTime().select(PROFILE).power_limit_milliwatts == 250_000
    assert LeastCost(0.5).select(PROFILE).power_limit_milliwatts == 175_000
    assert LeastEnergyWithin(1.06).select(PROFILE).power_limit_milliwatts == 200_000
    assert LeastEnergyWithin(1.10).select(PROFILE).power_limit_milliwatts == 175_000
    limits = [LeastCost(eta / 10).select(PROFILE).power_limit_milliwatts for eta in range(11)]
    assert limits == sorted(limits, reverse=True), "more weight on energy never raises the limit"


def test_an_observer_reports_the_saving_against_the_largest_limit() -> None:
    saving = would_save(PROFILE, LeastCost(0.5))
    assert saving.power_limit_milliwatts == 175_000
    assert saving.current_power_limit_milliwatts == 250_000
    assert saving.energy_saved_fraction == pytest.approx(1 - 3852.0 * 166.4 / (3515.0 * 220.3))
    assert saving.time_added_fraction == pytest.approx(3852.0 / 3515.0 - 1)
    assert saving.joules_saved_per_iteration == pytest.approx(3515.0 * 220.3 - 3852.0 * 166.4)
    assert saving.seconds_added_per_iteration == pytest.approx(337.0)


def test_the_cost_of_several_gpus_counts_every_gpu_s_maximum_power() -> None:
    # Two GPUs draw twice the energy of one; with MAXPOWER of both, the same limit is best.
    doubled = [PowerLimitMeasurement(m.power_limit_milliwatts, m.time_seconds, 2 * m.energy_joules) for m in PROFILE]
    assert LeastCost(0.5, gpus=2).select(doubled).power_limit_milliwatts == 175_000
    assert LeastCost(0.5, gpus=1).select(doubled).power_limit_milliwatts < 175_000
    assert LeastCost(0.5, maximum_power_watts=500.0).select(doubled).power_limit_milliwatts == 175_000


def test_the_frontier_keeps_the_limits_that_nothing_dominates() -> None:
    frontier = power_limit_frontier(PROFILE)
    assert [point.plan for point in frontier.points] == [250_000, 225_000, 200_000, 175_000, 150_000]
    assert frontier.at(3900.0).plan == 175_000


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: LeastCost(1.5), r"energy weight 1.5 is outside \[0, 1\]"),
        (lambda: LeastCost(0.5, gpus=0), "0 GPUs"),
        (lambda: LeastCost(0.5, maximum_power_watts=0.0), "maximum power 0.0 W"),
        (lambda: LeastEnergyWithin(0.9), "slowdown 0.9 is below 1"),
        (lambda: LeastEnergy().select([]), "no power limit has been measured"),
        (lambda: LeastEnergy().select([PROFILE[0], PROFILE[0]]), "measured twice"),
        (lambda: PowerLimitMeasurement(100_000, 0.0, 5.0), "must be positive"),
        (lambda: PowerLimitMeasurement(100_000, 1.0, math.nan), "must be positive"),
    ],
)
def test_what_is_wrong_is_said(build: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build()  # type: ignore[operator]


def test_both_layouts_of_a_profile_are_read() -> None:
    ours, gpus = read_profile(["power_limit_watts,time_seconds,energy_joules,iterations", "250,10,2000,40"])
    assert (ours, gpus) == ((PowerLimitMeasurement(250_000, 10.0, 2000.0, 40.0),), 1)
    log = ["start_time,window_name,elapsed_time,gpu0_energy,gpu1_energy", "1.0,__Optimizer_225,8.0,700.0,800.0"]
    assert read_profile(log) == ((PowerLimitMeasurement(225_000, 8.0, 1500.0, 40.0),), 2)
    with pytest.raises(ValueError, match="line 2"):
        read_profile(["power_limit_watts,time_seconds,energy_joules", "250,ten,2000"])
    with pytest.raises(ValueError, match="line 2"):
        read_profile(["window_name,elapsed_time,gpu0_energy", "warm-up,8.0,700.0"])
    with pytest.raises(ValueError, match="wanted power_limit_watts"):
        read_profile(["a,b", "1,2"])
