"""What an installation consists of: the objects that the real helm makes of the chart."""

from __future__ import annotations

import re
import tarfile
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import yaml
from flyball_agent.process.options import AgentOptions, EnforcerOptions
from flyball_api.manifests import manifests
from flyball_api.names import STARTUP_TAINT
from flyball_cli.components.planner import serve
from flyball_kube.credentials import SERVICE_ACCOUNT_FOLDER
from flyball_kube.process.options import options
from flyball_operator.settings import Settings
from flyball_page.options import PageOptions
from flyball_testbed.controlplane.install import BASE_DIRECTORY, read_manifests

from tests.support.chart import CHART, EVERYTHING, NAMESPACE, Chart, HelmRefused

Json = dict[str, Any]

OBSERVING = ("mode=observe",)
SIMULATED = ("agent.driver=simulated", "agent.hardwareDir=/hardware")


@pytest.fixture
def rendered(chart: Chart) -> list[Json]:
    return chart.render()


def pod_of(workload: Json) -> Json:
    spec: Json = workload["spec"]["template"]["spec"]
    return spec


def found(objects: list[Json], kind: str, name: str) -> Json:
    (one,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return one


def key(manifest: Json) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


# --- rights, policies and definitions come from one place --------------------------------------------------------------


def test_rights_and_policies_are_those_of_deploy_base(rendered: list[Json], chart: Chart) -> None:
    base = [each for each in read_manifests(BASE_DIRECTORY) if each["kind"] != "Namespace"]
    assert len(base) > 15
    assert {each["metadata"]["name"] for each in base if each not in rendered} == {"flyball-page"}
    assert [each for each in base if each not in chart.render("page.enabled=true")] == []


def test_in_another_namespace_nothing_speaks_of_the_usual_one(chart: Chart) -> None:
    objects = chart.render(*EVERYTHING, namespace="power")
    assert not [key(each) for each in objects if each["kind"] != "CustomResourceDefinition" and NAMESPACE in str(each)]
    account = {"kind": "ServiceAccount", "name": "flyball-operator", "namespace": "power"}
    assert account in found(objects, "ClusterRoleBinding", "flyball-operator")["subjects"]
    policy = str(found(objects, "ValidatingAdmissionPolicy", "flyball-grants"))
    assert "system:serviceaccount:power:flyball-operator" in policy


def test_definitions_are_those_of_the_repository_and_stay_when_it_is_uninstalled(rendered: list[Json]) -> None:
    for crd in manifests():
        shipped = found(rendered, *key(crd))
        assert shipped["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert shipped == crd


def test_definitions_can_be_left_to_somebody_else(chart: Chart) -> None:
    assert not [each for each in chart.render("crds.install=false") if each["kind"] == "CustomResourceDefinition"]


def test_a_package_is_whole_without_the_repository(chart: Chart, rendered: list[Json], tmp_path: Path) -> None:
    chart.helm("package", str(CHART), "--destination", str(tmp_path))
    (package,) = tmp_path.glob("flyball-*.tgz")
    text = chart.helm("template", "flyball", str(package), "--namespace", NAMESPACE)
    assert [each for each in yaml.safe_load_all(text) if each] == rendered
    with tarfile.open(package) as archive:
        names = archive.getnames()
        assert not [member.name for member in archive if member.issym()]
    assert "flyball/definitions/powercaps.yaml" in names
    assert not [name for name in names if name.endswith(".py") and "/files/" not in name]


# --- the operator --------------------------------------------------------------------------------------------------------


def test_the_meters_endpoints_come_from_a_secret_that_the_operator_can_only_read(chart: Chart) -> None:
    pod = pod_of(found(chart.render("operator.metersSecret=power-meters"), "Deployment", "flyball-operator"))
    (operator,) = pod["containers"]
    folder = "/etc/flyball/meters"
    assert f"--meter-endpoints={folder}/endpoints.yaml" in operator["args"]
    assert {"name": "meters", "mountPath": folder, "readOnly": True} in operator["volumeMounts"]
    assert {"name": "meters", "secret": {"secretName": "power-meters"}} in pod["volumes"]


def test_the_grid_s_signal_comes_from_a_config_map_that_may_be_missing(chart: Chart) -> None:
    pod = pod_of(found(chart.render("operator.signalConfigMap=grid"), "Deployment", "flyball-operator"))
    (operator,) = pod["containers"]
    assert "--signal-file=/etc/flyball/signal/signal.csv" in operator["args"]
    assert {"name": "signal", "mountPath": "/etc/flyball/signal", "readOnly": True} in operator["volumeMounts"]
    assert {"name": "signal", "configMap": {"name": "grid", "optional": True}} in pod["volumes"]
    assert "signal" not in str(found(chart.render(), "Deployment", "flyball-operator"))


def test_the_operator_runs_restricted(rendered: list[Json]) -> None:
    """What Kubernetes' Pod Security Standard `restricted` asks for, and more."""
    pod = pod_of(found(rendered, "Deployment", "flyball-operator"))
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert all(set(volume) - {"name"} <= {"emptyDir", "configMap"} for volume in pod["volumes"])


def test_two_operators_of_which_one_always_stays(rendered: list[Json], chart: Chart) -> None:
    deployment = found(rendered, "Deployment", "flyball-operator")
    assert deployment["spec"]["replicas"] == 2
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    selector = deployment["spec"]["selector"]["matchLabels"]
    term = pod_of(deployment)["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]
    assert term["podAffinityTerm"]["labelSelector"]["matchLabels"] == selector
    budget = found(rendered, "PodDisruptionBudget", "flyball-operator")
    assert (budget["spec"]["minAvailable"], budget["spec"]["selector"]["matchLabels"]) == (1, selector)
    # One operator with a budget of one could never be drained from its node.
    assert not [each for each in chart.render("operator.replicas=1") if each["kind"] == "PodDisruptionBudget"]


def test_an_operator_can_start_where_every_node_waits_for_one(rendered: list[Json], chart: Chart) -> None:
    """Only an operator takes the startup taint off: a cluster of GPU nodes alone could never begin else."""
    startup = {"key": STARTUP_TAINT, "operator": "Exists"}
    assert startup in pod_of(found(rendered, "Deployment", "flyball-operator"))["tolerations"]
    more = chart.one("Deployment", "flyball-operator", values={"operator.tolerations": [{"operator": "Exists"}]})
    assert pod_of(more)["tolerations"] == [startup, {"operator": "Exists"}]
    # Who only observes leaves the taint on, and wants to see.
    page = chart.one("Deployment", "flyball-page", "page.enabled=true", *OBSERVING)
    assert pod_of(page)["tolerations"] == [startup]


def test_probes_ask_what_they_are_for(rendered: list[Json], chart: Chart) -> None:
    (operator,) = pod_of(found(rendered, "Deployment", "flyball-operator"))["containers"]
    assert operator["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert operator["livenessProbe"]["httpGet"]["path"] == operator["startupProbe"]["httpGet"]["path"] == "/healthz"
    ports = {port["name"]: port["containerPort"] for port in operator["ports"]}
    defaults = Settings()
    assert ports == {"metrics": defaults.metrics_port, "probes": defaults.probe_port}
    (page,) = pod_of(chart.one("Deployment", "flyball-page", "page.enabled=true"))["containers"]
    (planner,) = pod_of(chart.one("Deployment", "flyball-planner", *PLANNER))["containers"]
    for container in (operator, page, planner):  # on a busy node it takes a minute until they answer
        started = container["startupProbe"]
        assert started["periodSeconds"] * started["failureThreshold"] >= 120
        assert "initialDelaySeconds" not in container["livenessProbe"], "liveness counts from the start's end"


# --- the agent ----------------------------------------------------------------------------------------------------


def test_an_agent_a_node_that_outlives_every_other_pod(rendered: list[Json]) -> None:
    daemon_set = found(rendered, "DaemonSet", "flyball-agent")
    assert daemon_set["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0  # the journal has one holder
    pod = pod_of(daemon_set)
    assert pod["priorityClassName"] == "system-node-critical"
    # The startup taint keeps jobs off a node until its agent has acknowledged: the agent itself must get there.
    assert {"operator": "Exists"} in pod["tolerations"]


def test_agents_can_be_replaced_by_hand(chart: Chart) -> None:
    daemon_set = chart.one("DaemonSet", "flyball-agent", "agent.updateStrategy=OnDelete")
    assert daemon_set["spec"]["updateStrategy"] == {"type": "OnDelete"}
    with pytest.raises(HelmRefused, match="updateStrategy"):
        chart.render("agent.updateStrategy=ondelete")


def containers(pod: Json) -> dict[str, Json]:
    return {container["name"]: container for container in pod["containers"]}


def mounts(container: Json) -> dict[str, Json]:
    return {mount["name"]: mount for mount in container["volumeMounts"]}


def test_what_an_agent_has_of_its_host(rendered: list[Json]) -> None:
    pod = pod_of(found(rendered, "DaemonSet", "flyball-agent"))
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert paths == {
        "journal": "/var/lib/flyball",
        "sockets": "/run/flyball",
        "pod-resources": "/var/lib/kubelet/pod-resources",
    }
    both = containers(pod)
    assert mounts(both["agent"])["pod-resources"]["readOnly"]
    assert mounts(both["enforcer"])["journal"]["mountPath"] == str(EnforcerOptions("n").journal_dir)
    assert f"--kubelet-socket={AgentOptions('n').kubelet_socket}" in both["agent"]["args"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)


def test_who_has_the_privilege_has_no_credential_and_the_other_way_round(rendered: list[Json]) -> None:
    pod = pod_of(found(rendered, "DaemonSet", "flyball-agent"))
    assert pod["automountServiceAccountToken"] is False
    both = containers(pod)
    assert both["enforcer"]["securityContext"]["privileged"]
    assert not {"token", "sockets", "pod-resources"} & set(mounts(both["enforcer"]))
    agent = both["agent"]["securityContext"]
    assert (agent["privileged"], agent["allowPrivilegeEscalation"]) == (False, False)
    assert agent["capabilities"] == {"drop": ["ALL"]}
    assert not {"journal", "driver", "hardware"} & set(mounts(both["agent"]))
    assert "NVIDIA_VISIBLE_DEVICES" not in {variable["name"] for variable in both["agent"]["env"]}
    # The one thing that they share is the enforcer's socket.
    assert set(mounts(both["agent"])) & set(mounts(both["enforcer"])) == {"enforcer", "tmp"}
    assert mounts(both["agent"])["tmp"]["subPath"] != mounts(both["enforcer"])["tmp"]["subPath"]
    (socket,) = {each.partition("=")[2] for each in both["agent"]["args"] if each.startswith("--enforcer-socket=")}
    assert f"--socket={socket}" in both["enforcer"]["args"]
    assert Path(socket).parent == Path(mounts(both["enforcer"])["enforcer"]["mountPath"])
    # The token is where every client looks for it, bound to the pod: admission reads the node's name from it.
    token = mounts(both["agent"])["token"]["mountPath"]
    assert token == str(SERVICE_ACCOUNT_FOLDER)
    sources = next(volume for volume in pod["volumes"] if volume["name"] == "token")["projected"]["sources"]
    assert {"serviceAccountToken", "configMap", "downwardAPI"} == {name for source in sources for name in source}


def test_simulated_gpus_need_no_privilege(chart: Chart) -> None:
    for container in pod_of(chart.one("DaemonSet", "flyball-agent", *SIMULATED))["containers"]:
        assert not container["securityContext"]["privileged"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    with pytest.raises(HelmRefused, match=r"agent\.hardwareDir"):
        chart.render("agent.driver=simulated")


def test_who_observes_is_told_so_and_has_no_privilege(chart: Chart) -> None:
    for settings, mode in ((OBSERVING, "observe"), ((), "govern")):
        objects = chart.render(*settings)
        operator = containers(pod_of(found(objects, "Deployment", "flyball-operator")))["operator"]
        enforcer = containers(pod_of(found(objects, "DaemonSet", "flyball-agent")))["enforcer"]
        assert f"--mode={mode}" in operator["args"]
        assert f"--mode={mode}" in enforcer["args"]
        assert enforcer["securityContext"]["privileged"] == (mode == "govern")
    # Where no container runtime brings the driver, only privilege brings its device files.
    without = containers(pod_of(chart.one("DaemonSet", "flyball-agent", *OBSERVING, "agent.hostDriverDir=/driver")))
    assert without["enforcer"]["securityContext"]["privileged"]


def test_all_jobs_are_only_observed_by_one_value(chart: Chart) -> None:
    for settings, observes in ((("operator.observeJobs=true",), True), ((), False)):
        operator = pod_of(chart.one("Deployment", "flyball-operator", *settings))["containers"][0]["args"]
        assert ("--observe-jobs" in operator) is observes
        assert "--mode=govern" in operator, "they run, and caps are held"


def test_operator_and_agents_agree_on_the_sockets_folder(chart: Chart) -> None:
    objects = chart.render("agent.socketDir=/run/elsewhere")
    operator = pod_of(found(objects, "Deployment", "flyball-operator"))["containers"][0]["args"]
    assert "--training-socket-dir=/run/elsewhere" in operator
    volumes = pod_of(found(objects, "DaemonSet", "flyball-agent"))["volumes"]
    assert "/run/elsewhere" in str(volumes)
    without = chart.render("agent.socketDir=")
    assert "socket-dir" not in str(found(without, "Deployment", "flyball-operator"))
    assert "--socket-dir" not in str(found(without, "DaemonSet", "flyball-agent"))


def test_sockets_are_devices_where_the_kubelets_plugins_are_named(chart: Chart) -> None:
    objects = chart.render("agent.devicePluginsDir=/var/lib/k0s/device-plugins", "agent.socketDir=/run/elsewhere")
    operator = pod_of(found(objects, "Deployment", "flyball-operator"))["containers"][0]["args"]
    assert "--training-socket-resource=flyball.dev/socket" in operator
    assert not any(argument.startswith("--training-socket-dir") for argument in operator)
    pod = pod_of(found(objects, "DaemonSet", "flyball-agent"))
    both = containers(pod)
    assert {"--socket-plugin-dir=/var/lib/kubelet/device-plugins", "--socket-host-dir=/run/elsewhere"} <= set(
        both["agent"]["args"]
    )
    assert "device-plugins" not in str(both["enforcer"])
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "device-plugins")
    assert volume["hostPath"] == {"path": "/var/lib/k0s/device-plugins", "type": "Directory"}
    assert "device-plugins" not in str(chart.render())


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_is_there_only_if_asked_for_and_asks_whose_token_it_is(rendered: list[Json], chart: Chart) -> None:
    assert not [each for each in rendered if each["metadata"]["name"] == "flyball-page"]
    assert found(chart.render("page.enabled=true", *OBSERVING), "Deployment", "flyball-page"), (
        "it shows what agents see"
    )
    objects = chart.render("page.enabled=true")
    (page,) = pod_of(found(objects, "Deployment", "flyball-page"))["containers"]
    assert "--authenticate" in page["args"]
    assert page["image"].endswith("/flyball-operator:0.1.0")
    (port,) = found(objects, "Service", "flyball-page")["spec"]["ports"]
    assert {"name": port["targetPort"], "containerPort": 8090} in page["ports"]
    assert found(objects, "NetworkPolicy", "flyball-page")["spec"]["ingress"] == [
        {"ports": [{"protocol": "TCP", "port": 8090}]}
    ]
    openly = chart.one("Deployment", "flyball-page", "page.enabled=true", "page.authenticate=false")
    assert "--no-authenticate" in pod_of(openly)["containers"][0]["args"]


def test_the_page_has_an_ingress_where_it_has_a_host(chart: Chart) -> None:
    plain = chart.one("Ingress", "flyball-page", "page.enabled=true", "page.ingress.host=power.example.com")
    assert plain["spec"] == {
        "rules": [
            {
                "host": "power.example.com",
                "http": {
                    "paths": [
                        {
                            "path": "/",
                            "pathType": "Prefix",
                            "backend": {"service": {"name": "flyball-page", "port": {"name": "http"}}},
                        }
                    ]
                },
            }
        ]
    }
    values = {"page.enabled": True, "page.ingress.host": "power.example.com", "page.ingress.tlsSecret": "certificate",
              "page.ingress.className": "edge", "page.ingress.annotations": {"edge/timeout": "30"}}  # fmt: skip
    whole = chart.one("Ingress", "flyball-page", values=values)
    assert whole["metadata"]["annotations"] == {"edge/timeout": "30"}
    assert whole["spec"]["ingressClassName"] == "edge"
    assert whole["spec"]["tls"] == [{"hosts": ["power.example.com"], "secretName": "certificate"}]
    (port,) = chart.one("Service", "flyball-page", "page.enabled=true")["spec"]["ports"]
    assert port["name"] == "http"
    for settings in (("page.enabled=true",), ("page.ingress.host=power.example.com",)):
        assert not [each for each in chart.render(*settings) if each["kind"] == "Ingress"]


# --- the planner ------------------------------------------------------------------------------------------------------


PLANNER = ("planner.enabled=true", "planner.tokenSecret=who-may-ask")


def test_the_planner_is_there_only_if_asked_for_with_a_token_and_without_any_right(
    rendered: list[Json], chart: Chart
) -> None:
    assert not [each for each in rendered if each["metadata"]["name"] == "flyball-planner"]
    with pytest.raises(HelmRefused, match=r"planner\.tokenSecret: name a Secret with the key `token`"):
        chart.render("planner.enabled=true")
    objects = chart.render(*PLANNER)
    pod = pod_of(found(objects, "Deployment", "flyball-planner"))
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    (planner,) = pod["containers"]
    assert planner["image"].endswith("/flyball-operator:0.1.0")
    (volume,) = pod["volumes"]
    assert volume["secret"]["secretName"] == "who-may-ask"
    (mount,) = planner["volumeMounts"]
    assert f"--token-file={mount['mountPath']}/{volume['secret']['items'][0]['path']}" in planner["args"]
    (port,) = found(objects, "Service", "flyball-planner")["spec"]["ports"]
    assert {"name": port["targetPort"], "containerPort": 8095} in planner["ports"]
    policy = found(objects, "NetworkPolicy", "flyball-planner")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy, "it reaches nothing"
    assert policy["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8095}]}]


def test_the_operator_has_plans_made_by_the_planner_where_there_is_one(rendered: list[Json], chart: Chart) -> None:
    (operator,) = pod_of(found(rendered, "Deployment", "flyball-operator"))["containers"]
    assert not [argument for argument in operator["args"] if "planner" in argument]
    objects = chart.render(*PLANNER, values={"networkPolicies.plannerFrom": [{"podSelector": {}}]})
    pod = pod_of(found(objects, "Deployment", "flyball-operator"))
    (operator,) = pod["containers"]
    service = found(objects, "Service", "flyball-planner")["metadata"]
    assert f"--planner-url=http://{service['name']}.{service['namespace']}" in operator["args"]
    (mount,) = [each for each in operator["volumeMounts"] if each["name"] == "planner-token"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "planner-token"]
    (item,) = volume["secret"]["items"]
    assert f"--planner-token-file={mount['mountPath']}/{item['path']}" in operator["args"]
    assert (volume["secret"]["secretName"], item["key"], volume["secret"]["optional"]) == ("who-may-ask", "token", True)
    (ingress,) = found(objects, "NetworkPolicy", "flyball-planner")["spec"]["ingress"]
    own = found(objects, "Deployment", "flyball-operator")["spec"]["selector"]["matchLabels"]
    assert ingress["from"] == [{"podSelector": {"matchLabels": own}}, {"podSelector": {}}]


def test_every_argument_of_the_planner_is_one_of_its_command(chart: Chart) -> None:
    values = {"planner.workers": 4, "planner.extraArgs": ["--max-waiting=3"]}
    workload = chart.one("Deployment", "flyball-planner", *PLANNER, values=values)
    arguments = pod_of(workload)["containers"][0]["args"]
    assert arguments[:2] == ["planner", "serve"]
    known = {f"--{name.replace('_', '-')}" for name in signature(serve).parameters}
    given = dict(argument.split("=") for argument in arguments[2:])
    assert set(given) <= known, set(given) - known
    assert (given["--workers"], given["--max-waiting"]) == ("4", "3")
    assert f"http://127.0.0.1:{given['--port']}/" in (serve.__doc__ or "")


def test_who_tests_an_installation_may_submit_as_the_policy_for_submitters_has_it(chart: Chart) -> None:
    rendered = chart.render()
    (policy,) = (
        found
        for found in rendered
        if found["kind"] == "ValidatingAdmissionPolicy" and found["metadata"]["name"] == "flyball-submitters"
    )
    asked = re.findall(r"group\('(\w+)'\)\.resource\('(\w+)'\)\S*\.check\('(\w+)'\)", str(policy["spec"]))
    assert asked
    (role,) = (found for found in rendered if found["kind"] == "Role" and found["metadata"]["name"] == "flyball-test")
    granted = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert set(asked) <= granted


def test_the_page_may_write_nothing(chart: Chart) -> None:
    objects = chart.render("page.enabled=true")
    rules = [*found(objects, "ClusterRole", "flyball-page")["rules"], *found(objects, "Role", "flyball-page")["rules"]]
    assert len(rules) >= 5
    for rule in rules:
        reviews = {"tokenreviews", "subjectaccessreviews"} >= set(rule["resources"])
        assert set(rule["verbs"]) <= ({"create"} if reviews else {"get", "list", "watch"}), rule
        assert not {"secrets", "*"} & set(rule["resources"])


# --- both ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more", [(), EVERYTHING, SIMULATED, OBSERVING], ids=["default", "everything", "simulated", "observing"]
)
def test_every_argument_is_an_option_of_its_component(chart: Chart, more: tuple[str, ...]) -> None:
    """Read by the components' own settings: a name that does not exist, or a value out of range, ends them at the start."""
    objects = chart.render(*more)
    made_from = {"operator": Settings, "agent": AgentOptions, "enforcer": EnforcerOptions, "page": PageOptions}
    commands = {name: [name, "run"] for name in made_from} | {"enforcer": ["agent", "enforcer"]}
    workloads = [each for each in objects if each["kind"] in ("Deployment", "DaemonSet")]
    assert len(workloads) == (4 if more == EVERYTHING else 2)
    for container in (container for workload in workloads for container in pod_of(workload)["containers"]):
        name = container["name"]
        if name == "planner":
            continue  # it has no settings of its own: test_every_argument_of_the_planner_is_one_of_its_command
        known = {f"--{each.name.replace('_', '-')}" for each in options(made_from[name]).values()} | {"--log-level"}
        known |= {f"--no-{each.removeprefix('--')}" for each in known}
        given = [argument.partition("=")[0] for argument in container["args"][2:]]
        assert set(given) <= known, set(given) - known
        assert container["args"][:2] == commands[name]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Deployment", "flyball-operator"),
        ("DaemonSet", "flyball-agent"),
        ("Deployment", "flyball-page"),
        ("Deployment", "flyball-planner"),
    ],
)
def test_pods_are_as_least_privileged_and_as_bounded_as_they_can_be(chart: Chart, kind: str, name: str) -> None:
    workload = found(chart.render("page.enabled=true", *PLANNER), kind, name)
    pod = pod_of(workload)
    assert pod["enableServiceLinks"] is False
    assert pod.get("serviceAccountName", "none") == ("none" if name == "flyball-planner" else name)
    for container in pod["containers"]:
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["resources"]["requests"]
        assert "memory" in container["resources"]["limits"]
        image = "flyball-operator" if name in ("flyball-page", "flyball-planner") else name
        assert container["image"].endswith(f"/{image}:0.1.0")
    selector = workload["spec"]["selector"]["matchLabels"]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()
    # Which version is there may change at an upgrade, and a selector never may.
    assert set(selector) == {"app.kubernetes.io/name", "app.kubernetes.io/component"}


def test_network_policies_admit_probes_and_scrapes_alone(rendered: list[Json], chart: Chart) -> None:
    operator = found(rendered, "NetworkPolicy", "flyball-operator")["spec"]
    assert operator["policyTypes"] == ["Ingress"]
    assert [rule["ports"][0]["port"] for rule in operator["ingress"]] == [9400, 8080]
    peers: Json = {"networkPolicies.metricsFrom": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]}
    narrowed = chart.one("NetworkPolicy", "flyball-agent", values=peers)["spec"]
    assert narrowed["ingress"] == [
        {"ports": [{"protocol": "TCP", "port": 9101}], "from": peers["networkPolicies.metricsFrom"]}
    ]
    assert not [each for each in chart.render("networkPolicies.enabled=false") if each["kind"] == "NetworkPolicy"]


def test_the_scrape_configuration_of_the_examples_finds_what_serves_metrics(chart: Chart) -> None:
    """Who has no Prometheus operator takes that file: it selects containers' ports by their name."""
    (scrape,) = yaml.safe_load((CHART.parents[2] / "examples" / "monitoring" / "prometheus.yaml").read_text())[
        "scrape_configs"
    ]
    (discovery,), (keep, *_) = scrape["kubernetes_sd_configs"], scrape["relabel_configs"]
    assert (discovery["role"], discovery["namespaces"]["names"]) == ("pod", [NAMESPACE])
    assert (keep["source_labels"], keep["action"]) == (["__meta_kubernetes_pod_container_port_name"], "keep")
    assert scrape["honor_labels"]
    served = {
        each["metadata"]["name"]: port["containerPort"]
        for each in chart.render(*EVERYTHING)
        if each["kind"] in ("Deployment", "DaemonSet")
        for container in pod_of(each)["containers"]
        for port in container.get("ports", ())
        if re.fullmatch(keep["regex"], port["name"])
    }
    assert served == {"flyball-operator": 9400, "flyball-agent": 9101}


def test_monitoring_is_there_only_if_asked_for(rendered: list[Json], chart: Chart) -> None:
    kinds = {"PodMonitor", "PrometheusRule"}
    assert not kinds & {each["kind"] for each in rendered}
    monitor = chart.one("PodMonitor", "flyball-agent", "monitoring.podMonitors=true", "monitoring.labels.release=prom")
    assert monitor["metadata"]["labels"]["release"] == "prom"
    agent = found(rendered, "DaemonSet", "flyball-agent")["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= agent["metadata"]["labels"].items()
    ports = [port["name"] for port in agent["spec"]["containers"][-1]["ports"]]
    assert [endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]] == ["metrics"]
    assert "metrics" in ports


def test_a_cap_is_made_only_if_asked_for_and_never_deleted(rendered: list[Json], chart: Chart) -> None:
    assert "PowerCap" not in {each["kind"] for each in rendered}
    cap = chart.one("PowerCap", "cluster", "powerCap.watts=30000", "powerCap.staticOverheadWatts=4000")
    assert cap["spec"] == {"watts": 30000, "staticOverheadWatts": 4000}
    assert cap["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    # The API server does not know the kind yet: only a hook can make it after the definitions.
    assert cap["metadata"]["annotations"]["helm.sh/hook"] == "post-install"
    known = chart.helm(
        "template", "flyball", str(CHART), "--set", "powerCap.watts=30000",
        "--api-versions", "flyball.dev/v1alpha1/PowerCap", "--show-only", "templates/powercap.yaml",
    )  # fmt: skip
    assert "helm.sh/hook" not in yaml.safe_load(known)["metadata"]["annotations"]
