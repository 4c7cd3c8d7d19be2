"""Which agents are alive: how long ago each one's report was last seen to change, and whether since a sign of a boot."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from flyball_api.gpu_node import GpuNode, GpuNodeStatus


class Heartbeats:
    """Remembers when each GPUNode's status was last seen to change.

    Agents publish at least every half minute, and the energy counters make every report differ from the one before, so that
    a report needs no further sign of life. Its age is counted by the operator's own monotonic clock from the moment at
    which it was seen: no two clocks are compared. A new leader counts from when it first looks.

    A node that has shown a sign of a boot is silent until its agent's next report, however soon the sign is gone: a Node
    that was not ready for a moment may have had its driver loaded anew meanwhile, and nobody has looked since.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._seen: dict[str, tuple[GpuNodeStatus, float]] = {}
        self._unheard: set[str] = set()  # those without a report since their last sign

    def update(
        self, gpu_nodes: Mapping[str, GpuNode], monotonic: float, signs: Collection[str] = ()
    ) -> dict[str, float]:
        """Take in the GPUNodes as they are now, and which nodes show a sign of a boot.

        Returns the nodes without a report for too long or since their last sign, with the seconds since the last one.
        """
        silent = {}
        for name, gpu_node in gpu_nodes.items():
            status, since = self._seen.get(name, (None, monotonic))
            if status is not gpu_node.status and status != gpu_node.status:
                since = monotonic
                self._unheard.discard(name)
            if name in signs:
                self._unheard.add(name)
            self._seen[name] = (gpu_node.status, since)
            if name in self._unheard or monotonic - since > self._timeout_seconds:
                silent[name] = monotonic - since
        for name in self._seen.keys() - gpu_nodes.keys():
            del self._seen[name]
            self._unheard.discard(name)
        return silent
