"""How driver calls are made: directly, or each GPU's in a thread of its own with a deadline.

A call that hangs is abandoned: its GPU takes no further calls until that one returns, and its neighbours go on. The
cost is one parked thread a GPU.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from flyball_agent.gpu.gpu import CallTimedOut, GpuDriver, GpuError
from flyball_agent.gpu.lane import CallLane

T = TypeVar("T")

DEFAULT_DEADLINE_SECONDS = 1.0


class DriverCalls(ABC):
    """Makes one call on each of several GPUs; a GPU's error is its own result and stops no other."""

    @abstractmethod
    async def each(self, operation: str, calls: Sequence[tuple[str, Callable[[], T]]]) -> list[T | GpuError]:
        """The result, or the error, of each `(uuid, call)`, in order."""

    def close(self) -> bool:
        """End the threads; True where no call is under way any more."""
        return True


class DirectCalls(DriverCalls):
    """Calls in place: for drivers whose calls take microseconds."""

    async def each(self, operation: str, calls: Sequence[tuple[str, Callable[[], T]]]) -> list[T | GpuError]:
        results: list[T | GpuError] = []
        for _, call in calls:
            try:
                results.append(call())
            except GpuError as error:
                results.append(error)
        return results


def _read_error(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()


class _FutureLane(CallLane):
    """A lane whose calls have results; `abandoned` is the one that did not return in time, while it has not."""

    abandoned: Future[Any] | None = None

    def begin(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def make() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        self.submit(make)
        return future


class ThreadedCalls(DriverCalls):
    """Calls in threads, all GPUs at once, each within `deadline_seconds`."""

    def __init__(self, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> None:
        self.deadline_seconds = deadline_seconds
        self._lanes: dict[str, _FutureLane] = {}

    async def each(self, operation: str, calls: Sequence[tuple[str, Callable[[], T]]]) -> list[T | GpuError]:
        submitted: list[tuple[str, _FutureLane, Future[T] | None]] = []
        for uuid, call in calls:
            lane = self._lanes.get(uuid) or self._lanes.setdefault(uuid, _FutureLane(uuid))
            if lane.abandoned is not None and lane.abandoned.done():
                lane.abandoned = None
            submitted.append((uuid, lane, None if lane.abandoned is not None else lane.begin(call)))
        waiting = [asyncio.wrap_future(future) for _, _, future in submitted if future is not None]
        for answer in waiting:
            # The results are read from the threads' futures below. asyncio logs an error that nobody reads from its own.
            answer.add_done_callback(_read_error)
        if waiting:
            await asyncio.wait(waiting, timeout=self.deadline_seconds)
        results: list[T | GpuError] = []
        for uuid, lane, future in submitted:
            if future is None:
                results.append(CallTimedOut(operation, uuid, detail="an earlier call has not returned yet"))
            elif not future.done():
                lane.abandoned = future
                results.append(
                    CallTimedOut(operation, uuid, detail=f"the call did not return within {self.deadline_seconds} s")
                )
            else:
                error = future.exception()
                if error is None:
                    results.append(future.result())
                elif isinstance(error, GpuError):
                    results.append(error)
                else:
                    raise error
        return results

    def close(self) -> bool:
        lanes = list(self._lanes.values())
        self._lanes.clear()
        for lane in lanes:
            lane.stop()
        end = time.monotonic() + self.deadline_seconds
        return all(lane.ended(max(0.0, end - time.monotonic())) for lane in lanes)


def calls_for(driver: GpuDriver) -> DriverCalls:
    """The way of calling that a driver needs."""
    return ThreadedCalls() if driver.calls_block else DirectCalls()
