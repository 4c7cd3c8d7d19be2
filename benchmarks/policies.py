"""What one decision of each policy takes: milliseconds of one core, on a busy cluster and on a large one.

    python benchmarks/policies.py                    # every policy at both sizes, about a minute
    python benchmarks/policies.py afs sia+zeus       # some
    python benchmarks/policies.py --profile afs      # where its large decision spends its time

Jobs are drawn with a seed: six model classes at four batch sizes, tables of the classes' priors, one to eight GPUs asked
for. The cluster is brought to rest first: a policy decides twice, each time with what it decided before in force, and
what is timed is the next decision, after a hundredth of the jobs has ended and as many new ones have come. Ends with
status 1 where a threshold is missed.
"""

from __future__ import annotations

import argparse
import cProfile
import math
import pstats
import random
import sys
import time
from dataclasses import replace

import numpy as np
from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_planner.models.priors import known_model_classes, model_class_prior
from flyball_planner.policies.registry import policy_named, policy_names
from flyball_planner.policies.view import ClusterView, JobView, Knob, Performance, Policy

SIZES = {"300 jobs, 128 GPUs": (300, 128), "2,000 jobs, 10,000 GPUs": (2_000, 10_000)}
# A day of 1,901 jobs is some 3,000 decisions and must take 30 s; the operator decides every few seconds.
THRESHOLD_MILLISECONDS = {"300 jobs, 128 GPUs": 10.0, "2,000 jobs, 10,000 GPUs": 1_000.0}
# One that plans with models is the operator's whole planner, with placement; benchmarks/allocation.py allows it as much
# for 50 jobs.
WHOLE_PLANNER_MILLISECONDS = 50.0
ROUNDS = 5
CLOCKS_APART = 2  # of the board's steps: 30 MHz
LARGEST_JOB = 64
GPUS_PER_NODE = 8


def board() -> GpuModel:
    model = gpu_model_for("NVIDIA-A100-SXM4-40GB")
    assert model is not None
    return model


def clocks(gpu: GpuModel) -> tuple[int, ...]:
    return tuple(clock for clock in gpu.clocks_megahertz[::-CLOCKS_APART] if clock >= 0.4 * gpu.max_clock_megahertz)[
        ::-1
    ]


def some_tables(gpu: GpuModel) -> list[Performance]:
    """A table for each class and batch size, of its prior."""
    found = []
    for name in known_model_classes():
        prior = model_class_prior(name, gpu)
        for batch in (64, 128, 256, 512):
            sizes = [1 << level for level in range(LARGEST_JOB.bit_length())]
            points = [
                [(gpus, math.ceil(gpus / GPUS_PER_NODE), clock, batch) for clock in clocks(gpu)] for gpus in sizes
            ]
            seconds = np.array([[prior.iteration_seconds(*point) for point in row] for row in points])
            joules = np.array([[prior.iteration_joules(*point) for point in row] for row in points])
            found.append(Performance(sizes, seconds, joules, prior, batch))
    return found


def some_jobs(count: int, generator: random.Random, tables: list[Performance], first: int = 0) -> list[JobView]:
    return [
        JobView(
            uid=f"job-{index:05d}",
            submit_time_seconds=float(index),
            requested_gpus=generator.choice([1, 1, 1, 1, 2, 4, 8]),
            performance=generator.choice(tables),
            remaining_iterations=math.exp(generator.uniform(math.log(1e3), math.log(1e6))),
            attained_gpu_seconds=math.exp(generator.uniform(0.0, math.log(1e5))),
            since_seconds=float(index),
        )
        for index in range(first, first + count)
    ]


def in_force(policy: Policy, view: ClusterView) -> None:
    """What the policy decides now is so from now on."""
    chosen = {choice.uid: choice for choice in policy.decide(view)}
    for job in view.jobs:
        gpus = chosen[job.uid].gpus if job.uid in chosen else 0
        if gpus != job.gpus:
            job.gpus, job.since_seconds = gpus, view.now_seconds
        job.clock_index = chosen[job.uid].clock_index if gpus else 0


def busy_view(policy: Policy, jobs: int, gpus: int) -> ClusterView:
    gpu = board()
    tables = some_tables(gpu)
    generator = random.Random(2_026)
    view = ClusterView(
        now_seconds=1e4,
        gpus=gpus,
        gpus_per_node=GPUS_PER_NODE,
        clocks_megahertz=clocks(gpu),
        jobs=some_jobs(jobs, generator, tables),
        max_gpu_watts=gpu.default_power_limit_watts,
        idle_gpu_watts=gpu.idle_power_watts,
        power_limit_watts=0.7 * gpus * gpu.default_power_limit_watts
        if policy.traits.knob is Knob.POWER_LIMIT
        else None,
        guard_fraction=0.05,
        price=1e-4,
    )
    for _ in range(2):
        in_force(policy, view)
        view = replace(view, now_seconds=view.now_seconds + 300.0)
    ended = jobs // 100
    return replace(view, jobs=[*view.jobs[ended:], *some_jobs(ended, generator, tables, jobs)])


def milliseconds(policy: Policy, view: ClusterView) -> float:
    """The least of several decisions: what it takes when nothing else has the caches."""
    least = math.inf
    for _ in range(ROUNDS):
        start = time.process_time()
        policy.decide(view)
        least = min(least, time.process_time() - start)
    return 1e3 * least


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="*", help="all of them, and afs+zeus, unless named")
    parser.add_argument("--profile", action="store_true", help="print where the large decision spends its time")
    options = parser.parse_args()
    names = options.policies or [*policy_names(), "afs+zeus"]
    missed = False
    for name in names:
        policy = policy_named(name)
        if options.profile:
            view = busy_view(policy, *SIZES["2,000 jobs, 10,000 GPUs"])
            profiler = cProfile.Profile()
            profiler.runcall(policy.decide, view)
            pstats.Stats(profiler).sort_stats("tottime").print_stats(15)
            continue
        figures = []
        for size, (jobs, gpus) in SIZES.items():
            taken = milliseconds(policy, busy_view(policy, jobs, gpus))
            allowed = THRESHOLD_MILLISECONDS[size]
            over = taken > (max(allowed, WHOLE_PLANNER_MILLISECONDS) if policy.traits.needs_model else allowed)
            missed |= over
            figures.append(f"{size}: {taken:8.2f} ms{'  MISSED' if over else ''}")
        print(f"{name:18} {'   '.join(figures)}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
