"""The Service by which the ranks of an incarnation find each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import field

from flyball_api.names import LABEL_INCARNATION, LABEL_JOB_NAME, LABEL_JOB_UID, RENDEZVOUS_PORT
from flyball_api.reading import ApiStruct, read_object
from flyball_api.workloads.metadata import Metadata

HEADLESS = "None"


class _Port(ApiStruct, frozen=True):
    port: int = 0


class _ServiceSpec(ApiStruct, frozen=True):
    selector: dict[str, str] = field(default_factory=dict)
    cluster_ip: str = field(name="clusterIP", default="")
    publish_not_ready_addresses: bool = False
    ports: tuple[_Port, ...] = ()


class _Service(ApiStruct, frozen=True):
    metadata: Metadata
    spec: _ServiceSpec = field(default_factory=_ServiceSpec)


class ServiceView(ApiStruct, frozen=True):
    """A Service with Flyball's labels, by which the ranks of an incarnation find each other.

    `whole`: they do, for it is as it was made.
    """

    namespace: str
    name: str
    job_uid: str
    deleting: bool
    whole: bool


def read_service(raw: Mapping[str, Any]) -> ServiceView:
    """A `v1.Service` as a ServiceView; raises InvalidObject where it is none."""
    service = read_object("Service", raw, _Service)
    metadata = service.metadata
    return ServiceView(
        namespace=metadata.namespace,
        name=metadata.name,
        job_uid=metadata.labels.get(LABEL_JOB_UID, ""),
        deleting=metadata.deletion_timestamp is not None,
        whole=_is_whole(metadata, service.spec),
    )


def _is_whole(metadata: Metadata, spec: _ServiceSpec) -> bool:
    """Whether each pod of the incarnation that its name says has an address by it, ready or not."""
    labels = {key: metadata.labels.get(key, "") for key in (LABEL_JOB_NAME, LABEL_JOB_UID, LABEL_INCARNATION)}
    return (
        spec.selector == labels
        and metadata.name == f"{labels[LABEL_JOB_NAME]}-{labels[LABEL_INCARNATION]}"
        and spec.cluster_ip == HEADLESS
        and spec.publish_not_ready_addresses
        and [each.port for each in spec.ports] == [RENDEZVOUS_PORT]
    )
