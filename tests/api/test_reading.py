"""Objects from JSON: the specs strictly, the statuses part by part, and what is wrong named with its path."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from flyball_api.energy.profile import EnergyProfileStatus, read_energy_profile
from flyball_api.energy.quota import EnergyQuotaStatus
from flyball_api.energy_aware_job import EnergyAwareJobStatus, JobAllocation, NodeGpus, Progress, read_energy_aware_job
from flyball_api.gpu_node import Acknowledgement, DriverSession, GpuNodeStatus, GpuReport, read_gpu_node
from flyball_api.power_cap import PowerCapStatus, read_power_cap
from flyball_api.reading import MOST_PROBLEMS, InvalidObject
from flyball_api.values.conditions import Condition, StoredCondition, merge_conditions
from flyball_api.writing import to_patch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, convert
from msgspec.structs import fields

from tests.support.schedules.memory_api import merged

Json = dict[str, Any]
NOON = datetime(2030, 6, 1, 12, tzinfo=UTC)


def gpu(index: int, **fields: Any) -> Json:
    return {
        "uuid": f"GPU-00000000-0000-4000-8000-{index:012d}",
        "limits": {"minMilliwatts": 100_000, "defaultMilliwatts": 400_000, "maxMilliwatts": 400_000},
        "powerMilliwatts": 58_000,
        "conditions": [{"type": "Healthy", "status": "True"}],
        **fields,
    }


def report(uid: str, **fields: Any) -> Json:
    return {"namespace": "team", "name": "gpt2", "uid": uid, "incarnation": 2, "podName": f"pod-{uid}", **fields}


def gpu_node(**status: Any) -> Json:
    return {
        "metadata": {"name": "node-1", "uid": "u", "resourceVersion": "7", "labels": {"row": "a"}},
        "spec": {"epoch": 1, "generation": 2, "leaseSeconds": 60, "boundMilliwatts": 3_200_000},
        "status": {
            "bootID": "boot",
            "driverSession": "load",
            "devices": [gpu(index) for index in range(3)],
            "jobs": [report("u1", energyMillijoules=5), report("u2", lastReportTime="2030-06-01T12:00:00Z")],
            "acknowledged": {
                "epoch": 1,
                "generation": 2,
                "limitsMilliwatts": 1_200_000,
                "bootID": "boot",
                "driverSession": "load",
            },
            **status,
        },
    }


def job(status: Json | None = None, **spec: Any) -> Json:
    return {
        "metadata": {"name": "gpt2", "namespace": "team", "uid": "u", "creationTimestamp": "2030-06-01T12:00:00Z"},
        "spec": {"gpus": {"min": 1, "max": 8}, "training": {"globalBatchSize": 256}, "template": {}, **spec},
        "status": status or {},
    }


def test_a_gpu_node_is_read_whole() -> None:
    node = read_gpu_node(gpu_node())
    assert (node.name, node.labels, node.session) == ("node-1", {"row": "a"}, DriverSession("boot", "load"))
    assert node.acknowledged_current
    assert node.grant is not None
    assert node.grant.version == (1, 2)
    assert [item.limits.min_milliwatts for item in node.gpus] == [100_000] * 3
    assert node.status.jobs[1].last_report_time == NOON
    assert node.problems == ()


def test_a_gpu_node_without_a_grant_or_a_status_is_one_that_nobody_has_written_to() -> None:
    node = read_gpu_node({"metadata": {"name": "node-1"}, "spec": {}})
    assert (node.grant, node.status, node.acknowledged_current) == (None, GpuNodeStatus(), False)
    assert not node.acknowledged_since_driver_load


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"bootID": 7}, "status.bootID: Expected `str`, got `int`"),
        ({"acknowledged": {"epoch": 1}}, "status.acknowledged: Object missing required field `generation`"),
        ({"mode": ["Granted"]}, "status.mode: Expected `str`, got `array`"),
        ({"conditions": 3}, "status.conditions: Expected `array`, got `int`"),
    ],
)
def test_an_unreadable_part_of_a_status_hides_nothing_beside_it(changes: Json, problem: str) -> None:
    node = read_gpu_node(gpu_node(**changes))
    assert node.problems == (problem,)
    whole = read_gpu_node(gpu_node(**dict.fromkeys(changes)))
    assert node.status == whole.status
    assert len(node.gpus) == 3


def test_a_date_that_is_none_costs_its_own_field_only() -> None:
    raw = gpu_node()
    raw["status"]["jobs"][1]["lastReportTime"] = "0000-01-01T00:00:00Z"  # the API server takes it
    node = read_gpu_node(raw)
    assert node.problems == ("status.jobs[1].lastReportTime: Invalid RFC3339 encoded datetime",)
    assert [item.uid for item in node.status.jobs] == ["u1", "u2"]
    assert node.status.jobs[1].last_report_time is None


def test_an_unreadable_gpu_still_counts_and_is_not_called_healthy() -> None:
    """What is drawn by a GPU that the operator loses sight of must stay reserved."""
    raw = gpu_node()
    raw["status"]["devices"][1] = 7
    raw["status"]["devices"][2]["limits"] = "none"
    node = read_gpu_node(raw)
    assert node.problems == (
        "status.devices[1]: Expected `object`, got `int`",
        "status.devices[2].limits: Expected `object`, got `str`",
    )
    assert [item.healthy for item in node.gpus] == [True, False, True]
    assert [item.limits_known for item in node.gpus] == [True, False, False]


def test_a_field_in_which_too_much_cannot_be_read_is_left_out_whole_and_hides_nothing_beside_it() -> None:
    """Each part that is left out is another look at all of it, and an agent's token could write hundreds at once."""
    nowhere = {"type": "Odd", "status": "True", "lastTransitionTime": "0000-01-01T00:00:00Z"}
    conditions = [{**nowhere, "type": f"Odd{number}"} for number in range(8)]
    devices = [gpu(index, conditions=conditions) for index in range(64)]
    node = read_gpu_node(gpu_node(devices=devices, mode=7))
    assert len(node.problems) <= MOST_PROBLEMS + 3
    assert "status.devices: Invalid RFC3339 encoded datetime" in node.problems
    assert "status.mode: Expected `str`, got `int`" in node.problems
    assert node.gpus == ()
    assert node.acknowledged_current
    assert [item.uid for item in node.status.jobs] == ["u1", "u2"]


def test_each_of_sixteen_gpus_and_jobs_may_be_unreadable() -> None:
    devices = [gpu(index, limits="none") for index in range(16)]
    node = read_gpu_node(gpu_node(devices=devices, jobs=[*({"uid": str(index)} for index in range(16)), report("u1")]))
    assert len(node.gpus) == 16
    assert [item.uid for item in node.status.jobs] == ["u1"]


def test_paths_name_the_entries_as_they_were_sent() -> None:
    raw = gpu_node()
    raw["status"]["jobs"] = [3, report("u1"), {"uid": "x"}, {}, report("u2", ended="yes"), report("u3")]
    node = read_gpu_node(raw)
    assert node.problems == (
        "status.jobs[0]: Expected `object`, got `int`",
        "status.jobs[2]: Object missing required field `namespace`",
        "status.jobs[3]: Object missing required field `namespace`",
        "status.jobs[4].ended: Expected `bool`, got `str`",
    )
    assert [item.uid for item in node.status.jobs] == ["u1", "u2", "u3"]


def test_a_status_that_is_none_at_all_is_an_empty_one() -> None:
    raw = {**gpu_node(), "status": [1]}
    assert read_gpu_node(raw).status == GpuNodeStatus()
    assert read_gpu_node(raw).problems == ("status: Expected `object`, got `array`",)


def test_reading_changes_nothing_in_what_is_read() -> None:
    raw = gpu_node(mode=3, jobs=[3, {}])
    before = copy.deepcopy(raw)
    read_gpu_node(raw)
    assert raw == before


def test_nulls_stand_for_missing_fields() -> None:
    raw = gpu_node(acknowledged=None, mode=None, conditions=None)
    raw["status"]["devices"][0]["pod"] = None
    raw["status"]["devices"][0]["limits"]["enforcedMilliwatts"] = None
    assert read_gpu_node(raw).problems == ()
    assert read_energy_aware_job(job(energy=None, suspend=None, priority=None)).spec.energy.budget_kilojoules is None


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            {**gpu_node(), "spec": {"epoch": "x"}},
            "GPUNode node-1: spec.epoch: Expected `int`, got `str`",
        ),
        ({"spec": {}}, "GPUNode None: metadata is missing"),
        ({"metadata": {"name": 4}}, "GPUNode 4: metadata.name: Expected `str`, got `int`"),
        ({"metadata": {"name": "n", "labels": {"a": 4}}}, "GPUNode n: metadata.labels: Expected `str`, got `int`"),
    ],
)
def test_a_gpu_node_that_cannot_be_read_is_refused_with_name_and_path(raw: Json, message: str) -> None:
    with pytest.raises(InvalidObject) as refusal:
        read_gpu_node(raw)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"gpus": {"min": 4, "max": 2}}, "spec.gpus: min 4 and max 2 must be 1 <= min <= max"),
        ({"training": {"globalBatchSize": 0}}, "spec.training: globalBatchSize 0 must be at least 1"),
        ({"objective": "Money"}, "spec.objective: Invalid enum value 'Money'"),
        ({"deadline": "0000-01-01T00:00:00Z"}, "spec.deadline: Invalid RFC3339 encoded datetime"),
        ({"deadline": "2030-06-01T12:00:00"}, "spec.deadline: Expected `datetime` with a timezone component"),
        ({"template": []}, "spec.template: Expected `object`, got `array`"),
    ],
)
def test_a_job_that_cannot_be_read_is_refused_with_name_and_path(spec: Json, message: str) -> None:
    with pytest.raises(InvalidObject) as refusal:
        read_energy_aware_job(job(**spec))
    assert str(refusal.value) == f"EnergyAwareJob team/gpt2: {message}"


def test_a_job_has_the_crds_defaults_where_an_older_version_left_fields_out() -> None:
    read = read_energy_aware_job(job())
    assert (read.profile_key, read.elastic, read.managed_by_flyball) == ("gpt2", True, True)
    assert (read.spec.objective, read.spec.gpus.resource_name) == ("Balanced", "nvidia.com/gpu")
    assert (read.spec.failure_policy.max_restarts, read.spec.elasticity.min_seconds_between_resizes) == (3, 600)
    assert (read.finished, read.refusal, read.last_incarnation, read.created) == (False, "", 0, NOON)


def test_a_job_tells_its_end_and_its_refusal_by_its_conditions() -> None:
    refused = {"type": "Admitted", "status": "False", "reason": "InvalidSpec", "message": "no image"}
    raw = job({"conditions": [{**refused, "observedGeneration": 4}, {"type": "Failed", "status": "True"}]})
    raw["metadata"]["generation"] = 4
    assert read_energy_aware_job(raw).refusal == "no image"
    assert read_energy_aware_job(raw).finished
    raw["metadata"]["generation"] = 5
    assert read_energy_aware_job(raw).refusal == ""


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        ({}, "spec: a cap needs exactly one of watts and permilleOfMax"),
        ({"watts": 4, "permilleOfMax": 4}, "spec: a cap needs exactly one of watts and permilleOfMax"),
        ({"watts": -4}, "spec.watts: Expected `int` >= 0"),
        (
            {"watts": 4, "nodeSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
            "spec.nodeSelector.matchExpressions[0]: requirement on label 'a': operator In needs at least one value",
        ),
        ({"watts": 4, "schedule": [{"name": "night"}]}, "spec.schedule[0]: Object missing required field `watts`"),
    ],
)
def test_a_cap_whose_spec_cannot_be_read_is_kept_with_the_reason(spec: Json, refusal: str) -> None:
    cap = read_power_cap({"metadata": {"name": "row"}, "spec": spec, "status": {"effectiveWatts": 7}})
    assert (cap.spec, cap.refusal) == (None, f"PowerCap row: {refusal}")
    assert cap.status.effective_watts == 7


def test_a_profile_is_read_without_the_observations_that_cannot_be() -> None:
    point = {
        "gpus": 8,
        "nodes": 1,
        "localBatchSize": 4,
        "clockMegahertz": 1200,
        "samples": 2,
        "microsecondsPerIteration": 5,
    }
    profile = read_energy_profile(
        {
            "metadata": {"name": "p", "namespace": "team"},
            "spec": {"profileKey": "gpt2", "gpuModel": "A100"},
            "status": {"observations": [point, {**point, "samples": "x"}], "fit": {"time": "never"}},
        }
    )
    assert len(profile.status.observations) == 1
    assert profile.status.fit is not None
    assert {problem.partition(":")[0] for problem in profile.problems} == {
        "status.fit.time",
        "status.observations[1]",
        "status.observations[1].samples",
    }


@pytest.mark.parametrize("status", [GpuNodeStatus, PowerCapStatus, EnergyAwareJobStatus, EnergyProfileStatus])
def test_an_empty_status_can_be_read(status: type[Struct]) -> None:
    assert convert({}, status) == status()


def test_a_status_is_written_as_a_patch_that_removes_what_has_no_value() -> None:
    status = EnergyAwareJobStatus(
        conditions=merge_conditions((), [Condition("Placed", False, "Waiting")], 3, NOON),
        applied=JobAllocation(gpus=8, nodes=(NodeGpus("node-1", 8),)),
        progress=Progress(iterations=5, last_report_time=NOON),
    )
    patch = to_patch(status)
    assert patch["allocation"] is None
    assert patch["applied"]["nodes"] == [{"name": "node-1", "gpus": 8}]
    assert patch["progress"]["lastReportTime"] == "2030-06-01T12:00:00Z"
    assert patch["progress"]["estimatedCompletionTime"] is None
    assert patch["conditions"] == [
        {
            "type": "Placed",
            "status": "False",
            "reason": "Waiting",
            "message": "",
            "observedGeneration": 3,
            "lastTransitionTime": "2030-06-01T12:00:00Z",
        }
    ]


def test_a_patch_leaves_out_the_fields_that_are_to_stay_by_the_names_of_the_api() -> None:
    status = GpuNodeStatus(boot_id="boot-1")
    patch = to_patch(status, unchanged=("acknowledged", "boot_id"))
    assert patch == {key: value for key, value in to_patch(status).items() if key not in ("acknowledged", "bootID")}


@cache
def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type, few of each, so that two often differ in what there is none of."""
    kind = getattr(kind, "__supertype__", kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return values(arguments[0])
    if origin in (Union, UnionType):
        return st.one_of(*map(values, arguments))
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=2).map(tuple)
    if origin in (dict, Mapping):
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=2)
    if issubclass(kind, Struct):
        return st.builds(kind, **{field.name: values(field.type) for field in fields(kind)})
    plain = {bool: st.booleans(), int: st.integers(0, 2), str: st.sampled_from("ab"), datetime: st.just(NOON)}
    return {**plain, NoneType: st.none()}[kind]


@pytest.mark.parametrize(
    "kind",
    [GpuNodeStatus, PowerCapStatus, EnergyAwareJobStatus, EnergyProfileStatus, EnergyQuotaStatus, Acknowledgement],
)
@given(data=st.data())
def test_nothing_of_an_earlier_status_outlasts_a_patch(kind: type[Struct], data: st.DataObject) -> None:
    """What a merge patch leaves out stays: whatever stood before, what is read then is what was written last."""
    before, after = (to_patch(data.draw(values(kind))) for _ in range(2))
    assert merged(merged({}, before), after) == merged({}, after)


def test_entries_of_lists_are_written_without_what_they_do_not_have() -> None:
    """A merge patch replaces lists whole, and null is no value of a list's entry."""
    patch = to_patch(GpuNodeStatus(devices=(GpuReport("GPU-1"),)))
    assert patch["devices"] == [{"uuid": "GPU-1"}]


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    earlier = datetime(2030, 1, 1, tzinfo=UTC)
    before = [StoredCondition("Placed", "True", "PodsBound", last_transition_time=earlier)]
    (kept,) = merge_conditions(before, [Condition("Placed", True, "AllBound", "x" * 2000)], 4, NOON)
    assert (kept.last_transition_time, kept.reason, len(kept.message)) == (earlier, "AllBound", 1000)
    (changed,) = merge_conditions(before, [Condition("Placed", None, "Lost")], 4, NOON)
    assert (changed.last_transition_time, changed.status) == (NOON, "Unknown")
