"""What reading a list of objects costs: Flyball's structs, fields picked by hand, the official client's models.

    python benchmarks/parsing.py [--pods 2000] [--nodes 1000]

Prints microseconds of CPU per object, from the bytes of a list to what is decided on, and the ratio to reading by hand:
for pods (the most numerous kind) and for GPUNodes (the largest of ours, for which the official client has no model).
Reading by hand is what the operator did before it had structs: it takes every field on faith. Ends with status 1 where
the structs cost a tenth more than that.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import orjson
from flyball_api.gpu_node import gpu_node_object, read_gpu_node
from flyball_api.grant import Grant, JobGrant, PowerBound
from flyball_api.quantities import thousandths
from flyball_api.units import MilliwattsPerGpu, NodeMilliwatts
from flyball_api.workloads import read_pod
from kubernetes.aio.client import ApiClient

ROUNDS = 7
# What the structs may cost beside reading by hand: the noise of a measurement, and nothing more.
LARGEST_RATIO = 1.1

Json = dict[str, Any]


# --- the objects -----------------------------------------------------------------------------------------------------


def pod(index: int) -> Json:
    """A pod of a training job as the API server sends it (no managed fields)."""
    condition = {"status": "True", "lastTransitionTime": "2026-11-20T10:00:00Z"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"gpt2-1-{index}-abcde",
            "namespace": "research",
            "uid": f"00000000-0000-4000-8000-{index:012d}",
            "resourceVersion": str(1000 + index),
            "creationTimestamp": "2026-11-20T10:00:00Z",
            "labels": {"flyball.dev/job-uid": "u", "flyball.dev/incarnation": "1", "app": "trainer"},
        },
        "spec": {
            "nodeName": f"node-{index % 1000:03d}",
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "trainer",
                    "image": "example.org/trainer:1",
                    "env": [{"name": f"VARIABLE_{number}", "value": str(number)} for number in range(14)],
                    "resources": {"limits": {"nvidia.com/gpu": "8"}, "requests": {"nvidia.com/gpu": "8"}},
                }
            ],
            "tolerations": [{"key": f"taint-{number}", "operator": "Exists"} for number in range(2)],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": kind, **condition} for kind in ("Ready", "PodScheduled", "Initialized")],
            "containerStatuses": [
                {
                    "name": "trainer",
                    "ready": True,
                    "restartCount": 0,
                    "image": "example.org/trainer:1",
                    "imageID": "sha256:0",
                    "state": {"running": {"startedAt": "2026-11-20T10:00:00Z"}},
                }
            ],
        },
    }


def gpu_node(index: int) -> Json:
    """A GPUNode with eight GPUs and two jobs as the API server sends it."""
    bound = PowerBound(NodeMilliwatts(2_400_000), NodeMilliwatts(2_000_000))
    limit = MilliwattsPerGpu(300_000)
    jobs = tuple(JobGrant("research", "gpt2", f"u{job}", 1, f"gpt2-1-{job}", 4, limit, 0, 1200) for job in range(2))
    raw = gpu_node_object(f"node-{index:03d}", {"rack": f"r{index % 40}"}, Grant(3, index, 60, bound, bound, jobs=jobs))
    raw["metadata"] |= {"uid": f"00000000-0000-4000-8000-{index:012d}", "resourceVersion": str(1000 + index)}
    session = {"bootID": "b0c1", "driverSession": "1.0"}
    condition = {"status": "True", "reason": "AsIs", "message": "", "lastTransitionTime": "2026-11-20T10:00:00Z"}
    raw["status"] = {
        **session,
        "agentVersion": "0.1.0",
        "mode": "Granted",
        "devices": [
            {
                "uuid": f"GPU-{index:08x}-0000-4000-8000-{gpu:012d}",
                "index": gpu,
                "model": "NVIDIA A100-SXM4-40GB",
                "limits": {
                    "minMilliwatts": 100_000,
                    "maxMilliwatts": 400_000,
                    "defaultMilliwatts": 400_000,
                    "requestedMilliwatts": 300_000,
                    "enforcedMilliwatts": 300_000,
                },
                "clocksMegahertz": {"min": 210, "max": 1410, "step": 15},
                "pod": {"namespace": "research", "name": f"gpt2-1-{gpu // 4}"},
                "energyMillijoules": 987_654_321 + gpu,
                "powerMilliwatts": 287_000,
                "conditions": [{"type": "Healthy", **condition}],
            }
            for gpu in range(8)
        ],
        "acknowledged": {
            "epoch": 3,
            "generation": index,
            "time": "2026-11-20T10:00:00Z",
            "limitsMilliwatts": 2_400_000,
            **session,
        },
        "jobs": [
            {
                "namespace": "research",
                "name": "gpt2",
                "uid": f"u{job}",
                "incarnation": 1,
                "podName": f"gpt2-1-{job}",
                "gpus": 4,
                "iterations": 12_345,
                "microsecondsPerIteration": 480_000,
                "millijoulesPerIteration": 560_000,
                "clockMegahertz": 1185,
                "localBatchSize": 16,
                "energyMillijoules": 7_000_000_000,
                "lastReportTime": "2026-11-20T10:00:00Z",
                "ended": False,
            }
            for job in range(2)
        ],
        "conditions": [{"type": kind, **condition} for kind in ("Ready", "Drifted", "Degraded")],
    }
    return raw


# --- fields picked by hand -------------------------------------------------------------------------------------------


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


# --- the comparison --------------------------------------------------------------------------------------------------


def microseconds_of(calls: dict[str, Callable[[], object]], objects: int) -> dict[str, float]:
    """CPU microseconds per object of each call, the least of several rounds in which they take turns."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            started = time.process_time()
            call()
            least[name] = min(least[name], 1e6 * (time.process_time() - started) / objects)
    return least


def list_of(kind: str, items: list[Json]) -> bytes:
    return orjson.dumps({"apiVersion": "v1", "kind": f"{kind}List", "metadata": {}, "items": items})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=2000, help="pods in the list")
    parser.add_argument("--nodes", type=int, default=1000, help="GPUNodes in the list")
    arguments = parser.parse_args()
    pods = list_of("Pod", [pod(index) for index in range(arguments.pods)])
    nodes = list_of("GPUNode", [gpu_node(index) for index in range(arguments.nodes)])
    client = ApiClient.__new__(ApiClient)  # its deserializer needs no connection
    client.configuration = SimpleNamespace(client_side_validation=False)

    failed = False
    for kind, body, objects, structs, by_hand in (
        ("pods", pods, arguments.pods, read_pod, pick_pod),
        ("GPUNodes", nodes, arguments.nodes, read_gpu_node, pick_gpu_node),
    ):
        calls: dict[str, Callable[[], object]] = {
            "by hand": lambda body=body, by_hand=by_hand: [by_hand(item) for item in orjson.loads(body)["items"]],
            "structs": lambda body=body, structs=structs: [structs(item) for item in orjson.loads(body)["items"]],
        }
        if kind == "pods":
            calls["client's models"] = lambda: client.deserialize(pods.decode(), "V1PodList", "application/json")
        costs = microseconds_of(calls, objects)
        print(f"{objects} {kind}, {len(body) / 1e6:.1f} MB of JSON")
        for name, cost in costs.items():
            print(f"  {name:16} {cost:8.1f} us per object {cost / costs['by hand']:7.2f} x")
        failed |= costs["structs"] > LARGEST_RATIO * costs["by hand"]
    if failed:
        sys.exit("the structs cost more than reading by hand")


if __name__ == "__main__":
    main()
