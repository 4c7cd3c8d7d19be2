"""How late a watch brings what the server has stored, by writes of ours that come back through it."""

from __future__ import annotations

from collections import deque
from itertools import islice

# Of writes of ours that have yet to come back so many are remembered at most: the first, and one of several behind it.
MOST_WRITES = 1000


class WatchLag:
    """How far one watch is behind; the moments that are given are all by one monotonic clock, in seconds.

    A write of ours says at once which version the server has given it. A watch brings versions in their order: when it has
    come to that one, it is known to have been behind by as long as that took. What was seen once is known of less with each
    second, by a second.
    """

    def __init__(self) -> None:
        self._written: deque[tuple[int, float]] = deque()  # the version, and when it was answered
        self._each, self._passed_over = 1, 0  # of so many writes one is remembered; since the last one
        self._behind_until = float("-inf")

    def written(self, version: int, now: float) -> None:
        """A write of ours is answered now, which the watch has yet to bring."""
        self._passed_over += 1
        if self._written and self._passed_over < self._each:
            return
        if len(self._written) == MOST_WRITES:  # the first one shows best how far the watch is behind
            self._written, self._each = deque(islice(self._written, 0, None, 2)), 2 * self._each
        self._passed_over = 0
        self._written.append((version, now))

    def come_to(self, version: int, now: float) -> None:
        """The watch, or a list, has come to that version now."""
        while self._written and self._written[0][0] <= version:
            _, answered_at = self._written.popleft()
            self._behind_until = max(self._behind_until, now + (now - answered_at))
        if not self._written:
            self._each = 1

    def forget(self) -> None:
        """The server's versions went back: those of before say nothing."""
        self._written.clear()

    def seconds(self, now: float) -> float:
        """By how much the watch is behind now, or was of late; 0.0 where nothing shows that it is."""
        waiting = now - self._written[0][1] if self._written else 0.0
        return max(0.0, waiting, self._behind_until - now)
