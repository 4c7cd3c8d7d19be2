"""Whether a stage's computations are worth a clock each, by how long their boards take to have one set."""

from __future__ import annotations

import logging
from typing import Callable

logger = logging.getLogger("flyball")

# How late a clock may come, as a share of the computations that it is for: any later makes iterations 1 % longer.
MOST_LATE = 0.15
# What was given up for that is taken up again where clocks come this much sooner, and not to and fro.
AGAIN_LATE = 0.12


class ClockChanges:
    """Follows a plan's clocks from one computation to the next, unless the iteration is to be as short as it can be and
    they come too late for that.

    A late clock leaves a computation on the critical path at the low one of the computation before. That saves joules all
    the same, so it is of no matter where joules are what is wanted. `set_seconds` says how long a clock takes to be set,
    None where it is not known; then the plan is followed, by which it becomes known. It is decided at the end of each
    iteration, by the computations before which the clock was to change.
    """

    def __init__(self, set_seconds: Callable[[], float | None]) -> None:
        self._set_seconds = set_seconds
        self._changed: list[float] = []  # the seconds of the iteration's computations that were to change the clock
        self._before: int | None = None
        self._warned = False
        self.followed = True

    def computed(self, planned_megahertz: int | None, seconds: float) -> None:
        """A computation for which the plan has this clock took so long."""
        if planned_megahertz is None:
            return
        if self._before not in (None, planned_megahertz):
            self._changed.append(seconds)
        self._before = planned_megahertz

    def iteration_over(self, stage: int, *, fastest: bool) -> None:
        """Decide how the next iteration runs: whether by the `fastest` plan."""
        changed, self._changed = self._changed, []
        set_seconds = self._set_seconds() if fastest else None
        if set_seconds is None or sum(changed) <= 0.0:
            self.followed = True
            return
        late = sum(min(set_seconds, seconds) for seconds in changed) / sum(changed)
        followed = late <= (MOST_LATE if self.followed else AGAIN_LATE)
        if self.followed and not followed and not self._warned:
            self._warned = True
            logger.warning(
                "stage %d runs at its plan's highest clock, training goes on: a clock takes %.1f ms to be set here, "
                "%.0f %% of the computations that it is for, and iterations would become longer",
                stage,
                set_seconds * 1e3,
                late * 100,
            )
        self.followed = followed
