"""How driver calls are made: in place, for drivers whose calls take microseconds (`worker_calls` has the other way)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from flyball_agent.gpu.gpu import Gpu, GpuError
from flyball_agent.gpu.operations import GpuCall

T = TypeVar("T")

Returned = Callable[[str], object]
"""Told a GPU's UUID at the moment at which its call has returned without an error; perhaps in another thread."""


class DriverCalls(ABC):
    """Makes one call on each of several GPUs; a GPU's error is its own result and stops no other."""

    @abstractmethod
    def each(
        self, operation: str, calls: Sequence[tuple[Gpu, GpuCall[T]]], returned: Returned | None = None
    ) -> Coroutine[Any, Any, list[T | GpuError]]:
        """Begin the calls, and wait for what each comes to, or its error, in order. `operation` names them in errors."""


async def _known(results: list[T]) -> list[T]:
    return results


class DirectCalls(DriverCalls):
    """Calls in place, one after the other."""

    def each(
        self, operation: str, calls: Sequence[tuple[Gpu, GpuCall[T]]], returned: Returned | None = None
    ) -> Coroutine[Any, Any, list[T | GpuError]]:
        results: list[T | GpuError] = []
        for gpu, call in calls:
            try:
                results.append(call.on(gpu))
            except GpuError as error:
                results.append(error)
            else:
                if returned is not None:
                    returned(gpu.uuid)
        return _known(results)
