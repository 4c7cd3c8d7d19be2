"""What is no EnergyAwareJob lives under a cap too: plain Jobs on a running site, and whose energy it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flyball_testbed.controlplane.api import Json

from tests.support.site_bench import GROUP, Bench

GPUS, DEFAULT_WATTS = 4, 400


@pytest.fixture
def plain_job(bench: Bench) -> Iterator[Callable[..., str]]:
    """Makes Jobs of one pod with four GPUs, and gives their paths; they are deleted at the end."""
    paths = []

    def make(name: str, annotations: Json | None = None, labels: Json | None = None, **spec: Any) -> str:
        container = {"name": "main", "image": "somebodys", "resources": {"limits": {"nvidia.com/gpu": str(GPUS)}}}
        template = {
            "metadata": {"labels": {"tier": "batch"}},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
        metadata = {"name": name, "annotations": annotations or {}, "labels": labels or {}}
        jobs = f"/apis/batch/v1/namespaces/{bench.namespace}/jobs"
        bench.api.create(jobs, {"metadata": metadata, "spec": {"template": template, **spec}})
        paths.append(f"{jobs}/{name}")
        return paths[-1]

    yield make
    for path in paths:
        bench.api.delete(path, propagation="Background")


def limits_of(bench: Bench, prefix: str) -> list[float]:
    """The limits in watts of the GPUs that pods of that prefix hold, as their agents read them back."""
    return [
        device["limits"]["enforcedMilliwatts"] / 1000
        for node in bench.gpu_nodes()
        for device in (node.get("status") or {}).get("devices") or ()
        if (device.get("pod") or {}).get("namespace") == bench.namespace
        and device["pod"]["name"].startswith(f"{prefix}-")
    ]


def wait_limits(bench: Bench, prefix: str, least: float, most: float) -> None:
    def there() -> bool:
        limits = limits_of(bench, prefix)
        return len(limits) == GPUS and all(least <= limit <= most for limit in limits)

    bench.wait(there, lambda: f"{prefix}'s GPUs between {least} and {most} W: {limits_of(bench, prefix)}")


def told(bench: Bench, name: str, kind: str = "Job") -> list[tuple[str, str]]:
    """The Events about a Job, or a Pod whose name begins so, that are Flyball's: reason and note."""
    events = bench.api.list_objects(f"/apis/events.k8s.io/v1/namespaces/{bench.namespace}/events")
    return [
        (event["reason"], event["note"])
        for event in events
        if event["regarding"]["kind"] == kind
        and event["regarding"]["name"].startswith(name)
        and event.get("reportingController") == "flyball.dev/operator"
    ]


def owned(bench: Bench, owner: str) -> int:
    """What the books of energy have of that owner, in millijoules."""
    books: list[Json] = bench.api.list_objects(f"{GROUP}/energyreports")
    return sum(
        int(entry["millijoules"])
        for raw in books
        for entry in raw["spec"].get("owners", ())
        if (entry["namespace"], entry["owner"]) == (bench.namespace, owner)
    )


def test_a_plain_job_keeps_its_watts_while_there_are_some_and_is_cut_in_proportion(
    bench: Bench, plain_job: Callable[..., str]
) -> None:
    bench.set_cap("row", 9000)
    bench.wait_enforced("row", 9000)
    plain_job("plain")
    wait_limits(bench, "plain", DEFAULT_WATTS, DEFAULT_WATTS)
    bench.submit("ours", gpus=(GPUS, GPUS), iterations=10_000_000, objective="Time")
    bench.wait_running("ours")
    wait_limits(bench, "plain", DEFAULT_WATTS, DEFAULT_WATTS)

    # 24 GPUs idle at 100 W: 1,600 W are left to eight.
    bench.set_cap("row", 4000)
    bench.wait_enforced("row", 4000)
    wait_limits(bench, "plain", 200, 200)
    wait_limits(bench, "ours", 101, 200)
    assert bench.limits_watts() <= 4000
    words = f"each of its 4 GPUs may draw 200 W, by default 400 W: it is under PowerCap {bench.cap_name('row')}"
    bench.wait(
        lambda: any(why == "PowerLimited" and words in note for why, note in told(bench, "plain-", "Pod")),
        lambda: f"its owner sees why: {told(bench, 'plain-', 'Pod')}",
    )
    # Four weigh 500: of twelve halves each of theirs gets one.
    bench.set_cap("row", 4000, foreignWeights=[{"namespace": bench.namespace, "permille": 500}])
    wait_limits(bench, "plain", 133, 133)
    wait_limits(bench, "ours", 101, 266)
    # The same by a label of its pod, which has what its namespace has once the label is gone.
    of_tier = {"selector": {"matchLabels": {"tier": "batch"}}, "permille": 750}
    bench.set_cap("row", 4000, foreignWeights=[{"namespace": bench.namespace, "permille": 1000, "pods": [of_tier]}])
    wait_limits(bench, "plain", 171, 171)
    (pod,) = bench.api.list_objects(f"/api/v1/namespaces/{bench.namespace}/pods", labelSelector="tier=batch")
    path = f"/api/v1/namespaces/{bench.namespace}/pods/{pod['metadata']['name']}"
    bench.api.patch(path, {"metadata": {"labels": {"tier": None}}})
    wait_limits(bench, "plain", 200, 200)
    bench.wait_enforced("row", 4000)
    assert bench.limits_watts() <= 4000

    bench.wait(lambda: owned(bench, "Job/plain") > 0, lambda: "the books have what the plain Job used")
    assert bench.judged_seconds("row") > 1
    assert bench.overshoot_watts("row") == 0


def test_a_suspended_job_is_let_run_once_the_cap_has_its_watts(bench: Bench, plain_job: Callable[..., str]) -> None:
    # 28 GPUs idle at 100 W: 800 W are left to the Job's four.
    bench.set_cap("row", 3600)
    bench.wait_enforced("row", 3600)
    path = plain_job("batch", {"flyball.dev/watts-per-gpu": "300"}, {"flyball.dev/admission": "by-power"}, suspend=True)
    words = ("WaitingForWatts", "each of its GPUs would get 200 W, and it asks for 300 W")
    bench.wait(lambda: words in told(bench, "batch"), lambda: f"it is told why it waits: {told(bench, 'batch')}")
    assert bench.api.get(path)["spec"]["suspend"]
    assert not limits_of(bench, "batch")
    bench.set_cap("row", 9000)
    wait_limits(bench, "batch", DEFAULT_WATTS, DEFAULT_WATTS)
    assert not bench.api.get(path)["spec"]["suspend"]
    words = ("Admitted", "1 pod with 4 GPUs may run; each of its GPUs may draw 400 W now")
    bench.wait(lambda: words in told(bench, "batch"), lambda: f"it is told that it runs: {told(bench, 'batch')}")
    # Who does not ask for it is left alone.
    other = plain_job("by-hand", suspend=True)
    second = plain_job("second", labels={"flyball.dev/admission": "by-power"}, suspend=True)
    bench.wait(lambda: not bench.api.get(second)["spec"]["suspend"], lambda: "the second one runs")
    assert bench.api.get(other)["spec"]["suspend"]
    assert bench.overshoot_watts("row") == 0
