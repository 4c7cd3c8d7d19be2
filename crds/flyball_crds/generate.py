"""Generate `models.py` from the CRDs: `python -m flyball_crds.generate [--check]`.

The CRDs are written by hand and are the one source of the API. Each object schema in them becomes a class whose name is
chosen here, in `CLASS_NAMES`, so that names stay short and do not move when a field is added elsewhere.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from . import manifests

MODELS = Path(__file__).with_name("models.py")

# Path in the schema -> class. Paths with one class must have the same fields.
CLASS_NAMES = {
    "EnergyAwareJob": "EnergyAwareJob",
    "EnergyAwareJob.spec": "EnergyAwareJobSpec",
    "EnergyAwareJob.spec.gpus": "GpuRange",
    "EnergyAwareJob.spec.training": "Training",
    "EnergyAwareJob.spec.energy": "EnergyBudget",
    "EnergyAwareJob.spec.clocks": "ClockBounds",
    "EnergyAwareJob.spec.powerLimit": "PowerLimitBound",
    "EnergyAwareJob.spec.elasticity": "Elasticity",
    "EnergyAwareJob.spec.pipeline": "Pipeline",
    "EnergyAwareJob.spec.recurrence": "Recurrence",
    "EnergyAwareJob.spec.failurePolicy": "FailurePolicy",
    "EnergyAwareJob.status": "EnergyAwareJobStatus",
    "EnergyAwareJob.status.conditions[]": "Condition",
    "EnergyAwareJob.status.allocation": "Allocation",
    "EnergyAwareJob.status.allocation.nodes[]": "NodeShare",
    "EnergyAwareJob.status.applied": "Allocation",
    "EnergyAwareJob.status.applied.nodes[]": "NodeShare",
    "EnergyAwareJob.status.progress": "Progress",
    "EnergyAwareJob.status.energy": "EnergyUse",
    "EnergyAwareJob.status.energy.incarnations[]": "IncarnationEnergy",
    "EnergyAwareJob.status.frontier[]": "FrontierPoint",
    "EnergyAwareJob.status.summary": "Summary",
    "PowerCap": "PowerCap",
    "PowerCap.spec": "PowerCapSpec",
    "PowerCap.spec.nodeSelector": "LabelSelector",
    "PowerCap.spec.nodeSelector.matchExpressions[]": "LabelSelectorRequirement",
    "PowerCap.spec.schedule[]": "ScheduleEntry",
    "PowerCap.spec.energyBudget": "PeriodicEnergyBudget",
    "PowerCap.status": "PowerCapStatus",
    "PowerCap.status.conditions[]": "Condition",
    "PowerCap.status.breach": "Breach",
    "PowerCap.status.energyPeriod": "EnergyPeriod",
    "GPUNode": "GPUNode",
    "GPUNode.spec": "GPUNodeSpec",
    "GPUNode.spec.devices": "DeviceSettings",
    "GPUNode.spec.jobs[]": "JobGrant",
    "GPUNode.spec.jobs[].clockMegahertz": "LockedClocks",
    "GPUNode.status": "GPUNodeStatus",
    "GPUNode.status.devices[]": "Device",
    "GPUNode.status.devices[].limits": "DeviceLimits",
    "GPUNode.status.devices[].clocksMegahertz": "SupportedClocks",
    "GPUNode.status.devices[].pod": "PodReference",
    "GPUNode.status.devices[].conditions[]": "Condition",
    "GPUNode.status.acknowledged": "Acknowledged",
    "GPUNode.status.jobs[]": "JobObservation",
    "GPUNode.status.conditions[]": "Condition",
    "EnergyProfile": "EnergyProfile",
    "EnergyProfile.spec": "EnergyProfileSpec",
    "EnergyProfile.status": "EnergyProfileStatus",
    "EnergyProfile.status.conditions[]": "Condition",
    "EnergyProfile.status.parameters[]": "FittedParameter",
    "EnergyProfile.status.fit": "Fit",
    "EnergyProfile.status.observations[]": "ObservationSummary",
    "EnergyProfile.status.batchSizeSearch": "BatchSizeSearch",
    "EnergyProfile.status.batchSizeSearch.batchSizes[]": "BatchSizeBelief",
}

_HEADER = '"""The API as pydantic models. Generated from crds/*.yaml by `make models`: do not edit."""'

_OPTIONS = [
    *("--input-file-type", "jsonschema"),
    *("--output-model-type", "pydantic_v2.BaseModel"),
    *("--target-python-version", "3.11"),
    *("--base-class", "flyball_crds.base.ApiModel"),
    *("--custom-file-header", _HEADER),
    *("--formatters", "ruff-format"),
    *("--enum-field-as-literal", "all"),
    *("--output-datetime-class", "AwareDatetime"),
    "--snake-case-field",
    "--no-alias",  # the base class makes the aliases
    "--field-constraints",
    "--strict-nullable",  # a field with a default is never None
    "--use-default-kwarg",  # type checkers see no other kind of default
    "--skip-root-model",
    "--use-schema-description",
    "--use-field-description",
    "--use-single-line-docstring",
    "--use-double-quotes",
    "--disable-timestamp",
]

# The part of Kubernetes' ObjectMeta that we use; a CRD may not describe it.
_OBJECT_META: dict[str, Any] = {
    "type": "object",
    "description": "Standard object metadata, the part of it that Flyball uses.",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "description": "The object's name."},
        "namespace": {"type": "string", "description": "The object's namespace; none for cluster-scoped kinds."},
        "uid": {"type": "string", "description": "Unique over all time."},
        "resourceVersion": {"type": "string", "description": "Changes with every write."},
        "generation": {"type": "integer", "description": "Rises with every change of spec."},
        "creationTimestamp": {"type": "string", "format": "date-time", "description": "When it was created."},
        "deletionTimestamp": {"type": "string", "format": "date-time", "description": "When its deletion was asked."},
        "labels": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "default": {},
            "description": "Labels.",
        },
        "annotations": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "default": {},
            "description": "Annotations.",
        },
        "finalizers": {
            "type": "array",
            "items": {"type": "string"},
            "default": [],
            "description": "Who must agree to its end.",
        },
    },
}


def json_schema(crds: list[dict[str, Any]]) -> dict[str, Any]:
    """One JSON schema with a definition for each class.

    Lists and statuses that are absent read as empty ones, which spares every reader a case; nothing else is added to
    what the CRDs say.

    Raises ValueError for an object schema that `CLASS_NAMES` does not name, and for two of one name that differ.
    """
    definitions: dict[str, Any] = {"ObjectMeta": _OBJECT_META}
    for crd in crds:
        names = crd["spec"]["names"]
        version = crd["spec"]["versions"][0]
        root = version["schema"]["openAPIV3Schema"]
        properties = root["properties"]
        properties["apiVersion"] |= {"const": f"{crd['spec']['group']}/{version['name']}"}
        properties["apiVersion"] |= {"default": properties["apiVersion"]["const"]}
        properties["kind"] |= {"const": names["kind"], "default": names["kind"]}
        _convert(root, names["kind"], definitions)
        definitions[names["kind"]]["properties"]["metadata"] = {"$ref": "#/$defs/ObjectMeta"}
        definitions[names["kind"]]["required"] = ["metadata", *root.get("required", [])]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": definitions}


def _convert(schema: dict[str, Any], path: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of one CRD schema; objects with properties become definitions and are referred to."""
    plain = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-")}
    if plain.get("format") == "date-time":
        plain.pop("maxLength", None)  # the model holds a time, not a string
    if plain["type"] == "array":
        plain["items"] = _convert(_unbounded(plain["items"]), path + "[]", definitions)
        return plain
    if "additionalProperties" in plain:
        plain["additionalProperties"] = _unbounded(plain["additionalProperties"])
        return plain
    if plain["type"] != "object" or "properties" not in plain:
        return plain
    name = CLASS_NAMES.get(path)
    if name is None:
        raise ValueError(f"{path} has no class name: add it to CLASS_NAMES in {Path(__file__).name}")
    required = set(plain.get("required", ()))
    plain["properties"] = {
        field: _with_empty_default(_convert(child, f"{path}.{field}", definitions), field, field in required)
        for field, child in plain["properties"].items()
    }
    default = {"default": plain.pop("default")} if "default" in plain else {}
    known = definitions.setdefault(name, plain)
    if _without_descriptions(known) != _without_descriptions(plain):
        raise ValueError(f"{path} and another schema are both named {name}, but their fields differ: name them apart")
    return {"$ref": f"#/$defs/{name}", "description": plain["description"], **default}


def _unbounded(item: dict[str, Any]) -> dict[str, Any]:
    """A scalar in a list or map without its bounds, which would make a class of it; the API server holds them."""
    return item if item["type"] in ("object", "array") else {"type": item["type"]}


def _with_empty_default(schema: dict[str, Any], field: str, required: bool) -> dict[str, Any]:
    if not required and schema.get("type") == "array":
        return schema | {"default": []}
    if not required and field == "status" and "$ref" in schema:
        return schema | {"default": {}}
    return schema


def _without_descriptions(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            k: _without_descriptions(v) for k, v in schema.items() if not (k == "description" and isinstance(v, str))
        }
    return schema


def generate_source() -> str:
    """The source of `models.py` as the CRDs are now.

    Raises CalledProcessError, after the generator's own words on stderr, where datamodel-code-generator (a development
    dependency) is missing or refuses.
    """
    with tempfile.TemporaryDirectory() as folder:  # an empty one, so that no project's settings are found from it
        schema, models = Path(folder, "crds.json"), Path(folder, "models.py")
        schema.write_text(json.dumps(json_schema(manifests())))
        command = [sys.executable, "-m", "datamodel_code_generator", "--input", str(schema), "--output", str(models)]
        subprocess.run([*command, *_OPTIONS], cwd=folder, check=True)
        return models.read_text()


def main() -> int:
    """Write `models.py`, or with `--check` say whether it is what the CRDs say now."""
    parser = argparse.ArgumentParser(prog="python -m flyball_crds.generate", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail where models.py is not up to date")
    arguments = parser.parse_args()
    source = generate_source()
    if arguments.check:
        if MODELS.read_text() != source:
            print(f"{MODELS} differs from what the CRDs say: run `python -m flyball_crds.generate`", file=sys.stderr)
            return 1
        return 0
    MODELS.write_text(source)
    return 0


if __name__ == "__main__":
    sys.exit(main())
