"""Gandiva as a baseline: what its migration does, and PowerFlow as printed against it.

One seed. The policy that migrates nobody is here for the comparison alone, so no command of the simulator knows its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from flyball_planner.policies.baselines.gandiva import Gandiva
from flyball_planner.policies.view import Knob
from flyball_simulator.experiments.comparison import comparisons
from flyball_simulator.experiments.matrix import Cell, Outcome
from flyball_simulator.experiments.sweeps import DEFAULT_SWEEPS

from flyball_studies.evaluation import studies
from flyball_studies.evaluation.tables import Key, best_ratio, table

STAYING = "gandiva, nobody migrates"
ON = ", nodes on"
PAPER = {"gandiva": 3.39, "gandiva+zeus": 2.90}


class Staying(Gandiva):
    """Gandiva where running jobs stay on their nodes, and newcomers are placed in its order, not the largest first."""

    name = "gandiva-staying"
    traits = replace(Gandiva.traits, repacks=False)


def cells(workloads: studies.Workloads, trace: str, load: float, seed: int) -> list[Cell]:
    """Gandiva with migration, without, with Zeus' clocks, and with nodes left on; PowerFlow as printed over its sweep."""

    def cell(policy: str, swept: tuple[str, float] | None, label: str, *, nodes_off: bool = True) -> Cell:
        return workloads.cell(trace, load, seed, policy, swept, label, power_off_empty_nodes=nodes_off)

    clocks = [("clock", float(clock)) for clock in studies.OTHERS_CLOCKS]
    found = [cell("gandiva", swept, "gandiva") for swept in clocks]
    found += [cell(f"{__name__}:{Staying.__name__}", clocks[0], STAYING), cell("gandiva+zeus", None, "gandiva+zeus")]
    found += [cell("gandiva", swept, f"gandiva{ON}", nodes_off=False) for swept in clocks]
    found += [cell("gandiva+zeus", None, f"gandiva+zeus{ON}", nodes_off=False)]
    limits = DEFAULT_SWEEPS[Knob.POWER_LIMIT]
    knob = str(Knob.POWER_LIMIT)
    return found + [
        cell("powerflow-paper", None if limit is None else (knob, float(limit)), "powerflow-paper") for limit in limits
    ]


def migration_table(found: Mapping[Key, Sequence[Outcome]]) -> str:
    """What migrating changes at the highest clock, by trace and load."""
    rows = []
    for (trace, load), outcomes in found.items():
        moving, staying = (_at_top(outcomes, curve) for curve in ("gandiva", STAYING))
        if moving is not None and staying is not None:
            changes = [moving[what] / staying[what] - 1.0 for what in ("mean_jct_seconds", "p99_jct_seconds", "joules")]
            rows.append(
                [
                    f"{trace}, load {load}",
                    f"{moving['migrations']:,.0f}",
                    f"{moving['mean_jct_seconds']:,.0f}",
                    f"{moving['joules'] / 1e9:.2f}",
                    *(f"{change:+.1%}" for change in changes),
                ]
            )
    return table(["", "migrations", "mean JCT, s", "energy, GJ", "mean JCT", "p99 JCT", "energy"], rows)


def claims_table(found: Mapping[Key, Sequence[Outcome]]) -> str:
    """PowerFlow's best ratio against Gandiva at equal energy, with Gandiva's nodes left on and with everybody's off."""
    rows = []
    entries = {key: comparisons(outcomes) for key, outcomes in found.items()}
    for policy, paper in PAPER.items():
        for curve in (policy + ON, policy):
            ratios = [best_ratio(pairs, "powerflow-paper", curve) for pairs in entries.values()]
            rows.append([curve, f"{paper:.2f}", *ratios])
    return table(["PowerFlow against", "paper", *(f"{trace}, load {load}" for trace, load in found)], rows)


def _at_top(outcomes: Sequence[Outcome], curve: str) -> dict[str, float] | None:
    """Means over the seeds at the highest clock; None where there is no such run."""
    runs = [
        outcome.result
        for outcome in outcomes
        if outcome.result is not None
        and outcome.cell.curve == curve
        and dict(outcome.cell.sweep)["clock"] == max(studies.OTHERS_CLOCKS)
    ]
    if not runs:
        return None
    of_run = {what: [run[what] for run in runs] for what in ("mean_jct_seconds", "p99_jct_seconds", "migrations")}
    of_run["joules"] = [run["energy_joules"]["total"] for run in runs]
    return {what: float(np.mean(values)) for what, values in of_run.items()}
