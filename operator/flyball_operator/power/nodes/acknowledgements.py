"""Which nodes owe an acknowledgement of their grant, and which have owed one for too long to be planned with."""

from __future__ import annotations

from collections.abc import Mapping, Set

from flyball_api.gpu_node import GpuNode
from flyball_api.grant import GrantVersion


class Acknowledgements:
    """Remembers since when each node has owed an acknowledgement.

    The time counts from the first grant that is not acknowledged and goes on through newer ones: an agent that answers
    none of them is unresponsive all the same. For one that answers each of them late, while grants follow fast upon each
    other, it starts anew with each answer.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        # The first grant that is not acknowledged, and since when.
        self._owed: dict[str, tuple[GrantVersion, float]] = {}
        self._unresponsive: frozenset[str] = frozenset()

    @property
    def unresponsive(self) -> frozenset[str]:
        """Nodes that have owed an acknowledgement beyond the timeout.

        Agents that never acknowledged anything are not among them: `NodeInfo.acknowledged` is already False for them.
        """
        return self._unresponsive

    @property
    def owing(self) -> Set[str]:
        """Nodes whose agents have yet to acknowledge the grant that stands."""
        return self._owed.keys()

    def update(self, gpu_nodes: Mapping[str, GpuNode], monotonic: float) -> None:
        """Take in the GPUNodes as they are now."""
        unresponsive = set()
        for name, gpu_node in gpu_nodes.items():
            if gpu_node.grant is None or gpu_node.acknowledged_current:
                self._owed.pop(name, None)
                continue
            version, since = self._owed.get(name, (gpu_node.grant.version, monotonic))
            if gpu_node.acknowledged is None or gpu_node.acknowledged.version >= version:
                version, since = gpu_node.grant.version, monotonic
            self._owed[name] = (version, since)
            if monotonic - since > self._timeout_seconds:
                unresponsive.add(name)
        for name in self._owed.keys() - gpu_nodes.keys():
            del self._owed[name]
        self._unresponsive = frozenset(unresponsive)
