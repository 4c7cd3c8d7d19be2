"""Simulated nodes as the scheduler and the controllers see them."""

from __future__ import annotations

import json

import pytest
from flyball_api.names import LABEL_GPU_PRODUCT
from flyball_testbed.controlplane import nodes
from flyball_testbed.controlplane.api import Json
from flyball_testbed.controlplane.nodes import (
    NODES,
    create_nodes,
    gpu_node,
    is_ready,
    remove_taint,
    set_cordoned,
    set_not_ready,
)

from tests.support.control_plane import IsolatedCluster


def taint_keys(node: Json | None) -> set[str]:
    return {taint["key"] for taint in (node or {}).get("spec", {}).get("taints") or []}


def test_a_gpu_node_has_its_label_its_gpus_and_the_startup_taint(cluster: IsolatedCluster) -> None:
    [name] = cluster.add_nodes(1, gpus=4, product="NVIDIA-H100-80GB-HBM3")
    node = cluster.api.get(f"{NODES}/{name}")
    assert node["metadata"]["labels"][LABEL_GPU_PRODUCT] == "NVIDIA-H100-80GB-HBM3"
    assert node["status"]["capacity"]["nvidia.com/gpu"] == "4"
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "4"
    assert taint_keys(node) == {"flyball.dev/unacknowledged"}
    assert is_ready(node)
    remove_taint(cluster.api, name)
    assert taint_keys(cluster.api.get(f"{NODES}/{name}")) == set()


def test_a_node_without_gpus_gets_no_agent(cluster: IsolatedCluster) -> None:
    create_nodes(cluster.api, [gpu_node("cpu-only", gpus=0)])
    [with_gpus] = cluster.add_nodes(1)
    assert taint_keys(cluster.api.get(f"{NODES}/cpu-only")) <= {"node.kubernetes.io/not-ready"}
    assert set(cluster.devcluster.agent_pods([with_gpus])) == {with_gpus}
    [daemon_set] = cluster.api.list_objects("/apis/apps/v1/daemonsets")
    cluster.api.wait_for(
        cluster.api.path_of({**daemon_set, "apiVersion": "apps/v1", "kind": "DaemonSet"}),
        lambda found: found is not None and found["status"].get("numberReady") == 1,
        what="ready on the one node with GPUs",
    )
    assert daemon_set["metadata"]["name"] == "flyball-agent"


def test_a_name_never_comes_again(cluster: IsolatedCluster) -> None:
    first = cluster.add_nodes(2)
    cluster.devcluster.delete_nodes(first[:1], with_pods=True)
    second = cluster.add_nodes(2)
    assert set(first).isdisjoint(second)
    assert cluster.devcluster.node_names() == sorted([first[1], *second])


def test_a_node_goes_down_and_comes_back(cluster: IsolatedCluster) -> None:
    [name] = cluster.add_nodes(1)
    set_not_ready(cluster.api, name)
    cluster.api.wait_for(
        f"{NODES}/{name}", lambda node: "node.kubernetes.io/not-ready" in taint_keys(node), what="tainted as not ready"
    )
    set_not_ready(cluster.api, name, not_ready=False)
    cluster.api.wait_for(
        f"{NODES}/{name}", lambda node: "node.kubernetes.io/not-ready" not in taint_keys(node), what="no longer tainted"
    )


def test_what_kwok_passed_over_is_asked_again(cluster: IsolatedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    [name] = cluster.add_nodes(1)
    send, asked = cluster.api.patch, []

    def pass_over_the_first(path: str, body: Json) -> Json:
        asked.append(body)
        return send(path, body) if len(asked) > 1 else {}

    monkeypatch.setattr(cluster.api, "patch", pass_over_the_first)
    monkeypatch.setattr(nodes, "ASK_AGAIN_SECONDS", 0.5)
    set_not_ready(cluster.api, name)
    assert not is_ready(cluster.api.get(f"{NODES}/{name}"))
    assert len({json.dumps(body) for body in asked}) == len(asked) > 1, "the same once more would be no change to see"
    monkeypatch.undo()
    set_not_ready(cluster.api, name, not_ready=False)


def test_a_cordoned_node_takes_no_pods_until_uncordoned(cluster: IsolatedCluster) -> None:
    [name] = cluster.add_nodes(1, taints=())
    set_cordoned(cluster.api, name)
    spec = {"containers": [{"name": "c", "image": "example.com/c"}]}
    cluster.api.create(cluster.path("pods"), {"metadata": {"name": "p"}, "spec": spec})
    cluster.api.wait_for(
        cluster.path("pods", "p"),
        lambda pod: any("unschedulable" in c.get("message", "") for c in (pod or {})["status"].get("conditions", [])),
        what="refused",
    )
    set_cordoned(cluster.api, name, cordoned=False)
    cluster.api.wait_for(cluster.path("pods", "p"), lambda pod: (pod or {})["spec"].get("nodeName") == name)


def test_nodes_keep_their_lease(cluster: IsolatedCluster) -> None:
    [name] = cluster.add_nodes(1)
    lease = cluster.api.wait_for(
        f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}", lambda lease: lease is not None
    )
    assert lease["spec"]["leaseDurationSeconds"] == 40
    assert [owner["name"] for owner in lease["metadata"]["ownerReferences"]] == [name]
