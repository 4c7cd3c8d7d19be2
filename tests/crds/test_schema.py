"""The schema itself: every field is described and bounded, and kubectl shows what the API says of itself."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flyball_api.manifests import manifests
from flyball_testbed.controlplane.cluster import DevCluster

CRDS = {crd["spec"]["names"]["kind"]: crd for crd in manifests()}
PUBLISHED = "/openapi/v3/apis/flyball.dev/v1alpha1"

# What may be below zero, with the reason.
SIGNED = {
    "PowerCap.status.headroomWatts",  # while a cut is on its way
    "EnergyAwareJob.spec.priority",
}


def _walk(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from _walk(child, f"{path}.{name}")
    if "items" in schema:
        yield from _walk(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from _walk(schema["additionalProperties"], f"{path}{{}}")


def _root(kind: str) -> dict[str, Any]:
    root: dict[str, Any] = CRDS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return root


@pytest.mark.parametrize("kind", CRDS)
def test_every_field_is_described_and_bounded(kind: str) -> None:
    wrong = []
    # The API server describes and bounds these itself, and takes no word of ours about metadata.
    ours = [
        item
        for item in _walk(_root(kind), kind)
        if item[0] not in {f"{kind}.{n}" for n in ("apiVersion", "kind", "metadata")}
    ]
    assert len(ours) > 5, "the walk found no fields"
    for path, schema in ours:
        if len(schema.get("description", "")) < 5 or not schema["description"].rstrip().endswith((".", ")")):
            wrong.append(f"{path}: a description, in sentences")
        if schema["type"] == "number":
            wrong.append(f"{path}: an integer with its unit in its name, or a decimal string")
        if schema["type"] == "integer" and ("format" not in schema or ("minimum" not in schema and path not in SIGNED)):
            wrong.append(f"{path}: a format and a minimum")
        if schema["type"] == "string" and not schema.keys() & {"maxLength", "enum", "format"}:
            wrong.append(f"{path}: a maxLength, an enum or a format")
        if schema["type"] == "array" and not {"maxItems", "x-kubernetes-list-type"} <= schema.keys():
            wrong.append(f"{path}: maxItems and a list type")
        if "additionalProperties" in schema and "maxProperties" not in schema:
            wrong.append(f"{path}: maxProperties")
    assert wrong == []


def test_columns_are_those_that_users_read_first() -> None:
    def shown(kind: str) -> list[str]:
        columns = CRDS[kind]["spec"]["versions"][0]["additionalPrinterColumns"]
        return [column["name"] for column in columns if not column.get("priority")]

    expected = ["GPUs", "Clock", "Power", "Progress", "Energy", "Budget", "ETA", "Queue", "State", "Age"]
    assert shown("EnergyAwareJob") == expected
    assert shown("PowerCap") == ["Cap", "Committed", "Measured", "Headroom", "Nodes", "Enforced", "Age"]


@pytest.mark.parametrize("kind", CRDS)
def test_columns_mean_the_same_in_capitals(kind: str) -> None:
    """As kubectl writes them: a millijoule must not become a megajoule."""
    columns = CRDS[kind]["spec"]["versions"][0]["additionalPrinterColumns"]
    assert [column["name"] for column in columns if re.search(r"\bm[A-Z]", column["name"])] == []


@pytest.mark.parametrize("kind", CRDS)
def test_columns_lead_to_fields_that_exist(kind: str) -> None:
    known = {path for path, _ in _walk(_root(kind), kind)}
    for column in CRDS[kind]["spec"]["versions"][0]["additionalPrinterColumns"]:
        path = column["jsonPath"].split("[?(@.type", 1)
        field = kind + path[0] + ("[].status" if len(path) == 2 else "")
        assert field in known or field == f"{kind}.metadata.creationTimestamp", column


@pytest.mark.parametrize("kind", CRDS)
def test_the_published_schema_describes_every_field(control_plane: DevCluster, kind: str) -> None:
    """What `kubectl explain` reads: the schema as the API server publishes it, metadata included."""
    schemas = control_plane.api.get(PUBLISHED)["components"]["schemas"]
    published = next(schema for name, schema in schemas.items() if name.endswith(f".{kind}"))
    silent = [path for path, schema in _walk(published, kind) if not schema.get("description")]
    assert silent == []
    assert f"{kind}.spec" in dict(_walk(published, kind))


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("eaj.spec.objective", "clocks rise only while a second saved costs no more joules"),
        ("pcap.spec.enforcement", "no load whatever can pass it"),
        ("gpun.spec.committedMilliwatts", "memory of what may still be in force"),
        ("eprof.status.parameters.value", "decimal string"),
    ],
)
def test_kubectl_explains_by_short_names(control_plane: DevCluster, field: str, said: str) -> None:
    kubectl = [str(control_plane.control_plane.kubectl), "--kubeconfig", str(control_plane.kubeconfig)]
    explained = subprocess.run([*kubectl, "explain", field], capture_output=True, text=True, check=True).stdout
    assert said in " ".join(explained.split())


def test_kubectl_shows_a_job_as_a_row(control_plane: DevCluster, kinds: Any) -> None:
    job = kinds.api.create(kinds.path("EnergyAwareJob"), kinds.object("EnergyAwareJob"))
    status = {
        "applied": {"gpus": 8},
        "state": "Running",
        "summary": {
            "clock": "1200 MHz",
            "power": "2.1 kW",
            "progress": "34%",
            "energy": "812 MJ",
            "budget": "90%",
            "eta": "3h20m",
        },
    }
    kinds.api.patch(kinds.path("EnergyAwareJob", job["metadata"]["name"]) + "/status", {"status": status})
    kubectl = [str(control_plane.control_plane.kubectl), "--kubeconfig", str(control_plane.kubeconfig)]
    listed = subprocess.run(
        [*kubectl, "get", "eaj", "--namespace", kinds.namespace], capture_output=True, text=True, check=True
    ).stdout
    header, row = listed.splitlines()
    columns = "NAME GPUS CLOCK POWER PROGRESS ENERGY BUDGET ETA QUEUE STATE AGE"
    assert header.split() == columns.split()
    for shown in ("subject", " 8 ", "1200 MHz", "2.1 kW", "34%", "812 MJ", "90%", "3h20m", "Running"):
        assert shown in row


@pytest.mark.parametrize("kind", CRDS)
def test_the_reference_names_every_field(kind: str) -> None:
    reference = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    words = set(re.findall(r"[A-Za-z]+", reference))
    # A condition's own fields are Kubernetes' (metav1.Condition).
    paths = [path for path, _ in _walk(_root(kind), kind) if "conditions[]" not in path]
    missing = [path for path in paths if re.sub(r"\W", "", path.rpartition(".")[2]) not in words]
    assert missing == []
