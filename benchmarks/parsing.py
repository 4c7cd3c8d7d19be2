"""What reading a list of objects costs: Flyball's structs, fields picked by hand, the official client's models.

    .venv/bin/pip install -c constraints.txt -e '.[parsing]'    # for the official client's, which are left out otherwise
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
from types import SimpleNamespace
from typing import Any

import orjson
from flyball_api.gpu_node import gpu_node_object, read_gpu_node
from flyball_api.grant import Grant, JobGrant, PowerBound
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts
from flyball_api.workloads import read_pod
from picked_by_hand import pick_gpu_node, pick_pod

try:
    from kubernetes.aio.client import ApiClient
except ImportError:
    ApiClient = None

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
    client = None
    if ApiClient is None:
        print("without the official client, which is not here: pip install -c constraints.txt -e '.[parsing]'")
    else:
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
        if kind == "pods" and client is not None:
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
