"""Jobs that report what they do, and a learner that follows them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.gpu_node import PodReport
from flyball_api.workloads import IncarnationView
from flyball_kube.resources import ENERGY_PROFILES
from flyball_kube.session import JsonObject
from flyball_operator.cluster.state import ClusterState
from flyball_operator.learning.learner import Learner
from flyball_operator.learning.profiles import (
    Point,
    ProfileKey,
    Summary,
)
from flyball_operator.power.nodes.info import NodeInfo
from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_planner.models.job import JobModel
from msgspec import structs

from tests.support.operator_objects import incarnation_view, job_view, ready_node

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def gpu(product: str) -> GpuModel:
    found = gpu_model_for(product)
    assert found is not None
    return found


A100, H100 = gpu("NVIDIA-A100-SXM4-40GB"), gpu("NVIDIA-H100-80GB-HBM3")


def info(name: str, model: GpuModel | None = A100, gpus: int = 8) -> NodeInfo:
    return msgspec.structs.replace(ready_node(name, gpus=gpus), gpu_model=model)


NODES = {name: info(name) for name in ("n1", "n2", "n3", "n4")}


def job(name: str = "gpt2", namespace: str = "research", **spec: Any) -> EnergyAwareJob:
    training = {"globalBatchSize": 256, "modelClass": "gpt2"}
    fields = {"gpus": {"min": 1, "max": 16}, "training": training, **spec}
    return job_view(name, namespace=namespace, uid=f"uid-{namespace}-{name}", **fields)


def incarnation(view: EnergyAwareJob, nodes: dict[str, int], number: int = 1) -> IncarnationView:
    return incarnation_view(view.uid, number, *nodes.items(), namespace=view.namespace)


def report(view: EnergyAwareJob, gpus: int, at: datetime | None, number: int = 1, **fields: Any) -> PodReport:
    return structs.replace(
        PodReport(
            namespace=view.namespace,
            name=view.name,
            uid=view.uid,
            incarnation=number,
            pod_name="p",
            gpus=gpus,
            iterations=100,
            microseconds_per_iteration=500_000,
            millijoules_per_iteration=100_000 * gpus,
            clock_megahertz=1200,
            local_batch_size=16,
            energy_millijoules=0,
            last_report_time=at,
            ended=False,
        ),
        **fields,
    )


def world(*jobs: tuple[EnergyAwareJob, IncarnationView, dict[str, PodReport]]) -> ClusterState:
    return ClusterState(
        jobs={view.uid: view for view, _, _ in jobs},
        caps=[],
        gpu_nodes={},
        nodes=[],
        pods=[],
        incarnations={view.uid: [item] for view, item, _ in jobs},
        pods_of={},
        reports_of={view.uid: list(reports.items()) for view, _, reports in jobs},
        unread=(),
        age_seconds=0.0,
    )


class Cluster:
    """Jobs that really behave like `truth`, and a learner that sees their reports."""

    def __init__(self, learner: Learner, truth: JobModel, view: EnergyAwareJob) -> None:
        self.learner, self.truth, self.view = learner, truth, view
        self.now = NOW

    def run(
        self,
        nodes: dict[str, int],
        clock: int,
        windows: int,
        *,
        local_batch: int = 16,
        number: int = 1,
        distortion: float = 1.0,
    ) -> None:
        """Report `windows` windows of the job on these nodes at this clock, whole at every second look."""
        gpus = sum(nodes.values())
        seconds = self.truth.iteration_seconds(gpus, len(nodes), clock, local_batch * gpus) * distortion
        joules = self.truth.iteration_joules(gpus, len(nodes), clock, local_batch * gpus)
        for _ in range(windows):
            before = self._reports(nodes, clock, local_batch, number, seconds, joules)
            self.now += timedelta(seconds=30)
            after = self._reports(nodes, clock, local_batch, number, seconds, joules)
            first = next(iter(nodes))
            for reports in ({**before, first: after[first]}, after, after):  # nodes report one after the other
                self.learner.observe(world((self.view, incarnation(self.view, nodes, number), reports)), NODES)

    def _reports(
        self, nodes: dict[str, int], clock: int, local_batch: int, number: int, seconds: float, joules: float
    ) -> dict[str, PodReport]:
        total = sum(nodes.values())
        return {
            node: report(
                self.view,
                gpus,
                self.now,
                number,
                microseconds_per_iteration=round(seconds * 1e6),
                millijoules_per_iteration=round(joules * 1e3 * gpus / total),
                clock_megahertz=clock,
                local_batch_size=local_batch,
            )
            for node, gpus in nodes.items()
        }

    @property
    def key(self) -> ProfileKey:
        return ProfileKey(self.view.namespace, self.view.profile_key, A100.product)

    def points(self) -> dict[Point, Summary]:
        profile = self.learner.profile(self.key)
        return {} if profile is None else dict(profile.points)


class StoredProfiles:
    """The API server's EnergyProfiles, as many as the test gives, one a page."""

    def __init__(self, *profiles: JsonObject) -> None:
        self.profiles = profiles

    async def get(self, path: str, **params: str) -> JsonObject:
        assert path == ENERGY_PROFILES.path()
        index = int(params.get("continue", 0))
        left = str(index + 1) if index + 1 < len(self.profiles) else ""
        return {"items": list(self.profiles[index : index + 1]), "metadata": {"continue": left}}


def learner(**options: Any) -> Learner:
    return Learner(StoredProfiles(), **options)
