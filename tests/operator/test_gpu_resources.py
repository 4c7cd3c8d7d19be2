"""A job's GPUs under another resource name, from its submission to its open gates, through every part that decides."""

from __future__ import annotations

from typing import Any

import pytest
from flyball_api.energy_aware_job import read_energy_aware_job
from flyball_api.workloads import IncarnationView, PodView, read_incarnation, read_node, read_pod
from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.controller import JobController
from flyball_operator.jobs.manifests import incarnation_job
from flyball_operator.jobs.runs.lifecycle import CreateIncarnation, OpenGates
from flyball_operator.jobs.steps.step import JobsCycle, JobsStep
from flyball_operator.planning.snapshot import build_snapshot
from flyball_operator.power.grants.targets import grant_targets
from flyball_operator.power.nodes.info import read_nodes
from flyball_planner import plan

from tests.support.one_job import Priors
from tests.support.operator_objects import (
    FLOOR,
    NOW,
    Json,
    as_stored,
    gpu_node_view,
    grant,
    raw_job,
    raw_node,
)

THEIRS = "example.com/gpu"
UID = "uid-train"


class Cluster:
    """Node `ours` offers nvidia.com/gpu, node `theirs` example.com/gpu; one job asks for four of the latter."""

    def __init__(self, *gpu_resources: str) -> None:
        self.gpu_resources = gpu_resources
        self.nodes = [
            read_node(raw_node("ours"), gpu_resources),
            read_node(raw_node("theirs", resource=THEIRS), gpu_resources),
        ]
        self.gpu_nodes = {name: gpu_node_view(name, grant(8 * FLOOR), limits=8 * FLOOR) for name in ("ours", "theirs")}
        self.raw = raw_job(gpus={"min": 4, "max": 4, "resourceName": THEIRS})
        self.job = read_energy_aware_job(self.raw)
        self.controller = JobController(5.0, Priors(), gpu_resources)
        self.incarnations: list[IncarnationView] = []
        self.pods: list[PodView] = []
        self.decisions: dict[str, Any] = {}

    def step(self) -> JobsStep:
        self.infos = read_nodes(self.nodes, self.gpu_nodes, self.pods, frozenset())
        state = ClusterState(
            jobs={UID: self.job},
            caps=[],
            gpu_nodes=self.gpu_nodes,
            nodes=self.nodes,
            pods=self.pods,
            incarnations={UID: self.incarnations},
            pods_of={UID: self.pods},
            reports_of={},
            unread=(),
            age_seconds=0.0,
            services_of={UID: [item.name for item in self.incarnations]},
        )
        step = self.controller.step(JobsCycle(state, self.infos, self.decisions, 1, NOW, 0.0))
        for _, status in step.statuses:
            self.raw["status"] = as_stored(status)
            self.job = read_energy_aware_job(self.raw)
        return step

    def plan(self, step: JobsStep) -> None:
        snapshot = build_snapshot(
            nodes=self.infos,
            rules={},
            budgets=[],
            jobs=[(job.view, job.memory) for job in step.jobs.values()],
            models_of=lambda job: (Priors().model_for(job, {}),),
            now=NOW,
            restart_seconds=30.0,
            guard_fraction=0.05,
        )
        self.decisions = {decision.uid: decision for decision in plan(snapshot).decisions}

    def create(self, step: JobsStep) -> Json:
        """Make the incarnation and its one gated pod, as the API server and the Job's controller would."""
        ((item,),) = (step.actions,)
        assert isinstance(item.action, CreateIncarnation)
        job = incarnation_job(item.job, item.action.incarnation, item.action.nodes, "", self.gpu_resources, now=NOW)
        self.incarnations = [read_incarnation({**job, "metadata": {**job["metadata"], "uid": "batch-uid"}})]
        template = job["spec"]["template"]
        labels = {**template["metadata"]["labels"], "batch.kubernetes.io/job-completion-index": "0"}
        pod = {
            "metadata": {"namespace": "team", "name": "p0", "uid": "pod-uid", "labels": labels},
            "spec": template["spec"],
        }
        self.pods = [read_pod(pod, self.gpu_resources)]
        return dict(template["spec"]["containers"][0]["resources"]["limits"])


def test_a_job_starts_on_the_nodes_that_offer_what_it_asks_for() -> None:
    cluster = Cluster("nvidia.com/gpu", THEIRS)
    cluster.plan(cluster.step())
    assert cluster.decisions[UID].allocation.nodes == (("theirs", 4),)
    assert cluster.create(cluster.step()) == {THEIRS: "4"}
    cluster.step()  # which puts the incarnation's number into the status
    # Its pod is there: the node is to be granted its watts, and its gate opens once they stand in the API.
    step = cluster.step()
    (wanted,) = [
        item
        for item in grant_targets(cluster.infos, cluster.decisions, cluster.incarnations, cluster.pods, {}, 60, 0.05)
        if item.node == "theirs"
    ]
    (job,) = wanted.jobs
    assert (job.pod_name, job.gpus) == ("p0", 4)
    ((opening,),) = step.actions_of(lambda pod: (pod.name, pod.job_uid) == (job.pod_name, job.uid)).values()
    assert opening.action == OpenGates(((cluster.pods[0], "theirs"),))


@pytest.mark.parametrize("known", [("nvidia.com/gpu",), ("nvidia.com/gpu", "vendor.example/gpu")])
def test_a_job_that_asks_for_an_unknown_resource_is_refused_with_the_known_ones(known: tuple[str, ...]) -> None:
    cluster = Cluster(*known)
    step = cluster.step()
    cluster.plan(step)
    assert cluster.decisions == {}
    ((_, status),) = step.statuses
    assert status.state == "UnknownGpuResource"
    assert status.explanation.startswith(f"spec.gpus.resourceName {THEIRS} is none of ")
    assert f"({', '.join(known)})" in status.explanation


def test_a_refused_job_starts_once_the_operator_knows_its_resource() -> None:
    before = Cluster("nvidia.com/gpu")
    ((_, status),) = before.step().statuses
    after = Cluster("nvidia.com/gpu", THEIRS)
    after.job = read_energy_aware_job(
        raw_job(gpus={"min": 4, "max": 4, "resourceName": THEIRS}, status=as_stored(status))
    )
    after.plan(after.step())
    assert after.decisions[UID].allocation is not None
