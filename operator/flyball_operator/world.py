"""Everything the operator watches, as informers over one session, and one consistent view of it per cycle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flyball_kube.informer import Informer
from flyball_kube.resources import ENERGY_AWARE_JOBS, GPU_NODES, JOBS, NODES, PODS, POWER_CAPS, Resource
from flyball_kube.session import ApiSession, JsonObject

from flyball_operator.gpu_nodes import GpuNodeView, PodReport, read_gpu_node
from flyball_operator.names import LABEL_JOB_UID
from flyball_operator.requests import CapView, JobView, read_cap, read_job
from flyball_operator.workloads import IncarnationView, NodeView, PodView, read_incarnation, read_node, read_pod


@dataclass(frozen=True, slots=True)
class World:
    """What the API server said, as of this cycle; `unread` names the caps and GPUNodes that cannot be read."""

    jobs: dict[str, JobView]  # by uid
    caps: list[CapView]
    gpu_nodes: dict[str, GpuNodeView]
    nodes: list[NodeView]
    pods: list[PodView]  # those that hold or want GPUs
    incarnations: dict[str, list[IncarnationView]]  # by the job's uid
    pods_of: dict[str, list[PodView]]  # by the job's uid
    reports_of: dict[str, list[tuple[str, PodReport]]]  # by the job's uid, with the node
    unread: tuple[str, ...]
    age_seconds: float


class Watches:
    """The informers; `wake` is called at each change."""

    def __init__(self, session: ApiSession, wake: Callable[[], None]) -> None:
        def on_change(key: str) -> None:
            wake()

        self.jobs = Informer(session, ENERGY_AWARE_JOBS, read_job, on_change=on_change)
        self.caps = Informer(session, POWER_CAPS, read_cap, on_change=on_change)
        self.gpu_nodes = Informer(session, GPU_NODES, read_gpu_node, on_change=on_change)
        self.nodes = Informer(session, NODES, read_node, on_change=on_change)
        self.pods = Informer(session, PODS, read_pod, on_change=on_change)
        self.incarnations = Informer(
            session, JOBS, read_incarnation, on_change=on_change, params={"labelSelector": LABEL_JOB_UID}
        )
        self._of: dict[Resource, Informer[Any]] = {
            ENERGY_AWARE_JOBS: self.jobs,
            POWER_CAPS: self.caps,
            GPU_NODES: self.gpu_nodes,
            NODES: self.nodes,
            PODS: self.pods,
            JOBS: self.incarnations,
        }

    def runs(self) -> list[Coroutine[Any, Any, None]]:
        """One coroutine per informer, to be run as tasks."""
        return [informer.run() for informer in self._of.values()]

    async def wait_synced(self) -> None:
        await asyncio.gather(*(informer.wait_synced() for informer in self._of.values()))

    def absorb(self, resource: Resource, raw: JsonObject) -> None:
        """Take in what a write of ours returned."""
        informer = self._of.get(resource)
        if informer is not None:
            informer.absorb(raw)

    def ages(self) -> dict[str, float]:
        """Seconds since each informer was last proven fresh, by the resource's plural name."""
        return {resource.plural: informer.age_seconds() for resource, informer in self._of.items()}

    def world(self) -> World:
        """One view of all of them; nothing in it changes afterwards."""
        jobs = {job.uid: job for job in self.jobs}

        def ours(item: PodView | IncarnationView) -> bool:
            # Labels are anybody's to set in a namespace of their own: a job's pods and Jobs are in the job's.
            job = jobs.get(item.job_uid)
            return job is None or job.namespace == item.namespace

        pods = [pod if ours(pod) else replace(pod, job_uid="") for pod in self.pods if pod.gpus or pod.job_uid]
        incarnations: dict[str, list[IncarnationView]] = {}
        for incarnation in self.incarnations:
            if ours(incarnation):
                incarnations.setdefault(incarnation.job_uid, []).append(incarnation)
        pods_of: dict[str, list[PodView]] = {}
        for pod in pods:
            if pod.job_uid:
                pods_of.setdefault(pod.job_uid, []).append(pod)
        reports_of: dict[str, list[tuple[str, PodReport]]] = {}
        gpu_nodes = {view.name: view for view in self.gpu_nodes}
        for name in sorted(gpu_nodes):
            for report in gpu_nodes[name].reports:
                reports_of.setdefault(report.uid, []).append((name, report))
        return World(
            jobs=jobs,
            caps=list(self.caps),
            gpu_nodes=gpu_nodes,
            nodes=list(self.nodes),
            pods=pods,
            incarnations=incarnations,
            pods_of=pods_of,
            reports_of=reports_of,
            unread=tuple(sorted([*self.caps.invalid, *self.gpu_nodes.invalid])),
            age_seconds=max(self.gpu_nodes.age_seconds(), self.caps.age_seconds(), self.nodes.age_seconds()),
        )


def flatten(groups: dict[str, list[IncarnationView]]) -> Sequence[IncarnationView]:
    """All incarnations of all jobs."""
    return [item for group in groups.values() for item in group]
