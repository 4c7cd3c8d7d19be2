"""Tells the world how it stands: the statuses of caps and jobs, and the Events that follow from what they say newly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from flyball_planner.cluster import CapOutcome

from flyball_operator.announcements import (
    Announcement,
    cap_announcements,
    condition_of,
    job_announcements,
    node_announcement,
    node_state_word,
    regarding_cap,
    regarding_job,
    regarding_node,
)
from flyball_operator.cap_ledger import CapLedger, CapReading
from flyball_operator.conditions import as_stored
from flyball_operator.events import EventRecorder, Regarding
from flyball_operator.execute import Executor
from flyball_operator.job_keeper import KeptJob
from flyball_operator.picture import NodePicture
from flyball_operator.requests import CapView

JsonObject = dict[str, Any]


class Reporter:
    """What one reign has told; figures that move by themselves are told at most once per `interval_seconds`."""

    def __init__(
        self, executor: Executor, ledger: CapLedger, interval_seconds: float, events: EventRecorder | None = None
    ) -> None:
        self._executor = executor
        self._ledger = ledger
        self._interval_seconds = interval_seconds
        self._events = events
        self._written: dict[str, tuple[float, JsonObject]] = {}  # of each cap, by uid: when, and what it says since
        self._node_states: dict[str, str] | None = None

    async def publish_caps(
        self,
        readings: Iterable[CapReading],
        problems: Iterable[str],
        outcomes: Mapping[str, CapOutcome],
        now: datetime,
        monotonic: float,
        *,
        waiting: int = 0,
        moved_only: bool = False,
    ) -> None:
        """Write the caps' statuses that changed: at once where the watts in force or their enforcement did."""
        problems = list(problems)
        statuses = [(view, status, True) for view, status in self._ledger.unread_statuses(now)]
        for reading in readings:
            outcome = outcomes.get(reading.view.name)
            feasible = reading.floor_watts <= reading.effective.watts and (outcome is None or outcome.feasible)
            status = self._ledger.status(reading, feasible, problems, waiting, now)
            before = self._said(reading.view, monotonic)
            moved = before.get("effectiveWatts") != status["effectiveWatts"] or (
                condition_of(before, "Enforced").get("status") != str(reading.enforced)
            )
            statuses.append((reading.view, status, moved))
        writes = []
        for view, status, moved in statuses:
            before = self._said(view, monotonic)
            last, _ = self._written.get(view.uid, (float("-inf"), {}))
            due = not moved_only and monotonic - last >= self._interval_seconds
            if (moved or due) and as_stored({**before, **status}) != before:
                writes.append(self._write_cap(view, before, status, monotonic))
        await self._executor.all(writes)

    def _said(self, view: CapView, monotonic: float) -> JsonObject:
        """What the cap's status says: by our copy, or as it was written in this very cycle."""
        at, status = self._written.get(view.uid, (float("-inf"), {}))
        return status if at == monotonic else view.status

    async def _write_cap(self, view: CapView, before: JsonObject, status: JsonObject, monotonic: float) -> bool:
        self._written[view.uid] = (monotonic, as_stored({**before, **status}))
        done = await self._executor.write_cap_status(view, status)
        if done:
            self._announce(regarding_cap(view), cap_announcements(before, status))
        return done

    async def write_job(self, kept: KeptJob, status: JsonObject) -> bool:
        """Write a job's new status, and tell of what in it is news."""
        done = await self._executor.write_job_status(kept.view, status)
        if done:
            self._announce(regarding_job(kept.view), job_announcements(kept.view, status, kept.step.failure))
        return done

    def announce_nodes(self, pictures: Mapping[str, NodePicture]) -> None:
        """Tell of nodes that came, fell silent or answer again; not of those that a new leader finds."""
        states = {name: node_state_word(picture) for name, picture in pictures.items()}
        before, self._node_states = self._node_states, states
        if before is None:
            return
        for name, picture in pictures.items():
            watts = picture.power.worst.limit_milliwatts / 1000
            said = node_announcement(before.get(name, "new"), states[name], watts)
            if said is not None and picture.node is not None:
                self._announce(regarding_node(picture.node), [said])

    def _announce(self, regarding: Regarding, announcements: Iterable[Announcement]) -> None:
        if self._events is None:
            return
        for item in announcements:
            self._events.record(regarding, item.reason, item.note, action=item.action, warning=item.warning)
