"""What the doctor says of installations that are well, and of such as are not."""

from __future__ import annotations

import copy
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from flyball_api.manifests import manifests
from flyball_cli.cluster.access import TextOutput
from flyball_cli.cluster.doctor import printed
from flyball_cli.cluster.doctor_checks import ADMISSION_POLICIES, Check, Facts, Verdict, checks, version_of
from flyball_kube.server_version import FIRST_ORDERED
from flyball_views.overview import Overview, read_overview
from flyball_views.sightings import Sightings

from tests.support.shown_cluster import NOW, cluster, condition, held_cap, lease, nodes, serving_node

OWN = {crd["metadata"]["name"]: crd for crd in manifests()}


def well(**changes: Any) -> dict[str, Any]:
    """The objects of a cluster in which nothing is wrong."""
    return {**cluster(), "caps": [held_cap()], "gpu_nodes": [serving_node()], "nodes": [nodes()[0]], **changes}


def installed(**changes: Any) -> dict[str, Any]:
    definitions = copy.deepcopy(OWN)
    for definition in definitions.values():
        definition["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
    return {
        "overview": read_overview(NOW, **well()),
        "client_version": "flyball 0.1.0",
        "own_definitions": OWN,
        "definitions": definitions,
        "server_version": "v1.36.3",
        "lease_moved": True,
        "policies": frozenset(ADMISSION_POLICIES),
        "kubelets": {"node-a": "v1.36.0"},
        "rights": {"see jobs": True, "change caps": False},
        **changes,
    }


def found(**changes: Any) -> list[Check]:
    return checks(Facts(**installed(**changes)))


def only(verdict: Verdict, **changes: Any) -> Check:
    """The one check that is not ok."""
    bad = [check for check in found(**changes) if check.verdict is not Verdict.OK]
    assert [check.verdict for check in bad] == [verdict], bad
    return bad[0]


def shown(**changes: Any) -> Overview:
    return read_overview(NOW, **well(**changes))


def test_an_installation_that_is_well() -> None:
    assert [check for check in found() if check.verdict is not Verdict.OK] == []
    rights = found()[-1]
    assert rights.found == "you may see jobs; not change caps"


def test_an_old_api_server() -> None:
    check = only(Verdict.FAIL, server_version="v1.34.9")
    assert (check.name, check.right) == ("API server", "upgrade it to Kubernetes 1.35 or newer")
    assert only(Verdict.UNKNOWN, server_version=None).name == "API server"


def test_the_oldest_version_is_the_one_that_the_operator_needs() -> None:
    assert version_of("v1.35+") == FIRST_ORDERED
    assert version_of("v1.34.0") < FIRST_ORDERED  # type: ignore[operator]
    assert version_of("kwok") is None
    for odd in ("v1.\u00b2", "v1.\u0663\u0665", "v1." + "9" * 5000, "v1", ""):  # a node's kubelet says what it likes
        assert version_of(odd) is None


def test_definitions_that_are_missing_older_newer_or_not_established() -> None:
    definitions = installed()["definitions"]
    absent = {name: item for name, item in definitions.items() if name != "powercaps.flyball.dev"}
    assert only(Verdict.FAIL, definitions=absent).found == "not there: powercaps.flyball.dev"

    older = copy.deepcopy(definitions)
    schema = older["powercaps.flyball.dev"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["meter"]
    check = only(Verdict.WARN, definitions=older)
    assert check.found.startswith("powercaps.flyball.dev lacks spec.meter, spec.meter.")
    assert check.right == "bring the chart and this program (flyball 0.1.0) to one version"

    newer = copy.deepcopy(definitions)
    schema = newer["powercaps.flyball.dev"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["horsepower"] = {"type": "integer"}
    assert "has spec.horsepower, which this program does not know" in only(Verdict.WARN, definitions=newer).found

    unready = copy.deepcopy(definitions)
    unready["gpunodes.flyball.dev"]["status"] = {}
    assert "gpunodes.flyball.dev is not established" in [check.found for check in found(definitions=unready)]
    assert only(Verdict.UNKNOWN, definitions=None).name == "definitions"


def test_policies_are_those_that_the_chart_installs() -> None:
    source = Path(__file__).parents[3] / "deploy/base/admission.yaml"
    bound = [item for item in yaml.safe_load_all(source.read_text()) if item["kind"].endswith("Binding")]
    assert sorted(item["spec"]["policyName"] for item in bound) == list(ADMISSION_POLICIES)
    check = only(Verdict.FAIL, policies=frozenset(ADMISSION_POLICIES) - {"flyball-grants"})
    assert check.found == "not bound: flyball-grants"
    assert only(Verdict.UNKNOWN, policies=None).name == "admission policies"


def test_an_operator_that_does_not_lead() -> None:
    bad = [check for check in found(lease_moved=False) if check.verdict is Verdict.FAIL]
    assert [check.found for check in bad] == ["none leads: the Lease of operator-1 is 2s old"]
    elsewhere = found(overview=shown(operator_namespace="power"), lease_moved=False)
    assert ["-n power logs" in check.right for check in elsewhere if check.verdict is Verdict.FAIL] == [True]
    none = found(overview=shown(lease=None), lease_moved=None)
    assert [check.name for check in none if check.verdict is Verdict.FAIL] == ["operator"]
    hidden = shown(lease=None, missing={"leases": "you have no right to get leases"})
    assert {check.name for check in found(overview=hidden, lease_moved=None) if check.verdict is Verdict.UNKNOWN} == {
        "operator",
        "clock of the operator",
    }


@pytest.mark.parametrize(
    ("renewed", "says"), [("2030-06-01T12:00:30Z", "ahead of"), ("2030-06-01T11:58:00Z", "behind")]
)
def test_an_operator_whose_clock_is_wrong(renewed: str, says: str) -> None:
    check = only(Verdict.WARN, overview=shown(lease=lease(renewed=renewed)))
    assert check.name == "clock of the operator"
    assert says in check.found


def test_nodes_without_an_agent_and_agents_that_are_silent() -> None:
    check = only(Verdict.FAIL, overview=shown(nodes=nodes()), kubelets={"node-a": "v1.36.0"})
    assert check.found == "no agent has reported from 1 node with GPUs: node-b"
    sightings = Sightings()
    for minutes in (0, 10):
        late = read_overview(NOW + timedelta(minutes=minutes), **well(lease=None), sightings=sightings)
    silent = [item for item in found(overview=late, lease_moved=None) if item.found == "silent: node-a"]
    assert [item.verdict for item in silent] == [Verdict.FAIL]


def test_a_node_whose_clock_is_ahead() -> None:
    ahead = serving_node()
    ahead["status"]["acknowledged"]["time"] = "2030-06-01T12:05:00Z"
    assert only(Verdict.WARN, overview=shown(gpu_nodes=[ahead])).found == "ahead of this machine's: node-a by 5m"


def test_gpus_without_persistence_lost_ones_and_limits_that_somebody_changes() -> None:
    node = serving_node()
    node["status"]["devices"][0]["conditions"] = [condition("Healthy", True, "NotPersistent", "it is off")]
    assert only(Verdict.WARN, overview=shown(gpu_nodes=[node])).name == "persistence mode"
    node = serving_node()
    node["status"]["devices"][0]["conditions"] = [condition("Healthy", False, "Unreachable", "no answer")]
    node["status"]["conditions"][1] = condition("Drifted", True, "LimitChanged", "GPU 0")
    names = {check.name for check in found(overview=shown(gpu_nodes=[node])) if check.verdict is Verdict.WARN}
    assert names == {"GPUs", "limits"}


def test_old_kubelets_and_such_as_cannot_be_read() -> None:
    check = only(Verdict.FAIL, kubelets={"node-a": "v1.30.1", "node-b": "v1.36.0"})
    assert check.found == "older than 1.32: node-a"
    assert only(Verdict.UNKNOWN, kubelets={"node-a": "kwok"}).name == "kubelets"


def test_caps_that_are_not_held_and_none_at_all() -> None:
    names = [check.found for check in found(overview=shown(caps=cluster()["caps"])) if check.verdict is Verdict.WARN]
    assert names == ["not known to be enforced: cluster (WaitingForAcknowledgements)"]
    assert only(Verdict.WARN, overview=shown(caps=[])).found == "there is none: GPUs keep their own limits"


def test_several_versions_of_agents() -> None:
    other = serving_node()
    other["metadata"]["name"] = "node-b"
    other["status"]["agentVersion"] = "0.0.9"
    check = only(
        Verdict.WARN, overview=shown(gpu_nodes=[serving_node(), other], nodes=nodes()[:1], missing={"nodes": ""})
    )
    assert check.found == "several: 0.0.9, 0.1.0"


def test_what_would_be_right_stands_below() -> None:
    text = printed(found(server_version="v1.30.0"), TextOutput.TEXT)
    lines = text.splitlines()
    assert lines[0].split(maxsplit=3) == ["fail", "API", "server", "is v1.30.0"]
    assert lines[1].strip() == "→ upgrade it to Kubernetes 1.35 or newer"
