"""Writes that go on while the loop decides: one at a time for each object, so that no cycle waits for the API server.

A cycle that awaited a hundred writes could not answer a cap that falls meanwhile. What is under way is known by its key;
until it has ended, nothing else is started for that object, and the next cycle decides from what the API then says.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine, Hashable
from typing import Any

from flyball_kube.process.logs import get_logger

from flyball_operator.cluster.outcome import UNKNOWN, WriteResult
from flyball_operator.writes.lease import LeadershipLost

logger = get_logger(__name__)


# A server that refuses connections answers at once: without a pause the loop would do nothing but ask it.
RETRY_SECONDS = 0.5
# What the API server refuses for what is in it will be refused again, as long as the same follows: after such a refusal of
# what can wait its object rests for so long, each time twice as long, up to the longest rest.
FIRST_REST_SECONDS, LONGEST_REST_SECONDS = 1.0, 60.0


class Background:
    """Writes under way by key; `wake` is called when one has ended: at once after success, else after RETRY_SECONDS.

    Keys that begin with one of the `patient` kinds rest where what was written was refused for what is in it.
    """

    def __init__(self, wake: Callable[[], None], patient: Collection[str] = ()) -> None:
        self._wake = wake
        self._patient = patient
        self._rests: dict[Hashable, float] = {}  # the last one of each key, until a write of it is not refused so
        self._tasks: dict[Hashable, asyncio.Task[WriteResult]] = {}
        self._began_at: dict[Hashable, float] = {}  # by the event loop's clock
        self._left: set[asyncio.Task[WriteResult]] = set()  # not waited for any longer, and not called back
        self._retries: dict[Hashable, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._tasks) + len(self._left)

    def busy(self, key: Hashable) -> bool:
        """Whether something is under way for this object, or it rests."""
        return key in self._tasks or (key in self._rests and key in self._retries)

    def under_way(self, *kinds: str) -> int:
        """How many of the writes under way have a key that begins with one of these."""
        return sum(_is_of(key, kinds) for key in self._tasks)

    def wake(self) -> None:
        """Ask for the cycle that the end of a write brings now, not after a pause."""
        self._wake()

    def start(
        self,
        key: Hashable,
        write: Coroutine[Any, Any, WriteResult],
        answered: Callable[[WriteResult], object] = lambda result: None,
    ) -> None:
        """Start `write` for an object that is not busy; raises ValueError where it is.

        `answered` is called with what became of it once the object is no longer busy, before `wake`.
        """
        if key in self._tasks:
            write.close()
            raise ValueError(f"{key}: a write is under way already; ask busy() first")
        task = asyncio.create_task(self._run(key, write))
        self._tasks[key], self._began_at[key] = task, task.get_loop().time()
        task.add_done_callback(lambda ended: self._ended(key, ended, answered))

    def _ended(self, key: Hashable, task: asyncio.Task[WriteResult], answered: Callable[[WriteResult], object]) -> None:
        if task in self._left:
            self._left.remove(task)
            return
        del self._tasks[key], self._began_at[key]
        answered(UNKNOWN if task.cancelled() else task.result())
        if task.cancelled():
            return
        result, rest = task.result(), RETRY_SECONDS
        if result.invalid and _is_of(key, self._patient):
            rest = self._rests[key] = min(2.0 * self._rests.get(key, FIRST_REST_SECONDS / 2), LONGEST_REST_SECONDS)
        else:
            self._rests.pop(key, None)
        if result.done:
            self._wake()
        elif key not in self._retries:  # one timer an object, however often it fails meanwhile
            self._retries[key] = task.get_loop().call_later(rest, self._retry, key)

    def _retry(self, key: Hashable) -> None:
        del self._retries[key]
        self._wake()

    @staticmethod
    async def _run(key: Hashable, write: Coroutine[Any, Any, WriteResult]) -> WriteResult:
        try:
            return await write
        except LeadershipLost as error:
            # The loop finds it out by its own check.
            logger.info("not written: the lease is lost", object=key, error=str(error))
        except Exception:
            logger.exception("a write failed unexpectedly", object=key)
        return UNKNOWN

    def give_up(self, key: Hashable) -> None:
        """Wait no longer for what is under way for this object: it ends without an answer, and wakes the loop at once."""
        task = self._tasks.get(key)
        if task is not None:
            task.cancel()
            task.add_done_callback(lambda ended: self._wake())

    def leave_unanswered(self, kind: str, after_seconds: float) -> None:
        """Wait no longer for writes of keys that begin with `kind` and have had no answer for so long.

        They are not called back, for the API server may be at them, and would have to begin anew. They may arrive yet, in
        any order with what is started for their objects next: for writes that say which version they replace, of which
        only the first to arrive counts.
        """
        for key, age in self._ages(kind):
            if age >= after_seconds:
                self._left.add(self._tasks.pop(key))
                del self._began_at[key]

    def next_unanswered_seconds(self, kind: str, after_seconds: float) -> float:
        """Seconds until the next such write has had no answer for so long; infinite where none is under way."""
        return min((after_seconds - age for _, age in self._ages(kind)), default=math.inf)

    def _ages(self, kind: str) -> list[tuple[Hashable, float]]:
        """Of a kind of writes, those under way and waited for, with the seconds since they were started."""
        now = asyncio.get_running_loop().time()
        return [(key, now - at) for key, at in self._began_at.items() if _is_of(key, (kind,))]

    async def stop(self) -> None:
        """Cancel what is under way and wait for its end."""
        for timer in self._retries.values():
            timer.cancel()
        self._retries.clear()
        tasks = [*self._tasks.values(), *self._left]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_of(key: Hashable, kinds: Collection[str]) -> bool:
    """Whether a key begins with one of these."""
    return isinstance(key, tuple) and key[0] in kinds
