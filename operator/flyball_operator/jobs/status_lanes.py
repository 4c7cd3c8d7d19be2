"""Puts status writes into lanes, so that a change of state never queues behind routine figures.

Nor does it behind ten thousand jobs that wait, or behind the new limits of all that run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from enum import Enum

# News, limits and figures under way, beyond which none is begun: a few are written at a time, and to make thousands would
# hold up a cut.
STATUSES_AT_ONCE = 256
# Beside them those of jobs that only wait, at first; and where that many are written from one cycle to the next. Over ten
# thousand jobs a cycle and its rest take a second and more, and the API server would wait for the next one; ten of them are
# made in a millisecond.
FEWEST_WAITING_AT_ONCE, MOST_WAITING_AT_ONCE = 192, 768
# The same for figures alone, or for limits.
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

    def __init__(self, fewest: int, most: int) -> None:
        self._fewest, self._most = fewest, most
        self._at_once = fewest
        self.begun = 0

    def step(self, left: int) -> int:
        """Find how many may be begun beside those that are `left` from before."""
        if not left and self.begun >= self._at_once:
            self._at_once = min(self._most, 2 * self._at_once)
        elif 2 * left > self._at_once:
            self._at_once = max(self._fewest, self._at_once // 2)
        return max(0, self._at_once - left)


class Lanes:
    """How many statuses may be begun in each lane, from cycle to cycle."""

    def __init__(self) -> None:
        self._lane_of: dict[str, Lane] = {}  # of each job whose status is being written, by uid
        self._rooms = {
            Lane.WAITING: _Room(FEWEST_WAITING_AT_ONCE, MOST_WAITING_AT_ONCE),
            Lane.POWER: _Room(FEWEST_FIGURES_AT_ONCE, MOST_FIGURES_AT_ONCE),
            Lane.FIGURES: _Room(FEWEST_FIGURES_AT_ONCE, MOST_FIGURES_AT_ONCE),
        }

    def step(self, under_way: Collection[str], *, figures_wait: bool = False) -> dict[Lane, int]:
        """How many more statuses may be written in each lane, beside those of the jobs `under_way` (uids).

        Together, all lanes but `Lane.WAITING` have as much room as `Lane.NEWS`; limits and figures have none while
        `figures_wait`.
        """
        self._lane_of = {uid: lane for uid, lane in self._lane_of.items() if uid in under_way}
        left = Counter(self._lane_of.values())
        of_lane = {lane: each.step(left[lane]) for lane, each in self._rooms.items()}
        room = max(0, STATUSES_AT_ONCE - (len(under_way) - left[Lane.WAITING]))
        others = len(under_way) - left[Lane.FIGURES]
        return {
            Lane.NEWS: room,
            Lane.WAITING: of_lane[Lane.WAITING],
            Lane.POWER: 0 if figures_wait else min(room, of_lane[Lane.POWER]),
            Lane.FIGURES: 0 if figures_wait or others >= FEWEST_FIGURES_AT_ONCE else min(room, of_lane[Lane.FIGURES]),
        }

    def begun(self, lane_of: Mapping[str, Lane]) -> None:
        """Statuses of these jobs are being written from now on, by uid."""
        self._lane_of |= lane_of
        under_way = Counter(self._lane_of.values())
        for lane, room in self._rooms.items():
            room.begun = under_way[lane]
