"""For how long what is near is waited for: a plan that fits the caps, and a cut that the API server's time belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flyball_operator.power.cap_state import CapState
from flyball_operator.power.node_info import NodeInfo

# A plan that fits a cap which just fell is worth waiting for this long: two waves of grants take longer than one.
PLAN_GRACE_SECONDS = 0.3
BRAKED_PLAN_GRACE_SECONDS = 2.0
# For how long other statuses wait while a cap is brought down.
CUT_YIELD_SECONDS = 3.0


class PlanGrace:
    """Remembers since when the plan in force has not fitted the caps.

    The time counts from then, not from each new plan's start: while a cap rises, or measurements come in, a plan is always
    near.
    """

    def __init__(self) -> None:
        self._unfitting_since: float | None = None

    def waits(
        self,
        fits: bool,
        next_is_near: bool,
        caps: Iterable[CapState],
        nodes: Mapping[str, NodeInfo],
        monotonic: float,
    ) -> bool:
        """Whether a plan that fits the caps is so near that a cut of this one is not worth its own wave of grants.

        Where brakes hold every cap already, that can take its time.
        """
        if fits:
            self._unfitting_since = None
            return False
        if self._unfitting_since is None:
            self._unfitting_since = monotonic
        braked = any(info.power.braked_milliwatts is not None for info in nodes.values())
        held = braked and all(cap.enforced for cap in caps)
        grace = BRAKED_PLAN_GRACE_SECONDS if held else PLAN_GRACE_SECONDS
        return next_is_near and monotonic - self._unfitting_since < grace


class CutYield:
    """Remembers since when some cap has been on its way down."""

    def __init__(self) -> None:
        self._cutting_since: float | None = None

    def is_cutting(self, caps: Iterable[CapState], monotonic: float) -> bool:
        """Whether a cap is on its way down; only for a moment, as a cap may stay unmet for ever."""
        if all(cap.enforced or not cap.attainable for cap in caps):
            self._cutting_since = None
            return False
        if self._cutting_since is None:
            self._cutting_since = monotonic
        return monotonic - self._cutting_since < CUT_YIELD_SECONDS
