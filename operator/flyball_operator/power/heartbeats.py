"""Which agents are alive: how long ago each one's report was last seen to change."""

from __future__ import annotations

from collections.abc import Mapping

from flyball_api.gpu_node import GpuNode, GpuNodeStatus


class Heartbeats:
    """Remembers when each GPUNode's status was last seen to change.

    Agents publish at least every half minute, and the energy counters make every report differ from the one before, so that
    a report needs no further sign of life. Its age is counted by the operator's own monotonic clock from the moment at
    which it was seen: no two clocks are compared. A new leader counts from when it first looks.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._seen: dict[str, tuple[GpuNodeStatus, float]] = {}

    def update(self, gpu_nodes: Mapping[str, GpuNode], monotonic: float) -> dict[str, float]:
        """Take in the GPUNodes as they are now; returns the nodes without a report for too long, with the seconds."""
        silent = {}
        for name, gpu_node in gpu_nodes.items():
            status, since = self._seen.get(name, (None, monotonic))
            if status is not gpu_node.status and status != gpu_node.status:
                since = monotonic
            self._seen[name] = (gpu_node.status, since)
            if monotonic - since > self._timeout_seconds:
                silent[name] = monotonic - since
        for name in self._seen.keys() - gpu_nodes.keys():
            del self._seen[name]
        return silent
