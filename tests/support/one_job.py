"""One training job under the job controller, over as many cycles and operators as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from flyball_api.energy_aware_job import (
    EnergyAwareJob,
    read_energy_aware_job,
)
from flyball_api.gpu_node import GpuNode
from flyball_api.workloads import DEFAULT_GPU_RESOURCES, IncarnationView, PodView
from flyball_operator.cluster.outcome import DONE, Outcome, WriteResult
from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.controller import JobController
from flyball_operator.jobs.runs.lifecycle import (
    Action,
    CreateService,
    OpenGates,
    RemovePods,
    StopIncarnation,
)
from flyball_operator.jobs.starts.attempts import RestartRules
from flyball_operator.jobs.steps.step import JobsCycle, JobsStep
from flyball_operator.power.nodes.info import NodeInfo, read_nodes
from flyball_operator.writes.job_actions import take_action
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.models.job import JobModel
from flyball_planner.models.priors import model_class_prior
from flyball_planner.snapshot import JobDecision

from tests.support.operator_objects import (
    A100,
    NOW,
    Json,
    as_stored,
    decision,
    incarnation_view,
    node_view,
    pod_view,
    raw_job,
    running_pod,
)

UID = "uid-train"
A = ("a", 4)
INTERVAL = 5.0
PAUSE, TIMEOUT = 10.0, 300.0

MODEL = gpu_model_for(A100)
assert MODEL is not None
PRIOR = model_class_prior("resnet50", MODEL)


class Priors:
    def model_for(self, job: EnergyAwareJob, nodes: Mapping[str, NodeInfo]) -> JobModel:
        return PRIOR

    def pace_band(self, *_: object) -> tuple[float, float] | None:
        return 0.8, 1.25


class RecordingWrites:
    """Refuses or takes what it is asked to, as the API server would."""

    def __init__(self, invalid: str = "") -> None:
        self.result = WriteResult(Outcome.REFUSED, invalid) if invalid else DONE
        self.taken: list[str] = []

    async def create_incarnation(
        self, job: EnergyAwareJob, incarnation: int, nodes: tuple[tuple[str, int], ...]
    ) -> WriteResult:
        self.taken.append(f"create {incarnation}")
        return self.result

    async def create_service(self, action: CreateService) -> WriteResult:
        self.taken.append(f"create-service {action.incarnation.incarnation}")
        return self.result

    async def stop_incarnation(self, action: StopIncarnation) -> WriteResult:
        self.taken.append(f"stop {action.incarnation.incarnation}")
        return self.result

    async def remove_pods(self, action: RemovePods) -> WriteResult:
        self.taken.append(f"remove {len(action.pods)}")
        return self.result

    async def open_gates(self, action: OpenGates, hostnames: Mapping[str, str]) -> WriteResult:
        self.taken.append(f"open {len(action.pods)}")
        return self.result


def new_controller() -> JobController:
    return JobController(INTERVAL, Priors(), DEFAULT_GPU_RESOURCES, RestartRules(PAUSE, TIMEOUT))


@dataclass
class Cluster:
    """One job and what stands of it, as cycles of one or several operators find it."""

    raw: Json = field(default_factory=raw_job)
    incarnations: Sequence[IncarnationView] = ()
    pods: Sequence[PodView] = ()
    decisions: dict[str, JobDecision] = field(default_factory=lambda: {UID: decision(UID, A)})
    gpu_nodes: dict[str, GpuNode] = field(default_factory=dict)
    now: datetime = NOW
    monotonic: float = 100.0
    epoch: int = 1
    controller: JobController = field(default_factory=lambda: new_controller())
    pods_refused: dict[str, str] = field(default_factory=dict)
    step: JobsStep = field(default_factory=lambda: JobsStep({}, (), (), (), (), ()))

    def world(self) -> ClusterState:
        job = read_energy_aware_job(self.raw)
        reports: dict[str, list[Any]] = {}
        for name, view in self.gpu_nodes.items():
            for report in view.status.jobs:
                reports.setdefault(report.uid, []).append((name, report))
        return ClusterState(
            jobs={job.uid: job},
            caps=[],
            gpu_nodes=self.gpu_nodes,
            nodes=[node_view("a"), node_view("b")],
            pods=list(self.pods),
            incarnations={job.uid: list(self.incarnations)},
            pods_of={job.uid: list(self.pods)},
            reports_of=reports,
            unread=(),
            age_seconds=0.0,
            services_of={job.uid: [item.name for item in self.incarnations]},
            pods_refused=self.pods_refused,
        )

    def cycle(self, seconds: float = 0.0, world: ClusterState | None = None, **keywords: Any) -> list[Action]:
        """One step, whose statuses are written; returns the actions that need no watts."""
        self.now += timedelta(seconds=seconds)
        self.monotonic += seconds
        world = world or self.world()
        nodes = read_nodes(world.nodes, world.gpu_nodes, world.pods, frozenset())
        self.step = self.controller.step(
            JobsCycle(world, nodes, self.decisions, self.epoch, self.now, self.monotonic, **keywords)
        )
        for _, status in self.step.statuses:
            self.raw["status"] = as_stored(status)
        return [item.action for item in self.step.actions]

    def statuses(self, seconds: float = 0.0) -> list[Json]:
        """The statuses that one cycle writes."""
        self.cycle(seconds)
        return [as_stored(status) for _, status in self.step.statuses]

    def take(self, writes: Any) -> None:
        """Take the actions of the last step."""
        for item in self.step.actions:
            self.controller.answered(item, asyncio.run(take_action(writes, item, {})), self.now)

    def new_operator(self) -> None:
        self.controller = new_controller()

    def run_on(self, number: int) -> None:
        """Incarnation `number` runs."""
        self.incarnations = [incarnation_view(UID, number, A)]
        self.pods = [running_pod(f"p{number}", "a", uid=UID, incarnation=number, gpus=4)]

    def fail(self, number: int, exit_code: int = 1) -> None:
        self.incarnations = [incarnation_view(UID, number, A, condition="Failed")]
        self.pods = [
            pod_view(f"p{number}", uid=UID, incarnation=number, gpus=4, node="a", phase="Failed", exit_code=exit_code)
        ]

    @property
    def status(self) -> Json:
        return dict(self.raw["status"])
