"""Where jobs' pods can go, as the scheduler will judge it, and what is said of those that can go nowhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.workloads import GpuQuota, Needs, PodView, read_gpu_quotas, read_needs, read_node, read_pod
from flyball_operator.jobs.feasibility import comparisons, fitting
from flyball_operator.jobs.feasibility.fitting import Fit, Fitting, withheld_gpus
from flyball_operator.jobs.feasibility.pod_demands import (
    CHECKED_AT_ONCE,
    LONGEST_KEY,
    LONGEST_VALUE,
    MOST_REQUIREMENTS,
    PodDemands,
    pod_demands,
)
from flyball_operator.jobs.feasibility.quotas import resource_quota_bounds
from flyball_operator.power.nodes.info import NodeInfo, read_nodes

from tests.support.operator_objects import Json, job_view, pod_view, raw_node, raw_pod, running_pod

NAMES = ("nvidia.com/gpu", "example.com/gpu")


def node(
    name: str,
    *,
    allocatable: int = 8,
    cpu: str = "128",
    storage: str = "1Ti",
    labels: Json | None = None,
    **keywords: Any,
) -> NodeInfo:
    raw = raw_node(name, **keywords)
    raw["metadata"]["labels"] |= labels or {}
    resource = keywords.get("resource", "nvidia.com/gpu")
    free = {"cpu": cpu, "memory": "512Gi", "ephemeral-storage": storage}
    raw["status"]["allocatable"] = {resource: str(allocatable), **free}
    return read_nodes([read_node(raw, NAMES)], {}, [], frozenset())[name]


RESERVED: dict[str, Any] = {"taints": [{"key": "gpu", "value": "reserved", "effect": "NoSchedule"}]}


def job(
    name: str = "train", gpus: tuple[int, int] = (8, 8), resource: str = "nvidia.com/gpu", **spec: Any
) -> EnergyAwareJob:
    requests = spec.pop("requests", {})
    own = {key: spec.pop(key) for key in ("priority",) if key in spec}
    trainer = {"name": "trainer", "image": "trainer", "resources": {"requests": requests}}
    return job_view(
        name,
        gpus={"min": gpus[0], "max": gpus[1], "resourceName": resource},
        template={"spec": {"containers": [trainer], **spec}},
        **own,
    )


def fits_of(
    jobs: Sequence[EnergyAwareJob],
    nodes: Sequence[NodeInfo],
    pods: Mapping[str, Sequence[PodView]] | None = None,
    used: Mapping[str, Needs] | None = None,
    quotas: Sequence[GpuQuota] = (),
    foreign: Mapping[tuple[str, str], int] | None = None,
) -> dict[str, Fit]:
    bounds = resource_quota_bounds(jobs, quotas, foreign or {})
    return Fitting().fits(jobs, {info.name: info for info in nodes}, pods or {}, used or {}, bounds, {})


def fit_of(view: EnergyAwareJob, *nodes: NodeInfo, **keywords: Any) -> Fit:
    return fits_of([view], nodes, **keywords)[view.uid]


def required(*expressions: Json) -> Json:
    terms = [{"matchExpressions": list(expressions)}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


@pytest.mark.parametrize(
    ("spec", "nodes"),
    [
        ({}, "abd"),
        ({"nodeSelector": {"disk": "ssd"}}, "b"),
        ({"affinity": required({"key": "disk", "operator": "In", "values": ["ssd", "nvme"]})}, "b"),
        ({"affinity": required({"key": "disk", "operator": "NotIn", "values": ["ssd"]})}, "ad"),
        ({"affinity": required({"key": "disk", "operator": "DoesNotExist"})}, "ad"),
        ({"affinity": required({"key": "disk", "operator": "Exists"})}, "b"),
        ({"affinity": required({"key": "speed", "operator": "Gt", "values": ["9"]})}, "d"),
        ({"affinity": required({"key": "speed", "operator": "Lt", "values": ["9"]})}, ""),
        ({"affinity": required({"key": "speed", "operator": "Lt", "values": ["11"]})}, "d"),
        ({"affinity": required({"key": "speed", "operator": "Gt", "values": []})}, ""),
        ({"affinity": required({"key": "speed", "operator": "Gt", "values": ["9", "8"]})}, ""),
        ({"affinity": required({"key": "speed", "operator": "Gt", "values": ["9".zfill(LONGEST_VALUE)]})}, "d"),
        ({"affinity": required({"key": "speed", "operator": "Gt", "values": ["9".zfill(LONGEST_VALUE + 1)]})}, ""),
        ({"affinity": required({"key": "speed", "operator": "Somehow", "values": ["9"]})}, "abd"),
        ({"tolerations": [{"key": "gpu", "operator": "Exists"}]}, "abcd"),
        ({"tolerations": [{"operator": "Exists"}]}, "abcd"),
        ({"tolerations": [{"key": "gpu", "value": "reserved", "effect": "NoSchedule"}]}, "abcd"),
        ({"tolerations": [{"key": "gpu", "value": "other"}]}, "abd"),
        ({"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]}, "abd"),
        ({"requests": {"cpu": "100"}}, "ad"),
        ({"requests": {"memory": "513Gi"}}, ""),
        ({"nodeSelector": "nonsense"}, "abcd"),  # the API server will say so
    ],
)
def test_the_nodes_that_can_take_a_pod(spec: Json, nodes: str) -> None:
    four = [
        node("a"),
        node("b", cpu="64", labels={"disk": "ssd"}),
        node("c", **RESERVED),
        node("d", labels={"speed": "10"}, taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]),
    ]
    fit = fit_of(job(gpus=(1, 8), **spec), *four)
    if spec.get("nodeSelector") == "nonsense":
        assert fit.refusal is None or "taint" in fit.refusal.message
        return
    assert (fit.eligible_nodes if fit.eligible_nodes is not None else frozenset("abcd")) == frozenset(nodes)
    assert (fit.refusal is None) == bool(nodes)


NO_ZONE: Json = {"key": "zone", "operator": "In", "values": ["none"]}


@pytest.mark.parametrize(
    ("spec", "looked_at"),
    [
        ({"affinity": required(*[NO_ZONE] * 100)}, True),
        ({"affinity": required(*[NO_ZONE] * 101)}, False),
        ({"affinity": required({**NO_ZONE, "values": [f"{number}" for number in range(2000)]})}, True),
        ({"affinity": required({**NO_ZONE, "values": [f"{number}" for number in range(2001)]})}, False),
        ({"tolerations": [{"key": f"{number}"} for number in range(100)]}, True),
        ({"tolerations": [{"key": f"{number}"} for number in range(101)]}, False),
    ],
)
def test_who_asks_for_more_than_is_worth_comparing_is_left_to_the_scheduler(spec: Json, looked_at: bool) -> None:
    """Each is compared with each node in each cycle, and a cut that comes meanwhile waits for that."""
    refusal = fit_of(job(**spec), node("a", **RESERVED) if "tolerations" in spec else node("a")).refusal
    assert (refusal is not None) is looked_at


@pytest.mark.parametrize(
    ("spec", "effort"),
    [
        ({}, 1),
        ({"affinity": required(*[NO_ZONE] * (CHECKED_AT_ONCE - 1))}, 1),
        ({"affinity": required(*[NO_ZONE] * CHECKED_AT_ONCE)}, 2),
        ({"affinity": required(*[NO_ZONE] * MOST_REQUIREMENTS)}, 1 + MOST_REQUIREMENTS // CHECKED_AT_ONCE),
        ({"tolerations": [{"key": f"{number}"} for number in range(CHECKED_AT_ONCE)]}, 2),
        ({"nodeSelector": {f"{number}": "" for number in range(CHECKED_AT_ONCE)}}, 2),
    ],
)
def test_what_it_takes_to_compare_with_a_node(spec: Json, effort: int) -> None:
    assert pod_demands(job(**spec)).effort == effort


@pytest.mark.parametrize(
    ("longest", "selector"),
    [
        (LONGEST_KEY, lambda length: {"k" * length: "there"}),
        (LONGEST_VALUE, lambda length: {"key": "v" * length}),
    ],
)
def test_labels_that_are_longer_than_any_are_no_nodes(longest: int, selector: Callable[[int], dict[str, str]]) -> None:
    """A megabyte, which the API server takes for our own kind, would be written out for each node in each cycle."""
    there = node("a", labels=selector(longest))
    assert fit_of(job(nodeSelector=selector(longest)), there).refusal is None
    for length in (longest + 1, 1_000_000):
        refusal = fit_of(job(nodeSelector=selector(length)), there).refusal
        assert refusal is not None
        assert len(refusal.message) < 1000


def test_of_more_demands_than_a_cycle_compares_each_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who creates many jobs that each demand something else of nodes holds up no cut by it."""
    monkeypatch.setattr(comparisons, "MOST_COMPARISONS", 4)
    infos = [node(name, labels={"disk": name}) for name in "ab"]
    jobs = [
        job(f"j{index}", nodeSelector={"disk": "ab"[index % 2]}, requests={"cpu": f"{index + 1}"}) for index in range(5)
    ]
    pods = {jobs[4].uid: [running_pod("j4-0", "b", gpus=8)]}
    several = Fitting()

    def fits() -> list[Fit]:
        found = several.fits(jobs, {info.name: info for info in infos}, pods, {}, {}, {})
        return [found[each.uid] for each in jobs]

    given = job_view("given", status={"allocation": {"nodes": [{"name": "a", "gpus": 8}], "gpus": 8}})
    jobs[3] = replace(jobs[3], status=given.status)
    first = fits()
    assert [each.eligible_nodes for each in first] == [{"a"}, {"b"}, None, {"a"}, {"b"}], "where it is it may stay"
    assert [each.refusal and each.refusal.reason for each in first] == [None, None, "Planning", None, None]
    assert first[2].refusal is not None
    assert first[2].refusal.message == (
        "what its pods demand of a node is compared with the nodes in turn, after that of other jobs"
    )
    infos[0] = node("a", labels={"disk": "none"})
    assert [each.eligible_nodes for each in fits()] == [{"a"}, {"b"}, frozenset(), {"b"}, {"b"}], "as found last"
    assert several.outstanding == 1
    assert [each.refusal is None for each in fits()] == [False, True, False, True, True]
    assert several.outstanding == 0


def test_demands_that_nobody_foresaw_end_no_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> str:
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(fitting, "pod_demands", fails)
        assert fit_of(job(nodeSelector={"disk": "none"}), node("a")) == Fit()
    with monkeypatch.context() as patched:
        patched.setattr(PodDemands, "lacking", fails)
        assert fit_of(job(nodeSelector={"disk": "none"}), node("a")) == Fit()


@pytest.mark.parametrize("what", ["cpu", "memory", "ephemeral-storage"])
def test_needs_that_no_node_has_are_no_error_however_large_they_are(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It was logged in each cycle, with what led to it, and took twenty times as long; and the job was planned for."""
    refusal = fit_of(job(requests={what: "1e999"}), node("a")).refusal
    assert refusal is not None
    assert refusal.reason == "NoNodeFits"
    assert not caplog.records


def test_ephemeral_storage_is_looked_at_too() -> None:
    two = node("a"), node("b", storage="10Gi")
    assert fit_of(job(gpus=(1, 8), requests={"ephemeral-storage": "50Gi"}), *two).eligible_nodes == {"a"}
    refusal = fit_of(job(requests={"ephemeral-storage": "2Ti"}), *two).refusal
    assert refusal is not None
    assert "0 of 2 nodes fit: 2 have less than 2048 GiB of ephemeral storage free" in refusal.message


def test_what_the_nodes_lack_is_counted() -> None:
    nodes = [node("a", **RESERVED), node("b", **RESERVED), node("c", **RESERVED), node("d", allocatable=7)]
    refusal = fit_of(job(), *nodes).refusal
    assert refusal is not None
    assert (refusal.reason, refusal.message) == (
        "NoNodeFits",
        "0 of 4 nodes fit: 3 have taint gpu=reserved, 1 has 7 of 8 GPUs",
    )
    words = "3 of 4 nodes do not fit: 3 have taint gpu=reserved."
    assert fit_of(job(gpus=(4, 8)), *nodes) == Fit(frozenset("d"), passed_over=words)


def test_nodes_that_fit_and_are_too_few() -> None:
    refusal = fit_of(job(gpus=(16, 16)), node("a"), node("b", **RESERVED)).refusal
    assert refusal is not None
    assert refusal.message == "1 of 2 nodes fits, with 8 of the 16 GPUs that it needs: 1 has taint gpu=reserved"


def test_what_can_never_run_says_so() -> None:
    refusal = fit_of(job(gpus=(64, 64)), node("a"), node("b")).refusal
    assert refusal is not None
    assert (refusal.reason, refusal.message) == ("ExceedsCluster", "needs 64 GPUs, and the cluster has 16 in 2 nodes")


def test_before_there_are_nodes_nothing_is_said() -> None:
    assert fit_of(job()) == Fit()


def test_gpus_go_by_the_name_that_the_job_asks_by() -> None:
    ours, theirs = node("a"), node("b", resource="example.com/gpu")
    assert fit_of(job(resource="example.com/gpu"), ours, theirs).eligible_nodes == {"b"}
    assert fit_of(job(gpus=(16, 16), resource="example.com/gpu"), ours, theirs).refusal is not None


def test_what_others_have_of_a_node_is_not_free() -> None:
    pods = {"uid-low": [pod_on("a", "uid-low")], "uid-high": [pod_on("b", "uid-high")]}
    low, high = job("low", priority=-1), job("high", priority=1)
    asking = job("train", gpus=(1, 1), requests={"cpu": "100"})
    nodes = [node("a"), node("b"), node("c")]
    used = {"c": read_needs({"cpu": "30"})}
    fits = fits_of([asking, low, high], nodes, pods, used)
    # The plan may pause the job of a lower priority; the other two nodes are taken.
    assert fits[asking.uid].eligible_nodes == {"a"}


def pod_on(name: str, uid: str, cpu: str = "100") -> PodView:
    raw = raw_pod(f"pod-{name}", uid=uid, gpus=8, node=name, phase="Running")
    raw["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    return read_pod(raw)


def test_a_job_stays_where_it_runs() -> None:
    view = job(requests={"cpu": "100"}, nodeSelector={"disk": "ssd"})
    # Its own pods have the CPUs that its next ones will have; and labels that changed since move nobody.
    fit = fit_of(view, node("a"), node("b", labels={"disk": "ssd"}), pods={view.uid: [pod_on("a", view.uid)]})
    assert fit == Fit(frozenset("ab"))
    alone = fit_of(view, node("a"), node("b"), pods={view.uid: [pod_on("a", view.uid)]})
    assert alone.refusal is None


QUOTA = GpuQuota("team", "q", "nvidia.com/gpu", 4)


def test_a_job_runs_at_what_its_quota_leaves() -> None:
    fits = fits_of([job(gpus=(1, 8))], [node("a")], quotas=[QUOTA])
    assert fits["uid-train"] == Fit(None, 4, bounded_by="ResourceQuota q")
    fits = fits_of([job(gpus=(1, 8))], [node("a")], quotas=[QUOTA], foreign={("team", "nvidia.com/gpu"): 1})
    assert fits["uid-train"] == Fit(None, 2, bounded_by="ResourceQuota q")
    fits = fits_of([job(gpus=(1, 4))], [node("a")], quotas=[QUOTA])
    assert fits["uid-train"] == Fit(None, 4), "its own spec bounds it"


def test_a_quota_is_shared_by_priority() -> None:
    jobs = [job("one", gpus=(2, 8)), job("two", gpus=(2, 8), priority=5), job("three", gpus=(1, 1), priority=-1)]
    fits = fits_of(jobs, [node("a")], quotas=[QUOTA])
    assert (fits["uid-two"].gpus_max, fits["uid-one"].gpus_max) == (2, 2)
    refusal = fits["uid-three"].refusal
    assert refusal is not None
    assert (refusal.reason, refusal.message) == (
        "QuotaExceeded",
        "needs 1 GPU, and of the 4 of ResourceQuota q 0 are left",
    )


def test_a_quota_takes_nothing_from_what_runs() -> None:
    running = pod_view("p", uid="uid-train", gpus=8, node="a", phase="Running")
    fits = fits_of([job(gpus=(8, 8))], [node("a")], {"uid-train": [running]}, quotas=[QUOTA])
    assert fits["uid-train"] == Fit(None, 8)


def test_quotas_of_some_pods_only_say_nothing() -> None:
    raw: Json = {"metadata": {"name": "q", "namespace": "team"}, "spec": {"hard": {"requests.nvidia.com/gpu": "4"}}}
    assert read_gpu_quotas(raw) == (QUOTA,)
    raw["spec"]["scopes"] = ["BestEffort"]
    assert read_gpu_quotas(raw) == ()
    assert read_gpu_quotas({**raw, "spec": {"hard": {"pods": "4"}}}) == ()


def test_gpus_withheld_while_pods_have_them_are_not_taken_away() -> None:
    """A device plugin that is started again offers none for a moment."""
    nodes = [node("a", allocatable=7), node("b", allocatable=0), node("c")]
    pods = [pod_view("p", uid="uid-train", gpus=6, node="b", phase="Running")]
    assert withheld_gpus(nodes, pods) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        ({"containers": [{"name": "x", "resources": {"requests": {"cpu": "2"}}}, {"name": "y"}]}, 2000),
        ({"containers": [{"name": "x", "resources": {"limits": {"cpu": "3"}}}]}, 3000),
        (
            {
                "containers": [{"name": "x", "resources": {"requests": {"cpu": "2"}}}],
                "initContainers": [
                    {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
                    {"name": "i", "resources": {"requests": {"cpu": "4"}}},
                ],
            },
            5000,
        ),
        ({"containers": [{"name": "x"}], "overhead": {"cpu": "250m"}}, 250),
    ],
)
def test_needs_are_counted_as_the_scheduler_does(spec: Json, cpu: int) -> None:
    assert read_pod({"metadata": {"name": "p"}, "spec": spec}).needs.cpu == cpu


def test_a_job_that_waits_for_its_turn_is_told_the_same_in_every_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a status is written for each of thousands in every cycle."""
    monkeypatch.setattr(comparisons, "MOST_COMPARISONS", 1)
    info, several = node("a"), Fitting()
    jobs = [job(f"j{index}", requests={"cpu": f"{index + 1}"}) for index in range(4)]
    first, second = (several.fits(jobs, {info.name: info}, {}, {}, {}, {})[jobs[3].uid] for _ in range(2))
    assert first.refusal is not None
    assert first is second


def test_what_was_found_of_all_nodes_says_nothing_of_one_that_comes_before_the_next_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparisons, "MOST_COMPARISONS", 2)
    infos, several = [node("a"), node("b")], Fitting()
    jobs = [job(f"j{index}", requests={"cpu": f"{index + 1}"}) for index in range(3)]

    def eligible() -> list[frozenset[str] | None]:
        found = several.fits(jobs, {info.name: info for info in infos}, {}, {}, {}, {})
        return [found[each.uid].eligible_nodes for each in jobs]

    assert eligible()[0] == {"a", "b"}
    assert eligible()[:2] == [{"a", "b"}] * 2
    infos.append(node("c", **RESERVED))
    assert eligible() == [{"a", "b"}] * 3
    del jobs[1:]
    infos.pop()
    assert eligible() == [None], "it is looked at in each cycle"
