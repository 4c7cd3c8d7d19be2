"""GPUNodes: what is written is read back the same, and what is no GPUNode is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_crds.models import GPUNodeSpec
from flyball_operator.gpu_nodes import gpu_node_object, grant_spec, read_gpu_node
from flyball_operator.hold import DeviceGrant, Grant, Hold, JobGrant
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_objects import Json, grant, raw_device, raw_gpu_node, raw_report

milliwatts = st.integers(0, 1_000_000)
job_grants = st.builds(
    JobGrant,
    namespace=st.just("team"),
    name=st.just("train"),
    uid=st.uuids().map(str),
    incarnation=st.integers(0, 99),
    pod_name=st.sampled_from(["p-0", "p-1"]),
    gpus=st.integers(1, 8),
    power_limit_milliwatts=st.integers(1, 700_000),
    clock_min_megahertz=st.integers(0, 210),
    clock_max_megahertz=st.integers(210, 10_000),
)


@st.composite
def grants(draw: st.DrawFn) -> Grant:
    """Grants as the protocol allows them: the sum covers the jobs, the worst covers the sum."""
    jobs = tuple(sorted(draw(st.lists(job_grants, max_size=4)), key=lambda job: (job.uid, job.pod_name)))
    least = sum(job.gpus * job.power_limit_milliwatts for job in jobs)
    hold = Hold(least + draw(milliwatts), draw(milliwatts))
    return Grant(
        epoch=draw(st.integers(0, 10**15)),
        generation=draw(st.integers(0, 10**15)),
        lease_seconds=draw(st.integers(1, 86_400)),
        hold=hold,
        worst=hold | Hold(draw(milliwatts), draw(milliwatts)),
        devices=DeviceGrant(draw(milliwatts), draw(milliwatts), draw(st.integers(0, 64)), draw(milliwatts)),
        jobs=jobs,
    )


@given(grants())
@settings(max_examples=60, deadline=None)
def test_a_grant_is_read_back_as_it_was_written(written: Grant) -> None:
    raw = gpu_node_object("a", {"rack": "r1"}, written)
    raw["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    view = read_gpu_node(raw)
    assert view.grant == written
    assert view.labels == {"rack": "r1"}
    GPUNodeSpec.model_validate(grant_spec(written))  # as the CRD has it


def test_jobs_listed_in_another_order_are_the_same_grant() -> None:
    jobs = tuple(JobGrant("team", uid, uid, 1, f"{uid}-p", 1, 100, 0, 1410) for uid in ("a", "b"))
    raw = raw_gpu_node("n", grant(300, jobs=jobs))
    raw["spec"]["jobs"].reverse()
    assert read_gpu_node(raw).grant == grant(300, jobs=jobs)


def test_what_the_agent_says() -> None:
    report = raw_report(
        "uid-train",
        2,
        5000,
        iterations=7,
        microsecondsPerIteration=8,
        millijoulesPerIteration=9,
        clockMegahertz=1200,
        localBatchSize=32,
        lastReportTime="2030-06-01T12:00:00Z",
        ended=True,
    )
    raw = raw_gpu_node(
        "a",
        grant(200),
        devices=[raw_device(0, pod=("team", "p")), raw_device(1, healthy=False)],
        limits=150,
        reports=[report],
    )
    view = read_gpu_node(raw)
    assert view.acknowledged is not None
    assert (view.acknowledged.version, view.acknowledged.limits_milliwatts) == ((1, 1), 150)
    assert view.acknowledged_current
    assert view.mode == "Granted"
    assert [device.healthy for device in view.devices] == [True, False]
    assert [device.pod for device in view.devices] == [("team", "p"), None]
    assert view.devices[0].enforced_milliwatts == 100_000
    assert (view.devices[0].clock_min_megahertz, view.devices[0].clock_step_megahertz) == (210, 15)
    told = view.reports[0]
    assert (told.uid, told.incarnation, told.iterations, told.energy_millijoules, told.ended) == (
        "uid-train",
        2,
        7,
        5000,
        True,
    )
    assert told.last_report is not None


@pytest.mark.parametrize(
    ("keywords", "current"),
    [
        ({}, False),  # nothing acknowledged
        ({"limits": 200}, True),
        ({"limits": 200, "acknowledged": (1, 0)}, False),
        ({"limits": 200, "acknowledged_on": ("boot-0", "driver-1")}, False),
        ({"limits": 200, "acknowledged_on": ("boot-1", "driver-0")}, False),
    ],
)
def test_only_the_grant_that_stands_acknowledged_since_the_last_boot_is_current(
    keywords: dict[str, Any], current: bool
) -> None:
    assert read_gpu_node(raw_gpu_node("a", grant(200), **keywords)).acknowledged_current is current


def test_a_node_whose_agent_has_said_nothing() -> None:
    view = read_gpu_node({"metadata": {"name": "a", "uid": "u", "resourceVersion": "1"}, "spec": {}})
    assert (view.grant, view.acknowledged, view.devices, view.reports) == (None, None, (), ())
    assert view.defaults_milliwatts(400) == 0


def test_devices_without_a_default_count_at_the_one_given() -> None:
    view = read_gpu_node(raw_gpu_node("a", None, devices=[raw_device(0), raw_device(1, defaultMilliwatts=0)]))
    assert view.defaults_milliwatts(500_000) == 900_000


@pytest.mark.parametrize(
    ("section", "garbage"),
    [
        ("spec", {"generation": 1}),
        ("spec", {"generation": 1, "epoch": 1, "jobs": [{"uid": "u"}]}),
        ("spec", {"generation": 1, "epoch": 1, "jobs": 3}),
        ("spec", {"generation": 1, "epoch": 1, "devices": "all"}),
        ("status", {"acknowledged": {"epoch": 1}}),
        ("status", {"acknowledged": "yes"}),
        ("status", {"devices": [{}]}),
        ("status", {"devices": [{"uuid": "GPU-1", "limits": 5}]}),
        ("status", {"devices": [{"uuid": "GPU-1", "pod": {"name": "p"}}]}),
        ("status", {"jobs": [{"uid": "u"}]}),
        ("status", {"jobs": [{"podName": "p", "lastReportTime": "never"}]}),
    ],
)
def test_garbage_is_refused_by_name(section: str, garbage: Json) -> None:
    raw = {**raw_gpu_node("broken", grant(200)), section: garbage}
    with pytest.raises(ValueError, match="GPUNode broken: not as the CRD has it"):
        read_gpu_node(raw)
