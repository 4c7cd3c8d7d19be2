"""The agent as a process: one node, its driver, its journal, the Kubernetes API, metrics, and a clean end.

SIGTERM and SIGINT end it within a moment; every power limit and lock stays as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from flyball_kube.logs import get_logger
from flyball_kube.server_version import ServerTooOld, require_ordered_versions
from flyball_kube.session import ApiSession

from flyball_agent import off_loop
from flyball_agent.brake_watch import BrakeWatch
from flyball_agent.enforce.driver_access import AbsentDriver
from flyball_agent.enforce.journal import Journal, JournalHeld
from flyball_agent.enforce.requests import BOOT_ID_FILE
from flyball_agent.governor import AgentFailed
from flyball_agent.gpu.gpu import DriverUnavailable, GpuDriver, GpuError
from flyball_agent.gpu_node_channel import GpuNodeChannel
from flyball_agent.lease_watch import LeaseWatch
from flyball_agent.metrics import AgentCollector, MetricsServer
from flyball_agent.options import AgentOptions
from flyball_agent.pod_resources import PodResources, SimulatedPodResources
from flyball_agent.single_process import SingleProcessAgent

logger = get_logger(__name__)

JOURNAL_WAIT_SECONDS = 30.0
JOURNAL_RETRY_SECONDS = 0.2
DRIVER_SLOW_SECONDS = 1.0
DRIVER_OPEN_SECONDS = 60.0


def package_version() -> str:
    """The installed distribution's version, "0" where it is not installed."""
    try:
        return version("flyball")
    except PackageNotFoundError:
        return "0"


def open_driver(options: AgentOptions) -> GpuDriver:
    """The driver that the options name. Raises GpuError or OSError."""
    if options.driver == "simulated":
        from flyball_agent.gpu.simulated import SimulatedDriver

        return SimulatedDriver.open(options.hardware_file("gpus"))
    from flyball_agent.gpu.worker_driver import WorkerDriver

    return WorkerDriver(options.nvml_library)


def open_pods(options: AgentOptions) -> PodResources:
    """The source of which pod holds which GPU."""
    if options.pods_from == "file":
        return SimulatedPodResources(options.hardware_file("pods.json"))
    from flyball_agent.kubelet import KubeletPodResources

    return KubeletPodResources(options.kubelet_socket)


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


async def open_or_absent(opening: Callable[[], GpuDriver]) -> GpuDriver:
    """The driver, opened in a thread; or what stands for one that cannot be opened, or not within `DRIVER_OPEN_SECONDS`.

    An agent without a driver still says so, keeps its node's watts reserved, and tries again.
    """
    opened = off_loop.begin(opening, "open-driver")
    if not await off_loop.done_within(opened, DRIVER_SLOW_SECONDS):
        logger.warning("the driver is slow to open")
        if not await off_loop.done_within(opened, DRIVER_OPEN_SECONDS - DRIVER_SLOW_SECONDS):
            late = DriverUnavailable("open", detail=f"the driver did not open within {DRIVER_OPEN_SECONDS:g} s")
            return AbsentDriver(late, BOOT_ID_FILE.read_text().strip())
    try:
        return opened.result()
    except GpuError as error:
        logger.error("no driver", error=str(error))
        return AbsentDriver(error, BOOT_ID_FILE.read_text().strip())


async def run_agent(options: AgentOptions) -> None:
    """Run until SIGTERM or SIGINT, which end it whatever it waits for.

    Raises AgentFailed where a fresh process may do better, OSError for simulated hardware that is not there, and
    ServerTooOld for an API server that cannot be followed.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    work, stopping = asyncio.create_task(_run(options)), asyncio.create_task(stop.wait())
    await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    logger.info("agent stopped; limits stay as they are", node=options.node_name)


async def _run(options: AgentOptions) -> None:
    async with contextlib.AsyncExitStack() as stack:
        journal = await open_journal(options.journal_dir, options.node_name)
        session = await ApiSession.connect(options.kubeconfig) if options.kubernetes else None
        if session is not None:
            stack.push_async_callback(session.close)
        driver = await open_or_absent(lambda: open_driver(options))
        agent = SingleProcessAgent(
            options.node_name,
            driver,
            journal,
            open_pods(options),
            open_driver=lambda: open_driver(options),
            tick_seconds=options.tick_seconds,
            socket_folder=options.socket_dir,
            version=package_version(),
        )
        stack.push_async_callback(agent.close)
        grant = agent.state.enforced.grant
        logger.info(
            "agent started",
            node=options.node_name,
            driver=driver.name,
            gpus=len(agent.state.enforced.gpus),
            grant=None if grant is None else tuple(grant.version),
        )
        tasks = [asyncio.create_task(agent.run())]
        if options.metrics_port >= 0:
            server = MetricsServer(AgentCollector([agent]), host=options.metrics_host, port=options.metrics_port)
            tasks.append(asyncio.create_task(server.serve()))
        if session is not None:
            lease_watch = LeaseWatch(session, namespace=options.namespace)
            lease_watch.listen(agent.operator_seen)
            brake_watch = BrakeWatch(session)
            brake_watch.listen(agent.take_brakes)
            channel = GpuNodeChannel(session, agent, status_interval_seconds=options.status_interval_seconds)
            tasks += [asyncio.create_task(watch.run()) for watch in (lease_watch, brake_watch)]
            tasks.append(asyncio.create_task(_follow(session, channel)))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _follow(session: ApiSession, channel: GpuNodeChannel) -> None:
    # Asked at the start only: an agent that holds a grant goes on holding it, whatever becomes of its API server.
    await require_ordered_versions(session)
    await channel.run()


__all__ = ["AgentFailed", "ServerTooOld", "open_driver", "open_pods", "run_agent"]
