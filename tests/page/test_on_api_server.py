"""The page's own process against a real API server, with the rights of `deploy/base` and accounts of every kind."""

from __future__ import annotations

import json
import socket
import subprocess
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from flyball_testbed.controlplane.api import ApiClient, Json
from flyball_testbed.controlplane.ports import free_port

from tests.support import shown_cluster
from tests.support.control_plane import IsolatedCluster
from tests.support.waiting import wait_until

GROUP = "/apis/flyball.dev/v1alpha1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
PROGRAM = str(Path(sysconfig.get_path("scripts")) / "flyball")
ACCOUNT = "flyball-page"
SYSTEM = "flyball-system"
SELF_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy the environment names
SELF_REVIEW = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}


def create_with_status(api: ApiClient, collection: str, raw: Json) -> None:
    """Create an object as the API server takes it, and then its status."""
    raw = deepcopy(raw)
    status = raw.pop("status", None)
    for field in ("uid", "resourceVersion", "creationTimestamp", "generation", "finalizers"):
        raw["metadata"].pop(field, None)
    api.create(collection, raw)
    if status is not None:
        api.patch(f"{collection}/{raw['metadata']['name']}/status", {"status": status})


class Page:
    """The page's process, and its documents as an account sees them."""

    def __init__(self, address: str, process: subprocess.Popen[str]) -> None:
        self.address, self.process = address, process

    def get(self, path: str, token: str = "") -> tuple[int, Any]:
        request = urllib.request.Request(self.address + path)  # noqa: S310 - our own process on loopback
        if token:
            request.add_header("Flyball-Authorization", f"Bearer {token}")
        try:
            with DIRECT.open(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError as error:
            return 0, str(error)

    def document(self, path: str, token: str = "") -> Any:
        status, found = self.get(path, token)
        assert status == 200, found
        return found


@pytest.fixture
def start_page(cluster: IsolatedCluster, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Starts pages with the rights of the page's own account."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, address: str = "127.0.0.1") -> Page:
        plane = cluster.devcluster.control_plane
        config = plane.service_account_kubeconfig(SYSTEM, ACCOUNT)
        port = free_port()
        arguments = ("--address", address, *arguments)
        log = (tmp_path / "page.log").open("w")
        process = subprocess.Popen(
            [PROGRAM, "page", "run", "--kubeconfig", str(config), "--port", str(port), *arguments],
            stdout=log, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        started.append(process)
        page = Page(f"http://{address}:{port}/", process)
        wait_until(
            lambda: page.get("readyz")[0] == 200 or process.poll() is not None,
            lambda: f"the page is ready: {page.get('readyz')}; {(tmp_path / 'page.log').read_text()[-2000:]}",
        )
        assert process.poll() is None, (tmp_path / "page.log").read_text()[-2000:]
        return page

    yield start
    for process in started:
        process.terminate()
        assert process.wait(30) == 0


def fill(cluster: IsolatedCluster) -> None:
    """The small cluster, its job in the test's namespace."""
    objects = shown_cluster.cluster()
    for cap in objects["caps"]:
        create_with_status(cluster.api, f"{GROUP}/powercaps", cap)
    for node in objects["gpu_nodes"]:
        for device in node["status"]["devices"]:
            device["conditions"] = [
                {"reason": "Made", "message": "", "lastTransitionTime": shown_cluster.SINCE, **each}
                for each in device["conditions"]
            ]
        create_with_status(cluster.api, f"{GROUP}/gpunodes", node)
    job = deepcopy(objects["jobs"][0])
    job["metadata"]["namespace"] = cluster.namespace
    create_with_status(cluster.api, f"{GROUP}/namespaces/{cluster.namespace}/energyawarejobs", job)


def test_the_page_shows_what_the_api_server_has_and_follows_it(
    cluster: IsolatedCluster, start_page: Callable[..., Page]
) -> None:
    fill(cluster)
    page = start_page()
    overview = page.document("api/overview")
    assert {cap["name"]: cap["committedWatts"] for cap in overview["caps"]} == {"cluster": 900, "row-a": 400}
    assert (overview["missing"], overview["problems"]) == ({}, [])
    assert overview["operator"]["holder"] == ""  # there is no Lease: nobody leads, and that is known
    assert set(page.document("api/nodes")["name"]) == {"node-a", "node-b"}
    (job,) = [each for each in page.document("api/jobs")["jobs"] if each["namespace"] == cluster.namespace]
    assert (job["name"], job["gpus"]) == ("train", 1)
    whole = page.document(f"api/jobs/{cluster.namespace}/train")
    assert ([point["clockMegahertz"] for point in whole["frontier"]], whole["onlyEnds"]) == ([1410, 1005], True)
    profiles = f"{GROUP}/namespaces/{cluster.namespace}/energyprofiles"
    create_with_status(cluster.api, profiles, shown_cluster.profile(cluster.namespace))

    def drawn() -> list[int]:
        return [point["kilojoules"] for point in page.document(f"api/jobs/{cluster.namespace}/train")["frontier"]]

    wait_until(lambda: drawn() == [600, 525, 480], "the whole frontier follows from what was learned")

    cluster.api.patch(f"{GROUP}/powercaps/row-a/status", {"status": {"measuredWatts": 351}})

    def measured() -> int:
        caps = {cap["name"]: cap for cap in page.document("api/overview")["caps"]}
        return int(caps["row-a"]["measured"]["watts"])

    wait_until(lambda: measured() == 351, "the change is shown")
    assert page.get("api/history/row-a")[0] == 404, "without a leader nothing of it is called known"

    # An operator begins to lead, and gives a sign: from then on what it says is of now.
    lease = {**shown_cluster.lease(), "apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
    cluster.api.create(leases, {**lease, "spec": {**lease["spec"], "leaseDurationSeconds": 600}})
    wait_until(lambda: page.document("api/overview")["operator"]["holder"] == "operator-1", "the leader is shown")
    wait_until(lambda: page.get("api/history/row-a")[0] == 200, "the history begins")
    assert page.document("api/history/row-a")["measuredWatts"][-1] == 351


def test_an_account_sees_what_it_may_list(cluster: IsolatedCluster, start_page: Callable[..., Page]) -> None:
    fill(cluster)
    api, plane = cluster.api, cluster.devcluster.control_plane
    bound: list[str] = []
    tokens = {}
    for account, roles in {"nobody": [], "viewer": ["flyball-power-viewer"], "sre": ["flyball-sre"]}.items():
        api.create(f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts", {"metadata": {"name": account}})
        subject = {"kind": "ServiceAccount", "name": account, "namespace": cluster.namespace}
        for role in roles:
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
            binding = f"test-page-{account}"
            bound.append(binding)
            api.create(
                f"{RBAC}/clusterrolebindings",
                {"metadata": {"name": binding}, "roleRef": reference, "subjects": [subject]},
            )
        tokens[account] = plane.token(cluster.namespace, account)
    # Who may view one namespace, as most people may; `view` itself has these rights by aggregation.
    api.create(f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts", {"metadata": {"name": "user"}})
    of_users = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "flyball-aggregate-to-view"}
    user = {"kind": "ServiceAccount", "name": "user", "namespace": cluster.namespace}
    bindings = f"{RBAC}/namespaces/{cluster.namespace}/rolebindings"
    api.create(bindings, {"metadata": {"name": "test-page-user"}, "roleRef": of_users, "subjects": [user]})
    tokens["user"] = plane.token(cluster.namespace, "user")
    # Who may see the jobs there, and nothing of what was learned of them.
    api.create(f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts", {"metadata": {"name": "jobs"}})
    rule = {"apiGroups": ["flyball.dev"], "resources": ["energyawarejobs"], "verbs": ["list"]}
    api.create(f"{RBAC}/namespaces/{cluster.namespace}/roles", {"metadata": {"name": "jobs"}, "rules": [rule]})
    of_jobs = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "jobs"}
    subjects = [{**user, "name": "jobs"}]
    api.create(bindings, {"metadata": {"name": "test-page-jobs"}, "roleRef": of_jobs, "subjects": subjects})
    tokens["jobs"] = plane.token(cluster.namespace, "jobs")
    try:
        page = start_page("--authenticate")
        assert page.get("api/overview")[0] == 401
        assert page.get("api/overview", "made-up")[0] == 401
        expected = {"nobody": (403, 403), "viewer": (200, 403), "sre": (200, 200)}
        for account, statuses in expected.items():
            # A binding takes the API server a moment to count, and the page keeps a refusal for a while.
            if account != "nobody":
                wait_until(lambda account=account: may_list(plane.api_with_token(tokens[account]), "gpunodes"))  # type: ignore[misc]
            seen = tuple(page.get(path, tokens[account])[0] for path in ("api/nodes", "api/jobs"))
            assert seen == statuses, account
        wait_until(lambda: may_list(plane.api_with_token(tokens["user"]), "energyawarejobs", cluster.namespace))
        assert page.get("api/nodes", tokens["user"])[0] == 403
        assert page.document("api/jobs", tokens["user"])["namespaces"] == [cluster.namespace]
        wait_until(lambda: may_list(plane.api_with_token(tokens["jobs"]), "energyawarejobs", cluster.namespace))
        sent = {each: page.document(f"api/jobs/{cluster.namespace}/train", tokens[each]) for each in ("user", "jobs")}
        assert {each: found["job"]["name"] for each, found in sent.items()} == {"user": "train", "jobs": "train"}
        assert {each: found["profiles"] for each, found in sent.items()} == {"user": [], "jobs": None}
        status, answer = page.get("api/overview", tokens["nobody"])
        assert status == 403
        assert f"system:serviceaccount:{cluster.namespace}:nobody may not list powercaps" in answer["reason"]
    finally:
        for binding in bound:
            api.delete(f"{RBAC}/clusterrolebindings/{binding}")


def may_list(client: ApiClient, resource: str, namespace: str = "") -> bool:
    attributes = {"group": "flyball.dev", "resource": resource, "verb": "list", "namespace": namespace}
    answer = client.create(SELF_REVIEWS, {**SELF_REVIEW, "spec": {"resourceAttributes": attributes}})
    client.close()
    return bool(answer["status"]["allowed"])


@pytest.fixture
def own_address() -> str:
    """An address of this machine that is not loopback, to which alone the API server leads no proxy."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        try:
            sender.connect(("198.51.100.1", 9))  # sends nothing: it asks which address would be used
        except OSError as error:
            pytest.skip(f"this machine has no address but loopback: {error}")
        address = str(sender.getsockname()[0])
    if urllib.request.getproxies().get("http") and not urllib.request.proxy_bypass(address):
        pytest.skip(f"the API server would ask this machine's HTTP proxy for {address}: put it into no_proxy")
    return address


def test_it_works_behind_kubectl_proxy(
    cluster: IsolatedCluster, start_page: Callable[..., Page], own_address: str
) -> None:
    """Through kubectl's own proxy and the API server's, to a Service whose pod is the page's process here."""
    fill(cluster)
    page = start_page("--authenticate", address=own_address)
    port = int(page.address.rstrip("/").rpartition(":")[2])
    api, plane = cluster.api, cluster.devcluster.control_plane
    pod = {"metadata": {"name": "page"}, "spec": {"schedulerName": "none", "containers": [{"name": "a", "image": "a"}]}}
    api.create(cluster.path("pods"), pod)
    running = {"phase": "Running", "podIP": own_address, "podIPs": [{"ip": own_address}]}
    api.patch(f"{cluster.path('pods', 'page')}/status", {"status": running})
    ports = [{"name": "http", "port": port}]
    api.create(cluster.path("services"), {"metadata": {"name": "flyball-page"}, "spec": {"ports": ports}})
    target = {"kind": "Pod", "namespace": cluster.namespace, "name": "page"}
    endpoints = [{"addresses": [{"ip": own_address, "targetRef": target}], "ports": ports}]
    api.create(cluster.path("endpoints"), {"metadata": {"name": "flyball-page"}, "subsets": endpoints})

    proxy = subprocess.Popen(
        [str(plane.kubectl), "--kubeconfig", str(cluster.devcluster.kubeconfig), "proxy", "--port=0"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert proxy.stdout is not None
        local = proxy.stdout.readline().split()[-1]  # Starting to serve on 127.0.0.1:PORT
        service = f"/api/v1/namespaces/{cluster.namespace}/services/http:flyball-page:http/proxy/"
        behind = Page(f"http://{local}{service}", page.process)
        wait_until(lambda: behind.get("readyz")[0] == 200, lambda: f"the page is reached: {behind.get('readyz')}")
        assert behind.get("api/nodes")[0] == 401
        token = plane.token(SYSTEM, "flyball-operator")
        wait_until(
            lambda: behind.get("api/nodes", token)[0] == 200,
            lambda: f"a token is taken: {behind.get('api/nodes', token)}",
        )
        assert set(behind.document("api/nodes", token)["name"]) == {"node-a", "node-b"}
    finally:
        proxy.terminate()
        proxy.wait(30)


def test_the_page_s_account_can_write_nothing(cluster: IsolatedCluster) -> None:
    plane = cluster.devcluster.control_plane
    client = plane.api_with_token(plane.token(SYSTEM, ACCOUNT))
    try:
        for group, resource in (
            ("flyball.dev", "powercaps"), ("flyball.dev", "gpunodes"), ("flyball.dev", "energyawarejobs"),
            ("flyball.dev", "powerbrakes"), ("", "nodes"), ("", "pods"), ("", "secrets"), ("coordination.k8s.io", "leases"),
        ):  # fmt: skip
            for verb in ("create", "update", "patch", "delete", *(("get",) if resource == "secrets" else ())):
                attributes = {"group": group, "resource": resource, "verb": verb, "namespace": SYSTEM}
                answer = client.create(SELF_REVIEWS, {**SELF_REVIEW, "spec": {"resourceAttributes": attributes}})
                assert not answer["status"]["allowed"], (verb, resource)
    finally:
        client.close()
