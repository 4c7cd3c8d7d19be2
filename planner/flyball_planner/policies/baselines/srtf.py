"""SRTF-elastic: the shortest remaining time first, each with as many GPUs as speed it up.

In the order of remaining time at its smallest size, each job takes the largest size up to which every doubling raised its
throughput by at least half; a job that finds fewer GPUs takes what there is. Preemptive. The yardstick for mean JCT where
remaining times are known and energy is free.
"""

from __future__ import annotations

from flyball_planner.policies.view import Choice, ClusterView, JobView, Knob, Traits

WORTHWHILE_GAIN = 0.5  # of a doubling of the GPUs, relative to the throughput before it


class Srtf:
    """Shortest remaining time first, elastic; one clock for all."""

    name = "srtf"
    traits = Traits(knob=Knob.CLOCK, elastic=True, repacks=True, preempts=True)

    def decide(self, view: ClusterView) -> list[Choice]:
        fixed = [job for job in view.jobs if job.gpus and not job.resizable]
        free = view.gpus - sum(job.gpus for job in fixed)
        choices = [Choice(job.uid, job.gpus, view.clock_of(job, job.gpus)) for job in fixed]
        others = (job for job in view.jobs if job.resizable or not job.gpus)
        for job in sorted(others, key=lambda job: _left(view, job)):
            gpus = worthwhile_gpus(view, job, free)
            if gpus:
                free -= gpus
                choices.append(Choice(job.uid, gpus, view.clock_of(job, gpus)))
        return choices

    def precedence(self, view: ClusterView) -> list[str]:
        return [job.uid for job in sorted(view.jobs, key=lambda job: _left(view, job))]


def worthwhile_gpus(view: ClusterView, job: JobView, free: int) -> int:
    """The largest size, of at most `free` GPUs, up to which every doubling pays; 0 where not even the smallest fits."""
    table = job.performance
    if table.sizes[0] > free:
        return 0
    row = 0
    while row + 1 < len(table.sizes) and table.sizes[row + 1] <= free:
        now = table.seconds_rows[row][view.clock_of(job, table.sizes[row])]
        then = table.seconds_rows[row + 1][view.clock_of(job, table.sizes[row + 1])]
        if now / then - 1.0 < WORTHWHILE_GAIN:
            break
        row += 1
    return table.sizes[row]


def _left(view: ClusterView, job: JobView) -> tuple[float, float, str]:
    smallest = job.performance.sizes[0]
    return (job.remaining_iterations * job.performance.seconds_rows[0][view.clock_of(job, smallest)], *job.order)
