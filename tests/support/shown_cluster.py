"""A small cluster as the API server has it, for what shows it: JSON objects, with something wrong here and there.

Two nodes of two GPUs in two rows under two caps. The cap `row-a` is held; `cluster` is not, for `node-b` owes an
acknowledgement. One job runs, one waits for power, one has succeeded.
"""

from __future__ import annotations

from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

from tests.support.operator_objects import grant, job_grant, raw_device, raw_gpu_node, raw_job, raw_node

Json = dict[str, Any]

NOW = datetime(2030, 6, 1, 12, 0, 0, tzinfo=UTC)
SINCE = "2030-06-01T11:58:00Z"
SESSION = ("boot-1", "driver-1")


def condition(kind: str, status: bool | None, reason: str, message: str = "", generation: int = 1) -> Json:
    return {
        "type": kind,
        "status": "Unknown" if status is None else str(status),
        "reason": reason,
        "message": message,
        "observedGeneration": generation,
        "lastTransitionTime": SINCE,
    }


def raw_cap(name: str, watts: int, *conditions: Json, status: Json | None = None, **spec: Any) -> Json:
    return {
        "apiVersion": "flyball.dev/v1alpha1",
        "kind": "PowerCap",
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "generation": 1,
            "resourceVersion": "12",
            "creationTimestamp": "2030-06-01T10:00:00Z",
            "finalizers": ["flyball.dev/hold"],
        },
        "spec": {"watts": watts, **spec},
        "status": {"observedGeneration": 1, "conditions": list(conditions), **(status or {})},
    }


def held_cap() -> Json:
    return raw_cap(
        "row-a",
        1200,
        condition("Feasible", True, "FloorsFit", "the nodes draw up to 200 W at the least"),
        condition("Enforced", True, "LimitsAcknowledged", "the limits of 1 node add up to 400 W at most"),
        condition("Breached", False, "WithinCap", "measured 330 W, cap 1000 W"),
        condition("MeterSilent", False, "NoMeter", "the cap has no meter"),
        nodeSelector={"matchLabels": {"row": "a"}},
        schedule=[{"name": "evening", "cron": "0 16 * * *", "durationSeconds": 3600, "watts": 1000}],
        status={
            "effectiveWatts": 1000,
            "activeSchedule": "evening",
            "committedWatts": 400,
            "measuredWatts": 330,
            "measured": {"source": "agents"},
            "headroomWatts": 600,
            "nodes": 1,
        },
    )


def late_cap() -> Json:
    return raw_cap(
        "cluster",
        600,
        condition("Feasible", True, "FloorsFit", "the nodes draw up to 400 W at the least"),
        condition(
            "Enforced",
            False,
            "WaitingForAcknowledgements",
            "the nodes may still draw 900 W, 300 W over the cap; 1 node has yet to acknowledge its grant",
        ),
        condition("Breached", False, "WithinCap", "measured 440 W, cap 600 W"),
        condition("MeterSilent", False, "NoMeter", "the cap has no meter"),
        status={
            "effectiveWatts": 600,
            "committedWatts": 900,
            "measuredWatts": 440,
            "measured": {"source": "agents"},
            "headroomWatts": 0,
            "nodes": 2,
        },
    )


def _labelled(raw: Json, **labels: str) -> Json:
    raw["metadata"].setdefault("labels", {}).update(labels)
    return raw


def serving_node() -> Json:
    """node-a: one GPU of the running job, one idle; all acknowledged."""
    devices = [
        raw_device(0, pod=("team", "train-1-0"), requestedMilliwatts=300_000, enforcedMilliwatts=300_000),
        raw_device(1),
    ]
    devices[0]["powerMilliwatts"] = 272_000
    given = grant(400_000, jobs=(job_grant("uid-train", 300_000),))
    raw = raw_gpu_node("node-a", given, devices=devices, limits=400_000)
    raw["status"]["conditions"] = [
        condition("Ready", True, "Serving"),
        condition("Drifted", False, "AsSet"),
        condition("Degraded", False, "AsExpected"),
    ]
    raw["status"]["acknowledged"]["boottimeNanoseconds"] = 3_600 * 10**9
    raw["status"]["agentVersion"] = "0.1.0"
    return _labelled(raw, row="a")


def late_node() -> Json:
    """node-b: granted 200 W, and still at 500; one of its GPUs says nothing any more."""
    devices = [raw_device(0, requestedMilliwatts=400_000, enforcedMilliwatts=400_000), raw_device(1, healthy=False)]
    del devices[1]["powerMilliwatts"], devices[1]["limits"]["requestedMilliwatts"]
    given = grant(200_000, committed=500_000, generation=2)
    raw = raw_gpu_node("node-b", given, devices=devices, limits=500_000, acknowledged=(1, 1))
    raw["status"]["conditions"] = [
        condition("Ready", False, "NotAcknowledged", "the last spec is not in force on every GPU yet"),
        condition("Degraded", True, "GpuFailed", "Unreachable: GPU-1: no answer"),
    ]
    return _labelled(raw, row="b")


def running_job() -> Json:
    return raw_job(
        "train",
        energy={"budgetKilojoules": 1000},
        deadline="2030-06-01T18:00:00Z",
        status={
            "observedGeneration": 1,
            "state": "Running",
            "conditions": [
                condition("Admitted", True, "Admitted", "1 GPU at 1410 MHz: a second GPU would pass the cap row-a"),
                condition("Placed", True, "PodsBound"),
                condition("PodsReady", True, "AllRanksReady"),
                condition("Resizing", False, "Running"),
                condition("PowerLimitsEnforced", True, "LimitsAcknowledged"),
                condition("BudgetHealthy", True, "WithinBudget", "800 kJ at the end of 1000 kJ allowed"),
                condition("DeadlineAtRisk", False, "OnTime"),
            ],
            "allocation": {
                "gpus": 1,
                "epoch": 1,
                "incarnation": 1,
                "nodes": [{"name": "node-a", "gpus": 1}],
                "clockMegahertz": 1410,
                "powerLimitWatts": 300,
            },
            "applied": {
                "gpus": 1,
                "epoch": 1,
                "incarnation": 1,
                "nodes": [{"name": "node-a", "gpus": 1}],
                "clockMegahertz": 1395,
                "powerLimitWatts": 300,
            },
            "progress": {
                "iterations": 250,
                "iterationsPerKilosecond": 500,
                "lastReportTime": "2030-06-01T11:59:57Z",
                "estimatedCompletionTime": "2030-06-01T12:25:00Z",
                "earliestCompletionTime": "2030-06-01T12:20:00Z",
                "latestCompletionTime": "2030-06-01T12:31:15Z",
            },
            "energy": {"consumedKilojoules": 200, "projectedKilojoules": 800, "watts": 272},
            "tradeoff": {
                "gpuModel": "NVIDIA-A100-SXM4-40GB",
                "choices": 3,
                "fastest": {"gpus": 1, "clockMegahertz": 1410, "seconds": 1500, "kilojoules": 600},
                "thriftiest": {"gpus": 1, "clockMegahertz": 1005, "seconds": 1800, "kilojoules": 480},
            },
            "explanation": "1 GPU at 1410 MHz: a second GPU would pass the cap row-a",
            "restarts": 0,
            "startTime": "2030-06-01T11:40:00Z",
        },
    )


def profile(namespace: str = "team") -> Json:
    """What was learned of the running job: of its three choices the fastest is where it is."""
    choices = [(1410, 2_000_000, 800_000), (1200, 2_200_000, 700_000), (1005, 2_400_000, 640_000)]
    return {
        "apiVersion": "flyball.dev/v1alpha1",
        "kind": "EnergyProfile",
        "metadata": {"name": "train.nvidia-a100-sxm4-40gb", "namespace": namespace},
        "spec": {"profileKey": "train", "gpuModel": "NVIDIA-A100-SXM4-40GB"},
        "status": {
            "parameterisation": "Physical",
            "fit": {"observations": 12, "timeErrorPermille": 21, "energyErrorPermille": 34},
            "frontiers": [
                {
                    "bounds": {"globalBatchSize": 256, "minGpus": 1, "maxGpus": 8},
                    "choices": [
                        {
                            "gpus": 1,
                            "clockMegahertz": clock,
                            "microsecondsPerIteration": microseconds,
                            "millijoulesPerIteration": millijoules,
                        }
                        for clock, microseconds, millijoules in choices
                    ],
                }
            ],
        },
    }


def waiting_job() -> Json:
    why = "not even 4 GPUs at the lowest clock fit under the cap cluster: 240 W are left, 400 W are needed"
    return raw_job(
        "big",
        gpus={"min": 4, "max": 8},
        status={
            "observedGeneration": 1,
            "state": "WaitingForPower",
            "conditions": [
                condition("Admitted", False, "WaitingForPower", why),
                condition("Placed", False, "Waiting"),
                condition("BudgetHealthy", True, "NoBudget", "no energy budget is set"),
                condition("DeadlineAtRisk", False, "NoDeadline"),
            ],
            "progress": {},
            "energy": {},
            "queue": {
                "position": 1,
                "waiting": 2,
                "expectedStartTime": "2030-06-01T12:25:00Z",
                "basis": "when team/train has ended",
                "time": "2030-06-01T11:59:55Z",
            },
            "waitingSince": "2030-06-01T11:50:00Z",
            "explanation": why,
        },
    )


def succeeded_job() -> Json:
    return raw_job(
        "done",
        namespace="other",
        status={
            "observedGeneration": 1,
            "state": "Succeeded",
            "conditions": [
                condition("Admitted", False, "Succeeded", "exit code 0"),
                condition("Succeeded", True, "Succeeded", "exit code 0"),
            ],
            "progress": {"iterations": 1000, "estimated": True},
            "energy": {"consumedKilojoules": 700, "projectedKilojoules": 700},
            "completionTime": "2030-06-01T11:30:00Z",
        },
    )


def lease(holder: str = "operator-1", renewed: str = "2030-06-01T11:59:58.250000Z", epoch: int = 1) -> Json:
    return {
        "metadata": {"name": "flyball-operator", "namespace": "flyball-system"},
        "spec": {
            "holderIdentity": holder,
            "leaseTransitions": epoch,
            "leaseDurationSeconds": 15,
            "renewTime": renewed,
        },
    }


def nodes() -> list[Json]:
    return [
        _labelled(raw_node("node-a", 2), row="a"),
        _labelled(raw_node("node-b", 2, unschedulable=True), row="b"),
        {"metadata": {"name": "control-plane", "uid": "uid-of-control-plane"}, "status": {"capacity": {"cpu": "8"}}},
    ]


def cluster() -> dict[str, Any]:
    """All of it, as the arguments of `read_overview`."""
    return deepcopy(
        {
            "caps": [held_cap(), late_cap()],
            "gpu_nodes": [late_node(), serving_node()],
            "jobs": [running_job(), waiting_job(), succeeded_job()],
            "nodes": nodes(),
            "lease": lease(),
        }
    )


def large_cluster(nodes: int, jobs: int, gpus: int = 8) -> dict[str, Any]:
    """So many nodes and jobs, all well, as the arguments of `read_overview`."""
    names = [f"gpu-{index:04d}" for index in range(nodes)]
    devices = [raw_device(index) for index in range(gpus)]
    gpu_nodes = []
    for place, name in enumerate(names):
        given = grant(gpus * 100_000)
        raw = raw_gpu_node(name, given, devices=deepcopy(devices), limits=gpus * 100_000)
        raw["status"]["devices"][0]["powerMilliwatts"] = 58_000 + place * 100
        raw["status"]["conditions"] = [condition("Ready", True, "Serving")]
        gpu_nodes.append(_labelled(raw, row=f"r{place // 40}"))
    waiting = [waiting_job() for _ in range(jobs)]
    for index, job in enumerate(waiting):
        job["metadata"]["name"] = f"job-{index:04d}"
    return {
        "caps": [held_cap(), late_cap()],
        "gpu_nodes": gpu_nodes,
        "jobs": waiting,
        "nodes": [_labelled(raw_node(name, gpus), row="r") for name in names],
        "lease": lease(),
    }
