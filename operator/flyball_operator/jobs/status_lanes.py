"""In which turn statuses are written: what happens to a job queues up behind neither ten thousand that wait nor figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from enum import Enum

# Statuses under way beyond which none is begun: a few are written at a time, and to make thousands would hold up a cut.
STATUSES_AT_ONCE = 256
# Of jobs that only wait: the rest is for those that start, run and end.
WAITING_AT_ONCE = 192
# For figures alone, at first; and where that many are written from one cycle to the next.
FEWEST_FIGURES_AT_ONCE, MOST_FIGURES_AT_ONCE = 32, 128


class Lane(Enum):
    """What a status is written for."""

    NEWS = "something has happened to a job that has GPUs, gets some or has ended"
    WAITING = "a job that has none is told why"
    FIGURES = "figures have moved, and nothing else"


class Lanes:
    """How many statuses may be begun in each lane, from cycle to cycle."""

    def __init__(self) -> None:
        self._lane_of: dict[str, Lane] = {}  # of each job whose status is being written, by uid
        self._figures_at_once = FEWEST_FIGURES_AT_ONCE
        self._figures_begun = 0

    def rooms(self, under_way: Collection[str]) -> dict[Lane, int]:
        """How many more may be begun beside those `under_way` (uids).

        Of figures as many as get written from one cycle to the next: more where all of them were, fewer where half of them
        still wait for their turn.
        """
        self._lane_of = {uid: lane for uid, lane in self._lane_of.items() if uid in under_way}
        left = Counter(self._lane_of.values())
        if not left[Lane.FIGURES] and self._figures_begun >= self._figures_at_once:
            self._figures_at_once = min(MOST_FIGURES_AT_ONCE, 2 * self._figures_at_once)
        elif 2 * left[Lane.FIGURES] > self._figures_at_once:
            self._figures_at_once = max(FEWEST_FIGURES_AT_ONCE, self._figures_at_once // 2)
        room = max(0, STATUSES_AT_ONCE - len(under_way))
        news = len(under_way) - left[Lane.FIGURES]
        figures = self._figures_at_once - left[Lane.FIGURES] if news < FEWEST_FIGURES_AT_ONCE else 0
        return {
            Lane.NEWS: room,
            Lane.WAITING: min(room, max(0, WAITING_AT_ONCE - left[Lane.WAITING])),
            Lane.FIGURES: min(room, max(0, figures)),
        }

    def begun(self, lane_of: Mapping[str, Lane]) -> None:
        """Statuses of these jobs are being written from now on, by uid."""
        self._lane_of |= lane_of
        self._figures_begun = Counter(self._lane_of.values())[Lane.FIGURES]
