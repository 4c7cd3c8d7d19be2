"""One view of the cluster: what belongs to a job, and what only says so."""

from __future__ import annotations

from typing import Any

from flyball_kube.resources import ENERGY_AWARE_JOBS, GPU_NODES, JOBS, NODES, PODS, POWER_CAPS, Resource
from flyball_operator.world import Watches, World, flatten
from operator_objects import FLOOR, Json, grant, raw_batch_job, raw_gpu_node, raw_job, raw_node, raw_pod, raw_report

KINDS: tuple[tuple[str, Resource], ...] = (
    ("jobs", ENERGY_AWARE_JOBS),
    ("caps", POWER_CAPS),
    ("gpu_nodes", GPU_NODES),
    ("nodes", NODES),
    ("pods", PODS),
    ("incarnations", JOBS),
)


class Lists:
    """An API server that lists what it is given, and whose watches end at once."""

    def __init__(self, **objects: list[Json]) -> None:
        self._objects = {resource.path(): objects.get(kind, []) for kind, resource in KINDS}

    async def get(self, path: str, **params: str) -> Json:
        items = self._objects[path]
        for index, raw in enumerate(items):
            raw["metadata"]["resourceVersion"] = str(index + 1)
        return {"metadata": {"resourceVersion": "100"}, "items": items}


async def world_of(**objects: list[Json]) -> World:
    session: Any = Lists(**objects)
    watches = Watches(session, lambda: None)
    for kind, _ in KINDS:
        await getattr(watches, kind)._relist()
    return watches.world()


async def test_what_belongs_together() -> None:
    world = await world_of(
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
    assert list(world.jobs) == ["uid-train"]
    assert [pod.name for pod in world.pods] == ["p", "theirs"]  # pods without GPUs are nobody's business
    assert [pod.name for pod in world.pods_of["uid-train"]] == ["p"]
    assert [item.incarnation for item in flatten(world.incarnations)] == [1]
    assert [(node, report.energy_millijoules) for node, report in world.reports_of["uid-train"]] == [("a", 5)]
    assert world.unread == ()


async def test_labels_set_in_another_namespace_make_nothing_a_jobs_own() -> None:
    world = await world_of(
        jobs=[raw_job()],
        pods=[raw_pod("spoof", uid="uid-train", gpus=4, node="a", namespace="others")],
        incarnations=[raw_batch_job("uid-train", 99, (("a", 4),), namespace="others")],
    )
    assert world.pods_of == {}
    assert world.incarnations == {}
    assert [(pod.name, pod.job_uid) for pod in world.pods] == [("spoof", "")]  # a foreign pod: its GPUs are reserved


async def test_what_a_job_that_is_gone_leaves_behind_is_still_ours() -> None:
    world = await world_of(pods=[raw_pod("left", uid="uid-gone", gpus=4, node="a")])
    assert [pod.name for pod in world.pods_of["uid-gone"]] == ["left"]


async def test_what_cannot_be_read_is_named() -> None:
    broken = raw_gpu_node("broken", grant(100))
    broken["spec"] = {"generation": 1}
    cap: Json = {"metadata": {"name": "nameless"}, "spec": {}}
    world = await world_of(gpu_nodes=[broken, raw_gpu_node("a", grant(100))], caps=[cap])
    assert list(world.gpu_nodes) == ["a"]
    assert world.unread == ("broken", "nameless")
