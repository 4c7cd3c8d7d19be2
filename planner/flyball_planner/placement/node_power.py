"""When an empty node is powered off, by what idling and booting cost.

An empty node is parked at once (idle limits cost nothing and are back within milliseconds). Powering it off saves its
idle watts and costs a boot later, and nobody knows when the next job comes: the ski-rental problem. A node that has
idled away as many joules as a boot takes is powered off, which never costs more than twice what knowing the future would
(Karlin et al. 1988). Jobs go to the node that was emptied last, so that the others idle on undisturbed: with that order,
nodes deciding each for itself are within the same factor of the best plan for the whole cluster (Lu, Chen and Andrew,
"Simple and Effective Dynamic Provisioning for Power-Proportional Data Centers", 2013, sections III and IV).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodePowerPolicy:
    """What powering off is worth for one kind of node, and when it is done; a pure function of times.

    `idle_watts` is an empty, parked node, `off_watts` one that is off. `boot_joules` is what one shutdown and boot together
    take above `off_watts`, `boot_seconds` how long a boot lasts. Raises ValueError for a negative or infinite figure.
    """

    boot_seconds: float
    boot_joules: float
    idle_watts: float
    off_watts: float = 0.0

    def __post_init__(self) -> None:
        for name in ("boot_seconds", "boot_joules", "idle_watts", "off_watts"):
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
        """The moment at which a node that stays empty is to be powered off."""
        return empty_since_seconds + self.break_even_seconds
