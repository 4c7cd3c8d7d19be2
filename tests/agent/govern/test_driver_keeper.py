"""The driver under a running governor: let go of on request, opened again where it fails, never counted on meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from flyball_agent.enforce import requests
from flyball_agent.enforce.driver_access import AbsentDriver
from flyball_agent.enforce.journal import Journal
from flyball_agent.enforce.reader import ROUNDS_BEFORE_EXIT
from flyball_agent.enforce.requests import end_release, is_released, request_release
from flyball_agent.govern.driver_keeper import ABSENT_NS, REOPEN_NS, UNPUBLISHED_NS
from flyball_agent.gpu.gpu import DriverUnavailable, GpuReading
from flyball_agent.gpu.simulated import SimulatedDriver, SimulatedGpu
from flyball_agent.process import common
from flyball_agent.process.options import EnforcerOptions
from flyball_agent.process.single import SingleProcessAgent
from flyball_api.gpu_node import GpuNodeStatus
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.virtual import VirtualNode

from tests.support.agent_doubles import SECOND, Pods, QuickDisk
from tests.support.gpu_node_specs import gpu_node_spec
from tests.support.waiting import until

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
GPUS = 2


class Drivers:
    """Opens the node's driver, or fails as the test says; knows which are open."""

    def __init__(self, node: VirtualNode) -> None:
        self.node = node
        self.error: Exception | None = None
        self.opened = 0
        self.open_now = 0

    def __call__(self) -> SimulatedDriver:
        self.opened += 1
        if self.error is not None:
            raise self.error
        self.open_now += 1
        drivers = self

        class Counted(SimulatedDriver):
            def close(self) -> None:
                drivers.open_now -= 1

        return Counted(self.node)


class Bench:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1000 * SECOND
        self.folder = folder
        monkeypatch.setattr(requests, "boottime_ns", lambda: self.now_ns)
        self.node = VirtualNode("node-0", [A100] * GPUS, lambda: self.now_ns)
        self.drivers = Drivers(self.node)
        self.start(self.drivers())

    def start(self, driver: SimulatedDriver | AbsentDriver) -> None:
        self.agent = SingleProcessAgent(
            "node-0",
            driver,
            Journal(self.folder, "node-0", disk=QuickDisk()),
            Pods(),
            open_driver=self.drivers,
            clock_ns=lambda: self.now_ns,
            wall_seconds=lambda: self.now_ns / 1e9,
        )

    async def round(self, seconds: float = 1.0) -> None:
        self.now_ns += round(seconds * SECOND)
        await self.agent.find_pods()
        await self.agent.tick()

    async def rounds_until(self, condition: Callable[[], bool], seconds: float = 1.0) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await self.round(seconds)
                await asyncio.sleep(0)

    def published(self) -> None:
        """As the operator's sight of the status."""
        self.agent.status_published(self.agent.state.counts.rounds)

    def degraded(self) -> tuple[str, str]:
        (found,) = [item for item in self.agent.status(GpuNodeStatus()).conditions if item.type == "Degraded"]
        return found.reason, found.message

    def limits(self) -> list[int]:
        return [device.read().requested_limit_milliwatts for device in self.node.devices]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


async def test_the_gpus_are_let_go_of_once_the_operator_can_see_it_and_taken_back(bench: Bench) -> None:
    bench.agent.accept_spec(gpu_node_spec(1, 200_000))
    await bench.round()
    acknowledged = bench.agent.state.enforced.acknowledged
    assert acknowledged is not None
    request_release(bench.folder, "node-0", 600)
    await bench.round()
    assert bench.degraded()[0] == "Released"
    assert "let go of by an administrator" in bench.degraded()[1]
    assert bench.agent.state.enforced.session != acknowledged.session
    assert bench.agent.state.enforced.held_milliwatts == GPUS * 400_000
    await bench.round()
    assert bench.drivers.open_now == 1  # nobody has seen it yet
    assert not is_released(bench.folder, "node-0")
    bench.published()
    await bench.rounds_until(lambda: is_released(bench.folder, "node-0"))
    assert bench.drivers.open_now == 0
    bench.node.reload_driver()  # what the administrator wanted the GPUs for
    for _ in range(3):
        await bench.round(10)
    assert bench.drivers.opened == 1
    assert end_release(bench.folder, "node-0")
    await bench.rounds_until(lambda: bench.agent.state.enforced.driver_error is None)
    await bench.round()
    assert not is_released(bench.folder, "node-0")
    assert bench.limits() == [100_000] * GPUS
    again = bench.agent.state.enforced.acknowledged
    assert again is not None
    assert again.session != acknowledged.session
    assert bench.degraded()[0] == "AsExpected"
    assert not end_release(bench.folder, "node-0")


async def test_a_release_ends_by_itself_and_a_restart_goes_on_with_it(bench: Bench) -> None:
    request_release(bench.folder, "node-0", 600)
    await bench.round()
    await bench.round(UNPUBLISHED_NS / SECOND + 1)  # an API server that is away does not hold it up for ever
    await until(lambda: bench.drivers.open_now == 0)
    await bench.agent.close()
    bench.start(AbsentDriver(DriverUnavailable("open"), "boot-1"))
    await bench.round()
    assert bench.degraded()[0] == "Released"
    await bench.rounds_until(lambda: bench.agent.state.enforced.driver_error is None, seconds=100)
    assert bench.now_ns > 1600 * SECOND
    await bench.agent.close()


async def test_no_gpus_are_let_go_of_before_the_operator_can_see_it_though_no_driver_was_open(
    bench: Bench,
) -> None:
    """It believes what was acknowledged while there was one."""
    await bench.agent.close()
    bench.drivers.error = DriverUnavailable("init")
    bench.start(AbsentDriver(bench.drivers.error, "boot-1"))
    request_release(bench.folder, "node-0", 600)
    for _ in range(3):
        await bench.round()
    assert bench.degraded()[0] == "Released"
    assert not is_released(bench.folder, "node-0")
    bench.published()
    await bench.round()
    assert is_released(bench.folder, "node-0")
    await bench.agent.close()


async def test_what_is_said_of_a_release_that_ends_as_another_is_asked_for_is_no_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent says it once more, and takes the GPUs back by the end of the former release."""
    request_release(bench.folder, "node-0", 600)
    await bench.round()
    bench.published()
    await bench.rounds_until(lambda: is_released(bench.folder, "node-0"))
    said = requests.Requests(bench.folder, "node-0").note_released
    write = requests._write

    def write_late(path: Path, content: bytes) -> None:
        said()
        write(path, content)

    monkeypatch.setattr(requests, "_write", write_late)
    request_release(bench.folder, "node-0", 600)
    assert not is_released(bench.folder, "node-0")
    await bench.rounds_until(lambda: is_released(bench.folder, "node-0"))
    await bench.agent.close()


async def test_whoever_asks_for_the_gpus_again_waits_for_them_again(bench: Bench) -> None:
    """The driver that is to be opened after the release before may come up at any moment."""
    request_release(bench.folder, "node-0", 600)
    await bench.round()
    bench.published()
    await bench.rounds_until(lambda: is_released(bench.folder, "node-0"))
    request_release(bench.folder, "node-0", 900)
    await bench.rounds_until(lambda: is_released(bench.folder, "node-0"))
    assert end_release(bench.folder, "node-0")
    may_open = threading.Event()

    def slow() -> SimulatedDriver:
        may_open.wait(60)
        return bench.drivers()

    bench.agent.governor._keeper._open_driver = slow
    await bench.round()
    request_release(bench.folder, "node-0", 600)
    for _ in range(3):
        assert not is_released(bench.folder, "node-0")
        await bench.round()
    may_open.set()
    await bench.rounds_until(lambda: is_released(bench.folder, "node-0"))
    assert bench.drivers.open_now == 0
    await bench.agent.close()


@pytest.mark.parametrize("goes_on", [True, False], ids=["the release goes on", "the release is over"])
async def test_what_was_let_go_of_by_an_agent_before_is_not_by_the_next_one(bench: Bench, goes_on: bool) -> None:
    request_release(bench.folder, "node-0", 600)
    await bench.round()
    bench.published()
    await bench.rounds_until(lambda: is_released(bench.folder, "node-0"))
    await bench.agent.close()
    if not goes_on:
        end_release(bench.folder, "node-0")
    bench.start(bench.drivers())
    await bench.round()
    assert not is_released(bench.folder, "node-0"), "its driver is open"
    await bench.agent.close()


async def test_an_agent_that_begins_within_a_release_opens_no_driver(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody resets the GPUs by now, which an open driver would keep from being done."""
    monkeypatch.setattr(common, "boottime_ns", lambda: bench.now_ns)
    monkeypatch.setattr(common, "open_driver", lambda options: bench.drivers())
    options = EnforcerOptions("node-0", journal_dir=bench.folder)
    await bench.agent.close()
    opened = bench.drivers.opened
    request_release(bench.folder, "node-0", 600)
    driver = await common.open_unless_released(options)
    assert isinstance(driver, AbsentDriver)
    bench.start(driver)
    await bench.round()
    assert bench.degraded()[0] == "Released"
    assert not is_released(bench.folder, "node-0")
    bench.published()
    await bench.round()
    assert is_released(bench.folder, "node-0")
    assert bench.drivers.opened == opened
    assert end_release(bench.folder, "node-0")
    await bench.rounds_until(lambda: bench.agent.state.enforced.driver_error is None)
    await bench.agent.close()
    assert not isinstance(await common.open_unless_released(options), AbsentDriver)


async def test_a_release_is_of_this_boot(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request_release(bench.folder, "node-0", 600)
    (tmp_path / "boot_id").write_text("another-boot")
    monkeypatch.setattr(requests, "BOOT_ID_FILE", tmp_path / "boot_id")
    await bench.round()
    assert bench.agent.state.enforced.driver_error is None
    await bench.agent.close()


async def test_a_driver_that_cannot_be_opened_is_said_to_be_and_tried_again(bench: Bench) -> None:
    bench.agent.accept_spec(gpu_node_spec(1, 200_000))
    await bench.round()
    await bench.agent.close()
    error = DriverUnavailable("init", detail="the driver is not loaded", code=9)
    bench.drivers.error = error
    bench.start(AbsentDriver(error, "boot-1"))
    bench.agent.accept_spec(gpu_node_spec(2, 300_000))
    await bench.round()
    reason, message = bench.degraded()
    assert reason == "DriverUnavailable"
    assert message == "no GPU is governed: the driver: init: the driver is not loaded (NVML error 9)"
    assert bench.agent.state.enforced.acknowledged is None
    tried = bench.drivers.opened
    await bench.rounds_until(lambda: bench.drivers.opened > tried + 2, seconds=REOPEN_NS / SECOND)
    bench.drivers.error = None
    await bench.rounds_until(lambda: bench.agent.state.enforced.driver_error is None, seconds=REOPEN_NS / SECOND)
    await bench.round()
    assert bench.agent.state.enforced.acknowledged is not None
    assert bench.degraded()[0] == "AsExpected"
    await bench.agent.close()


async def test_a_driver_that_stays_away_ends_the_process_in_the_end(bench: Bench) -> None:
    await bench.agent.close()
    error = DriverUnavailable("init")
    bench.drivers.error = error
    bench.start(AbsentDriver(error, "boot-1"))
    begun_ns = bench.now_ns
    await bench.rounds_until(lambda: bench.agent.state.enforced.must_exit is not None, seconds=10)
    assert bench.now_ns - begun_ns > ABSENT_NS
    await bench.agent.close()


async def test_a_driver_that_breaks_is_opened_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.agent.accept_spec(gpu_node_spec(1, 200_000))
    await bench.round()
    real = SimulatedGpu.read

    def broken(gpu: SimulatedGpu) -> GpuReading:
        if bench.drivers.opened == 1:
            raise DriverUnavailable("read", gpu.uuid, detail="the driver's worker has ended")
        return real(gpu)

    monkeypatch.setattr(SimulatedGpu, "read", broken)
    for _ in range(ROUNDS_BEFORE_EXIT + 1):
        await bench.round()
    assert bench.degraded()[0] == "DriverUnavailable"
    await bench.rounds_until(lambda: bench.agent.state.enforced.driver_error is None)
    await bench.round()
    assert bench.agent.state.enforced.must_exit is None
    assert bench.agent.state.enforced.acknowledged is not None
    assert bench.drivers.open_now == 1
    await bench.agent.close()


async def test_a_driver_that_opens_too_late_is_closed_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    may_open = threading.Event()

    def slow() -> SimulatedDriver:
        may_open.wait(60)
        return bench.drivers()

    monkeypatch.setattr(common, "DRIVER_SLOW_SECONDS", 0.01)
    monkeypatch.setattr(common, "DRIVER_OPEN_SECONDS", 0.02)
    assert isinstance(await common.open_or_absent(slow), AbsentDriver)
    may_open.set()
    await until(lambda: bench.drivers.opened == 2 and bench.drivers.open_now == 1)
    await bench.agent.close()
    may_open.clear()
    error = DriverUnavailable("init")
    bench.start(AbsentDriver(error, "boot-1"))
    bench.agent.governor._keeper._open_driver = slow
    await bench.round(REOPEN_NS / SECOND)
    await bench.agent.close()  # while it is being opened
    may_open.set()
    await until(lambda: bench.drivers.opened == 3 and bench.drivers.open_now == 0)


async def test_nothing_is_said_to_be_let_go_of_while_a_driver_is_being_opened_or_closed(bench: Bench) -> None:
    """It would come up, with every GPU open, where somebody resets them by now."""
    may_open, may_close = threading.Event(), threading.Event()

    class Slow(SimulatedDriver):
        def close(self) -> None:
            may_close.wait(60)
            super().close()
            closed.append(self)

    def slow() -> SimulatedDriver:
        may_open.wait(60)
        opened.append(Slow(bench.node))
        return opened[-1]

    opened: list[SimulatedDriver] = []
    closed: list[SimulatedDriver] = []
    await bench.agent.close()
    bench.start(AbsentDriver(DriverUnavailable("init"), "boot-1"))
    bench.agent.governor._keeper._open_driver = slow
    await bench.round(REOPEN_NS / SECOND)
    request_release(bench.folder, "node-0", 600)
    for _ in range(3):
        await bench.round()
        bench.published()
    assert bench.degraded()[0] == "Released"
    assert not is_released(bench.folder, "node-0")
    may_open.set()
    await until(lambda: bool(opened))
    for _ in range(3):
        await bench.round()
    assert bench.degraded()[0] == "Released"
    assert not is_released(bench.folder, "node-0")
    may_close.set()
    await bench.rounds_until(lambda: is_released(bench.folder, "node-0"))
    assert closed == opened
    await bench.agent.close()
