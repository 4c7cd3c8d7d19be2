"""Gandiva (Xiao et al., OSDI 2018, section 3): jobs of one size share a set of nodes, and take turns where it is too small.

Each size class gets nodes in proportion to the GPUs that its jobs want, anew at every decision; within a class whose
nodes are over-subscribed, jobs are time-sliced: whoever has run for a slice makes room for those who have waited longest.
GPUs that a class does not need are lent to waiting jobs of others, and running jobs migrate so that free GPUs on several
nodes make a whole cell. Not elastic. Suspending and resuming, here or on another node, costs a job about a second (section
4), much less than the checkpoint and restart that other schedulers' preemptions cost. Without the paper's packing of jobs
on one GPU, of which too little is public.
"""

from __future__ import annotations

from flyball_planner.policies.view import Choice, ClusterView, JobView, Knob, Traits

SLICE_SECONDS = 60.0


class Gandiva:
    """Time-slicing on node sets by size class."""

    name = "gandiva"
    traits = Traits(knob=Knob.CLOCK, repacks=True, preempts=True, interval_seconds=SLICE_SECONDS, suspend_seconds=1.0)

    def decide(self, view: ClusterView) -> list[Choice]:
        classes: dict[int, list[JobView]] = {}
        for job in view.jobs:
            classes.setdefault(job.requested_gpus, []).append(job)
        room = share_nodes(
            {size: size * len(jobs) for size, jobs in classes.items()},
            view.gpus // view.gpus_per_node,
            view.gpus_per_node,
        )
        turn = {size: sorted(jobs, key=lambda job: _turn(view, job)) for size, jobs in sorted(classes.items())}
        chosen: list[JobView] = []
        rest: list[JobView] = []
        for size, jobs in turn.items():
            slots = room[size] // size
            chosen += jobs[:slots]
            rest += jobs[slots:]
        kept = [job for job in rest if job.gpus and not job.resizable]
        free = view.gpus - sum(job.requested_gpus for job in chosen)
        while kept and sum(job.requested_gpus for job in kept) > free:  # who may not be paused displaces who may
            victim = next((job for job in reversed(chosen) if job.resizable or not job.gpus), None)
            if victim is None:
                break
            chosen.remove(victim)
            rest.append(victim)
            free += victim.requested_gpus
        lent = [*kept, *sorted((job for job in rest if job not in kept), key=lambda job: _turn(view, job))]
        for job in lent:
            if job.requested_gpus <= free:
                free -= job.requested_gpus
                chosen.append(job)
        chosen.sort(key=lambda job: (not job.gpus, job.order))
        return [Choice(job.uid, job.requested_gpus, view.clock_of(job, job.requested_gpus)) for job in chosen]

    def precedence(self, view: ClusterView) -> list[str]:
        return [job.uid for job in sorted(view.jobs, key=lambda job: _turn(view, job))]


def share_nodes(wanted_gpus: dict[int, int], nodes: int, gpus_per_node: int) -> dict[int, int]:
    """GPUs for each size class: whole nodes in proportion to what its jobs want, never more than that takes.

    Nodes go one cell at a time (a node, or as many as one job spans) to the class that is furthest below its proportion.
    """
    total = sum(wanted_gpus.values())
    given = dict.fromkeys(wanted_gpus, 0)
    left = nodes
    while True:
        open_to = [
            size
            for size, wanted in wanted_gpus.items()
            if given[size] * gpus_per_node < wanted and max(1, size // gpus_per_node) <= left
        ]
        if not open_to:
            return {size: count * gpus_per_node for size, count in given.items()}
        neediest = max(open_to, key=lambda size: (wanted_gpus[size] / total * nodes - given[size], -size))
        cell = max(1, neediest // gpus_per_node)
        given[neediest] += cell
        left -= cell


def _turn(view: ClusterView, job: JobView) -> tuple[int, float, float, str]:
    """Within a class: who is within its slice, then who has waited longest, then who has run longest ago."""
    if job.gpus and (not job.resizable or view.now_seconds - job.since_seconds < SLICE_SECONDS):
        return (0, job.since_seconds, *job.order)
    return (2 if job.gpus else 1, -job.since_seconds if job.gpus else job.since_seconds, *job.order)
