"""Pollux (Qiao et al., OSDI 2021, section 4.2) with fixed batch sizes: the harmonic mean of speed-ups, restarts counted.

With the batch fixed, goodput is throughput. The fitness is the generalised mean with p = -1 of each job's speed-up over its
fair share, the largest of its sizes within 1/J of the GPUs, so that what is minimised is the sum of T_j(n) / T_j(fair). A
job that would change its size has its speed-up multiplied by a re-allocation factor. The paper's is
(T - R * delta) / (T + delta) for a job of age T after R re-allocations of delta seconds; here T counts from the last of
them, so that R is none. The paper searches by a genetic algorithm, which needs random numbers; here a greedy climbs
from everybody's smallest size by the largest gain for each GPU, and a change that does not repay its factor is taken back.
Where there are fewer GPUs than jobs every fitness is nought, and who runs goes on: the first come, first.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heapify, heappop, heappush

from flyball_planner.policies.view import Choice, ClusterView, JobView, Knob, Traits


class Pollux:
    """Cluster-wide fitness of speed-ups; one clock for all."""

    name = "pollux"
    traits = Traits(knob=Knob.CLOCK, elastic=True, repacks=True, interval_seconds=60.0)

    def decide(self, view: ClusterView) -> list[Choice]:
        fixed = [job for job in view.jobs if job.gpus and not job.resizable]
        free = view.gpus - sum(job.gpus for job in fixed)
        others = sorted((job for job in view.jobs if job.resizable or not job.gpus), key=_who_runs_goes_on)
        rows: dict[str, int] = {}
        for job in others:
            if job.performance.sizes[0] <= free:
                free -= job.performance.sizes[0]
                rows[job.uid] = 0
        jobs = {job.uid: job for job in others if job.uid in rows}
        fair_gpus = view.gpus / max(len(view.jobs), 1)
        slowness = {uid: slowness_rows(view, job, fair_gpus) for uid, job in jobs.items()}
        heap = [step for uid, job in jobs.items() if (step := _step(job, slowness[uid], 0))]
        heapify(heap)
        while heap and free > 0:
            _, _, uid, row = heappop(heap)
            more = jobs[uid].performance.sizes[row] - jobs[uid].performance.sizes[rows[uid]]
            if more > free:
                continue
            free -= more
            rows[uid] = row
            step = _step(jobs[uid], slowness[uid], row)
            if step is not None:
                heappush(heap, step)
        for uid, job in sorted(jobs.items(), key=lambda item: item[1].order):
            if job.gpus:
                present = job.performance.position[job.gpus]
                back = job.gpus - job.performance.sizes[rows[uid]]
                worth = slowness[uid][rows[uid]] / _factor(view, job) < slowness[uid][present]
                if back <= free and not worth:
                    free -= back
                    rows[uid] = present
        sizes = [(job, job.gpus) for job in fixed]
        sizes += [(job, job.performance.sizes[rows[uid]]) for uid, job in jobs.items()]
        return [Choice(job.uid, gpus, view.clock_of(job, gpus)) for job, gpus in sizes]

    def precedence(self, view: ClusterView) -> list[str]:
        return [job.uid for job in sorted(view.jobs, key=_who_runs_goes_on)]


def _who_runs_goes_on(job: JobView) -> tuple[bool, float, str]:
    return (not job.gpus, *job.order)


def slowness_rows(view: ClusterView, job: JobView, fair_gpus: float) -> list[float]:
    """T(n) / T(fair share) at the policy's clocks, for each size: what the job adds to the sum that is minimised."""
    table = job.performance
    seconds = [table.seconds_rows[row][view.clock_of(job, gpus)] for row, gpus in enumerate(table.sizes)]
    fair = max(bisect_right(table.sizes, fair_gpus) - 1, 0)
    return [value / seconds[fair] for value in seconds]


def _step(job: JobView, slowness: list[float], row: int) -> tuple[float, float, str, int] | None:
    if row + 1 == len(slowness) or slowness[row + 1] >= slowness[row]:
        return None
    sizes = job.performance.sizes
    gain = (slowness[row] - slowness[row + 1]) / (sizes[row + 1] - sizes[row])
    return -gain, job.submit_time_seconds, job.uid, row + 1


def _factor(view: ClusterView, job: JobView) -> float:
    """age / (age + restart): what a change leaves of a job's speed-up."""
    age = max(view.now_seconds - job.since_seconds, 1.0)
    return age / (age + job.restart_seconds)
