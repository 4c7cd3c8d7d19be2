"""The documents' manifests and Helm values: what they name is there, and the README's first job is the example's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.crd_schema import KINDS, Json, assert_valid, schema_of

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
HERE_DOCUMENT = re.compile(r"<<END\n(.*?)^END$", re.MULTILINE | re.DOTALL)
API = "flyball.dev/v1alpha1"


def manifests(document: Path) -> Iterator[Json]:
    """What stands in blocks of YAML and is given to kubectl in blocks of shell; a part of a manifest begins at `spec`."""
    for _, language, block in BLOCK.findall(document.read_text()):
        for text in [block] if language == "yaml" else HERE_DOCUMENT.findall(block):
            yield from (found for found in yaml.safe_load_all(text) if isinstance(found, dict))


MANIFESTS = [(document.name, each) for document in DOCUMENTS for each in manifests(document)]
WHOLE = [(name, each) for name, each in MANIFESTS if each.get("apiVersion") == API]
PARTS = [(name, each["spec"]) for name, each in MANIFESTS if "kind" not in each and "spec" in each]


def unknown_parts(schema: Json, value: Any, path: str) -> list[str]:
    """Fields, and words of enumerations, that the schema does not have; what may hold anything is passed over."""
    if isinstance(value, list):
        return [part for each in value for part in unknown_parts(schema["items"], each, path)]
    if not isinstance(value, dict):
        return [] if value in schema.get("enum", [value]) else [f"{path}: {value}"]
    known = schema.get("properties")
    if known is None:
        return []
    found = []
    for name, each in value.items():
        found += unknown_parts(known[name], each, f"{path}.{name}") if name in known else [f"{path}.{name}"]
    return found


@pytest.mark.parametrize(("document", "manifest"), WHOLE, ids=[f"{name}-{i}" for i, (name, _) in enumerate(WHOLE)])
def test_a_whole_manifest_is_one_that_the_crd_takes(document: str, manifest: Json) -> None:
    assert_valid(manifest["kind"], "spec", manifest["spec"])


@pytest.mark.parametrize(("document", "spec"), PARTS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(PARTS)])
def test_a_part_of_a_manifest_is_one_of_some_kind(document: str, spec: Json) -> None:
    wrong = {kind: unknown_parts(schema_of(kind, "spec"), spec, "spec") for kind in KINDS}
    assert [] in wrong.values(), min(wrong.values(), key=len)


def test_documents_have_manifests_of_both_forms() -> None:
    assert {manifest["kind"] for _, manifest in WHOLE} >= {"EnergyAwareJob", "PowerCap", "PowerBrake"}
    assert len(PARTS) > 3
    assert unknown_parts(schema_of("PowerCap", "spec"), {"watts": 1, "schedule": [{"wats": 1}]}, "spec") == [
        "spec.schedule.wats"
    ]


def test_the_readme_s_first_job_is_the_example() -> None:
    example = next(yaml.safe_load_all((ROOT / "examples/manifests/first-job.yaml").read_text()))
    (shown,) = (each for name, each in WHOLE if name == "README.md" and each["kind"] == "EnergyAwareJob")
    assert shown == example


def test_values_that_are_set_are_the_chart_s() -> None:
    values = yaml.safe_load((ROOT / "deploy/helm/flyball/values.yaml").read_text())
    named = {
        (document.name, value)
        for document in DOCUMENTS
        for value in re.findall(r"--set ([\w.]+)=", document.read_text())
    }
    assert ("install.md", "image.registry") in named

    def is_there(value: str) -> bool:
        found: Any = values
        for name in value.split("."):
            if not isinstance(found, dict) or name not in found:
                return False
            found = found[name]
        return True

    assert sorted(each for each in named if not is_there(each[1])) == []


def test_the_number_of_alerts_is_that_of_the_rules() -> None:
    rules = yaml.safe_load((ROOT / "deploy/helm/flyball/rules/alerts.yaml").read_text())
    alerts = sum(len(group["rules"]) for group in rules["groups"])
    assert f"brings {alerts} alerts" in (ROOT / "docs/install.md").read_text()
