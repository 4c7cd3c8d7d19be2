"""Pods out of raw API objects."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_api.workloads import read_pod

from tests.support.operator_objects import Json, raw_pod


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
    ("inits", "containers", "gpus"),
    [
        ([("Always", 1)], [1], 2),
        ([("Always", 1), ("", 4)], [1], 5),
        ([("", 4), ("Always", 1)], [1], 4),
        ([("Always", 1), ("", 2), ("Always", 1)], [2], 4),
    ],
)
def test_gpus_of_sidecars_are_held_beside_the_others(
    inits: list[tuple[str, int]], containers: list[int], gpus: int
) -> None:
    """Whoever takes them for free plans jobs on them that can never start."""
    pod = raw_pod("p", gpus=0)
    pod["spec"]["containers"] = [{"resources": {"limits": {"nvidia.com/gpu": str(asked)}}} for asked in containers]
    pod["spec"]["initContainers"] = [
        {"restartPolicy": policy, "resources": {"limits": {"nvidia.com/gpu": str(asked)}}} for policy, asked in inits
    ]
    assert read_pod(pod).gpus == gpus


def test_a_pods_gpus_are_counted_under_every_name_that_they_go_by() -> None:
    pod = raw_pod("p", gpus=0)
    pod["spec"]["containers"] = [
        {"resources": {"limits": {"nvidia.com/gpu": "1"}}},
        {"resources": {"limits": {"example.com/gpu": "4"}}},
    ]
    pod["spec"]["initContainers"] = [{"resources": {"limits": {"nvidia.com/gpu": "3"}}}]
    assert read_pod(pod).gpus == 3
    assert read_pod(pod, ["nvidia.com/gpu", "example.com/gpu"]).gpus == 7
