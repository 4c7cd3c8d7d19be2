"""Flyball's own Events as the page shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from flyball_api.reading import ApiStruct, Count, Time, read_object
from flyball_views.row import Row

# The operator's, by its `report/events.py`.
REPORTING_CONTROLLER = "flyball.dev/operator"
MAX_SHOWN = 60


class EventRow(Row, frozen=True):
    """One Event: `count` times the same until `time`, about the object that it names."""

    time: datetime | None
    warning: bool
    reason: str
    note: str
    kind: str
    namespace: str
    name: str
    count: int = 1

    def about(self, kind: str, namespace: str, name: str) -> bool:
        return (self.kind, self.namespace, self.name) == (kind, namespace, name)


class _Regarding(ApiStruct, frozen=True):
    kind: str = ""
    namespace: str = ""
    name: str = ""


class _Series(ApiStruct, frozen=True):
    count: Count = 1
    last_observed_time: Time | None = None


class _Event(ApiStruct, frozen=True):
    type: str = ""
    reason: str = ""
    note: str = ""
    event_time: Time | None = None
    regarding: _Regarding = _Regarding()
    series: _Series | None = None


def read_event(raw: Mapping[str, Any]) -> EventRow:
    """An `events.k8s.io/v1.Event` as a row; raises InvalidObject where it is none."""
    event = read_object("Event", raw, _Event)
    series = event.series or _Series()
    return EventRow(
        time=series.last_observed_time or event.event_time,
        warning=event.type == "Warning",
        reason=event.reason,
        note=event.note,
        kind=event.regarding.kind,
        namespace=event.regarding.namespace,
        name=event.regarding.name,
        count=series.count,
    )


def latest(events: Iterable[EventRow], most: int = MAX_SHOWN) -> list[EventRow]:
    """The latest ones first; those without a time last."""
    return sorted(events, key=lambda event: event.time.timestamp() if event.time else 0.0, reverse=True)[:most]
