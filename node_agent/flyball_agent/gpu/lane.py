"""One GPU's thread, which makes its calls one after another, for processes with an event loop and without."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Lane:
    """One GPU's thread. Daemonic: a call that never returns must not hold the process."""

    def __init__(self, uuid: str) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self.abandoned: Future[Any] | None = None
        self._thread = threading.Thread(target=self._serve, name=f"driver-{uuid}", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._work.put((call, future))
        return future

    def stop(self) -> None:
        self._work.put(None)

    def ended(self, within_seconds: float) -> bool:
        self._thread.join(within_seconds)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            call, future = work
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
