"""What a simulation is given to run: traced jobs with a kind of model, a batch size, and a number of iterations."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from flyball_simulator.measured.oracle import Oracle
from flyball_simulator.measured.throughputs import MODEL_CLASSES
from flyball_simulator.workloads.traces import TraceJob


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """One job: `gpus` is its traced size (a power of two), `iterations` what it has to do, whatever it is given.

    `deadline_seconds` (since the start of the trace) and `energy_budget_joules` are constraints that a policy may honour.
    Until `flexible_until_seconds` it need not be done: it may be put off to where `SimulationSettings.shifts` says.
    """

    job_id: str
    submit_seconds: float
    gpus: int
    model_class: str
    global_batch_size: int
    iterations: float
    deadline_seconds: float | None = None
    energy_budget_joules: float | None = None
    flexible_until_seconds: float | None = None


LARGEST_BATCH = max(batch for model in MODEL_CLASSES.values() for batch in model.pool)


def workload_of(trace_jobs: Iterable[TraceJob], oracle: Oracle, seed: int, max_gpus: int) -> list[SimulatedJob]:
    """The traced jobs as jobs to simulate, in the same order.

    Each trains a model class and batch size from a pool of representative ones, as PowerFlow section 6.1 draws them: first
    the class, then one of its batches that is no smaller than the job has GPUs. The draw is a function of the seed and
    the job's id, so that a part of a trace is drawn as the whole. Sizes are rounded up to powers of two, and down to what
    `max_gpus` and the largest batch allow. Iterations are what the job would have done in its traced duration at that size
    and the oracle's highest clock. Raises ValueError for a cluster of no GPUs.
    """
    if max_gpus < 1:
        raise ValueError(f"a cluster of {max_gpus} GPUs runs no job")
    largest = largest_size(max_gpus)
    jobs = []
    for traced in trace_jobs:
        gpus = min(1 << (traced.gpus - 1).bit_length(), largest)
        pools = {name: [b for b in model.pool if b >= gpus] for name, model in MODEL_CLASSES.items()}
        names = [name for name, batches in pools.items() if batches]
        name = names[choice_by_id(seed, traced.job_id, "model", len(names))]
        batch = pools[name][choice_by_id(seed, traced.job_id, "batch", len(pools[name]))]
        performance = oracle.performance(name, batch, gpus)
        iterations = traced.duration_seconds / performance.seconds_rows[performance.position[gpus]][-1]
        jobs.append(SimulatedJob(traced.job_id, traced.submit_seconds, gpus, name, batch, iterations))
    return jobs


def cut_jobs(trace_jobs: Iterable[TraceJob], max_gpus: int) -> list[TraceJob]:
    """The traced jobs that ask for more GPUs than any simulated job can have: they are run with that many, and so much less
    work."""
    largest = largest_size(max_gpus)
    return [job for job in trace_jobs if job.gpus > largest]


def largest_size(max_gpus: int) -> int:
    """Of a job in a cluster of so many GPUs: a power of two, no larger than the largest batch."""
    return 1 << (min(max_gpus, LARGEST_BATCH).bit_length() - 1)


def choice_by_id(seed: int, job_id: str, what: str, options: int) -> int:
    """One of so many options, by a hash of the job's id: whatever other jobs there are, it is the same."""
    digest = hashlib.sha256(f"{seed}/{job_id}/{what}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % options
