"""How many writes may be under way at once, of those that are not urgent: fewer where the API server is slow."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

# A renewal of our own Lease is given up after three seconds. Our own cycles hold up an answer for less.
SLOW_SECONDS = 2.0


class PacedSlots:
    """As a semaphore of at most so many slots, of which half are closed after each write that was slow (one stays open),
    and opened again one by one as writes are not."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._open, self._clock = most, float(most), clock
        self._began: dict[asyncio.Task[object] | None, float] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def open(self) -> int:
        """So many writes may be under way."""
        return int(self._open)

    async def __aenter__(self) -> None:
        while len(self._began) >= self.open:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._next()  # whose turn it was is gone
                raise
        self._began[asyncio.current_task()] = self._clock()

    async def __aexit__(self, *error: object) -> None:
        seconds = self._clock() - self._began.pop(asyncio.current_task())
        self._open = (
            max(1.0, self._open / 2) if seconds > SLOW_SECONDS else min(self._most, self._open + 1 / self._open)
        )
        for _ in range(self.open - len(self._began)):
            self._next()

    def begin(self) -> None:
        """Time this task's write from now on: what it has waited for in its slot was not the API server."""
        self._began[asyncio.current_task()] = self._clock()

    def _next(self) -> None:
        """Give the turn to who has waited longest."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
