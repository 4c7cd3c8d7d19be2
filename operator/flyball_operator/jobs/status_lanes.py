"""Puts status writes into lanes, so that a change of state never queues behind routine figures.

Nor does it behind ten thousand jobs that wait, or behind the new limits of all that run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from enum import Enum

# Statuses under way beyond which none is begun: a few are written at a time, and to make thousands would hold up a cut.
STATUSES_AT_ONCE = 256
# Of jobs that only wait: the rest is for those that start, run and end.
WAITING_AT_ONCE = 192
# For figures alone, or for limits, at first; and where that many are written from one cycle to the next.
FEWEST_FIGURES_AT_ONCE, MOST_FIGURES_AT_ONCE = 32, 128


class Lane(Enum):
    """What a status is written for."""

    NEWS = "something has happened to a job that has GPUs, gets some or has ended"
    WAITING = "a job that has none is told why"
    POWER = "a job that runs has another clock or other limits, and nothing else"
    FIGURES = "figures have moved, and nothing else"


class _Room:
    """As many statuses as get written from one cycle to the next.

    More where all of them were, fewer where half of them still wait for their turn.
    """

    def __init__(self) -> None:
        self._at_once = FEWEST_FIGURES_AT_ONCE
        self.begun = 0

    def step(self, left: int) -> int:
        """Find how many may be begun beside those that are `left` from before."""
        if not left and self.begun >= self._at_once:
            self._at_once = min(MOST_FIGURES_AT_ONCE, 2 * self._at_once)
        elif 2 * left > self._at_once:
            self._at_once = max(FEWEST_FIGURES_AT_ONCE, self._at_once // 2)
        return max(0, self._at_once - left)


class Lanes:
    """How many statuses may be begun in each lane, from cycle to cycle."""

    def __init__(self) -> None:
        self._lane_of: dict[str, Lane] = {}  # of each job whose status is being written, by uid
        self._rooms = {Lane.POWER: _Room(), Lane.FIGURES: _Room()}

    def step(self, under_way: Collection[str]) -> dict[Lane, int]:
        """Find how many more may be begun beside those `under_way` (uids)."""
        self._lane_of = {uid: lane for uid, lane in self._lane_of.items() if uid in under_way}
        left = Counter(self._lane_of.values())
        room = max(0, STATUSES_AT_ONCE - len(under_way))
        of_lane = {lane: each.step(left[lane]) for lane, each in self._rooms.items()}
        others = len(under_way) - left[Lane.FIGURES]
        return {
            Lane.NEWS: room,
            Lane.WAITING: min(room, max(0, WAITING_AT_ONCE - left[Lane.WAITING])),
            Lane.POWER: min(room, of_lane[Lane.POWER]),
            Lane.FIGURES: min(room, of_lane[Lane.FIGURES]) if others < FEWEST_FIGURES_AT_ONCE else 0,
        }

    def begun(self, lane_of: Mapping[str, Lane]) -> None:
        """Statuses of these jobs are being written from now on, by uid."""
        self._lane_of |= lane_of
        under_way = Counter(self._lane_of.values())
        for lane, room in self._rooms.items():
            room.begun = under_way[lane]
