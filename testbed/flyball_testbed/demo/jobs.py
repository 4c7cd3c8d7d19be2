"""Trace jobs as EnergyAwareJobs: what each trains and how far it can stretch, decided by a hash of its id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flyball_api.energy_aware_job import Elasticity, EnergyAwareJobSpec, GpuRange, Objective, Training
from flyball_api.writing import api_object
from flyball_kube.resources import ENERGY_AWARE_JOBS
from flyball_simulator.measured.throughputs import MODEL_CLASSES, ModelClass, measured_throughput, model_class
from flyball_simulator.workloads.traces import TraceJob
from flyball_simulator.workloads.workload import choice_by_id

from flyball_testbed.workload.pods import simulated_trainer

LARGEST_JOB_GPUS = 32
# Jobs on several GPUs have a batch that keeps each of them busy: eight that wait for each other would be of no use.
SAMPLES_PER_GPU = (32, 64, 128)
RIGID_SHARE = 0.2
OBJECTIVES: tuple[Objective, ...] = ("Balanced", "Balanced", "Time", "Energy")


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One job of the demo. `submit_seconds` are real seconds after the start; `traced_gpus` is its size in the trace."""

    name: str
    traced_gpus: int
    submit_seconds: float
    model: ModelClass
    global_batch_size: int
    iterations: int
    min_gpus: int
    max_gpus: int
    objective: Objective


def demo_jobs(trace: Sequence[TraceJob], compression: float, seed: int, cluster_gpus: int) -> list[DemoJob]:
    """The trace's jobs, in order of submission, named `<model class>-<number>`.

    A job's iterations are what it would have done in its traced duration at its traced size and highest clock, less
    by the compression. Raises ValueError where the compression is not above 0, or a job is larger than the cluster.
    """
    if not compression > 0:
        raise ValueError(f"compression {compression} is not above 0")
    names = sorted(MODEL_CLASSES)
    jobs = []
    for number, traced in enumerate(trace):
        if traced.gpus > cluster_gpus:
            raise ValueError(
                f"job {traced.job_id} asks for {traced.gpus} GPUs (column num_gpu), the cluster has {cluster_gpus}"
            )
        model = model_class(names[choice_by_id(seed, traced.job_id, "model", len(names))])
        samples = SAMPLES_PER_GPU[choice_by_id(seed, traced.job_id, "batch", len(SAMPLES_PER_GPU))]
        batch = max(model.batch_sizes[0], samples * _power_of_two(traced.gpus))
        objective = OBJECTIVES[choice_by_id(seed, traced.job_id, "objective", len(OBJECTIVES))]
        smallest, largest = _stretch(seed, traced, objective, min(cluster_gpus, batch))
        done = traced.duration_seconds * measured_throughput(model, traced.gpus, batch) / compression
        jobs.append(
            DemoJob(
                name=f"{model.name}-{number:02d}",
                traced_gpus=traced.gpus,
                submit_seconds=traced.submit_seconds / compression,
                model=model,
                global_batch_size=batch,
                iterations=max(1, round(done)),
                min_gpus=smallest,
                max_gpus=largest,
                objective=objective,
            )
        )
    return jobs


def _power_of_two(gpus: int) -> int:
    """The next power of two, as jobs are sized."""
    return 1 << (gpus - 1).bit_length()


def _stretch(seed: int, traced: TraceJob, objective: str, most: int) -> tuple[int, int]:
    """The smallest and largest power of two that the job accepts, around its traced size rounded up to one.

    A job with the objective Energy runs at its smallest size, which thus decides how long it may take.
    """
    most = 1 << (most.bit_length() - 1)
    size = min(_power_of_two(traced.gpus), most)
    if choice_by_id(seed, traced.job_id, "rigid", 100) < RIGID_SHARE * 100:
        return size, size
    smallest = max(1, size // (2 if objective == "Energy" else (4, 8)[choice_by_id(seed, traced.job_id, "min", 2)]))
    largest = min(size * (2, 4)[choice_by_id(seed, traced.job_id, "max", 2)], LARGEST_JOB_GPUS, most)
    return smallest, max(largest, size)


def job_spec(job: DemoJob, seconds_between_resizes: int) -> EnergyAwareJobSpec:
    """What the job's EnergyAwareJob asks for."""
    trainer = simulated_trainer(job.model.name, job.global_batch_size, job.iterations)
    return EnergyAwareJobSpec(
        gpus=GpuRange(job.min_gpus, job.max_gpus),
        training=Training(job.global_batch_size, job.iterations, model_class=job.model.name),
        template={"spec": {"terminationGracePeriodSeconds": 30, "containers": [trainer]}},
        objective=job.objective,
        # Jobs of one model and batch size teach each other.
        profile_key=f"{job.model.name}-{job.global_batch_size}",
        elasticity=Elasticity(min_seconds_between_resizes=seconds_between_resizes),
    )


def energy_aware_job(job: DemoJob, namespace: str, seconds_between_resizes: int) -> dict[str, Any]:
    """The manifest that is submitted."""
    return api_object(ENERGY_AWARE_JOBS.kind, job.name, job_spec(job, seconds_between_resizes), namespace=namespace)
