"""The life of pods on simulated nodes, under the real Job controller, scheduler and garbage collector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flyball_testbed.controlplane.api import Json
from flyball_testbed.controlplane.nodes import create_nodes, gpu_node
from flyball_testbed.controlplane.stages import (
    EXIT_CODE_ANNOTATION,
    FAILED,
    OUTCOME_ANNOTATION,
    START_DELAY_ANNOTATION,
    STOPPED_ANNOTATION,
    SUCCEEDED,
)

from tests.support.control_plane import IsolatedCluster

BATCH = "/apis/batch/v1"
GATE = "flyball.dev/placement"


def indexed_job(name: str, pods: int, *, gpus: int = 8, gated: bool = False, grace_seconds: int = 600) -> Json:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    pod_spec: Json = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_seconds,
        "containers": [{"name": "train", "image": "example.com/train", "resources": resources}],
    }
    if gated:
        pod_spec["schedulingGates"] = [{"name": GATE}]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completionMode": "Indexed",
            "completions": pods,
            "parallelism": pods,
            "backoffLimit": 0,
            "template": {"spec": pod_spec},
        },
    }


def all_pods(count: int, condition: Callable[[Json], bool]) -> Callable[[Json | None], bool]:
    return lambda pods: pods is not None and len(pods["items"]) == count and all(map(condition, pods["items"]))


def is_running(pod: Json) -> bool:
    return pod["status"].get("phase") == "Running" and any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in pod["status"]["conditions"]
    )


def is_gated(pod: Json) -> bool:
    return any(
        condition["type"] == "PodScheduled" and condition.get("reason") == "SchedulingGated"
        for condition in pod["status"].get("conditions", [])
    )


def job_condition(kind: str) -> Callable[[Json | None], bool]:
    return lambda job: any(
        condition["type"] == kind and condition["status"] == "True"
        for condition in (job or {}).get("status", {}).get("conditions", [])
    )


def start_job(cluster: IsolatedCluster, name: str, pods: int, **keywords: Any) -> list[Json]:
    """An Indexed Job on `pods` nodes, once all its pods run."""
    cluster.add_nodes(pods, taints=())
    cluster.api.create(cluster.path("jobs", group=BATCH), indexed_job(name, pods, **keywords))
    running: list[Json] = cluster.api.wait_for(cluster.path("pods"), all_pods(pods, is_running), what="all running")[
        "items"
    ]
    return running


def annotate(cluster: IsolatedCluster, pod: Json, **annotations: str) -> None:
    cluster.api.patch(cluster.path("pods", pod["metadata"]["name"]), {"metadata": {"annotations": dict(annotations)}})


def container_end(pod: Json) -> Json:
    end: Json = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    return end


def test_a_gated_indexed_job_is_placed_by_its_node_selectors_and_completes_when_told(cluster: IsolatedCluster) -> None:
    nodes = cluster.add_nodes(3, taints=())
    cluster.api.create(cluster.path("jobs", group=BATCH), indexed_job("gpt2-1", 2, gated=True))
    pods = cluster.api.wait_for(cluster.path("pods"), all_pods(2, is_gated), what="all gated")["items"]

    # Reversed, so that a scheduler's own choice would not do.
    placement = dict(zip(sorted(pod["metadata"]["name"] for pod in pods), [nodes[2], nodes[0]], strict=True))
    for name, node in placement.items():
        cluster.api.patch(
            cluster.path("pods", name),
            [
                {"op": "add", "path": "/spec/nodeSelector", "value": {"kubernetes.io/hostname": node}},
                {"op": "remove", "path": "/spec/schedulingGates"},
            ],
            kind="json",
        )
    running = cluster.api.wait_for(cluster.path("pods"), all_pods(2, is_running), what="all running")["items"]
    assert {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in running} == placement
    job = cluster.api.get(cluster.path("jobs", "gpt2-1", BATCH))
    assert not job_condition("Complete")(job), "a job must not end before its trainer says so"

    for pod in running:
        annotate(cluster, pod, **{OUTCOME_ANNOTATION: SUCCEEDED})
    job = cluster.api.wait_for(cluster.path("jobs", "gpt2-1", BATCH), job_condition("Complete"), what="complete")
    assert job["status"]["completedIndexes"] == "0,1"
    assert job["status"]["succeeded"] == 2
    for pod in cluster.api.list_objects(cluster.path("pods")):
        assert pod["status"]["phase"] == SUCCEEDED
        assert container_end(pod)["exitCode"] == 0
        assert "finalizers" not in pod["metadata"], "the Job controller has counted it"


def test_an_unacknowledged_node_takes_no_job(cluster: IsolatedCluster) -> None:
    [node] = cluster.add_nodes(1)
    cluster.api.create(cluster.path("jobs", group=BATCH), indexed_job("waits-1", 1))
    refused = cluster.api.wait_for(
        cluster.path("pods"),
        all_pods(1, lambda pod: "untolerated taint" in str(pod["status"].get("conditions"))),
        what="refused by the taint",
    )["items"][0]
    assert "nodeName" not in refused["spec"]
    assert "flyball.dev/unacknowledged" in str(cluster.api.get(f"/api/v1/nodes/{node}")["spec"]["taints"])


def test_pods_that_are_bound_before_their_node_is_served_start_all_the_same(cluster: IsolatedCluster) -> None:
    # The simulated kubelet hears of the pods first, as it may in any order: a controller is quicker than it sometimes.
    for index in range(5):
        container = {"name": "train", "image": "example.com/train"}
        spec = {"nodeName": f"late-{cluster.namespace}", "containers": [container]}
        cluster.api.create(cluster.path("pods"), {"metadata": {"name": f"early-{index}"}, "spec": spec})
    create_nodes(cluster.api, [gpu_node(f"late-{cluster.namespace}")])
    cluster.api.wait_for(cluster.path("pods"), all_pods(5, is_running), what="all running")


@pytest.mark.parametrize(("annotations", "exit_code"), [({}, 1), ({EXIT_CODE_ANNOTATION: "42"}, 42)])
def test_a_failed_outcome_fails_the_job_with_its_exit_code(
    cluster: IsolatedCluster, annotations: dict[str, str], exit_code: int
) -> None:
    pods = start_job(cluster, "bert-1", 2)
    annotate(cluster, pods[0], **{OUTCOME_ANNOTATION: FAILED, **annotations})
    cluster.api.wait_for(cluster.path("jobs", "bert-1", BATCH), job_condition("FailureTarget"), what="failed")
    failed = cluster.api.get(cluster.path("pods", pods[0]["metadata"]["name"]))
    assert failed["status"]["phase"] == FAILED
    assert container_end(failed)["exitCode"] == exit_code
    started = pods[0]["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    assert container_end(failed)["startedAt"] == started, "the container's start is remembered"


def test_a_deleted_pod_with_gpus_stays_until_its_trainer_has_stopped(cluster: IsolatedCluster) -> None:
    pods = start_job(cluster, "vgg16-1", 2)
    cluster.api.delete(cluster.path("jobs", "vgg16-1", BATCH), propagation="Foreground")
    cluster.api.wait_for(
        cluster.path("pods"), all_pods(2, lambda pod: "deletionTimestamp" in pod["metadata"]), what="all being deleted"
    )
    first, second = (cluster.path("pods", pod["metadata"]["name"]) for pod in pods)
    annotate(cluster, pods[0], **{STOPPED_ANNOTATION: "true"})
    cluster.api.wait_gone(first)
    # The other still saves its state; its grace period is ten minutes.
    still = cluster.api.get(second)
    assert still["status"]["phase"] == "Running"
    assert cluster.api.get_or_none(cluster.path("jobs", "vgg16-1", BATCH)) is not None, "foreground: pods first"
    annotate(cluster, pods[1], **{STOPPED_ANNOTATION: "true"})
    cluster.api.wait_gone(second)
    cluster.api.wait_gone(cluster.path("jobs", "vgg16-1", BATCH))


def end_of_deleted_pod(cluster: IsolatedCluster, path: str, stop: Callable[[], object]) -> Json:
    """The last state in which a deleted pod was seen: a finalizer of ours keeps it for the look."""
    cluster.api.patch(path, {"metadata": {"finalizers": ["flyball.dev/test"]}})
    cluster.api.delete(path)
    stop()
    end = cluster.api.wait_for(path, lambda pod: pod is not None and pod["status"]["phase"] == FAILED, what="ended")
    cluster.api.patch(path, {"metadata": {"finalizers": None}})
    cluster.api.wait_gone(path)
    return end


def bare_pod(cluster: IsolatedCluster, gpus: int, grace_seconds: int) -> str:
    cluster.add_nodes(1, taints=())
    spec = indexed_job("x", 1, gpus=gpus, grace_seconds=grace_seconds)["spec"]["template"]["spec"]
    cluster.api.create(cluster.path("pods"), {"metadata": {"name": "bare"}, "spec": spec})
    cluster.api.wait_for(cluster.path("pods"), all_pods(1, is_running), what="running")
    return cluster.path("pods", "bare")


def test_a_pod_that_stops_in_time_exits_143(cluster: IsolatedCluster) -> None:
    path = bare_pod(cluster, gpus=8, grace_seconds=600)
    pod = cluster.api.get(path)
    end = end_of_deleted_pod(cluster, path, lambda: annotate(cluster, pod, **{STOPPED_ANNOTATION: "true"}))
    assert container_end(end)["exitCode"] == 143


def test_a_pod_that_does_not_stop_in_time_is_killed_with_137(cluster: IsolatedCluster) -> None:
    path = bare_pod(cluster, gpus=8, grace_seconds=2)
    end = end_of_deleted_pod(cluster, path, lambda: None)
    assert container_end(end)["exitCode"] == 137
    assert container_end(end)["finishedAt"] >= end["metadata"]["deletionTimestamp"], "not before its grace is over"


def test_readiness_that_the_node_controller_took_comes_back_as_a_kubelet_gives_it(cluster: IsolatedCluster) -> None:
    [pod] = start_job(cluster, "unheard", 1)
    path, conditions = cluster.path("pods", pod["metadata"]["name"]), pod["status"]["conditions"]
    taken = [{**item, "status": "False"} if item["type"] == "Ready" else item for item in conditions]
    assert not is_running(cluster.api.patch(f"{path}/status", {"status": {"conditions": taken}}))
    again = cluster.api.wait_for(path, lambda found: found is not None and is_running(found), what="ready again")
    assert again["metadata"]["uid"] == pod["metadata"]["uid"]
    assert again["status"]["containerStatuses"] == pod["status"]["containerStatuses"], "nothing else has changed"
    assert len(again["status"]["conditions"]) == len(conditions)


def test_a_pod_without_gpus_has_nothing_to_save(cluster: IsolatedCluster) -> None:
    path = bare_pod(cluster, gpus=0, grace_seconds=600)
    end = end_of_deleted_pod(cluster, path, lambda: None)
    assert container_end(end)["exitCode"] == 143


def test_the_start_delay_can_be_set_for_each_pod(cluster: IsolatedCluster) -> None:
    cluster.add_nodes(1, taints=())
    spec = indexed_job("x", 1, gpus=1)["spec"]["template"]["spec"]
    for name, delay in (("slow", "1h"), ("quick", "10ms")):
        metadata = {"name": name, "annotations": {START_DELAY_ANNOTATION: delay}}
        cluster.api.create(cluster.path("pods"), {"metadata": metadata, "spec": spec})
        cluster.api.wait_for(
            cluster.path("pods", name), lambda pod: bool(pod and pod["spec"].get("nodeName")), what="bound"
        )
    cluster.api.wait_for(cluster.path("pods", "quick"), lambda pod: pod is not None and is_running(pod))
    assert cluster.api.get(cluster.path("pods", "slow"))["status"]["phase"] == "Pending"


def test_an_event_during_the_start_neither_ends_nor_loses_the_pod(cluster: IsolatedCluster) -> None:
    cluster.add_nodes(1, taints=())
    spec = indexed_job("x", 1, gpus=1)["spec"]["template"]["spec"]
    metadata = {"name": "p", "annotations": {START_DELAY_ANNOTATION: "1s"}}
    cluster.api.create(cluster.path("pods"), {"metadata": metadata, "spec": spec})
    cluster.api.wait_for(cluster.path("pods", "p"), lambda pod: bool(pod and pod["spec"].get("nodeName")), what="bound")
    for turn in range(3):
        cluster.api.patch(cluster.path("pods", "p"), {"metadata": {"annotations": {"example.com/turn": str(turn)}}})
    pod = cluster.api.wait_for(cluster.path("pods", "p"), lambda pod: pod is not None and is_running(pod))
    assert pod["status"]["podIP"]
    assert pod["status"]["hostIP"]
