"""Tiresias (Gu et al., NSDI 2019, section 3): least attained service in two dimensions, GPUs times time.

Discretized 2D-LAS: jobs wait in queues by attained GPU-seconds, first come, first served in each, and a job that does not
fit is skipped. The Gittins variant ranks by the chance that a job ends within the next quantum of service over the service
that this takes on average, from the services of the jobs that are there (section 3.2.2); what those will come to is taken
from their remaining iterations, as a history of past jobs would tell. Preemptive; not elastic; promotion is off.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from flyball_planner.policies.view import Choice, ClusterView, JobView, Knob, Traits

QUEUE_GPU_SECONDS = (3_250.0, 7_200.0)
QUANTUM_GPU_SECONDS = 3_250.0


class Tiresias:
    """Discretized 2D-LAS."""

    name = "tiresias"
    traits = Traits(knob=Knob.CLOCK, preempts=True, interval_seconds=60.0)

    def decide(self, view: ClusterView) -> list[Choice]:
        return _first_that_fit(view, self._ranked(view))

    def precedence(self, view: ClusterView) -> list[str]:
        return [job.uid for job in self._ranked(view)]

    def _ranked(self, view: ClusterView) -> list[JobView]:
        return sorted(view.jobs, key=_queue)


class TiresiasGittins(Tiresias):
    """The Gittins index in place of attained service."""

    name = "tiresias-gittins"

    def _ranked(self, view: ClusterView) -> list[JobView]:
        services = sorted(_service(view, job) for job in view.jobs)
        sums = [0.0, *accumulate(services)]
        index = {job.uid: gittins_index(services, sums, job.attained_gpu_seconds) for job in view.jobs}
        return sorted(view.jobs, key=lambda job: (-index[job.uid], *job.order))


def gittins_index(services: list[float], sums: list[float], attained: float) -> float:
    """P(ends within the quantum) / E(service until it ends or the quantum is over), given that it has attained so much.

    `services` ascends, GPU-seconds; `sums[i]` is the sum of the first i. 0 where no service is longer than `attained`.
    """
    start = bisect_right(services, attained)
    longer = len(services) - start
    if not longer:
        return 0.0
    end = bisect_right(services, attained + QUANTUM_GPU_SECONDS)
    ending = end - start
    spent = sums[end] - sums[start] - ending * attained + (longer - ending) * QUANTUM_GPU_SECONDS
    return ending / spent if spent > 0 else float("inf")


def _queue(job: JobView) -> tuple[int, float, str]:
    return (bisect_right(QUEUE_GPU_SECONDS, job.attained_gpu_seconds), *job.order)


def _service(view: ClusterView, job: JobView) -> float:
    gpus = job.requested_gpus
    table = job.performance
    seconds = table.seconds_rows[table.position[gpus]][view.clock_of(job, gpus)]
    return job.attained_gpu_seconds + job.remaining_iterations * seconds * gpus


def _first_that_fit(view: ClusterView, jobs: list[JobView]) -> list[Choice]:
    """In order of importance, skipping what does not fit; a job that may not be paused comes first."""
    jobs = sorted(jobs, key=lambda job: job.resizable or not job.gpus)
    free = view.gpus
    choices = []
    for job in jobs:
        if job.requested_gpus <= free:
            free -= job.requested_gpus
            choices.append(Choice(job.uid, job.requested_gpus, view.clock_of(job, job.requested_gpus)))
    return choices
