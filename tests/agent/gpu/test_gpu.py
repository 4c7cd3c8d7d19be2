"""Plausibility of readings, the table of driver errors, and what limits can be set."""

from __future__ import annotations

import pynvml
import pytest
from flyball_agent.gpu import gpu
from flyball_agent.gpu.gpu import GpuLimits, GpuReading, PowerLimitReading, plausible
from flyball_api.values.units import MilliwattsPerGpu

from tests.support.milliwatts import gpu_limits, limit_reading

LIMITS = gpu_limits(100_000, 400_000, 400_000, tuple(range(210, 1411, 15)))
LIMIT = limit_reading(400_000)


@pytest.mark.parametrize(
    ("field", "possible", "impossible"),
    [
        ("average_power_milliwatts", 410_000, 3_700_000),
        ("instant_power_milliwatts", 0, -1),
        ("energy_millijoules", 10**15, -5),
        ("utilization_percent", 100, 101),
        ("temperature_celsius", 90, 4000),
        ("sm_clock_megahertz", 1410, 2**31),
    ],
)
def test_only_the_impossible_measurement_is_taken_out(field: str, possible: int, impossible: int) -> None:
    kept = GpuReading(LIMIT, 900, MilliwattsPerGpu(60_000), MilliwattsPerGpu(61_000), 5, 7, 40)
    assert getattr(plausible("GPU-a", kept, LIMITS), field) is not None
    fields = {name: getattr(kept, name) for name in GpuReading.__struct_fields__}
    assert getattr(plausible("GPU-a", GpuReading(**{**fields, field: possible}), LIMITS), field) == possible
    cleaned = plausible("GPU-a", GpuReading(**{**fields, field: impossible}), LIMITS)
    assert cleaned == GpuReading(**{**fields, field: None})


@pytest.mark.parametrize("limit", [limit_reading(0, 400_000), limit_reading(400_000, 3_700_000)])
def test_impossible_limits_stop_the_decision(limit: PowerLimitReading) -> None:
    with pytest.raises(gpu.ImplausibleReading, match="GPU-a: power limit"):
        plausible("GPU-a", GpuReading(limit), LIMITS)


def test_every_error_of_the_table_is_what_nvml_calls_it() -> None:
    expected = {
        "NOT_SUPPORTED": gpu.NotSupported,
        "NO_PERMISSION": gpu.NoPermission,
        "INVALID_ARGUMENT": gpu.InvalidArgument,
        "GPU_IS_LOST": gpu.GpuLost,
        "RESET_REQUIRED": gpu.ResetRequired,
        "LIB_RM_VERSION_MISMATCH": gpu.LibraryMismatch,
        "DRIVER_NOT_LOADED": gpu.DriverUnavailable,
        "UNINITIALIZED": gpu.DriverUnavailable,
        "UNKNOWN": gpu.UnknownDriverError,
    }
    for name, kind in expected.items():
        assert type(gpu.driver_error(getattr(pynvml, f"NVML_ERROR_{name}"), "read", "GPU-a")) is kind
    known = {getattr(pynvml, name) for name in dir(pynvml) if name.startswith("NVML_ERROR_")}
    assert set(gpu.ERROR_TABLE) <= known
    assert type(gpu.driver_error(12345, "read")) is gpu.UnknownDriverError


def test_a_code_makes_a_sentence() -> None:
    error = gpu.driver_error(4, "set power limit", "GPU-a")
    assert (
        str(error) == "GPU-a: set power limit: no permission: power limits and clocks need CAP_SYS_ADMIN (NVML error 4)"
    )
    assert (error.operation, error.uuid, error.code) == ("set power limit", "GPU-a", 4)


def clamped(limits: GpuLimits, *wanted: int) -> list[int]:
    return [limits.clamp_limit(MilliwattsPerGpu(each)) for each in wanted]


def test_limits_and_clocks_snap_to_what_the_gpu_takes() -> None:
    assert clamped(LIMITS, 0, 250_000, 999_999) == [100_000, 250_000, 400_000]
    assert clamped(LIMITS, 250_999, 100_001) == [250_000, 100_000]
    odd = gpu_limits(100_500, 300_700, 200_000)  # what a GPU itself has as its smallest can be set
    assert clamped(odd, 100_600, 300_700, 150_500) == [100_500, 300_000, 150_000]
    assert [LIMITS.clock_at_most(value) for value in (100, 210, 1000, 2000)] == [210, 210, 990, 1410]
    assert LIMITS.clock_step_megahertz == 15
    assert gpu_limits(1, 2, 2).clock_step_megahertz == 0
    with pytest.raises(ValueError, match="ascending order"):
        gpu_limits(400_000, 100_000, 100_000)
