"""Any JSON that the CRD takes is read, or refused with object and path, and hides nothing beside or within itself."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec
import pytest
from flyball_api.brake_acknowledgement import BrakeAcknowledgement, read_brake_acknowledgement
from flyball_api.energy.profile import EnergyProfile, read_energy_profile
from flyball_api.energy.quota import EnergyQuota, read_energy_quota
from flyball_api.energy.report import EnergyReport, read_energy_report
from flyball_api.energy_aware_job import EnergyAwareJob, read_energy_aware_job
from flyball_api.gpu_node import GpuNode, read_gpu_node
from flyball_api.grant import grant_spec
from flyball_api.power_brake import PowerBrake, read_power_brake
from flyball_api.power_cap import PowerCap, read_power_cap
from flyball_api.reading import InvalidObject
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.crd_schema import ANY_JSON, KINDS, KINDS_WITH_STATUS, Json, json_of, schema_of
from tests.support.examples import examples

WithStatus = EnergyAwareJob | PowerCap | GpuNode | EnergyProfile | EnergyQuota
ReadObject = WithStatus | PowerBrake | BrakeAcknowledgement | EnergyReport
READERS: dict[str, Callable[[Mapping[str, Any]], ReadObject]] = {
    "EnergyAwareJob": read_energy_aware_job,
    "PowerCap": read_power_cap,
    "GPUNode": read_gpu_node,
    "EnergyProfile": read_energy_profile,
    "EnergyQuota": read_energy_quota,
    "PowerBrake": read_power_brake,
    "BrakeAcknowledgement": read_brake_acknowledgement,
    "EnergyReport": read_energy_report,
}
NAME = {
    "EnergyAwareJob": "team/subject",
    "PowerCap": "subject",
    "GPUNode": "subject",
    "EnergyProfile": "team/subject",
    "EnergyQuota": "team/subject",
    "PowerBrake": "subject",
    "BrakeAcknowledgement": "subject",
    "EnergyReport": "subject",
}
MISSING = object()
SPECS = {kind: json_of(schema_of(kind, "spec")) for kind in KINDS}
NO_STATUS = st.none()
STATUSES = {kind: json_of(schema_of(kind, "status")) for kind in KINDS_WITH_STATUS}
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)


def whole(kind: str, spec: Json, status: Any) -> Json:
    metadata = {"name": "subject", "uid": "u", "resourceVersion": "4", "creationTimestamp": "2030-06-01T12:00:00Z"}
    if "/" in NAME[kind]:
        metadata["namespace"] = "team"
    return {"metadata": metadata, "spec": spec, "status": status}


def read_or_refusal(kind: str, raw: Any) -> tuple[ReadObject | None, str]:
    try:
        return READERS[kind](raw), ""
    except InvalidObject as refusal:
        return None, str(refusal)


def of_problem(problem: str) -> str:
    return problem.partition(":")[0]


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every value of a JSON tree that holds no other, with its path."""
    if isinstance(value, dict):
        for name, child in value.items():
            yield from leaves(child, f"{path}.{name}")
    elif isinstance(value, (list, tuple)):
        for index, child in enumerate(value):
            yield from leaves(child, f"{path}[{index}]")
    else:
        yield path, value


def under(path: str, ancestor: str) -> bool:
    return path == ancestor or path.startswith((f"{ancestor}.", f"{ancestor}["))


def at(value: Any, raw: Any, path: str, lost: set[str], prefix: str = "status") -> Any:
    """What was read from `path` of the JSON `raw`, past the entries of lists that were left out."""
    if path == "":
        return value
    if path.startswith("["):
        index, rest = int(path[1:].partition("]")[0]), path.partition("]")[2]
        dropped = [n for n in range(index) if f"{prefix}[{n}]" in lost] if len(value) < len(raw) else []
        return at(value[index - len(dropped)], raw[index], rest, lost, f"{prefix}[{index}]")
    name = path[1:].split(".")[0].split("[")[0]
    child = value.get(name, MISSING)
    if child is MISSING or (child is None and path[1 + len(name) :]):
        return MISSING
    return at(child, raw[name], path[1 + len(name) :], lost, f"{prefix}.{name}")


def same(read: Any, raw: Any) -> bool:
    """Whether a field says what the JSON says; a struct leaves out what has the default, which is empty."""
    if read is MISSING:
        return not raw
    if isinstance(raw, str) and isinstance(read, str) and read != raw:
        return msgspec.convert(read, datetime) == msgspec.convert(raw, datetime)
    return type(read) is type(raw) and bool(read == raw)


def check_spec(spec: msgspec.Struct, raw: Json) -> None:
    """Every field of the spec is as the JSON has it."""
    read = msgspec.to_builtins(spec)
    for path, value in leaves(raw, ""):
        assert same(at(read, raw, path, set()), value), path


def check_status(raw: Json, read: WithStatus) -> None:
    """Every field of the status that no problem names is as the JSON has it."""
    lost = {of_problem(problem) for problem in read.problems}
    status = msgspec.to_builtins(read.status)
    for path, value in leaves(raw["status"], "status"):
        if any(under(path, section) for section in lost):
            continue
        assert same(at(status, raw["status"], path.removeprefix("status"), lost), value), path


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(100), suppress_health_check=SLOW)
@given(data=st.data())
def test_what_the_crd_takes_is_read_or_refused_with_object_and_path(kind: str, data: st.DataObject) -> None:
    raw = whole(kind, data.draw(SPECS[kind], "spec"), data.draw(STATUSES.get(kind, NO_STATUS), "status"))
    before = copy.deepcopy(raw)
    read, refusal = read_or_refusal(kind, raw)
    assert raw == before
    if read is None:
        assert refusal.startswith(f"{kind} {NAME[kind]}: spec")
        return
    if isinstance(read, BrakeAcknowledgement):
        check_spec(read.acknowledged, raw["spec"])
        return
    if isinstance(read, (PowerBrake, EnergyReport)):
        check_spec(read.spec, raw["spec"])
        return
    check_status(raw, read)
    # What the CRD takes is wrong in dates only: nothing but the dates themselves, or what is nothing without one, is lost.
    assert all("datetime" in problem or "missing required field" in problem for problem in read.problems)
    if isinstance(read, GpuNode) and read.grant is not None:
        written = {**grant_spec(read.grant), "jobs": {job["uid"]: job for job in grant_spec(read.grant)["jobs"]}}
        by_name = sorted(raw["spec"].get("caps") or (), key=lambda cap: cap["name"])
        for path, value in leaves({**raw["spec"], "jobs": {}, "caps": by_name}, ""):
            assert same(at(written, {**raw["spec"], "caps": by_name}, path, set()), value), path


@pytest.mark.parametrize("kind", KINDS_WITH_STATUS)
@settings(max_examples=examples(100), suppress_health_check=SLOW)
@given(data=st.data())
def test_a_wrong_value_anywhere_in_a_status_costs_its_own_part_only(kind: str, data: st.DataObject) -> None:
    """What a CRD of another version might let through."""
    raw = whole(kind, SMALLEST[kind], data.draw(STATUSES[kind], "status"))
    places = [path for path, _ in leaves(raw["status"], "status")]
    if not places:
        return
    place = data.draw(st.sampled_from(places), "place")
    put(raw["status"], place.removeprefix("status"), data.draw(ANY_JSON, "value"))
    read = READERS[kind](raw)
    assert isinstance(read, WithStatus)
    for problem in read.problems:
        where = of_problem(problem)
        assert "datetime" in problem or "missing" in problem or under(place, where) or under(where, place), problem
    if not any(under(place, of_problem(problem)) for problem in read.problems):
        remove(raw["status"], place.removeprefix("status"))  # a null, or a value that is as good as the right one
    check_status(raw, read)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(100), suppress_health_check=SLOW)
@given(spec=ANY_JSON, status=ANY_JSON, metadata=ANY_JSON)
def test_any_json_at_all_is_read_or_refused_with_its_path(kind: str, spec: Any, status: Any, metadata: Any) -> None:
    for raw in (
        whole(kind, spec, status),
        {"metadata": metadata, "spec": spec, "status": status},
        {**whole(kind, SMALLEST[kind], status), "metadata": metadata},
    ):
        read, refusal = read_or_refusal(kind, raw)
        if read is None:
            assert refusal.startswith(f"{kind} ")
            assert any(part in refusal for part in (": spec", ": metadata"))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(50), suppress_health_check=SLOW)
@given(data=st.data())
def test_neighbours_are_read_as_if_alone(kind: str, data: st.DataObject) -> None:
    good = whole(kind, SMALLEST[kind], {})
    bad = {**good, "spec": data.draw(ANY_JSON), "status": data.draw(ANY_JSON)}
    alone = READERS[kind](good)
    first, _, last = [read_or_refusal(kind, raw)[0] for raw in (good, bad, good)]
    assert (first, last) == (alone, alone)


SMALLEST: dict[str, Json] = {
    "EnergyAwareJob": {"gpus": {"min": 1, "max": 8}, "training": {"globalBatchSize": 8}, "template": {}},
    "PowerCap": {"watts": 40_000},
    "GPUNode": {
        "epoch": 3,
        "generation": 10,
        "leaseSeconds": 30,
        "boundMilliwatts": 1_000_000,
        "expectedMilliwatts": 800_000,
        "committedMilliwatts": 1_000_000,
        "committedExpectedMilliwatts": 800_000,
    },
    "EnergyProfile": {"profileKey": "gpt2", "gpuModel": "NVIDIA A100-SXM4-40GB"},
    "EnergyQuota": {"gpus": 8},
    "PowerBrake": {"epoch": 3, "sequence": 1, "keptMillionths": 0},
    "BrakeAcknowledgement": {"epoch": 3, "generation": 10, "limitsMilliwatts": 0, "bootID": "b", "driverSession": "d"},
    "EnergyReport": {
        "day": "2030-06-01",
        "countedSince": "2030-06-01T00:00:00Z",
        "chargedUntil": "2030-06-01T12:00:00Z",
    },
}


def _parent(tree: Any, path: str) -> tuple[Any, str | int]:
    step: str | int
    if path.startswith("["):
        index, rest = path[1:].split("]", 1)
        step = int(index)
    else:
        name = path[1:].split(".")[0].split("[")[0]
        step, rest = name, path[1 + len(name) :]
    return _parent(tree[step], rest) if rest else (tree, step)


def put(tree: Any, path: str, value: Any) -> None:
    parent, step = _parent(tree, path)
    parent[step] = value


def remove(tree: Any, path: str) -> None:
    parent, step = _parent(tree, path)
    if isinstance(step, str):
        del parent[step]
