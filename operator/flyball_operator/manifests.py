"""The objects that one incarnation of a training job consists of: an Indexed Job of gated pods and a headless Service.

The environment given to the containers is the pod contract of docs/api.md: what Flyball's own client reads, and what
torchrun and JAX read.
"""

from __future__ import annotations

import copy
from typing import Any

import orjson

from flyball_operator.names import (
    ANNOTATION_ALLOCATION,
    FLYBALL_API_VERSION,
    LABEL_COMPLETION_INDEX,
    LABEL_INCARNATION,
    LABEL_JOB_NAME,
    LABEL_JOB_UID,
    PLACEMENT_GATE,
)
from flyball_operator.requests import JobView

JsonObject = dict[str, Any]

RENDEZVOUS_PORT = 29400
# A volume of this name, where the template mounts one, is where checkpoints go.
CHECKPOINT_VOLUME = "checkpoint"


def incarnation_name(job: JobView, incarnation: int) -> str:
    return f"{job.name}-{incarnation}"


def incarnation_labels(job: JobView, incarnation: int) -> dict[str, str]:
    return {LABEL_JOB_NAME: job.name, LABEL_JOB_UID: job.uid, LABEL_INCARNATION: str(incarnation)}


def _owner(job: JobView) -> JsonObject:
    return {
        "apiVersion": FLYBALL_API_VERSION,
        "kind": "EnergyAwareJob",
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _environment(
    job: JobView, incarnation: int, nodes: tuple[tuple[str, int], ...], container: JsonObject
) -> list[Any]:
    name = incarnation_name(job, incarnation)
    gpus_per_node = nodes[0][1]
    rank = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{LABEL_COMPLETION_INDEX}']"}}}
    master = f"{name}-0.{name}.{job.namespace}"
    values: list[JsonObject] = [
        {"name": "FLYBALL_JOB", "value": job.key},
        {"name": "FLYBALL_INCARNATION", "value": str(incarnation)},
        {"name": "FLYBALL_WORLD_SIZE", "value": str(sum(gpus for _, gpus in nodes))},
        {"name": "FLYBALL_LOCAL_GPUS", "value": str(gpus_per_node)},
        {"name": "PET_NNODES", "value": str(len(nodes))},
        {"name": "PET_NPROC_PER_NODE", "value": str(gpus_per_node)},
        {"name": "PET_NODE_RANK", **rank},
        {"name": "PET_MASTER_ADDR", "value": master},
        {"name": "PET_MASTER_PORT", "value": str(RENDEZVOUS_PORT)},
        {"name": "JAX_COORDINATOR_ADDRESS", "value": f"{master}:{RENDEZVOUS_PORT}"},
        {"name": "JAX_NUM_PROCESSES", "value": str(len(nodes))},
        {"name": "JAX_PROCESS_ID", **rank},
    ]
    values.extend(
        {"name": "FLYBALL_CHECKPOINT_DIR", "value": mount["mountPath"]}
        for mount in container.get("volumeMounts") or ()
        if mount.get("name") == CHECKPOINT_VOLUME
    )
    # What the user set by hand wins: a launcher with other ideas about ports or ranks must not be overruled.
    own = {variable.get("name") for variable in container.get("env") or ()}
    return [*(container.get("env") or ()), *(value for value in values if value["name"] not in own)]


def incarnation_job(job: JobView, incarnation: int, nodes: tuple[tuple[str, int], ...]) -> JsonObject:
    """The Indexed Job of one incarnation on `(node, gpus)`, one pod a node, every pod gated.

    Raises ValueError where the nodes' shares differ (an Indexed Job has one template) or the template has no container.
    """
    shares = {gpus for _, gpus in nodes}
    if len(shares) != 1:
        raise ValueError(f"EnergyAwareJob {job.key}: every node must give the same number of GPUs, not {nodes}")
    template = copy.deepcopy(job.template)
    metadata = template.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **incarnation_labels(job, incarnation)}
    spec = template.setdefault("spec", {})
    containers = spec.get("containers")
    if not containers:
        raise ValueError(f"EnergyAwareJob {job.key}: spec.template.spec.containers must name at least one container")
    name = incarnation_name(job, incarnation)
    spec["restartPolicy"] = "Never"
    spec["subdomain"] = name
    spec["schedulingGates"] = [
        *(gate for gate in spec.get("schedulingGates") or () if gate.get("name") != PLACEMENT_GATE),
        {"name": PLACEMENT_GATE},
    ]
    for container in containers:
        container["env"] = _environment(job, incarnation, nodes, container)
    # The first container is the trainer; a GPU cannot be shared between containers of a pod.
    resources = containers[0].setdefault("resources", {})
    resources["limits"] = {**(resources.get("limits") or {}), job.resource_name: str(nodes[0][1])}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": incarnation_labels(job, incarnation),
            "annotations": {ANNOTATION_ALLOCATION: orjson.dumps({"nodes": nodes}).decode()},
            "ownerReferences": [_owner(job)],
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": len(nodes),
            "parallelism": len(nodes),
            # One lost rank ends the whole step: the operator starts the next incarnation from the checkpoint.
            "backoffLimit": 0,
            "template": template,
        },
    }


def incarnation_service(job: JobView, incarnation: int) -> JsonObject:
    """The headless Service that gives the ranks of one incarnation their names before they are ready."""
    name = incarnation_name(job, incarnation)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": incarnation_labels(job, incarnation),
            "ownerReferences": [_owner(job)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": incarnation_labels(job, incarnation),
            "ports": [{"name": "rendezvous", "port": RENDEZVOUS_PORT}],
        },
    }
