"""Which nodes have owed an acknowledgement for longer than one takes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from flyball_views.nodes import NodeRow

# Every change of a grant is owed an acknowledgement for a second or two: worth a word only where it takes longer.
ACKNOWLEDGEMENT_SECONDS = 15.0


class Owing:
    """Remembers since when each node was seen to owe; keep one for as long as you look."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[datetime | None, float]] = {}  # the last acknowledgement, and the monotonic time
        self.names: frozenset[str] = frozenset()

    def look(self, nodes: Iterable[NodeRow], now: float) -> None:
        """Take in the nodes as they are at `now`, in monotonic seconds; `names` are then those that owe for too long.

        Who acknowledges one grant after the other owes the latest one only.
        """
        before = self._since
        self._since = {}
        for node in nodes:
            if node.acknowledged_current:
                continue
            kept = before.get(node.name)
            self._since[node.name] = kept if kept and kept[0] == node.acknowledged else (node.acknowledged, now)
        self.names = frozenset(
            name for name, (_, since) in self._since.items() if now - since >= ACKNOWLEDGEMENT_SECONDS
        )
