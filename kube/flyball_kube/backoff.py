"""Pauses between tries of something that fails: each about twice as long as the one before, up to a limit, and jittered.

The jitter spreads the tries of many clients that lost the same server at the same moment.
"""

from __future__ import annotations

import asyncio
import random

FIRST_SECONDS = 0.2
LAST_SECONDS = 10.0
# A pause is between this share of its full length and all of it.
SHORTEST_SHARE = 0.5


class Backoff:
    """Growing, jittered pauses after failures; `reset` after a success. Raises ValueError unless 0 < first <= last."""

    def __init__(self, first_seconds: float = FIRST_SECONDS, last_seconds: float = LAST_SECONDS) -> None:
        if not 0 < first_seconds <= last_seconds:
            raise ValueError(f"pauses of {first_seconds:g} s to {last_seconds:g} s (wanted: 0 < first <= last)")
        self._first_seconds = first_seconds
        self._last_seconds = last_seconds
        self._seconds = first_seconds

    def reset(self) -> None:
        """Begin with the shortest pause again."""
        self._seconds = self._first_seconds

    def next_seconds(self) -> float:
        """The length of the next pause; the one after it is up to twice as long."""
        seconds = self._seconds * random.uniform(SHORTEST_SHARE, 1.0)  # noqa: S311 - jitter, no secret
        self._seconds = min(2 * self._seconds, self._last_seconds)
        return seconds

    async def pause(self) -> None:
        """Wait for the next pause's length."""
        await asyncio.sleep(self.next_seconds())
