"""Powering empty nodes off and booting them again when a job comes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flyball_planner.models.gpu import GpuModel
from flyball_planner.placement.node_power import NodePowerPolicy

from flyball_simulator.cluster.agenda import Agenda, Event
from flyball_simulator.cluster.meter import Meter
from flyball_simulator.cluster.nodes import Nodes
from flyball_simulator.settings import SimulationSettings


class NodeSwitching:
    """Which nodes are up, since when they are empty, and from when they can be used.

    All nodes are up until they fail unless `power_off_empty_nodes`; then all are off at first.
    """

    def __init__(self, settings: SimulationSettings, gpu: GpuModel, nodes: Nodes, meter: Meter, agenda: Agenda) -> None:
        self._settings = settings
        self._nodes = nodes
        self._meter = meter
        self._agenda = agenda
        self._switches = settings.power_off_empty_nodes
        self._on = [not self._switches] * nodes.count
        self._ready_at = [0.0] * nodes.count
        self._empty_since: dict[int, float] = {}  # of the nodes that are up
        self._emptied = [0] * nodes.count  # how often a node became empty or was taken
        idle_watts = settings.gpus_per_node * gpu.idle_power_watts + settings.node_overhead_watts
        self._policy = NodePowerPolicy(
            boot_seconds=settings.boot_seconds,
            boot_joules=settings.boot_joules + settings.boot_seconds * idle_watts,
            idle_watts=idle_watts,
        )
        meter.powered_nodes = sum(self._on)

    def preferred(self) -> Sequence[int]:
        """Nodes that are up, in the order in which jobs should take them; () where that makes no odds."""
        if not self._switches:
            return ()
        up = (node for node, on in enumerate(self._on) if on)
        return sorted(up, key=lambda node: -self._empty_since.get(node, 0.0))

    def ready_at(self, nodes: Sequence[int]) -> float:
        """When the last of these nodes has booted."""
        return max(self._ready_at[node] for node in nodes)

    def boot_taken(self, now: float) -> None:
        """Boot the nodes that are off and have been given to somebody."""
        if not self._switches:
            return
        for node, on in enumerate(self._on):
            if not on and self._nodes.free[node] < self._settings.gpus_per_node:
                self._on[node] = True
                self._ready_at[node] = now + self._settings.boot_seconds
                self._meter.boot(1, self._settings.boot_joules)

    def watch(self, now: float) -> None:
        """Date the switching off of nodes that have just become empty, and call it off where somebody came."""
        if not self._switches:
            return
        for node, on in enumerate(self._on):
            empty = on and self._nodes.free[node] == self._settings.gpus_per_node
            if empty and node not in self._empty_since:
                self._empty_since[node] = now
                self._emptied[node] += 1
                off_time = self._policy.off_time(now)
                if math.isfinite(off_time):
                    self._agenda.schedule(off_time, Event.NODE_OFF, node, self._emptied[node])
            elif not empty and self._empty_since.pop(node, None) is not None:
                self._emptied[node] += 1

    def outdated(self, node: int, version: int) -> bool:
        """Whether somebody came since the switching off was dated."""
        return self._emptied[node] != version

    def fail(self, node: int) -> None:
        """Lose a node, whose jobs have left it: it draws nothing, and cannot be booted."""
        if self._on[node]:
            self._on[node] = False
            self._meter.powered_nodes -= 1
        if self._empty_since.pop(node, None) is not None:
            self._emptied[node] += 1

    def repair(self, node: int, now: float) -> None:
        """Bring a lost node back: off where empty nodes are off, else it boots."""
        if not self._switches:
            self._on[node] = True
            self._ready_at[node] = now + self._settings.boot_seconds
            self._meter.boot(1, self._settings.boot_joules)

    def switch_off(self, node: int) -> None:
        self._on[node] = False
        self._meter.powered_nodes -= 1
        del self._empty_since[node]
