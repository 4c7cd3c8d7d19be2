"""What the agent's tests put in place of the machine: a quick disk, a clock that stands still, pods as the test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyball_agent.enforce.journal import Disk
from flyball_agent.gpu.gpu import GpuDriver
from flyball_agent.pods.resources import PodDevices, PodResourcesError

SECOND = 1_000_000_000


class QuickDisk(Disk):
    """Without the waiting: what a process wrote survives its own death, synced or not."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_folder(self, path: Path) -> None:
        pass


class VirtualClock:
    """A clock in nanoseconds that stands still until a test moves it."""

    def __init__(self, now_ns: int = 1000 * SECOND) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND)


class Pods:
    """Who holds what, as the test says; `broken` while the kubelet does not answer."""

    def __init__(self, *pods: PodDevices) -> None:
        self.pods: Sequence[PodDevices] = pods
        self.broken = False

    async def list(self) -> Sequence[PodDevices]:
        if self.broken:
            raise PodResourcesError("kubelet.sock: UNAVAILABLE")
        return self.pods

    async def close(self) -> None:
        pass


@dataclass(frozen=True)
class DriverBench:
    """A node of two A100s: the driver as the agent has it, the hardware behind it, and a wait for a condition of it.

    `node` is a VirtualNode or a SimulatedNode, by `kind`: "virtual", "file", "nvml" or "worker".
    """

    kind: str
    driver: GpuDriver
    node: Any
    wait: Callable[[Callable[[], bool]], None]
