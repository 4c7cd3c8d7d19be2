"""The chart against the real API server: all that it renders is accepted, and a release goes its whole way."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from flyball_kube.errors import ApiError
from flyball_testbed.controlplane.api import ApiClient
from flyball_testbed.controlplane.cluster import DevCluster
from flyball_testbed.controlplane.programs.binaries import Binaries
from flyball_testbed.controlplane.programs.chart_tools import KUBECONFORM

from tests.support.chart import CHART, EVERYTHING, NAMESPACE, Chart
from tests.support.control_plane import IsolatedCluster
from tests.support.waiting import wait_until

Json = dict[str, Any]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CAPS = "/apis/flyball.dev/v1alpha1/powercaps"
OLD_COLUMN = {"name": "Old", "type": "string", "jsonPath": ".metadata.name"}
NOT_INSTALLED = {"PodMonitor", "PrometheusRule"}  # kinds of the Prometheus operator
SIMULATED = ("agent.driver=simulated", "agent.hardwareDir=/hardware")


def schemas(api: ApiClient, directory: Path) -> None:
    """One JSON schema for each kind that the API server knows, ours among them, closed against unknown fields."""

    def closed(schema: Any) -> Any:
        if isinstance(schema, list):
            return [closed(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        if schema.get("format") == "int-or-string":
            return {"type": ["string", "integer"]}
        made = {name: closed(each) for name, each in schema.items()}
        if isinstance(schema.get("properties"), dict) and "type" not in schema["properties"].get("properties", {}):
            preserved = schema.get("x-kubernetes-preserve-unknown-fields")
            if "additionalProperties" not in made and not preserved:
                made["additionalProperties"] = False
        return made

    definitions = api.get("/openapi/v2")["definitions"]
    (directory / "_definitions.json").write_text(json.dumps({"definitions": closed(definitions)}))
    for name, definition in definitions.items():
        for known in definition.get("x-kubernetes-group-version-kind", []):
            group = f"-{known['group'].split('.')[0]}" if known["group"] else ""
            file = directory / f"{known['kind']}{group}-{known['version']}.json".lower()
            file.write_text(json.dumps({"$ref": f"_definitions.json#/definitions/{name}"}))


def kubeconform(tools: Binaries, directory: Path, objects: list[Json]) -> subprocess.CompletedProcess[str]:
    location = f"{directory}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
    return subprocess.run(
        [str(tools[KUBECONFORM]), "-strict", "-summary", "-schema-location", location, "-skip", ",".join(NOT_INSTALLED)],
        input=yaml.safe_dump_all(objects), capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("settings", [(), EVERYTHING, SIMULATED], ids=["default", "everything", "simulated"])
def test_the_api_server_takes_every_object_strictly(
    chart: Chart, cluster: IsolatedCluster, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    objects = chart.render(*settings)
    for manifest in objects:
        if manifest["kind"] not in NOT_INSTALLED:
            path = cluster.api.path_of(manifest)
            if manifest["kind"] == "Pod":  # its account, made by the same hook, is not there in a dry run
                manifest["spec"].pop("serviceAccountName")
            query = {"dryRun": "All", "fieldValidation": "Strict", "force": "true"}
            cluster.api.patch(path, manifest, kind="apply", **query)
    schemas(cluster.api, tmp_path)
    answer = kubeconform(chart.tools, tmp_path, objects)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "Errors: 0" in answer.stdout
    # The check itself refuses what is wrong.
    wrong = chart.one("Deployment", "flyball-operator", *settings)
    wrong["spec"]["replicas"] = "two"
    assert kubeconform(chart.tools, tmp_path, [wrong]).returncode != 0


def test_the_operator_is_admitted_where_pods_are_restricted(chart: Chart, cluster: IsolatedCluster) -> None:
    """Asked of the API server's own Pod Security admission; the agents' pods, which need the driver, it refuses there."""
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    cluster.api.patch(f"/api/v1/namespaces/{cluster.namespace}", label)

    def refusal(kind: str, name: str) -> str:
        template = chart.one(kind, name)["spec"]["template"]
        template["spec"].pop("serviceAccountName")
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried"}, "spec": template["spec"]}
        try:
            cluster.api.request("POST", cluster.path("pods"), pod, query={"dryRun": "All"})
        except ApiError as error:
            return str(error)
        return ""

    # Admission sees the label a moment after it was set; once it refuses the one, it would refuse the other.
    wait_until(lambda: "privileged" in refusal("DaemonSet", "flyball-agent"), "agents' pods are refused")
    assert refusal("Deployment", "flyball-operator") == ""


@pytest.fixture
def bare(control_plane_programs: Binaries) -> Iterator[DevCluster]:
    """A control plane without Flyball, and two nodes on which pods only seem to run."""
    with DevCluster.start(0, install=False, binaries=control_plane_programs) as devcluster:
        devcluster.add_nodes(2)
        yield devcluster


@pytest.fixture
def release(chart: Chart, bare: DevCluster) -> Callable[..., str]:
    """Helm on that cluster, for the release `flyball`."""

    def helm(*arguments: str) -> str:
        return chart.helm(
            *arguments, "--namespace", NAMESPACE, "--kubeconfig", str(bare.kubeconfig), timeout_seconds=240
        )

    return helm


def older_chart(directory: Path) -> Path:
    """The chart as it might have been: with a column in a definition that this one no longer has."""
    older = directory / "older"
    shutil.copytree(CHART, older, ignore=shutil.ignore_patterns("flyball_api"))
    definition = older / "definitions" / "powercaps.yaml"
    text, heading = definition.read_text(), "additionalPrinterColumns:\n"
    assert text.count(heading) == 1
    definition.write_text(text.replace(heading, f"{heading}        - {json.dumps(OLD_COLUMN)}\n"))
    return older


def columns(api: ApiClient) -> list[Json]:
    found: list[Json] = api.get(f"{CRDS}/powercaps.flyball.dev")["spec"]["versions"][0]["additionalPrinterColumns"]
    return found


def test_the_whole_way_of_a_release(release: Callable[..., str], bare: DevCluster, tmp_path: Path) -> None:
    api = bare.api
    wait = ("--wait", "--timeout", "180s")
    older = older_chart(tmp_path)
    release("install", "flyball", str(older), "--create-namespace", "--set", "powerCap.watts=30000", *wait)
    assert OLD_COLUMN in columns(api)
    # The cap was made by the very first installation, whose API server did not know the kind.
    cap = api.get(f"{CAPS}/cluster")
    assert cap["spec"]["watts"] == 30000

    # An upgrade brings the new definitions, which Helm's own folder for them never does.
    release("upgrade", "flyball", str(CHART), "--set", "powerCap.watts=25000", "--set", "operator.replicas=3", *wait)
    assert OLD_COLUMN not in columns(api)
    after = api.get(f"{CAPS}/cluster")
    assert (after["metadata"]["uid"], after["spec"]["watts"]) == (cap["metadata"]["uid"], 25000)
    deployment = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/flyball-operator"
    assert api.get(deployment)["spec"]["replicas"] == 3

    # Back to the first revision, definitions and all; it says nothing of the cap, which was a hook's then: the cap stays.
    release("rollback", "flyball", "1", *wait)
    assert OLD_COLUMN in columns(api)
    assert api.get(deployment)["spec"]["replicas"] == 2
    assert api.get(f"{CAPS}/cluster")["metadata"]["uid"] == cap["metadata"]["uid"]

    # Caps, jobs and definitions outlive the release; nothing else does.
    release("uninstall", "flyball", "--wait")
    assert api.get(f"{CAPS}/cluster")["metadata"]["uid"] == cap["metadata"]["uid"]
    for kind in ("clusterroles", "clusterrolebindings"):
        names = [each["metadata"]["name"] for each in api.list_objects(f"/apis/rbac.authorization.k8s.io/v1/{kind}")]
        assert not [name for name in names if name.startswith("flyball")]
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    assert not [each for each in api.list_objects(policies) if each["metadata"]["name"].startswith("flyball")]
    assert api.get_or_none(deployment) is None

    # A release can be made again over what stayed.
    release("install", "flyball", str(CHART), "--set", "powerCap.watts=20000", *wait)
    again = api.get(f"{CAPS}/cluster")
    assert (again["metadata"]["uid"], again["spec"]["watts"]) == (cap["metadata"]["uid"], 20000)
