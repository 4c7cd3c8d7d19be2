"""Jobs that are planned and cannot start, on the real control plane: each says why, and none holds what it cannot use."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from flyball_api.names import LABEL_JOB_UID
from flyball_kube.errors import ApiError
from flyball_testbed.controlplane.api import Json
from flyball_testbed.controlplane.nodes import set_cordoned
from flyball_testbed.controlplane.stages import START_DELAY_ANNOTATION

from tests.support.site_bench import GROUP, Bench, applied_gpus, condition, message, reason

LONG = 1_000_000
RESERVED = {"key": "example.com/reserved", "value": "yes", "effect": "NoSchedule"}


def template(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod template with more in its spec than the usual."""
    trainer = {"name": "trainer", "image": "example.org/trainer"}
    return {"metadata": {"annotations": annotations or {}}, "spec": {"containers": [trainer], **spec}}


CPU_HUNGRY = {"name": "trainer", "image": "example.org/trainer", "resources": {"requests": {"cpu": "1000"}}}
MISSING_CLAIM: dict[str, Any] = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "missing"}}]}


@pytest.fixture
def reserved_nodes(bench: Bench) -> Iterator[None]:
    """Taints on the first three nodes, and a device plugin on the fourth that offers seven of its GPUs."""

    def taints(name: str) -> list[dict[str, str]]:
        return [taint for taint in bench.api.get(name)["spec"].get("taints") or () if taint["key"] != RESERVED["key"]]

    names = [f"/api/v1/nodes/node-00{number}" for number in range(4)]
    for name in names[:3]:
        bench.api.patch(name, {"spec": {"taints": [*taints(name), RESERVED]}})
    bench.api.patch(f"{names[3]}/status", {"status": {"allocatable": {"nvidia.com/gpu": "7"}}})
    yield
    for name in names[:3]:
        bench.api.patch(name, {"spec": {"taints": taints(name) or None}})
    bench.api.patch(f"{names[3]}/status", {"status": {"allocatable": {"nvidia.com/gpu": "8"}}})


@pytest.mark.parametrize(
    ("spec", "expected", "words"),
    [
        (MISSING_CLAIM, "Unschedulable", 'persistentvolumeclaim "missing" not found'),
        ({"nodeName": "node-000"}, "PodsRefused", "nodeName"),
        ({"serviceAccountName": "missing"}, "ServiceAccountNotFound", 'serviceaccount "missing" not found'),
    ],
    ids=["claim", "nodeName", "account"],
)
def test_pods_that_cannot_be_placed_say_why(bench: Bench, spec: dict[str, Any], expected: str, words: str) -> None:
    bench.submit("stuck", gpus=(2, 2), iterations=LONG, template=template(**spec))
    raw = bench.wait_said("stuck", "Placed", expected, words)
    assert raw["status"]["state"] == expected
    bench.wait_told("stuck", "Warning", expected, words)
    bench.submit("other", gpus=(2, 2), iterations=LONG)
    bench.wait_running("other")  # by then the first one has been looked at often
    assert sum(why == expected for _, why, _ in bench.events("stuck")) == 1, "told once"


@pytest.mark.parametrize(
    ("resource", "words"),
    [
        ("count/jobs.batch", "exceeded quota: bound, requested: count/jobs.batch=1"),
        ("pods", "exceeded quota: bound, requested: pods=1"),
        ("services", "exceeded quota: bound, requested: services=1"),
    ],
)
def test_a_quota_is_named_and_its_end_is_noticed(bench: Bench, resource: str, words: str) -> None:
    bench.set_quota({resource: "0"})
    bench.submit("denied", gpus=(2, 2), iterations=LONG, startupTimeoutSeconds=5)
    bench.wait_said("denied", "Placed", "QuotaExceeded", words)
    bench.wait_told("denied", "Warning", "QuotaExceeded", words)
    assert not any(pod["spec"].get("nodeName") for pod in bench.objects("pods")), "no gate is open"
    bench.wait_job("denied", lambda raw: (raw or {})["status"].get("startAttempts", 0) > 0, "given back")
    bench.wait_told(
        "denied", "Warning", "StartTimedOut", "its GPUs and watts are given back", words, "the next start is at"
    )
    bench.set_quota()
    bench.wait_running("denied")
    assert condition(bench.job("denied"), "Placed") == "True"


def test_pods_that_the_namespace_forbids_say_why(bench: Bench) -> None:
    bench.api.patch(
        f"/api/v1/namespaces/{bench.namespace}",
        {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
    )
    bench.submit("bold", gpus=(2, 2), iterations=LONG)
    words = 'violates PodSecurity "restricted'
    bench.wait_said("bold", "Placed", "PodSecurityViolated", words)
    bench.wait_told("bold", "Warning", "PodSecurityViolated", words)


def test_an_image_that_does_not_come_is_said(bench: Bench) -> None:
    bench.submit("pulling", gpus=(2, 2), iterations=LONG, template=template({START_DELAY_ANNOTATION: "1h"}))
    bench.wait_job("pulling", lambda raw: condition(raw, "Placed") == "True", "bound")
    (pod,) = bench.objects("pods")
    state = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "example.org/trainer"'}}
    waiting = {"name": "trainer", "image": "example.org/trainer", "imageID": "", "ready": False, "restartCount": 0}
    bench.api.patch(
        f"/api/v1/namespaces/{bench.namespace}/pods/{pod['metadata']['name']}/status",
        {"status": {"containerStatuses": [{**waiting, "state": state}]}},
    )
    raw = bench.wait_said("pulling", "PodsReady", "ImagePullFailed", 'Back-off pulling image "example.org/trainer"')
    assert (condition(raw, "Placed"), reason(raw, "Placed")) == ("True", "PodsBound")
    bench.wait_told("pulling", "Warning", "ImagePullFailed", 'Back-off pulling image "example.org/trainer"')
    # Its gates opened with its watts: that the image does not come is no doubt about the limits of its GPUs.
    bench.wait_job("pulling", lambda raw: condition(raw, "PowerLimitsEnforced") == "True", "its limits acknowledged")


def test_an_image_that_does_not_come_leaves_its_gpus_to_another(bench: Bench, neighbour: Bench) -> None:
    slow = template({START_DELAY_ANNOTATION: "1h"})
    bench.submit("pulling", gpus=(32, 32), iterations=LONG, template=slow, startupTimeoutSeconds=8)
    state = {"waiting": {"reason": "ErrImagePull", "message": "no such manifest"}}
    waiting = {"name": "trainer", "image": "example.org/trainer", "imageID": "", "ready": False, "restartCount": 0}

    def timed_out() -> bool:
        """Whether it is told so; the kubelets of its pods say why meanwhile."""
        for pod in bench.objects("pods"):
            if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]:
                path = f"/api/v1/namespaces/{bench.namespace}/pods/{pod['metadata']['name']}/status"
                with contextlib.suppress(ApiError):  # it is gone by now
                    bench.api.patch(path, {"status": {"containerStatuses": [{**waiting, "state": state}]}})
        words = ("ImagePullFailed", "ErrImagePull: no such manifest", "the next start is at")
        return any(why == "StartTimedOut" and all(word in note for word in words) for _, why, note in said())

    def said() -> list[tuple[str, str, str]]:
        return bench.events("pulling")

    bench.wait_job("pulling", lambda raw: condition(raw, "Placed") == "True", "bound")
    neighbour.submit("next", gpus=(32, 32), iterations=LONG)
    bench.wait(timed_out, lambda: f"told so; {said()}")
    neighbour.wait_running("next", 32)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"nodeSelector": {"disk": "ssd"}}, "0 of 4 nodes fit: 4 have no label disk=ssd"),
        ({"containers": [CPU_HUNGRY]}, "0 of 4 nodes fit: 4 have fewer than 1000 CPUs free"),
    ],
    ids=["selector", "cpu"],
)
def test_a_job_that_no_node_can_take_holds_nothing(bench: Bench, spec: dict[str, Any], words: str) -> None:
    bench.submit("picky", gpus=(2, 2), iterations=LONG, template={"spec": {**template()["spec"], **spec}})
    raw = bench.wait_said("picky", "Admitted", "NoNodeFits", words)
    assert (raw["status"]["state"], raw["status"]["explanation"]) == ("NoNodeFits", words)
    assert not bench.objects("jobs", "/apis/batch/v1")
    assert bench.wait_told("picky", "Warning", "NoNodeFits") == words
    if "nodeSelector" in spec:  # one comes that fits
        bench.label_node("node-000", "disk", "ssd")
        bench.wait_running("picky", 2)


def test_jobs_go_where_their_pods_fit(bench: Bench, reserved_nodes: None) -> None:
    """Three nodes are tainted, the fourth offers seven of its eight GPUs: of ten jobs nine run, each where it can."""
    for name, rack in (("node-000", "a"), ("node-001", "b"), ("node-002", "a")):
        bench.label_node(name, "rack", rack)
    racks = {"key": "rack", "operator": "In", "values": ["a"]}
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [racks]}]}
        }
    }
    tolerations = [{"key": "example.com/reserved", "operator": "Exists"}]
    wanted: dict[str, tuple[int, dict[str, Any] | None, set[str]]] = {
        **{f"either-{number}": (4, {"affinity": affinity}, {"node-000", "node-002"}) for number in range(4)},
        **{f"there-{number}": (4, {"nodeSelector": {"rack": "b"}}, {"node-001"}) for number in range(2)},
        **{f"free-{gpus}": (gpus, None, {"node-003"}) for gpus in (4, 2, 1)},
    }
    for name, (gpus, where, _) in wanted.items():
        given = {} if where is None else {"template": template(tolerations=tolerations, **where)}
        bench.submit(name, gpus=(gpus, gpus), iterations=LONG, **given)
    bench.submit("never", gpus=(8, 8), iterations=LONG)
    words = "0 of 4 nodes fit: 3 have taint example.com/reserved=yes, 1 has 7 of 8 GPUs"
    bench.wait_said("never", "Admitted", "NoNodeFits", words)
    bench.wait_told("never", "Warning", "NoNodeFits", words)
    for name, (gpus, _, nodes) in wanted.items():
        raw = bench.wait_running(name, gpus)
        assert {item["name"] for item in raw["status"]["applied"]["nodes"]} <= nodes, name


def test_a_cordoned_node_keeps_its_job_and_gets_no_other(bench: Bench) -> None:
    bench.submit("first", gpus=(4, 4), iterations=LONG)
    (place,) = bench.wait_running("first", 4)["status"]["applied"]["nodes"]
    set_cordoned(bench.api, place["name"])
    try:
        for number in range(3):
            bench.submit(f"other-{number}", gpus=(8, 8), iterations=LONG)
        for number in range(3):
            nodes = bench.wait_running(f"other-{number}", 8)["status"]["applied"]["nodes"]
            assert place["name"] not in {item["name"] for item in nodes}
        bench.submit("waits", gpus=(4, 4), iterations=LONG)
        bench.wait_job("waits", lambda raw: condition(raw, "Admitted") == "False", "waits")
        assert reason(bench.job("waits"), "Admitted") == "WaitingForGpus"
        first = bench.job("first") or {}
        assert (condition(first, "PodsReady"), first["status"]["applied"]["incarnation"]) == ("True", 1)
    finally:
        set_cordoned(bench.api, place["name"], cordoned=False)
    bench.wait_running("waits", 4)


def test_what_can_never_run_says_so(bench: Bench) -> None:
    bench.submit("giant", gpus=(64, 64), iterations=LONG)
    words = "needs 64 GPUs, and the cluster has 32 in 4 nodes"
    bench.wait_said("giant", "Admitted", "ExceedsCluster", words)
    assert bench.wait_told("giant", "Warning", "ExceedsCluster") == words


def test_an_elastic_job_runs_at_what_its_quota_leaves(bench: Bench) -> None:
    bench.set_quota({"requests.nvidia.com/gpu": "4"})
    bench.submit("bounded", gpus=(1, 8), iterations=LONG)
    bench.wait_running("bounded", 4)
    bench.submit("second", gpus=(4, 4), iterations=LONG, priority=-1)
    words = "needs 4 GPUs, and of the 4 of ResourceQuota bound"
    bench.wait_said("second", "Admitted", "QuotaExceeded", words)
    bench.wait_told("second", "Warning", "QuotaExceeded", words)


def test_gpus_that_a_job_cannot_use_go_to_another(bench: Bench) -> None:
    bench.submit("stuck", gpus=(32, 32), iterations=LONG, template=template(**MISSING_CLAIM), startupTimeoutSeconds=3)
    bench.wait_said("stuck", "Placed", "Unschedulable", "missing")
    bench.submit("next", gpus=(32, 32), iterations=LONG)
    bench.wait_running("next", 32)
    stuck = bench.wait_job(
        "stuck",
        lambda raw: condition(raw, "Admitted") == "False" and (raw or {})["status"].get("startAttempts", 0) >= 1,
        "given back",
    )
    assert applied_gpus(stuck) == 0
    bench.wait_told("stuck", "Warning", "StartTimedOut", "Unschedulable", "missing", "the next start is at")
    attempts = stuck["status"]["startAttempts"]
    bench.api.delete(bench.path("next"))
    # Its turn comes again, and again.
    bench.wait_job("stuck", lambda raw: (raw or {})["status"].get("startAttempts", 0) > attempts, "tried again")
    bench.wait_at_floor()


SECURITY = {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.mark.parametrize(
    ("spec", "quota", "labels", "kind", "expected", "words"),
    [
        ({"serviceAccountName": "missing"}, {}, {}, "Placed", "ServiceAccountNotFound", '"missing" not found'),
        ({"nodeName": "node-000"}, {}, {}, "Placed", "PodsRefused", "nodeName"),
        ({}, {"pods": "0"}, {}, "Placed", "QuotaExceeded", "requested: pods=1"),
        ({}, {"count/jobs.batch": "0"}, {}, "Placed", "QuotaExceeded", "requested: count/jobs.batch=1"),
        ({}, {"services": "0"}, {}, "Placed", "QuotaExceeded", "requested: services=1"),
        ({}, {}, SECURITY, "Placed", "PodSecurityViolated", "violates PodSecurity"),
    ],
    ids=["account", "nodeName", "pods", "jobs", "services", "security"],
)
def test_whatever_keeps_pods_from_running_their_gpus_go_to_another_namespace(
    bench: Bench,
    neighbour: Bench,
    spec: dict[str, Any],
    quota: dict[str, str],
    labels: dict[str, str],
    kind: str,
    expected: str,
    words: str,
) -> None:
    bench.set_quota(quota)
    bench.api.patch(f"/api/v1/namespaces/{bench.namespace}", {"metadata": {"labels": labels}})
    bench.submit("stuck", gpus=(32, 32), iterations=LONG, template=template(**spec), startupTimeoutSeconds=5)
    bench.wait_said("stuck", kind, expected, words)
    neighbour.submit("next", gpus=(32, 32), iterations=LONG)
    neighbour.wait_running("next", 32)
    bench.wait_told("stuck", "Warning", "StartTimedOut", expected, words, "the next start is at")
    stuck = bench.wait_job("stuck", lambda raw: (raw or {})["status"].get("startAttempts", 0) >= 1, "counted")
    assert applied_gpus(stuck) == 0


def posts_of_jobs(bench: Bench) -> int:
    """How often the API server has been asked to make a batch Job, dry runs included."""
    text = bench.api.request("GET", "/metrics")
    lines = re.findall(r"^apiserver_request_total{(.*)} (\S+)$", text, re.MULTILINE)
    return sum(int(float(count)) for labels, count in lines if 'resource="jobs"' in labels and 'verb="POST"' in labels)


def test_five_hundred_denied_jobs_are_no_storm_of_requests(bench: Bench) -> None:
    bench.set_quota({"count/jobs.batch": "0"})
    names = [f"denied-{number:03d}" for number in range(500)]
    before, gpus = posts_of_jobs(bench), sum(len(node["status"]["devices"]) for node in bench.gpu_nodes())
    bench.api.for_each(lambda name: bench.submit(name, gpus=(1, 1), iterations=LONG, startupTimeoutSeconds=5), names)

    def told() -> set[str]:
        jobs = bench.objects("energyawarejobs", GROUP)
        return {raw["metadata"]["name"] for raw in jobs if reason(raw, "Placed") == "QuotaExceeded"}

    bench.wait(lambda: bool(told()), lambda: "one of them says so")
    # As many as there are GPUs are made at once, before any was denied.
    bench.wait(lambda: posts_of_jobs(bench) >= before + gpus, lambda: f"asked: {posts_of_jobs(bench) - before}")
    asked, began = posts_of_jobs(bench), time.monotonic()
    # Where the next plan was late, as many again are.
    again = gpus + 40
    bench.wait(lambda: posts_of_jobs(bench) >= asked + again, lambda: f"they ask again: {posts_of_jobs(bench) - asked}")
    assert time.monotonic() - began > 40 / 5
    assert told()


def test_the_service_is_there_before_any_pod_runs_and_repaired(bench: Bench) -> None:
    bench.submit("wide", gpus=(16, 16), iterations=LONG)
    bench.wait_running("wide", 16)
    services = f"/api/v1/namespaces/{bench.namespace}/services"
    (first,) = bench.objects("services")
    assert first["metadata"]["ownerReferences"][0]["kind"] == "Job"
    bench.api.delete(f"{services}/wide-1")
    bench.wait(
        lambda: [item["metadata"]["uid"] for item in bench.objects("services")] not in ([], [first["metadata"]["uid"]]),
        lambda: "a new Service in its place",
    )
    batch_job = f"/apis/batch/v1/namespaces/{bench.namespace}/jobs/wide-1"
    bench.api.delete(batch_job, propagation="Background")  # by somebody's hand
    bench.wait(
        lambda: [item["metadata"]["name"] for item in bench.objects("services")] == ["wide-2"],
        lambda: f"the Service goes with its Job; {[item['metadata']['name'] for item in bench.objects('services')]}",
    )


DAMAGES: tuple[dict[str, Any], ...] = (
    {"spec": {"selector": {"app": "other"}}},
    {"spec": {"selector": {LABEL_JOB_UID: None}}},
    {"spec": {"publishNotReadyAddresses": False}},
    {"spec": {"ports": [{"name": "rendezvous", "port": 80}]}},
    {"spec": {"type": "ExternalName", "externalName": "example.org", "clusterIP": None}},
    {"metadata": {"labels": {LABEL_JOB_UID: None}}},
    {"metadata": {"ownerReferences": None}, "spec": {"selector": None}},
)


def test_a_damaged_service_is_put_right_while_the_job_runs(bench: Bench) -> None:
    bench.submit("wide", gpus=(16, 16), iterations=LONG)
    bench.wait_running("wide", 16)
    path = f"/api/v1/namespaces/{bench.namespace}/services/wide-1"
    made = bench.api.patch(path, {"metadata": {"annotations": {"theirs": "kept"}}})
    pods = {pod["metadata"]["uid"] for pod in bench.objects("pods")}
    for damage in DAMAGES:
        assert as_made(bench.api.patch(path, damage)) != as_made(made), damage
        what = f"put right after {damage}"
        mended = bench.api.wait_for(path, lambda raw: raw is not None and as_made(raw) == as_made(made), what=what)
        assert mended["metadata"]["uid"] == made["metadata"]["uid"]
    assert {pod["metadata"]["uid"] for pod in bench.objects("pods")} == pods
    assert (bench.job("wide") or {})["status"]["applied"]["incarnation"] == 1


def as_made(service: Json) -> Json:
    """What somebody could have changed of a Service."""
    metadata = {key: service["metadata"].get(key) for key in ("labels", "annotations", "ownerReferences")}
    return {**metadata, "spec": service["spec"]}


def test_a_misspelt_field_of_the_template_is_refused(bench: Bench) -> None:
    trainer = {"name": "trainer", "image": "example.org/trainer", "volumeMount": []}
    bench.submit("typo", gpus=(2, 2), iterations=LONG, template={"spec": {"containers": [trainer]}})
    raw = bench.wait_said(
        "typo", "Admitted", "InvalidSpec", 'unknown field "spec.template.spec.containers[0].volumeMount"'
    )
    assert message(raw, "Admitted") == raw["status"]["explanation"]
    assert bench.wait_told("typo", "Warning", "InvalidSpec") == message(raw, "Admitted")
    assert not any(why == "Admitted" for _, why, _ in bench.events("typo")), "nothing is taken back"
    assert not bench.objects("services"), "nothing is left of it"


def test_a_misspelt_field_is_refused_long_before_there_are_gpus(bench: Bench) -> None:
    bench.submit("first", gpus=(32, 32), iterations=LONG)
    bench.wait_running("first", 32)
    trainer = {"name": "trainer", "image": "example.org/trainer", "resource": {}}
    bench.submit("typo", gpus=(32, 32), iterations=LONG, template={"spec": {"containers": [trainer]}})
    bench.wait_said("typo", "Admitted", "InvalidSpec", 'unknown field "spec.template.spec.containers[0].resource"')


def test_a_job_that_an_admission_policy_denies_runs_once_the_policy_allows_it(bench: Bench) -> None:
    name = f"tags-{bench.namespace}"
    path = "/apis/admissionregistration.k8s.io/v1"
    rules = [{"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}]
    own = {"matchLabels": {"kubernetes.io/metadata.name": bench.namespace}}
    tagged = "object.spec.template.spec.containers.all(c, c.image.contains(':'))"
    policy = {
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": rules, "namespaceSelector": own},
            "validations": [{"expression": tagged, "message": "images need a tag"}],
        },
    }
    binding = {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}
    bench.api.create(f"{path}/validatingadmissionpolicies", policy)
    bench.api.create(f"{path}/validatingadmissionpolicybindings", binding)
    try:
        bench.wait(lambda: _is_denied(bench), lambda: "the policy in force")
        bench.submit("untagged", gpus=(2, 2), iterations=LONG)
        bench.wait_said("untagged", "Admitted", "InvalidSpec", "images need a tag")
        bench.wait_told("untagged", "Warning", "InvalidSpec", "images need a tag")
    finally:
        bench.api.delete(f"{path}/validatingadmissionpolicybindings/{name}")
        bench.api.delete(f"{path}/validatingadmissionpolicies/{name}")
    bench.wait_running("untagged", 2)


def _is_denied(bench: Bench) -> bool:
    """Whether a Job without a tag is refused by now: policies take a moment."""
    spec = {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "untagged"}]}}}
    path = f"/apis/batch/v1/namespaces/{bench.namespace}/jobs"
    try:
        bench.api.request("POST", path, {"metadata": {"name": "asks"}, "spec": spec}, query={"dryRun": "All"})
    except ApiError as error:
        return "images need a tag" in str(error)
    return False


def test_templates_that_are_nested_too_deep_are_refused_and_hide_nobody(bench: Bench) -> None:
    """The API server takes them, for it does not look into the template; a parser of JSON has its bounds, too."""
    depths = (70, 400, 990, 1100, 5000)
    for depth in depths:
        deep = orjson.Fragment(b'{"a": ' * depth + b"{}" + b"}" * depth)
        bench.submit(f"deep-{depth}", gpus=(2, 2), iterations=LONG, template=template(deep=deep))
    bench.submit("large", gpus=(2, 2), iterations=LONG, template=template(filler=[[]] * 20_000))
    bench.submit("plain", gpus=(2, 2), iterations=LONG)
    bench.wait_running("plain", 2)
    watts = int(bench.floor_watts()) + 60
    bench.set_cap("low", watts)
    bench.wait_enforced("low", watts)
    for depth in depths:
        bench.wait_said(f"deep-{depth}", "Admitted", "InvalidSpec", "spec.template is nested more than 64 levels deep")
    bench.wait_said("large", "Admitted", "InvalidSpec", "spec.template has more than 10,000 fields and entries")
    bench.submit("later", gpus=(2, 2), iterations=LONG)
    bench.wait_job("later", lambda raw: condition(raw, "Admitted") is not None, "seen")


def test_a_damaged_job_is_made_anew(bench: Bench) -> None:
    bench.submit("hurt", gpus=(2, 2), iterations=LONG)
    bench.wait_running("hurt")
    bench.api.patch(
        f"/apis/batch/v1/namespaces/{bench.namespace}/jobs/hurt-1",
        {"metadata": {"annotations": {"flyball.dev/allocation": "nonsense"}}},
    )
    bench.wait_job(
        "hurt", lambda raw: ((raw or {})["status"].get("applied") or {}).get("incarnation") == 2, "running anew"
    )
