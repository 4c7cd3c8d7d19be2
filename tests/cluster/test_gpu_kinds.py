"""GPUs that are handed out in parts, and jobs of three times a power of two of them: on a running site."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flyball_testbed.controlplane.stages import MIG_RESOURCE
from flyball_testbed.workload.sharing import Sharing, share_gpus

from tests.support.site_bench import Bench, condition, is_enforced_at, reason

SHARED_NODE = "node-003"
LONG = 10_000_000


def shape(raw: dict[str, Any]) -> list[int]:
    """The GPUs of each node that a job runs on."""
    return [node["gpus"] for node in raw["status"]["applied"]["nodes"]]


def granted(bench: Bench, name: str) -> list[int]:
    """The GPUs for which grants name pods of a job, node by node."""
    return [job["gpus"] for node in bench.gpu_nodes() for job in node["spec"].get("jobs") or () if job["name"] == name]


def test_jobs_of_three_times_a_power_of_two_run_from_the_plan_to_the_grant(bench: Bench) -> None:
    bench.set_cap("row", 9000)
    sizes = {"three": [3], "six": [6], "twelve": [6, 6]}
    for name, each in sizes.items():
        bench.submit(name, gpus=(sum(each), sum(each)), iterations=LONG)
    for name, each in sizes.items():
        assert shape(bench.wait_running(name, sum(each))) == each
        assert granted(bench, name) == each
        bench.wait_job(name, lambda raw: (raw or {})["status"]["progress"]["iterations"] > 0, "trains")
    pods = [pod for pod in bench.objects("pods") if pod["metadata"]["name"].startswith("twelve-")]
    assert [pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in pods] == ["6", "6"]
    for name in sizes:
        bench.api.delete(bench.path(name))
    bench.submit("all", gpus=(24, 24), iterations=LONG)
    bench.submit("grows", gpus=(3, 6), iterations=LONG, objective="Time")
    assert shape(bench.wait_running("all", 24)) == [8, 8, 8]
    assert shape(bench.wait_running("grows", 6)) == [6]
    bench.wait_enforced("row", 9000)
    assert bench.overshoot_watts("row") == 0


@pytest.fixture
def shared_nodes(bench: Bench) -> Iterator[Callable[[str, Sharing], None]]:
    """Has nodes hand out their GPUs otherwise for the time of the test."""
    changed: set[str] = set()

    def share(node: str, sharing: Sharing) -> None:
        changed.add(node)
        share_gpus(bench.api, bench.site.hardware, node, sharing)

    def whole_again(node: str) -> bool:
        try:
            share(node, Sharing.WHOLE)
        except ValueError:  # its kubelet has not taken back yet what the pods held
            return False
        return True

    yield share
    for pod in bench.objects("pods"):
        if pod["spec"].get("nodeName") in changed:
            bench.api.delete(f"/api/v1/namespaces/{bench.namespace}/pods/{pod['metadata']['name']}", grace_seconds=0)
    for node in sorted(changed):
        bench.wait(lambda node=node: whole_again(node), lambda node=node: f"{node} drained")  # type: ignore[misc]


def watts_of(bench: Bench, node: str, pod: str) -> list[float]:
    """The limits of the boards on which the agent of a node sees a pod, in watts."""
    raw = next(item for item in bench.gpu_nodes() if item["metadata"]["name"] == node)
    return [
        device["limits"]["enforcedMilliwatts"] / 1000
        for device in raw["status"]["devices"]
        if (device.get("pod") or {}).get("name") == pod
    ]


@pytest.mark.parametrize(
    ("sharing", "resource"),
    [
        (Sharing.TIME_SLICING, "nvidia.com/gpu"),
        (Sharing.MPS, "nvidia.com/gpu"),
        (Sharing.MIG, MIG_RESOURCE),
    ],
)
def test_gpus_that_are_handed_out_in_parts_count_by_their_boards(
    bench: Bench, shared_nodes: Callable[[str, Sharing], None], sharing: Sharing, resource: str
) -> None:
    bench.set_cap("row", 6000)
    bench.wait_enforced("row", 6000)
    shared_nodes(SHARED_NODE, sharing)
    container = {"name": "main", "image": "somebodys", "resources": {"limits": {resource: "2"}}}
    spec = {"restartPolicy": "Never", "nodeName": SHARED_NODE, "containers": [container]}
    pods = f"/api/v1/namespaces/{bench.namespace}/pods"
    bench.api.create(pods, {"metadata": {"name": "notebook"}, "spec": spec})
    # Two boards of 32 have a pod: with 30 others at 100 W, 6 kW leave them their default limit.
    bench.wait(
        lambda: watts_of(bench, SHARED_NODE, "notebook") == [400, 400],
        lambda: f"two boards at 400 W, not {watts_of(bench, SHARED_NODE, 'notebook')}",
    )
    # A job that needs whole GPUs gets none there, and all of the other nodes.
    bench.submit("whole", gpus=(8, 8), iterations=LONG)
    bench.submit("beside", gpus=(16, 16), iterations=LONG)
    for name in ("whole", "beside"):
        raw = bench.wait_running(name)
        assert SHARED_NODE not in [node["name"] for node in raw["status"]["applied"]["nodes"]]
    bench.submit("waits", gpus=(8, 8), iterations=LONG)
    bench.wait_job("waits", lambda raw: condition(raw, "Admitted") == "False", "waits")
    assert reason(bench.job("waits"), "Admitted") in ("WaitingForGpus", "NoNodeFits")
    # The cap holds with every board counted once: neither 24 phantoms nor none.
    bench.set_cap("row", 4000)
    bench.wait(
        lambda: is_enforced_at(bench.cap("row"), 4000), lambda: f"held: {(bench.cap('row') or {}).get('status')}"
    )
    assert bench.limits_watts() <= 4000
    assert bench.overshoot_watts("row") == 0
