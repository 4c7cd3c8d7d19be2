"""Where a run's jobs come from: a trace by name or by file, a seed, and how many of its jobs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flyball_planner.models.gpu import gpu_model_for

from flyball_simulator.knowledge import decision_clocks
from flyball_simulator.measured.oracle import Oracle
from flyball_simulator.settings import MAX_GPUS, SimulationSettings
from flyball_simulator.workloads.trace_library import is_named, named_trace
from flyball_simulator.workloads.traces import TraceJob, load_trace
from flyball_simulator.workloads.workload import SimulatedJob, workload_of


@dataclass(frozen=True, slots=True)
class WorkloadSource:
    """`trace` is a name of the library or a file. `seed` draws what the trace does not say: the jobs' models and batch
    sizes, and the jobs of a trace that is itself drawn. `data` is the folder of the public traces. `first` keeps only the
    first so many jobs. `trace_format` names the format of a file whose header does not identify it.
    """

    trace: str
    seed: int = 0
    data: str | None = None
    first: int | None = None
    trace_format: str | None = None

    @property
    def name(self) -> str:
        """How results name it."""
        return self.trace if is_named(self.trace) else Path(self.trace).name

    def trace_jobs(self) -> list[TraceJob]:
        """Raises ValueError for a bad trace, naming file, line and column, and OSError for one that cannot be read."""
        if is_named(self.trace):
            jobs = list(named_trace(self.trace, self.seed, Path(self.data) if self.data else None))
        else:
            jobs = list(load_trace(Path(self.trace), trace_format=self.trace_format))
        if not jobs:
            raise ValueError(f"{self.trace} has no job")
        return jobs[: self.first]

    def workload(self, settings: SimulationSettings) -> list[SimulatedJob]:
        """The jobs as the cluster of these settings meets them."""
        gpu = gpu_model_for(settings.gpu_product)
        if gpu is None:
            raise ValueError(f"GPU {settings.gpu_product!r} is not in the catalogue")
        oracle = Oracle(gpu, decision_clocks(gpu), settings.gpus_per_node)
        return list(workload_of(self.trace_jobs(), oracle, self.seed, settings.gpus))


def gpus_for_load(jobs: Sequence[TraceJob], load: float, gpus_per_node: int) -> int:
    """GPUs, in whole nodes, that the jobs as traced would keep busy to the share `load` of the time of the submissions.

    Above 1, jobs pile up while they are submitted. Raises ValueError for a load that is not positive, or takes
    more GPUs than can be simulated, and for jobs that were all submitted at once.
    """
    if not (load > 0 and math.isfinite(load)):
        raise ValueError(f"load is {load}, and must be a number above 0")
    submissions = [job.submit_seconds for job in jobs]
    span = max(submissions) - min(submissions)
    if span <= 0:
        raise ValueError("the jobs were all submitted at once: their load says nothing of a number of GPUs")
    busy = sum(job.gpus * job.duration_seconds for job in jobs) / span
    if busy > load * MAX_GPUS:
        raise ValueError(
            f"load is {load:g}, which takes more than the {MAX_GPUS} GPUs that can be simulated; these jobs need a load of "
            f"at least {busy / MAX_GPUS:.2g}"
        )
    return max(1, round(busy / load / gpus_per_node)) * gpus_per_node


def digest_of(jobs: Sequence[SimulatedJob]) -> str:
    """Sixteen hexadecimal digits that stand for these very jobs."""
    digest = hashlib.sha256()
    for job in jobs:
        digest.update(repr(job).encode())
    return digest.hexdigest()[:16]
