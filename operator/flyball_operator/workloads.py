"""Nodes, pods and batch Jobs as the operator sees them: the few facts it decides on, out of the raw API objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from flyball_operator.names import (
    ANNOTATION_ALLOCATION,
    GPU_RESOURCE,
    LABEL_COMPLETION_INDEX,
    LABEL_GPU_PRODUCT,
    LABEL_HOSTNAME,
    LABEL_INCARNATION,
    LABEL_JOB_NAME,
    LABEL_JOB_UID,
    PLACEMENT_GATE,
    STARTUP_TAINT,
)

JsonObject = dict[str, Any]


def _count(value: Any) -> int:
    """An extended resource's quantity: always a whole number by Kubernetes' own validation."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0


@dataclass(frozen=True, slots=True)
class NodeView:
    """A Kubernetes Node; `gpus` by its capacity."""

    name: str
    uid: str
    hostname: str
    labels: Mapping[str, str]
    gpus: int
    product: str
    ready: bool
    cordoned: bool
    startup_taint: bool


def read_node(raw: JsonObject) -> NodeView:
    """A `v1.Node` as a NodeView; raises KeyError where the object has no name (which the API server never sends)."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    labels = metadata.get("labels") or {}
    return NodeView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        hostname=labels.get(LABEL_HOSTNAME, metadata["name"]),
        labels=labels,
        gpus=_count((status.get("capacity") or {}).get(GPU_RESOURCE)),
        product=labels.get(LABEL_GPU_PRODUCT, ""),
        ready=any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in status.get("conditions") or ()
        ),
        cordoned=bool(spec.get("unschedulable")),
        startup_taint=any(taint.get("key") == STARTUP_TAINT for taint in spec.get("taints") or ()),
    )


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod that holds or wants GPUs, or belongs to a Flyball job; `job_uid` is empty for a foreign pod."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    node: str
    gpus: int
    phase: str
    ready: bool
    gated: bool
    deleting: bool
    job_name: str = ""
    job_uid: str = ""
    incarnation: int = 0
    index: int = 0
    exit_code: int | None = None

    @property
    def finished(self) -> bool:
        """Its containers have ended for good, so that it holds no GPU any more."""
        return self.phase in ("Succeeded", "Failed")


def _pod_gpus(spec: JsonObject) -> int:
    """GPUs that the kubelet sets aside for the pod: the sum over its containers, or the largest init container."""

    def of(containers: Any) -> list[int]:
        return [
            _count(((container.get("resources") or {}).get("limits") or {}).get(GPU_RESOURCE))
            for container in containers or ()
        ]

    return max([sum(of(spec.get("containers"))), *of(spec.get("initContainers"))])


def _exit_code(spec: JsonObject, status: JsonObject) -> int | None:
    """How the trainer ended; another container's code where the trainer has none. A sidecar that is told to leave ends
    with a code of its own, which says nothing of the training."""
    trainer = next((container.get("name") for container in spec.get("containers") or ()), None)
    exits = {
        container.get("name"): terminated["exitCode"]
        for container in status.get("containerStatuses") or ()
        if (terminated := (container.get("state") or {}).get("terminated")) and "exitCode" in terminated
    }
    return exits.get(trainer, max(exits.values(), default=None))


def read_pod(raw: JsonObject) -> PodView:
    """A `v1.Pod` as a PodView."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    labels = metadata.get("labels") or {}
    return PodView(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        node=spec.get("nodeName", ""),
        gpus=_pod_gpus(spec),
        phase=status.get("phase", "Pending"),
        ready=any(
            condition.get("type") == "Ready" and condition.get("status") == "True"
            for condition in status.get("conditions") or ()
        ),
        gated=any(gate.get("name") == PLACEMENT_GATE for gate in spec.get("schedulingGates") or ()),
        deleting="deletionTimestamp" in metadata,
        job_name=labels.get(LABEL_JOB_NAME, ""),
        job_uid=labels.get(LABEL_JOB_UID, ""),
        incarnation=_count(labels.get(LABEL_INCARNATION)),
        index=_count(labels.get(LABEL_COMPLETION_INDEX)),
        exit_code=_exit_code(spec, status),
    )


@dataclass(frozen=True, slots=True)
class IncarnationView:
    """One start of a training job: the batch Job made for it, with the `(node, gpus)` of each rank."""

    namespace: str
    name: str
    uid: str
    job_name: str
    job_uid: str
    incarnation: int
    nodes: tuple[tuple[str, int], ...]
    deleting: bool
    complete: bool
    failed: bool
    failure: str

    @property
    def gpus(self) -> int:
        return sum(gpus for _, gpus in self.nodes)


def read_incarnation(raw: JsonObject) -> IncarnationView:
    """A `batch/v1.Job` that Flyball made; raises ValueError where its allocation annotation is not one of ours."""
    metadata, status = raw["metadata"], raw.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    try:
        nodes = tuple(
            (str(node), int(gpus)) for node, gpus in orjson.loads(annotations[ANNOTATION_ALLOCATION])["nodes"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"Job {metadata['namespace']}/{metadata['name']}: annotation {ANNOTATION_ALLOCATION} should read "
            f'{{"nodes": [["node", gpus], ...]}}: {error!r}'
        ) from error
    conditions = {
        condition["type"]: condition
        for condition in status.get("conditions") or ()
        if condition.get("status") == "True"
    }
    failure = conditions.get("Failed") or conditions.get("FailureTarget")
    return IncarnationView(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        job_name=labels.get(LABEL_JOB_NAME, ""),
        job_uid=labels.get(LABEL_JOB_UID, ""),
        incarnation=_count(labels.get(LABEL_INCARNATION)),
        nodes=nodes,
        deleting="deletionTimestamp" in metadata,
        complete="Complete" in conditions or "SuccessCriteriaMet" in conditions,
        failed=failure is not None,
        failure=str((failure or {}).get("message", "")),
    )
