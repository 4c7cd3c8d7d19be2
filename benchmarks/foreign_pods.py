"""What pods without GPUs cost the operator, which has to watch all pods of the cluster.

    python -m benchmarks.foreign_pods [--pods 10000] [--nodes 330]

So many pods of Deployments on nodes without GPUs are listed by the operator's own informer, from JSON; then 2,000 of them
change. Printed are the memory that stays (of Python's objects), CPU seconds of the list, microseconds of an event, what
they add to each cycle's view of the cluster, and how many of the events ask for a cycle. Ends with status 1
where a pod keeps more than PER_POD_BYTES, the view takes more than VIEW_SECONDS, or any event asks for a cycle.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
import tracemalloc
from collections.abc import Mapping

import orjson
from flyball_api.workloads import DEFAULT_GPU_RESOURCES
from flyball_kube.http import json_depth
from flyball_kube.resources import PODS
from flyball_kube.server_clock import ServerClock
from flyball_kube.session import JsonObject
from flyball_operator.cluster.watches import Watches

PER_POD_BYTES = 400
VIEW_SECONDS = 0.02
EVENTS = 2000
ROUNDS = 7
LISTED = 1_000_000  # the version of the list


def pod(index: int, nodes: int, version: int) -> JsonObject:
    """A pod of a Deployment as the API server sends it (no managed fields)."""
    condition = {"status": "True", "lastTransitionTime": "2026-11-20T10:00:00Z"}
    application, template = f"web-{index // 50}", f"{index // 50:010x}"
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{application}-{template}", "controller": True}
    account = "kube-api-access-abcde"
    container = {
        "name": "web",
        "image": "example.org/web:1",
        "env": [{"name": f"VARIABLE_{number}", "value": "some words or others"} for number in range(10)],
        "resources": {"limits": {"memory": "512Mi"}, "requests": {"cpu": "250m", "memory": "256Mi"}},
        "volumeMounts": [
            {"name": account, "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
        ],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10},
    }
    sources = [{"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}]
    tolerated = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    running = {"running": {"startedAt": "2026-11-20T10:00:00Z"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{application}-{template}-{index:05d}",
            "namespace": f"team-{index % 100}",
            "uid": f"00000000-0000-4000-8000-{index:012d}",
            "resourceVersion": str(version),
            "creationTimestamp": "2026-11-20T10:00:00Z",
            "labels": {"app": application, "pod-template-hash": template, "app.kubernetes.io/part-of": "shop"},
            "ownerReferences": [{**owner, "uid": f"10000000-0000-4000-8000-{index // 50:012d}"}],
        },
        "spec": {
            "nodeName": f"node-{index % nodes:04d}",
            "restartPolicy": "Always",
            "containers": [container],
            "volumes": [{"name": account, "projected": {"sources": sources, "defaultMode": 420}}],
            "tolerations": [{"key": f"node.kubernetes.io/{key}", **tolerated} for key in ("not-ready", "unreachable")],
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": kind, **condition} for kind in ("Ready", "ContainersReady", "PodScheduled", "Initialized")
            ],
            "containerStatuses": [{"name": "web", "ready": True, "restartCount": 0, "state": running}],
        },
    }


class Lists:
    """An API server with nothing but pods, in pages as it is asked for them."""

    def __init__(self, pods: int, nodes: int) -> None:
        self._pods, self._nodes = pods, nodes
        self.server_clock = ServerClock()

    async def get(self, path: str, **params: str) -> JsonObject:
        first = int(params.get("continue", "0"))
        last = min(self._pods if path == PODS.path() else 0, first + int(params["limit"]))
        items = [pod(index, self._nodes, 1 + index) for index in range(first, last)]
        metadata = {"resourceVersion": str(LISTED), **({"continue": str(last)} if last < self._pods and items else {})}
        answer = orjson.dumps({"metadata": metadata, "items": items})
        found: JsonObject = json_depth.loads(answer)
        return found

    async def page(self, path: str, params: Mapping[str, str], max_bytes: int) -> JsonObject:
        return await self.get(path, **params)


async def measured(pods: int, nodes: int) -> int:
    woken = 0

    def wake() -> None:
        nonlocal woken
        woken += 1

    def watches() -> Watches:
        return Watches(Lists(pods, nodes), wake, DEFAULT_GPU_RESOURCES)  # type: ignore[arg-type]

    kept = watches()
    begun = time.process_time()
    await kept.pods._relist()
    listed = time.process_time() - begun
    view = float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time()
        kept.cluster()
        view = min(view, time.process_time() - begun)
    events = [orjson.dumps(pod(index, nodes, LISTED + 1 + index)) for index in range(min(EVENTS, pods))]
    woken, begun = 0, time.process_time()
    for event in events:
        kept.absorb(PODS, json_depth.loads(event))
    took = time.process_time() - begun
    asked = woken
    tracemalloc.start()
    again = watches()
    await again.pods._relist()
    gc.collect()
    each = tracemalloc.get_traced_memory()[0] / pods
    tracemalloc.stop()
    print(
        f"{pods} pods on {nodes} nodes without GPUs: {each:.0f} bytes each ({each * pods / 1e6:.1f} MB); listed in "
        f"{listed:.2f} s, the making of the JSON included; in each cycle's view {view * 1000:.1f} ms; an event "
        f"{took / len(events) * 1e6:.0f} us, and {asked} of {len(events)} ask for a cycle"
    )
    return 1 if each > PER_POD_BYTES or view > VIEW_SECONDS or asked else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=330, help="that they are on; none has GPUs")
    arguments = parser.parse_args()
    return asyncio.run(measured(arguments.pods, arguments.nodes))


if __name__ == "__main__":
    sys.exit(main())
