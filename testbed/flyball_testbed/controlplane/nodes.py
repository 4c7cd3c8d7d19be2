"""Simulated GPU nodes: objects that kwok keeps alive and the real scheduler fills."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from flyball_api.names import GPU_RESOURCE, LABEL_GPU_PRODUCT, LABEL_HOSTNAME, STARTUP_TAINT
from flyball_kube.errors import ApiError

from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.controlplane.components import FAKE_NODE_ANNOTATION, SERVICE_ADDRESS
from flyball_testbed.controlplane.stages import ANNOTATION_PREFIX, NODE_ANNOTATION, NOT_READY

NODES = "/api/v1/nodes"
NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
UNACKNOWLEDGED_TAINT = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
DEFAULT_GPU_PRODUCT = "NVIDIA-A100-SXM4-40GB"
DEFAULT_GPUS_PER_NODE = 8
CPUS_PER_GPU = 16
GIBIBYTES_PER_GPU = 128
PODS_PER_NODE = 110
# A kwok that has just started passes over what changes of a node between its taking the node and its reading back that it
# has (0.8), and never looks at it again: what is asked of a node is asked until it is done, each time by another change.
ASKED_ANNOTATION = f"{ANNOTATION_PREFIX}/asked"
ASK_AGAIN_SECONDS = 5.0


def node_name(index: int) -> str:
    """`node-000`, `node-001`, ...: the names of the nodes that a cluster is started with."""
    return f"node-{index:03d}"


def gpu_node(
    name: str,
    *,
    gpus: int = DEFAULT_GPUS_PER_NODE,
    product: str = DEFAULT_GPU_PRODUCT,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (UNACKNOWLEDGED_TAINT,),
) -> Json:
    """The Node of one simulated machine, registered as its kubelet would, with the start-up taint on.

    With `gpus` 0 it is a machine without GPUs: no product label, and no taint unless `taints` has one.
    """
    size = max(gpus, 1)
    resources = {"cpu": str(CPUS_PER_GPU * size), "memory": f"{GIBIBYTES_PER_GPU * size}Gi", "pods": str(PODS_PER_NODE)}
    all_labels = {
        LABEL_HOSTNAME: name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        # The controller manager would add these two, by a write to each node.
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": "amd64",
        "type": "kwok",
    }
    if gpus:
        resources[GPU_RESOURCE] = str(gpus)
        all_labels[LABEL_GPU_PRODUCT] = product
    elif taints == (UNACKNOWLEDGED_TAINT,):
        taints = ()
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**all_labels, **(labels or {})},
            "annotations": {FAKE_NODE_ANNOTATION: "fake"},
        },
        "spec": {"taints": [dict(taint) for taint in taints]},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "addresses": [
                {"type": "InternalIP", "address": SERVICE_ADDRESS},
                {"type": "Hostname", "address": name},
            ],
            # Registered as ready: one write less a node than leaving it to kwok.
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "kubelet is posting ready status",
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }
            ],
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "bootID": "",
                "machineID": "",
                "systemUUID": "",
                "osImage": "simulated",
                "kernelVersion": "simulated",
                "containerRuntimeVersion": "kwok",
                "kubeletVersion": "kwok",
                "kubeProxyVersion": "",
            },
        },
    }


def create_nodes(api: ApiClient, nodes: Iterable[Json]) -> list[str]:
    """Create nodes, many at once; one that exists already is left as it is. The names, in order."""

    def create(node: Json) -> str:
        name: str = node["metadata"]["name"]
        try:
            api.create(NODES, node)
        except ApiError as error:
            if not error.conflict:
                raise
        return name

    return api.for_each(create, nodes)


def delete_nodes(api: ApiClient, names: Iterable[str], *, with_pods: bool = False) -> None:
    """Delete nodes, many at once.

    Their pods stay, as they do in any cluster, until the pod garbage collector finds that their node is gone (up to a
    minute); `with_pods` removes them at once.
    """
    gone = set(names)
    api.for_each(lambda name: api.delete(f"{NODES}/{name}"), gone)
    if with_pods:
        # After the nodes: no controller creates pods for a node that is gone.
        orphans = [pod for pod in api.list_objects("/api/v1/pods") if pod["spec"].get("nodeName") in gone]
        api.for_each(lambda pod: api.delete(pod_path(pod), grace_seconds=0), orphans)


def pod_path(pod: Json) -> str:
    """The path of a pod in the API."""
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def set_cordoned(api: ApiClient, name: str, *, cordoned: bool = True) -> None:
    """Mark a node unschedulable, as `kubectl cordon`, or schedulable again."""
    api.patch(f"{NODES}/{name}", {"spec": {"unschedulable": cordoned or None}})


def set_not_ready(api: ApiClient, name: str, *, not_ready: bool = True, timeout_seconds: float = 30.0) -> None:
    """Make a node report itself not ready (or ready again), and wait until its Ready condition is the same.

    Its pods stay as they are: the node controller takes readiness from those of nodes that it does not hear. Raises
    TimeoutError.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        asked = datetime.datetime.now(datetime.UTC).isoformat()
        annotations = {NODE_ANNOTATION: NOT_READY if not_ready else None, ASKED_ANNOTATION: asked}
        api.patch(f"{NODES}/{name}", {"metadata": {"annotations": annotations}})
        left = deadline - time.monotonic()
        try:
            api.wait_for(
                f"{NODES}/{name}",
                lambda node: node is not None and is_ready(node) != not_ready,
                timeout_seconds=min(left, ASK_AGAIN_SECONDS),
                what="not ready" if not_ready else "ready",
            )
            return
        except TimeoutError:
            if left <= ASK_AGAIN_SECONDS:
                raise


def remove_taint(api: ApiClient, name: str, key: str = STARTUP_TAINT) -> None:
    """Take a taint off a node, where it has it."""
    node = api.get(f"{NODES}/{name}")
    taints = node["spec"].get("taints") or []
    left = [taint for taint in taints if taint["key"] != key]
    if left != taints:
        # The resource version makes a concurrent change of the taints a conflict instead of a lost update.
        body: dict[str, Any] = {
            "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
            "spec": {"taints": left or None},
        }
        api.patch(f"{NODES}/{name}", body)


def is_ready(node: Json) -> bool:
    """Whether the node's Ready condition is True."""
    conditions = node.get("status", {}).get("conditions") or []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def wait_schedulable(api: ApiClient, names: Iterable[str], *, timeout_seconds: float = 60.0) -> None:
    """Wait until every named node is ready and carries none of Kubernetes' own condition taints."""
    wanted = set(names)

    def all_schedulable(nodes: Json | None) -> bool:
        assert nodes is not None, "the collection of nodes always exists"  # noqa: S101 - for the type checker
        schedulable = {
            node["metadata"]["name"]
            for node in nodes["items"]
            if is_ready(node)
            and not any(taint["key"].startswith("node.kubernetes.io/") for taint in node["spec"].get("taints") or [])
        }
        return wanted <= schedulable

    api.wait_for(NODES, all_schedulable, timeout_seconds=timeout_seconds, what="all schedulable")


def release_node_leases(api: ApiClient) -> None:
    """Take a dead kwok's name off the simulated nodes' leases: the next one would wait until they run out.

    A node that has none yet gets one that nobody holds: what the dead kwok asked last may be carried out later still,
    and neither makes a lease that there is nor changes one that is newer than it knew.
    """

    def release(node: Json) -> None:
        name = node["metadata"]["name"]
        try:
            api.create(NODE_LEASES, {"metadata": {"name": name}, "spec": {}})
        except ApiError as refusal:
            if refusal.status != HTTPStatus.CONFLICT:
                raise
            api.patch(f"{NODE_LEASES}/{name}", {"spec": {"holderIdentity": None}})

    nodes = api.list_objects(NODES)
    api.for_each(release, (node for node in nodes if FAKE_NODE_ANNOTATION in node["metadata"].get("annotations", {})))
