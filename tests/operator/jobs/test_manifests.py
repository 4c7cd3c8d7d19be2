"""The objects of an incarnation, against the pod contract of docs/api.md."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flyball_api.energy_aware_job import read_energy_aware_job
from flyball_api.workloads import read_incarnation
from flyball_operator.jobs.manifests import incarnation_job, incarnation_service

from tests.support.operator_objects import NOW, Json, job_view, raw_job

NODES = (("a", 4), ("b", 4))
REFERENCE = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
CHECKPOINT = {"name": "checkpoint", "mountPath": "/ckpt"}


def job_with(*containers: Json, **pod: Any) -> Json:
    """The pod template's spec after making incarnation 3 of `team/train` on two nodes."""
    view = job_view(template={"spec": {"containers": list(containers), **pod}})
    return dict(incarnation_job(view, 3, NODES, "/var/run/flyball", now=NOW)["spec"]["template"]["spec"])


def environment(container: Json) -> dict[str, str]:
    """Variables by name; a reference to a field by its path."""
    return {
        item["name"]: item["value"] if "value" in item else item["valueFrom"]["fieldRef"]["fieldPath"]
        for item in container["env"]
    }


def trainer(**fields: Any) -> Json:
    return {"name": "trainer", "image": "trainer", **fields}


def test_the_environment_is_the_one_that_the_reference_promises() -> None:
    section = REFERENCE.split("### Pod contract")[1].split("- **Start**")[0]
    promised = set(re.findall(r"`((?:FLYBALL|PET|JAX)_[A-Z_]+)`", section))
    assert len(promised) >= 12
    given = environment(job_with(trainer(volumeMounts=[CHECKPOINT]))["containers"][0])
    # This job says nothing of what fits into a GPU, has no budget and no deadline, and does not recur.
    unsaid = {"FLYBALL_MAX_LOCAL_BATCH_SIZE", "FLYBALL_BASE_BATCH_SIZE", "FLYBALL_TARGET_METRIC"}
    unsaid |= {"FLYBALL_BUDGET_KILOJOULES", "FLYBALL_DUE"}
    pipeline = {
        f"FLYBALL_PIPELINE_{word}"
        for word in ("PLAN", "POINT", "STAGES", "MICROBATCHES", "OBJECTIVE", "SECONDS", "MEASURE")
    }
    assert promised == set(given) - {"FLYBALL_POD_UID"} | unsaid | pipeline


def test_the_environments_values() -> None:
    rank = "metadata.labels['batch.kubernetes.io/job-completion-index']"
    assert environment(
        job_with(trainer(volumeMounts=[{"name": "data", "mountPath": "/data"}, CHECKPOINT]))["containers"][0]
    ) == {
        "FLYBALL_JOB": "team/train",
        "FLYBALL_JOB_UID": "uid-train",
        "FLYBALL_INCARNATION": "3",
        "FLYBALL_WORLD_SIZE": "8",
        "FLYBALL_LOCAL_GPUS": "4",
        "FLYBALL_GLOBAL_BATCH_SIZE": "256",
        "FLYBALL_ITERATIONS": "1000",
        "FLYBALL_USED_KILOJOULES": "0",
        "FLYBALL_CHECKPOINT_DIR": "/ckpt",
        "FLYBALL_POD_UID": "metadata.uid",
        "FLYBALL_SOCKET": "/run/flyball/flyball.sock",
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "4",
        "PET_NODE_RANK": rank,
        "PET_MASTER_ADDR": "train-3-0.train-3.team",
        "PET_MASTER_PORT": "29400",
        "JAX_COORDINATOR_ADDRESS": "train-3-0.train-3.team:29400",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": rank,
    }


def test_a_script_is_told_what_its_job_may_still_use() -> None:
    job = job_view(
        template={"spec": {"containers": [trainer()]}},
        energy={"budgetKilojoules": 5000},
        deadline="2027-01-01T02:00:00+02:00",
        flexibleUntil="2027-01-02T00:00:00Z",
        status={"energy": {"consumedKilojoules": 1200}},
    )
    given = environment(incarnation_job(job, 3, NODES, now=NOW)["spec"]["template"]["spec"]["containers"][0])
    assert {name: value for name, value in given.items() if name.endswith(("KILOJOULES", "DUE"))} == {
        "FLYBALL_BUDGET_KILOJOULES": "5000",
        "FLYBALL_USED_KILOJOULES": "1200",
        "FLYBALL_DUE": "2027-01-01T00:00:00Z",
    }


PIPELINE = {"stages": 4, "microbatches": 16, "plan": {"configMap": "gpt3", "key": "fast.json"}}


def pipelined(**spec: Any) -> tuple[Json, dict[str, str]]:
    """The pod of a job with a pipeline and a helper beside its trainer, and what the trainer is told of the pipeline."""
    template = {"spec": {"containers": [trainer(volumeMounts=[CHECKPOINT]), {"name": "helper"}]}}
    made = incarnation_job(job_view(pipeline=PIPELINE, template=template, **spec), 1, NODES, now=NOW)
    pod: Json = made["spec"]["template"]["spec"]
    given = environment(pod["containers"][0])
    return pod, {name: value for name, value in given.items() if name.startswith("FLYBALL_PIPELINE_")}


def test_the_run_of_a_recurring_job_is_told_what_it_trains_to_and_which_batch_size_its_rates_are_for() -> None:
    recurrence = {"batchSizes": [64, 256], "targetMetric": "loss <= 2.1"}
    job = job_view(profileKey="nightly", recurrence=recurrence, template={"spec": {"containers": [trainer()]}})
    pod = incarnation_job(job, 1, NODES, now=NOW)["spec"]["template"]["spec"]
    given = environment(pod["containers"][0])
    assert (given["FLYBALL_TARGET_METRIC"], given["FLYBALL_BASE_BATCH_SIZE"]) == ("loss <= 2.1", "256")


def test_the_trainer_has_the_plan_of_its_pipeline() -> None:
    pod, told = pipelined(objective="Energy")
    assert told == {
        "FLYBALL_PIPELINE_PLAN": "/etc/flyball/plan.json",
        "FLYBALL_PIPELINE_POINT": "/etc/flyball/point.json",
        "FLYBALL_PIPELINE_STAGES": "4",
        "FLYBALL_PIPELINE_MICROBATCHES": "16",
        "FLYBALL_PIPELINE_OBJECTIVE": "Energy",
    }
    mount = {"name": "flyball-plan", "mountPath": "/etc/flyball", "readOnly": True}
    assert pod["containers"][0]["volumeMounts"] == [CHECKPOINT, mount]
    assert "volumeMounts" not in pod["containers"][1]
    plan = {"configMap": {"name": "gpt3", "items": [{"key": "fast.json", "path": "plan.json"}]}}
    annotation = {"fieldPath": "metadata.annotations['flyball.dev/pipeline-point']"}
    point = {"downwardAPI": {"items": [{"path": "point.json", "fieldRef": annotation}]}}
    assert pod["volumes"] == [{"name": "flyball-plan", "projected": {"sources": [plan, point]}}]
    own = {"spec": {"containers": [trainer()], "volumes": [{"name": "flyball-plan", "emptyDir": {}}]}}
    taken = job_view(pipeline=PIPELINE, template=own)
    with pytest.raises(ValueError, match="volume name flyball-plan is taken"):
        incarnation_job(taken, 1, NODES, now=NOW)


def test_a_pipeline_that_is_only_observed_is_told_to_be_as_fast_as_it_can() -> None:
    observed = replace(job_view(pipeline=PIPELINE, objective="Energy"), observed=True)
    pod = incarnation_job(observed, 1, NODES, now=NOW)["spec"]["template"]["spec"]
    assert environment(pod["containers"][0])["FLYBALL_PIPELINE_OBJECTIVE"] == "Time"


@pytest.mark.parametrize("word", ["deadline", "flexibleUntil"])
def test_a_pipeline_is_told_how_long_an_iteration_may_take_for_its_deadline(word: str) -> None:
    due = NOW + timedelta(seconds=1000)
    training = {"globalBatchSize": 64, "iterations": 300}
    status = {"progress": {"iterations": 100}}
    _, told = pipelined(training=training, status=status, **{word: due.isoformat()})
    assert float(told["FLYBALL_PIPELINE_SECONDS"]) == pytest.approx(0.95 * 1000 / 200)
    _, told = pipelined(training=training, status={"progress": {"iterations": 400}}, **{word: due.isoformat()})
    assert float(told["FLYBALL_PIPELINE_SECONDS"]) == pytest.approx(0.95 * 1000), "it has done more than it has"
    for spec in (
        {"training": {"globalBatchSize": 64}, "deadline": due.isoformat()},
        {"training": training, "deadline": (NOW - timedelta(seconds=1)).isoformat()},
    ):
        assert "FLYBALL_PIPELINE_SECONDS" not in pipelined(**spec)[1]


def test_what_the_user_sets_wins() -> None:
    own = [{"name": "PET_MASTER_PORT", "value": "1234"}, {"name": "LR", "value": "0.1"}]
    variables = job_with(trainer(env=own))["containers"][0]["env"]
    assert variables[:2] == own
    names = [item["name"] for item in variables]
    assert len(names) == len(set(names))


def test_every_container_gets_it_and_only_the_first_gets_gpus() -> None:
    spec = job_with(trainer(), {"name": "sidecar"}, initContainers=[{"name": "fetch"}])
    for container in (*spec["containers"], *spec["initContainers"]):
        assert environment(container)["FLYBALL_JOB"] == "team/train"
    assert [container.get("resources") for container in spec["containers"]] == [
        {"limits": {"nvidia.com/gpu": "4"}},
        None,
    ]


def test_without_a_checkpoint_volume_there_is_no_directory_and_with_two_mounts_the_first_counts() -> None:
    assert "FLYBALL_CHECKPOINT_DIR" not in environment(job_with(trainer())["containers"][0])
    twice = trainer(volumeMounts=[CHECKPOINT, {"name": "checkpoint", "mountPath": "/again"}])
    variables = job_with(twice)["containers"][0]["env"]
    assert [item["value"] for item in variables if item["name"] == "FLYBALL_CHECKPOINT_DIR"] == ["/ckpt"]


def test_a_pod_sees_its_own_folder_of_sockets_only() -> None:
    spec = job_with(trainer(volumeMounts=[CHECKPOINT]), volumes=[{"name": "checkpoint", "emptyDir": {}}])
    assert spec["containers"][0]["volumeMounts"] == [
        CHECKPOINT,
        {"name": "flyball-socket", "mountPath": "/run/flyball", "subPathExpr": "$(FLYBALL_POD_UID)", "readOnly": True},
    ]
    assert spec["volumes"][-1]["hostPath"] == {"path": "/var/run/flyball", "type": "DirectoryOrCreate"}
    without = incarnation_job(job_view(), 1, NODES, now=NOW)["spec"]["template"]["spec"]
    assert "volumes" not in without
    assert "FLYBALL_SOCKET" not in environment(without["containers"][0])


def test_a_socket_that_is_a_device_takes_no_folder_of_the_host() -> None:
    view = job_view(template={"spec": {"containers": [trainer(), {"name": "helper"}]}})
    made = incarnation_job(view, 1, NODES, "/var/run/flyball", socket_resource="flyball.dev/socket", now=NOW)
    spec = made["spec"]["template"]["spec"]
    first, second = spec["containers"]
    assert first["resources"]["limits"]["flyball.dev/socket"] == "1"
    assert "limits" not in (second.get("resources") or {})
    assert "volumes" not in spec
    assert not any("flyball-socket" in str(container) for container in spec["containers"])
    # The agent says where, with the mount.
    assert "FLYBALL_SOCKET" not in environment(first)


def test_sockets_are_not_the_users_to_ask_for() -> None:
    helper = {"name": "helper", "resources": {"limits": {"flyball.dev/socket": "5"}}}
    view = job_view(template={"spec": {"containers": [trainer(), helper]}})
    with pytest.raises(ValueError, match=r"container helper asks for flyball.dev/socket"):
        incarnation_job(view, 1, NODES, socket_resource="flyball.dev/socket", now=NOW)


@pytest.mark.parametrize("value", ["", "the-uid-of-another-pod"])
def test_the_folder_of_a_pods_sockets_is_not_the_users_to_choose(value: str) -> None:
    """An empty name would mount every pod's, and another UID another pod's."""
    container = job_with(trainer(env=[{"name": "FLYBALL_POD_UID", "value": value}]))["containers"][0]
    given = [item for item in container["env"] if item["name"] == "FLYBALL_POD_UID"]
    assert given == [{"name": "FLYBALL_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}]


def test_the_volume_of_the_sockets_is_not_the_users_to_mount_or_to_define() -> None:
    mount = {"name": "flyball-socket", "mountPath": "/all"}
    for containers, more in (
        ([trainer(volumeMounts=[mount])], {}),
        ([trainer(), {"name": "sidecar", "volumeMounts": [mount]}], {}),
        ([trainer()], {"initContainers": [{"name": "fetch", "volumeMounts": [mount]}]}),
        ([trainer()], {"volumes": [{"name": "flyball-socket", "emptyDir": {}}]}),
    ):
        with pytest.raises(ValueError, match="flyball-socket"):
            job_with(*containers, **more)


def test_an_indexed_job_of_gated_pods_one_a_node() -> None:
    made = incarnation_job(job_view(), 3, NODES, now=NOW)
    assert made["metadata"]["name"] == "train-3"
    spec = made["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (
        "Indexed",
        2,
        2,
        0,
    )
    pod = spec["template"]["spec"]
    assert pod["schedulingGates"] == [{"name": "flyball.dev/placement"}]
    assert (pod["restartPolicy"], pod["subdomain"]) == ("Never", "train-3")
    owner = made["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == (
        "EnergyAwareJob",
        "train",
        "uid-train",
        True,
    )


def test_labels_tell_pods_job_and_service_apart_from_others() -> None:
    labels = {
        "flyball.dev/job-name": "train",
        "flyball.dev/job-uid": "uid-train",
        "flyball.dev/incarnation": "3",
    }
    view = job_view(
        template={"metadata": {"labels": {"team": "x"}}, "spec": {"containers": [trainer()]}},
    )
    made = incarnation_job(view, 3, NODES, now=NOW)
    service = incarnation_service(read_incarnation({**made, "metadata": {**made["metadata"], "uid": "batch-uid"}}))
    assert made["metadata"]["labels"] == labels
    assert made["spec"]["template"]["metadata"]["labels"] == {"team": "x", **labels}
    assert service["spec"]["selector"] == service["metadata"]["labels"] == labels
    assert (service["metadata"]["name"], service["spec"]["clusterIP"]) == ("train-3", "None")
    assert service["spec"]["publishNotReadyAddresses"] is True


def test_the_allocation_can_be_read_back() -> None:
    made = incarnation_job(job_view(), 3, NODES, now=NOW)
    view = read_incarnation(made)
    assert (view.job_uid, view.incarnation, view.nodes, view.gpus) == ("uid-train", 3, NODES, 8)


def test_the_users_own_gates_stay_and_ours_is_there_once() -> None:
    theirs = [{"name": "flyball.dev/placement"}, {"name": "example.org/license"}]
    assert job_with(trainer(), schedulingGates=theirs)["schedulingGates"] == [
        {"name": "example.org/license"},
        {"name": "flyball.dev/placement"},
    ]


def test_gpus_of_the_template_are_overwritten_by_the_allocations() -> None:
    asked = trainer(resources={"limits": {"nvidia.com/gpu": 8, "cpu": 4}, "requests": {"nvidia.com/gpu": 8, "cpu": 1}})
    assert job_with(asked)["containers"][0]["resources"] == {
        "limits": {"nvidia.com/gpu": "4", "cpu": 4},
        "requests": {"nvidia.com/gpu": "4", "cpu": 1},
    }


def test_another_resource_name() -> None:
    view = job_view(gpus={"min": 1, "max": 8, "resourceName": "example.com/gpu"})
    limits = incarnation_job(view, 1, NODES, now=NOW)["spec"]["template"]["spec"]["containers"][0]["resources"][
        "limits"
    ]
    assert limits == {"example.com/gpu": "4"}


def test_the_jobs_own_template_is_left_alone() -> None:
    view = job_view(template={"metadata": None, "spec": {"containers": [trainer(env=None)]}})
    before = copy.deepcopy(view.spec.template)
    incarnation_job(view, 1, NODES, "/sockets", now=NOW)
    incarnation_job(view, 2, NODES, "/sockets", now=NOW)
    assert view.spec.template == before


def test_unequal_shares_are_refused() -> None:
    with pytest.raises(ValueError, match="team/train: every node must give the same number of GPUs"):
        incarnation_job(job_view(), 1, (("a", 4), ("b", 8)), now=NOW)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ({}, "must name at least one container"),
        ({"spec": None}, "must name at least one container"),
        ({"spec": {"containers": []}}, "must name at least one container"),
        ({"spec": {"containers": "all of them"}}, "no PodTemplateSpec"),
        ({"spec": {"containers": [5]}}, "no PodTemplateSpec"),
        ({"spec": [], "metadata": 3}, "no PodTemplateSpec"),
        ({"spec": {"containers": [trainer(env=7)]}}, "no PodTemplateSpec"),
        ({"spec": {"containers": [trainer(volumeMounts=[{"name": "checkpoint"}])]}}, "no PodTemplateSpec"),
        ({"spec": {"containers": [trainer()], "schedulingGates": ["mine"]}}, "no PodTemplateSpec"),
        (
            {"spec": {"containers": [trainer()], "nodeSelector": {"kubernetes.io/hostname": "a"}}},
            "must not name kubernetes.io/hostname",
        ),
        (
            {"spec": {"containers": [trainer(), {"name": "eval", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}},
            "container eval asks for nvidia.com/gpu",
        ),
        (
            {"spec": {"containers": [{**trainer(), "resources": {"limits": {"example.com/gpu": 1}}}]}},
            "container trainer asks for example.com/gpu, but only the first container gets GPUs, by nvidia.com/gpu",
        ),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_by_name(template: Json, words: str) -> None:
    with pytest.raises(ValueError, match="EnergyAwareJob team/train: ") as caught:
        incarnation_job(
            job_view(template=template), 1, NODES, gpu_resources=["nvidia.com/gpu", "example.com/gpu"], now=NOW
        )
    assert words in str(caught.value)


def test_a_job_that_measures_itself_is_told_at_which_clocks_and_starts_without_a_plan() -> None:
    clocks = {"highestMegahertz": 1410, "lowestMegahertz": 1230, "stepMegahertz": 90}
    pipeline = {**PIPELINE, "plan": {"configMap": "gpt3", "measure": clocks}}
    made = incarnation_job(job_view(pipeline=pipeline), 1, NODES, now=NOW)
    pod = made["spec"]["template"]["spec"]
    assert environment(pod["containers"][0])["FLYBALL_PIPELINE_MEASURE"] == "1410,1320,1230"
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "flyball-plan"]
    assert volume["projected"]["sources"][0]["configMap"]["optional"] is True
    raw = raw_job(pipeline=pipeline)
    raw["metadata"]["labels"] = {"flyball.dev/mode": "observe"}
    observed = read_energy_aware_job(raw)
    assert observed.observed
    made = incarnation_job(observed, 1, NODES, now=NOW)
    assert "FLYBALL_PIPELINE_MEASURE" not in environment(made["spec"]["template"]["spec"]["containers"][0])
