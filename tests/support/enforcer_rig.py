"""An enforcer on a virtual node, with a journal on disk, that can be killed and started again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from flyball_agent.enforce.enforcer import Enforcer
from flyball_agent.enforce.gpu_state import PodName
from flyball_agent.enforce.journal import Disk, Journal
from flyball_agent.gpu.calls import DriverCalls
from flyball_agent.gpu.gpu import GpuDriver
from flyball_agent.gpu.simulated import SimulatedDriver
from flyball_simulated_gpu.catalogue import CATALOGUE
from flyball_simulated_gpu.virtual import VirtualNode

from tests.support.agent_doubles import QuickDisk

A100 = CATALOGUE["NVIDIA-A100-SXM4-40GB"]
SECOND = 1_000_000_000
GPUS = 4
MIN_LIMITS = GPUS * 100_000


class Rig:
    """One virtual node, its journal on disk, and an enforcer that can be killed and started again."""

    def __init__(self, folder: Path, disk: Disk | None = None, gpus: int = GPUS) -> None:
        self.now_ns = 1000 * SECOND
        self.folder = folder
        self.disk = disk or QuickDisk()
        self.node = VirtualNode("node-0", [A100] * gpus, lambda: self.now_ns)
        self.driver = SimulatedDriver(self.node)
        self.pods: dict[str, tuple[PodName, ...]] = {}
        self.start()

    def start(
        self, driver: GpuDriver | None = None, calls: DriverCalls | None = None, *, observe: bool = False
    ) -> None:
        self.journal = Journal(self.folder, "node-0", disk=self.disk)
        self.enforcer = Enforcer(
            "node-0",
            driver or self.driver,
            self.journal,
            clock_ns=lambda: self.now_ns,
            wall_seconds=lambda: 0.0,
            calls=calls,
            observe=observe,
        )
        self.enforcer.set_pods(self.pods)

    def restart(self, **keywords: Any) -> None:
        self.enforcer.close()
        self.start(**keywords)

    def hold(self, pod: str, *indexes: int) -> None:
        """Let a pod hold just these GPUs."""
        name = PodName("research", pod)
        for index, device in enumerate(self.node.devices):
            others = tuple(other for other in self.pods.get(device.uuid, ()) if other != name)
            self.pods[device.uuid] = (*others, name) if index in indexes else others
        self.enforcer.set_pods(self.pods)

    def step(self, seconds: float = 0.0) -> None:
        self.now_ns += round(seconds * SECOND)
        asyncio.run(self.enforcer.step())

    def limits(self) -> list[int]:
        return [device.read().requested_limit_milliwatts for device in self.node.devices]

    def locks(self) -> list[tuple[int, int]]:
        return [(d.read().locked_min_megahertz, d.read().locked_max_megahertz) for d in self.node.devices]

    @property
    def acknowledged(self) -> tuple[int, int, int] | None:
        ack = self.enforcer.state.acknowledged
        return None if ack is None else (ack.epoch, ack.generation, ack.limits_milliwatts)
