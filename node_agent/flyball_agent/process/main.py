"""The agent as a process: one node, the Kubernetes API, metrics, and a clean end; with the governor in it, or beside it.

SIGTERM and SIGINT end it within a moment; every power limit and lock stays as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

from flyball_kube.process.logs import get_logger
from flyball_kube.server_version import ServerTooOld, require_ordered_versions
from flyball_kube.session import ApiSession

from flyball_agent.cluster.brake_watch import BrakeWatch
from flyball_agent.cluster.gpu_node_channel import API_TIMEOUT_SECONDS, GpuNodeChannel
from flyball_agent.cluster.lease_watch import LeaseWatch
from flyball_agent.govern.governor import AgentFailed
from flyball_agent.link.client import EnforcerLink
from flyball_agent.node.agent import NodeAgent, SocketFolders
from flyball_agent.node.metrics import AgentCollector, MetricsServer
from flyball_agent.pods.resources import PodResources, SimulatedPodResources
from flyball_agent.process.common import (
    log_start,
    open_driver,
    open_journal,
    open_unless_released,
    until_one_ends,
    until_signalled,
)
from flyball_agent.process.options import OBSERVE, AgentOptions
from flyball_agent.process.single import SingleProcessAgent

logger = get_logger(__name__)


def open_pods(options: AgentOptions) -> PodResources:
    """The source of which pod holds which GPU."""
    if options.pods_from == "file":
        return SimulatedPodResources(options.hardware_file("pods.json"))
    from flyball_agent.pods.kubelet import KubeletPodResources

    return KubeletPodResources(options.kubelet_socket)


def open_socket_plugin(options: AgentOptions) -> SocketFolders | None:
    """What gives pods their sockets; None where no device plugin does."""
    if options.socket_plugin_dir is None or options.socket_dir is None:
        return None
    from flyball_agent.training.socket_plugin import SocketPlugin

    return SocketPlugin(options.socket_plugin_dir, options.socket_dir, options.socket_host_dir)


async def run_agent(options: AgentOptions, version: str) -> None:
    """Run as Flyball's `version` until SIGTERM or SIGINT, which end it whatever it waits for.

    Raises AgentFailed where a fresh process may do better, CredentialsError, OSError for simulated hardware that is not
    there, and ServerTooOld for an API server that cannot be followed.
    """
    await until_signalled(_run(options, version))
    logger.info("agent stopped; limits stay as they are", node=options.node_name)


async def _run(options: AgentOptions, version: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        work = []
        session: ApiSession | None = None
        link: EnforcerLink | None = None
        agent: NodeAgent
        plugin = open_socket_plugin(options)
        if options.enforcer_socket is None:
            journal = await open_journal(options.journal_dir, options.node_name)
            stack.callback(journal.close)
            session = await _connect(options, stack)
            driver = await open_unless_released(options)
            agent = single = SingleProcessAgent(
                options.node_name,
                driver,
                journal,
                open_pods(options),
                open_driver=lambda: open_driver(options),
                tick_seconds=options.tick_seconds,
                socket_folder=options.socket_dir,
                socket_plugin=plugin,
                version=version,
                observe=options.mode == OBSERVE,
            )
            log_start(single.governor, driver)
        else:
            session = await _connect(options, stack)
            link = EnforcerLink(options.enforcer_socket, options.node_name, version=version)
            agent = NodeAgent(
                link,
                open_pods(options),
                node=options.node_name,
                tick_seconds=options.tick_seconds,
                socket_folder=options.socket_dir,
                socket_plugin=plugin,
            )
            work.append(link.run())
        stack.push_async_callback(agent.close)
        work.append(agent.run())
        if plugin is not None:
            work.append(plugin.run())
        if options.metrics_port >= 0:
            server = MetricsServer(AgentCollector([agent]), host=options.metrics_host, port=options.metrics_port)
            work.append(server.serve())
        if session is not None:
            lease_watch = LeaseWatch(session, namespace=options.namespace)
            lease_watch.listen(agent.operator_seen)
            brake_watch = BrakeWatch(session)
            brake_watch.listen(agent.take_brakes)
            channel = GpuNodeChannel(session, agent, status_interval_seconds=options.status_interval_seconds)
            if link is not None:
                connected = asyncio.Event()
                link.on_connected = partial(_line_is_there, connected, channel)
                work.append(_reread_for_each_line(connected, channel, brake_watch))
            work += [lease_watch.run(), brake_watch.run(), _follow(session, channel)]
        await until_one_ends(*work)


async def _connect(options: AgentOptions, stack: contextlib.AsyncExitStack) -> ApiSession | None:
    if not options.kubernetes:
        return None
    session = await ApiSession.connect(options.kubeconfig, timeout_seconds=API_TIMEOUT_SECONDS, lean=True)
    stack.push_async_callback(session.close)
    return session


def _line_is_there(connected: asyncio.Event, channel: GpuNodeChannel) -> None:
    channel.governor_is_new()
    connected.set()


async def _reread_for_each_line(connected: asyncio.Event, channel: GpuNodeChannel, brake_watch: BrakeWatch) -> None:
    """An enforcer that has just started raises nothing before it hears what is seen at the API server from then on."""
    while True:
        await connected.wait()
        connected.clear()
        await asyncio.gather(channel.reread(), brake_watch.reread())


async def _follow(session: ApiSession, channel: GpuNodeChannel) -> None:
    # Asked at the start only: an agent that holds a grant goes on holding it, whatever becomes of its API server.
    await require_ordered_versions(session)
    await channel.run()


__all__ = ["AgentFailed", "ServerTooOld", "open_journal", "open_pods", "run_agent"]
