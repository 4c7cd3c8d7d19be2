"""A job's life on the real control plane: submitted, run, suspended, deleted at any moment, failed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.site_bench import Bench, applied_gpus, condition, reason


def test_submit_run_succeed(bench: Bench) -> None:
    bench.submit("short", gpus=(1, 4), iterations=40)
    running = bench.wait_running("short")
    assert 1 <= applied_gpus(running) <= 4
    done = bench.wait_succeeded("short")
    status = done["status"]
    assert status["progress"]["iterations"] == 40
    assert not status["progress"]["estimated"]
    assert (
        status["energy"]["settledMillijoules"] + sum(entry["millijoules"] for entry in status["energy"]["incarnations"])
        > 0
    )
    assert status["state"] == "Succeeded"
    assert status["restarts"] == 0
    bench.wait_at_floor()


def test_a_job_that_has_ended_goes_after_its_time(bench: Bench) -> None:
    bench.submit("brief", gpus=(1, 1), iterations=20, ttlSecondsAfterFinished=5)
    bench.wait_succeeded("brief")
    bench.wait(lambda: bench.job("brief") is None, lambda: f"gone: {bench.job('brief')}")
    bench.wait(
        lambda: not bench.objects("pods") and not bench.objects("jobs", "/apis/batch/v1"),
        lambda: f"nothing is left of it: {bench.objects('pods')}",
    )


def test_the_pods_get_what_launchers_read(bench: Bench) -> None:
    bench.submit("wide", gpus=(16, 16), iterations=100_000)
    bench.wait_running("wide", 16)
    pods = sorted(bench.objects("pods"), key=lambda pod: pod["metadata"]["name"])
    assert len(pods) == 2
    for rank, pod in enumerate(pods):
        environment = {item["name"]: item.get("value") for item in pod["spec"]["containers"][0]["env"]}
        assert environment["FLYBALL_WORLD_SIZE"] == "16"
        assert environment["PET_NNODES"] == "2"
        assert environment["PET_NPROC_PER_NODE"] == "8"
        assert environment["PET_MASTER_ADDR"].startswith("wide-1-0.wide-1.")
        assert pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == str(rank)
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2


def _told_iterations(raw: Any) -> int:
    progress = ((raw or {}).get("status") or {}).get("progress", {})
    return 0 if progress.get("estimated") else int(progress.get("iterations", 0))


def test_suspend_and_resume_go_on_from_the_checkpoint(bench: Bench) -> None:
    bench.submit("pausing", gpus=(2, 2), iterations=60)
    bench.wait_job(
        "pausing",
        lambda raw: _told_iterations(raw) > 10,
        "some progress, told by the script: an estimate may be above it",
    )
    bench.change("pausing", suspend=True)
    paused = bench.wait_job(
        "pausing",
        lambda raw: reason(raw, "Admitted") == "Suspended" and not bench.objects("pods"),
        "suspended, without pods",
    )
    done = paused["status"]["progress"]["iterations"]
    bench.wait_at_floor()
    bench.change("pausing", suspend=False)
    finished = bench.wait_succeeded("pausing")
    bench.wait(
        lambda: {"Suspended", "Resumed"} <= {event[1] for event in bench.events("pausing")},
        lambda: f"both are told; {bench.events('pausing')}",
    )
    assert done > 10
    assert finished["status"]["allocation"]["incarnation"] == 2
    assert finished["status"]["restarts"] == 0


def test_a_checkpoint_that_is_lost_is_said_with_what_has_to_be_done_again(bench: Bench) -> None:
    bench.submit("forgetful", gpus=(2, 2), iterations=100_000)
    bench.wait_job("forgetful", lambda raw: _told_iterations(raw) > 10, "some progress, told by the script")
    bench.change("forgetful", suspend=True)
    bench.wait_job(
        "forgetful", lambda raw: reason(raw, "Admitted") == "Suspended" and not bench.objects("pods"), "without pods"
    )
    checkpoint = bench.site.directory / "workload" / "checkpoints" / bench.namespace / "forgetful.json"
    done = json.loads(checkpoint.read_text())["iterations"]  # the last reports can be told after the pods are gone
    checkpoint.unlink()
    bench.change("forgetful", suspend=False)
    bench.wait_told("forgetful", "Warning", "IterationsLost", "have to be done again: incarnation 2 goes on from ")
    progress = (bench.job("forgetful") or {})["status"]["progress"]
    assert 0 < progress["iterationsLost"] <= done


def test_a_program_that_reports_nothing_is_estimated_and_its_draw_is_measured(bench: Bench) -> None:
    silent = {"name": "trainer", "image": "example.org/silent", "command": ["sleep", "600"]}
    bench.submit("silent", gpus=(2, 2), iterations=100_000, template={"spec": {"containers": [silent]}})
    raw = bench.wait_job(
        "silent",
        lambda raw: (
            ((raw or {}).get("status") or {}).get("energy", {}).get("watts", 0) > 0
            and raw["status"]["progress"]["iterations"] > 0  # type: ignore[index]
        ),
        "estimated, and measured",
    )
    assert raw["status"]["progress"]["estimated"]
    assert raw["status"]["summary"]["progress"].startswith("~")
    assert raw["status"]["summary"]["eta"].startswith("~")
    assert raw["status"]["summary"]["power"].endswith(" W")


@pytest.mark.parametrize("moment", ["submitted", "gated", "bound", "running", "resizing"])
def test_deleting_at_any_moment_leaves_nothing(bench: Bench, moment: str) -> None:
    bench.submit("doomed", gpus=(1, 8), iterations=100_000)
    if moment == "gated":
        bench.wait(lambda: bool(bench.objects("pods")), lambda: "a pod")
    elif moment == "bound":
        bench.wait(
            lambda: any(pod["spec"].get("nodeName") for pod in bench.objects("pods")), lambda: "a pod bound to a node"
        )
    elif moment in ("running", "resizing"):
        bench.wait_running("doomed")
        if moment == "resizing":
            bench.submit("crowd", gpus=(32, 32), iterations=100_000, priority=10)
            bench.wait_job("doomed", lambda raw: condition(raw, "PodsReady") != "True", "stopping")
            bench.api.delete(bench.path("crowd"))
    bench.api.delete(bench.path("doomed"))
    for kind, group in (("pods", "/api/v1"), ("jobs", "/apis/batch/v1"), ("services", "/api/v1")):
        bench.wait(lambda kind=kind, group=group: not bench.objects(kind, group), lambda kind=kind: f"no {kind}")
    bench.wait(
        lambda: not any(node["spec"].get("jobs") for node in bench.gpu_nodes()),
        lambda: "no grant for any job",
    )
    bench.wait_at_floor()


def test_a_job_that_is_made_again_under_its_name_runs_at_once(bench: Bench) -> None:
    first = bench.submit("again", gpus=(8, 8), iterations=1_000_000)
    bench.wait_job("again", lambda raw: _told_iterations(raw) > 0, "trains")
    bench.api.delete(bench.path("again"))
    bench.wait(lambda: bench.job("again") is None, lambda: "deleted")
    second = bench.submit("again", gpus=(8, 8), iterations=1_000_000)
    running = bench.wait_running("again", 8)
    assert running["metadata"]["uid"] == second["metadata"]["uid"] != first["metadata"]["uid"]
    assert running["status"]["applied"]["incarnation"] == 1
    pods = [pod["metadata"] for pod in bench.objects("pods")]
    living = {pod["labels"]["flyball.dev/job-uid"] for pod in pods if "deletionTimestamp" not in pod}
    assert living == {second["metadata"]["uid"]}


def test_a_template_that_the_api_server_refuses_is_said_in_its_own_words(bench: Bench) -> None:
    bench.submit(
        "misspelt",
        gpus=(1, 1),
        iterations=10,
        template={"spec": {"containers": [{"name": "Not A Name", "image": "example.org/trainer"}]}},
    )
    refused = bench.wait_job("misspelt", lambda raw: reason(raw, "Admitted") == "InvalidSpec", "refused")
    assert "Not A Name" in refused["status"]["explanation"]
    bench.wait_told("misspelt", "Warning", "InvalidSpec", "Not A Name")
    # The template is locked while the job may run; mending it while it is suspended is enough.
    bench.change(
        "misspelt",
        suspend=True,
        template={
            "spec": {
                "containers": [
                    {
                        "name": "trainer",
                        "image": "example.org/trainer",
                        "env": [
                            {"name": "DEVCLUSTER_MODEL_CLASS", "value": "resnet50"},
                            {"name": "DEVCLUSTER_GLOBAL_BATCH", "value": "256"},
                            {"name": "DEVCLUSTER_ITERATIONS", "value": "10"},
                        ],
                    }
                ]
            }
        },
    )
    bench.change("misspelt", suspend=False)
    bench.wait_succeeded("misspelt")


@pytest.mark.long
def test_gpus_under_another_name_are_planned_granted_and_trained_on(make_site: Callable[..., Bench]) -> None:
    names = ("--gpu-resource", "nvidia.com/gpu", "--gpu-resource", "example.com/gpu")
    bench = make_site(nodes=2, operator_arguments=names)
    renamed = {"nvidia.com/gpu": None, "example.com/gpu": "8"}
    bench.api.patch("/api/v1/nodes/node-001/status", {"status": {"capacity": renamed, "allocatable": renamed}})
    bench.submit("theirs", iterations=100_000, gpus=(4, 4), resource_name="example.com/gpu")
    running = bench.wait_running("theirs", 4)
    assert [node["name"] for node in running["status"]["applied"]["nodes"]] == ["node-001"]
    bench.wait_job("theirs", lambda raw: _told_iterations(raw) > 0, "trains")


def test_gpus_under_a_name_that_nobody_knows_are_refused_with_what_would_be_right(bench: Bench) -> None:
    bench.submit("unknown", iterations=20, gpus=(4, 4), resource_name="example.com/gpu")
    refused = bench.wait_job("unknown", lambda raw: reason(raw, "Admitted") == "UnknownGpuResource", "refused")
    assert "(nvidia.com/gpu): name one of them" in refused["status"]["explanation"]
    bench.wait_told("unknown", "Warning", "UnknownGpuResource", "(nvidia.com/gpu): name one of them")
    assert not bench.objects("jobs", "/apis/batch/v1")
    bench.change("unknown", suspend=True, gpus={"resourceName": "nvidia.com/gpu"})
    bench.change("unknown", suspend=False)
    bench.wait_succeeded("unknown")
