"""The Job controller's Events about pods that the API server does not let it make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flyball_api.reading import ApiStruct, read_object
from flyball_api.workloads.metadata import Metadata


class _InvolvedObject(ApiStruct, frozen=True):
    uid: str = ""


class _Event(ApiStruct, frozen=True):
    metadata: Metadata
    involved_object: _InvolvedObject = _InvolvedObject()
    message: str = ""
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None


class PodsRefused(ApiStruct, frozen=True):
    """An Event of the Job controller: it cannot make the pods of a batch Job; `time` is that of the last try (RFC 3339)."""

    batch_uid: str
    message: str
    time: str


# An Event of the Job controller for a pod that it could not make, as a selector of v1 Events.
PODS_REFUSED_SELECTOR = "involvedObject.kind=Job,reason=FailedCreate"


def read_pods_refused(raw: Mapping[str, Any]) -> PodsRefused:
    """A `v1.Event` that PODS_REFUSED_SELECTOR selects; raises InvalidObject where it is none."""
    event = read_object("Event", raw, _Event)
    last_seen = event.last_timestamp or event.event_time or event.first_timestamp or ""
    return PodsRefused(event.involved_object.uid, event.message.removeprefix("Error creating: "), last_seen)
