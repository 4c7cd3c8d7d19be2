"""One view of the cluster: what belongs to a job, and what only says so."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, cast

import pytest
from flyball_api.gpu_node import read_gpu_node
from flyball_api.workloads import DEFAULT_GPU_RESOURCES
from flyball_kube.errors import ApiError
from flyball_kube.resources import (
    BRAKE_ACKNOWLEDGEMENTS,
    CORE_EVENTS,
    ENERGY_AWARE_JOBS,
    ENERGY_QUOTAS,
    GPU_NODES,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    POWER_BRAKES,
    POWER_CAPS,
    RESOURCE_QUOTAS,
    Resource,
)
from flyball_kube.server_clock import ServerClock
from flyball_kube.session import ApiSession
from flyball_operator.cluster.state import ClusterState
from flyball_operator.cluster.watches import PATIENCE_FOR_CLAIMS, Watches, logging_problems
from flyball_operator.jobs.manifests import incarnation_service

from tests.support.operator_objects import (
    FLOOR,
    NOW,
    Json,
    grant,
    incarnation_view,
    raw_batch_job,
    raw_gpu_node,
    raw_job,
    raw_node,
    raw_pod,
    raw_report,
)
from tests.support.schedules.memory_api import MemoryApi
from tests.support.schedules.network import Link, Network
from tests.support.schedules.virtual_time import VirtualLoop
from tests.support.shown_cluster import raw_cap
from tests.support.waiting import PATIENCE_SECONDS, until

KINDS: tuple[tuple[str, Resource], ...] = (
    ("jobs", ENERGY_AWARE_JOBS),
    ("caps", POWER_CAPS),
    ("gpu_nodes", GPU_NODES),
    ("nodes", NODES),
    ("pods", PODS),
    ("incarnations", JOBS),
    ("observed_namespaces", NAMESPACES),
    ("energy_quotas", ENERGY_QUOTAS),
)


class Lists:
    """An API server that lists what it is given, and whose watches end at once."""

    def __init__(self, **objects: list[Json]) -> None:
        self.server_clock = ServerClock()
        self.put(**objects)

    def put(self, **objects: list[Json]) -> None:
        """Have just these objects from now on."""
        self._objects = {resource.path(): objects.get(kind, []) for kind, resource in KINDS}

    async def get(self, path: str, **params: str) -> Json:
        items = self._objects[path]
        if "labelSelector" in params and path == NAMESPACES.path():
            name, _, value = params["labelSelector"].partition("=")
            items = [item for item in items if item["metadata"].get("labels", {}).get(name) == value]
        for index, raw in enumerate(items):
            raw["metadata"]["resourceVersion"] = str(index + 1)
        return {"metadata": {"resourceVersion": "100"}, "items": items}

    async def page(self, path: str, params: Mapping[str, str], max_bytes: int) -> Json:
        return await self.get(path, **params)


async def watches_of(
    session: Any, gpu_resources: Collection[str] = DEFAULT_GPU_RESOURCES, *, observe_jobs: bool = False
) -> Watches:
    watches = Watches(session, lambda: None, gpu_resources, observe_jobs=observe_jobs)
    await relist(watches)
    return watches


async def relist(watches: Watches) -> None:
    for kind, _ in KINDS:
        await getattr(watches, kind)._relist()


async def cluster_of(gpu_resources: Collection[str] = DEFAULT_GPU_RESOURCES, **objects: list[Json]) -> ClusterState:
    return (await watches_of(Lists(**objects), gpu_resources)).cluster()


async def test_what_belongs_together() -> None:
    cluster = await cluster_of(
        jobs=[raw_job()],
        nodes=[raw_node("a")],
        gpu_nodes=[raw_gpu_node("a", grant(8 * FLOOR), reports=[raw_report("uid-train", 1, 5)])],
        pods=[
            raw_pod("p", uid="uid-train", gpus=4, node="a"),
            raw_pod("theirs", gpus=1, node="a"),
            raw_pod("web", gpus=0, node="a"),
        ],
        incarnations=[raw_batch_job("uid-train", 1, (("a", 4),))],
    )
    assert list(cluster.jobs) == ["uid-train"]
    assert [pod.name for pod in cluster.pods] == ["p", "theirs"]  # pods without GPUs are nobody's business
    assert [pod.name for pod in cluster.pods_of["uid-train"]] == ["p"]
    assert [item.incarnation for items in cluster.incarnations.values() for item in items] == [1]
    assert [(node, report.energy_millijoules) for node, report in cluster.reports_of["uid-train"]] == [("a", 5)]
    assert cluster.unread == ()


@pytest.mark.parametrize("claimed", [False, True])
async def test_pods_on_parts_of_gpus_are_seen_with_their_labels_and_take_their_needs_once(claimed: bool) -> None:
    slice_ = raw_pod("slice", gpus=0, node="a", annotations={"flyball.dev/power-permille": "500"})
    slice_["metadata"]["labels"] = {"tier": "batch"}
    limits = {"cpu": "2"} if claimed else {"cpu": "2", "nvidia.com/mig-1g.5gb": "1"}
    slice_["spec"]["containers"][0]["resources"]["limits"] = limits
    if claimed:
        slice_["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "a-part"}]
    cluster = await cluster_of(nodes=[raw_node("a")], pods=[slice_, raw_pod("web", gpus=0, node="a")])
    (seen,) = cluster.pods
    assert (seen.name, seen.gpus, seen.power_permille) == ("slice", 0, 500)
    assert seen.labels == (("tier", "batch"),)
    assert cluster.used["a"].cpu == 2000


async def test_labels_set_in_another_namespace_make_nothing_a_jobs_own() -> None:
    cluster = await cluster_of(
        jobs=[raw_job()],
        pods=[raw_pod("spoof", uid="uid-train", gpus=4, node="a", namespace="others")],
        incarnations=[raw_batch_job("uid-train", 99, (("a", 4),), namespace="others")],
    )
    assert cluster.pods_of == {}
    assert cluster.incarnations == {}
    assert [(pod.name, pod.job_uid) for pod in cluster.pods] == [("spoof", "")]  # a foreign pod: its GPUs are reserved


@pytest.mark.parametrize(
    "pod",
    [
        raw_pod("p", uid="x", gpus=1, node="a", controlled=False),
        raw_pod("p", uid="uid-train", gpus=1, node="a", controlled=False),
        raw_pod("p", uid="uid-train", gpus=64, incarnation=2),
        raw_pod("p", uid="uid-train", gpus=1, node="a", incarnation=3),
        raw_pod("p", uid="uid-gone", gpus=1, node="a"),
    ],
    ids=["no such job", "no controller", "forged Job", "no such Job", "job gone"],
)
async def test_a_pod_is_a_jobs_own_only_by_what_controls_it(pod: Json) -> None:
    """Labels are anybody's to set; a batch Job can be made by anybody, too."""
    cluster = await cluster_of(
        jobs=[raw_job()],
        pods=[pod],
        incarnations=[
            raw_batch_job("uid-train", 1, (("a", 4),)),
            raw_batch_job("uid-train", 2, (("a", 64),), controlled=False),
            raw_batch_job("uid-gone", 1, (("a", 4),)),
            raw_batch_job("uid-train", 99_999_999_999, (("a", 4),)),
        ],
    )
    assert [(pod.name, pod.job_uid) for pod in cluster.pods] == [("p", "")]
    assert {uid: [item.incarnation for item in items] for uid, items in cluster.incarnations.items()} == {
        "uid-train": [1]
    }


async def test_a_pods_incarnation_is_its_jobs_whatever_its_labels_say() -> None:
    pod = raw_pod("p", uid="uid-train", gpus=4, node="a")
    pod["metadata"]["labels"] |= {"flyball.dev/job-uid": "x", "flyball.dev/incarnation": "7"}
    cluster = await cluster_of(jobs=[raw_job()], pods=[pod], incarnations=[raw_batch_job("uid-train", 1, (("a", 4),))])
    assert [(pod.job_name, pod.job_uid, pod.incarnation) for pod in cluster.pods] == [("train", "uid-train", 1)]


async def test_what_a_job_that_is_gone_leaves_behind_is_still_its_own() -> None:
    """The Job is gone while its pods still hold their GPUs, which must not be given the default limit meanwhile."""
    job, pod = raw_job(), raw_pod("left", uid="uid-train", gpus=4, node="a")
    session = Lists(jobs=[job], pods=[pod], incarnations=[raw_batch_job("uid-train", 1, (("a", 4),))])
    watches = await watches_of(session)
    assert [pod.name for pod in watches.cluster().pods_of["uid-train"]] == ["left"]
    session.put(pods=[pod])
    await relist(watches)
    cluster = watches.cluster()
    assert [pod.name for pod in cluster.pods_of["uid-train"]] == ["left"]
    assert cluster.incarnations == {}


@pytest.mark.parametrize(("namespace", "ours"), [("team", True), ("others", False)])
async def test_a_new_operator_waits_for_pods_that_leave_after_their_job(namespace: str, ours: bool) -> None:
    pod = raw_pod("left", uid="uid-train", gpus=4, node="a", deleting=True, namespace=namespace)
    cluster = await cluster_of(jobs=[raw_job()], pods=[pod])
    assert list(cluster.pods_of) == (["uid-train"] if ours else [])


async def test_what_the_api_server_shows_of_its_clock_is_part_of_what_it_has() -> None:
    session = Lists()
    session.server_clock = ServerClock(NOW.timestamp, lambda: 0.0)
    watches = await watches_of(session)
    assert watches.cluster().clock_ahead_seconds == 0.0
    session.server_clock.answered("Mon, 02 Mar 2026 12:00:00 GMT", NOW.timestamp(), NOW.timestamp())
    assert watches.cluster().clock_ahead_seconds == session.server_clock.ahead_seconds != 0.0


async def test_what_cannot_be_read_is_named() -> None:
    broken = raw_gpu_node("broken", grant(100))
    broken["spec"] = {"generation": 1}
    cap: Json = {"metadata": {"name": "nameless", "labels": 3}, "spec": {}}
    cluster = await cluster_of(gpu_nodes=[broken, raw_gpu_node("a", grant(100))], caps=[cap])
    assert list(cluster.gpu_nodes) == ["a"]
    assert cluster.unread == ("broken", "nameless")


async def test_gpus_are_counted_by_the_names_that_the_operator_is_given() -> None:
    pod = raw_pod("p", gpus=0)
    pod["spec"]["containers"][0]["resources"]["limits"] = {"example.com/gpu": "4"}
    objects: dict[str, Any] = {"nodes": [raw_node("a", 8, resource="example.com/gpu")], "pods": [pod]}
    unknown = await cluster_of(**objects)
    assert ([node.gpus for node in unknown.nodes], unknown.pods) == ([0], [])
    known = await cluster_of(["nvidia.com/gpu", "example.com/gpu"], **objects)
    assert ([node.gpus for node in known.nodes], [pod.gpus for pod in known.pods]) == ([8], [4])


def test_an_unreadable_part_of_a_status_is_logged_once_and_again_where_it_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    read = logging_problems(read_gpu_node)
    raw = raw_gpu_node("a", grant(8 * FLOOR))
    raw["status"]["mode"] = 7
    for _ in range(3):
        assert len(read(raw).gpus) == 8
    assert caplog.text.count("status.mode: Expected `str`") == 1
    read({**raw, "status": {}})
    read(raw)
    assert caplog.text.count("status.mode: Expected `str`") == 2


# --- whose reports count ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objects", "counts"),
    [
        ({}, False),
        ({"incarnations": [raw_batch_job("uid-train", 1, (("a", 1),))]}, True),
        ({"incarnations": [raw_batch_job("uid-train", 1, (("b", 1),))]}, False),
        (
            {
                "incarnations": [raw_batch_job("uid-train", 1, (("b", 1),))],
                "pods": [raw_pod("train-1-0", uid="uid-train", node="a")],
            },
            True,
        ),
    ],
    ids=["never placed", "placed there", "placed elsewhere", "bound there all the same"],
)
async def test_energy_is_taken_from_the_nodes_of_a_job_alone(objects: dict[str, Any], counts: bool) -> None:
    """A stolen token of one node must not spend the budget of a job that runs on others."""
    reporting = raw_gpu_node("a", grant(8 * FLOOR), reports=[raw_report("uid-train", 1, 10**12)])
    cluster = await cluster_of(jobs=[raw_job()], gpu_nodes=[reporting], **objects)
    assert [node for node, _ in cluster.reports_of.get("uid-train", ())] == (["a"] if counts else [])


async def test_of_an_incarnation_that_is_to_come_no_agent_says_anything() -> None:
    """It would count as the latest for ever, and each number would have an allowance of its own."""
    reports = [raw_report("uid-train", number, 10) for number in (1, 2, 3, 10**6)]
    cluster = await cluster_of(
        jobs=[raw_job(status={"allocation": {"nodes": [{"name": "a", "gpus": 1}], "gpus": 1, "incarnation": 1}})],
        incarnations=[raw_batch_job("uid-train", 2, (("a", 1),))],
        gpu_nodes=[raw_gpu_node("a", grant(8 * FLOOR), reports=reports)],
    )
    assert [report.incarnation for _, report in cluster.reports_of["uid-train"]] == [1, 2]


@pytest.mark.parametrize(
    "status",
    [
        {"energy": {"incarnations": [{"key": "1/a", "millijoules": 5}]}},
        {"allocation": {"nodes": [{"name": "a", "gpus": 1}], "gpus": 1, "incarnation": 1}},
    ],
    ids=["energy", "allocation"],
)
async def test_the_last_reports_count_after_everything_else_of_a_job_is_gone(status: Json) -> None:
    reporting = raw_gpu_node("a", grant(8 * FLOOR), reports=[raw_report("uid-train", 1, 10)])
    cluster = await cluster_of(jobs=[raw_job(status=status)], gpu_nodes=[reporting])
    assert [node for node, _ in cluster.reports_of["uid-train"]] == ["a"]


async def test_a_date_that_cannot_be_read_hides_nothing_else() -> None:
    """The CRD takes what Python's dates do not: an agent's token must not take its own node out of the sum."""
    report = raw_report("uid-train", 1, 10, lastReportTime="2026-01-01T00:00:00+99:99")
    cluster = await cluster_of(gpu_nodes=[raw_gpu_node("a", grant(8 * FLOOR), limits=8 * FLOOR, reports=[report])])
    assert cluster.unread == ()
    assert cluster.gpu_nodes["a"].acknowledged_current
    assert cluster.gpu_nodes["a"].problems == ("status.jobs[0].lastReportTime: Invalid RFC3339 encoded datetime",)


@pytest.mark.parametrize(("everywhere", "names"), [(False, {"b", "c"}), (True, {"a", "b", "c", "d"})])
async def test_a_job_is_only_observed_by_its_own_label_its_namespaces_or_the_operators_option(
    everywhere: bool, names: set[str]
) -> None:
    def job(name: str, namespace: str, **labels: str) -> Json:
        raw = raw_job(name, namespace=namespace)
        raw["metadata"]["labels"] = {label.replace("_", "/"): value for label, value in labels.items()}
        return raw

    def namespace(name: str, mode: str) -> Json:
        return {"metadata": {"name": name, "labels": {"flyball.dev/mode": mode}}}

    observe = {"flyball.dev_mode": "observe"}
    jobs = [job("a", "team"), job("b", "team", **observe), job("c", "lab"), job("d", "web")]
    watches = await watches_of(
        Lists(jobs=jobs, observed_namespaces=[namespace("lab", "observe"), namespace("web", "govern")]),
        observe_jobs=everywhere,
    )
    cluster = watches.cluster()
    assert {found.name for found in cluster.jobs.values() if found.observed} == names
    # What follows from a job that is the same is not worked out anew.
    again = watches.cluster()
    assert all(again.jobs[uid] is found for uid, found in cluster.jobs.items())


async def test_what_somebody_asks_of_a_cap_wakes_at_once_and_a_node_that_may_draw_more_soon() -> None:
    woken: list[str] = []
    session: Any = Lists(
        caps=[raw_cap("row", 9000)],
        nodes=[raw_node("a")],
        gpu_nodes=[raw_gpu_node("a", grant(8 * FLOOR), limits=8 * FLOOR)],
    )
    watches = Watches(
        session,
        lambda: woken.append("some time"),
        DEFAULT_GPU_RESOURCES,
        wake_at_once=lambda: woken.append("at once"),
        wake_soon=lambda: woken.append("soon"),
    )
    await relist(watches)
    versions = itertools.count(101)

    def by(resource: Resource, raw: Json) -> str:
        raw["metadata"]["resourceVersion"] = str(next(versions))
        woken.clear()
        watches.absorb(resource, raw)
        (how,) = woken
        return how

    # Of a cap: what the operator says of it, and what somebody wants of it.
    assert by(POWER_CAPS, raw_cap("row", 9000, status={"effectiveWatts": 9000})) == "some time"
    assert by(POWER_CAPS, raw_cap("row", 8000)) == "at once"
    # Of a Node: how it is but for its power, and a boot's signs.
    assert by(NODES, raw_node("a", unschedulable=True)) == "some time"
    assert by(NODES, raw_node("a", ready=False)) == "soon"
    assert by(NODES, raw_node("b")) == "soon"
    # Of a GPUNode: its agent's reports and acknowledgements, and a driver that was loaded anew.
    more = grant(9 * FLOOR, generation=2)
    assert by(GPU_NODES, raw_gpu_node("a", more, limits=8 * FLOOR, acknowledged=(1, 1))) == "some time"
    assert by(GPU_NODES, raw_gpu_node("a", more, limits=9 * FLOOR)) == "some time"
    assert by(GPU_NODES, raw_gpu_node("a", more, limits=9 * FLOOR, session=("boot", "anew"))) == "soon"


def _web(name: str, node: str = "", phase: str = "Running") -> Json:
    """A pod that asks for half a CPU and no GPU."""
    pod = raw_pod(name, gpus=0, node=node, phase=phase)
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "500m"}}
    return pod


async def test_a_pod_without_gpus_wakes_where_it_takes_something_of_a_node_that_has_some() -> None:
    """Tens of thousands of pods that cannot matter come and go, and a cycle costs as much as ever."""
    woken: list[str] = []
    session: Any = Lists(nodes=[raw_node("gpus"), raw_node("cpus", 0)])
    watches = Watches(session, lambda: woken.append("some time"), DEFAULT_GPU_RESOURCES)
    await relist(watches)
    versions = itertools.count(101)

    def wakes(raw: Json) -> bool:
        raw["metadata"]["resourceVersion"] = str(next(versions))
        woken.clear()
        watches.absorb(PODS, raw)
        return bool(woken)

    # Its whole life on a node without GPUs; and one with GPUs takes as long to be scheduled.
    assert not any(wakes(_web("far", **at)) for at in ({}, {"node": "cpus"}, {"node": "cpus", "phase": "Failed"}))
    assert not wakes(_web("near"))
    assert wakes(_web("near", "gpus"))
    assert watches.cluster().used["gpus"].cpu == 500
    assert not wakes(_web("near", "gpus"))  # it is ready now, or its labels are others: nothing follows
    assert wakes(_web("near", "gpus", phase="Succeeded"))
    assert "gpus" not in watches.cluster().used
    # What came before anybody knew of the node's GPUs counts once they are known.
    assert not wakes(_web("early", "cpus"))
    node = raw_node("cpus", 8)
    node["metadata"]["resourceVersion"] = str(next(versions))
    watches.absorb(NODES, node)
    assert watches.cluster().used["cpus"].cpu == 500
    # And of pods with GPUs, or of jobs, every word.
    for pod in (raw_pod("plain"), raw_pod("plain"), raw_pod("rank", gpus=0, uid="uid-train")):
        assert wakes(pod)


class OldDefinitions:
    """An API server of the version before EnergyQuotas, which may refuse more: what it has is empty."""

    def __init__(self, *refused: Resource) -> None:
        self.server_clock = ServerClock()
        self._refused = {resource.path() for resource in refused}

    async def get(self, path: str, **params: str) -> Json:
        if path in self._refused:
            raise ApiError(404 if path == ENERGY_QUOTAS.path() else 403, "", "the test says so", f"GET {path}")
        return {"metadata": {"resourceVersion": "1"}, "items": []}

    async def page(self, path: str, params: Mapping[str, str], max_bytes: int) -> Json:
        return await self.get(path, **params)

    async def watch(self, path: str, **options: Any) -> AsyncIterator[Json]:
        await asyncio.Event().wait()
        yield {}


async def test_no_cap_waits_for_a_kind_that_can_be_done_without() -> None:
    session: Any = OldDefinitions(ENERGY_QUOTAS, RESOURCE_QUOTAS, CORE_EVENTS)
    watches = Watches(session, lambda: None, DEFAULT_GPU_RESOURCES)
    tasks = [asyncio.create_task(run) for run in watches.runs()]
    await asyncio.wait_for(watches.wait_synced(), PATIENCE_SECONDS)
    await asyncio.wait_for(watches.refresh(), PATIENCE_SECONDS)
    assert watches.cluster().energy_quotas == []
    # What may not be read is not fresh, which readiness says; that there is no such kind is known.
    unknown = {name for name, age in watches.ages().items() if age == float("inf")}
    assert unknown == {RESOURCE_QUOTAS.plural, CORE_EVENTS.plural}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("resource", [NODES, GPU_NODES, POWER_CAPS, POWER_BRAKES])
def test_the_copy_is_as_old_as_the_oldest_of_what_power_depends_on(resource: Resource) -> None:
    """Each by itself can have missed a reboot, a cap that fell, or an emergency."""
    session: Any = Lists()
    watches = Watches(session, lambda: None, DEFAULT_GPU_RESOURCES)
    for each, informer in watches._of.items():
        age = 100.0 if each == resource else 1.0
        informer._fresh_at, informer._monotonic = 0.0, lambda age=age: age
    assert watches.cluster().age_seconds == 100.0


@pytest.mark.parametrize("kind", ["caps", "brakes", "gpu_nodes"])
async def test_what_cannot_be_read_and_power_depends_on_is_named(kind: str) -> None:
    session: Any = Lists()
    watches = Watches(session, lambda: None, DEFAULT_GPU_RESOURCES)
    getattr(watches, kind).invalid["odd"] = "spec.epoch: expected `int`"
    assert watches.cluster().unread == ("odd",)


async def test_a_service_of_another_namespace_or_a_damaged_one_is_no_jobs_own() -> None:
    """Gates would open for ranks that cannot find each other."""
    watches = await watches_of(Lists(jobs=[raw_job()]))
    for version, (namespace, number) in enumerate((("others", 1), ("team", 2), ("team", 3)), start=7):
        raw = incarnation_service(incarnation_view("uid-train", number, ("a", 4)))
        raw["metadata"] |= {"namespace": namespace, "resourceVersion": str(version)}
        if number == 3:
            raw["spec"]["selector"] = {"app": "other"}
        watches.services._store(f"{namespace}/train-{number}", raw)
    assert watches.cluster().services_of == {"uid-train": {"train-2"}}


async def test_a_priority_above_what_its_namespaces_quotas_allow_counts_as_the_highest_allowed() -> None:
    """However it came by it: the API server refuses one that is new, and leaves what was there before the quota."""
    jobs = [raw_job("above", priority=50), raw_job("below", priority=-3)]
    jobs[0]["metadata"]["uid"] = "uid-above"
    jobs[1]["metadata"]["uid"] = "uid-below"

    def quota(name: str, namespace: str, **spec: int) -> Json:
        metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "5"}
        return {"kind": "EnergyQuota", "metadata": metadata, "spec": spec}

    async def priorities(*quotas: Json) -> dict[str, int]:
        watches = await watches_of(Lists(jobs=jobs, energy_quotas=list(quotas)))
        return {job.name: job.spec.priority for job in watches.cluster().jobs.values()}

    assert await priorities() == {"above": 50, "below": -3}
    assert await priorities(quota("other", "others", highestPriority=1)) == {"above": 50, "below": -3}
    assert await priorities(quota("gpus", "team", gpus=8)) == {"above": 50, "below": -3}
    both = quota("loose", "team", highestPriority=40), quota("tight", "team", highestPriority=10)
    assert await priorities(*both) == {"above": 10, "below": -3}


async def test_a_leader_that_reads_anew_reads_all_that_power_depends_on() -> None:
    session: Any = Lists()
    watches = Watches(session, lambda: None, DEFAULT_GPU_RESOURCES)
    asked = []
    for resource, informer in watches._of.items():

        async def refresh(resource: Resource = resource) -> None:
            asked.append(resource)

        informer.refresh = refresh  # type: ignore[method-assign]
    await watches.refresh()
    assert set(asked) == {NODES, GPU_NODES, POWER_CAPS, POWER_BRAKES, BRAKE_ACKNOWLEDGEMENTS}


def test_once_the_api_server_is_back_nothing_that_claims_rest_on_is_unseen_for_longer_than_a_second() -> None:
    async def play(seed: int) -> float:
        network = Network(MemoryApi(lambda change: None))
        session = cast(ApiSession, Link(network, random.Random(seed)).session())
        watches = Watches(session, lambda: None, DEFAULT_GPU_RESOURCES)
        claims = (watches.caps, watches.gpu_nodes, watches.nodes, watches.brakes, watches.brake_acknowledgements)
        tasks = [asyncio.create_task(informer.run()) for informer in claims]
        for informer in claims:
            await informer.wait_synced()
        network.go_down()
        await asyncio.sleep(60.0)
        network.come_up()
        began_at = asyncio.get_running_loop().time()
        await until(lambda: all(informer.relists == 2 for informer in claims))
        seconds = asyncio.get_running_loop().time() - began_at
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return seconds

    loop = VirtualLoop()
    assert max(loop.run_until_complete(play(seed)) for seed in range(20)) < PATIENCE_FOR_CLAIMS.last_pause_seconds + 0.3
    loop.close()
