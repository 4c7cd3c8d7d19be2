"""Who may write what, beyond what RBAC can say: grants, Flyball's labels, and what the operator's own account may do."""

from __future__ import annotations

import copy
import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from flyball_api.names import DEFAULT_NAMESPACE, LABEL_JOB_NAME
from flyball_kube.errors import ApiError
from flyball_operator.jobs.steps.quota_books import MAX_COUNTED_JOBS
from flyball_testbed.controlplane import install
from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.controlplane.cluster import DevCluster

from tests.support.waiting import wait_until

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ACCOUNT = "attacker"
BINDING = "test-cluster-admin-who-attacks"
NODE = "node-of-grants"
LABELS = {"flyball.dev/job-uid": "x"}
NOT_THE_OPERATOR = "only the operator (system:serviceaccount:flyball-system:flyball-operator) writes the spec"
NOT_YOUR_BRAKE = "who has the verb emergency on powerbrakes/"
BRAKE = "hall-of-brakes"
NO_PODS_OF_YOURS = "may not create jobs.batch in namespace"
NOT_YOUR_LABELS = "labels flyball.dev/* of pods and Jobs are the operator's"
DRY = {"dryRun": "All"}


def refusal(call: Callable[..., Any], *arguments: Any) -> str:
    """Why the API server refuses a call; "" where it does not."""
    try:
        call(*arguments)
    except ApiError as error:
        return error.message
    return ""


@pytest.fixture(scope="module")
def attacker(control_plane: DevCluster, kinds: Any) -> Iterator[ApiClient]:
    """An account that RBAC allows everything, once the policies are in force."""
    api, plane = control_plane.api, control_plane.control_plane
    api.create(f"/api/v1/namespaces/{kinds.namespace}/serviceaccounts", {"metadata": {"name": ACCOUNT}})
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": kinds.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    api.create(f"{RBAC}/clusterrolebindings", {"metadata": {"name": BINDING}, "roleRef": role, "subjects": [subject]})
    client = plane.api_with_token(plane.token(kinds.namespace, ACCOUNT))
    grant = kinds.object("GPUNode", name="another")
    wait_until(lambda: NOT_THE_OPERATOR in refusal(kinds.try_create, grant, client), seconds=30)
    wait_until(lambda: NOT_YOUR_LABELS in refusal(try_pod, client, kinds, LABELS), seconds=30)
    yield client
    client.close()
    api.delete(f"{RBAC}/clusterrolebindings/{BINDING}")


@pytest.fixture(scope="module")
def sre(control_plane: DevCluster, kinds: Any) -> Iterator[ApiClient]:
    """An account with the role of those who answer for the power."""
    yield from bound_account(control_plane, kinds, "sre", "flyball-sre")


@pytest.fixture(scope="module")
def brake_writer(control_plane: DevCluster, kinds: Any) -> Iterator[ApiClient]:
    """An account that RBAC lets write PowerBrakes, without the verb for emergencies."""
    rule = {
        "apiGroups": ["flyball.dev"],
        "resources": ["powerbrakes"],
        "verbs": ["create", "update", "patch", "delete"],
    }
    kinds.api.create(f"{RBAC}/clusterroles", {"metadata": {"name": "test-brake-writer"}, "rules": [rule]})
    yield from bound_account(control_plane, kinds, "brake-writer", "test-brake-writer")
    kinds.api.delete(f"{RBAC}/clusterroles/test-brake-writer")


def bound_account(control_plane: DevCluster, kinds: Any, account: str, role: str) -> Iterator[ApiClient]:
    api, plane = control_plane.api, control_plane.control_plane
    api.create(f"/api/v1/namespaces/{kinds.namespace}/serviceaccounts", {"metadata": {"name": account}})
    subject = {"kind": "ServiceAccount", "name": account, "namespace": kinds.namespace}
    role_ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    binding = f"test-{account}"
    api.create(
        f"{RBAC}/clusterrolebindings", {"metadata": {"name": binding}, "roleRef": role_ref, "subjects": [subject]}
    )
    client = plane.api_with_token(plane.token(kinds.namespace, account))
    yield client
    client.close()
    api.delete(f"{RBAC}/clusterrolebindings/{binding}")


@pytest.fixture(scope="module")
def operator(control_plane: DevCluster) -> Iterator[ApiClient]:
    plane = control_plane.control_plane
    client = plane.api_with_token(plane.token(DEFAULT_NAMESPACE, install.OPERATOR))
    yield client
    client.close()


@pytest.fixture
def gpu_node(kinds: Any, operator: ApiClient) -> Iterator[str]:
    """The path of a GPUNode, made by the operator."""
    operator.create(kinds.path("GPUNode"), kinds.object("GPUNode", name=NODE))
    yield kinds.path("GPUNode", NODE)
    kinds.api.delete(kinds.path("GPUNode", NODE))
    kinds.api.wait_gone(kinds.path("GPUNode", NODE))


def try_pod(api: ApiClient, kinds: Any, labels: Json) -> None:
    pod = {
        "metadata": {"name": "pod", "namespace": kinds.namespace, "labels": labels},
        "spec": {"containers": [{"name": "trainer", "image": "trainer"}]},
    }
    api.request("POST", f"/api/v1/namespaces/{kinds.namespace}/pods", pod, query=DRY)


def batch_job(kinds: Any, **metadata: Any) -> Json:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "trainer", "image": "trainer"}]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "tried", "namespace": kinds.namespace, **metadata},
        "spec": {"template": template},
    }


def try_job(api: ApiClient, kinds: Any, job: Json) -> None:
    api.request("POST", f"/apis/batch/v1/namespaces/{kinds.namespace}/jobs", job, query=DRY)


@pytest.mark.parametrize(
    "patch",
    [
        {"spec": {"generation": 11, "boundMilliwatts": 900_000}},
        {"metadata": {"labels": {"row": "b"}}},
        {"metadata": {"annotations": {"flyball.dev/former-labels": '[{"row":"b"}]'}}},
    ],
    ids=["spec", "labels", "former labels"],
)
def test_only_the_operator_writes_a_grant(attacker: ApiClient, operator: ApiClient, gpu_node: str, patch: Json) -> None:
    assert NOT_THE_OPERATOR in refusal(attacker.patch, gpu_node, patch)
    operator.patch(gpu_node, patch)


def test_others_may_still_annotate_and_delete_a_gpu_node(attacker: ApiClient, gpu_node: str) -> None:
    attacker.patch(gpu_node, {"metadata": {"annotations": {"note": "out for repair"}}})
    attacker.delete(gpu_node)


def test_what_is_committed_falls_only_once_the_grant_is_acknowledged(
    kinds: Any, operator: ApiClient, gpu_node: str
) -> None:
    operator.patch(gpu_node, {"spec": {"committedMilliwatts": 3_200_000, "generation": 11}})
    lower = {"spec": {"generation": 12, "committedMilliwatts": 1_000_000}}
    assert "must not fall below 3200000 and 800000 while (epoch, generation) (3, 11)" in refusal(
        operator.patch, gpu_node, lower
    )

    def acknowledge(generation: int) -> None:
        acknowledged = {
            "epoch": 3,
            "generation": generation,
            "time": "2030-01-01T00:00:00Z",
            "limitsMilliwatts": 800_000,
            "bootID": "boot",
            "driverSession": "driver",
        }
        kinds.api.patch(f"{gpu_node}/status", {"status": {"acknowledged": acknowledged}})

    acknowledge(10)
    assert "must not fall below" in refusal(operator.patch, gpu_node, lower)
    acknowledge(11)
    assert operator.patch(gpu_node, lower)["spec"]["committedMilliwatts"] == 1_000_000


def test_a_digest_that_a_later_agent_left_keeps_nothing_committed(
    kinds: Any, operator: ApiClient, gpu_node: str
) -> None:
    """An agent that knows no digests took over: its merge patch leaves the field as it was."""
    higher = {"spec": {"committedMilliwatts": 3_200_000, "generation": 11, "digest": "11" * 16}}
    lower = {"spec": {"generation": 12, "committedMilliwatts": 1_000_000, "digest": "12" * 16}}
    operator.patch(gpu_node, higher)
    acknowledged = {
        "epoch": 3,
        "generation": 11,
        "time": "2030-01-01T00:00:00Z",
        "limitsMilliwatts": 800_000,
        "bootID": "boot",
        "driverSession": "driver",
        "digest": "10" * 16,
        "boundBy": "2.0",
    }
    kinds.api.patch(f"{gpu_node}/status", {"status": {"acknowledged": acknowledged, "agentVersion": "2.0"}})
    assert "must not fall below" in refusal(operator.patch, gpu_node, lower)
    kinds.api.patch(f"{gpu_node}/status", {"status": {"agentVersion": "1.0"}})
    assert operator.patch(gpu_node, lower)["spec"]["committedMilliwatts"] == 1_000_000


def test_flyballs_labels_are_not_the_users_to_set(attacker: ApiClient, kinds: Any) -> None:
    assert NOT_YOUR_LABELS in refusal(try_pod, attacker, kinds, LABELS)
    assert NOT_YOUR_LABELS in refusal(try_job, attacker, kinds, batch_job(kinds, labels=LABELS))
    in_template = batch_job(kinds, labels={"app": "train"})  # without any, those of the template become the Job's
    in_template["spec"]["template"]["metadata"] = {"labels": LABELS}
    assert "labels flyball.dev/* of a Job's template" in refusal(try_job, attacker, kinds, in_template)
    allocation = batch_job(kinds, annotations={"flyball.dev/allocation": '{"nodes": [["n2", 64]]}'})
    assert "the annotation flyball.dev/allocation of a Job" in refusal(try_job, attacker, kinds, allocation)


@pytest.mark.parametrize(
    "metadata", [{"labels": LABELS}, {"annotations": {"flyball.dev/allocation": '{"nodes": [["n2", 64]]}'}}]
)
def test_nor_by_the_way_of_a_jobs_status(attacker: ApiClient, kinds: Any, metadata: Json) -> None:
    """It is a subresource whose writer may change labels and annotations beside it."""
    path = f"/apis/batch/v1/namespaces/{kinds.namespace}/jobs"
    made = batch_job(kinds)
    made["metadata"]["name"], made["spec"]["suspend"] = "by-status", True
    attacker.create(path, made)
    try:
        assert "flyball.dev/" in refusal(attacker.patch, f"{path}/by-status/status", {"metadata": metadata})
        attacker.patch(f"{path}/by-status/status", {"metadata": {"annotations": {"note": "mine"}}})
    finally:
        attacker.delete(f"{path}/by-status", propagation="Background")
        kinds.api.wait_gone(f"{path}/by-status")


def test_no_ephemeral_container_has_the_sockets_of_all_pods(attacker: ApiClient, kinds: Any) -> None:
    path = f"/api/v1/namespaces/{kinds.namespace}/pods"
    volumes = [{"name": "flyball-socket", "hostPath": {"path": "/run/flyball"}}, {"name": "other", "emptyDir": {}}]
    gates = [{"name": "example.com/never"}]
    spec = {"containers": [{"name": "main", "image": "main"}], "volumes": volumes, "schedulingGates": gates}
    attacker.create(path, {"metadata": {"name": "debugged"}, "spec": spec})
    try:
        for volume, refused in (("flyball-socket", True), ("other", False)):
            mounts = [{"name": volume, "mountPath": "/all"}]
            container = {"name": f"with-{volume}", "image": "sh", "volumeMounts": mounts}
            change = {"spec": {"ephemeralContainers": [container]}}
            words = refusal(attacker.patch, f"{path}/debugged/ephemeralcontainers", change)
            assert ("the folder of all sockets of the node" in words) is refused, words
    finally:
        attacker.delete(f"{path}/debugged")


def test_users_jobs_and_pods_are_taken_as_ever(attacker: ApiClient, kinds: Any) -> None:
    try_pod(attacker, kinds, {"app": "web"})
    job = batch_job(kinds, labels={"app": "train"}, annotations={"note": "mine"})
    job["spec"]["template"]["metadata"] = {"labels": {"app": "train"}}
    try_job(attacker, kinds, job)
    # The pods of such Jobs are made by the Job controller.
    path = f"/apis/batch/v1/namespaces/{kinds.namespace}/jobs"
    job["metadata"]["name"] = "stored"
    attacker.create(path, job)
    pods = f"/api/v1/namespaces/{kinds.namespace}/pods"
    wait_until(lambda: len(kinds.api.get(pods)["items"]) == 1, seconds=30)
    attacker.delete(f"{path}/stored")


def test_the_operator_makes_jobs_of_energy_aware_jobs_only(
    attacker: ApiClient, operator: ApiClient, kinds: Any
) -> None:
    owner = {"apiVersion": "flyball.dev/v1alpha1", "kind": "EnergyAwareJob", "name": "train", "uid": "u"}
    bare = batch_job(kinds, labels=LABELS)
    assert "the operator makes Jobs only for EnergyAwareJobs" in refusal(try_job, operator, kinds, bare)
    owned = batch_job(kinds, labels=LABELS, ownerReferences=[owner])
    assert "the operator makes Jobs only for EnergyAwareJobs" in refusal(try_job, operator, kinds, owned)
    owned["metadata"]["ownerReferences"] = [owner | {"controller": True}]
    try_job(operator, kinds, owned)


def test_the_operator_lets_run_those_jobs_alone_that_wait_for_it_and_changes_nothing_else(
    attacker: ApiClient, operator: ApiClient, kinds: Any
) -> None:
    path = f"/apis/batch/v1/namespaces/{kinds.namespace}/jobs"
    waits = batch_job(kinds, labels={"flyball.dev/admission": "by-power"})
    waits["metadata"]["name"], waits["spec"]["suspend"] = "waits", True
    attacker.create(path, waits)  # anybody who may make Jobs may have one wait
    only = "of a Job that waits by the label flyball.dev/admission the operator changes nothing but spec.suspend"
    for change in (
        {"spec": {"suspend": False, "parallelism": 7}},
        {"spec": {"suspend": True, "activeDeadlineSeconds": 1}},
        {"spec": {"suspend": False, "template": {"spec": {"nodeSelector": {"a": "b"}}}}},
        {"spec": {"suspend": False}, "metadata": {"labels": {"flyball.dev/admission": None}}},
        {"spec": {"suspend": False}, "metadata": {"annotations": {"a": "b"}}},
    ):
        assert only in refusal(operator.patch, f"{path}/waits", change)
    assert not operator.patch(f"{path}/waits", {"spec": {"suspend": False}})["spec"]["suspend"]
    assert only in refusal(operator.patch, f"{path}/waits", {"spec": {"suspend": True}})
    attacker.patch(f"{path}/waits", {"metadata": {"labels": {"flyball.dev/admission": None}}})

    another = batch_job(kinds, labels={"app": "train"})
    another["metadata"]["name"], another["spec"]["suspend"] = "another", True
    attacker.create(path, another)
    assert "of other Jobs" in refusal(operator.patch, f"{path}/another", {"spec": {"suspend": False}})
    in_template = batch_job(kinds)
    in_template["spec"]["template"]["metadata"] = {"labels": {"flyball.dev/admission": "by-power"}}
    assert "labels flyball.dev/* of a Job's template" in refusal(try_job, attacker, kinds, in_template)
    assert NOT_YOUR_LABELS in refusal(try_pod, attacker, kinds, {"flyball.dev/admission": "by-power"})
    for name in ("waits", "another"):
        attacker.delete(f"{path}/{name}", propagation="Background")


def test_the_operator_changes_nothing_of_a_node_but_its_taint(
    attacker: ApiClient, operator: ApiClient, kinds: Any
) -> None:
    other = {"key": "maintenance", "value": "soon", "effect": "NoSchedule"}
    ours = {"key": "flyball.dev/unacknowledged", "effect": "NoSchedule"}
    node = kinds.api.create("/api/v1/nodes", {"metadata": {"name": "bare"}, "spec": {"taints": [other, ours]}})
    path = "/api/v1/nodes/bare"
    try:
        for patch in (
            {"spec": {"taints": [ours]}},
            {"spec": {"taints": [other, {**other, "key": "more"}]}},
            {"spec": {"unschedulable": True}},
            {"metadata": {"labels": {"row": "b"}}},
            {"metadata": {"annotations": {"note": "x"}}},
        ):
            assert "the operator changes" in refusal(operator.patch, path, patch), patch
        taints = copy.deepcopy(node["spec"]["taints"])
        operator.patch(path, {"spec": {"taints": [taint for taint in taints if taint["key"] != ours["key"]]}})
        operator.patch(path, {"spec": {"taints": taints}})
    finally:
        kinds.api.delete(path)


def test_the_operator_makes_no_jobs_in_namespaces_of_the_clusters_own(operator: ApiClient, kinds: Any) -> None:
    owner = {
        "apiVersion": "flyball.dev/v1alpha1",
        "kind": "EnergyAwareJob",
        "name": "x",
        "uid": "u",
        "controller": True,
    }
    raw = batch_job(kinds, labels=LABELS, ownerReferences=[owner])
    raw["metadata"]["namespace"] = "kube-system"
    path = "/apis/batch/v1/namespaces/kube-system/jobs"
    assert "no Job in a namespace of the cluster's own" in refusal(
        partial(operator.request, query=DRY), "POST", path, raw
    )


def test_the_operator_changes_pods_of_jobs_alone_and_nothing_that_they_run(operator: ApiClient, kinds: Any) -> None:
    jobs, path = (
        f"{group}/namespaces/{kinds.namespace}/{what}"
        for group, what in (("/apis/batch/v1", "jobs"), ("/api/v1", "pods"))
    )
    made = batch_job(kinds)
    made["metadata"]["name"] = "of-nobodys-pods"
    made["spec"] |= {"suspend": True, "managedBy": "example.com/nobody"}  # so that no controller looks after its pods
    uid = kinds.api.create(jobs, made)["metadata"]["uid"]
    job_owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "of-nobodys-pods", "uid": uid, "controller": True}
    for name, owners in (("alone", []), ("a-jobs", [job_owner])):
        container = {"name": "main", "image": "example.org/main"}
        pod: Json = {
            "metadata": {"name": name, "ownerReferences": owners},
            "spec": {"containers": [container], "schedulingGates": [{"name": "flyball.dev/placement"}]},
        }
        kinds.api.create(path, pod)
    note = {"metadata": {"annotations": {"flyball.dev/pipeline-point": "{}"}}}
    try:
        assert "only pods that a Job controls" in refusal(operator.patch, f"{path}/alone", note)
        tolerations = operator.patch(f"{path}/a-jobs", note)["spec"].get("tolerations") or []
        for change in (
            ("replace", "/spec/containers/0/image", "example.org/other"),
            ("add", "/spec/tolerations", [*tolerations, {"key": "more", "operator": "Exists"}]),
            ("add", "/metadata/labels", {"flyball.dev/job-uid": "other"}),
            ("add", "/metadata/finalizers", ["example.com/never"]),
            ("remove", "/metadata/ownerReferences", None),
        ):
            body = [dict(zip(("op", "path", "value"), change, strict=True))]
            words = refusal(partial(operator.patch, kind="json"), f"{path}/a-jobs", body)
            assert "of a pod the operator changes nothing but" in words, change
        operator.patch(f"{path}/a-jobs", {"spec": {"nodeSelector": {"a": "b"}, "schedulingGates": []}})
    finally:
        for gone in (f"{path}/alone", f"{path}/a-jobs", f"{jobs}/of-nobodys-pods"):
            kinds.api.delete(gone)


def test_the_operator_makes_headless_services_for_jobs_and_takes_no_other_over(operator: ApiClient, kinds: Any) -> None:
    path = f"/api/v1/namespaces/{kinds.namespace}/services"
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train-1", "uid": "u", "controller": True}
    ours: Json = {
        "metadata": {"name": "train-1", "labels": LABELS, "ownerReferences": [owner]},
        "spec": {"clusterIP": "None", "ports": [{"port": 29400}]},
    }
    only = "the operator makes headless Services for its Jobs"
    make = partial(operator.request, "POST", path, query=DRY)
    make(ours)
    bare = copy.deepcopy(ours)
    del bare["metadata"]["ownerReferences"]
    assert only in refusal(make, bare)
    routed = copy.deepcopy(ours)
    del routed["spec"]["clusterIP"]
    assert only in refusal(make, routed)
    theirs = {"metadata": {"name": "theirs"}, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}}
    found = kinds.api.create(path, theirs)
    try:
        taken = {**found, "metadata": {**found["metadata"], **ours["metadata"], "name": "theirs"}}
        assert only in refusal(operator.replace, f"{path}/theirs", taken)
    finally:
        kinds.api.delete(f"{path}/theirs")


def test_the_operator_changes_nothing_of_a_cap_but_its_finalizer(
    attacker: ApiClient, operator: ApiClient, kinds: Any
) -> None:
    path = kinds.path("PowerCap", "held")
    kinds.api.create(kinds.path("PowerCap"), kinds.object("PowerCap", name="held"))
    try:
        for patch in (
            {"spec": {"watts": 1_000_000}},
            {"metadata": {"labels": {"row": "b"}}},
            {"metadata": {"annotations": {"flyball.dev/release": "true"}}},
            {"metadata": {"finalizers": ["example.com/other"]}},
        ):
            assert "the operator changes nothing of a PowerCap" in refusal(operator.patch, path, patch), patch
        operator.patch(path, {"metadata": {"finalizers": ["flyball.dev/hold"]}})
        kinds.api.delete(path)
        assert kinds.api.get(path)["metadata"]["deletionTimestamp"]
        kinds.api.patch(path, {"metadata": {"annotations": {"flyball.dev/release": "true"}}})
        assert kinds.api.get_or_none(path) is not None
    finally:
        operator.patch(path, {"metadata": {"finalizers": None}})
    kinds.api.wait_gone(path)


@pytest.fixture
def cap(kinds: Any) -> Iterator[str]:
    """A cap of 9 kW whose nodes draw 3.2 kW at the least."""
    path = str(kinds.path("PowerCap", "guarded"))
    kinds.api.create(kinds.path("PowerCap"), kinds.object("PowerCap", {"watts": 9000}, name="guarded"))
    kinds.api.patch(f"{path}/status", {"status": {"effectiveWatts": 9000, "leastWatts": 3200}})
    slip = partial(kinds.api.patch, path, {"spec": {"watts": 1}}, **DRY)
    wait_until(lambda: "less than three tenths" in refusal(slip), "the policy is in force")
    yield path
    kinds.api.delete(path)


def confirmed(lowest: int, spec: Json) -> Json:
    return {"metadata": {"annotations": {"flyball.dev/confirm-watts": str(lowest)}}, "spec": spec}


NIGHT: Json = {"name": "night", "cron": "0 22 * * *", "durationSeconds": 3600, "watts": 800}
DAY: Json = {"kilojoules": 604_800, "periodSeconds": 86_400}
OVER: Json = {"name": "over", "start": "2020-01-01T00:00:00Z", "end": "2020-01-02T00:00:00Z", "watts": 20}


@pytest.mark.parametrize(
    ("first", "slipped", "lowest", "before"),
    [
        ({}, {"watts": 900}, 900, 9000),
        ({}, {"schedule": [NIGHT]}, 800, 9000),
        ({"schedule": [NIGHT]}, {"watts": 900}, 900, 9000),
        ({"schedule": [OVER]}, {"watts": 40}, 40, 9000),
        ({}, {"watts": None, "permilleOfMax": 5, "schedule": None}, None, None),
        ({"watts": None, "permilleOfMax": 800}, {"permilleOfMax": 80}, 80, 800),
        ({"watts": None, "permilleOfMax": 800}, {"permilleOfMax": None, "watts": 40}, 40, 9000),
        ({"staticOverheadWatts": 700}, {"staticOverheadWatts": 7000}, 2000, 8300),
        ({"schedule": [NIGHT]}, {"staticOverheadWatts": 790}, 10, 800),
        ({"energyBudget": DAY}, {"energyBudget": {"kilojoules": 60_480}}, 700, 7000),
        ({"energyBudget": DAY}, {"energyBudget": {"periodSeconds": 864_000}}, 700, 7000),
        ({}, {"energyBudget": {"kilojoules": 60_480, "periodSeconds": 86_400}}, 700, 9000),
    ],
    ids=[
        "watts",
        "a window",
        "watts above a window",
        "watts after a window",
        "a share for watts",
        "a share",
        "watts for a share",
        "an overhead",
        "an overhead beside a window",
        "a budget",
        "a budget's period",
        "a new budget",
    ],
)
def test_a_cap_that_would_fall_to_less_than_three_tenths_is_asked_about_once(
    kinds: Any, cap: str, first: Json, slipped: Json, lowest: int | None, before: int | None
) -> None:
    entries = [entry["watts"] for entry in first.get("schedule", ())]
    kinds.api.patch(cap, confirmed(min(entries, default=0), first))
    if lowest is None:
        kinds.api.patch(cap, {"spec": slipped})  # nobody can compare the two: the operator obeys
        return
    said = refusal(kinds.api.patch, cap, {"spec": slipped})
    assert f"{lowest} is less than three tenths of the {before} before" in said
    assert f'flyball.dev/confirm-watts: "{lowest}"' in said
    watts = lowest if f"request: watts {lowest} is less" in said else "N"
    assert f'"flyball whatif pcap {cap.rpartition("/")[2]} --watts {watts}" shows what it does' in said
    assert "less than three tenths" in refusal(kinds.api.patch, cap, confirmed(lowest + 1, slipped))
    kinds.api.patch(cap, confirmed(lowest, slipped))
    kinds.api.patch(cap, {"spec": {"staticOverheadWatts": 7}})  # what stands is not asked about again


@pytest.mark.parametrize("watts", [20_000, 9000, 8999, 2700])
def test_other_changes_of_a_cap_are_not_asked_about(kinds: Any, cap: str, watts: int) -> None:
    kinds.api.patch(cap, {"spec": {"watts": watts, "rampWattsPerSecond": 50}})
    kinds.api.patch(
        cap, {"spec": {"staticOverheadWatts": 500, "energyBudget": {"kilojoules": 10**15, "periodSeconds": 86_400}}}
    )
    kinds.api.patch(cap, {"spec": {"staticOverheadWatts": 0, "energyBudget": None}})


def test_kubectl_warns_of_a_cap_that_cannot_be_held_and_sets_it(control_plane: DevCluster, cap: str) -> None:
    plane = control_plane.control_plane

    def said(spec: Json) -> str:
        """What kubectl says besides when it sets a cap so."""
        command = [str(plane.kubectl), "--kubeconfig", str(plane.kubeconfig()), "patch", "powercap", "guarded"]
        command += ["--type=merge", "-p", json.dumps({"spec": spec})]
        return " ".join(subprocess.run(command, check=True, capture_output=True, text=True).stderr.split())

    held = said({"watts": 3000})
    assert "Warning: " in held
    assert "watts 3000 is below the 3200 that its nodes draw at the least by its status" in held
    assert "the cap cannot be held, and an operator that governs may pause jobs for it. It is set all the same" in held
    assert "jobs are paused" not in held, "nobody has planned yet, and no job may run"
    assert control_plane.api.get(cap)["spec"]["watts"] == 3000
    # The overhead is part of the least, and may change with the cap.
    assert "watts 3500 is below the 3900 that its nodes" in said({"watts": 3500, "staticOverheadWatts": 700})
    control_plane.api.patch(f"{cap}/status", {"status": {"leastWatts": 3900}})
    assert said({"watts": 3400, "staticOverheadWatts": 0}) == ""
    assert "no job is paused for it (onInfeasible FloorOnly)" in said({"watts": 3300, "onInfeasible": "FloorOnly"})


@pytest.mark.parametrize(
    ("trainer", "elasticity", "warned"),
    [
        ({}, {}, True),
        ({"volumeMounts": [{"name": "data", "mountPath": "/data"}], "env": [{"name": "SEED", "value": "1"}]}, {}, True),
        ({"volumeMounts": [{"name": "checkpoint", "mountPath": "/checkpoint"}]}, {}, False),
        ({"env": [{"name": "FLYBALL_CHECKPOINT_DIR", "value": "s3://bucket"}]}, {}, False),
        ({}, {"mode": "Never"}, False),
    ],
    ids=["nothing", "another volume", "the volume", "elsewhere", "never stopped"],
)
def test_kubectl_warns_of_a_job_that_keeps_no_checkpoints_and_submits_it(
    control_plane: DevCluster, kinds: Any, trainer: Json, elasticity: Json, warned: bool
) -> None:
    plane = control_plane.control_plane
    container = {"name": "main", "image": "trainer", **trainer}
    job = kinds.object("EnergyAwareJob", {"elasticity": elasticity})
    job["spec"]["template"]["spec"]["containers"] = [container, {"name": "sidecar", "image": "sidecar"}]
    command = [str(plane.kubectl), "--kubeconfig", str(plane.kubeconfig()), "create", "--dry-run=server", "-f", "-"]
    ran = subprocess.run(command, input=json.dumps(job), check=True, capture_output=True, text=True)
    assert "created" in ran.stdout
    words = (
        "container main mounts no volume named checkpoint: whenever the job is resized, moved, paused or restarted, it"
    )
    assert (words in " ".join(ran.stderr.split())) == warned, ran.stderr
    assert ran.stderr.count("Warning: ") == warned


def brake(kinds: Any, **spec: Any) -> Json:
    return kinds.object("PowerBrake", {"emergency": None, **spec}, name=BRAKE)


def put_brake(api: ApiClient, kinds: Any, **spec: Any) -> None:
    path = kinds.path("PowerBrake", BRAKE)
    stored = kinds.api.get_or_none(path)
    if stored is None:
        api.create(kinds.path("PowerBrake"), brake(kinds, **spec))
    else:
        api.request("PUT", path, {**brake(kinds, **spec), "metadata": stored["metadata"]})


def test_only_the_operator_brakes_and_only_those_who_answer_for_power_declare_an_emergency(
    attacker: ApiClient, operator: ApiClient, sre: ApiClient, brake_writer: ApiClient, kinds: Any
) -> None:
    path = kinds.path("PowerBrake", BRAKE)
    emergency = {"epoch": 0, "sequence": 1, "keptMillionths": 0, "emergency": "Active"}
    # RBAC alone lets this one write; the verb is what it lacks.
    wait_until(lambda: NOT_YOUR_BRAKE in refusal(put_brake_of(brake_writer, kinds, emergency)), seconds=30)
    assert NOT_YOUR_BRAKE in refusal(put_brake_of(brake_writer, kinds, {"epoch": 0, "sequence": 1}))
    wait_until(lambda: "people declare an emergency" in refusal(put_brake_of(sre, kinds, {"epoch": 0})), seconds=30)
    assert "leaves spec.epoch as it is" in refusal(put_brake_of(sre, kinds, {**emergency, "epoch": 9}))
    assert "leaves spec.epoch as it is" in refusal(put_brake_of(sre, kinds, {**emergency, "sequence": 99}))
    assert "neither declares nor ends" in refusal(put_brake_of(operator, kinds, emergency))
    put_brake(sre, kinds, **emergency)
    lifted = {"epoch": 5, "sequence": 1, "keptMillionths": 1_000_000}
    assert "an emergency that is Active is Ended before" in refusal(put_brake_of(operator, kinds, lifted))
    ended = {"epoch": 5, "sequence": 1, "keptMillionths": 0, "emergency": "Ended"}
    assert "neither declares nor ends" in refusal(put_brake_of(operator, kinds, ended))
    assert "an emergency that is Active is Ended before" in refusal(
        put_brake_of(sre, kinds, {"epoch": 0, "sequence": 2, "keptMillionths": 0})
    )
    assert "a PowerBrake is not deleted" in refusal(attacker.delete, path)
    put_brake(sre, kinds, **{**emergency, "sequence": 2, "emergency": "Ended"})
    put_brake(operator, kinds, **lifted)
    assert "people declare an emergency" in refusal(
        put_brake_of(sre, kinds, {"epoch": 5, "sequence": 2, "keptMillionths": 0, "emergency": "Ended"})
    )
    put_brake(sre, kinds, **{**emergency, "epoch": 5, "sequence": 2})
    kinds.api.delete(path)


def put_brake_of(api: ApiClient, kinds: Any, spec: Json) -> Callable[[], None]:
    return lambda: put_brake(api, kinds, **spec)


@pytest.fixture(scope="module")
def submitter(control_plane: DevCluster, kinds: Any) -> Iterator[ApiClient]:
    """An account that RBAC lets write EnergyAwareJobs, and nothing else."""
    verbs = ["get", "create", "update", "patch", "delete"]
    rule = {"apiGroups": ["flyball.dev"], "resources": ["energyawarejobs"], "verbs": verbs}
    kinds.api.create(f"{RBAC}/clusterroles", {"metadata": {"name": "test-submitter"}, "rules": [rule]})
    yield from bound_account(control_plane, kinds, "submitter", "test-submitter")
    kinds.api.delete(f"{RBAC}/clusterroles/test-submitter")


@pytest.fixture(scope="module")
def trainer(control_plane: DevCluster, kinds: Any) -> Iterator[ApiClient]:
    """An account that RBAC lets write EnergyAwareJobs and Jobs, and no ConfigMap."""
    rules = [
        {"apiGroups": [group], "resources": [plural], "verbs": ["get", "create", "patch", "delete"]}
        for group, plural in (("flyball.dev", "energyawarejobs"), ("batch", "jobs"))
    ]
    kinds.api.create(f"{RBAC}/clusterroles", {"metadata": {"name": "test-trainer"}, "rules": rules})
    yield from bound_account(control_plane, kinds, "trainer", "test-trainer")
    kinds.api.delete(f"{RBAC}/clusterroles/test-trainer")


@pytest.fixture(scope="module")
def editor(control_plane: DevCluster, kinds: Any) -> Iterator[ApiClient]:
    """An account with Kubernetes' own role for people who work in a namespace."""
    yield from bound_account(control_plane, kinds, "editor", "edit")


def test_who_may_make_no_job_gets_no_pods_by_an_energy_aware_job(
    submitter: ApiClient, editor: ApiClient, kinds: Any
) -> None:
    job = kinds.object("EnergyAwareJob", {"suspend": True, "gpus": {"min": 2}}, name="asked-for")
    path = kinds.path("EnergyAwareJob", "asked-for")
    wait_until(lambda: NO_PODS_OF_YOURS in refusal(kinds.try_create, job, submitter), seconds=30)
    wait_until(lambda: refusal(kinds.try_create, job, editor) == "", seconds=30)
    editor.create(kinds.path("EnergyAwareJob"), job)
    other = {"spec": {"containers": [{"name": "trainer", "image": "miner"}], "serviceAccountName": "attacker"}}
    # A pipeline's plan is a ConfigMap that the trainer has mounted.
    plan = {"stages": 2, "microbatches": 8, "plan": {"configMap": "somebody-elses"}}
    for spec in ({"template": other}, {"gpus": {"max": 8}}, {"pipeline": plan}):
        assert NO_PODS_OF_YOURS in refusal(submitter.patch, path, {"spec": spec}), spec
        editor.patch(path, {"spec": spec})
    # What asks for no other pods than somebody who might has asked for.
    submitter.patch(path, {"spec": {"suspend": False}})
    submitter.patch(path, {"metadata": {"annotations": {"note": "mine"}}})
    submitter.delete(path)


def test_who_may_make_no_config_map_has_none_made_of_what_a_job_measures(
    trainer: ApiClient, editor: ApiClient, kinds: Any
) -> None:
    """The operator makes it with its own rights, under the name and the key that the job gives."""
    refused = "may not create configmaps in namespace"
    measure = {"highestMegahertz": 1410, "lowestMegahertz": 900}
    gpus = {"min": 2, "max": 2}
    given = {"stages": 2, "microbatches": 8, "plan": {"configMap": "settings", "key": "settings.json"}}
    measured = {**given, "plan": {**given["plan"], "measure": measure}}  # type: ignore[dict-item]
    job = kinds.object("EnergyAwareJob", {"suspend": True, "gpus": gpus, "pipeline": measured}, name="measuring")
    path = kinds.path("EnergyAwareJob", "measuring")
    wait_until(lambda: refused in refusal(kinds.try_create, job, trainer), seconds=30)
    plain = kinds.object("EnergyAwareJob", {"suspend": True, "gpus": gpus, "pipeline": given}, name="measuring")
    wait_until(lambda: refusal(kinds.try_create, plain, trainer) == "", seconds=30)
    trainer.create(kinds.path("EnergyAwareJob"), plain)
    assert refused in refusal(trainer.patch, path, {"spec": {"pipeline": measured}})
    editor.patch(path, {"spec": {"pipeline": measured}})
    trainer.patch(path, {"spec": {"pipeline": {"microbatches": 16}}})
    assert refused in refusal(trainer.patch, path, {"spec": {"pipeline": {"plan": {"configMap": "others"}}}})
    trainer.patch(path, {"spec": {"suspend": False}})
    trainer.delete(path)


def test_a_training_jobs_pods_have_no_label_that_a_jobs_could_not_have(editor: ApiClient, kinds: Any) -> None:
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "trainer", "image": "trainer"}]}}
    job = kinds.object("EnergyAwareJob", {"template": template})
    wait_until(lambda: "labels flyball.dev/* of spec.template" in refusal(kinds.try_create, job, editor), seconds=30)
    template["metadata"] = {"labels": {"app": "train"}}
    kinds.try_create(kinds.object("EnergyAwareJob", {"template": template}), editor)


def test_no_priority_is_above_what_the_quotas_of_the_namespace_allow(editor: ApiClient, kinds: Any) -> None:
    above = "spec.priority 11 is above the highestPriority 10 that EnergyQuota bounds-priority allows here"
    job = kinds.object("EnergyAwareJob", {"priority": 11}, name="prioritised")
    path = kinds.path("EnergyAwareJob", "prioritised")
    wait_until(lambda: refusal(kinds.try_create, job, editor) == "", seconds=30)
    editor.create(kinds.path("EnergyAwareJob"), job)
    quota = kinds.path("EnergyQuota", "bounds-priority")
    kinds.api.create(kinds.path("EnergyQuota"), kinds.object("EnergyQuota", {"highestPriority": 10}, "bounds-priority"))
    kinds.api.create(kinds.path("EnergyQuota"), kinds.object("EnergyQuota", name="bounds-gpus"))
    try:
        other = kinds.object("EnergyAwareJob", {"priority": 11})
        wait_until(lambda: above in refusal(kinds.try_create, other, editor), seconds=30)
        assert above in refusal(kinds.try_create, other, kinds.api)
        kinds.try_create(kinds.object("EnergyAwareJob", {"priority": 10}), editor)
        # What had it before keeps it, and may do all else.
        editor.patch(path, {"metadata": {"labels": {"team": "a"}}})
        assert "spec.priority 12 is above" in refusal(editor.patch, path, {"spec": {"priority": 12}})
        editor.patch(path, {"spec": {"priority": 10}})
        assert above in refusal(editor.patch, path, {"spec": {"priority": 11}})
        assert "cannot patch resource" in refusal(editor.patch, quota, {"spec": {"highestPriority": 100}})
    finally:
        for name in ("bounds-priority", "bounds-gpus"):
            kinds.api.delete(kinds.path("EnergyQuota", name))
        kinds.api.delete(path)


def test_the_book_of_a_quota_with_as_many_jobs_as_it_may_name_is_stored(kinds: Any) -> None:
    """etcd takes no object above 1.5 MB."""
    path = str(kinds.path("EnergyQuota", "long-book"))
    kinds.api.create(kinds.path("EnergyQuota"), kinds.object("EnergyQuota", name="long-book"))
    jobs = [{"uid": str(uuid.UUID(int=number)), "millijoules": 10**15} for number in range(MAX_COUNTED_JOBS)]
    for used in (1, 2):  # the second one comes over a whole first one
        period = {"start": "2030-01-01T00:00:00Z", "consumedKilojoules": used, "jobs": jobs}
        kinds.api.patch(f"{path}/status", {"status": {"energyPeriod": period}})
    assert len(kinds.api.get(path)["status"]["energyPeriod"]["jobs"]) == MAX_COUNTED_JOBS
    kinds.api.delete(path)


def test_the_operator_makes_config_maps_with_plans_of_jobs_alone_and_none_of_the_clusters_own(
    kinds: Any, operator: ApiClient
) -> None:
    def tried(namespace: str, **body: Any) -> str:
        config_map = {"metadata": {"name": "plan", "labels": {LABEL_JOB_NAME: "train"}}, "data": {"plan.json": "{}"}}
        path = f"/api/v1/namespaces/{namespace}/configmaps"
        return refusal(lambda: operator.request("POST", path, {**config_map, **body}, query=DRY))

    assert tried(kinds.namespace) == ""
    assert "with the plan of a job alone" in tried(kinds.namespace, metadata={"name": "plan"})
    assert "with the plan of a job alone" in tried(kinds.namespace, data={"plan.json": "{}", "other": ""})
    for own in (DEFAULT_NAMESPACE, "kube-system"):
        assert "no ConfigMap of the cluster's own" in tried(own)
