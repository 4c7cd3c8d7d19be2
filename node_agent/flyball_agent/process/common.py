"""What the processes of an agent have in common: driver, journal, signals."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from flyball_kube.process.logs import get_logger

from flyball_agent import off_loop
from flyball_agent.clock import boottime_ns
from flyball_agent.enforce.driver_access import AbsentDriver
from flyball_agent.enforce.journal import Journal, JournalHeld
from flyball_agent.enforce.requests import BOOT_ID_FILE, Requests
from flyball_agent.govern.driver_keeper import close_late
from flyball_agent.govern.governor import Governor
from flyball_agent.gpu.gpu import DriverUnavailable, GpuDriver, GpuError, GpusReleased
from flyball_agent.process.options import GovernorOptions

logger = get_logger(__name__)

JOURNAL_WAIT_SECONDS = 30.0
JOURNAL_RETRY_SECONDS = 0.2
DRIVER_SLOW_SECONDS = 1.0
DRIVER_OPEN_SECONDS = 60.0


def open_driver(options: GovernorOptions) -> GpuDriver:
    """The driver that the options name. Raises GpuError or OSError."""
    if options.driver == "simulated":
        from flyball_agent.gpu.simulated import SimulatedDriver

        return SimulatedDriver.open(options.hardware_file("gpus"))
    from flyball_agent.gpu.worker_driver import WorkerDriver

    return WorkerDriver(options.nvml_library)


async def open_journal(folder: Path, node: str) -> Journal:
    """The node's journal, once an agent that is being replaced has let it go. Raises JournalHeld after a while."""
    loop = asyncio.get_running_loop()
    end, waiting = loop.time() + JOURNAL_WAIT_SECONDS, False
    while True:
        try:
            return Journal(folder, node)
        except JournalHeld as error:
            if loop.time() > end:
                raise
            if not waiting:
                waiting = True
                logger.info("waiting for the journal", node=node, detail=str(error))
            await asyncio.sleep(JOURNAL_RETRY_SECONDS)


async def open_unless_released(options: GovernorOptions) -> GpuDriver:
    """The driver that the options name, as `open_or_absent`; none while an administrator has asked to let go of it."""
    released = Requests(options.journal_dir, options.node_name).released_until(boottime_ns())
    if released is None:
        return await open_or_absent(lambda: open_driver(options))
    let_go = GpusReleased("release", detail=f"let go of by an administrator, for {released} s more at most")
    return AbsentDriver(let_go, BOOT_ID_FILE.read_text().strip())


async def open_or_absent(opening: Callable[[], GpuDriver]) -> GpuDriver:
    """The driver, opened in a thread; or what stands for one that cannot be opened, or not within `DRIVER_OPEN_SECONDS`.

    An agent without a driver still says so, keeps its node's watts reserved, and tries again.
    """
    opened = off_loop.begin(opening, "open-driver")
    if not await off_loop.done_within(opened, DRIVER_SLOW_SECONDS):
        logger.warning("the driver is slow to open")
        if not await off_loop.done_within(opened, DRIVER_OPEN_SECONDS - DRIVER_SLOW_SECONDS):
            opened.add_done_callback(close_late)
            late = DriverUnavailable("open", detail=f"the driver did not open within {DRIVER_OPEN_SECONDS:g} s")
            return AbsentDriver(late, BOOT_ID_FILE.read_text().strip())
    try:
        return opened.result()
    except GpuError as error:
        logger.error("no driver", error=str(error))
        return AbsentDriver(error, BOOT_ID_FILE.read_text().strip())


async def until_signalled(work: Coroutine[Any, Any, None]) -> None:
    """Run until it ends, or until SIGTERM or SIGINT, which end it whatever it waits for. Raises what it raises."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working


async def until_one_ends(*work: Coroutine[Any, Any, None]) -> None:
    """Run all until one of them ends, which none should. Raises what it raises."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def log_start(governor: Governor, driver: GpuDriver) -> None:
    grant = governor.state.enforced.grant
    logger.info(
        "agent started",
        node=governor.state.node,
        driver=driver.name,
        gpus=len(governor.state.enforced.gpus),
        mode=str(governor.state.enforced.mode),
        grant=None if grant is None else tuple(grant.version),
    )
