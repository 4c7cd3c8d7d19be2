"""Pods and GPUNodes from JSON by picking each field by hand, on faith: what structs are compared with in `parsing.py`.

It is how the operator read them before it had structs.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from flyball_api.grant import Grant, JobGrant, PowerBound
from flyball_api.values.quantities import thousandths

Json = dict[str, Any]


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC) if text else None


@dataclass(frozen=True, slots=True)
class PickedPod:
    """The fields of a pod that the operator decides on."""

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
    job_name: str
    job_uid: str
    incarnation: int
    index: int
    exit_code: int | None
    controller_uid: str
    unscheduled: tuple[str, str] | None
    waiting: tuple[str, str] | None
    disruption: tuple[str, str] | None
    needs: tuple[int, int, int]


def _gpus(containers: Any) -> list[int]:
    return [
        int(((container.get("resources") or {}).get("limits") or {}).get("nvidia.com/gpu") or 0)
        for container in containers or ()
    ]


def _exit_code(spec: Json, status: Json) -> int | None:
    trainer = next((container.get("name") for container in spec.get("containers") or ()), None)
    exits = {
        container.get("name"): terminated["exitCode"]
        for container in status.get("containerStatuses") or ()
        if (terminated := (container.get("state") or {}).get("terminated")) and "exitCode" in terminated
    }
    return exits.get(trainer, max(exits.values(), default=None))


def _condition(status: Json, kind: str, value: str) -> tuple[str, str] | None:
    for item in status.get("conditions") or ():
        if item.get("type") == kind and item.get("status") == value:
            return item.get("reason", ""), item.get("message", "")
    return None


def _waiting(status: Json) -> tuple[str, str] | None:
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason", "") not in ("", "ContainerCreating", "PodInitializing"):
            return waiting["reason"], waiting.get("message", "")
    return None


def _needs(containers: Any) -> list[tuple[int, int, int]]:
    needs = []
    for container in containers or ():
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        needs.append(
            (
                thousandths(asked.get("cpu", 0)),
                thousandths(asked.get("memory", 0)),
                thousandths(asked.get("ephemeral-storage", 0)),
            )
        )
    return needs


def _pod_needs(spec: Json) -> tuple[int, int, int]:
    running, starting = _needs(spec.get("containers")), _needs(spec.get("initContainers"))
    cpu, memory, storage = (
        max(sum(item[of] for item in running), *(item[of] for item in starting), 0) for of in range(3)
    )
    return cpu, memory, storage


def pick_pod(raw: Json) -> PickedPod:
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    labels = metadata.get("labels") or {}
    return PickedPod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        node=spec.get("nodeName", ""),
        gpus=max([sum(_gpus(spec.get("containers"))), *_gpus(spec.get("initContainers"))]),
        phase=status.get("phase", "Pending"),
        ready=any(
            item.get("type") == "Ready" and item.get("status") == "True" for item in status.get("conditions") or ()
        ),
        gated=any(gate.get("name") == "flyball.dev/placement" for gate in spec.get("schedulingGates") or ()),
        deleting="deletionTimestamp" in metadata,
        job_name=labels.get("flyball.dev/job-name", ""),
        job_uid=labels.get("flyball.dev/job-uid", ""),
        incarnation=int(labels.get("flyball.dev/incarnation") or 0),
        index=int(labels.get("batch.kubernetes.io/job-completion-index") or 0),
        exit_code=_exit_code(spec, status),
        controller_uid=next(
            (item["uid"] for item in metadata.get("ownerReferences") or () if item.get("controller")), ""
        ),
        unscheduled=_condition(status, "PodScheduled", "False"),
        waiting=_waiting(status),
        disruption=_condition(status, "DisruptionTarget", "True"),
        needs=_pod_needs(spec),
    )


@dataclass(frozen=True, slots=True)
class PickedGpu:
    """The fields of a GPU that the operator decides on."""

    uuid: str
    model: str
    min_milliwatts: int
    max_milliwatts: int
    default_milliwatts: int
    enforced_milliwatts: int
    clock_min_megahertz: int
    clock_max_megahertz: int
    clock_step_megahertz: int
    power_milliwatts: int
    energy_millijoules: int
    healthy: bool
    pod: tuple[str, str] | None


def pick_gpu(raw: Json) -> PickedGpu:
    limits, clocks, held = raw.get("limits") or {}, raw.get("clocksMegahertz") or {}, raw.get("pod")
    return PickedGpu(
        uuid=raw["uuid"],
        model=raw.get("model", ""),
        min_milliwatts=limits.get("minMilliwatts", 0),
        max_milliwatts=limits.get("maxMilliwatts", 0),
        default_milliwatts=limits.get("defaultMilliwatts", 0),
        enforced_milliwatts=limits.get("enforcedMilliwatts", 0),
        clock_min_megahertz=clocks.get("min", 0),
        clock_max_megahertz=clocks.get("max", 0),
        clock_step_megahertz=clocks.get("step", 0),
        power_milliwatts=raw.get("powerMilliwatts", 0),
        energy_millijoules=raw.get("energyMillijoules", 0),
        healthy=not any(
            item.get("type") == "Healthy" and item.get("status") == "False" for item in raw.get("conditions") or ()
        ),
        pod=None if not held else (held["namespace"], held["name"]),
    )


@dataclass(frozen=True, slots=True)
class PickedReport:
    """The fields of a pod's report that the operator decides on."""

    uid: str
    incarnation: int
    pod_name: str
    gpus: int
    iterations: int
    microseconds_per_iteration: int
    millijoules_per_iteration: int
    clock_megahertz: int
    local_batch_size: int
    energy_millijoules: int
    last_report: datetime | None
    ended: bool


def pick_report(raw: Json) -> PickedReport:
    return PickedReport(
        uid=raw.get("uid", ""),
        incarnation=raw.get("incarnation", 0),
        pod_name=raw["podName"],
        gpus=raw.get("gpus", 0),
        iterations=raw.get("iterations", 0),
        microseconds_per_iteration=raw.get("microsecondsPerIteration", 0),
        millijoules_per_iteration=raw.get("millijoulesPerIteration", 0),
        clock_megahertz=raw.get("clockMegahertz", 0),
        local_batch_size=raw.get("localBatchSize", 0),
        energy_millijoules=raw.get("energyMillijoules", 0),
        last_report=_time(raw.get("lastReportTime")),
        ended=raw.get("ended", False),
    )


def pick_grant(spec: Json) -> Grant:
    jobs = [
        JobGrant(
            namespace=job["namespace"],
            name=job["name"],
            uid=job["uid"],
            incarnation=job["incarnation"],
            pod_name=job["podName"],
            gpus=job["gpus"],
            power_limit_milliwatts=job["powerLimitMilliwatts"],
            clock_min_megahertz=job["clockMegahertz"]["min"],
            clock_max_megahertz=job["clockMegahertz"]["max"],
        )
        for job in spec.get("jobs") or ()
    ]
    return Grant(
        epoch=spec["epoch"],
        generation=spec["generation"],
        lease_seconds=spec.get("leaseSeconds", 0),
        bound=PowerBound(spec["boundMilliwatts"], spec["expectedMilliwatts"]),
        committed=PowerBound(spec["committedMilliwatts"], spec["committedExpectedMilliwatts"]),
        jobs=tuple(sorted(jobs, key=lambda job: (job.uid, job.pod_name))),
    )


def pick_gpu_node(raw: Json) -> tuple[Any, ...]:
    metadata, status = raw["metadata"], raw.get("status") or {}
    acknowledged = status.get("acknowledged") or {}
    return (
        metadata["name"],
        metadata["uid"],
        metadata["resourceVersion"],
        metadata.get("labels") or {},
        pick_grant(raw["spec"]),
        (acknowledged.get("epoch"), acknowledged.get("generation"), acknowledged.get("limitsMilliwatts")),
        (status.get("bootID", ""), status.get("driverSession", "")),
        tuple(pick_gpu(item) for item in status.get("devices") or ()),
        tuple(pick_report(item) for item in status.get("jobs") or ()),
        status.get("mode", ""),
    )
