"""The images and the chart in real pods: installed, capped, upgraded under a running job, rolled back, and removed.

Everything acts with the chart's own accounts, under its own policies, through the kubelet; the GPUs are simulated behind
NVML's C interface. The tests share one cluster, and each begins with an installation that holds a cap.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from flyball_kube.errors import ApiError
from flyball_testbed.controlplane.nodes import NODES
from flyball_testbed.controlplane.programs.binaries import Binaries
from flyball_testbed.realnode.cluster import RealCluster

from tests.support.chart import CHART, NAMESPACE, Chart
from tests.support.installation import EARLIER_VERSION, NODE, Installation, earlier_chart, earlier_images
from tests.support.real_nodes import GPUS_PER_NODE
from tests.support.site_bench import CAPS, GPU_NODES, GROUP, condition, is_enforced_at, reason
from tests.support.waiting import wait_until

Json = dict[str, Any]

# The A100 that is simulated: 100 to 400 W each.
CAP = "cluster"
CAP_WATTS = GPUS_PER_NODE * 250
TRAINING = "training"
JOBS = f"{GROUP}/namespaces/{TRAINING}/energyawarejobs"
ENFORCE = "pod-security.kubernetes.io/enforce"
# Namespaces that are `restricted` let no pod mount a folder of the host: the sockets are devices there.
SETTINGS = ("agent.devicePluginsDir=/var/lib/kubelet/device-plugins", "operator.logLevel=DEBUG", "page.enabled=true")
# Pods that start beside a whole test run on two cores.
PATIENCE_SECONDS = 240.0
TIMEOUT_SECONDS = 900
VERSION = version("flyball")
ITERATIONS_DONE = 4321
# Says again and again how far it is, to its agent's socket; while its agent is replaced there is none.
TRAINER = rf"""
import json, os, signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
body = json.dumps({{"iterations": {ITERATIONS_DONE}, "windowIterations": 10, "windowSeconds": 2.5, "localBatchSize": 32}})
request = f"POST /v1/steps HTTP/1.1\r\nHost: agent\r\nContent-Length: {{len(body)}}\r\nConnection: close\r\n\r\n{{body}}"
while True:
    try:
        with socket.socket(socket.AF_UNIX) as agent:
            agent.settimeout(5)
            agent.connect(os.environ["FLYBALL_SOCKET"])
            agent.sendall(request.encode())
            agent.recv(4096)
    except OSError as error:
        print(error, flush=True)
    time.sleep(1)
"""


def trainer() -> Json:
    """A container under the strictest of the Pod Security Standards that runs until it is told to stop."""
    return {
        "name": "trainer",
        "image": f"localhost/flyball-agent:{EARLIER_VERSION}",
        "command": ["/opt/flyball/bin/python", "-c", TRAINER],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def job(name: str) -> Json:
    """A job of two GPUs that trains on and on."""
    return {
        "apiVersion": "flyball.dev/v1alpha1",
        "kind": "EnergyAwareJob",
        "metadata": {"name": name, "namespace": TRAINING},
        "spec": {
            "gpus": {"min": 2, "max": 2},
            "training": {"globalBatchSize": 64, "iterations": 1_000_000, "modelClass": "resnet50"},
            "template": {"spec": {"terminationGracePeriodSeconds": 10, "containers": [trainer()]}},
        },
    }


@pytest.fixture(scope="module")
def site(
    images: dict[str, Path], real_node_programs: Binaries, chart: Chart, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """A cluster with nothing of Flyball's in it, whose node has the images of this version and an earlier one."""
    directory = tmp_path_factory.mktemp("earlier")
    tars = [*images.values(), *earlier_images(images, directory)]
    with RealCluster.start(
        1, GPUS_PER_NODE, images=tars, install=False, startup_taint=True, binaries=real_node_programs
    ) as cluster:
        labels = {ENFORCE: "restricted"}
        cluster.api.create("/api/v1/namespaces", {"metadata": {"name": TRAINING, "labels": labels}})
        yield Installation(cluster, chart, earlier_chart(directory))


@pytest.fixture
def installation(site: Installation) -> Installation:
    """The earlier version, installed anew unless it runs, with a cap that is enforced."""
    if not site.revisions() or site.image_tags("operator") != {EARLIER_VERSION} or site.mode() != "govern":
        site.install(site.earlier, *SETTINGS)
    site.set_cap(CAP, CAP_WATTS)
    site.wait_enforced(CAP, CAP_WATTS)
    return site


@pytest.fixture
def running(installation: Installation) -> Iterator[Json]:
    """The pod of a job that trains; the job is gone afterwards."""
    api, path = installation.api, f"{JOBS}/trains"
    api.create(JOBS, job("trains"))
    api.wait_for(
        path, lambda found: condition(found, "PodsReady") == "True", timeout_seconds=PATIENCE_SECONDS, what="running"
    )
    pods = f"/api/v1/namespaces/{TRAINING}/pods"
    found = api.list_objects(pods)
    assert len(found) == 1, (installation.events(TRAINING), [pod["status"] for pod in found])
    yield found[0]
    api.delete(path)
    api.wait_for(pods, lambda found: not (found or {}).get("items"), timeout_seconds=PATIENCE_SECONDS, what="no pods")


def message(raw: Json | None, kind: str) -> str:
    """The message of a condition of an object, or ""."""
    listed = ((raw or {}).get("status") or {}).get("conditions") or ()
    return next((str(item["message"]) for item in listed if item["type"] == kind), "")


def containers(pod: Json) -> list[tuple[str, int]]:
    """Which containers a pod runs, and how often each was started again."""
    return [(status["containerID"], status["restartCount"]) for status in pod["status"]["containerStatuses"]]


@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_an_installation_that_observes_sets_and_starts_nothing(site: Installation) -> None:
    """The first thing that is installed; that the others then begin by governing is the upgrade that the documents name."""
    api, before = site.api, site.limits_watts()
    site.install(site.earlier, *SETTINGS, "mode=observe")
    site.set_cap(CAP, CAP_WATTS)
    api.wait_for(
        f"{GPU_NODES}/{NODE}",
        lambda node: ((node or {}).get("status") or {}).get("mode") == "Observing",
        timeout_seconds=PATIENCE_SECONDS,
        what="observing",
    )
    cap = api.wait_for(
        f"{CAPS}/{CAP}",
        # The word of what governing would come to needs an agent's report.
        lambda found: (
            "1600 W; governed, with the pods that run now, they would allow 400 W" in message(found, "Enforced")
            or before < GPUS_PER_NODE * 400
        ),
        timeout_seconds=PATIENCE_SECONDS,
        what="what would be granted",
    )
    assert (condition(cap, "Enforced"), reason(cap, "Enforced")) == ("False", "Observing")
    api.create(JOBS, job("waits"))
    waits = api.wait_for(
        f"{JOBS}/waits", lambda found: reason(found, "Admitted") == "Observing", timeout_seconds=PATIENCE_SECONDS
    )
    assert "governed, it would run on 2 GPUs" in message(waits, "Admitted")
    assert api.list_objects(f"/api/v1/namespaces/{TRAINING}/pods") == []
    assert re.search(r"Phase: +Succeeded", site.helm("test", "flyball"))
    assert site.limits_watts() == before
    (agent,) = site.metrics("agent")
    assert agent["flyball_gpu_up"] == GPUS_PER_NODE
    (leading,) = (each for each in site.metrics("operator") if each["flyball_leader"])
    assert "flyball_cap_enforced" not in leading
    assert 0 < leading["flyball_cap_if_governed_watts"] <= CAP_WATTS
    api.delete(f"{JOBS}/waits")


@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_what_is_installed_leads_acknowledges_and_holds_a_cap(installation: Installation, running: Json) -> None:
    api = installation.api
    lease = api.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/flyball-operator")
    leader = lease["spec"]["holderIdentity"]
    operators = [pod["metadata"]["name"] for pod in installation.pods("operator")]
    assert len(operators) == 2
    assert any(name in leader for name in operators), f"{leader} leads, and is none of {operators}"

    node = installation.wait_acknowledged()
    assert "flyball.dev" not in str(api.get(f"{NODES}/{NODE}")["spec"].get("taints")), "the node is open"
    assert len(node["status"]["devices"]) == GPUS_PER_NODE

    def held() -> int:
        """GPUs that the agent knows to be the job's, by the kubelet's word."""
        devices = api.get(f"{GPU_NODES}/{NODE}")["status"]["devices"]
        return sum((device.get("pod") or {}).get("name") == running["metadata"]["name"] for device in devices)

    wait_until(lambda: held() == 2, "the job's GPUs are known by the kubelet's word", PATIENCE_SECONDS)

    # Its namespace lets no pod mount a folder of the host: what it says of itself comes by a device of its own.
    assert "hostPath" not in str(running["spec"]["volumes"])
    api.wait_for(
        f"{JOBS}/trains",
        lambda found: (found["status"].get("progress") or {}).get("iterations") == ITERATIONS_DONE if found else False,
        timeout_seconds=PATIENCE_SECONDS,
        what="its report is seen",
    )

    # What the operator may do to Jobs that are not its own, by the chart's rights and policies: let them run, by power.
    alone = f"/apis/batch/v1/namespaces/{TRAINING}/jobs/alone"
    container = {**trainer(), "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}}
    by_power = {"name": "alone", "labels": {"flyball.dev/admission": "by-power"}}
    api.create(alone.rpartition("/")[0], {"metadata": by_power, "spec": {"suspend": True, "template": template}})
    api.wait_for(
        alone,
        lambda found: bool(found and not found["spec"]["suspend"]),
        timeout_seconds=PATIENCE_SECONDS,
        what="a batch Job is let run",
    )
    api.delete(alone, propagation="Background")
    pods = f"/api/v1/namespaces/{TRAINING}/pods"
    api.wait_for(
        pods, lambda found: len((found or {}).get("items", ())) == 1, timeout_seconds=PATIENCE_SECONDS, what="one pod"
    )

    # By the hardware, not by what anybody says.
    assert 0 < installation.limits_watts() <= CAP_WATTS
    floor = GPUS_PER_NODE * 100
    wait_until(lambda: installation.limits_watts() > floor, "the job has more than the least", PATIENCE_SECONDS)
    lower = floor + 100
    installation.set_cap(CAP, lower)
    installation.wait_enforced(CAP, lower)
    assert installation.limits_watts() <= lower
    assert re.search(r"Phase: +Succeeded", installation.helm("test", "flyball"))


@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_both_show_what_they_do_as_metrics(installation: Installation) -> None:
    operators = installation.metrics("operator")
    assert sorted(each["flyball_leader"] for each in operators) == [0.0, 1.0]
    (leading,) = (each for each in operators if each["flyball_leader"])
    assert (leading["flyball_cap_watts"], leading["flyball_cap_enforced"]) == (CAP_WATTS, 1)
    assert 0 < leading["flyball_cap_committed_watts"] <= CAP_WATTS
    (agent,) = installation.metrics("agent")
    assert 0 < agent["flyball_agent_held_watts"] <= CAP_WATTS
    assert agent["flyball_gpu_up"] == GPUS_PER_NODE


@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_the_page_is_reached_by_its_service_and_asks_who_comes(installation: Installation) -> None:
    """As from an ingress in the pod network, by the Service's own address; and by the API server's proxy."""
    api = installation.api
    service = f"/api/v1/namespaces/{NAMESPACE}/services/flyball-page"
    address = api.get(service)["spec"]["clusterIP"]
    plane = installation.cluster.devcluster.control_plane
    token = plane.token(NAMESPACE, "flyball-page")  # as the documents say, for who has no token of his own
    asks = """
import sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]} if sys.argv[2] else {})
try:
    answer = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.read().decode())
"""

    def ask(path: str, bearer: str = "") -> str:
        command = [sys.executable, "-I", "-S", "-c", asks, f"http://{address}/{path}", bearer]
        return installation.cluster.nodes[NODE].run(command)

    assert '<script type="module" src="static/main.js"' in ask("")
    assert ask("api/overview").startswith("401 ")
    assert ask("api/overview", "made-up").startswith("401 ")

    def in_force() -> tuple[str, int]:
        shown = ask("api/overview", token)
        assert shown.startswith("200 "), shown
        (cap,) = json.loads(shown.removeprefix("200 "))["caps"]
        return cap["name"], cap["inForceWatts"]

    # What it shows may be a second old, and the cap was another one until a moment ago.
    wait_until(lambda: in_force() == (CAP, CAP_WATTS), "the page shows the cap", PATIENCE_SECONDS)
    proxied = f"/api/v1/namespaces/{NAMESPACE}/services/http:flyball-page:http/proxy/readyz"
    assert api.request("GET", proxied) == {"state": "ready"}


@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_operators_are_admitted_where_pods_are_restricted(installation: Installation) -> None:
    api, namespace = installation.api, f"/api/v1/namespaces/{NAMESPACE}"
    api.patch(namespace, {"metadata": {"labels": {ENFORCE: "restricted"}}})
    try:
        # Admission sees the label a moment after it was set.
        privileged = {"containers": [{"name": "main", "image": "none", "securityContext": {"privileged": True}}]}

        def refused() -> bool:
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried"}, "spec": privileged}
            try:
                api.request("POST", f"{namespace}/pods", body, query={"dryRun": "All"})
            except ApiError as error:
                return "violates PodSecurity" in str(error)
            return False

        wait_until(refused, "privileged pods are refused")
        (old, *_) = names = {pod["metadata"]["name"] for pod in installation.pods("operator")}
        api.delete(f"{namespace}/pods/{old}")

        def replaced() -> bool:
            now = {pod["metadata"]["name"] for pod in installation.pods("operator")}
            return len(now) == 2 and bool(now - names)

        wait_until(replaced, "another operator is admitted", PATIENCE_SECONDS)
    finally:
        api.patch(namespace, {"metadata": {"labels": {ENFORCE: None}}})


@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_an_upgrade_and_a_rollback_hold_the_cap_and_leave_the_job_alone(
    installation: Installation, running: Json
) -> None:
    api = installation.api
    before = installation.revisions()[-1]["revision"]
    with installation.referee() as verdicts:
        installation.install(CHART, *SETTINGS)
        assert installation.image_tags("operator") == installation.image_tags("agent") == {VERSION}
        installation.wait_acknowledged()
        installation.wait_enforced(CAP, CAP_WATTS)
        installation.rollback(before)
        assert installation.image_tags("operator") == installation.image_tags("agent") == {EARLIER_VERSION}
        installation.wait_acknowledged()
        installation.wait_enforced(CAP, CAP_WATTS)
    (verdict,) = verdicts
    assert verdict.judged_seconds(CAP) > 1
    assert verdict.overshoot_watts(CAP) == 0
    # Also while a new leader had yet to adopt the node, and called nothing enforced.
    assert len(verdict.limits_watts) > 100
    assert max(verdict.limits_watts) <= CAP_WATTS
    after = {pod["metadata"]["uid"]: pod for pod in api.list_objects(f"/api/v1/namespaces/{TRAINING}/pods")}
    assert after.keys() == {running["metadata"]["uid"]}, installation.events(TRAINING)
    assert containers(after[running["metadata"]["uid"]]) == containers(running)


@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_removing_it_raises_nothing_and_leaves_nothing(installation: Installation) -> None:
    api = installation.api
    # A cap that is deleted holds on until somebody says that it need not.
    api.delete(f"{CAPS}/{CAP}")
    deleted = api.wait_for(f"{CAPS}/{CAP}", lambda cap: bool(cap and cap["metadata"].get("deletionTimestamp")))
    assert is_enforced_at(deleted, CAP_WATTS)
    api.patch(f"{CAPS}/{CAP}", {"metadata": {"annotations": {"flyball.dev/release": "true"}}})
    api.wait_gone(f"{CAPS}/{CAP}", timeout_seconds=PATIENCE_SECONDS)

    with_it, limits = installation.objects(), installation.limits_watts()
    installation.uninstall()
    assert installation.limits_watts() == limits, "who goes raises nothing"
    left = {name for name in installation.objects() if "flyball" in "/".join(name)}
    assert left < with_it
    kinds = {kind for kind, _, _ in left}
    # What was learned, and what the next installation goes on from.
    ours = {kind for kind in kinds if kind.endswith(".flyball.dev")}
    assert "gpunodes.flyball.dev" in ours
    assert ours <= {
        f"{name}.flyball.dev"
        for name in ("gpunodes", "energyprofiles", "energyreports", "powerbrakes", "brakeacknowledgements")
    }
    # With the namespace Kubernetes keeps an account and a ConfigMap in it; with the definitions, the API of their kinds.
    assert kinds - ours == {
        "apiservices.apiregistration.k8s.io",
        "configmaps",
        "customresourcedefinitions.apiextensions.k8s.io",
        "leases.coordination.k8s.io",
        "namespaces",
        "serviceaccounts",
    }
    kept = {name for kind, _, name in left if kind in ("configmaps", "leases.coordination.k8s.io", "serviceaccounts")}
    assert kept == {"default", "kube-root-ca.crt", "flyball-operator"}
