"""The structs say what the CRDs say: the same fields, the same defaults, and nothing demanded that an object may lack."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from flyball_api.energy.profile import EnergyProfileSpec, EnergyProfileStatus
from flyball_api.energy.quota import EnergyQuotaSpec, EnergyQuotaStatus
from flyball_api.energy.report import EnergyReportSpec
from flyball_api.energy_aware_job import EnergyAwareJobSpec, EnergyAwareJobStatus
from flyball_api.gpu_node import Acknowledgement, GpuNodeStatus
from flyball_api.grant import GrantSpec
from flyball_api.power_brake import PowerBrakeSpec
from flyball_api.power_cap import PowerCapSpec, PowerCapStatus
from msgspec import Struct

from tests.support.crd_schema import Json, schema_of

ROOT = Path(__file__).parents[2]
STRUCTS: dict[tuple[str, str], type[Struct]] = {
    ("EnergyAwareJob", "spec"): EnergyAwareJobSpec,
    ("EnergyAwareJob", "status"): EnergyAwareJobStatus,
    ("PowerCap", "spec"): PowerCapSpec,
    ("PowerCap", "status"): PowerCapStatus,
    ("GPUNode", "spec"): GrantSpec,
    ("GPUNode", "status"): GpuNodeStatus,
    ("PowerBrake", "spec"): PowerBrakeSpec,
    ("BrakeAcknowledgement", "spec"): Acknowledgement,
    ("EnergyProfile", "spec"): EnergyProfileSpec,
    ("EnergyProfile", "status"): EnergyProfileStatus,
    ("EnergyQuota", "spec"): EnergyQuotaSpec,
    ("EnergyReport", "spec"): EnergyReportSpec,
    ("EnergyQuota", "status"): EnergyQuotaStatus,
}
OPAQUE = {"EnergyAwareJob.spec.template"}  # read as it stands
# Defaults of parts that the CRD leaves out whole: what the part's absence means.
MEANT = {
    "EnergyAwareJob.spec.training.modelClass": "",
    # An acknowledgement in this object and in a GPUNode's status is the same struct.
    "BrakeAcknowledgement.spec.bootID": "",
    "BrakeAcknowledgement.spec.driverSession": "",
    "BrakeAcknowledgement.spec.boundBy": "",
    "BrakeAcknowledgement.spec.digest": "",
    "EnergyAwareJob.spec.managedBy": "flyball.dev/operator",
}


def _fields(struct: type[Struct], path: str) -> Iterator[tuple[str, msgspec.inspect.Field]]:
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    for field in info.fields:
        yield f"{path}.{field.encode_name}", field


def _inner(kind: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """A field's type without None and without the list around it."""
    if isinstance(kind, msgspec.inspect.UnionType):
        (kind,) = [item for item in kind.types if not isinstance(item, msgspec.inspect.NoneType)]
    if isinstance(kind, (msgspec.inspect.VarTupleType, msgspec.inspect.FrozenSetType)):
        return _inner(kind.item_type)
    return kind


def _pairs(struct: type[Struct], schema: Json, path: str) -> Iterator[tuple[str, msgspec.inspect.Field, Json, bool]]:
    """Every field of a struct with its path, its schema, and whether the CRD requires it."""
    for where, field in _fields(struct, path):
        child = schema["properties"][field.encode_name]
        yield where, field, child, field.encode_name in schema.get("required", ())
        kind, inner = _inner(field.type), child
        while inner["type"] == "array":
            inner = inner["items"]
        if isinstance(kind, msgspec.inspect.StructType):
            yield from _pairs(kind.cls, inner, where)


CASES = [pytest.param(struct, schema_of(*of), ".".join(of), id=".".join(of)) for of, struct in STRUCTS.items()]


@pytest.mark.parametrize(("struct", "schema", "path"), CASES)
def test_every_field_of_the_crd_is_in_the_struct_under_the_same_name(
    struct: type[Struct], schema: Json, path: str
) -> None:
    def of_schema(schema: Json, path: str) -> set[str]:
        if path in OPAQUE:
            return {path}
        if schema["type"] == "array":
            return of_schema(schema["items"], path)
        return {path}.union(
            *(of_schema(child, f"{path}.{name}") for name, child in schema.get("properties", {}).items())
        )

    assert {path, *(where for where, *_ in _pairs(struct, schema, path))} == of_schema(schema, path)


@pytest.mark.parametrize(("struct", "schema", "path"), CASES)
def test_nothing_is_demanded_that_an_object_may_lack(struct: type[Struct], schema: Json, path: str) -> None:
    wrong = [where for where, field, _, required in _pairs(struct, schema, path) if field.required and not required]
    assert wrong == []


@pytest.mark.parametrize(("struct", "schema", "path"), CASES)
def test_what_an_object_lacks_has_the_crds_default(struct: type[Struct], schema: Json, path: str) -> None:
    """Objects of an older version of the CRD come without the fields and without the defaults of this one."""
    wrong = []
    for where, field, child, _ in _pairs(struct, schema, path):
        default = field.default if field.default is not msgspec.NODEFAULT else None
        if isinstance(default, Struct):
            assert child.get("default", {}) == {}, where
        elif "default" in child and default != child["default"]:
            wrong.append(f"{where}: {default!r}, in the CRD {child['default']!r}")
        elif where in MEANT:
            assert default == MEANT[where], where
        elif path.endswith("spec") and "default" not in child and default not in (None, (), frozenset(), 0):
            wrong.append(f"{where}: {default!r}, in the CRD none")
    assert wrong == []


@pytest.mark.parametrize(("struct", "schema", "path"), CASES)
def test_values_are_of_the_crds_types_and_within_its_lower_bounds(
    struct: type[Struct], schema: Json, path: str
) -> None:
    types: dict[str, Any] = {
        "integer": msgspec.inspect.IntType,
        "boolean": msgspec.inspect.BoolType,
        "string": (
            msgspec.inspect.StrType,
            msgspec.inspect.DateTimeType,
            msgspec.inspect.LiteralType,
            msgspec.inspect.EnumType,
        ),
        "object": (msgspec.inspect.StructType, msgspec.inspect.DictType),
    }
    wrong = []
    for where, field, child, _ in _pairs(struct, schema, path):
        kind = _inner(field.type)
        while child["type"] == "array":
            child = child["items"]
        if not isinstance(kind, types[child["type"]]):
            wrong.append(f"{where}: {kind} for {child['type']}")
        if isinstance(kind, msgspec.inspect.DateTimeType) != (child.get("format") == "date-time"):
            wrong.append(f"{where}: a date-time in one of them only")
        if isinstance(kind, msgspec.inspect.IntType) and (kind.ge == 0) != (child.get("minimum", -1) >= 0):
            wrong.append(f"{where}: a lower bound in one of them only")
        if isinstance(kind, msgspec.inspect.LiteralType) and set(kind.values) != set(child["enum"]):
            wrong.append(f"{where}: {kind.values} for {child['enum']}")
    assert wrong == []


def test_the_wheel_carries_the_crds(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        packed = {Path(name).name for name in archive.namelist() if name.startswith("flyball_api/manifests/")}
    assert packed == {path.name for path in (ROOT / "crds").glob("*.yaml")}
