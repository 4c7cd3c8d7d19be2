"""The Service by which the ranks of an incarnation find each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flyball_api.names import LABEL_JOB_UID
from flyball_api.reading import ApiStruct, read_object
from flyball_api.workloads.metadata import Metadata


class _Service(ApiStruct, frozen=True):
    metadata: Metadata


class ServiceView(ApiStruct, frozen=True):
    """A Service with Flyball's labels, by which the ranks of an incarnation find each other."""

    namespace: str
    name: str
    job_uid: str
    deleting: bool


def read_service(raw: Mapping[str, Any]) -> ServiceView:
    """A `v1.Service` as a ServiceView; raises InvalidObject where it is none."""
    metadata = read_object("Service", raw, _Service).metadata
    return ServiceView(
        namespace=metadata.namespace,
        name=metadata.name,
        job_uid=metadata.labels.get(LABEL_JOB_UID, ""),
        deleting=metadata.deletion_timestamp is not None,
    )
