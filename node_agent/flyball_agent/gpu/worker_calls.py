"""Calls of a driver that has a process of its own: begun by the event loop itself, all at once, each with a deadline.

A call that hangs is abandoned: its GPU takes no further calls until that one returns, and its neighbours go on. No thread
of ours stands between a decision and the worker: each that had to be woken first would cost a clock a tenth of a
millisecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from flyball_agent.gpu.calls import DriverCalls, Returned
from flyball_agent.gpu.gpu import CallTimedOut, Gpu, GpuError
from flyball_agent.gpu.operations import GpuCall
from flyball_agent.gpu.worker_driver import WorkerDriver

T = TypeVar("T")

DEADLINE_SECONDS = 1.0


def _read_error(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()


def _tell(returned: Returned, uuid: str, call: Future[Any]) -> None:
    if call.exception() is None:
        returned(uuid)


class WorkerCalls(DriverCalls):
    """Calls by a driver's worker."""

    def __init__(self, driver: WorkerDriver, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._driver = driver
        self._deadline_seconds = deadline_seconds
        self._abandoned: dict[str, Future[Any]] = {}

    def each(
        self, operation: str, calls: Sequence[tuple[Gpu, GpuCall[T]]], returned: Returned | None = None
    ) -> Coroutine[Any, Any, list[T | GpuError]]:
        begun = [(gpu.uuid, self._begin(operation, gpu.uuid, call, returned)) for gpu, call in calls]
        return self._results(operation, begun)

    async def _results(self, operation: str, begun: Sequence[tuple[str, Future[T] | None]]) -> list[T | GpuError]:
        waiting = [asyncio.wrap_future(future) for _, future in begun if future is not None]
        for answer in waiting:
            # The results are read from the worker's futures below. asyncio logs an error that nobody reads from its own.
            answer.add_done_callback(_read_error)
        if waiting:
            await asyncio.wait(waiting, timeout=self._deadline_seconds)
        results: list[T | GpuError] = []
        for uuid, future in begun:
            result: T | GpuError = self._result(operation, uuid, future)
            results.append(result)
        return results

    def _begin(self, operation: str, uuid: str, call: GpuCall[T], returned: Returned | None) -> Future[T] | None:
        """The call, begun; None where an earlier one of that GPU has not returned yet."""
        abandoned = self._abandoned.get(uuid)
        if abandoned is not None and not abandoned.done():
            return None
        self._abandoned.pop(uuid, None)
        future = self._driver.begin(operation, uuid, call)
        if returned is not None:
            future.add_done_callback(partial(_tell, returned, uuid))
        return future

    def _result(self, operation: str, uuid: str, call: Future[T] | None) -> T | GpuError:
        if call is None:
            return CallTimedOut(operation, uuid, detail="an earlier call has not returned yet")
        if not call.done():
            self._abandoned[uuid] = call
            return CallTimedOut(operation, uuid, detail=f"the call did not return within {self._deadline_seconds:g} s")
        error = call.exception()
        if error is None:
            return call.result()
        if isinstance(error, GpuError):
            return error
        raise error
