"""The whole operator in virtual time, and what makes pods of its Jobs and runs them.

Beside the cluster of the power protocol: a planner, jobs, and what stands for Job controller, scheduler and kubelets.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any, cast

from flyball_api.names import ANNOTATION_ALLOCATION, LABEL_COMPLETION_INDEX
from flyball_kube.session import ApiSession
from flyball_operator.loop import Operator
from flyball_operator.planning.worker import PlanWorker
from flyball_operator.report.metrics import OperatorMetrics
from flyball_planner.planner import plan as make_plan
from flyball_planner.snapshot import ClusterSnapshot, Plan

from tests.support.power_cluster import GPUS
from tests.support.schedules.memory_api import Change, Json, MemoryApi, plural_of
from tests.support.schedules.processes import Intended, OperatorProcess
from tests.support.schedules.world import World

PLAN_SECONDS = 0.4  # as long as a plan of a thousand jobs takes


class InlinePlanner:
    """The planner's process, in this one."""

    def __init__(self) -> None:
        self.plans: list[int] = []  # of how many jobs each was
        self.planning = False

    def start(self) -> None: ...

    def stop(self) -> None: ...

    async def plan(self, snapshot: ClusterSnapshot, policy: str) -> Plan:
        self.plans.append(len(snapshot.jobs))
        self.planning = True
        try:
            await asyncio.sleep(PLAN_SECONDS)
            return make_plan(snapshot, policy)
        finally:
            self.planning = False


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
        self.planner = InlinePlanner()
        return Operator(
            session,
            self.lease,
            self.settings,
            OperatorMetrics(),
            worker=cast(PlanWorker, self.planner),
            monotonic=monotonic,
            wall_clock=wall_clock,
            work_seconds=lambda: 0.0,
        )


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
        if change.kind == "DELETED":
            self._left(change.item["metadata"]["uid"])
        if change.kind != "ADDED":
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

    def _left(self, job_uid: str) -> None:
        """The pods of a Job that is deleted leave at once, and their GPUs are free."""
        api = self._world.api
        for name, pod in list(api.items.get("pods", {}).items()):
            if any(owner["uid"] == job_uid for owner in pod["metadata"]["ownerReferences"]):
                for machine in self._world.machines.values():
                    machine.held = {gpu: held for gpu, held in machine.held.items() if held != name}
                api.remove("pods", name)
        self._world.show_pods()

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


def job(index: int, **spec: Any) -> Json:
    """An EnergyAwareJob that does not end, of one GPU unless `spec` says otherwise."""
    return {
        "apiVersion": "flyball.dev/v1alpha1",
        "kind": "EnergyAwareJob",
        "metadata": {"name": f"job-{index}", "namespace": "team"},
        "spec": {
            "gpus": {"min": 1, "max": 1},
            "training": {"globalBatchSize": 64, "iterations": 10**9, "modelClass": "resnet50"},
            "template": {"spec": {"containers": [{"name": "trainer", "image": "train"}]}},
            **spec,
        },
    }


async def until(holds: Callable[[], bool], what: str, seconds: float, steadily: float = 0.0) -> None:
    """Wait in virtual time until it holds, and has for `steadily` seconds."""
    loop = asyncio.get_running_loop()
    end, since = loop.time() + seconds, loop.time()
    while not holds() or loop.time() - since < steadily:
        if not holds():
            since = loop.time()
            assert since < end, what
        await asyncio.sleep(0.02)
