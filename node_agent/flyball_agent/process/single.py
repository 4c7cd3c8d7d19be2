"""A governor and an agent in one process: for nodes without a kubelet's containers, for many simulated nodes, for tests."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from flyball_agent.clock import boottime_ns
from flyball_agent.enforce.enforcer import Enforcer
from flyball_agent.enforce.journal import Journal
from flyball_agent.govern.governor import TICK_SECONDS, Governor
from flyball_agent.gpu.calls import DriverCalls
from flyball_agent.gpu.gpu import GpuDriver
from flyball_agent.node.agent import NodeAgent, SocketFolders
from flyball_agent.pods.resources import PodResources


class SingleProcessAgent(NodeAgent):
    """Both halves of one node's agent; `run` runs and `close` ends them both."""

    def __init__(
        self,
        node: str,
        driver: GpuDriver,
        journal: Journal,
        pod_resources: PodResources,
        *,
        open_driver: Callable[[], GpuDriver] | None = None,
        tick_seconds: float = TICK_SECONDS,
        clock_ns: Callable[[], int] = boottime_ns,
        wall_seconds: Callable[[], float] = time.time,
        calls: DriverCalls | None = None,
        socket_folder: str | os.PathLike[str] | None = None,
        socket_plugin: SocketFolders | None = None,
        version: str = "0",
        observe: bool = False,
    ) -> None:
        self.governor = Governor(
            node,
            driver,
            journal,
            open_driver=open_driver,
            tick_seconds=tick_seconds,
            clock_ns=clock_ns,
            wall_seconds=wall_seconds,
            calls=calls,
            version=version,
            observe=observe,
        )
        super().__init__(
            self.governor,
            pod_resources,
            node=node,
            tick_seconds=tick_seconds,
            clock_ns=clock_ns,
            wall_seconds=wall_seconds,
            socket_folder=socket_folder,
            socket_plugin=socket_plugin,
        )

    @property
    def enforcer(self) -> Enforcer:
        return self.governor.enforcer

    async def run(self) -> None:
        """Make rounds and list pods until cancelled. Raises AgentFailed where this process cannot."""
        finding = asyncio.create_task(super().run())
        try:
            await self.governor.run()
        finally:
            finding.cancel()
            await asyncio.gather(finding, return_exceptions=True)

    async def tick(self) -> None:
        """One round."""
        await self.governor.tick()

    async def close(self) -> None:
        """Journal the accounts and release everything; every limit and lock stays as it is."""
        await super().close()
        await self.governor.close()
