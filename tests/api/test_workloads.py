"""Nodes, pods and Jobs out of raw API objects."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_api.workloads import read_incarnation, read_node, read_pod

from tests.support.operator_objects import A100, Json, raw_batch_job, raw_node, raw_pod


def test_a_node() -> None:
    raw = raw_node("a", 8, taints=[{"key": "flyball.dev/unacknowledged", "effect": "NoSchedule"}])
    view = read_node(raw)
    assert (view.name, view.hostname, view.gpus, view.product) == ("a", "a", 8, A100)
    assert (view.ready, view.cordoned, view.startup_taint) == (True, False, True)


def test_the_boot_in_which_a_kubelet_reported() -> None:
    raw = raw_node("a")
    assert read_node(raw).boot_id == ""
    raw["status"]["nodeInfo"] = {"bootID": "0c7e", "kernelVersion": "6.1"}
    assert read_node(raw).boot_id == "0c7e"


def test_a_node_that_is_away() -> None:
    view = read_node(raw_node("a", 0, ready=False, unschedulable=True))
    assert (view.gpus, view.ready, view.cordoned, view.startup_taint) == (0, False, True, False)


def test_a_node_that_says_nothing() -> None:
    view = read_node({"metadata": {"name": "a"}})
    assert (view.hostname, view.gpus, view.product, view.ready) == ("a", 0, "", False)


def test_a_pod_of_ours() -> None:
    view = read_pod(raw_pod("p", uid="uid-train", incarnation=2, index=3, gpus=4, gated=True))
    assert (view.job_uid, view.incarnation, view.index, view.gpus) == ("uid-train", 2, 3, 4)
    assert (view.gated, view.finished, view.deleting, view.node) == (True, False, False, "")


def test_a_foreign_pod() -> None:
    view = read_pod(raw_pod("theirs", node="a", gpus=2, phase="Running", deleting=True))
    assert (view.job_uid, view.node, view.gpus, view.deleting) == ("", "a", 2, True)


@pytest.mark.parametrize(
    ("containers", "init", "gpus"), [((1, 2), (), 3), ((1,), (4,), 4), ((2, 2), (3, 1), 4), ((), (), 0)]
)
def test_gpus_are_counted_as_the_kubelet_does(containers: tuple[int, ...], init: tuple[int, ...], gpus: int) -> None:
    def made(counts: tuple[int, ...]) -> list[Json]:
        return [{"resources": {"limits": {"nvidia.com/gpu": str(count)}}} for count in counts]

    raw = raw_pod("p")
    raw["spec"] = {"containers": made(containers), "initContainers": made(init)}
    assert read_pod(raw).gpus == gpus


def ended(**codes: int | None) -> Json:
    """A pod with these containers, the first of which is the trainer, and how they ended."""
    raw = raw_pod("p", phase="Failed")
    raw["spec"]["containers"] = [{"name": name} for name in codes]
    raw["status"]["containerStatuses"] = [
        {"name": name, "state": {"running": {}} if code is None else {"terminated": {"exitCode": code}}}
        for name, code in sorted(codes.items(), reverse=True)
    ]
    return raw


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ({"trainer": 1, "sidecar": 143}, 1),
        ({"trainer": 143, "sidecar": 1}, 143),
        ({"trainer": 0, "sidecar": 1}, 0),
        ({"trainer": None, "sidecar": 9}, 9),
        ({"trainer": None}, None),
    ],
)
def test_the_trainers_exit_code_is_the_pods(codes: dict[str, Any], code: int | None) -> None:
    assert read_pod(ended(**codes)).exit_code == code


def test_an_evicted_pod_has_no_exit_code() -> None:
    assert read_pod(raw_pod("p", phase="Failed")).exit_code is None


@pytest.mark.parametrize(
    ("condition", "complete", "failed"),
    [
        ("", False, False),
        ("Complete", True, False),
        ("SuccessCriteriaMet", True, False),
        ("Failed", False, True),
        ("FailureTarget", False, True),
        ("Suspended", False, False),
    ],
)
def test_a_jobs_end(condition: str, complete: bool, failed: bool) -> None:
    view = read_incarnation(raw_batch_job("uid-train", 2, (("a", 4), ("b", 4)), condition=condition, message="why"))
    assert (view.complete, view.failed) == (complete, failed)
    assert view.failure == ("why" if failed else "")
    assert (view.job_uid, view.incarnation, view.gpus) == ("uid-train", 2, 8)


def test_a_condition_that_does_not_hold_says_nothing() -> None:
    raw = raw_batch_job("uid-train", 1, (("a", 4),), condition="Failed")
    raw["status"]["conditions"][0]["status"] = "False"
    assert not read_incarnation(raw).failed


@pytest.mark.parametrize(
    "annotation", [None, "", "[]", "{}", '{"nodes": 5}', '{"nodes": [["a"]]}', '{"nodes": [["a", "x"]]}']
)
def test_a_damaged_allocation_is_one_without_nodes(annotation: str | None) -> None:
    raw = raw_batch_job("uid-train", 1, ())
    if annotation is None:
        del raw["metadata"]["annotations"]
    else:
        raw["metadata"]["annotations"] = {"flyball.dev/allocation": annotation}
    view = read_incarnation(raw)
    assert (view.name, view.incarnation, view.nodes) == ("train-1", 1, ())


def test_gpus_are_counted_under_every_name_that_they_go_by() -> None:
    raw = raw_node("a", 8, resource="example.com/gpu")
    raw["status"]["capacity"]["nvidia.com/gpu"] = "2"
    assert (read_node(raw).gpus, read_node(raw).gpu_resources) == (2, {"nvidia.com/gpu"})
    both = read_node(raw, ["nvidia.com/gpu", "example.com/gpu"])
    assert (both.gpus, both.gpu_resources) == (10, {"nvidia.com/gpu", "example.com/gpu"})
    pod = raw_pod("p", gpus=0)
    pod["spec"]["containers"] = [
        {"resources": {"limits": {"nvidia.com/gpu": "1"}}},
        {"resources": {"limits": {"example.com/gpu": "4"}}},
    ]
    pod["spec"]["initContainers"] = [{"resources": {"limits": {"nvidia.com/gpu": "3"}}}]
    assert read_pod(pod).gpus == 3
    assert read_pod(pod, ["nvidia.com/gpu", "example.com/gpu"]).gpus == 7
