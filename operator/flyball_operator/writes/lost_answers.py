"""Grants whose answers are not waited for any longer, because their GPUNodes show that they are over."""

from __future__ import annotations

import math
from collections.abc import Mapping

from flyball_api.gpu_node import GpuNode

# The watch may well be a little quicker than the answer. A connection that is dead would be waited for for ten seconds.
LOST_AFTER_SECONDS = 1.0


class LostAnswers:
    """Remembers which version of its GPUNode each grant under way replaces.

    Once another version is seen, that write has arrived, or the API server can only refuse it: the next one, which may
    be a cut, need not wait for its answer.
    """

    def __init__(self) -> None:
        self._sent: dict[str, tuple[str, float]] = {}  # by node: the version that is replaced, and when it was sent

    def sent(self, node: str, replaced: str, monotonic: float) -> None:
        """A grant is sent that replaces this version ("": the GPUNode is made)."""
        self._sent[node] = replaced, monotonic

    def answered(self, node: str) -> None:
        """Its answer came, or is waited for no longer."""
        self._sent.pop(node, None)

    def lost(self, gpu_nodes: Mapping[str, GpuNode], monotonic: float) -> list[str]:
        """The nodes whose last grant is over, and has had no answer for too long."""
        return [node for node, due_at in self._over(gpu_nodes).items() if due_at <= monotonic]

    def next_seconds(self, gpu_nodes: Mapping[str, GpuNode], monotonic: float) -> float:
        """Seconds until the next answer is lost to a grant that is over; infinite where there is none."""
        due = (due_at - monotonic for due_at in self._over(gpu_nodes).values())
        return min((seconds for seconds in due if seconds > 0), default=math.inf)

    def _over(self, gpu_nodes: Mapping[str, GpuNode]) -> dict[str, float]:
        """The nodes whose last grant is over and has no answer, with the time at which that is lost."""
        return {
            node: sent_at + LOST_AFTER_SECONDS
            for node, (replaced, sent_at) in self._sent.items()
            if node in gpu_nodes and gpu_nodes[node].metadata.resource_version != replaced
        }
