"""A thousand jobs submitted at once, to the whole operator and real agents in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

from flyball_api.names import ANNOTATION_ALLOCATION, LABEL_COMPLETION_INDEX
from flyball_kube.resources import ENERGY_AWARE_JOBS
from flyball_kube.session import ApiSession
from flyball_operator.loop import Operator
from flyball_operator.planning.worker import PlanWorker
from flyball_operator.report.metrics import OperatorMetrics
from flyball_planner.planner import plan as make_plan
from flyball_planner.snapshot import ClusterSnapshot, Plan

from tests.support.examples import examples
from tests.support.power_cluster import GPUS, MIN, NODES, OVERHEAD_WATTS, cap_watts
from tests.support.schedules.faults import Schedule
from tests.support.schedules.memory_api import Change, Json, MemoryApi, plural_of
from tests.support.schedules.processes import SETTINGS, Intended, OperatorProcess
from tests.support.schedules.run import run
from tests.support.schedules.world import Beginning, World

SUBMIT_SECONDS = 0.5  # all of them
PLAN_SECONDS = 0.4  # as long as a plan of so many takes
BEGINNING = Beginning((10, 10, 10), (False,) * 3, ((MIN, 1.0),) * (len(NODES) * GPUS))


class InlinePlanner:
    """The planner's process, in this one."""

    def __init__(self) -> None:
        self.plans: list[int] = []  # of how many jobs each was

    def start(self) -> None: ...

    def stop(self) -> None: ...

    async def plan(self, snapshot: ClusterSnapshot, policy: str) -> Plan:
        self.plans.append(len(snapshot.jobs))
        await asyncio.sleep(PLAN_SECONDS)
        return make_plan(snapshot, policy)


class WholeOperatorProcess(OperatorProcess):
    """The operator with everything that it has."""

    planner: InlinePlanner

    def made(
        self,
        session: ApiSession,
        intended: Intended,
        monotonic: Callable[[], float],
        wall_clock: Callable[[], datetime],
    ) -> Operator:
        operator = Operator(
            session,
            self.lease,
            SETTINGS,
            OperatorMetrics(),
            monotonic=monotonic,
            wall_clock=wall_clock,
            work_seconds=lambda: 0.0,
        )
        self.planner = InlinePlanner()
        operator._worker = cast(PlanWorker, self.planner)
        return operator


class Workloads:
    """What makes pods of batch Jobs, and what runs those whose gates are open: Job controller, scheduler and kubelets."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.requests: Counter[str] = Counter()
        api, handle = world.api, world.api.handle

        def counted(method: str, path: str, params: dict[str, str], body: Any) -> Json:
            if "dryRun" in params:
                return {**body, "metadata": {**body["metadata"], "uid": "uid-of-none", "resourceVersion": "1"}}
            if method != "GET":
                self.requests[f"{method} {plural_of(path)}{'/status' * path.endswith('/status')}"] += 1
            if isinstance(body, list):
                return self._opened(api, path.split("/")[-1])
            return handle(method, path, params, body)

        api.handle = counted  # type: ignore[method-assign]
        api.open("jobs", api.version, self._made)

    def _made(self, change: Change) -> None:
        if change.plural != "jobs" or change.kind != "ADDED":
            return
        job = change.item
        template, metadata = job["spec"]["template"], job["metadata"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
        for index in range(job["spec"]["completions"]):
            labels = {**template["metadata"]["labels"], LABEL_COMPLETION_INDEX: str(index)}
            pod = {
                "metadata": {
                    "name": f"{metadata['name']}-{index}",
                    "namespace": metadata["namespace"],
                    "labels": labels,
                    "ownerReferences": [{**owner, "controller": True}],
                },
                "spec": template["spec"],
                "status": {"phase": "Pending"},
            }
            self._world.api.put("pods", pod)

    def _opened(self, api: MemoryApi, name: str) -> Json:
        """The pod's gate is taken away: it is bound to the node that it was placed on, and runs."""
        pod = api.get("pods", name)
        assert pod is not None
        (job,) = (api.get("jobs", item["name"]) for item in pod["metadata"]["ownerReferences"])
        assert job is not None
        placed = json.loads(job["metadata"]["annotations"][ANNOTATION_ALLOCATION])["nodes"]
        node, gpus = placed[int(pod["metadata"]["labels"][LABEL_COMPLETION_INDEX])]
        machine = self._world.machines[node]
        free = [index for index in range(GPUS) if index not in machine.held][:gpus]
        assert len(free) == gpus, f"{node} has no room for {name}"
        machine.held |= dict.fromkeys(free, name)
        spec = {**pod["spec"], "nodeName": node, "schedulingGates": []}
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self._world.show_pods()
        return api.put("pods", {**pod, "spec": spec, "status": status})


def job(index: int) -> Json:
    return {
        "apiVersion": "flyball.dev/v1alpha1",
        "kind": "EnergyAwareJob",
        "metadata": {"name": f"job-{index}", "namespace": "team"},
        "spec": {
            "gpus": {"min": 1, "max": 1},
            "training": {"globalBatchSize": 64, "iterations": 10**9, "modelClass": "resnet50"},
            "template": {"spec": {"containers": [{"name": "trainer", "image": "train"}]}},
        },
    }


async def until(holds: Callable[[], bool], what: str, seconds: float) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while not holds():
        assert asyncio.get_running_loop().time() < end, what
        await asyncio.sleep(0.02)


async def a_thousand_at_once(world: World, schedule: Schedule) -> None:
    world.operator_kind = WholeOperatorProcess
    workloads = Workloads(world)
    try:
        await world.begin(schedule.beginning)
        for machine in world.machines.values():
            machine.held = {}
        world.show_pods()

        def limits_watts() -> int:
            devices = [device for machine in world.machines.values() for device in machine.devices]
            return sum(device.read().requested_limit_milliwatts for device in devices) // 1000

        def statuses() -> list[Json]:
            return [item.get("status") or {} for item in world.api.items["energyawarejobs"].values()]

        await until(lambda: limits_watts() == len(NODES) * GPUS * MIN, "idle GPUs at their smallest limits", 10.0)
        leader = world.leader()
        assert leader is not None
        planner = cast(WholeOperatorProcess, world.operators[leader]).planner
        planner.plans.clear()
        workloads.requests.clear()
        jobs = examples(1000)
        for index in range(jobs):
            world.api.put(ENERGY_AWARE_JOBS.plural, job(index))
            await asyncio.sleep(SUBMIT_SECONDS / jobs)
        # While their statuses are on the way, the cap falls to where the jobs that have begun do not fit at full power.
        await until(lambda: limits_watts() > len(NODES) * GPUS * MIN, "the first jobs have been granted", 3.0)
        low = cap_watts("hall", 3)
        world.set_cap("hall", 3)
        await until(lambda: limits_watts() + OVERHEAD_WATTS["hall"] <= low, "the cut is in force", 1.0)
        await until(lambda: all(item.get("observedGeneration") for item in statuses()), "every job is told", 10.0)
        running = [pod for pod in world.api.items["pods"].values() if pod["status"]["phase"] == "Running"]
        assert len(running) == len(NODES) * GPUS
        assert world.leader() == leader
        # One plan of those that came while nothing was planned, one of all, and one for the cap that fell.
        assert len(planner.plans) <= 4
        assert planner.plans[-1] == jobs
        requests = workloads.requests
        assert requests["POST jobs"] == len(running)
        assert requests["PATCH gpunodes"] <= 4 * len(NODES)
        assert requests["PATCH energyawarejobs/status"] <= 3 * jobs
        assert sum(requests.values()) <= 3 * jobs + 100
    finally:
        await world.close()


def test_a_thousand_jobs_at_once_are_one_plan_and_no_storm() -> None:
    assert not run(Schedule(1, BEGINNING, ()), play=a_thousand_at_once).violation
