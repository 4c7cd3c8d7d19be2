"""First come, first served at the requested sizes: the plainest scheduler, which others are measured against."""

from __future__ import annotations

from flyball_planner.policies.view import Choice, ClusterView, Knob, Traits


class FirstCome:
    """Running jobs keep their GPUs; waiting ones start in the order of submission, and the first that does not fit holds up
    those behind it (no backfilling, so that a large job cannot starve)."""

    name = "fifo"
    traits = Traits(knob=Knob.CLOCK, in_line=True)

    def decide(self, view: ClusterView) -> list[Choice]:
        running = sorted((job for job in view.jobs if job.gpus), key=lambda job: job.order)
        free = view.gpus - sum(job.gpus for job in running)
        choices = [Choice(job.uid, job.gpus, view.clock_of(job, job.gpus)) for job in running]
        for job in sorted((job for job in view.jobs if not job.gpus), key=lambda job: job.order):
            if job.requested_gpus > free:
                break
            free -= job.requested_gpus
            choices.append(Choice(job.uid, job.requested_gpus, view.clock_of(job, job.requested_gpus)))
        return choices

    def precedence(self, view: ClusterView) -> list[str]:
        return [job.uid for job in sorted(view.jobs, key=lambda job: job.order)]
