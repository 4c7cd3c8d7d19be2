"""Outcomes of runs that nobody ran, for what is made of them: comparison, pictures, report."""

from __future__ import annotations

from dataclasses import replace

from flyball_simulator.experiments.matrix import Cell, Outcome
from flyball_simulator.settings import Knowledge, SimulationSettings
from flyball_simulator.workloads.source import WorkloadSource

BASE = SimulationSettings(policy="fifo", gpus=8, knowledge=Knowledge.IDEAL)


def outcome(policy: str, seed: int, joules: float, seconds: float, price: float = 0.0) -> Outcome:
    settings = replace(BASE, policy=policy, seed=seed)
    result = {
        "policy": policy,
        "mean_jct_seconds": seconds,
        "p50_jct_seconds": seconds / 2,
        "p99_jct_seconds": 9 * seconds,
        "makespan_seconds": 99.0 * seconds,
        "energy_joules": {"gpu": 0.9 * joules, "idle": 0.1 * joules, "node": 0.0, "total": joules},
        "max_watts": 1000.0 + seed,
        "cap_violation_seconds": 0.0,
        "restarts": 3,
        "wall_seconds": 0.1,
    }
    return Outcome(Cell(settings, WorkloadSource("trace", seed), (("price", price),)), result)


MADE = [
    *(outcome("price", seed, 4e9, 100.0 + seed, 0.0) for seed in (0, 1)),
    *(outcome("price", seed, 2e9, 200.0, 1.0) for seed in (0, 1)),
    *(outcome("price", seed, 5e9, 150.0, 2.0) for seed in (0, 1)),
    *(outcome("afs", seed, 3e9, 300.0) for seed in (0, 1)),
]
FAILED = Outcome(Cell(replace(BASE, policy="gandiva"), WorkloadSource("trace")), None, error="it <broke>")
