"""Kubernetes Events as people read them: what was said of which object, and when last."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from flyball_api.reading import ApiStruct, Time, read_object


class EventView(ApiStruct, frozen=True):
    """One Event: `reason` in one word and `note` in a sentence, of an object; `time` is when it was last seen."""

    kind: str
    name: str
    namespace: str
    reason: str
    note: str
    warning: bool = False
    time: datetime | None = None
    count: int = 1


class _Regarding(ApiStruct, frozen=True):
    kind: str = ""
    name: str = ""
    namespace: str = ""


class _Series(ApiStruct, frozen=True):
    count: int = 1
    last_observed_time: Time | None = None


class _Metadata(ApiStruct, frozen=True):
    creation_timestamp: Time | None = None


class _Event(ApiStruct, frozen=True):
    metadata: _Metadata = _Metadata()
    regarding: _Regarding = _Regarding()
    reason: str = ""
    note: str = ""
    type: str = ""
    event_time: Time | None = None
    series: _Series | None = None
    deprecated_last_timestamp: Time | None = None
    deprecated_count: int | None = None


def read_event(raw: Mapping[str, Any]) -> EventView:
    """An `events.k8s.io/v1.Event`; raises InvalidObject where it is none."""
    event = read_object("Event", raw, _Event)
    series, of = event.series, event.regarding
    last = None if series is None else series.last_observed_time
    return EventView(
        kind=of.kind,
        name=of.name,
        namespace=of.namespace,
        reason=event.reason,
        note=event.note,
        warning=event.type == "Warning",
        time=last or event.deprecated_last_timestamp or event.event_time or event.metadata.creation_timestamp,
        count=series.count if series is not None else event.deprecated_count or 1,
    )
