"""The models say what the CRDs say, and read what newer and older versions write."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from flyball_crds import generate, manifests, models
from flyball_crds.base import ApiModel, field_name
from pydantic import TypeAdapter, ValidationError

ROOT = Path(__file__).parents[2]
CRDS = {crd["spec"]["names"]["kind"]: crd for crd in manifests()}


def test_models_are_generated_from_the_crds_as_they_are() -> None:
    assert generate.generate_source() == generate.MODELS.read_text(), "run `make models` and commit the result"


def _schema_paths(schema: dict[str, Any], path: str) -> set[str]:
    if schema["type"] == "array":
        return _schema_paths(schema["items"], path + "[]")
    paths = {path}
    for name, child in schema.get("properties", {}).items():
        paths |= _schema_paths(child, f"{path}.{name}")
    return paths


def _model_paths(annotation: Any, path: str) -> set[str]:
    """The same paths, read out of pydantic's own JSON schema of the models."""
    whole = TypeAdapter(annotation).json_schema(by_alias=True)

    def walk(schema: dict[str, Any], path: str) -> set[str]:
        for option in schema.get("anyOf", [schema]):
            if "$ref" in option:
                option = whole["$defs"][option["$ref"].rsplit("/", 1)[1]]
            if option.get("type") == "array":
                return walk(option["items"], path + "[]")
            if option.get("type") == "object":
                found = {path}
                for name, child in option.get("properties", {}).items():
                    found |= walk(child, f"{path}.{name}")
                return found
        return {path}

    return walk(whole, path)


@pytest.mark.parametrize("kind", CRDS)
def test_every_field_of_the_crd_is_in_the_model_under_the_same_name(kind: str) -> None:
    root = CRDS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    expected = {path for path in _schema_paths(root, kind) if not path.startswith(f"{kind}.metadata")}
    found = {path for path in _model_paths(getattr(models, kind), kind) if not path.startswith(f"{kind}.metadata")}
    assert found == expected


def test_names_with_acronyms_follow_kubernetes() -> None:
    assert field_name("boot_id") == "bootID"
    assert field_name("grant_milliwatts") == "grantMilliwatts"


def _gpu_node() -> models.GPUNode:
    job = models.JobGrant(
        namespace="research", name="gpt2", uid="5c1f", incarnation=3, pod_name="gpt2-3-0-x7abc", gpus=4,
        power_limit_milliwatts=250_000, clock_megahertz=models.LockedClocks(min=900, max=1200),
    )  # fmt: skip
    spec = models.GPUNodeSpec(
        epoch=7, generation=41, lease_seconds=30, jobs=[job], grant_milliwatts=1_400_000, expected_milliwatts=1_100_000,
        worst_hold_milliwatts=3_200_000, worst_expected_milliwatts=2_000_000,
    )  # fmt: skip
    return models.GPUNode(metadata=models.ObjectMeta(name="node-1"), spec=spec)


def test_an_object_survives_the_way_to_json_and_back() -> None:
    node = _gpu_node()
    written = node.to_api()
    assert written["kind"] == "GPUNode"
    assert written["apiVersion"] == "flyball.dev/v1alpha1"
    assert written["spec"]["jobs"][0]["clockMegahertz"] == {"min": 900, "max": 1200}
    assert models.GPUNode.model_validate(written) == node


def test_fields_of_a_newer_version_are_passed_over_everywhere() -> None:
    node = _gpu_node()
    written = node.to_api()

    def add_a_field(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: add_a_field(child) for key, child in value.items()} | {"aFieldOfTomorrow": {"deep": [1]}}
        return [add_a_field(child) for child in value] if isinstance(value, list) else value

    newer = add_a_field(written)
    for of_strings in ("labels", "annotations"):
        del newer["metadata"][of_strings]
    assert models.GPUNode.model_validate(newer) == node


def test_fields_that_an_older_version_does_not_write_have_their_defaults() -> None:
    job = models.EnergyAwareJob.model_validate(
        {
            "metadata": {"name": "old"},
            "spec": {"gpus": {"min": 1, "max": 2}, "training": {"globalBatchSize": 8}, "template": {"spec": {"x": 1}}},
        }
    )
    assert job.spec.objective == "Balanced"
    assert job.spec.elasticity.min_seconds_between_resizes == 600
    assert job.spec.failure_policy.max_restarts == 3
    assert job.spec.template == {"spec": {"x": 1}}
    assert job.status.conditions == []
    assert job.status.allocation is None


def test_times_are_read_with_their_zone_and_written_as_kubernetes_does() -> None:
    period = models.EnergyPeriod.model_validate({"start": "2026-12-01T08:30:00Z"})
    assert period.start.utcoffset() is not None
    assert period.to_api() == {"start": "2026-12-01T08:30:00Z"}


@pytest.mark.parametrize(
    ("model", "malformed"),
    [
        (models.Device, {"uuid": "nvidia0"}),
        (models.Device, {"uuid": "GPU-00000000-0000-4000-8000-000000000000", "powerMilliwatts": -1}),
        (models.Device, {"uuid": "GPU-00000000-0000-4000-8000-000000000000", "powerMilliwatts": 1e308}),
        (models.LockedClocks, {"min": 0, "max": float("nan")}),
        (models.FittedParameter, {"name": "k", "value": "NaN"}),
        (models.FittedParameter, {"name": "k", "value": "1e308"}),
    ],
)
def test_malformed_values_are_refused_by_the_models_too(model: type[ApiModel], malformed: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(malformed)


def test_an_object_schema_without_a_class_name_is_refused_with_where_to_add_it() -> None:
    crd = manifests()[0]
    properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    properties["spec"]["properties"]["novelty"] = {"type": "object", "properties": {"x": {"type": "string"}}}
    with pytest.raises(ValueError, match=r"\.spec\.novelty has no class name: add it to CLASS_NAMES"):
        generate.json_schema([crd])


def test_the_wheel_carries_the_crds(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        packed = {Path(name).name for name in archive.namelist() if name.startswith("flyball_crds/manifests/")}
    assert packed == {path.name for path in (ROOT / "crds").glob("*.yaml")}
