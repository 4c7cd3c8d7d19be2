"""One process at the other end of a pipe of its own.

Pools of processes share pipes and locks: one of their processes that is killed while it sends (by the kernel, where
memory is short) takes the others' tasks with it. Here the end of a pipe is the end of one process and of what it was asked.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection


class WorkerProcess:
    """A process that runs `serve(pipe)`, a function that a fresh interpreter can import, until that returns.

    It ends when this one does, however that ends: with its next use of the pipe. Ctrl-C does not reach it.
    """

    def __init__(self, serve: Callable[[Connection], None], name: str = "") -> None:
        # spawn: a fork would copy an event loop with its sockets, and locks that other threads hold.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, serve), name=name or None, daemon=True)
        resource_tracker.ensure_running()  # which, had it still to be started, would unblock the signal again
        # A process inherits what its maker blocks: so Ctrl-C, which goes to all of a terminal, cannot cut it short.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()  # so that the end of the process is the end of the pipe

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        """End the process at once. Its pipe stays open: another thread may be reading from it."""
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        """End the process at once, and close its pipe."""
        self.kill()
        self.pipe.close()

    def how_it_ended(self, patience_seconds: float = 5.0) -> str:
        """`signal SIGKILL` or `status 3`, of a process whose pipe has ended."""
        self._process.join(patience_seconds)
        code = self._process.exitcode
        return f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"status {code}"


def _run(pipe: Connection, serve: Callable[[Connection], None]) -> None:
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent has gone, or wants no more
        serve(pipe)
