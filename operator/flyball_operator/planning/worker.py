"""The planner in a process of its own, with a deadline: a plan that takes too long costs a plan, never the loop.

The loop that holds the cap must answer within a second whatever the planner meets, so the two share no interpreter; a
worker that passes its deadline is killed and the old plan stands. So is one that takes too much of their memory: where a
container passes its limit, the kernel ends all its processes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from flyball_planner.planner import plan
from flyball_planner.planning_around import PlanMaker, plan_around
from flyball_planner.snapshot import ClusterSnapshot, Plan
from flyball_processes import WorkerProcess

from flyball_operator.planning.memory import container_bytes, process_bytes

# A fresh interpreter and the planner's libraries, on a loaded machine. The deadline of a plan begins after that.
START_SECONDS = 60.0
# In so much of a plan's deadline a search for the jobs that it fails with may begin another plan.
SEARCH_SHARE = 0.5
# So much of the container's memory is for plans, and so often a plan's is looked at: one takes some 150 MB/s at most.
MEMORY_SHARE, LOOK_SECONDS = 0.5, 0.1


class PlanFailed(Exception):
    """The planner raised, died, or passed its deadline or its memory; the message says which, and the old plan stands."""


def serve_plans(
    pipe: Connection,
    deadline_seconds: float,
    make: PlanMaker = plan,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Answer each snapshot with its plan, around the jobs that planning fails with, or with what it raised.

    The jobs that it failed with last are tried first the next time: a search for them takes many plans.
    """
    suspects: frozenset[str] = frozenset()
    while True:
        snapshot, policy = pipe.recv()
        until = monotonic() + SEARCH_SHARE * deadline_seconds

        def has_time(until: float = until) -> bool:
            return monotonic() < until

        try:
            answer: Plan | str = (made := plan_around(snapshot, policy, make, has_time, suspects))
            suspects = frozenset(failure.uid for failure in made.failures)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        pipe.send(answer)


def _announce(serve: Callable[[Connection], None], pipe: Connection) -> None:
    pipe.send("ready")
    serve(pipe)


class _Planner:
    """One process that plans, one request at a time."""

    def __init__(self, serve: Callable[[Connection], None], most_bytes: float) -> None:
        self._most_bytes = most_bytes
        self._process = WorkerProcess(partial(_announce, serve), "flyball-planner")
        self._ready = False
        self._asking: asyncio.Task[Any] | None = None

    @property
    def alive(self) -> bool:
        return self._process.alive

    async def ask(self, request: Any, deadline_seconds: float) -> Any:
        """The answer; raises PlanFailed past the deadline, and EOFError or OSError where the process died."""
        pipe = self._process.pipe
        if not self._ready:
            await self._wait(pipe.recv, START_SECONDS, "did not start within")
            self._ready = True

        def exchange() -> Any:
            pipe.send(request)
            return pipe.recv()

        return await self._wait(exchange, deadline_seconds, "passed its deadline of")

    async def _wait(self, call: Callable[[], Any], seconds: float, late: str) -> Any:
        # Never awaited itself: a thread cannot be cancelled, only be made to end, by the death of the process it talks to.
        self._asking = asyncio.ensure_future(asyncio.to_thread(call))
        try:
            async with asyncio.timeout(seconds):
                while not (await asyncio.wait((self._asking,), timeout=LOOK_SECONDS))[0]:
                    if process_bytes(self._process.pid) > self._most_bytes:
                        raise PlanFailed(f"the planner took more than its {self._most_bytes / 2**20:.0f} MiB of memory")
                return self._asking.result()
        except TimeoutError as error:
            raise PlanFailed(f"the planner {late} {seconds:g} s") from error

    def kill(self) -> None:
        """End the process at once. Its pipe is closed when nobody reads from it any more: its number may be reused."""
        self._process.kill()
        if self._asking is None or self._asking.done():
            self._process.close()
        else:
            self._asking.add_done_callback(self._close)

    def _close(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # its caller was cancelled
        self._process.close()


class PlanWorker:
    """One planning process, started when first needed and started again after a failure."""

    def __init__(
        self,
        deadline_seconds: float,
        serve: Callable[[Connection], None] | None = None,
        most_bytes: float | None = None,
    ) -> None:
        self._most_bytes = MEMORY_SHARE * container_bytes() if most_bytes is None else most_bytes
        self._deadline_seconds = deadline_seconds
        self._serve = serve or partial(serve_plans, deadline_seconds=deadline_seconds)
        self._planner: _Planner | None = None

    def start(self) -> _Planner:
        """Start the process where none runs, so that the first plan does not pay for its imports."""
        if self._planner is None or not self._planner.alive:
            self.stop()
            self._planner = _Planner(self._serve, self._most_bytes)
        return self._planner

    def stop(self) -> None:
        """End the process at once."""
        planner, self._planner = self._planner, None
        if planner is not None:
            planner.kill()

    async def plan(self, snapshot: ClusterSnapshot, policy: str) -> Plan:
        """The plan for `snapshot`; raises PlanFailed, after which the next call starts a fresh process.

        One call at a time; one that is cancelled takes its process with it, whose answer would else be the next call's.
        """
        planner = self.start()
        try:
            answer: Plan | str = await planner.ask((snapshot, policy), self._deadline_seconds)
        except PlanFailed:
            self.stop()
            raise
        except Exception as error:
            # A snapshot or a plan that cannot be sent is as good as a dead process: nobody knows what its pipe holds.
            self.stop()
            raise PlanFailed(f"the planner's process died: {error!r}") from error
        except BaseException:
            self.stop()
            raise
        if isinstance(answer, str):
            raise PlanFailed(f"the planner raised {answer}")
        return answer
