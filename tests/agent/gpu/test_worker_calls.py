"""Calls by a driver's worker: begun at once and without waiting, in order for each GPU, and a hang is its GPU's own."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest
from flyball_agent.gpu.gpu import CallTimedOut, Gpu, GpuLost, GpuNotFound, GpuReading
from flyball_agent.gpu.operations import LockClocks, Read, SetPowerLimit
from flyball_agent.gpu.worker_calls import WorkerCalls
from flyball_agent.gpu.worker_driver import WorkerDriver
from flyball_api.values.units import MilliwattsPerGpu
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.device import DeviceFault
from flyball_simulated_gpu.hardware_file import create_node_file
from flyball_simulated_gpu.shared import SimulatedNode

from tests.support.waiting import wait_until

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
SLOW_MICROSECONDS = 20_000


class Worker:
    """What a worker is to its calls: `begun` holds the calls that have not returned, by GPU."""

    def __init__(self) -> None:
        self.begun: dict[str, Future[Any]] = {}

    def begin(self, operation: str, uuid: str, call: object) -> Future[Any]:
        self.begun[uuid] = Future()
        if uuid.startswith("quick"):
            self.begun[uuid].set_result(uuid)
        if uuid.startswith("lost"):
            self.begun[uuid].set_exception(GpuLost(operation, uuid, 15))
        if uuid.startswith("defect"):
            self.begun[uuid].set_exception(ZeroDivisionError("ours"))
        return self.begun[uuid]


def calls_of(worker: Worker, deadline_seconds: float = 30.0) -> WorkerCalls:
    return WorkerCalls(cast(WorkerDriver, worker), deadline_seconds)


def reads(*uuids: str) -> list[tuple[Gpu, Any]]:
    return [(cast(Gpu, _Named(uuid)), Read()) for uuid in uuids]


class _Named:
    def __init__(self, uuid: str) -> None:
        self.uuid = uuid


async def test_each_result_is_its_own_and_in_order_and_who_returned_is_told() -> None:
    told: list[str] = []
    results = await calls_of(Worker()).each("read", reads("quick-1", "lost", "quick-2"), told.append)
    assert (results[0], results[2]) == ("quick-1", "quick-2")
    assert isinstance(results[1], GpuLost)
    assert told == ["quick-1", "quick-2"]
    assert await calls_of(Worker()).each("read", []) == []
    with pytest.raises(ZeroDivisionError):  # a defect of ours is not a GPU's error
        await calls_of(Worker()).each("read", reads("defect"))


async def test_an_error_that_is_a_result_is_not_logged_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance((await calls_of(Worker()).each("read", reads("lost")))[0], GpuLost)
    gc.collect()
    assert caplog.records == []


async def test_all_gpus_are_asked_before_any_is_waited_for() -> None:
    worker = Worker()
    waiting = asyncio.create_task(calls_of(worker).each("read", reads("a", "b", "c")))
    await asyncio.sleep(0)
    assert list(worker.begun) == ["a", "b", "c"]
    for number, future in enumerate(worker.begun.values()):
        future.set_result(number)
    assert await waiting == [0, 1, 2]


async def test_a_call_that_hangs_is_abandoned_and_its_gpu_waits_for_it() -> None:
    worker = Worker()
    calls = calls_of(worker, deadline_seconds=0.05)
    hung, fine = await calls.each("read", reads("a", "quick"))
    assert isinstance(hung, CallTimedOut)
    assert fine == "quick"
    abandoned = worker.begun["a"]
    hung, fine = await calls.each("read", reads("a", "quick"))
    assert "earlier call" in str(hung)
    assert fine == "quick"
    assert worker.begun["a"] is abandoned, "nothing is queued behind a call of which nobody knows when it ends"
    abandoned.set_result(None)
    (late,) = await calls.each("read", reads("a"))
    assert "did not return within 0.05 s" in str(late)
    assert worker.begun["a"] is not abandoned


# --- with a worker that is a process ------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedNode]:
    path = tmp_path / "node.gpus"
    create_node_file(path, [A100] * 2)
    monkeypatch.setenv("FLYBALL_SIMULATED_GPUS", str(path))
    monkeypatch.setenv("FLYBALL_SIMULATED_PRIVILEGED", "1")
    with SimulatedNode.open(path) as opened:
        yield opened


@pytest.fixture
def driver(node: SimulatedNode, nvml_library: Path) -> Iterator[WorkerDriver]:
    opened = WorkerDriver(nvml_library)
    yield opened
    for device in node.devices:
        device.flags = DeviceFault(0)
    opened.close()


def test_the_calls_of_one_gpu_are_made_in_the_order_in_which_they_were_begun(
    node: SimulatedNode, driver: WorkerDriver
) -> None:
    """Though several threads hear them, and each takes long enough for the next ones to come meanwhile."""
    node.file.set_latency(SLOW_MICROSECONDS, 0)
    first, second = (gpu.uuid for gpu in driver.gpus())
    clocks = [*range(600, 1200, 15)]
    begun: list[Future[Any]] = []
    for megahertz in clocks:
        begun += [driver.begin("lock clocks", uuid, LockClocks(210, megahertz)) for uuid in (first, second)]
    last = [driver.begin("read", uuid, Read()).result() for uuid in (first, second)]
    assert all(future.done() for future in begun)
    assert {reading.limit.requested_milliwatts for reading in last} == {A100.default_limit_milliwatts}
    assert [device.read().locked_max_megahertz for device in node.devices] == [clocks[-1]] * 2


def test_somebody_hears_the_next_call_though_every_gpu_hangs(node: SimulatedNode, driver: WorkerDriver) -> None:
    for device in node.devices:
        device.flags |= DeviceFault.HANG
    hung = [driver.begin("read", gpu.uuid, Read()) for gpu in driver.gpus() for _ in range(3)]
    with pytest.raises(GpuNotFound):
        driver.begin("read", "GPU-of-nobody", Read()).result(30)
    assert not any(future.done() for future in hung)
    for device in node.devices:
        device.flags = DeviceFault(0)
    assert all(isinstance(future.result(30), GpuReading) for future in hung)


def all_stopped(process: int) -> bool:
    """Whether each thread of the process stands still."""
    stats = [(task / "stat").read_text() for task in Path(f"/proc/{process}/task").iterdir()]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def test_no_call_waits_for_a_worker_that_is_stopped(node: SimulatedNode, driver: WorkerDriver) -> None:
    """What fits into its socket is made once it goes on; of the rest it is said at once that it was not."""
    uuid, watts = driver.gpus()[0].uuid, MilliwattsPerGpu(250_000)
    os.kill(driver._process.pid, signal.SIGSTOP)
    wait_until(lambda: all_stopped(driver._process.pid))
    begun = [driver.begin("set power limit", uuid, SetPowerLimit(watts)) for _ in range(5000)]
    refused = [future for future in begun if future.done()]
    assert 2 * 256 < len(begun) - len(refused) < len(begun), "two calls of each GPU of the largest node fit"
    assert all("takes no calls" in str(future.exception()) for future in refused)
    os.kill(driver._process.pid, signal.SIGCONT)
    assert {future.result(30) for future in begun if future not in refused} == {None}
    assert node.devices[0].read().requested_limit_milliwatts == watts
    assert isinstance(driver.begin("read", uuid, Read()).result(30), GpuReading), "and all is as before"
