"""What a node does that has seen no operator for a lease: of the caps over it, the strictest choice counts.

No figure of the power promise counts on it: a node that cannot be reached stays committed with all that it was granted,
whatever it does by itself. The failsafe is for those who still have to pay for the watts.
"""

from __future__ import annotations

from collections.abc import Iterable

from flyball_api.power_cap import PowerCapSpec
from flyball_api.values.units import MilliwattsPerGpu, allowed_milliwatts
from msgspec import Struct

DEFAULT_HOLD_SECONDS = 3600
# A grant that takes the hold back must be acknowledged before the cap falls.
HOLD_MARGIN_SECONDS = 60.0


class Failsafe(Struct, frozen=True):
    """For how long after a lease every limit is held as granted, and the limit of each GPU then (0: its smallest)."""

    limit_milliwatts: MilliwattsPerGpu = MilliwattsPerGpu(0)
    hold_seconds: int = 0

    def __and__(self, other: Failsafe) -> Failsafe:
        """The stricter of two: the lower limit, and the shorter hold."""
        return Failsafe(min(self.limit_milliwatts, other.limit_milliwatts), min(self.hold_seconds, other.hold_seconds))


MINIMUM = Failsafe()


def failsafe_of(spec: PowerCapSpec, falls_in_seconds: float, lease_seconds: int) -> Failsafe:
    """What a cap asks of its nodes now, where its schedule lowers it next in `falls_in_seconds` (infinite: not at all).

    Limits that are held must not outlast the cap that they were granted under. A node that is cut off now begins to hold
    when its lease ends; so nothing is held once the cap is to fall before such a hold would be over.
    """
    limit = MilliwattsPerGpu(allowed_milliwatts(spec.failsafe_watts_per_gpu or 0))
    if spec.failsafe != "Hold" or spec.expected:
        return Failsafe(limit)
    hold_seconds = spec.failsafe_hold_seconds or DEFAULT_HOLD_SECONDS
    outlasts = falls_in_seconds <= lease_seconds + hold_seconds + HOLD_MARGIN_SECONDS
    return Failsafe(limit, 0 if outlasts else hold_seconds)


def node_failsafes(caps: Iterable[tuple[Failsafe, frozenset[str]]]) -> dict[str, Failsafe]:
    """What each node under any of the caps, each given with its nodes, does without an operator."""
    failsafes: dict[str, Failsafe] = {}
    for failsafe, nodes in caps:
        for node in nodes:
            failsafes[node] = failsafe & failsafes[node] if node in failsafes else failsafe
    return failsafes
