"""Every example is taken by the real API server as it stands, with no field that it does not know."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from flyball_api.energy_aware_job import read_energy_aware_job
from flyball_api.power_cap import read_power_cap
from flyball_testbed.controlplane.cluster import DevCluster

ROOT = Path(__file__).parents[2]
EXAMPLES = {path.stem: path.read_text() for path in sorted((ROOT / "examples" / "manifests").glob("*.yaml"))}
IN_REFERENCE = re.findall(r"```yaml\n(apiVersion: flyball.*?)```", (ROOT / "docs" / "api.md").read_text(), re.DOTALL)


def test_there_are_examples_of_what_users_and_sres_write() -> None:
    for texts in (EXAMPLES.values(), IN_REFERENCE):
        kinds = {manifest["kind"] for text in texts for manifest in yaml.safe_load_all(text)}
        assert kinds - {"PersistentVolumeClaim", "Job"} == {"EnergyAwareJob", "EnergyQuota", "PowerCap"}


@pytest.mark.parametrize(
    "text", [*EXAMPLES.values(), *IN_REFERENCE], ids=[*EXAMPLES, *(f"api.md-{i}" for i, _ in enumerate(IN_REFERENCE))]
)
def test_an_example_is_valid(control_plane: DevCluster, text: str) -> None:
    for manifest in yaml.safe_load_all(text):
        manifest["metadata"].pop("namespace", None)  # any will do
        collection = control_plane.api.path_of(manifest).rpartition("/")[0]
        # Strict: a field that the schema does not have is an error, not dropped.
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        stored = control_plane.api.request("POST", collection, manifest, query=query)
        if manifest["kind"] == "PowerCap":
            assert read_power_cap(stored).refusal == ""
        elif manifest["kind"] == "EnergyAwareJob":
            assert read_energy_aware_job(stored).spec.template == manifest["spec"]["template"]


def test_a_misspelt_field_is_told(kinds: Any) -> None:
    manifest = kinds.object("PowerCap") | {"spec": {"watts": 5, "enforcment": "Hard"}}
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    refusal = kinds.refusal(lambda: kinds.api.request("POST", kinds.path("PowerCap"), manifest, query=query))
    assert 'unknown field "spec.enforcment"' in refusal.message
