"""API objects as the operator meets them: as raw JSON, the smallest that say what a test is about, and as views of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import orjson
from flyball_api.energy_aware_job import EnergyAwareJob, read_energy_aware_job
from flyball_api.gpu_node import GpuNode, gpu_node_object, read_gpu_node
from flyball_api.grant import BrakeVersion, CapOverNode, Grant, JobGrant, OtherGpuLimits, PowerBound
from flyball_api.names import HOLD_FINALIZER
from flyball_api.power_cap import PowerCap, PowerCapStatus, read_power_cap
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts
from flyball_api.workloads import IncarnationView, NodeView, PodView, read_incarnation, read_node, read_pod
from flyball_api.writing import to_patch
from flyball_operator.power.bound import NodePower
from flyball_operator.power.nodes.info import NodeInfo, read_nodes
from flyball_planner.snapshot import Admission, Allocation, JobDecision
from msgspec import Struct

Json = dict[str, Any]

A100 = "NVIDIA-A100-SXM4-40GB"
FLOOR, DEFAULT = 100_000, 400_000  # milliwatts: an A100's smallest and default limit
NOW = datetime(2030, 6, 1, 12, 0, 0, tzinfo=UTC)
CREATED = "2030-06-01T11:00:00Z"
SESSION = ("boot-1", "driver-1")


# --- nodes ---------------------------------------------------------------------------------------------------------


def raw_node(
    name: str,
    gpus: int = 8,
    *,
    product: str = A100,
    ready: bool = True,
    ready_since: str = "",
    resource: str = "nvidia.com/gpu",
    **spec: Any,
) -> Json:
    """A Node; `ready_since` is when it became ready, or ceased to be."""
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-of-{name}",
            "resourceVersion": "1",
            "labels": {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": product},
        },
        "spec": spec,
        "status": {
            "capacity": {resource: str(gpus)} if gpus else {},
            "conditions": [
                {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": ready_since}
            ],
        },
    }


def node_view(name: str, gpus: int = 8, **keywords: Any) -> NodeView:
    return read_node(raw_node(name, gpus, **keywords))


def raw_device(index: int, *, pod: tuple[str, str] | None = None, healthy: bool = True, **limits: int) -> Json:
    device: Json = {
        "uuid": f"GPU-00000000-0000-0000-0000-{index:012d}",
        "index": index,
        "model": "NVIDIA A100-SXM4-40GB",
        "limits": {
            "minMilliwatts": FLOOR,
            "maxMilliwatts": DEFAULT,
            "defaultMilliwatts": DEFAULT,
            "requestedMilliwatts": FLOOR,
            "enforcedMilliwatts": FLOOR,
            **limits,
        },
        "clocksMegahertz": {"min": 210, "max": 1410, "step": 15},
        "energyMillijoules": 0,
        "powerMilliwatts": 58_000,
        "conditions": [{"type": "Healthy", "status": "True" if healthy else "False"}],
    }
    if pod is not None:
        device["pod"] = {"namespace": pod[0], "name": pod[1]}
    return device


def bound(limit: int, expected: int | None = None) -> PowerBound:
    """So many milliwatts by limits, expected to be drawn in full unless `expected` says otherwise."""
    return PowerBound(NodeMilliwatts(limit), NodeMilliwatts(limit if expected is None else expected))


def grant(
    limit: int,
    *,
    committed: int | None = None,
    epoch: int = 1,
    generation: int = 1,
    jobs: tuple[JobGrant, ...] = (),
    expected: int | None = None,
    other_gpus: OtherGpuLimits | None = None,
    caps: tuple[str, ...] = (),
) -> Grant:
    """A grant of `limit` milliwatts, expected to be drawn in full unless `expected` says otherwise.

    It names the caps that are given, each with the first brake of its epoch.
    """
    granted = bound(limit, expected)
    return Grant(
        epoch=epoch,
        generation=generation,
        lease_seconds=60,
        bound=granted,
        committed=granted if committed is None else granted | bound(committed),
        other_gpus=other_gpus or OtherGpuLimits(),
        jobs=jobs,
        caps=tuple(CapOverNode(cap, BrakeVersion(epoch, 0)) for cap in caps),
        min_power_limit_milliwatts=MilliwattsPerGpu(FLOOR if caps else 0),
    )


def job_grant(uid: str, limit: int, gpus: int = 1, *, pod: str = "", clock: int = 1410) -> JobGrant:
    name, pod = uid.removeprefix("uid-"), pod or f"{uid}-pod"
    return JobGrant("team", name, uid, 1, pod, gpus, MilliwattsPerGpu(limit), 0, clock, pod_uid=f"pod-{pod}")


def raw_gpu_node(
    name: str,
    given: Grant | None,
    *,
    devices: list[Json] | int = 8,
    limits: int | None = None,
    acknowledged: tuple[int, int] | None = None,
    session: tuple[str, str] = SESSION,
    acknowledged_on: tuple[str, str] | None = None,
    reports: list[Json] | None = None,
) -> Json:
    """A GPUNode; `limits` is what its agent read back (None: nothing acknowledged), by default for the grant given."""
    raw = gpu_node_object(name, {}, given) if given is not None else {"metadata": {"name": name}, "spec": {}}
    raw["metadata"] |= {"uid": f"gpu-node-{name}", "resourceVersion": "7"}
    status: Json = {
        "bootID": session[0],
        "driverSession": session[1],
        "devices": [raw_device(index) for index in range(devices)] if isinstance(devices, int) else devices,
        "jobs": reports or [],
        "mode": "Granted",
    }
    if limits is not None:
        epoch, generation = acknowledged or (given.version if given is not None else (1, 1))
        boot, driver = acknowledged_on or session
        status["acknowledged"] = {
            "epoch": epoch,
            "generation": generation,
            "time": CREATED,
            "limitsMilliwatts": limits,
            "bootID": boot,
            "driverSession": driver,
        }
    return {**raw, "status": status}


def gpu_node_view(name: str, given: Grant | None, **keywords: Any) -> GpuNode:
    return read_gpu_node(raw_gpu_node(name, given, **keywords))


def raw_report(uid: str, incarnation: int, millijoules: int, **fields: Any) -> Json:
    return {
        "namespace": "team",
        "name": "job",
        "uid": uid,
        "incarnation": incarnation,
        "podName": f"pod-{incarnation}",
        "gpus": 1,
        "energyMillijoules": millijoules,
        "ended": False,
        **fields,
    }


def ready_node(
    name: str, *, gpus: int = 8, pods: tuple[PodView, ...] = (), devices: list[Json] | int | None = None, **node: Any
) -> NodeInfo:
    """A node whose agent has acknowledged the smallest limits, with the pods given (of which the foreign ones matter)."""
    view = gpu_node_view(name, grant(gpus * FLOOR), devices=gpus if devices is None else devices, limits=gpus * FLOOR)
    return read_nodes([node_view(name, gpus, **node)], {name: view}, pods, frozenset())[name]


def power(given: Grant | None, committed: int, expected: int | None = None, **keywords: Any) -> NodePower:
    return NodePower(given, bound(committed, expected), **keywords)


# --- jobs and their pods -------------------------------------------------------------------------------------------


def raw_job(
    name: str = "train", *, status: Json | None = None, namespace: str = "team", uid: str = "", **spec: Any
) -> Json:
    return {
        "apiVersion": "flyball.dev/v1alpha1",
        "kind": "EnergyAwareJob",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-{name}",
            "resourceVersion": "3",
            "generation": 1,
            "creationTimestamp": CREATED,
        },
        "spec": {
            "gpus": {"min": 1, "max": 8},
            "training": {"globalBatchSize": 256, "iterations": 1000, "modelClass": "resnet50"},
            "template": {"spec": {"containers": [{"name": "trainer", "image": "trainer"}]}},
            **spec,
        },
        "status": status or {},
    }


def job_view(name: str = "train", **keywords: Any) -> EnergyAwareJob:
    return read_energy_aware_job(raw_job(name, **keywords))


def owner(api_version: str, kind: str, uid: str) -> Json:
    """The reference to an object's controller."""
    return {"apiVersion": api_version, "kind": kind, "name": "of-the-test", "uid": uid, "controller": True}


def raw_pod(
    name: str,
    *,
    uid: str = "",
    incarnation: int = 1,
    index: int = 0,
    gpus: int = 1,
    node: str = "",
    gated: bool = False,
    phase: str = "Pending",
    ready: bool = False,
    exit_code: int | None = None,
    namespace: str = "team",
    deleting: bool = False,
    controlled: bool = True,
    disrupted: bool = False,
    unscheduled: str = "",
    waiting: tuple[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Json:
    """A pod of the job `uid` (of nobody's, where that is empty), controlled by the incarnation's batch Job.

    `disrupted`: evicted; `unscheduled` is what the scheduler says, `waiting` the reason and the message of the kubelet.
    """
    labels = {
        "flyball.dev/job-name": uid.removeprefix("uid-"),
        "flyball.dev/job-uid": uid,
        "flyball.dev/incarnation": str(incarnation),
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    metadata: Json = {"name": name, "namespace": namespace, "uid": f"pod-{name}", "resourceVersion": "5"}
    if uid:
        metadata["labels"] = labels
        if controlled:
            metadata["ownerReferences"] = [owner("batch/v1", "Job", f"batch-{uid}-{incarnation}")]
    if deleting:
        metadata["deletionTimestamp"] = CREATED
    if annotations:
        metadata["annotations"] = dict(annotations)
    spec: Json = {"containers": [{"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]}
    if node:
        spec["nodeName"] = node
    if gated:
        spec["schedulingGates"] = [{"name": "flyball.dev/placement"}]
    status: Json = {"phase": phase, "conditions": [{"type": "Ready", "status": str(ready)}]}
    if disrupted:
        status["conditions"].append(
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
            }
        )
    if unscheduled:
        status["conditions"].append(
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": unscheduled}
        )
    if waiting is not None:
        state = {"waiting": {"reason": waiting[0], "message": waiting[1]}}
        status["containerStatuses"] = [{"name": "trainer", "state": state}]
    if exit_code is not None:
        status["containerStatuses"] = [{"name": "trainer", "state": {"terminated": {"exitCode": exit_code}}}]
    return {"metadata": metadata, "spec": spec, "status": status}


def pod_view(name: str, **keywords: Any) -> PodView:
    return read_pod(raw_pod(name, **keywords))


def running_pod(name: str, node: str, **keywords: Any) -> PodView:
    return pod_view(name, node=node, phase="Running", ready=True, **keywords)


def raw_batch_job(
    uid: str,
    incarnation: int,
    nodes: tuple[tuple[str, int], ...],
    *,
    condition: str = "",
    message: str = "",
    deleting: bool = False,
    namespace: str = "team",
    controlled: bool = True,
) -> Json:
    name = uid.removeprefix("uid-")
    metadata: Json = {
        "name": f"{name}-{incarnation}",
        "namespace": namespace,
        "uid": f"batch-{uid}-{incarnation}",
        "labels": {
            "flyball.dev/job-name": name,
            "flyball.dev/job-uid": uid,
            "flyball.dev/incarnation": str(incarnation),
        },
        "annotations": {"flyball.dev/allocation": orjson.dumps({"nodes": nodes}).decode()},
    }
    if controlled:
        metadata["ownerReferences"] = [owner("flyball.dev/v1alpha1", "EnergyAwareJob", uid)]
    if deleting:
        metadata["deletionTimestamp"] = CREATED
    conditions = [{"type": condition, "status": "True", "message": message}] if condition else []
    return {"metadata": metadata, "status": {"conditions": conditions}}


def incarnation_view(uid: str, incarnation: int, *nodes: tuple[str, int], **keywords: Any) -> IncarnationView:
    return read_incarnation(raw_batch_job(uid, incarnation, nodes, **keywords))


def decision(
    uid: str,
    *nodes: tuple[str, int],
    watts: float = 300.0,
    clock: int = 1200,
    predicted_watts: float = 250.0,
    **keywords: Any,
) -> JobDecision:
    """The plan's word on a job: these nodes, or none."""
    return JobDecision(
        uid,
        Allocation(nodes, clock, watts) if nodes else None,
        Admission.ADMITTED if nodes else Admission.WAITING_FOR_GPUS,
        "because the test says so",
        predicted_iteration_seconds=keywords.pop("predicted_iteration_seconds", 0.5),
        predicted_gpu_watts=predicted_watts,
        **keywords,
    )


# --- caps ----------------------------------------------------------------------------------------------------------


def cap_view(name: str = "row", *, status: Json | None = None, generation: int = 1, **spec: Any) -> PowerCap:
    return read_power_cap(
        {
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "generation": generation,
                "resourceVersion": "12",
                "finalizers": [HOLD_FINALIZER],
            },
            "spec": spec,
            "status": status or {},
        }
    )


def in_version(cap: PowerCap, version: int) -> PowerCap:
    """The cap as it is read in that version: what was written over another one is seen in it, or was refused."""
    return dataclasses.replace(cap, metadata=msgspec.structs.replace(cap.metadata, resource_version=str(version)))


def with_status(cap: PowerCap, status: PowerCapStatus) -> PowerCap:
    """A cap once the API server has taken this status of it: each write makes another version."""
    return dataclasses.replace(in_version(cap, int(cap.metadata.resource_version) + 1), status=status)


# --- statuses ------------------------------------------------------------------------------------------------------


def as_stored(status: Struct) -> Json:
    """A status as the API server has it after the patch that writes it: without the fields that are null."""

    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: kept(item) for key, item in value.items() if item is not None}
        return value

    stored: Json = kept(to_patch(status))
    return stored
