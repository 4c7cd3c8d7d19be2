"""The chart's NetworkPolicies in force: kube-router's firewall on two real nodes, over pods that listen as the chart's do.

kube-router is built by `make test-integrations`. The pods are stand-ins with the labels, ports and probes that the chart
renders; who reaches which of their ports is tried by connecting, before the policies, under them and after them.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flyball_testbed.controlplane import network
from flyball_testbed.controlplane.components import SERVICE_RANGE
from flyball_testbed.controlplane.credentials import issue, write_certificate_kubeconfig
from flyball_testbed.controlplane.processes import Process
from flyball_testbed.controlplane.programs.binaries import Binaries
from flyball_testbed.controlplane.programs.integrations import KUBE_ROUTER, find_integration
from flyball_testbed.realnode.cluster import RealCluster

from tests.support.chart import NAMESPACE, Chart
from tests.support.own_targets import integrations
from tests.support.real_nodes import TOOLS_IMAGE
from tests.support.waiting import wait_until

Json = dict[str, Any]

pytestmark = [*integrations, pytest.mark.timeout(1800)]

PATIENCE_SECONDS = 120.0
# Nothing answers where packets are dropped, and somebody refuses where they are rejected: neither is a connection.
CONNECT_SECONDS = 3
# What each of the chart's pods is rendered in, and the node on which it stands here.
WORKLOADS = {
    "operator": ("Deployment", "real-1"),
    "agent": ("DaemonSet", "real-2"),
    "page": ("Deployment", "real-1"),
}
# Who tries: by name the namespace, which is labelled with its own name as its team, and the node.
CLIENTS = {
    "prometheus": ("monitoring", "real-1"),
    "ingress": ("edge", "real-2"),
    "stranger": ("elsewhere", "real-2"),
    "neighbour": (NAMESPACE, "real-1"),
}
# A port on which each of the chart's pods listens here, and that the chart says nothing of.
UNDECLARED = 9999
STRANGERS_PORT = 8000
EVERYTHING = {
    "operator:9400", "operator:8080", "agent:9101", "page:8090", "page's Service",
    "operator:9999", "agent:9999", "page:9999",
}  # fmt: skip
METRICS, PAGE = {"operator:9400", "agent:9101"}, {"page:8090", "page's Service"}
PROBES = {"operator:8080"}
NARROWED: Json = {
    "networkPolicies.metricsFrom": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}],
    "networkPolicies.pageFrom": [{"namespaceSelector": {"matchLabels": {"team": "edge"}}}],
}
READINESS_FILES = "/www/healthz /www/readyz"
# What kube-router asks of the API server where it does nothing but enforce policies.
RIGHTS = [
    {
        "apiGroups": [group],
        "resources": resources,
        "verbs": ["get", "list", "watch"],
    }
    for group, resources in {
        "": ["endpoints", "namespaces", "nodes", "pods", "services"],
        "discovery.k8s.io": ["endpointslices"],
        "networking.k8s.io": ["networkpolicies"],
    }.items()
]


def obstacle() -> str:
    """Why kube-router could set no rules on this machine's nodes; empty where it can."""
    if os.geteuid() != 0:
        return "packet filters need root"
    try:
        tools = [network.tool(name) for name in ("ipset", "iptables", "iptables-save", "iptables-restore")]
    except network.NetworkError as error:
        return f"{error} (apt-get install iptables ipset)"
    ipset, iptables, *_ = tools
    tried = f"{ipset} create tried hash:ip && {iptables} -A FORWARD -m set --match-set tried src -j REJECT"
    answer = subprocess.run(
        [network.tool("unshare"), "--net", "sh", "-c", tried], capture_output=True, text=True, check=False, timeout=30
    )
    return f"the kernel has no sets of addresses: {answer.stderr.strip()}" if answer.returncode != 0 else ""


def pod(name: str, namespace: str, node: str, script: str, labels: Json, probe: Json | None = None) -> Json:
    """A pod of the image of tools, on a node by its name."""
    container: Json = {"name": "main", "image": TOOLS_IMAGE, "command": ["sh", "-c", f"{script} exec sleep 86400"]}
    if probe is not None:
        container["readinessProbe"] = probe
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [container]},
    }


def serving(ports: Collection[int]) -> str:
    """A script that answers on ports, and on the paths that probes ask for with 200."""
    servers = " ".join(f"busybox httpd -p {port} -h /www;" for port in ports)
    return f"busybox mkdir /www; busybox touch {READINESS_FILES}; {servers}"


def stand_in(component: str, workload: Json, node: str) -> tuple[Json, list[Json]]:
    """A pod with the labels, the ports and the readiness probe of one of the chart's; and the ports."""
    template = workload["spec"]["template"]
    (container,) = (each for each in template["spec"]["containers"] if each.get("ports"))
    ports: list[Json] = container["ports"]
    numbers = {port["name"]: port["containerPort"] for port in ports}
    probe = container["readinessProbe"]
    probe["httpGet"]["port"] = numbers[probe["httpGet"]["port"]]
    script = serving([*numbers.values(), UNDECLARED])
    made = pod(component, NAMESPACE, node, script, template["metadata"]["labels"], probe)
    made["spec"]["containers"][0]["ports"] = ports
    return made, ports


@dataclass(frozen=True)
class Enforced:
    """Two nodes on which policies are enforced, and the pods between which they are."""

    cluster: RealCluster
    targets: dict[str, tuple[str, int]]
    enforcers: list[Process]

    def run(self, client: str, script: str) -> str:
        """Run a script in a pod; its output. Raises AssertionError where it fails."""
        namespace = CLIENTS[client][0] if client in CLIENTS else NAMESPACE
        plane = self.cluster.devcluster.control_plane
        answer = subprocess.run(
            [plane.kubectl, f"--kubeconfig={plane.kubeconfig()}", f"--namespace={namespace}",
             "exec", client, "--", "sh", "-c", script],
            capture_output=True, text=True, check=False, timeout=90,
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def reached(self, client: str, targets: dict[str, tuple[str, int]] | None = None) -> set[str]:
        """To which of the targets, by default all that the policies are of, a pod can connect."""
        tries = "".join(
            f'nc -w {CONNECT_SECONDS} {address} {port} </dev/null >/dev/null 2>&1 && echo "{name}" &\n'
            for name, (address, port) in (targets or self.targets).items()
        )
        return set(self.run(client, f"{tries} wait").splitlines())

    def reach(self) -> dict[str, set[str]]:
        """`reached` of each client."""
        assert all(enforcer.is_running() for enforcer in self.enforcers), self.logs()
        return {client: self.reached(client) for client in CLIENTS}

    def wait_reach(self, wanted: dict[str, set[str]], what: str) -> None:
        """Wait until each client reaches what is wanted, and nothing else."""
        seen: dict[str, set[str]] = {}

        def as_wanted() -> bool:
            seen.update(self.reach())
            return seen == wanted

        wait_until(as_wanted, lambda: f"{what}: {seen}\n{self.logs()}", PATIENCE_SECONDS)

    def wait_ready(self, component: str, state: str) -> None:
        """Wait until the kubelet says of a pod that it is ready (`True`) or not (`False`)."""
        self.cluster.api.wait_for(
            f"/api/v1/namespaces/{NAMESPACE}/pods/{component}",
            lambda found: any(
                condition["type"] == "Ready" and condition["status"] == state
                for condition in ((found or {}).get("status") or {}).get("conditions") or ()
            ),
            timeout_seconds=PATIENCE_SECONDS,
            what=f"Ready {state}",
        )

    def logs(self) -> str:
        return "\n".join(f"--- {enforcer.name}\n{enforcer.log_tail(15)}" for enforcer in self.enforcers)


def start_enforcer(cluster: RealCluster, program: Path, name: str, kubeconfig: Path) -> Process:
    """kube-router on a node, in all of the node's namespaces, with nothing to do but policies. It ends with the node."""
    node = cluster.nodes[name]
    inside = [network.tool("nsenter"), f"--target={node.pid}", "--mount", "--net", "--pid", "--uts", "--ipc"]
    return Process.spawn(
        f"{KUBE_ROUTER} on {name}",
        [*inside, str(program), "--run-firewall=true", "--run-router=false", "--run-service-proxy=false",
         f"--service-cluster-ip-range={SERVICE_RANGE}", f"--kubeconfig={kubeconfig}", "--health-port=0", "--v=1"],
        log_path=node.machine.log(KUBE_ROUTER),
        environment={"NODE_NAME": name, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "NO_PROXY": "*"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def enforced(real_node_programs: Binaries, tools_image: Path, chart: Chart) -> Iterator[Enforced]:
    """The nodes with kube-router, the stand-ins and who tries; no policy."""
    reason = obstacle()
    if reason:
        pytest.skip(reason)
    program = find_integration(KUBE_ROUTER)
    enforcers: list[Process] = []
    with RealCluster.start(2, 0, images=[tools_image], binaries=real_node_programs, install=False) as cluster:
        api, plane = cluster.api, cluster.devcluster.control_plane
        named = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": KUBE_ROUTER}}
        api.apply({**named, "kind": "ClusterRole", "rules": RIGHTS})
        group = "rbac.authorization.k8s.io"
        role = {"apiGroup": group, "kind": "ClusterRole", "name": KUBE_ROUTER}
        subject = {"apiGroup": group, "kind": "User", "name": KUBE_ROUTER}
        api.apply({**named, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]})
        issue(plane.layout, KUBE_ROUTER, KUBE_ROUTER, None, "localhost")
        kubeconfig = cluster.directory / f"{KUBE_ROUTER}.kubeconfig"
        write_certificate_kubeconfig(plane.layout, plane.node_server_url, KUBE_ROUTER, kubeconfig)
        enforcers += [start_enforcer(cluster, program, name, kubeconfig) for name in cluster.nodes]

        for namespace in dict.fromkeys(namespace for namespace, _ in CLIENTS.values()):
            labels = {"team": namespace}
            api.create("/api/v1/namespaces", {"metadata": {"name": namespace, "labels": labels}})
            account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
            api.wait_for(account, lambda found: found is not None)
        made = [
            pod(name, namespace, node, serving([STRANGERS_PORT]), {}) for name, (namespace, node) in CLIENTS.items()
        ]
        ports: dict[str, list[Json]] = {}
        for component, (kind, node) in WORKLOADS.items():
            workload = chart.one(kind, f"flyball-{component}", "page.enabled=true")
            stands, ports[component] = stand_in(component, workload, node)
            made.append(stands)
        service = chart.one("Service", "flyball-page", "page.enabled=true")
        address = api.apply(service)["spec"]["clusterIP"]
        targets = {"page's Service": (address, service["spec"]["ports"][0]["port"])}
        for each in made:
            api.create(f"/api/v1/namespaces/{each['metadata']['namespace']}/pods", each)
        site = Enforced(cluster, targets, enforcers)
        for component in WORKLOADS:
            site.wait_ready(component, "True")
            ip = api.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{component}")["status"]["podIP"]
            numbers = [port["containerPort"] for port in ports[component]]
            targets.update({f"{component}:{port}": (ip, port) for port in (*numbers, UNDECLARED)})
        for client, (namespace, _) in CLIENTS.items():
            api.wait_for(
                f"/api/v1/namespaces/{namespace}/pods/{client}",
                lambda found: ((found or {}).get("status") or {}).get("phase") == "Running",
                timeout_seconds=PATIENCE_SECONDS,
                what="running",
            )
        yield site
    for enforcer in enforcers:
        enforcer.stop()


def open_to_all() -> dict[str, set[str]]:
    return dict.fromkeys(CLIENTS, EVERYTHING)


@pytest.fixture(params=["narrowed", "as installed"])
def policies(request: pytest.FixtureRequest, enforced: Enforced, chart: Chart) -> Iterator[str]:
    """The chart's policies, with peers or as the chart is installed by default; without them everything is reached."""
    enforced.wait_reach(open_to_all(), "everybody reaches everything before there is a policy")
    values = NARROWED if request.param == "narrowed" else None
    rendered = chart.render("page.enabled=true", values=values)
    found = [each for each in rendered if each["kind"] == "NetworkPolicy"]
    assert {each["metadata"]["name"] for each in found} == {f"flyball-{component}" for component in WORKLOADS}
    for each in found:
        enforced.cluster.api.apply(each)
    yield request.param
    for each in found:
        enforced.cluster.api.delete(enforced.cluster.api.path_of(each))
    # What was refused was refused by them.
    enforced.wait_reach(open_to_all(), "everybody reaches everything when the policies are gone")


def test_the_policies_let_in_whom_the_values_name_and_the_kubelet(enforced: Enforced, policies: str) -> None:
    if policies == "narrowed":
        wanted = {
            "prometheus": METRICS | PROBES,
            "ingress": PAGE | PROBES,
            "stranger": PROBES,
            "neighbour": PROBES,  # a pod of their own namespace is nobody special
        }
    else:
        wanted = dict.fromkeys(CLIENTS, METRICS | PROBES | PAGE)
    enforced.wait_reach(wanted, "each reaches what the policies let it")
    assert enforced.reach() == wanted, "and so it stays"

    # The kubelet's probes: what is not ready becomes ready again only by one that passes.
    for component in WORKLOADS:
        enforced.run(component, f"busybox rm {READINESS_FILES}")
    for component in WORKLOADS:
        enforced.wait_ready(component, "False")
        enforced.run(component, f"busybox touch {READINESS_FILES}")
    for component in WORKLOADS:
        enforced.wait_ready(component, "True")

    # What they send is left open: to the API server, and to pods on both nodes.
    api = enforced.cluster.api
    outside = {"the API server": (api.get("/api/v1/namespaces/default/services/kubernetes")["spec"]["clusterIP"], 443)}
    for client, (namespace, _) in CLIENTS.items():
        status = api.get(f"/api/v1/namespaces/{namespace}/pods/{client}")["status"]
        outside[client] = (status["podIP"], STRANGERS_PORT)
    for component in WORKLOADS:
        assert enforced.reached(component, outside) == set(outside), (
            f"{component} does not reach all: {enforced.logs()}"
        )
