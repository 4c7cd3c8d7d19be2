"""Sizes and clocks by price: what a joule and what a GPU-second are worth in job-seconds decides every job's own best.

The price l of a joule is given (job-seconds per joule; an operator's loop or a carbon signal moves it). The price m of a
GPU-second is found at every decision: the one at which what the jobs want adds up to the GPUs that there are
(market). A running job leaves its size only if the iterations left repay the restart, at these prices. GPUs that are
left over on nodes which are powered anyway go to the job that makes most of them (nodes).

A hard cap is a price as well: l rises until the watts fit, which lowers the clocks that lose least for their watts first,
then sizes. Where more jobs want GPUs than there are, the shortest remaining times run, by priority first. Deadlines and
energy budgets leave out the (n, f) that break them.
"""

from __future__ import annotations

from flyball_planner.policies.capping import within_limit
from flyball_planner.policies.price.market import Market
from flyball_planner.policies.view import Choice, ClusterView, JobView, Knob, Traits


class Price:
    """Every job at its own best, at the prices of a joule and of a GPU-second."""

    name = "price"
    traits = Traits(knob=Knob.PRICE, elastic=True, repacks=True, measures=True, holds_limits=True, preempts=True)

    def decide(self, view: ClusterView) -> list[Choice]:
        jobs = _admitted(view)
        if not jobs:
            return []
        market = Market(view, jobs)
        rows, clocks = market.clear(view.price)
        joule_price = view.price
        limit = view.power_limit_watts
        if limit is not None and market.watts(rows, clocks) > limit:
            rows, clocks = market.clear_under(joule_price, limit)
        choices = [
            Choice(job.uid, job.performance.sizes[row], clock)
            for job, row, clock in zip(jobs, rows.tolist(), clocks.tolist(), strict=True)
        ]
        return choices if limit is None else within_limit(view, choices)

    def precedence(self, view: ClusterView) -> list[str]:
        return [job.uid for job in sorted(view.jobs, key=_precedence)]


def _admitted(view: ClusterView) -> list[JobView]:
    """Who runs: everybody where there is a GPU for each, else the highest priorities and the shortest remaining times."""
    fixed = [job for job in view.jobs if job.gpus and not job.resizable]
    free = view.gpus - sum(job.gpus for job in fixed)
    others = sorted((job for job in view.jobs if job.resizable or not job.gpus), key=_precedence)
    chosen = []
    for job in others:
        smallest = job.performance.sizes[0]
        if smallest <= free:
            free -= smallest
            chosen.append(job)
    return sorted(fixed + chosen, key=lambda job: job.order)


def _precedence(job: JobView) -> tuple[float, float, float, str]:
    """By priority, then by the time left at the smallest size; a job that waits would have to start again first."""
    left = job.remaining_iterations * job.performance.seconds_rows[0][-1]
    if not job.gpus:
        left += job.restart_seconds
    return (-job.priority, left, *job.order)
