"""Plans in a process of its own, which may be killed where it takes too long: the service answers on meanwhile."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection

import msgspec
from flyball_kube.process.logs import get_logger
from flyball_processes import WorkerProcess

from flyball_planner_service.request import FrontierRequest, document_of, written

logger = get_logger(__name__)

_PLANNED, _REFUSED, _GIVEN_UP = b"p", b"r", b"g"


@dataclass(frozen=True, slots=True)
class Planned:
    """A frontier, as JSON."""

    document: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no plan for a request; it will be the same when it is asked for again."""

    reason: str


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Why there is no plan this time."""

    reason: str


Answer = Planned | Refused | GivenUp


class Solver:
    """One worker process; `solve` one at a time. It is started when it is first needed, and again where it has ended."""

    def __init__(self, deadline_seconds: float) -> None:
        self._deadline_seconds = deadline_seconds
        self._process: WorkerProcess | None = None
        # Of its own: those that the event loop has are few, and requests are read in them meanwhile.
        self._thread = ThreadPoolExecutor(1, "planner")

    async def solve(self, request: FrontierRequest) -> Answer:
        """Plan; whatever becomes of the process, there is an answer."""
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._solve, msgspec.msgpack.encode(request))
        except asyncio.CancelledError:
            self.close()  # the thread's wait ends with the pipe's other end
            raise

    def _solve(self, request: bytes) -> Answer:
        process = self._process
        if process is None or not process.alive:
            self._end()
            process = self._process = WorkerProcess(serve, "planner")
        try:
            process.pipe.send_bytes(request)
            if not process.pipe.poll(self._deadline_seconds):
                self._end()
                return GivenUp(f"it took longer than {self._deadline_seconds:g} s")
            answer = process.pipe.recv_bytes()
        except (EOFError, OSError):
            how = process.how_it_ended()
            self._end()
            logger.warning("a worker process has ended", how=how)
            return GivenUp(f"the process that planned it ended with {how}")
        kind, content = answer[:1], answer[1:]
        if kind == _PLANNED:
            return Planned(content)
        return Refused(content.decode()) if kind == _REFUSED else GivenUp(content.decode())

    def _end(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def close(self) -> None:
        """End the process, and with it what it plans."""
        if self._process is not None:
            self._process.kill()


def serve(pipe: Connection) -> None:
    """The worker process: plan what comes, until nobody is at the other end."""
    while True:
        request = msgspec.msgpack.decode(pipe.recv_bytes(), type=FrontierRequest)
        try:
            answer = _PLANNED + written(document_of(request))
        except ValueError as error:
            answer = _REFUSED + str(error).encode()
        except Exception as error:  # of numbers that the solver cannot take, say: the next request may be another's
            logger.exception("a frontier was not planned", id=request.id)
            answer = _GIVEN_UP + f"it could not be planned: {error}".encode()
        pipe.send_bytes(answer)
