"""How far the wall clock of this machine is from the API server's, as far as its answers prove it.

Every answer has the server's time in whole seconds (RFC 9110, section 6.6.1). It was taken between the request and the
answer, so that one exchange bounds the difference on both sides, however slow it was. Of a clock that is set between two
answers the one since boot shows by how much.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime

# Reading the header of every answer would cost more than it tells.
SHORTEST_PAUSE_SECONDS = 1.0
# A server that shows a time ten years away shows none.
MOST_SECONDS = 10 * 366 * 86_400.0


def wall_seconds() -> float:
    """Seconds since the epoch, by this machine's wall clock."""
    return time.time()


def boottime_seconds() -> float:
    """Seconds since boot, counted through suspension too, untouched by changes of the wall clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ServerClock:
    """Remembers what the latest answer says of the server's clock."""

    def __init__(
        self, wall_clock: Callable[[], float] = wall_seconds, since_boot: Callable[[], float] = boottime_seconds
    ) -> None:
        self._wall_clock = wall_clock
        self._since_boot = since_boot
        self._least = self._most = 0.0  # by which this machine's clock was ahead at the latest answer
        self._booted_at: float | None = None  # by the wall clock of then; None: no answer yet
        self._asked_at = float("-inf")

    @property
    def ahead_seconds(self) -> float:
        """By how much this machine's clock is ahead of the server's at the least; below 0 where it is behind, and 0 where
        both may show the same."""
        if self._booted_at is None:
            return 0.0
        set_by = self._wall_clock() - self._since_boot() - self._booted_at
        return max(self._least + set_by, min(self._most + set_by, 0.0))

    def due(self, sent: float) -> bool:
        """Whether the answer to a request sent at `sent`, in seconds by this machine's wall clock, is worth a look."""
        return not 0.0 <= sent - self._asked_at < SHORTEST_PAUSE_SECONDS

    def answered(self, date: str, sent: float, received: float) -> None:
        """Take in an answer's `Date`, with when its request was sent and it came by this machine's wall clock.

        What cannot be read, or came while this clock was set, says nothing.
        """
        self._asked_at = sent
        try:
            shown = parsedate_to_datetime(date)
            second = (shown if shown.tzinfo is not None else shown.replace(tzinfo=UTC)).timestamp()
        except (ValueError, IndexError, TypeError, OverflowError):
            return
        least, most = sent - (second + 1.0), received - second
        if least <= most and abs(least) < MOST_SECONDS:
            self._least, self._most, self._booted_at = least, most, received - self._since_boot()
