"""What the operator knows of a job beside its spec, and whether the plan should count it in."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from flyball_api.energy_aware_job import EnergyAwareJob, JobAllocation, RecurringRun
from flyball_api.workloads import IncarnationView
from flyball_planner.snapshot import Allocation

from flyball_operator.jobs.runs.cost import costs_too_much
from flyball_operator.jobs.runs.progress import JobProgress


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no pods can be made of a job's spec as it stands: the reason of its condition `Admitted`, and what is wrong.

    `until` is when that is over, where it is known.
    """

    reason: str
    message: str
    until: datetime | None = None


def unknown_gpu_resource(job: EnergyAwareJob, gpu_resources: Collection[str]) -> Refusal | None:
    """The refusal of a job that asks for its GPUs by a resource that is none of `gpu_resources`; None where it is one.

    Pods that ask for another resource would wait for ever: nobody would count their GPUs, nor reserve watts for them.
    """
    resource_name = job.spec.gpus.resource_name
    if resource_name in gpu_resources or not job.managed_by_flyball:
        return None
    known = ", ".join(gpu_resources)
    return Refusal(
        "UnknownGpuResource",
        f"spec.gpus.resourceName {resource_name} is none of the resources that the operator counts GPUs by ({known}): "
        "name one of them, or have the operator started with this one among its --gpu-resource",
    )


def damaged_template(job: EnergyAwareJob) -> Refusal | None:
    """The refusal of a job whose template is stored but cannot be read; None of any other."""
    return Refusal("InvalidSpec", job.template_problem) if job.template_problem else None


def without_plan(job: EnergyAwareJob) -> Refusal | None:
    """The refusal of a job with a pipeline but no plan of it, as earlier versions stored them; None of any other.

    Running it as if the section were not there would promise savings that never come.
    """
    if job.spec.pipeline is None or job.spec.pipeline.plan is not None:
        return None
    return Refusal(
        "NotSupported",
        "spec.pipeline has no plan: name the ConfigMap that has what `flyball frontier --output` wrote, or take the "
        "section out to have the job run without",
    )


def without_batch_size(job: EnergyAwareJob) -> Refusal | None:
    """The refusal of a recurring job until its status has the batch size of this run; None where nothing is to be chosen.

    Its pods are made for one batch size: what a crash could lose must not be planned by.
    """
    if job.spec.recurrence is None or job.run is not None:
        return None
    return Refusal("ChoosingBatchSize", "which batch size this run gets is decided as soon as a GPU model is known")


@dataclass(frozen=True, slots=True)
class JobMemory:
    """What is known of a job beside its spec: its progress, the allocation it holds or is being given, whether all its pods
    run, whether any of them holds a GPU, why no pods can be made of it, if so.

    `given_back`: others may have its GPUs until it is started again. `eligible_nodes` are those that can take its pods
    (None: all), `gpus_max` and `watts_per_gpu` are the most that its namespace's quotas leave it (None: no bound), and
    `bounded_by` names the quota where that is less than its `gpus.max`. `passed_over` says how many nodes lack what. `run`
    is the run of a recurring job that it is, or is to be.
    """

    progress: JobProgress
    current: Allocation | None
    running: bool
    holds_gpus: bool = True
    refusal: Refusal | None = None
    given_back: bool = False
    eligible_nodes: frozenset[str] | None = None
    gpus_max: int | None = None
    bounded_by: str = ""
    passed_over: str = ""
    watts_per_gpu: int | None = None
    run: RecurringRun | None = None


def wants_gpus(job: EnergyAwareJob, progress: JobProgress, refusal: Refusal | None) -> bool:
    """Whether the plan should count the job in: not ended, suspended, someone else's, refused, or too dear to go on."""
    stopped = stopped_for_energy(job, progress) or costs_too_much(job, progress)
    return job.wants_gpus and refusal is None and not stopped


def stopped_for_energy(job: EnergyAwareJob, progress: JobProgress) -> bool:
    """Whether the job's budget is spent and it may not go on: throttled, it may for as far as `maxOverrunPermille` says."""
    energy = job.spec.energy
    budget = energy.budget_kilojoules
    if budget is None or not progress.budget_spent(budget):
        return False
    if energy.on_exhausted != "Throttle":
        return True
    overrun = energy.max_overrun_permille
    return overrun is not None and progress.consumed_millijoules >= budget * 1000 * (1000 + overrun)


def recorded_allocation(job: EnergyAwareJob, incarnations: Iterable[IncarnationView]) -> Allocation | None:
    """What a job was last given, from its own status or, where that was not written, from the newest live incarnation."""
    recorded = job.status.allocation or JobAllocation(gpus=0)
    nodes = tuple((node.name, node.gpus) for node in recorded.nodes)
    if not nodes:
        live = [item for item in incarnations if not item.deleting]
        if not live:
            return None
        nodes = max(live, key=lambda item: item.incarnation).nodes
    return Allocation(nodes, recorded.clock_megahertz or 0, float(recorded.power_limit_watts or 0))
