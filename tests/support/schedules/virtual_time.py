"""An event loop whose clock jumps to the next thing that is due: a minute of waiting takes no time.

A schedule is some thousand short callbacks: what the loop itself does for each of them is kept to the least.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from itertools import count
from typing import Any

from msgspec import Struct

RESOLUTION_SECONDS = 1e-6  # what is due within it is due now: sums of floats are never exact

# Whose code runs: all that a process' callbacks and tasks bring about is its own, but for what is asked for `OUTSIDE`.
PROCESS: ContextVar[str] = ContextVar("PROCESS")
OUTSIDE = Context()  # of wires and hardware, which go on whatever process stands still


class Deadlock(Exception):
    """Every task waits, and nothing is due that could wake one of them."""


class _Handle(Struct, eq=False):
    """A callback that is due once, at `time`; None where it was cancelled."""

    callback: Callable[..., object] | None
    args: tuple[Any, ...]
    context: Context
    time: float

    def cancel(self) -> None:
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.time


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs tasks under a clock of its own, from 0. No sockets, no subprocesses, no signals, no threads.

    What is due at the same time runs in the order in which it was asked for. Of a process that is frozen nothing runs: what
    falls due is kept until it goes on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._due: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._numbers = count()
        self._kept: dict[str, list[_Handle]] = {}  # by frozen process

    def freeze(self, process: str) -> None:
        """Nothing of a process runs any more, as after SIGSTOP, or while its machine gives it no time."""
        self._kept.setdefault(process, [])

    def thaw(self, process: str) -> None:
        """A process goes on, with all that has fallen due meanwhile."""
        self._due.extend(self._kept.pop(process, ()))

    def time(self) -> float:
        return self.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        handle = _Handle(callback, args, copy_context() if context is None else context, self.now)
        self._due.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        handle = _Handle(callback, args, copy_context() if context is None else context, when)
        heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        when = self.now + delay
        handle = _Handle(callback, args, copy_context() if context is None else context, when)
        heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def _run_once(self) -> None:
        """What is due, until somebody stops the loop; where nothing is, the clock moves to what is due next."""
        due, timers = self._due, self._timers
        while not self._stopping:  # type: ignore[attr-defined]
            if not due:
                while timers and timers[0][2].callback is None:
                    heappop(timers)
                if not timers:
                    raise Deadlock
                self.now = max(self.now, timers[0][0])
            until = self.now + RESOLUTION_SECONDS
            while timers and timers[0][0] < until:
                when, _, handle = heappop(timers)
                self.now = max(self.now, when)  # who finds its moment not yet come would wait for it again, for ever
                due.append(handle)
            for _ in range(len(due)):
                handle = due.popleft()
                if handle.callback is None:
                    continue
                if self._kept and (kept := self._kept.get(handle.context.get(PROCESS, ""))) is not None:
                    kept.append(handle)
                    continue
                try:
                    handle.context.run(handle.callback, *handle.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"error in {handle.callback!r}", "exception": error})
