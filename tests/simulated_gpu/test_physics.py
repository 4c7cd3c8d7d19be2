"""The physical model: power, clock and energy against the formulas, by brute force and by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from flyball_simulated_gpu import physics
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.physics import DeviceConstants
from hypothesis import given
from hypothesis import strategies as st

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
PRODUCTS = st.sampled_from(sorted(CATALOGUE.values(), key=lambda product: product.product_name))
SECOND = 1_000_000_000


@given(PRODUCTS, st.floats(0, 1), st.integers(50_000, 800_000), st.integers(0, 2100), st.integers(0, 2100))
def test_operating_point_is_the_highest_allowed_clock_that_fits_the_limit(
    product: DeviceConstants, activity: float, limit: int, low: int, high: int
) -> None:
    low, high = (min(low, high), max(low, high)) if high else (0, 0)
    clock, power = physics.operating_point(product, limit, low, high, activity)
    clocks = physics.supported_clocks_megahertz(product)
    assert clock in clocks
    assert power == physics.power_milliwatts(product, clock, activity)
    allowed = [f for f in clocks if high == 0 or f <= high] or [clocks[0]]
    if activity == 0:
        allowed = [f for f in allowed if f <= max(low, clocks[0])]
    fitting = [f for f in allowed if physics.power_milliwatts(product, f, activity) <= limit] or [clocks[0]]
    assert clock == max(fitting)


def test_power_follows_the_documented_curve() -> None:
    voltage = 1 + 1.0 * (1410 - 1125) / 1410
    expected = 58_000 * voltage + 0.5 * 162.0 * voltage**2 * 1410
    assert physics.power_milliwatts(A100, 1410, 0.5) == round(expected)
    assert physics.power_milliwatts(A100, 1125, 0.5) == 58_000 + round(0.5 * 162.0 * 1125)


def test_every_product_draws_about_its_largest_limit_at_full_activity() -> None:
    for product in CATALOGUE.values():
        clock, power = physics.operating_point(product, 10**9, 0, 0, 1.0)
        assert clock == product.clock_max_megahertz
        assert power == pytest.approx(product.max_limit_milliwatts, rel=0.01)


def test_energy_is_the_exact_integral_over_changes() -> None:
    state = physics.power_on(A100, 0)
    physics.set_activity(A100, state, 2 * SECOND, 1.0)
    assert state.energy_millijoules == 2 * 58_000
    full = state.power_milliwatts
    physics.set_power_limit(A100, state, 3 * SECOND, 200_000, 0)
    limited = state.power_milliwatts
    physics.settle(state, 5 * SECOND)
    assert limited <= 200_000 < full
    assert state.energy_millijoules == 2 * 58_000 + full + 2 * limited


def test_a_settling_limit_is_requested_at_once_and_enforced_later() -> None:
    state = physics.power_on(A100, 0)
    physics.set_activity(A100, state, 0, 1.0)
    full = state.power_milliwatts
    physics.set_power_limit(A100, state, SECOND, 150_000, SECOND // 2)
    assert (state.requested_limit_milliwatts, state.enforced_limit_milliwatts) == (150_000, 400_000)
    assert state.power_milliwatts == full
    physics.settle(state, 3 * SECOND)
    assert state.enforced_limit_milliwatts == 150_000
    assert state.energy_millijoules == full * 1.5 + state.power_milliwatts * 1.5


def test_a_change_while_a_limit_settles_keeps_the_pending_limit() -> None:
    state = physics.power_on(A100, 0)
    physics.set_power_limit(A100, state, 0, 150_000, SECOND)
    physics.set_activity(A100, state, SECOND // 2, 1.0)
    assert state.enforced_limit_milliwatts == 400_000
    physics.settle(state, 2 * SECOND)
    assert state.enforced_limit_milliwatts == 150_000
    assert state.power_milliwatts <= 150_000


def test_idle_gpu_rests_unless_its_lock_holds_it_up() -> None:
    state = physics.power_on(A100, 0)
    assert (state.sm_clock_megahertz, state.power_milliwatts) == (210, 58_000)
    physics.set_locked_clocks(A100, state, 0, 1410, 1410)
    assert state.sm_clock_megahertz == 1410
    assert state.power_milliwatts > 58_000
    physics.set_locked_clocks(A100, state, 0, 0, 0)
    assert state.power_milliwatts == 58_000


def test_an_out_of_band_cap_lowers_the_enforced_limit_only() -> None:
    state = physics.power_on(A100, 0)
    physics.set_out_of_band_cap(A100, state, 0, 180_000)
    assert (state.requested_limit_milliwatts, state.enforced_limit_milliwatts) == (400_000, 180_000)
    physics.set_power_limit(A100, state, 0, 150_000, 0)
    assert state.enforced_limit_milliwatts == 150_000
    physics.set_out_of_band_cap(A100, state, 0, 0)
    physics.set_power_limit(A100, state, 0, 250_000, 0)
    assert state.enforced_limit_milliwatts == 250_000


def test_a_driver_reload_goes_back_to_defaults_and_zero() -> None:
    state = physics.power_on(A100, 0)
    physics.set_power_limit(A100, state, 0, 150_000, 0)
    physics.set_locked_clocks(A100, state, 0, 600, 600)
    physics.set_activity(A100, state, 0, 1.0)
    physics.reload_driver(A100, state, SECOND)
    assert state.requested_limit_milliwatts == state.enforced_limit_milliwatts == 400_000
    assert (state.locked_min_megahertz, state.locked_max_megahertz, state.activity) == (0, 0, 0.0)
    assert 0 <= state.energy_millijoules - state.energy_base_millijoules < 1
    assert state.energy_millijoules > 100_000  # the true integral is not reset


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("default_limit_milliwatts", 90_000, "not in ascending order"),
        ("clock_step_megahertz", 17, "not a multiple"),
        ("clock_step_megahertz", 0, "ascending range"),
        ("voltage_slope", float("nan"), "voltage slope"),
        ("watts_per_megahertz", 0.0, "watts per megahertz"),
    ],
)
def test_impossible_constants_are_refused(field: str, value: float, message: str) -> None:
    constants: dict[str, Any] = {field: value}
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(A100, **constants)
