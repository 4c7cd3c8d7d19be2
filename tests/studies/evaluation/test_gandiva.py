"""Gandiva as a baseline: that its migration is what the two runs differ by, and what the tables say of made-up ones."""

from __future__ import annotations

from dataclasses import replace

from flyball_planner.policies.baselines.gandiva import Gandiva
from flyball_simulator.engine import simulate
from flyball_simulator.experiments.matrix import Cell, Outcome
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


def test_who_stays_migrates_never_and_who_does_not_may() -> None:
    migrations = {
        cell.curve: simulate(cell.workload.workload(cell.settings), cell.settings, trace="synthetic").migrations
        for cell in CELLS
        if cell.curve in ("gandiva", gandiva.STAYING) and cell.sweep == (("clock", 1410.0),)
    }
    assert migrations[gandiva.STAYING] == 0
    assert migrations["gandiva"] > 0


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
