"""Frontiers that were asked for: a bounded queue of those to plan, and a bounded number of those that are planned.

Equal requests are one frontier: who asks for what is planned already, or under way, waits for nobody else.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from flyball_kube.process.logs import get_logger

from flyball_planner_service.request import FrontierRequest
from flyball_planner_service.solver import Answer, GivenUp, Planned, Solver

logger = get_logger(__name__)

# What is known of a frontier beside its document.
ENTRY_BYTES = 1024


class Full(Exception):
    """As many frontiers wait as may; another try later may pass."""


class Plans(Protocol):
    """What plans one request at a time."""

    async def solve(self, request: FrontierRequest) -> Answer: ...

    def close(self) -> None: ...


@dataclass
class Entry:
    """One frontier: waiting, being planned, or answered."""

    id: str
    request: FrontierRequest | None
    answer: Answer | None = None
    planning: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def size(self) -> int:
        return ENTRY_BYTES + (len(self.answer.document) if isinstance(self.answer, Planned) else 0)


class Frontiers:
    """`run` plans until it is cancelled; everything else may be called meanwhile, in the same event loop."""

    def __init__(self, solvers: Sequence[Plans], *, max_waiting: int, kept_bytes: int) -> None:
        self._solvers = solvers
        self._max_waiting = max_waiting
        self._kept_bytes = kept_bytes
        self._waiting: OrderedDict[str, Entry] = OrderedDict()
        self._planning: dict[str, Entry] = {}
        self._kept: OrderedDict[str, Entry] = OrderedDict()  # the one asked for last at the end
        self._size = 0
        self._there = asyncio.Condition()

    @property
    def waiting(self) -> int:
        """How many wait for a worker."""
        return len(self._waiting)

    def find(self, id: str) -> Entry | None:
        """A frontier that was asked for and is not forgotten."""
        entry = self._kept.get(id)
        if entry is not None:
            self._kept.move_to_end(id)
            return entry
        return self._planning.get(id) or self._waiting.get(id)

    async def ask(self, request: FrontierRequest) -> Entry:
        """The frontier of a request, which is planned unless it is or was already. Raises Full."""
        entry = self.find(request.id)
        if entry is not None and not isinstance(entry.answer, GivenUp):
            return entry
        # As many as there are workers that rest are under way as soon as they have woken.
        free = len(self._solvers) - len(self._planning)
        if len(self._waiting) >= self._max_waiting + free:
            raise Full(f"{len(self._waiting)} frontiers wait to be planned, as many as may")
        if entry is not None:
            self._forget(entry)
        entry = self._waiting[request.id] = Entry(request.id, request)
        async with self._there:
            self._there.notify()
        return entry

    async def run(self) -> None:
        """Plan what waits, in the order in which it came."""
        try:
            async with asyncio.TaskGroup() as group:
                for solver in self._solvers:
                    group.create_task(self._work(solver))
        finally:
            for solver in self._solvers:
                solver.close()

    async def _work(self, solver: Plans) -> None:
        while True:
            async with self._there:
                await self._there.wait_for(lambda: bool(self._waiting))
                id, entry = self._waiting.popitem(last=False)
                self._planning[id] = entry
            if entry.request is None:
                continue
            entry.planning = True
            try:
                answer = await solver.solve(entry.request)
            except Exception:
                logger.exception("a frontier was not planned", id=id)
                answer = GivenUp("the service could not plan it; its log says why")
            finally:
                del self._planning[id]
            self._keep(entry, answer)

    def _keep(self, entry: Entry, answer: Answer) -> None:
        entry.answer, entry.planning, entry.request = answer, False, None
        logger.info("answered", id=entry.id, answer=type(answer).__name__, bytes=entry.size)
        self._kept[entry.id] = entry
        self._size += entry.size
        entry.done.set()
        while self._size > self._kept_bytes and len(self._kept) > 1:
            self._forget(next(iter(self._kept.values())))

    def _forget(self, entry: Entry) -> None:
        del self._kept[entry.id]
        self._size -= entry.size


def workers(count: int, deadline_seconds: float) -> list[Solver]:
    """So many worker processes, started when they are needed."""
    return [Solver(deadline_seconds) for _ in range(count)]
