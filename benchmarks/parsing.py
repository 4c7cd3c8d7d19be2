"""What reading a list of objects costs: raw JSON into the operator's views, beside the official client's models.

    python benchmarks/parsing.py [--objects 2000]

Prints microseconds of CPU per object and the ratio, for pods (the most numerous kind) in both ways.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import orjson
from flyball_operator.workloads import read_pod
from kubernetes.aio.client import ApiClient


def pod(index: int) -> dict[str, Any]:
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


def seconds_of(call: Callable[[], object]) -> float:
    """CPU seconds of one call, the least of three."""
    times = []
    for _ in range(3):
        started = time.process_time()
        call()
        times.append(time.process_time() - started)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=2000, help="pods in the list")
    objects = parser.parse_args().objects
    body = orjson.dumps(
        {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [pod(i) for i in range(objects)]}
    )
    client = ApiClient.__new__(ApiClient)  # its deserializer needs no connection
    client.configuration = SimpleNamespace(client_side_validation=False)

    ours = seconds_of(lambda: [read_pod(item) for item in orjson.loads(body)["items"]])
    theirs = seconds_of(lambda: client.deserialize(body.decode(), "V1PodList", "application/json"))
    print(f"{objects} pods, {len(body) / 1e6:.1f} MB of JSON")
    print(f"raw JSON into views   {1e6 * ours / objects:8.1f} us per object")
    print(f"client's models       {1e6 * theirs / objects:8.1f} us per object   {theirs / ours:.0f} x")


if __name__ == "__main__":
    main()
