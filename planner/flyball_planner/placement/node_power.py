"""When an empty node is powered off and when one is booted again, by what idling and booting cost.

An empty node is parked at once (idle limits cost nothing and are back within milliseconds). Powering it off saves its
idle watts and costs a boot later, and nobody knows when the next job comes: the ski-rental problem. A node that has
idled away as many joules as a boot takes is powered off, which never costs more than twice what knowing the future would
(Karlin et al. 1988). Jobs go to the node that was emptied last, so that the others idle on undisturbed: with that order,
nodes deciding each for itself are within the same factor of the best plan for the whole cluster (Lu, Chen and Andrew,
"Simple and Effective Dynamic Provisioning for Power-Proportional Data Centers", 2013, sections III and IV).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from flyball_planner.ledger.pools import cell_of, level_of, shape

Node = TypeVar("Node", bound=Hashable)


@dataclass(frozen=True, slots=True)
class NodePowerPolicy:
    """What powering off is worth for one kind of node, and when it is done; a pure function of times and counts.

    `idle_watts` is an empty, parked node, `off_watts` one that is off. `boot_joules` is what one shutdown and boot together
    take above `off_watts`, `boot_seconds` how long a boot lasts. `warm_nodes` empty nodes always stay powered, so that as
    many whole-node jobs need not wait for a boot. Raises ValueError for a negative or infinite figure.
    """

    boot_seconds: float
    boot_joules: float
    idle_watts: float
    off_watts: float = 0.0
    warm_nodes: int = 0

    def __post_init__(self) -> None:
        for name in ("boot_seconds", "boot_joules", "idle_watts", "off_watts", "warm_nodes"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"node power: {name} is {value}, and must be finite and not negative")

    @property
    def break_even_seconds(self) -> float:
        """How long a node idles before it is off: as long as its idle joules pay for a boot, and no shorter than a boot.

        Infinite where being off saves nothing.
        """
        saved_watts = self.idle_watts - self.off_watts
        if saved_watts <= 0:
            return math.inf
        return max(self.boot_joules / saved_watts, self.boot_seconds)

    def off_time(self, empty_since_seconds: float) -> float:
        """The moment at which a node that stays empty is to be powered off (the warm ones apart)."""
        return empty_since_seconds + self.break_even_seconds

    def due_off(self, empty_since_seconds: float, now_seconds: float) -> bool:
        """Whether a node that has been empty (or booted and unused) since then is to be powered off now."""
        return now_seconds >= self.off_time(empty_since_seconds)

    def nodes_to_power_off(self, empty_since_seconds: Mapping[Node, float], now_seconds: float) -> list[Node]:
        """Which of the powered, empty nodes go off now, longest empty first; the `warm_nodes` emptied last stay.

        Of nodes emptied at the same moment, the later ones of the mapping go first.
        """
        cooling = self._cooling(empty_since_seconds)
        return [node for node in cooling if self.due_off(empty_since_seconds[node], now_seconds)]

    def next_off_time(self, empty_since_seconds: Mapping[Node, float]) -> float:
        """When the next of the powered, empty nodes goes off if nothing happens before; infinite where none ever does."""
        cooling = self._cooling(empty_since_seconds)
        return self.off_time(empty_since_seconds[cooling[0]]) if cooling else math.inf

    def nodes_to_boot(
        self,
        wanted_gpus: Sequence[int],
        free_gpus: Sequence[int],
        off: Sequence[Node],
        gpus_per_node: int,
        booting: int = 0,
    ) -> list[Node]:
        """Which nodes to boot, in the order of `off`: as few as let the waiting jobs start, and the warm ones besides.

        `wanted_gpus` are the sizes of the jobs that are to start, `free_gpus` what each powered node has free (with
        repacking: what it would have), `booting` how many nodes come up already. `off` are the nodes of `gpus_per_node`
        GPUs that could be booted; all of them where even that is too few.
        """
        wanted = [*wanted_gpus, *[cell_of(gpus_per_node)] * self.warm_nodes]
        lacking = nodes_lacking(wanted, [*free_gpus, *[gpus_per_node] * booting], gpus_per_node)
        return list(off[:lacking])

    def idle_gap_joules(self, gap_seconds: float) -> float:
        """What one empty node takes over a gap between two jobs, the boot at its end included."""
        idle = min(gap_seconds, self.break_even_seconds)
        off = gap_seconds - idle
        return idle * self.idle_watts + (off * self.off_watts + self.boot_joules if off > 0 else 0.0)

    def _cooling(self, empty_since_seconds: Mapping[Node, float]) -> list[Node]:
        """The empty nodes that are not kept warm, longest empty first."""
        latest = sorted(empty_since_seconds, key=lambda node: -empty_since_seconds[node])
        return latest[self.warm_nodes :][::-1]


def latest_emptied(empty_since_seconds: Mapping[Node, float]) -> list[Node]:
    """Empty nodes in the order in which jobs should take them: the one emptied last first."""
    return sorted(empty_since_seconds, key=lambda node: -empty_since_seconds[node])


def nodes_lacking(wanted_gpus: Sequence[int], free_gpus: Sequence[int], gpus_per_node: int) -> int:
    """How many empty nodes of `gpus_per_node` GPUs must come on for jobs of these sizes to fit beside what is free.

    Exact for sizes that are powers of two (PowerFlow section 5.3: they fit where, at every level, the cells wanted in units
    of 2^level are no more than those that are free); other sizes count as the next power of two.
    """
    levels = cell_of(gpus_per_node).bit_length()
    wanted = [0] * levels
    for gpus in wanted_gpus:
        nodes, on_each = shape(gpus, cell_of(gpus_per_node))
        for level in range(level_of(on_each) + 1):
            wanted[level] += nodes << (level_of(on_each) - level)
    lacking = 0
    for level, cells in enumerate(wanted):
        short = cells - sum(free >> level for free in free_gpus)
        lacking = max(lacking, -(-short // (gpus_per_node >> level)))
    return lacking
