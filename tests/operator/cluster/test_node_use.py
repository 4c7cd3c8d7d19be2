"""Pods that hold no GPUs and belong to no job are kept as what they take of their nodes."""

from __future__ import annotations

import pytest
from flyball_api.workloads import DEFAULT_GPU_RESOURCES, Needs, read_pod
from flyball_operator.cluster.node_use import NOTHING, SPARE_USES, NodeUse, NodeUses

from tests.support.operator_objects import Json, raw_pod

HALF = Needs(cpu=500, memory=256 * 1024 * 1024 * 1000)


def web(name: str, node: str = "", cpu: str = "500m", phase: str = "Running", gpus: int = 0, uid: str = "") -> Json:
    """A pod that asks for CPUs and memory too."""
    pod = raw_pod(name, gpus=gpus, node=node, phase=phase, uid=uid)
    pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu, "memory": "256Mi"}
    return pod


def on_part(pod: Json) -> Json:
    """The same pod on a MIG instance."""
    pod["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/mig-1g.5gb": "1"}
    return pod


@pytest.mark.parametrize(
    ("pod", "kept"),
    [
        (web("runs", "a"), NodeUse("a", HALF)),
        (web("waits"), NOTHING),
        (web("ended", "a", phase="Succeeded"), NOTHING),
        (web("crashed", "a", phase="Failed"), NOTHING),
        (raw_pod("modest", gpus=0, node="a"), NOTHING),
    ],
    ids=lambda value: value["metadata"]["name"] if isinstance(value, dict) else "",
)
def test_a_pod_without_gpus_is_what_it_takes_of_its_node(pod: Json, kept: NodeUse) -> None:
    assert NodeUses(DEFAULT_GPU_RESOURCES).read(pod) == kept


@pytest.mark.parametrize(
    "pod",
    [
        web("trains", "a", gpus=1),
        web("done", "a", gpus=1, phase="Failed"),
        web("rank", uid="uid-train"),
        on_part(web("slice", "a")),
    ],
    ids=lambda pod: pod["metadata"]["name"],
)
def test_a_pod_that_holds_gpus_or_may_be_a_jobs_is_kept_whole(pod: Json) -> None:
    assert NodeUses(DEFAULT_GPU_RESOURCES).read(pod) == read_pod(pod)


def test_those_that_take_the_same_of_the_same_node_are_one_object() -> None:
    uses = NodeUses(DEFAULT_GPU_RESOURCES)
    kept = [uses.read(web(f"pod-{index}", f"node-{index % 3}")) for index in range(300)]
    assert len({id(item) for item in kept}) == 3


def test_what_no_pod_takes_any_more_is_forgotten() -> None:
    """Nodes come and go, and so do the sizes of pods."""
    uses = NodeUses(DEFAULT_GPU_RESOURCES)
    for index in range(3 * SPARE_USES):
        stays, gone = uses.read(web("stays", "a")), uses.read(web("gone", f"node-{index}"))
        assert isinstance(stays, NodeUse)
        assert isinstance(gone, NodeUse)
        assert uses.used([stays], ()) == {"a": HALF}
    assert len(uses) <= SPARE_USES + 2
    assert uses.read(web("stays", "a")) is stays


def test_what_is_used_of_a_node_is_the_sum_over_all_pods_that_are_not_flyballs() -> None:
    uses = NodeUses(DEFAULT_GPU_RESOURCES)
    others = [
        web("one", "a"),
        web("two", "a"),
        web("three", "b", cpu="2"),
        web("four"),
        web("five", "a", phase="Failed"),
    ]
    whole = [web("plain", "b", gpus=1), web("left", "b", gpus=1, phase="Succeeded"), web("pending", gpus=1)]
    kept = [item for item in map(uses.read, others) if isinstance(item, NodeUse)]
    assert len(kept) == len(others)
    used = uses.used(kept, map(read_pod, whole))
    assert used == {"a": HALF * 2, "b": HALF * 2 + Needs(cpu=1500)}
    assert uses.used([], ()) == {}
