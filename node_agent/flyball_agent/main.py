"""The agent as a process: one node, its driver, its journal, the Kubernetes API, metrics, and a clean end.

SIGTERM and SIGINT end it within a moment; every power limit and lock stays as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from flyball_kube.session import ApiSession

from flyball_agent.agent import AgentFailed, NodeAgent
from flyball_agent.drivers.simulated_gpu import SimulatedDriver
from flyball_agent.gpu import GpuDriver
from flyball_agent.journal import Journal, JournalHeld
from flyball_agent.kubernetes import GpuNodeChannel, LeaseWatch, PodUids
from flyball_agent.metrics import AgentCollector, MetricsServer
from flyball_agent.pod_resources import KUBELET_SOCKET, KubeletPodResources, PodResources, SimulatedPodResources

logger = logging.getLogger(__name__)

JOURNAL_WAIT_SECONDS = 30.0
JOURNAL_RETRY_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What `flyball agent run` takes.

    `hardware_dir` holds the simulated nodes' files (`<node>.gpus`, `<node>.pods.json`), for driver `simulated`. With
    `kubernetes` False the agent stands alone: it adopts, measures and serves metrics, and is never told anything.
    """

    node_name: str
    driver: str
    journal_dir: Path
    socket_dir: Path | None = None
    hardware_dir: Path | None = None
    nvml_library: Path | None = None
    pods: str = "auto"  # kubelet | file | auto: by the driver
    kubelet_socket: Path = KUBELET_SOCKET
    kubeconfig: Path | None = None
    kubernetes: bool = True
    metrics_host: str = "0.0.0.0"  # noqa: S104 - Prometheus scrapes from elsewhere
    metrics_port: int | None = 9101
    tick_seconds: float = 1.0
    status_interval_seconds: float = 30.0


class OptionError(ValueError):
    """Options that do not go together; the message says what would."""


def package_version() -> str:
    """The installed distribution's version, "0" where it is not installed."""
    try:
        return version("flyball")
    except PackageNotFoundError:
        return "0"


def open_driver(options: AgentOptions) -> GpuDriver:
    """The driver that the options name. Raises OptionError, GpuError or OSError."""
    if options.driver == "nvml":
        from flyball_agent.drivers.nvml import NvmlDriver

        return NvmlDriver(options.nvml_library)
    if options.driver == "simulated":
        if options.hardware_dir is None:
            raise OptionError("driver simulated needs the hardware directory, where <node>.gpus lies")
        return SimulatedDriver.open(options.hardware_dir / f"{options.node_name}.gpus")
    raise OptionError(f"driver {options.driver!r} is unknown (nvml or simulated)")


def open_pods(options: AgentOptions) -> PodResources:
    """Who says which pod holds what. Raises OptionError."""
    kind = options.pods if options.pods != "auto" else ("file" if options.driver == "simulated" else "kubelet")
    if kind == "kubelet":
        return KubeletPodResources(options.kubelet_socket)
    if kind == "file" and options.hardware_dir is not None:
        return SimulatedPodResources(options.hardware_dir / f"{options.node_name}.pods.json")
    if kind == "file":
        raise OptionError("pods from a file need the hardware directory, where <node>.pods.json lies")
    raise OptionError(f"pods from {kind!r} are unknown (kubelet, file or auto)")


async def open_journal(folder: Path, node: str) -> Journal:
    """The node's journal, once an agent that is being replaced has let it go. Raises JournalHeld after a while."""
    loop = asyncio.get_running_loop()
    end = loop.time() + JOURNAL_WAIT_SECONDS
    while True:
        try:
            return Journal(folder, node)
        except JournalHeld:
            if loop.time() > end:
                raise
            await asyncio.sleep(JOURNAL_RETRY_SECONDS)


async def run_agent(options: AgentOptions, ready: Callable[[int | None], None] = lambda port: None) -> None:
    """Run until SIGTERM or SIGINT; `ready` gets the metrics port once everything is up.

    Raises AgentFailed where a fresh process may do better, and GpuError where the driver cannot be used at all.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        journal = await open_journal(options.journal_dir, options.node_name)
        session = await ApiSession.connect(options.kubeconfig) if options.kubernetes else None
        if session is not None:
            stack.push_async_callback(session.close)
        driver = open_driver(options)
        pods = open_pods(options)
        uids = PodUids(session, options.node_name) if session and isinstance(pods, KubeletPodResources) else None
        agent = NodeAgent(
            options.node_name,
            driver,
            journal,
            pods,
            tick_seconds=options.tick_seconds,
            pod_uid=uids or (lambda namespace, name: None),
            socket_folder=options.socket_dir,
            version=package_version(),
        )
        stack.push_async_callback(agent.close)
        port = None
        if options.metrics_port is not None:
            server = MetricsServer(AgentCollector([agent]), host=options.metrics_host, port=options.metrics_port)
            port = await server.start()
            stack.push_async_callback(server.stop)
        logger.info(
            "agent started",
            extra={
                "node": options.node_name,
                "driver": driver.name,
                "gpus": len(agent.enforcer.boards),
                "spec": None if agent.enforcer.spec is None else agent.enforcer.spec.pair,
                "metrics_port": port,
            },
        )
        tasks = [asyncio.create_task(agent.run()), asyncio.create_task(stop.wait())]
        if session is not None:
            lease_watch = LeaseWatch(session)
            lease_watch.listen(agent.operator_seen)
            channel = GpuNodeChannel(session, agent, status_interval_seconds=options.status_interval_seconds)
            tasks += [asyncio.create_task(lease_watch.run()), asyncio.create_task(channel.run())]
            if uids is not None:
                tasks.append(asyncio.create_task(uids.run()))
        ready(port)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            logger.info("agent stopped; limits stay as they are", extra={"node": options.node_name})


__all__ = ["AgentFailed", "AgentOptions", "OptionError", "open_driver", "open_pods", "run_agent"]
