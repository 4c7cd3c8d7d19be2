"""What the same jobs would take without Flyball: first come first served, at their traced sizes, no power cap.

A small event simulation on the oracle of the trainers and the physics of the simulated GPUs, so that its seconds and
watts are those that the demo's hardware would have shown. Everything runs at the highest clock that the GPUs' default
limit allows, as an untouched driver does.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from flyball_simulated_gpu.physics import DeviceConstants, operating_point
from flyball_simulator.measured.iterations import iteration
from flyball_simulator.measured.noise import noise_factor

from flyball_testbed.demo.jobs import DemoJob

POLICY = "FCFS, traced sizes, highest clock, no cap"


@dataclass(frozen=True, slots=True)
class BaselineResult:
    """Real (not simulated) seconds, joules and watts; `completion_seconds` by job, counted from its submission."""

    completion_seconds: dict[str, float]
    makespan_seconds: float
    joules: float
    max_true_watts: float

    @property
    def mean_completion_seconds(self) -> float:
        return sum(self.completion_seconds.values()) / len(self.completion_seconds)


@dataclass(frozen=True, slots=True)
class _Run:
    job: DemoJob
    shares: tuple[tuple[int, int], ...]  # (node, GPUs)
    watts: float  # of all its GPUs while it computes


def run_baseline(
    jobs: Sequence[DemoJob],
    constants: DeviceConstants,
    nodes: int,
    gpus_per_node: int,
    *,
    start_seconds: float = 0.0,
    noise: float = 0.0,
    namespace: str = "",
    until_seconds: float = 0.0,
) -> BaselineResult:
    """Run the jobs in order of submission; a job that does not fit holds up those behind it.

    `start_seconds` pass between a job's placement and its first iteration, its GPUs idle. `noise` and `namespace` are
    those of the trainers. Energy is that of every GPU, idle ones included, until the last job has ended, or
    `until_seconds` if that is later. Raises ValueError for a job that can never fit.
    """
    largest = nodes * gpus_per_node
    for job in jobs:
        if job.traced_gpus > largest:
            raise ValueError(f"job {job.name} asks for {job.traced_gpus} GPUs, the cluster has {largest}")
    limit = constants.default_limit_milliwatts
    idle_watts = operating_point(constants, limit, 0, 0, 0.0)[1] / 1000
    free = [gpus_per_node] * nodes
    queue: deque[DemoJob] = deque()
    # (time, order, what): submissions, first iterations, ends. The order makes equal times come in the order made.
    events: list[tuple[float, int, DemoJob | _Run, str]] = []
    for order, job in enumerate(jobs):
        heapq.heappush(events, (job.submit_seconds, order, job, "submitted"))
    order = len(jobs)
    watts = idle_watts * largest
    now = joules = 0.0
    most = watts
    completions: dict[str, float] = {}
    while events:
        at, _, what, event = heapq.heappop(events)
        joules += watts * (at - now)
        now = at
        if isinstance(what, DemoJob):
            queue.append(what)
        elif event == "computing":
            watts += what.watts - idle_watts * what.job.traced_gpus
            most = max(most, watts)
        else:
            watts -= what.watts - idle_watts * what.job.traced_gpus
            completions[what.job.name] = now - what.job.submit_seconds
            for node, gpus in what.shares:
                free[node] += gpus
        while queue and (shares := _place(free, queue[0].traced_gpus, gpus_per_node)) is not None:
            job = queue.popleft()
            for node, gpus in shares:
                free[node] -= gpus
            seconds, job_watts = _truth(job, len(shares), constants, noise, namespace)
            run = _Run(job, shares, job_watts)
            heapq.heappush(events, (now + start_seconds, order, run, "computing"))
            heapq.heappush(events, (now + start_seconds + seconds, order + 1, run, "ended"))
            order += 2
    makespan = now
    joules += watts * max(0.0, until_seconds - makespan)
    return BaselineResult(completions, makespan, joules, most)


def _place(free: Sequence[int], gpus: int, gpus_per_node: int) -> tuple[tuple[int, int], ...] | None:
    """Whole nodes and the fullest node that holds the rest; None where that does not fit now."""
    whole, rest = divmod(gpus, gpus_per_node)
    empty = [node for node, count in enumerate(free) if count == gpus_per_node]
    if len(empty) < whole:
        return None
    shares = [(node, gpus_per_node) for node in empty[:whole]]
    if rest:
        taken = set(empty[:whole])
        fitting = [(count, node) for node, count in enumerate(free) if node not in taken and count >= rest]
        if not fitting:
            return None
        shares.append((min(fitting)[1], rest))
    return tuple(shares)


def _truth(job: DemoJob, nodes: int, constants: DeviceConstants, noise: float, namespace: str) -> tuple[float, float]:
    """(seconds, watts of all GPUs) of the whole job at the clock that the default limit leaves it."""
    limit, clock = constants.default_limit_milliwatts, constants.clock_max_megahertz
    factor = noise_factor(f"{namespace}/{job.name}/{job.traced_gpus}", noise)
    while True:
        fraction = clock / constants.clock_max_megahertz
        step = iteration(job.model, job.traced_gpus, nodes, job.global_batch_size, fraction, factor)
        allowed, milliwatts = operating_point(constants, limit, 0, clock, step.activity)
        if allowed == clock:
            return step.seconds * job.iterations, milliwatts / 1000 * job.traced_gpus
        clock = allowed  # a lower clock means busier GPUs: go on until the limit is content
