"""The planner in a process of its own, with a deadline: a plan that takes too long costs a plan, never the loop.

The loop that holds the cap must answer within a second whatever the planner meets, so the two share no interpreter; a
worker that passes its deadline is killed and the old plan stands.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from flyball_planner.cluster import ClusterSnapshot, Plan
from flyball_planner.plan import plan as make_plan

# A fresh interpreter and the planner's libraries, on a loaded machine. The deadline of a plan begins after that.
START_SECONDS = 60.0


class PlanFailed(Exception):
    """The planner raised, died, or passed its deadline; the message says which, and the old plan stands."""


def _serve(connection: Connection) -> None:
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


def _work(connection: Connection, serve: Callable[[Connection], None]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it closes the connection
    connection.send("ready")
    serve(connection)


class _Worker:
    """One process and its end of a pipe; one request at a time."""

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        # spawn: a fork would copy the running event loop, its sockets and its locks.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_work, args=(theirs, serve), name="flyball-planner", daemon=True
        )
        self._process.start()
        theirs.close()
        self._ready = False
        self._asking: asyncio.Task[Any] | None = None

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    async def ask(self, request: Any, deadline_seconds: float) -> Any:
        """The worker's answer; raises PlanFailed past the deadline, and EOFError or OSError where the worker died."""
        if not self._ready:
            await self._wait(self._connection.recv, START_SECONDS, "did not start within")
            self._ready = True

        def exchange() -> Any:
            self._connection.send(request)
            return self._connection.recv()

        return await self._wait(exchange, deadline_seconds, "passed its deadline of")

    async def _wait(self, call: Callable[[], Any], seconds: float, late: str) -> Any:
        # Shielded: a thread cannot be cancelled, only be made to end, by the death of the process that it talks to.
        self._asking = asyncio.ensure_future(asyncio.to_thread(call))
        try:
            return await asyncio.wait_for(asyncio.shield(self._asking), seconds)
        except TimeoutError as error:
            raise PlanFailed(f"the planner {late} {seconds:g} s") from error

    def kill(self) -> None:
        """End the process at once. Its pipe is closed when nobody reads from it any more: its number may be reused."""
        self._process.kill()
        self._process.join()
        if self._asking is None or self._asking.done():
            self._close()
        else:
            self._asking.add_done_callback(lambda task: self._close(task))

    def _close(self, task: asyncio.Task[Any] | None = None) -> None:
        if task is not None and not task.cancelled():
            task.exception()  # whoever asked has left
        self._connection.close()


class PlanWorker:
    """One worker process, started when first needed and started again after a failure."""

    def __init__(self, deadline_seconds: float, serve: Callable[[Connection], None] = _serve) -> None:
        self._deadline_seconds = deadline_seconds
        self._serve = serve
        self._worker: _Worker | None = None

    def start(self) -> _Worker:
        """Start the worker where none runs, so that the first plan does not pay for its imports."""
        if self._worker is None or not self._worker.alive:
            self.stop()
            self._worker = _Worker(self._serve)
        return self._worker

    def stop(self) -> None:
        """End the worker at once."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()

    async def plan(self, snapshot: ClusterSnapshot, policy: str) -> Plan:
        """The plan for `snapshot`; raises PlanFailed, after which the next call starts a fresh worker.

        One call at a time; one that is cancelled takes its worker with it, whose answer would else be the next call's.
        """
        worker = self.start()
        try:
            answer: Plan | str = await worker.ask((snapshot, policy), self._deadline_seconds)
        except PlanFailed:
            self.stop()
            raise
        except Exception as error:
            # A snapshot or a plan that cannot be sent is as good as a dead worker: nobody knows what its pipe holds.
            self.stop()
            raise PlanFailed(f"the planner's process died: {error!r}") from error
        except BaseException:
            self.stop()
            raise
        if isinstance(answer, str):
            raise PlanFailed(f"the planner raised {answer}")
        return answer
