"""Writes that go on while the loop decides: one at a time for each object, so that no cycle waits for the API server.

A cycle that awaited a hundred writes could not answer a cap that falls meanwhile. What is under way is known by its key;
until it has ended, nothing else is started for that object, and the next cycle decides from what the API then says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

from flyball_operator.lease import LeadershipLost

logger = logging.getLogger(__name__)


# A server that refuses connections answers at once: without a pause the loop would do nothing but ask it.
RETRY_SECONDS = 0.5


class Background:
    """Writes under way by key; `wake` is called when one has ended: at once after success, else after RETRY_SECONDS."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._tasks: dict[Hashable, asyncio.Task[bool]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def busy(self, key: Hashable) -> bool:
        """Whether something is under way for this object."""
        return key in self._tasks

    def start(self, key: Hashable, write: Coroutine[Any, Any, bool]) -> None:
        """Start `write`, which tells whether it took effect, for an object that is not busy; raises ValueError else."""
        if key in self._tasks:
            write.close()
            raise ValueError(f"{key}: a write is under way already; ask busy() first")
        task = asyncio.create_task(self._run(key, write))
        self._tasks[key] = task
        task.add_done_callback(lambda ended: self._ended(key, ended))

    def _ended(self, key: Hashable, task: asyncio.Task[bool]) -> None:
        del self._tasks[key]
        if task.cancelled():
            return
        if task.result():
            self._wake()
        else:
            task.get_loop().call_later(RETRY_SECONDS, self._wake)

    @staticmethod
    async def _run(key: Hashable, write: Coroutine[Any, Any, bool]) -> bool:
        try:
            return await write
        except LeadershipLost as error:
            logger.info("%s: not written: %s", key, error)  # the loop learns it by its own check
        except Exception:
            logger.exception("%s: a write failed unexpectedly", key)
        return False

    async def stop(self) -> None:
        """Cancel what is under way and wait for its end."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
