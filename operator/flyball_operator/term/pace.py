"""How soon the next cycle comes: what wakes the loop, and how long it rests after each cycle."""

from __future__ import annotations

import asyncio
import contextlib

# Cycles take at most this share of a core, however fast the changes come: what answers them needs the rest.
MAX_CYCLE_SHARE = 0.2
# But no more rest than this, and after long cycles twice what they took, at most the second: over ten thousand jobs a cycle
# takes half a second, and where the next one followed soon, what was decided did not get written. A cap that somebody
# changes is followed at once all the same. The agents' answers while limits are being lowered, what a cap changes by at its
# time, and a node that may draw more than was known wait for no more than the first: a claim that it makes untrue is to be
# withdrawn within two seconds.
LONGEST_REST_SECONDS, LONGEST_REST_OF_LONG_CYCLES_SECONDS = 0.25, 1.0


class CyclePace:
    """Wakes the loop, and lets it rest between its cycles; what comes within `coalesce_seconds` is gathered for one."""

    def __init__(self, coalesce_seconds: float) -> None:
        self._coalesce_seconds = coalesce_seconds
        self._asked, self._at_once, self._soon = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def wake(self) -> None:
        """Ask for a cycle; any number of calls before the next one make one."""
        self._asked.set()

    def wake_soon(self) -> None:
        """Ask for one that comes before the longer rest is over: a node may draw more than was known."""
        self._asked.set()
        self._soon.set()

    def wake_at_once(self) -> None:
        """Ask for one that comes before the rest is over that a long one owes: a cap may have fallen."""
        self.wake_soon()
        self._at_once.set()

    def begin(self) -> None:
        """A cycle begins: whatever has been asked for until now is answered by it."""
        for asked in (self._asked, self._at_once, self._soon):
            asked.clear()

    async def rest(self, longest: float, shortest: float) -> None:
        """Sleep until woken, `longest` seconds at most, `shortest` at least; after the waking what comes in bursts is
        gathered."""
        loop = asyncio.get_running_loop()
        ends = ((self._at_once, min(shortest, LONGEST_REST_SECONDS)), (self._soon, shortest))
        began_at = loop.time() - self._coalesce_seconds
        try:
            # Not `wait_for`, which before Python 3.12 forgets a cancellation that comes together with the waking.
            async with asyncio.timeout(max(shortest, longest)):
                await self._asked.wait()
        except TimeoutError:
            return
        # What has been idle for long enough owes no more rest.
        for end, rest in ends:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, began_at + rest - loop.time())):
                    await end.wait()
        await asyncio.sleep(self._coalesce_seconds)


def rest_seconds(work: float, soonest_change_seconds: float) -> float:
    """For how long what answers comes before the next cycle, after one of so much work.

    `soonest_change_seconds`: when power is to be decided on again at the latest, 0 while limits are lowered.
    """
    most = min(LONGEST_REST_OF_LONG_CYCLES_SECONDS, 2 * work, soonest_change_seconds)
    return min(work * (1 / MAX_CYCLE_SHARE - 1), max(LONGEST_REST_SECONDS, most))
