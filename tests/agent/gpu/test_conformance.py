"""One suite for every driver: virtual time, the hardware file, and NVML on the C library over the same file."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from flyball_agent.gpu.gpu import (
    CallTimedOut,
    DriverUnavailable,
    Gpu,
    GpuError,
    GpuLost,
    InvalidArgument,
    NoPermission,
    NotSupported,
    ResetRequired,
    ThrottleReason,
    UnknownDriverError,
    XidError,
)
from flyball_api.values.units import MilliwattsPerGpu
from flyball_simulated_gpu import physics
from flyball_simulated_gpu.device import DeviceFault, setters_fail_with

from tests.support.agent_doubles import DriverBench
from tests.support.milliwatts import limit_reading

NVML = ("nvml", "worker")


def counts_since(gpu: Gpu, monotonic: float) -> bool:
    """Whether the counter of an idle GPU shows no more than it has used since then."""
    counter = gpu.read().energy_millijoules
    return counter is not None and counter <= 58_000 * (time.monotonic() - monotonic) + 1


def test_gpus_tell_who_they_are_and_what_they_take(bench: DriverBench) -> None:
    gpus = bench.driver.gpus()
    assert [gpu.index for gpu in gpus] == [0, 1]
    assert [gpu.uuid for gpu in gpus] == [device.uuid for device in bench.node.devices]
    for gpu in gpus:
        assert gpu.model == "NVIDIA-A100-SXM4-40GB"
        limits = gpu.limits
        assert (limits.min_milliwatts, limits.max_milliwatts, limits.default_milliwatts) == (100_000, 400_000, 400_000)
        assert limits.clocks_megahertz == tuple(range(210, 1411, 15))
    assert bench.driver.boot_id
    assert bench.driver.driver_load


def test_an_idle_gpu_rests(bench: DriverBench) -> None:
    reading = bench.driver.gpus()[0].read()
    assert reading.limit == limit_reading(400_000)
    assert (reading.sm_clock_megahertz, reading.average_power_milliwatts) == (210, 58_000)
    assert reading.instant_power_milliwatts == 58_000
    assert reading.utilization_percent == 0
    assert reading.throttle_reasons == ThrottleReason.GPU_IDLE
    assert 30 <= reading.temperature_celsius < 60


def test_a_limit_is_read_back_and_slows_a_busy_gpu(bench: DriverBench) -> None:
    gpu, device = bench.driver.gpus()[1], bench.node.devices[1]
    device.set_activity(1.0)
    assert gpu.read().sm_clock_megahertz == 1410
    gpu.set_power_limit_milliwatts(MilliwattsPerGpu(200_000))
    assert gpu.read_power_limit() == limit_reading(200_000)
    reading = gpu.read()
    clock, power = physics.operating_point(device.constants, 200_000, 0, 0, 1.0)
    assert (reading.sm_clock_megahertz, reading.average_power_milliwatts) == (clock, power)
    assert reading.throttle_reasons == ThrottleReason.SW_POWER_CAP
    assert reading.utilization_percent == 100
    assert bench.driver.gpus()[0].read_power_limit() == limit_reading(400_000)


def test_locked_clocks_hold_under_load_and_are_let_go(bench: DriverBench) -> None:
    gpu, device = bench.driver.gpus()[0], bench.node.devices[0]
    device.set_activity(0.5)
    gpu.set_locked_clocks_megahertz(1005, 1005)
    reading = gpu.read()
    assert reading.sm_clock_megahertz == 1005
    assert reading.throttle_reasons == ThrottleReason.APPLICATIONS_CLOCKS
    gpu.reset_locked_clocks()
    assert gpu.read().sm_clock_megahertz == 1410


def test_a_lock_holds_an_idle_gpu_up(bench: DriverBench) -> None:
    gpu = bench.driver.gpus()[0]
    gpu.set_locked_clocks_megahertz(1410, 1410)
    assert gpu.read().average_power_milliwatts > 58_000


@pytest.mark.parametrize("limit", [99_999, 400_001, 0])
def test_a_limit_out_of_range_is_refused_and_changes_nothing(bench: DriverBench, limit: int) -> None:
    gpu = bench.driver.gpus()[0]
    with pytest.raises(InvalidArgument):
        gpu.set_power_limit_milliwatts(MilliwattsPerGpu(limit))
    assert gpu.read_power_limit() == limit_reading(400_000)


@pytest.mark.parametrize("clocks", [(1000, 900), (1500, 1600), (100, 200)])
def test_a_clock_range_that_is_none_is_refused(bench: DriverBench, clocks: tuple[int, int]) -> None:
    with pytest.raises(InvalidArgument):
        bench.driver.gpus()[0].set_locked_clocks_megahertz(*clocks)


def test_the_energy_counter_rises_by_the_power(bench: DriverBench) -> None:
    gpu, device = bench.driver.gpus()[0], bench.node.devices[0]
    first = gpu.read().energy_millijoules
    device.set_activity(1.0)
    bench.wait(lambda: gpu.read().energy_millijoules > first + 10_000)
    before, shown, after = device.read().energy_millijoules, gpu.read().energy_millijoules, device.read()
    assert int(before) <= shown <= int(after.energy_millijoules)


def test_the_energy_counter_moves_ten_times_a_second_where_hardware_s_does(bench: DriverBench) -> None:
    gpu, device = bench.driver.gpus()[0], bench.node.devices[0]
    bench.node.counter_milliseconds = 100  # as an H200's
    device.set_activity(1.0)
    bench.wait(lambda: device.read().ticked_ns != 0)
    shown, reads = [gpu.read().energy_millijoules], 0

    def moved_four_times() -> bool:
        nonlocal reads
        reads += 1
        device.set_activity(1.0 if reads % 2 else 0.5)  # when power changes is nothing to the counter
        before = device.read()
        used, counter = before.energy_millijoules, physics.counter_millijoules(before)
        now = gpu.read().energy_millijoules
        after = physics.counter_millijoules(device.read())
        assert used - 0.1 * 400_000 - 1 <= now <= device.read().energy_millijoules
        assert counter <= now <= after, "the same number, however it is read"
        assert now >= shown[-1]
        if now != shown[-1]:
            shown.append(now)
        return len(shown) > 4

    bench.wait(moved_four_times)
    steps = [more - less for less, more in pairwise(shown)]
    assert min(steps[1:]) >= 0.1 * 200_000, steps  # it was idle before the first


def test_the_energy_counter_may_start_again(bench: DriverBench) -> None:
    gpu, device = bench.driver.gpus()[0], bench.node.devices[0]
    bench.wait(lambda: gpu.read().energy_millijoules > 500)
    true_energy = device.read().energy_millijoules
    started = time.monotonic()
    device.reset_energy_counter()
    assert counts_since(gpu, started)
    assert device.read().energy_millijoules >= true_energy


def test_an_out_of_band_cap_shows_in_the_enforced_limit(bench: DriverBench) -> None:
    gpu = bench.driver.gpus()[0]
    bench.node.devices[0].set_out_of_band_cap_milliwatts(150_000)
    assert gpu.read_power_limit() == limit_reading(400_000, 150_000)
    gpu.set_power_limit_milliwatts(MilliwattsPerGpu(300_000))
    assert gpu.read_power_limit() == limit_reading(300_000, 150_000)
    assert gpu.read_power_limit().held_milliwatts == 300_000


def test_a_late_limit_is_requested_at_once_and_enforced_later(bench: DriverBench) -> None:
    gpu = bench.driver.gpus()[0]
    if bench.kind == "virtual":
        bench.node.settle_milliseconds = 300
    else:
        bench.node.file.set_latency(1000, 300)
    gpu.set_power_limit_milliwatts(MilliwattsPerGpu(150_000))
    assert gpu.read_power_limit() == limit_reading(150_000, 400_000)
    bench.wait(lambda: gpu.read_power_limit() == limit_reading(150_000))


@pytest.mark.parametrize(
    ("fault", "error"),
    [(DeviceFault.LOST, GpuLost), (DeviceFault.RESET_REQUIRED, ResetRequired)],
)
def test_an_unusable_gpu_says_so_in_every_call_and_its_neighbour_works(
    bench: DriverBench, fault: DeviceFault, error: type[GpuError]
) -> None:
    gpu, neighbour = bench.driver.gpus()
    bench.node.devices[0].flags |= fault
    for call in (
        gpu.read,
        gpu.read_power_limit,
        gpu.reset_locked_clocks,
        lambda: gpu.set_power_limit_milliwatts(MilliwattsPerGpu(200_000)),
        lambda: gpu.set_locked_clocks_megahertz(900, 900),
    ):
        with pytest.raises(error) as caught:
            call()
        assert caught.value.keeps_limits
        assert gpu.uuid in str(caught.value)
    neighbour.set_power_limit_milliwatts(MilliwattsPerGpu(200_000))
    assert neighbour.read_power_limit() == limit_reading(200_000)
    bench.node.devices[0].flags = DeviceFault(0)
    assert gpu.read_power_limit() == limit_reading(400_000)


@pytest.mark.parametrize(
    ("fault", "error"),
    [(DeviceFault.SETTERS_FAIL, UnknownDriverError), (DeviceFault.NO_PERMISSION, NoPermission)],
)
def test_setters_that_fail_change_nothing(bench: DriverBench, fault: DeviceFault, error: type[GpuError]) -> None:
    gpu = bench.driver.gpus()[0]
    bench.node.devices[0].flags |= fault
    with pytest.raises(error):
        gpu.set_power_limit_milliwatts(MilliwattsPerGpu(200_000))
    with pytest.raises(error):
        gpu.reset_locked_clocks()
    assert gpu.read_power_limit() == limit_reading(400_000)


def test_persistence_mode_is_read_and_turned_on(bench: DriverBench) -> None:
    gpu = bench.driver.gpus()[0]
    assert gpu.read().persistence_mode is True
    bench.node.devices[0].flags |= DeviceFault.NOT_PERSISTENT
    assert gpu.read().persistence_mode is False
    gpu.enable_persistence_mode()
    assert gpu.read().persistence_mode is True
    bench.node.devices[0].flags |= DeviceFault.NO_PERMISSION
    with pytest.raises(NoPermission):
        gpu.enable_persistence_mode()


def test_setters_that_lie_are_found_by_reading_back(bench: DriverBench) -> None:
    gpu = bench.driver.gpus()[0]
    bench.node.devices[0].flags |= DeviceFault.SETTERS_LIE
    gpu.set_power_limit_milliwatts(MilliwattsPerGpu(200_000))
    assert gpu.read_power_limit() == limit_reading(400_000)


def test_an_impossible_power_reading_is_taken_out(bench: DriverBench) -> None:
    gpu = bench.driver.gpus()[0]
    bench.node.devices[0].flags |= DeviceFault.IMPLAUSIBLE_POWER
    reading = gpu.read()
    assert reading.average_power_milliwatts is None
    assert reading.instant_power_milliwatts is None
    assert reading.limit == limit_reading(400_000)


def test_limits_outlive_the_driver(bench: DriverBench) -> None:
    bench.driver.gpus()[0].set_power_limit_milliwatts(MilliwattsPerGpu(123_000))
    bench.driver.close()
    assert bench.node.devices[0].read().requested_limit_milliwatts == 123_000


def test_a_reloaded_driver_is_another_driver_session_at_defaults(bench: DriverBench) -> None:
    gpu = bench.driver.gpus()[0]
    gpu.set_power_limit_milliwatts(MilliwattsPerGpu(123_000))
    before = bench.driver.driver_load
    bench.wait(lambda: gpu.read().energy_millijoules > 500)
    started = time.monotonic()
    bench.node.reload_driver()
    assert gpu.read_power_limit() == limit_reading(400_000)
    assert counts_since(gpu, started)
    if bench.kind not in NVML:  # NVML does not tell: the energy counter that fell back does
        assert bench.driver.driver_load != before


@pytest.mark.parametrize("bench", ["virtual", "file"], indirect=True)  # the C library really hangs: see test_calls
def test_a_call_that_hangs_is_the_callers_deadline(bench: DriverBench) -> None:
    bench.node.devices[0].flags |= DeviceFault.HANG
    with pytest.raises(CallTimedOut):
        bench.driver.gpus()[0].read()


def test_every_error_names_gpu_operation_and_code(bench: DriverBench) -> None:
    bench.node.devices[0].flags |= DeviceFault.SETTERS_FAIL
    with pytest.raises(GpuError, match=r"GPU-.*: set power limit: .*\(NVML error 999\)"):
        bench.driver.gpus()[0].set_power_limit_milliwatts(MilliwattsPerGpu(200_000))


@pytest.mark.parametrize(
    ("code", "error"),
    [(3, NotSupported), (2, InvalidArgument), (15, GpuLost), (17, DriverUnavailable), (999, UnknownDriverError)],
)
def test_a_setter_fails_with_the_class_of_its_error(bench: DriverBench, code: int, error: type[GpuError]) -> None:
    bench.node.devices[0].flags |= setters_fail_with(code)
    with pytest.raises(error) as caught:
        bench.driver.gpus()[0].set_power_limit_milliwatts(MilliwattsPerGpu(200_000))
    assert caught.value.code == code
    assert bench.driver.gpus()[0].read_power_limit() == limit_reading(400_000)


def test_a_coarse_gpu_rounds_a_limit_up_and_says_so(bench: DriverBench) -> None:
    gpu = bench.driver.gpus()[0]
    bench.node.devices[0].flags |= DeviceFault.COARSE
    gpu.set_power_limit_milliwatts(MilliwattsPerGpu(200_001))
    assert gpu.read_power_limit() == limit_reading(201_000)
    gpu.set_power_limit_milliwatts(MilliwattsPerGpu(200_000))
    assert gpu.read_power_limit() == limit_reading(200_000)


def test_a_partitioned_gpu_is_governed_and_says_nothing_of_its_utilization(bench: DriverBench) -> None:
    gpu = bench.driver.gpus()[0]
    bench.node.devices[0].flags |= DeviceFault.MIG
    assert gpu.read().utilization_percent is None
    gpu.set_power_limit_milliwatts(MilliwattsPerGpu(200_000))
    assert gpu.read_power_limit() == limit_reading(200_000)


def test_the_energy_counter_may_leap_ahead(bench: DriverBench) -> None:
    gpu, device = bench.driver.gpus()[0], bench.node.devices[0]
    true_energy = device.read().energy_millijoules
    device.jump_energy_counter(10**12)
    assert gpu.read().energy_millijoules >= 10**12
    assert device.read().energy_millijoules < true_energy + 10**9
    device.reset_energy_counter()
    assert gpu.read().energy_millijoules < 10**9


# Not the worker: it is killed, of which the simulated driver learns nothing.
@pytest.mark.parametrize("bench", ["virtual", "file", "nvml"], indirect=True)
def test_without_persistence_mode_an_idle_gpu_forgets_its_limit_with_its_client(bench: DriverBench) -> None:
    idle, busy = bench.node.devices
    busy.set_activity(1.0)
    for gpu, device in zip(bench.driver.gpus(), bench.node.devices, strict=True):
        gpu.set_power_limit_milliwatts(MilliwattsPerGpu(123_000))
        device.flags |= DeviceFault.NOT_PERSISTENT
    bench.driver.close()
    bench.wait(lambda: idle.read().requested_limit_milliwatts == 400_000)
    assert busy.read().requested_limit_milliwatts == 123_000


# Not NVML: there it is the watch that is called back, see test_nvml.
@pytest.mark.parametrize("bench", ["virtual", "file", "worker"], indirect=True)
def test_what_the_driver_reports_by_itself_is_told_once_of_a_lost_gpu_too(bench: DriverBench) -> None:
    well, lost = bench.node.devices
    assert list(bench.driver.take_xid_errors()) == []

    early = XidError(well.uuid, 45)

    def watched() -> bool:
        well.report_xid_error(early.number)
        return early in bench.driver.take_xid_errors()

    bench.wait(watched)  # a driver is open before it watches, and what was reported before that is nobody's
    lost.flags |= DeviceFault.LOST
    lost.report_xid_error(79)
    seen: list[XidError] = []

    def told(expected: list[XidError]) -> bool:
        seen.extend(error for error in bench.driver.take_xid_errors() if error != early)
        return seen == expected

    first = [XidError(lost.uuid, 79)]
    bench.wait(lambda: told(first))
    well.report_xid_error(31)
    bench.wait(lambda: told([*first, XidError(well.uuid, 31)]))
    well.report_xid_error(31)
    bench.wait(lambda: told([*first, *[XidError(well.uuid, 31)] * 2]))


def test_a_partitioned_gpu_shows_its_parts(bench: DriverBench) -> None:
    whole, split = bench.driver.gpus()
    bench.node.devices[1].flags |= DeviceFault.MIG
    own = tuple((f"gpu.nvidia.com/gpu-{gpu.index}",) for gpu in (whole, split))
    assert whole.read().handed_out_as == own[0]
    assert split.read().handed_out_as == (*own[1], f"MIG-{split.uuid.removeprefix('GPU-')}")
    bench.node.devices[1].flags = DeviceFault(0)
    assert split.read().handed_out_as == own[1]
