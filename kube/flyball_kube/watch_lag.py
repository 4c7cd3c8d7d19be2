"""How late a watch brings what the server has stored, by writes of ours that come back through it."""

from __future__ import annotations

from collections import deque

# Writes of ours that have yet to come back, of which so many are remembered: the latest.
MOST_WRITES = 1000


class WatchLag:
    """How far one watch is behind; the moments that are given are all by one monotonic clock, in seconds.

    A write of ours says at once which version the server has given it. A watch brings versions in their order: when it has
    come to that one, it is known to have been behind by as long as that took. What was seen once is known of less with each
    second, by a second.
    """

    def __init__(self) -> None:
        self._written: deque[tuple[int, float]] = deque(maxlen=MOST_WRITES)  # the version, and when it was answered
        self._behind_until = float("-inf")

    def written(self, version: int, now: float) -> None:
        """A write of ours is answered now, which the watch has yet to bring."""
        self._written.append((version, now))

    def come_to(self, version: int, now: float) -> None:
        """The watch, or a list, has come to that version now."""
        while self._written and self._written[0][0] <= version:
            _, answered_at = self._written.popleft()
            self._behind_until = max(self._behind_until, now + (now - answered_at))

    def forget(self) -> None:
        """The server's versions went back: those of before say nothing."""
        self._written.clear()

    def seconds(self, now: float) -> float:
        """By how much the watch is behind now, or was of late; 0.0 where nothing shows that it is."""
        waiting = now - self._written[0][1] if self._written else 0.0
        return max(0.0, waiting, self._behind_until - now)
