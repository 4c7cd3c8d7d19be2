"""When each node's agent was last seen to report, by the clock of whoever looks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from flyball_api.gpu_node import GpuNode, GpuNodeStatus

from flyball_views.nodes import SILENT_SECONDS


class Sighting(NamedTuple):
    """When a report was last seen to change (None: it was not), and whether that is too long ago (None: not known yet)."""

    reported: datetime | None = None
    silent: bool | None = None


class Sightings:
    """Remembers when each GPUNode's status was last seen to change; keep one for as long as you look.

    Agents publish at least every half minute, and energy counters make every report differ from the last. No clock of a
    node's goes into it. A report counts from when it was seen, so that the first look at a node says nothing of its age.
    """

    def __init__(self) -> None:
        self._first: dict[str, datetime] = {}
        self._changed: dict[str, datetime] = {}
        self._status: dict[str, GpuNodeStatus] = {}

    def look(self, gpu_nodes: Iterable[GpuNode], now: datetime) -> Mapping[str, Sighting]:
        """Take in the GPUNodes as they are at `now`; what is known of each one's last report."""
        present = {node.name: node for node in gpu_nodes}
        for name in self._first.keys() - present.keys():
            for kept in (self._first, self._changed, self._status):
                kept.pop(name, None)
        for name, node in present.items():
            before = self._status.get(name)
            if before is None:
                self._first[name] = now
            elif before is not node.status and before != node.status:
                self._changed[name] = now
            self._status[name] = node.status
        return {name: self._of(name, now) for name in present}

    def _of(self, name: str, now: datetime) -> Sighting:
        changed = self._changed.get(name)
        still_for = (now - (changed or self._first[name])).total_seconds()
        if still_for > SILENT_SECONDS:
            return Sighting(changed, silent=True)
        return Sighting(changed, None if changed is None else False)
