"""Claims of the paper that take only a handful of jobs: its two-GPU example, and its three sensitivity trends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.policies.registry import policy_named
from flyball_planner.policies.view import Knob
from flyball_simulator.engine import simulate
from flyball_simulator.knowledge import decision_clocks
from flyball_simulator.measured.oracle import Oracle
from flyball_simulator.settings import REFERENCE_GPU, Knowledge, SimulationSettings
from flyball_simulator.workloads.source import gpus_for_load
from flyball_simulator.workloads.trace_library import synthetic_trace
from flyball_simulator.workloads.workload import SimulatedJob, workload_of

TREND_JOBS = 100
TREND_POLICIES = ("powerflow-paper", "price", "afs", "tiresias")


@dataclass(frozen=True, slots=True)
class TwoGpus:
    """Mean JCT and joules of the motivating example (section 3.1) under one policy."""

    policy: str
    mean_jct_seconds: float
    joules: float


def two_gpus() -> list[TwoGpus]:
    """VGG16 with batch 64 that asked for one GPU, and a GPT-2 that asked for two, 1,000 iterations each, two A100s.

    GPT-2 has the smallest batch that was measured, 128 (the paper: 32). Powerless choices are left out: clocks are free,
    and restarts cost what they cost everywhere here.
    """
    jobs = [SimulatedJob("A", 0.0, 1, "vgg16", 64, 1000.0), SimulatedJob("B", 0.0, 2, "gpt2", 128, 1000.0)]
    found = []
    for policy, price in (("tiresias", None), ("price", 0.0), ("price", 0.001)):
        settings = SimulationSettings(policy=policy, gpus=2, gpus_per_node=2, price=price, knowledge=Knowledge.IDEAL)
        result = simulate(jobs, settings)
        name = policy if price is None else f"{policy}, {price:g} s/J"
        mean = float(np.mean(list(result.completion_seconds.values())))
        found.append(TwoGpus(name, mean, sum(result.joules.values())))
    return found


@dataclass(frozen=True, slots=True)
class Trend:
    """Mean JCT in seconds of each policy at one value of what is varied."""

    varied: str
    value: str
    mean_jct_seconds: dict[str, float]


def trends(seeds: Sequence[int]) -> list[Trend]:
    """Section 6.4 on traces of 100 jobs: arrival interval, cluster size, job size.

    AFS and Tiresias run at 1170 MHz, PowerFlow at eta = 0.4, price at 0.0003 s/J.
    """
    return [
        *(_trend("arrival interval", f"x{by:g}", seeds, stretch=by) for by in (0.5, 1.0, 2.0, 4.0)),
        *(_trend("cluster size", f"x{by:g}", seeds, cluster=by) for by in (1.0, 2.0, 4.0)),
        *(_trend("job size", f"{gpus} GPUs", seeds, size=gpus) for gpus in (1, 2, 4, 8)),
    ]


def _trend(
    varied: str, value: str, seeds: Sequence[int], stretch: float = 1.0, cluster: float = 1.0, size: int | None = None
) -> Trend:
    gpu = gpu_model_for(REFERENCE_GPU)
    assert gpu is not None  # noqa: S101 - the catalogue's reference
    oracle = Oracle(gpu, decision_clocks(gpu), 8)
    means: dict[str, list[float]] = {policy: [] for policy in TREND_POLICIES}
    for seed in seeds:
        trace = synthetic_trace(seed, TREND_JOBS)
        base = gpus_for_load(trace, 1.0, 8)
        gpus = max(8, round(base * cluster / 8) * 8)
        if size is not None:
            trace = [replace(job, gpus=size) for job in trace]
        trace = [replace(job, submit_seconds=job.submit_seconds * stretch) for job in trace]
        jobs = workload_of(trace, oracle, seed, gpus)
        for policy in TREND_POLICIES:
            knob = policy_named(policy).traits.knob
            settings = SimulationSettings(
                policy=policy,
                gpus=gpus,
                seed=seed,
                power_off_empty_nodes=True,
                price=0.0003 if knob is Knob.PRICE else None,
                clock_megahertz=1170 if knob is Knob.CLOCK else None,
                power_limit_fraction=0.4 if knob is Knob.POWER_LIMIT else None,
            )
            means[policy].append(float(np.mean(list(simulate(jobs, settings).completion_seconds.values()))))
    return Trend(varied, value, {policy: float(np.mean(values)) for policy, values in means.items()})
