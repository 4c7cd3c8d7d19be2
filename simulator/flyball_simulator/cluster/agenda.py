"""What is to happen in a simulation, in order of time."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple


class Event(IntEnum):
    """What happens; at one time in this order, decisions last."""

    CAP = 0
    SIGNAL = 1
    NODE = 2
    NODE_OFF = 3
    COMPLETION = 4
    PHASE_END = 5
    LEARN = 6
    ARRIVAL = 7
    PLAN = 8


class Entry(NamedTuple):
    """`subject` is a job, a node or a step of a schedule; an entry of another `version` than the present is outdated."""

    seconds: float
    event: Event
    order: int
    subject: int
    version: int


class Agenda:
    """A queue of entries; those of one time and kind come out in the order in which they were scheduled."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._order = 0

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        """All entries, in no order."""
        return iter(self._entries)

    @property
    def next_seconds(self) -> float:
        return self._entries[0].seconds

    def schedule(self, seconds: float, event: Event, subject: int, version: int = 0) -> None:
        self._order += 1
        heappush(self._entries, Entry(seconds, event, self._order, subject, version))

    def pop(self) -> Entry:
        return heappop(self._entries)
