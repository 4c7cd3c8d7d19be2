"""The agent host: the real node agents of many simulated nodes, in one process.

Each agent has what it would have on its node: its own hardware, journal and sockets, and its own credential, a token
bound to its node's pod of the agents' DaemonSet, so that RBAC and the admission policy hold it to its own GPUNode.
An agent lives as long as its pod does: it starts when the pod runs, ends with it, and is started again if it fails, as
the kubelet would, also while the API server is away. Journals, hardware and credentials are files, so that the process
can be killed at any moment and started again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from flyball_agent.cluster.brake_watch import BrakeWatch
from flyball_agent.cluster.gpu_node_channel import API_TIMEOUT_SECONDS, GpuNodeChannel
from flyball_agent.cluster.lease_watch import LeaseWatch
from flyball_agent.gpu.simulated import SimulatedDriver
from flyball_agent.node.metrics import AgentCollector, MetricsServer
from flyball_agent.pods.resources import SimulatedPodResources
from flyball_agent.process.main import open_journal
from flyball_agent.process.single import SingleProcessAgent
from flyball_api.names import DEFAULT_NAMESPACE
from flyball_kube.process.log_settings import LogSettings
from flyball_kube.process.logs import configure_logging, get_logger
from flyball_kube.process.package import package_version
from flyball_kube.session import ApiSession

from flyball_testbed.controlplane.control_plane import ControlPlane
from flyball_testbed.controlplane.install import AGENT, agent_pods
from flyball_testbed.controlplane.ports import LOOPBACK
from flyball_testbed.workload.devices import hardware_path, pods_path

logger = get_logger(__name__)

LOOK_SECONDS, LOOK_SHARE = 1.0, 10
# Each agent begins with three lists over connections of its own. A thousand of them at once, in one process, would all wait
# for longer than a request may take, begin anew together, and never get there.
STARTS_AT_ONCE = 32
START_SECONDS = 10.0
FIRST_RESTART_SECONDS, LAST_RESTART_SECONDS = 0.5, 10.0


def away_path(state: Path, node: str) -> Path:
    """While this file is there, the node's agent cannot run, as where its image cannot be pulled."""
    return state / f"{node}.away"


@dataclass(frozen=True)
class AgentHostSettings:
    """`state` holds journals and credentials; `only` names the nodes to serve (empty: every node with hardware).

    `operator_namespace` is where the operator's Lease is.
    """

    cluster: Path
    hardware: Path
    sockets: Path
    state: Path
    tick_seconds: float = 0.25
    status_interval_seconds: float = 30.0
    operator_namespace: str = DEFAULT_NAMESPACE
    metrics_port: int = 0
    only: Collection[str] = ()


class AgentHost:
    """Runs an agent for each pod of the agents' DaemonSet whose node has hardware here; `run` until cancelled."""

    def __init__(self, settings: AgentHostSettings) -> None:
        self._settings = settings
        self._control_plane = ControlPlane.attach(settings.cluster)
        self._running: dict[str, tuple[str, asyncio.Task[None]]] = {}  # node -> (pod, its agent)
        self._agents: dict[str, SingleProcessAgent] = {}
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)

    async def run(self) -> None:
        """Serve metrics of all agents on one port, and keep an agent running for each pod."""
        self._settings.state.mkdir(parents=True, exist_ok=True)
        collector = AgentCollector(self._agents.values())
        metrics = MetricsServer(collector, host=LOOPBACK, port=self._settings.metrics_port)
        logger.info("metrics served", port=await metrics.start())
        try:
            while True:
                asked_at = time.monotonic()
                try:
                    pods = await asyncio.to_thread(agent_pods, self._control_plane.api)
                except Exception as error:  # the API server may be away for a while
                    logger.warning("agents' pods unknown", error=str(error))
                    pods = self._last_pods()
                await self._follow(pods)
                # A list of a thousand pods is work for the API server, and for this process.
                await asyncio.sleep(max(LOOK_SECONDS, LOOK_SHARE * (time.monotonic() - asked_at)))
        finally:
            await self._stop(list(self._running))
            await metrics.stop()

    async def _follow(self, pods: dict[str, str]) -> None:
        """Start and stop agents so that those run whose pods do, and whose machine lets them."""
        pods = {node: pod for node, pod in pods.items() if not away_path(self._settings.state, node).exists()}
        await self._stop([node for node, (pod, _) in self._running.items() if pods.get(node) != pod])
        for node, pod in pods.items():
            ours = not self._settings.only or node in self._settings.only
            if ours and node not in self._running and hardware_path(self._settings.hardware, node).exists():
                self._running[node] = (pod, asyncio.create_task(self._keep_running(node, pod)))

    def _last_pods(self) -> dict[str, str]:
        """The pods that agents have run for here: a kubelet starts their containers again without asking anybody."""
        return {path.stem: path.read_text(encoding="utf-8") for path in self._settings.state.glob("*.pod")}

    def _credential(self, node: str, pod: str) -> Path:
        """A kubeconfig with a new token of the pod; with the last one while there is nobody to give a new one."""
        path, last = (self._settings.state / f"{node}.{suffix}" for suffix in ("kubeconfig", "pod"))
        try:
            self._control_plane.service_account_kubeconfig(DEFAULT_NAMESPACE, AGENT, pod=pod, path=path)
        except Exception:
            if not last.exists() or last.read_text(encoding="utf-8") != pod:
                raise
        else:
            last.write_text(pod, encoding="utf-8")
        return path

    async def _stop(self, nodes: list[str]) -> None:
        tasks = [self._running.pop(node)[1] for node in nodes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_running(self, node: str, pod: str) -> None:
        pause = FIRST_RESTART_SECONDS
        while True:
            try:
                async with contextlib.AsyncExitStack() as starting:
                    await starting.enter_async_context(self._starts)
                    kubeconfig = await asyncio.to_thread(self._credential, node, pod)
                    connecting = ApiSession.connect(kubeconfig, timeout_seconds=API_TIMEOUT_SECONDS)
                    async with await connecting as session:
                        await self._run_agent(node, session, starting)
            except Exception:
                logger.exception("agent failed", node=node, again_in_seconds=pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_RESTART_SECONDS)

    async def _run_agent(self, node: str, session: ApiSession, starting: contextlib.AsyncExitStack) -> None:
        """Run one agent; `starting` is closed once it has seen its GPUNode and the brakes, or is slow to."""
        settings = self._settings
        agent = SingleProcessAgent(
            node,
            SimulatedDriver.open(hardware_path(settings.hardware, node)),
            await open_journal(settings.state, node),
            SimulatedPodResources(pods_path(settings.hardware, node)),
            tick_seconds=settings.tick_seconds,
            socket_folder=settings.sockets,
            version=package_version(),
        )
        channel = GpuNodeChannel(session, agent, status_interval_seconds=settings.status_interval_seconds)
        # Each agent sees the operator's pulse and the brakes over connections of its own, as it would on its node.
        lease = LeaseWatch(session, namespace=settings.operator_namespace)
        lease.listen(agent.operator_seen)
        brakes = BrakeWatch(session)
        brakes.listen(agent.take_brakes)
        self._agents[node] = agent
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(agent.run())
                group.create_task(channel.run())
                group.create_task(lease.run())
                group.create_task(brakes.run())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(START_SECONDS):
                        await asyncio.gather(channel.informer.wait_synced(), brakes.informer.wait_synced())
                await starting.aclose()
        finally:
            del self._agents[node]
            await agent.close()


async def run(settings: AgentHostSettings) -> None:
    """Run an agent host until SIGTERM; every limit stays as it is."""
    work = asyncio.create_task(AgentHost(settings).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await work


def main() -> None:
    parser = argparse.ArgumentParser(prog="agent_host", description="Run the node agents of simulated nodes.")
    parser.add_argument("--cluster", type=Path, required=True, help="directory of the control plane")
    parser.add_argument("--hardware", type=Path, required=True, help="directory of the <node>.gpus files")
    parser.add_argument("--sockets", type=Path, required=True, help="directory for the pods' sockets (a short path)")
    parser.add_argument("--state", type=Path, required=True, help="directory for journals and credentials")
    parser.add_argument("--tick-seconds", type=float, default=AgentHostSettings.tick_seconds)
    parser.add_argument("--status-interval-seconds", type=float, default=AgentHostSettings.status_interval_seconds)
    parser.add_argument("--operator-namespace", default=AgentHostSettings.operator_namespace, help="where its Lease is")
    parser.add_argument(
        "--metrics-port", type=int, default=AgentHostSettings.metrics_port, help="0: any free one (in the log)"
    )
    parser.add_argument("--log-level", default=LogSettings().log_level)
    parser.add_argument("--only", default="", help="comma-separated nodes; the default is all with hardware")
    arguments = parser.parse_args()
    configure_logging(LogSettings(log_level=arguments.log_level))
    settings = AgentHostSettings(
        cluster=arguments.cluster,
        hardware=arguments.hardware,
        sockets=arguments.sockets,
        state=arguments.state,
        tick_seconds=arguments.tick_seconds,
        status_interval_seconds=arguments.status_interval_seconds,
        operator_namespace=arguments.operator_namespace,
        metrics_port=arguments.metrics_port,
        only=frozenset(filter(None, arguments.only.split(","))),
    )
    asyncio.run(run(settings))


if __name__ == "__main__":
    main()
