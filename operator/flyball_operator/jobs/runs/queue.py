"""The queue as the plan in force has it: each waiting job's place, and when it can expect to start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from flyball_planner.snapshot import Queue


@dataclass(frozen=True, slots=True)
class PlanPlace:
    """One job's place among the `waiting`, from 1; `start` is None where it is not known, and `basis` says why or why then.

    `planned_at` is the moment for which all this was found.
    """

    position: int
    waiting: int
    start: datetime | None
    basis: str
    planned_at: datetime


@dataclass(frozen=True, slots=True)
class JobQueue:
    """All places under one plan, made for the moment `planned_at`."""

    queue: Queue = Queue()  # noqa: RUF009 - frozen
    planned_at: datetime | None = None
    _positions: Mapping[str, int] = field(default_factory=dict)
    _starts: Mapping[str, tuple[float, str]] = field(default_factory=dict)

    @staticmethod
    def of(queue: Queue, planned_at: datetime) -> JobQueue:
        positions = {uid: position for position, uid in enumerate(queue.order, start=1)}
        starts = {start.uid: (start.seconds, start.basis) for start in queue.starts}
        return JobQueue(queue, planned_at, positions, starts)

    def position_of(self, uid: str) -> int | None:
        """The place of a job, from 1; None where it has none."""
        return self._positions.get(uid)

    def place_of(self, uid: str) -> PlanPlace | None:
        """The place of a job; None where it does not wait for GPUs or watts, or no plan has seen it yet."""
        position = self._positions.get(uid)
        if position is None or self.planned_at is None:
            return None
        found = self._starts.get(uid)
        start = None if found is None else self.planned_at + timedelta(seconds=found[0])
        basis = self.queue.unknown if found is None else found[1]
        return PlanPlace(position, len(self._positions), start, basis, self.planned_at)


NO_QUEUE = JobQueue()
