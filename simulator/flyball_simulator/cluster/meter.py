"""The cluster's energy account: joules and GPU-seconds by where they go, the cap, and what must add up.

The meter integrates the cluster's watts by itself, from the changes that are reported to it; the jobs integrate
their own. That both come to the same is checked in every run.
"""

from __future__ import annotations

from collections.abc import Iterable

from flyball_planner.ledger.caps import WATT_TOLERANCE

from flyball_simulator.cluster.runs import Phase, Run
from flyball_simulator.settings import Sample

RELATIVE_TOLERANCE = 1e-6


class ConservationError(AssertionError):
    """Something that must add up did not: an error of the simulator or of a policy, never of the input."""


class Meter:
    """Watts are constant between two calls of `advance`. A lost node draws nothing.

    A node that boots draws what an idle one does, and the energy of the boot itself is charged beside that.
    """

    def __init__(self, gpus: int, gpus_per_node: int, idle_gpu_watts: float, node_watts: float) -> None:
        self.gpus = gpus
        self.gpus_per_node = gpus_per_node
        self.idle_gpu_watts = idle_gpu_watts
        self.node_watts = node_watts
        self.powered_nodes = gpus // gpus_per_node
        self.busy_gpus = 0
        self.busy_watts = 0.0
        self.cap_watts: float | None = None
        self.time = 0.0
        self.gpu_joules = 0.0
        self.idle_joules = 0.0
        self.node_joules = 0.0
        self.busy_gpu_seconds = 0.0
        self.powered_gpu_seconds = 0.0
        self.max_watts = 0.0
        self.violation_seconds = 0.0
        self.carbon_grams_per_joule: float | None = None
        self.carbon_grams = 0.0

    @property
    def idle_watts(self) -> float:
        """What the GPUs draw that no job has, on nodes that are on."""
        return (self.powered_nodes * self.gpus_per_node - self.busy_gpus) * self.idle_gpu_watts

    @property
    def gpu_watts(self) -> float:
        """What all GPUs draw, which is what a cap counts."""
        return self.busy_watts + self.idle_watts

    @property
    def watts(self) -> float:
        """Of everything."""
        return self.gpu_watts + self.powered_nodes * self.node_watts

    @property
    def total_joules(self) -> float:
        """Of everything, so far."""
        return self.gpu_joules + self.idle_joules + self.node_joules

    def advance(self, now: float) -> None:
        """Account for the time up to `now` at the watts of before."""
        elapsed = now - self.time
        if elapsed < 0:
            raise ConservationError(f"time went from {self.time} s back to {now} s")
        self.time = now
        if elapsed == 0:
            return
        idle = self.idle_watts
        self.gpu_joules += self.busy_watts * elapsed
        self.idle_joules += idle * elapsed
        self.node_joules += self.powered_nodes * self.node_watts * elapsed
        self.busy_gpu_seconds += self.busy_gpus * elapsed
        self.powered_gpu_seconds += self.powered_nodes * self.gpus_per_node * elapsed
        total = self.busy_watts + idle
        self.max_watts = max(self.max_watts, total)
        if self.cap_watts is not None and total > self.cap_watts + WATT_TOLERANCE:
            self.violation_seconds += elapsed
        if self.carbon_grams_per_joule is not None:
            self.carbon_grams += (total + self.powered_nodes * self.node_watts) * elapsed * self.carbon_grams_per_joule

    def change(self, busy_gpus: int, watts: float) -> None:
        """So many more GPUs are busy from now on, and so many more watts are drawn by busy ones."""
        self.busy_gpus += busy_gpus
        self.busy_watts += watts

    def boot(self, nodes: int, joules: float) -> None:
        """So many nodes are switched on, at this energy each."""
        self.powered_nodes += nodes
        self.node_joules += nodes * joules
        if self.carbon_grams_per_joule is not None:
            self.carbon_grams += nodes * joules * self.carbon_grams_per_joule

    def sample(self, running: int, waiting: int) -> Sample:
        return Sample(self.time, self.watts, self.cap_watts, self.busy_gpus, self.powered_nodes, running, waiting)

    def check(self, runs: Iterable[Run]) -> None:
        """Raise ConservationError unless joules and GPU-seconds of the jobs add up to the cluster's, and none is lost."""
        runs = list(runs)
        self._same("joules", self.gpu_joules, sum(run.joules for run in runs))
        self._same("GPU-seconds", self.busy_gpu_seconds, sum(run.gpu_seconds for run in runs))
        if self.busy_gpu_seconds > self.powered_gpu_seconds * (1 + RELATIVE_TOLERANCE):
            raise ConservationError(
                f"{self.busy_gpu_seconds} GPU-seconds were used and {self.powered_gpu_seconds} were there"
            )
        for run in runs:
            if run.phase is not Phase.DONE or run.completed_seconds is None:
                raise ConservationError(f"job {run.job.job_id} has not ended: {run.remaining} iterations are left")
            kept = run.done_iterations - run.lost_iterations
            if abs(kept - run.job.iterations) > run.done_iterations * RELATIVE_TOLERANCE:
                raise ConservationError(f"job {run.job.job_id} of {run.job.iterations} iterations did {kept}")
            if abs(run.remaining) > run.job.iterations * RELATIVE_TOLERANCE:
                raise ConservationError(f"job {run.job.job_id} ended with {run.remaining} iterations left")

    @staticmethod
    def _same(what: str, cluster: float, jobs: float) -> None:
        if abs(cluster - jobs) > RELATIVE_TOLERANCE * max(cluster, jobs, 1.0):
            raise ConservationError(f"the cluster counts {cluster} {what}, its jobs {jobs}")
