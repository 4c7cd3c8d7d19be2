"""How soon a job says what keeps it from running: the whole operator in virtual time, from the cause to the status."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from flyball_kube.errors import ApiError
from flyball_kube.resources import ENERGY_AWARE_JOBS

from tests.support.power_cluster import GPUS, MIN, NODES
from tests.support.schedules.faults import Schedule
from tests.support.schedules.memory_api import Change, Json, MemoryApi, plural_of
from tests.support.schedules.run import run
from tests.support.schedules.workloads import WholeOperatorProcess, Workloads, job, until
from tests.support.schedules.world import Beginning, World

BEGINNING = Beginning((10, 10, 10), (False,) * 3, ((MIN, 1.0),) * (len(NODES) * GPUS))
TRAINER: Json = {"containers": [{"name": "trainer", "image": "train"}]}
SECONDS = 5.0  # from when somebody has said it at the API server
UNSCHEDULABLE = 'persistentvolumeclaim "data" not found'
IMAGE = 'Back-off pulling image "train"'
QUOTA = 'jobs.batch "job-0-1" is forbidden: exceeded quota: small, requested: count/jobs.batch=1'
SECURITY = 'pods "job-0-1-0" is forbidden: violates PodSecurity "restricted:latest"'
ACCOUNT = (
    'pods "job-0-1-" is forbidden: error looking up service account team/missing: serviceaccount "missing" not found'
)
NODE_NAME = (
    'Pod "job-0-1-0-x" is invalid: spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared'
)
TEMPLATE = 'Job.batch "job-0-1" is invalid: spec.template.spec.containers[0].name: Invalid value: "Not A Name"'
# What the Job controller says of pods that it cannot make.
FAILED_CREATES = {"security": SECURITY, "account": ACCOUNT, "nodeName": NODE_NAME}
# How the API server refuses an object, and of which kind.
REFUSED_POSTS = {
    "job": ("jobs", False, 403, "Forbidden", QUOTA),
    "service": ("services", False, 403, "Forbidden", QUOTA),
    "template": ("jobs", True, 422, "Invalid", TEMPLATE),
}


class Stuck(Workloads):
    """Pods that do not come to run, each for one cause; `said_at` is when that was first to be seen."""

    def __init__(self, world: World, cause: str) -> None:
        self.cause = cause
        self.said_at = 0.0
        super().__init__(world)
        handle = world.api.handle

        def refusing(method: str, path: str, params: dict[str, str], body: Any) -> Json:
            plural, dry, code, reason, words = REFUSED_POSTS.get(cause, ("", False, 0, "", ""))
            if (method, plural_of(path), "dryRun" in params) == ("POST", plural, dry):
                self._said()
                raise ApiError(code, reason, words, f"{method} {path}")
            return handle(method, path, params, body)

        world.api.handle = refusing  # type: ignore[method-assign]

    def _said(self) -> None:
        self.said_at = self.said_at or asyncio.get_running_loop().time()

    def _made(self, change: Change) -> None:
        if self.cause not in FAILED_CREATES or change.kind != "ADDED":
            super()._made(change)
            return
        self._said()
        metadata = change.item["metadata"]
        involved = {"kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
        said = {
            "reason": "FailedCreate",
            "message": f"Error creating: {FAILED_CREATES[self.cause]}",
            "lastTimestamp": "2030-06-01T12:00:00Z",
        }
        self._world.api.put("events", {"metadata": {"name": "refused"}, "involvedObject": involved, **said})

    def _opened(self, api: MemoryApi, name: str) -> Json:
        pod = api.get("pods", name)
        assert pod is not None
        self._said()
        spec = {**pod["spec"], "schedulingGates": []}
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": UNSCHEDULABLE}
        status: Json = {"phase": "Pending", "conditions": [condition]}
        if self.cause == "image":
            spec["nodeName"] = "a"
            waiting = {"reason": "ImagePullBackOff", "message": IMAGE}
            status = {"phase": "Pending", "containerStatuses": [{"name": "trainer", "state": {"waiting": waiting}}]}
        return api.put("pods", {**pod, "spec": spec, "status": status})


async def begin_without_pods(world: World, schedule: Schedule) -> None:
    """Begin with the whole operator, and nothing on any GPU."""
    world.operator_kind = WholeOperatorProcess
    await world.begin(schedule.beginning)
    for machine in world.machines.values():
        machine.held = {}
    world.show_pods()


def status(world: World, name: str = "job-0") -> Json:
    return dict(world.api.items["energyawarejobs"][name].get("status") or {})


def test_a_wait_of_a_minute_is_written_soon_after_it() -> None:
    async def play(world: World, schedule: Schedule) -> None:
        Workloads(world)

        try:
            await begin_without_pods(world, schedule)
            count = len(NODES) * GPUS + 1
            for index in range(count):
                world.api.put(ENERGY_AWARE_JOBS.plural, job(index))
            names = [f"job-{index}" for index in range(count)]

            def queued() -> list[str]:
                return [name for name in names if status(world, name).get("queue", {}).get("waiting") == 1]

            await until(lambda: len(queued()) == 1, "all run but one", 30.0)
            (waiting,) = queued()
            await asyncio.sleep(60.0)  # of virtual time
            await until(
                lambda: (
                    datetime.fromisoformat(status(world, waiting)["time"])
                    >= datetime.fromisoformat(status(world, waiting)["waitingSince"]) + timedelta(minutes=1)
                ),
                "the status of a wait of a minute, from which its Event follows, is written",
                2 * SECONDS,
            )
        finally:
            await world.close()

    assert not run(Schedule(1, BEGINNING, ()), play=play).violation


@pytest.mark.parametrize(
    ("cause", "reason", "words"),
    [
        ("unschedulable", "Unschedulable", UNSCHEDULABLE),
        ("image", "ImagePullFailed", IMAGE),
        ("job", "QuotaExceeded", QUOTA),
        ("service", "QuotaExceeded", QUOTA),
        ("template", "InvalidSpec", TEMPLATE),
        ("security", "PodSecurityViolated", SECURITY),
        ("account", "ServiceAccountNotFound", ACCOUNT),
        ("nodeName", "PodsRefused", NODE_NAME),
    ],
)
def test_what_keeps_a_job_from_running_is_said_within_five_seconds(cause: str, reason: str, words: str) -> None:
    async def play(world: World, schedule: Schedule) -> None:
        workloads = Stuck(world, cause)

        try:
            await begin_without_pods(world, schedule)
            world.api.put(ENERGY_AWARE_JOBS.plural, job(0))
            await until(lambda: workloads.said_at > 0, "the cause is there", 30.0)
            await until(lambda: status(world).get("state") == reason, f"{reason}; it says {status(world)}", SECONDS)
            assert words in status(world)["explanation"]
        finally:
            await world.close()

    assert not run(Schedule(1, BEGINNING, ()), play=play).violation


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({"template": {"spec": {**TRAINER, "nodeSelector": {"disk": "ssd"}}}}, "NoNodeFits", "no label disk=ssd"),
        ({"gpus": {"min": 1024, "max": 1024}}, "ExceedsCluster", "needs 1024 GPUs, and the cluster has "),
        ({"gpus": {"min": 1, "max": 1, "resourceName": "amd.com/gpu"}}, "UnknownGpuResource", "amd.com/gpu"),
        (
            {"energy": {"budgetKilojoules": 1, "onExhausted": "Suspend"}},
            "BudgetTooSmall",
            "energy.budgetKilojoules is 1",
        ),
    ],
    ids=["selector", "size", "resource", "budget"],
)
def test_what_nothing_can_be_planned_of_is_said_within_five_seconds(spec: Json, reason: str, words: str) -> None:
    async def play(world: World, schedule: Schedule) -> None:
        Workloads(world)

        try:
            await begin_without_pods(world, schedule)
            await asyncio.sleep(10.0)  # of virtual time: it leads by then
            world.api.put(ENERGY_AWARE_JOBS.plural, job(0, **spec))
            await until(lambda: status(world).get("state") == reason, f"{reason}; it says {status(world)}", SECONDS)
            assert words in status(world)["explanation"]
        finally:
            await world.close()

    assert not run(Schedule(1, BEGINNING, ()), play=play).violation
