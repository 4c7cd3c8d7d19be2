"""Failures of training on the real control plane: counted once each, whoever leads, and told from what others do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from flyball_testbed.controlplane.api import Json
from flyball_testbed.controlplane.nodes import delete_nodes, pod_path, set_cordoned, set_not_ready
from flyball_testbed.controlplane.stages import EXIT_CODE_ANNOTATION, OUTCOME_ANNOTATION
from flyball_testbed.parts import OPERATOR

from tests.support.site_bench import Bench, condition, message

LONG = 1_000_000


def running_pod(bench: Bench) -> Json:
    """A pod of the test's that runs, and that nobody has told to end."""
    found: list[Json] = []

    def runs() -> bool:
        found[:] = [
            pod
            for pod in bench.objects("pods")
            if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
        ]
        return bool(found)

    bench.wait(runs, lambda: f"a pod that runs: {[pod['status'] for pod in bench.objects('pods')]}")
    return found[0]


def crash(bench: Bench, exit_code: int = 1) -> None:
    """Let a running trainer end."""
    pod = running_pod(bench)["metadata"]
    annotations = {OUTCOME_ANNOTATION: "Failed", EXIT_CODE_ANNOTATION: str(exit_code)}
    bench.api.patch(
        f"/api/v1/namespaces/{bench.namespace}/pods/{pod['name']}", {"metadata": {"annotations": annotations}}
    )


def wait_incarnation(bench: Bench, name: str, number: int) -> dict[str, Any]:
    """The status of a job once its pods run as this incarnation."""

    def runs(raw: Json | None) -> bool:
        applied = ((raw or {}).get("status") or {}).get("applied") or {}
        return bool(applied.get("incarnation") == number)

    return dict(bench.wait_job(name, runs, f"running as incarnation {number}")["status"])


def reasons(bench: Bench, name: str) -> list[str]:
    """Reasons of the Events about a job."""
    return [reason for _, reason, _ in bench.events(name)]


def energy_is_known(raw: Json | None) -> bool:
    """Whether something is counted of the job's first incarnation, or all of it has been."""
    energy = ((raw or {}).get("status") or {}).get("energy") or {}
    counted = any(entry["key"].startswith("1/") for entry in energy.get("incarnations") or ())
    return counted or energy.get("settledIncarnation", 0) >= 1


def test_a_crash_counts_and_the_next_incarnation_goes_on(bench: Bench) -> None:
    bench.submit("shaky", gpus=(4, 4), iterations=LONG)
    wait_incarnation(bench, "shaky", 1)
    bench.wait_job("shaky", energy_is_known, "its energy counted")
    crash(bench)
    status = wait_incarnation(bench, "shaky", 2)
    assert (status["restarts"], status["lastFailedIncarnation"]) == (1, 1)
    bench.wait(lambda: "Restarting" in reasons(bench, "shaky"), lambda: f"told so; {reasons(bench, 'shaky')}")
    assert energy_is_known({"status": status})


def test_what_a_program_said_at_its_end_stands_in_the_status_and_in_an_event(bench: Bench) -> None:
    bench.submit("spoke", gpus=(2, 2), iterations=LONG)
    wait_incarnation(bench, "spoke", 1)
    pod = running_pod(bench)
    words = "x" * 3000 + " CUDA out of memory"
    terminated = {"exitCode": 1, "reason": "Error", "message": words}
    container = {**pod["status"]["containerStatuses"][0], "ready": False, "state": {"terminated": terminated}}
    bench.api.patch(
        f"/api/v1/namespaces/{bench.namespace}/pods/{pod['metadata']['name']}/status",
        {"status": {"phase": "Failed", "containerStatuses": [container]}},
    )
    (failure,) = wait_incarnation(bench, "spoke", 2)["failures"]
    assert (failure["incarnation"], failure["exitCode"], failure["counted"]) == (1, 1, True)
    assert (failure["pod"], failure["node"]) == (pod["metadata"]["name"], pod["spec"]["nodeName"])
    assert failure["message"].endswith(" CUDA out of memory")
    assert len(failure["message"]) < len(words), "its end alone"
    bench.wait_told("spoke", "Warning", "Restarting", "exit code 1", "CUDA out of memory", "restart 1 of 3")


def test_the_last_crash_ends_the_job_and_leaves_its_pod_to_be_looked_at(bench: Bench) -> None:
    bench.submit("hopeless", gpus=(2, 2), iterations=LONG, failurePolicy={"maxRestarts": 0})
    bench.wait_running("hopeless")
    crash(bench, exit_code=3)
    raw = bench.wait_job(
        "hopeless", lambda raw: ((raw or {}).get("status") or {}).get("state") == "Failed", "failed for good"
    )
    assert "exit code 3" in raw["status"]["explanation"]
    assert [pod["status"]["phase"] for pod in bench.objects("pods")] == ["Failed"]
    bench.wait_at_floor()
    bench.wait(lambda: "Failed" in reasons(bench, "hopeless"), lambda: f"told so; {reasons(bench, 'hopeless')}")


def test_a_pod_that_somebody_deletes_does_not_count(bench: Bench) -> None:
    bench.submit("drained", gpus=(16, 16), iterations=LONG)
    wait_incarnation(bench, "drained", 1)
    bench.api.delete(f"/api/v1/namespaces/{bench.namespace}/pods/{running_pod(bench)['metadata']['name']}")
    status = wait_incarnation(bench, "drained", 2)
    assert status["restarts"] == 0
    assert [(item["counted"], item["reason"]) for item in status["failures"]] == [(False, "Deleted")]


def ends_at_once(exit_code: int) -> dict[str, Any]:
    """A pod template whose program ends with this exit code as soon as it is started."""
    annotations = {OUTCOME_ANNOTATION: "Failed", EXIT_CODE_ANNOTATION: str(exit_code)}
    trainer = {"name": "trainer", "image": "example.org/trainer"}
    return {"metadata": {"annotations": annotations}, "spec": {"containers": [trainer]}}


def test_a_loop_of_clean_looking_exits_ends_after_its_restarts(bench: Bench) -> None:
    bench.submit("loop", gpus=(2, 2), iterations=LONG, failurePolicy={"maxRestarts": 2}, template=ends_at_once(143))
    raw = bench.wait_job(
        "loop", lambda raw: ((raw or {}).get("status") or {}).get("state") == "RestartBackOff", "between two starts"
    )
    assert "exit code 143" in raw["status"]["explanation"]
    assert "; the next start is at 2" in raw["status"]["explanation"]
    raw = bench.wait_job("loop", lambda raw: condition(raw, "Failed") == "True", "failed for good")
    status = raw["status"]
    assert (status["restarts"], status["allocation"]["incarnation"]) == (2, 3)
    assert [(item["incarnation"], item["exitCode"], item["counted"]) for item in status["failures"]] == [
        (3, 143, True),
        (2, 143, True),
        (1, 143, True),
    ]
    assert "exit code 143; failurePolicy.maxRestarts 2 allows no further restart" in message(raw, "Failed")
    bench.wait(lambda: "Restarting" in reasons(bench, "loop"), lambda: f"told so; {reasons(bench, 'loop')}")
    bench.wait(
        lambda: [pod["metadata"]["name"] for pod in bench.objects("pods")] == [status["failures"][0]["pod"]],
        lambda: f"the last one alone stays to be looked at; {bench.objects('pods')}",
    )


def test_evictions_do_not_count_and_say_by_whom(bench: Bench) -> None:
    bench.submit("evicted", gpus=(8, 8), iterations=LONG, failurePolicy={"maxRestarts": 0})
    for number in (1, 2, 3):
        wait_incarnation(bench, "evicted", number)
        name = running_pod(bench)["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        bench.api.create(f"/api/v1/namespaces/{bench.namespace}/pods/{name}/eviction", eviction)
    status = wait_incarnation(bench, "evicted", 4)
    assert status["restarts"] == 0
    assert [(item["incarnation"], item["counted"], item["reason"]) for item in status["failures"]] == [
        (number, False, "EvictionByEvictionAPI") for number in (3, 2, 1)
    ]
    bench.wait(
        lambda: any(
            (kind, what) == ("Warning", "Disrupted") and "EvictionByEvictionAPI" in note
            for kind, what, note in bench.events("evicted")
        ),
        lambda: f"told so; {bench.events('evicted')}",
    )


FIRST_PAUSE, LONGEST_PAUSE = 0.1, 6.0  # seconds; the longest is 60 times the first
DRAINS = 20


def failures_of(raw: Json | None) -> list[Json]:
    """The last failures that a job's status has, the newest first."""
    return list(((raw or {}).get("status") or {}).get("failures") or ())


def drain(bench: Bench, name: str, number: int) -> Json:
    """The job as it is once its only pod has been evicted from its cordoned node, as `kubectl drain` does."""
    bench.wait_running(name)
    pod = running_pod(bench)
    node, evicted = pod["spec"]["nodeName"], pod["metadata"]["name"]
    set_cordoned(bench.api, node)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": evicted}}
    bench.api.create(f"{pod_path(pod)}/eviction", eviction)
    judged = bench.wait_job(
        name, lambda raw: [item["incarnation"] for item in failures_of(raw)][:1] == [number], f"drained {number} times"
    )
    set_cordoned(bench.api, node, cordoned=False)
    return judged


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_job_whose_nodes_are_drained_twenty_times_goes_on_each_time_after_a_longer_pause(
    make_site: Callable[..., Bench],
) -> None:
    bench = make_site(nodes=2, operator_arguments=("--first-pause-seconds", str(FIRST_PAUSE)))
    bench.submit("drained", gpus=(8, 8), iterations=LONG, failurePolicy={"maxRestarts": 0})
    wait_incarnation(bench, "drained", 1)
    for number in range(1, DRAINS + 1):
        raw = drain(bench, "drained", number)
        status = raw["status"]
        assert (status["restarts"], condition(raw, "Failed")) == (0, ""), number
        assert [(item["incarnation"], item["counted"], item["reason"]) for item in failures_of(raw)] == [
            (earlier, False, "EvictionByEvictionAPI") for earlier in range(number, max(0, number - 5), -1)
        ]
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (number - 2)) if number > 1 else 0.0
        ended = moment(failures_of(raw)[0]["time"])
        if pause > 3:  # a shorter one may be over before anybody looks
            back_off = status["backOff"]
            assert (back_off["reason"], back_off["repeats"]) == ("DisruptionBackOff", number)
            assert abs((moment(back_off["until"]) - ended).total_seconds() - pause) < 1
        wait_incarnation(bench, "drained", number + 1)
        (batch,) = bench.objects("jobs", "/apis/batch/v1")
        waited = (moment(batch["metadata"]["creationTimestamp"]) - ended).total_seconds()
        assert waited > pause - 1, f"{waited} s after eviction {number}"
    bench.wait_told("drained", "Warning", "Disrupted", "EvictionByEvictionAPI", "does not count")


def moment(time: str) -> datetime:
    return datetime.fromisoformat(time)


def test_a_crash_counts_once_though_the_operator_dies_of_it_too(bench: Bench) -> None:
    bench.submit("unlucky", gpus=(4, 4), iterations=LONG, failurePolicy={"maxRestarts": 2})
    wait_incarnation(bench, "unlucky", 1)
    for number in (2, 3):
        crash(bench)
        bench.site.parts[OPERATOR].kill()
        bench.site.start_part(OPERATOR)
        assert wait_incarnation(bench, "unlucky", number)["restarts"] == number - 1


def test_a_job_whose_batch_job_is_deleted_without_its_pods_goes_on(bench: Bench) -> None:
    bench.submit("orphaned", gpus=(2, 2), iterations=LONG)
    wait_incarnation(bench, "orphaned", 1)
    left = running_pod(bench)["metadata"]["uid"]
    (batch,) = bench.objects("jobs", "/apis/batch/v1")
    path = f"/apis/batch/v1/namespaces/{bench.namespace}/jobs/{batch['metadata']['name']}"
    bench.api.delete(path, propagation="Orphan")
    status = wait_incarnation(bench, "orphaned", 2)
    assert status.get("restarts", 0) == 0
    assert left not in {pod["metadata"]["uid"] for pod in bench.objects("pods")}


def test_jobs_leave_a_node_that_is_lost(bench: Bench) -> None:
    bench.submit("moving", gpus=(8, 8), iterations=LONG)
    (place,) = wait_incarnation(bench, "moving", 1)["applied"]["nodes"]
    set_not_ready(bench.api, place["name"])
    try:
        pod = "pod moving-1-0-"
        bench.wait_told("moving", "Warning", "NodeLost", pod, f"is on node {place['name']}, which is not ready")
        status = wait_incarnation(bench, "moving", 2)
        assert [item["name"] for item in status["applied"]["nodes"]] != [place["name"]]
        assert status.get("restarts", 0) == 0
    finally:
        set_not_ready(bench.api, place["name"], not_ready=False)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_job_on_a_node_that_is_deleted_goes_elsewhere_and_that_does_not_count(
    make_site: Callable[..., Bench],
) -> None:
    bench = make_site(nodes=2)
    bench.submit("moving", gpus=(8, 8), iterations=LONG)
    (place,) = wait_incarnation(bench, "moving", 1)["applied"]["nodes"]
    delete_nodes(bench.api, [place["name"]])
    words = f"is on node {place['name']}, which is gone"
    bench.wait_told("moving", "Warning", "NodeLost", "pod moving-1-0-", words)
    assert condition(bench.job("moving"), "PodsReady") == "False"
    raw = bench.wait_job(  # once the garbage collector of pods has found it
        "moving",
        lambda raw: (((raw or {}).get("status") or {}).get("applied") or {}).get("incarnation") == 2,
        "running as incarnation 2",
        120.0,
    )
    assert [item["name"] for item in raw["status"]["applied"]["nodes"]] != [place["name"]]
    assert raw["status"].get("restarts", 0) == 0
    assert not raw["status"].get("failures"), "it was moved"
