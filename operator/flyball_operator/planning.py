"""The planner in a process of its own, with a deadline: a plan that takes too long costs a plan, never the loop.

The loop that holds the cap must answer within a second whatever the planner meets, so the two share no interpreter; a
worker that passes its deadline is killed and the old plan stands.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from flyball_planner.cluster import ClusterSnapshot, Plan
from flyball_planner.plan import plan as make_plan


class PlanFailed(Exception):
    """The planner raised, died, or passed its deadline; the message says which, and the old plan stands."""


def _serve(connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it closes the connection
    while True:
        try:
            snapshot, policy = connection.recv()
        except (EOFError, OSError):
            return
        try:
            answer: Plan | str = make_plan(snapshot, policy)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        connection.send(answer)


class PlanWorker:
    """One worker process, started when first needed and started again after a failure."""

    def __init__(self, deadline_seconds: float, serve: Callable[[Connection], None] = _serve) -> None:
        self._deadline_seconds = deadline_seconds
        self._serve = serve
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None

    def start(self) -> None:
        """Start the worker, so that the first plan does not pay for its imports."""
        if self._process is not None and self._process.is_alive():
            return
        self.stop()
        # spawn: a fork would copy the running event loop, its sockets and its locks.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=self._serve, args=(theirs,), name="flyball-planner", daemon=True)
        self._process.start()
        theirs.close()

    def stop(self) -> None:
        """End the worker at once."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            with contextlib.suppress(ValueError):
                self._process.kill()
                self._process.join()
        self._connection = self._process = None

    async def plan(self, snapshot: ClusterSnapshot, policy: str) -> Plan:
        """The plan for `snapshot`; raises PlanFailed, after which the next call starts a fresh worker."""
        self.start()
        try:
            answer = await asyncio.to_thread(self._ask, snapshot, policy)
        except (EOFError, OSError) as error:
            self.stop()
            raise PlanFailed(f"the planner's process died: {error!r}") from error
        if answer is None:
            self.stop()
            raise PlanFailed(f"the planner passed its deadline of {self._deadline_seconds:g} s")
        if isinstance(answer, str):
            raise PlanFailed(f"the planner raised {answer}")
        return answer

    def _ask(self, snapshot: ClusterSnapshot, policy: str) -> Plan | str | None:
        assert self._connection is not None  # noqa: S101 - start() has run
        self._connection.send((snapshot, policy))
        if not self._connection.poll(self._deadline_seconds):
            return None
        answer: Plan | str = self._connection.recv()
        return answer
