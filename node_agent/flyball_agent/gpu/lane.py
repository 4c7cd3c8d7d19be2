"""One GPU's thread, which makes its calls one after another, for processes with an event loop and without."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class CallLane:
    """One GPU's thread. Daemonic: a call that never returns must not hold the process."""

    def __init__(self, uuid: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"driver-{uuid}", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], object]) -> None:
        """Have the call made after those before it; it raises nothing."""
        self._work.put(call)

    def stop(self) -> None:
        self._work.put(None)

    def ended(self, within_seconds: float) -> bool:
        self._thread.join(within_seconds)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        while (call := self._work.get()) is not None:
            call()
