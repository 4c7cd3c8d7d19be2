"""Gandiva as a baseline: that its migration is what the two runs differ by, and what the tables say of made-up ones."""

from __future__ import annotations

from dataclasses import replace

from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.policies.baselines.gandiva import Gandiva
from flyball_simulator.engine import simulate
from flyball_simulator.experiments.matrix import Cell, Outcome
from flyball_simulator.knowledge import decision_clocks
from flyball_simulator.measured.oracle import Oracle
from flyball_simulator.settings import REFERENCE_GPU, Knowledge, SimulationSettings
from flyball_simulator.workloads.workload import SimulatedJob
from flyball_studies.evaluation import gandiva, studies

LOADS = studies.Workloads(None)
CELLS = gandiva.cells(LOADS, "synthetic", 1.5, 0)


def test_the_runs_differ_in_migration_clocks_and_idle_nodes() -> None:
    settings = {(cell.curve, cell.sweep): cell.settings for cell in CELLS}
    top = (("clock", 1410.0),)
    moving, staying = settings["gandiva", top], settings[gandiva.STAYING, top]
    assert replace(staying, policy=moving.policy) == moving
    assert replace(Gandiva.traits, repacks=False) == gandiva.Staying.traits
    assert not settings["gandiva" + gandiva.ON, top].power_off_empty_nodes
    assert {cell.settings.power_limit_fraction for cell in CELLS if cell.curve == "powerflow-paper"} > {0.2, 0.4}


def test_who_stays_migrates_never() -> None:
    """Two halves of two nodes are left: a long job moves to the other's node for one that needs a whole one, or not."""
    gpu = gpu_model_for(REFERENCE_GPU)
    assert gpu is not None
    truth = Oracle(gpu, decision_clocks(gpu), 8).performance("resnet50", 64, 16)

    def job(name: str, seconds: float, gpus: int, submit: float = 0.0) -> SimulatedJob:
        iterations = seconds / truth.seconds_rows[truth.position[gpus]][-1]
        return SimulatedJob(name, submit, gpus, "resnet50", 64, iterations)

    jobs = [job("a", 100.0, 4), job("b", 5_000.0, 4), job("c", 5_000.0, 4), job("d", 100.0, 4)]
    jobs.append(job("whole", 1_000.0, 8, 200.0))
    made = {
        policy: simulate(jobs, SimulationSettings(policy=policy, gpus=16, knowledge=Knowledge.IDEAL))
        for policy in ("gandiva", f"{gandiva.__name__}:Staying")
    }
    moving, staying = made.values()
    assert (moving.migrations, staying.migrations) == (1, 0)
    assert moving.completion_seconds["whole"] < staying.completion_seconds["whole"]


def outcome(cell: Cell, seconds: float, joules: float, migrations: int = 0) -> Outcome:
    return Outcome(
        cell,
        {
            "energy_joules": {"total": joules},
            "mean_jct_seconds": seconds,
            "p99_jct_seconds": 2.0 * seconds,
            "migrations": migrations,
        },
    )


def test_the_tables_say_what_the_runs_were() -> None:
    made = []
    for cell in CELLS:
        if cell.curve == "powerflow-paper":
            share = cell.settings.power_limit_fraction or 1.0
            made.append(outcome(cell, 100.0 / share**0.1, 1e9 * (1.0 + share)))
        else:
            slow = 110.0 if cell.curve == gandiva.STAYING else 100.0
            made.append(outcome(cell, 2.0 * slow, 1.9e9, migrations=7))
    found = {("pai", 1.5): made}
    assert "| pai, load 1.5 | 7 | 200 | 1.90 | -9.1% | -9.1% | +0.0% |" in gandiva.migration_table(found)
    claims = gandiva.claims_table(found)
    assert "| gandiva, nodes on | 3.39 | 1.9" in claims
    assert "| gandiva+zeus | 2.90 | 1.9" in claims
