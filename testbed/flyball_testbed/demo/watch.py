"""What a user of the cluster can see: the jobs, their pods and the cap, kept in step with the API server.

Everything shown and reported comes from here (and from the referee): nothing is read out of the operator's memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from flyball_api.energy_aware_job import EnergyAwareJob, EnergyUse, JobAllocation, Progress, read_energy_aware_job
from flyball_api.gpu_node import GpuNode, read_gpu_node
from flyball_api.names import LABEL_JOB_NAME, LABEL_JOB_UID
from flyball_api.power_cap import PowerCap, read_power_cap
from flyball_api.workloads import IncarnationView, read_incarnation
from flyball_kube.informer import Informer
from flyball_kube.resources import ENERGY_AWARE_JOBS, GPU_NODES, JOBS, PODS, POWER_CAPS
from flyball_kube.session import ApiSession

from flyball_testbed.workload.pods import GpuPod

Shares = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class JobSeen:
    """One EnergyAwareJob as its status has it; `watts` and `joules` are real, not scaled by the compression."""

    name: str
    objective: str
    min_gpus: int
    max_gpus: int
    iterations: int
    done_iterations: int = 0
    gpus: int = 0
    planned_gpus: int = 0
    clock_megahertz: int = 0
    limit_watts: int = 0
    watts: int = 0
    joules: float = 0.0
    state: str = ""
    explanation: str = ""
    outcome: str = ""  # Succeeded or Failed at the end

    @classmethod
    def of(cls, job: EnergyAwareJob) -> JobSeen:
        """What is shown of a job."""
        spec, status = job.spec, job.status
        applied = status.applied or JobAllocation(gpus=0)
        allocation = status.allocation or JobAllocation(gpus=0)
        progress, energy = status.progress or Progress(), status.energy or EnergyUse()
        millijoules = energy.settled_millijoules + sum(entry.millijoules for entry in energy.incarnations)
        return cls(
            name=job.name,
            objective=spec.objective,
            min_gpus=spec.gpus.min,
            max_gpus=spec.gpus.max,
            iterations=spec.training.iterations or 0,
            done_iterations=progress.iterations,
            gpus=applied.gpus,
            planned_gpus=allocation.gpus,
            clock_megahertz=applied.clock_megahertz or allocation.clock_megahertz or 0,
            limit_watts=applied.power_limit_watts or allocation.power_limit_watts or 0,
            watts=energy.watts or 0,
            joules=millijoules / 1000 or energy.consumed_kilojoules * 1000.0,
            state=status.state or "",
            explanation=status.explanation or "",
            outcome=next((outcome for outcome in ("Succeeded", "Failed") if job.has(outcome)), ""),
        )

    @property
    def progress(self) -> float:
        """0..1."""
        return min(1.0, self.done_iterations / self.iterations) if self.iterations else 0.0


@dataclass(frozen=True, slots=True)
class CapSeen:
    """The PowerCap as its status has it."""

    name: str
    watts: int | None
    effective_watts: int | None
    committed_watts: int | None
    enforced: bool
    message: str

    @classmethod
    def of(cls, cap: PowerCap) -> CapSeen:
        """What is shown of a cap; a condition counts where it is about the present spec."""
        enforced = next((item for item in cap.status.conditions if item.type == "Enforced"), None)
        return cls(
            name=cap.name,
            watts=None if cap.spec is None else cap.spec.watts,
            effective_watts=cap.status.effective_watts,
            committed_watts=cap.status.committed_watts,
            enforced=enforced is not None
            and enforced.is_true
            and enforced.observed_generation == cap.metadata.generation,
            message="" if enforced is None else enforced.message,
        )


def count_moves(incarnations: Iterable[IncarnationView]) -> tuple[int, int]:
    """(resizes, migrations): successive starts of one job with another number of GPUs, or as many on other nodes."""
    by_job: dict[str, dict[int, Shares]] = {}
    for each in incarnations:
        by_job.setdefault(each.job_name, {})[each.incarnation] = each.nodes
    resizes = migrations = 0
    for starts in by_job.values():
        ordered = [starts[number] for number in sorted(starts)]
        for before, after in pairwise(ordered):
            if sum(gpus for _, gpus in before) != sum(gpus for _, gpus in after):
                resizes += 1
            elif sorted(before) != sorted(after):
                migrations += 1
    return resizes, migrations


@dataclass(slots=True)
class ClusterWatch:
    """Informers on everything that is shown; times are seconds of the monotonic clock."""

    session: ApiSession
    namespace: str
    finished: dict[str, tuple[float, str]] = field(default_factory=dict)
    incarnations: dict[tuple[str, int], IncarnationView] = field(default_factory=dict)
    jobs: Informer[JobSeen] = field(init=False)
    pods: Informer[GpuPod] = field(init=False)
    caps: Informer[CapSeen] = field(init=False)
    batch: Informer[IncarnationView] = field(init=False)
    nodes: Informer[GpuNode] = field(init=False)

    def __post_init__(self) -> None:
        session, namespace = self.session, self.namespace
        self.jobs = Informer(
            session,
            ENERGY_AWARE_JOBS,
            lambda raw: JobSeen.of(read_energy_aware_job(raw)),
            on_change=self._job_changed,
            namespace=namespace,
        )
        self.pods = Informer(session, PODS, GpuPod.read, namespace=namespace)
        self.batch = Informer(
            session,
            JOBS,
            read_incarnation,
            on_change=self._incarnation_changed,
            namespace=namespace,
            params={"labelSelector": LABEL_JOB_UID},
        )
        self.caps = Informer(session, POWER_CAPS, lambda raw: CapSeen.of(read_power_cap(raw)))
        self.nodes = Informer(session, GPU_NODES, read_gpu_node)

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        """To be run as tasks."""
        return (self.jobs, self.pods, self.batch, self.caps, self.nodes)

    async def wait_synced(self) -> None:
        for informer in self.informers:
            await informer.wait_synced()

    def _job_changed(self, key: str) -> None:
        job = self.jobs.get(key)
        if job is not None and job.outcome and job.name not in self.finished:
            self.finished[job.name] = (time.monotonic(), job.outcome)

    def _incarnation_changed(self, key: str) -> None:
        seen = self.batch.get(key)
        if seen is not None and seen.nodes:  # somebody may have damaged the annotation that has its places
            self.incarnations[seen.job_name, seen.incarnation] = seen

    @property
    def cap(self) -> CapSeen | None:
        return next(iter(self.caps), None)

    def acknowledged_nodes(self) -> int:
        """Nodes whose agent has acknowledged a grant."""
        return sum(node.acknowledged is not None for node in self.nodes)

    def node_names(self) -> list[str]:
        """The nodes that have a GPUNode."""
        return [node.name for node in self.nodes]

    def held(self) -> dict[str, Shares]:
        """job -> (node, GPUs) of its pods that run."""
        held: dict[str, list[tuple[str, int]]] = {}
        for pod in self.pods:
            if pod.node is not None and pod.gpus and pod.phase == "Running":
                held.setdefault(pod.labels.get(LABEL_JOB_NAME, pod.name), []).append((pod.node, pod.gpus))
        return {job: tuple(sorted(shares)) for job, shares in held.items()}
