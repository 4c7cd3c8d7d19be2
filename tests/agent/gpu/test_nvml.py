"""What only NVML has: the C library's own rules, and its physics against Python's."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from flyball_agent.clock import boottime_ns
from flyball_agent.enforce.enforcer import Enforcer
from flyball_agent.enforce.journal import Journal
from flyball_agent.gpu.gpu import CallTimedOut, DriverUnavailable, GpuLost, LibraryMismatch, NoPermission, XidError
from flyball_agent.gpu.nvml import OPENING, NvmlDriver
from flyball_agent.gpu.worker_driver import WorkerDriver
from flyball_api.values.units import MilliwattsPerGpu
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.device import DeviceFault
from flyball_simulated_gpu.hardware_file import create_node_file
from flyball_simulated_gpu.shared import SimulatedNode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.gpu_node_specs import gpu_node_spec
from tests.support.nvml_conformance import assert_conforms, read_only
from tests.support.waiting import wait_until

Hardware = tuple[SimulatedNode, Path]


@pytest.fixture
def hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml_library: Path) -> Iterator[Hardware]:
    path = tmp_path / "node.gpus"
    create_node_file(path, list(CATALOGUE.values()))
    monkeypatch.setenv("FLYBALL_SIMULATED_GPUS", str(path))
    monkeypatch.setenv("FLYBALL_SIMULATED_PRIVILEGED", "1")
    with SimulatedNode.open(path) as node:
        yield node, nvml_library


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(150))
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2100), st.integers(0, 2100)),
        min_size=1,
        max_size=8,
    )
)
def test_c_and_python_give_the_same_milliwatts(
    hardware: Hardware, changes: list[tuple[int, float, float, int, int]]
) -> None:
    node, library = hardware
    driver = NvmlDriver(library)
    try:
        gpus = driver.gpus()
        for index, activity, share, low, high in changes:
            gpu, device = gpus[index], node.devices[index]
            limits = gpu.limits
            limit = round(limits.min_milliwatts + share * (limits.max_milliwatts - limits.min_milliwatts))
            clocks = sorted((max(low, limits.clocks_megahertz[0]), max(high, limits.clocks_megahertz[0])))
            clocks = [min(clock, limits.clocks_megahertz[-1]) for clock in clocks]
            device.set_activity(activity)
            for setter in (gpu, device):  # C's computation, then Python's, of the same request
                setter.reset_locked_clocks()
                setter.set_power_limit_milliwatts(limits.max_milliwatts)
                setter.set_power_limit_milliwatts(MilliwattsPerGpu(limit))
                setter.set_locked_clocks_megahertz(*clocks)
                state = device.read()
                if setter is gpu:
                    by_c = (state.sm_clock_megahertz, state.power_milliwatts)
            assert (state.sm_clock_megahertz, state.power_milliwatts) == by_c
    finally:
        driver.close()


def test_setters_need_privilege(hardware: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLYBALL_SIMULATED_PRIVILEGED")
    driver = NvmlDriver(hardware[1])
    try:
        with pytest.raises(NoPermission) as caught:
            driver.gpus()[0].set_power_limit_milliwatts(MilliwattsPerGpu(200_000))
        assert caught.value.fatal
        assert "CAP_SYS_ADMIN" in str(caught.value)
    finally:
        driver.close()


def test_a_container_sees_the_gpus_that_it_was_given(hardware: Hardware, monkeypatch: pytest.MonkeyPatch) -> None:
    node, library = hardware
    given = [node.devices[3].uuid, node.devices[1].uuid]
    for visible, expected in (("all", range(len(node.devices))), (",".join(given), (1, 3)), (given[0], (3,)), ("", ())):
        monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", visible)
        driver = NvmlDriver(library)
        try:
            seen = driver.gpus()
            assert [gpu.uuid for gpu in seen] == [node.devices[index].uuid for index in expected]
            assert [gpu.index for gpu in seen] == list(range(len(expected))), "numbered as if there were no others"
            # Nobody can say which of them a claim's number means, but for those that both ways of counting agree on.
            claimed = [(f"gpu.nvidia.com/gpu-{of}",) if at == of else () for at, of in enumerate(expected)]
            assert [gpu.read().handed_out_as for gpu in seen] == claimed
        finally:
            driver.close()


def test_a_driver_that_is_not_there_or_not_ours_is_said(
    hardware: Hardware, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = hardware[1]
    monkeypatch.setenv("FLYBALL_SIMULATED_GPUS", str(tmp_path / "none.gpus"))
    with pytest.raises(DriverUnavailable):
        NvmlDriver(library)
    (tmp_path / "other.gpus").write_bytes(b"x" * 4096)
    monkeypatch.setenv("FLYBALL_SIMULATED_GPUS", str(tmp_path / "other.gpus"))
    with pytest.raises(LibraryMismatch) as caught:
        NvmlDriver(library)
    assert caught.value.restart_may_help
    with pytest.raises(DriverUnavailable, match="load library"):
        NvmlDriver(tmp_path / "libnothing.so")


def test_a_gpu_that_cannot_be_opened_is_named_and_the_others_work(hardware: Hardware) -> None:
    node, library = hardware
    node.devices[1].flags |= DeviceFault.LOST
    driver = NvmlDriver(library)
    try:
        assert [gpu.index for gpu in driver.gpus()] == [0, 2, 3]
        (lost,) = driver.unopened
        assert (lost.index, lost.uuid) == (1, "")
        assert isinstance(lost.error, GpuLost)
    finally:
        driver.close()


def test_a_gpu_that_does_not_open_in_time_is_named_and_the_others_work(hardware: Hardware) -> None:
    node, library = hardware
    node.devices[1].flags |= DeviceFault.HANG
    driver = NvmlDriver(library, open_seconds=0.3)
    try:
        assert [gpu.index for gpu in driver.gpus()] == [0, 2, 3]
        assert isinstance(driver.unopened[0].error, CallTimedOut)
        driver.close()  # not under the call that hangs
        assert driver.gpus()[0].read().limit.requested_milliwatts == 400_000
    finally:
        node.devices[1].flags = DeviceFault(0)
        wait_until(lambda: not any(thread.name.startswith(OPENING) for thread in threading.enumerate()))
        driver.close()


ODD_LIMITS = {
    "zero": ((0, 400_000), 400_000),
    "nothing": ((0, 0), 0),
    "default above": ((100_000, 300_000), 400_000),
    "unsupported": (pynvml.NVMLError(3), 400_000),
    "unknown": (pynvml.NVMLError(999), 400_000),
    "unreadable": (ValueError("what the binding could not read"), 400_000),
}


@pytest.mark.parametrize("odd", ODD_LIMITS)
def test_one_gpu_with_odd_limits_is_counted_at_its_largest_and_ends_nothing(
    hardware: Hardware, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    node, library = hardware
    constraints, default = ODD_LIMITS[odd]
    real_constraints = pynvml.nvmlDeviceGetPowerManagementLimitConstraints
    real_default = pynvml.nvmlDeviceGetPowerManagementDefaultLimit

    def odd_one(handle: Any, answer: Any, real: Any) -> Any:
        if pynvml.nvmlDeviceGetUUID(handle) != node.devices[0].uuid:
            return real(handle)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(
        pynvml,
        "nvmlDeviceGetPowerManagementLimitConstraints",
        lambda handle: odd_one(handle, constraints, real_constraints),
    )
    monkeypatch.setattr(
        pynvml, "nvmlDeviceGetPowerManagementDefaultLimit", lambda handle: odd_one(handle, default, real_default)
    )
    driver = NvmlDriver(library)
    enforcer = Enforcer("node", driver, Journal(tmp_path / "journal", "node"))
    try:
        assert [gpu.index for gpu in driver.gpus()] == [1, 2, 3]
        odd_gpu = enforcer.state.gpus[node.devices[0].uuid]
        assert odd_gpu.failure is not None
        expected = {"unsupported": "PowerLimitUnsupported", "unknown": "ReadFailed", "unreadable": "ReadFailed"}
        assert odd_gpu.failure.reason == expected.get(odd, "ImplausibleReading")
        assert odd_gpu.held_milliwatts >= 400_000
        enforcer.set_pods({})
        enforcer.accept(gpu_node_spec(1, 10**6))
        asyncio.run(enforcer.step())
        assert enforcer.state.acknowledged is not None
        others = sum(device.constants.min_limit_milliwatts for device in node.devices[1:])
        assert enforcer.state.acknowledged.limits_milliwatts == others + odd_gpu.held_milliwatts
    finally:
        enforcer.close()
        driver.close()


MEASUREMENTS = {
    "nvmlDeviceGetUtilizationRates": "utilization_percent",
    "nvmlDeviceGetClockInfo": "sm_clock_megahertz",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_millijoules",
    "nvmlDeviceGetCurrentClocksEventReasons": "throttle_reasons",
    "nvmlDeviceGetFieldValues": "instant_power_milliwatts",
}


@pytest.mark.parametrize("code", [3, 4, 999])
@pytest.mark.parametrize("function", MEASUREMENTS)
def test_a_measurement_that_fails_costs_that_measurement_only(
    hardware: Hardware, monkeypatch: pytest.MonkeyPatch, function: str, code: int
) -> None:
    def fail(*arguments: Any) -> None:
        raise pynvml.NVMLError(code)

    driver = NvmlDriver(hardware[1])
    try:
        monkeypatch.setattr(pynvml, function, fail)
        reading = driver.gpus()[0].read()
        assert reading.limit.requested_milliwatts == 400_000
        assert not getattr(reading, MEASUREMENTS[function])
        assert [error.code for error in reading.failed] == ([] if code == 3 else [code])
        assert reading.temperature_celsius is not None
    finally:
        driver.close()


def test_the_moment_at_which_the_counter_was_read_is_within_the_call(
    hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading an H200's takes 3 to 17 ms, and a whole reading more: the end of a round says little of when it was."""
    driver = NvmlDriver(hardware[1])
    asked: list[int] = []
    real = pynvml.nvmlDeviceGetTotalEnergyConsumption

    def watched(handle: Any) -> int:
        asked.append(boottime_ns())
        energy: int = real(handle)
        asked.append(boottime_ns())
        return energy

    try:
        monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", watched)
        before = boottime_ns()
        read_ns = driver.gpus()[0].read().energy_read_ns
        assert read_ns is not None
        assert before <= read_ns <= boottime_ns()
        assert abs(read_ns - sum(asked) / 2) < 10_000_000 or asked[1] - asked[0] > 10_000_000
        monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", lambda handle: pynvml_fails())
        assert driver.gpus()[0].read().energy_read_ns is None
    finally:
        driver.close()


def pynvml_fails() -> None:
    raise pynvml.NVMLError(3)


def test_drivers_without_the_newer_temperature_call_are_asked_by_the_older(
    hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise pynvml.NVMLError(13)

    driver = NvmlDriver(hardware[1])
    try:
        newer = driver.gpus()[0].read().temperature_celsius
        monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperatureV", fail)
        assert driver.gpus()[0].read().temperature_celsius == newer
    finally:
        driver.close()


async def test_a_call_that_hangs_in_the_library_costs_one_gpu_only(hardware: Hardware, tmp_path: Path) -> None:
    node, library = hardware
    driver = WorkerDriver(library)
    enforcer = Enforcer("node", driver, Journal(tmp_path / "journal", "node"))
    enforcer.set_pods({})
    enforcer.accept({"epoch": 1, "generation": 1, "leaseSeconds": 60, "boundMilliwatts": 10**6})
    node.devices[0].flags |= DeviceFault.HANG
    try:
        await enforcer.step()
        hung = enforcer.state.gpus[node.devices[0].uuid]
        assert hung.failure is not None
        assert hung.failure.reason == "CallTimedOut"
        for device in node.devices[1:]:
            assert device.read().requested_limit_milliwatts == device.constants.min_limit_milliwatts
        assert enforcer.state.acknowledged is None
    finally:
        node.devices[0].flags = DeviceFault(0)
    async with asyncio.timeout(20):
        while enforcer.state.acknowledged is None:
            await enforcer.step()
    assert node.devices[0].read().requested_limit_milliwatts == 100_000
    enforcer.close()
    driver.close()


def test_xid_errors_are_told_from_the_moment_that_they_are_watched(hardware: Hardware) -> None:
    node, library = hardware
    node.devices[0].report_xid_error(13)  # before anybody listened
    driver = NvmlDriver(library)
    seen: list[XidError] = []
    driver.watch_xid_errors(seen.append)
    for index, number in ((1, 79), (0, 31), (1, 48)):
        before = len(seen)
        node.devices[index].report_xid_error(number)
        wait_until(lambda before=before: len(seen) > before)
        assert seen[-1] == XidError(node.devices[index].uuid, number)
    assert len(seen) == 3
    driver.close()
    assert not any(thread.name == "xid-errors" for thread in threading.enumerate())


def test_another_process_finds_the_library_by_its_loader_path(hardware: Hardware) -> None:
    node, library = hardware
    node.devices[0].set_power_limit_milliwatts(222_000)
    seen = read_only({**os.environ, "LD_LIBRARY_PATH": str(library.parent)})
    assert_conforms(seen)
    assert [gpu["uuid"] for gpu in seen["gpus"]] == [device.uuid for device in node.devices]
    assert seen["gpus"][0]["first"]["held"] == 222_000


def test_the_library_is_built_with_every_function_that_the_binding_calls(nvml_library: Path) -> None:
    library = ctypes.CDLL(str(nvml_library))
    source = Path(sys.modules["flyball_agent.gpu.nvml"].__file__).read_text()
    called = set(re.findall(r"pynvml\.(nvml(?!EventType)[A-Z]\w+)", source)) - {"nvmlInit"}
    versioned = {"nvmlDeviceGetCount": "_v2", "nvmlDeviceGetHandleByIndex": "_v2"}
    assert called
    for name in called:
        assert hasattr(pynvml, name)
        assert hasattr(library, name + versioned.get(name, "")), name
