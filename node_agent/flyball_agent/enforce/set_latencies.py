"""How long a board takes to have another clock set, from the calls that are made anyway; none is made to find out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from flyball_api.gpu_node import DriverSession
from msgspec import Struct

from flyball_agent.clock import NANOSECONDS

# Of each GPU the last ones count: a pipeline's of a few seconds, a job's own of days.
SETS_KEPT = 256
_MICROSECONDS = NANOSECONDS // 1_000_000


class SetLatency(Struct, frozen=True):
    """Half of the last `sets` clocks of a GPU were set within the median, 99 of 100 within `p99_microseconds`.

    From when the call was handed over to when it returned, so that what it waited for is in it. `last_ns`, of
    CLOCK_BOOTTIME, is when the last one was set.
    """

    median_microseconds: int
    p99_microseconds: int
    sets: int
    last_ns: int


class CallTimes:
    """How long calls that are handed over now take, by GPU: `returned` is told of each where it returns, in any thread."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._begun_ns = clock_ns()
        self._took_ns: dict[str, int] = {}

    def returned(self, uuid: str) -> None:
        self._took_ns[uuid] = self._clock_ns() - self._begun_ns

    def nanoseconds(self, uuid: str) -> int:
        """How long the call took; one of which another thread is just about to tell, as long as until now."""
        return self._took_ns.get(uuid, self._clock_ns() - self._begun_ns)


class SetLatencies:
    """The last calls that set a clock, by GPU, in one session of the driver: another one's may take another time."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._session: DriverSession | None = None
        self._kept: dict[str, deque[int]] = {}

    def take(self, uuid: str, session: DriverSession, latency_ns: int) -> SetLatency:
        """Count a call that has returned without an error; what is known with it."""
        if session != self._session:
            self._session = session
            self._kept.clear()
        kept = self._kept.setdefault(uuid, deque(maxlen=SETS_KEPT))
        kept.append(max(0, latency_ns))
        ascending = sorted(kept)
        return SetLatency(
            _at(ascending, 50) // _MICROSECONDS, _at(ascending, 99) // _MICROSECONDS, len(ascending), self._clock_ns()
        )


def _at(ascending: list[int], percent: int) -> int:
    """The least of these that so many of a hundred are not above."""
    return ascending[-(-len(ascending) * percent // 100) - 1]
