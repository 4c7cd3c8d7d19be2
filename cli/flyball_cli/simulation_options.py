"""What `flyball simulate` and `flyball compare` have in common: the cluster, the jobs, and how bad input is told."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from flyball_simulator.settings import CapStep, SimulationSettings
    from flyball_simulator.workload_source import WorkloadSource

MODELS = ("ideal", "fitted", "noisy")
MAX_CAP_STEPS = 100_000


def refuse(message: str) -> NoReturn:
    """End the command with status 2 and one line on stderr."""
    typer.secho(f"flyball: {message}", err=True, fg=typer.colors.RED)
    raise typer.Exit(2)


def workload(trace: str, seed: int, data: Path | None, first: int | None) -> WorkloadSource:
    from flyball_simulator.workload_source import WorkloadSource

    return WorkloadSource(trace, seed, None if data is None else str(data), first)


def cluster_gpus(source: WorkloadSource, gpus: int | None, load: float | None, gpus_per_node: int) -> int:
    """The GPUs given, or those that give the load. Raises ValueError unless exactly one of the two is said."""
    from flyball_simulator.workload_source import gpus_for_load

    if (gpus is None) == (load is None):
        raise ValueError(
            "say how large the cluster is: either --gpus N or --load FRACTION (of the time GPUs are wanted)"
        )
    return gpus if gpus is not None else gpus_for_load(source.trace_jobs(), load or 0.0, gpus_per_node)


def settings_of(policy: str, gpus: int, model: str, **fields: Any) -> SimulationSettings:
    """Settings with what was said on the command line; None leaves the default. Raises ValueError for what is no model."""
    from flyball_simulator.settings import Knowledge, SimulationSettings

    if model not in MODELS:
        raise ValueError(f"--model {model} is none of {', '.join(MODELS)}")
    base = SimulationSettings(policy=policy, gpus=gpus, knowledge=Knowledge(model))
    return replace(base, **{name: value for name, value in fields.items() if value is not None})


def read_cap_schedule(path: Path) -> tuple[CapStep, ...]:
    """A CSV with the columns seconds,fraction. Raises ValueError that names line and column of what is wrong."""
    from flyball_simulator.settings import CapStep

    steps: list[CapStep] = []
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        if not rows.fieldnames or not {"seconds", "fraction"} <= set(rows.fieldnames):
            raise ValueError(f"{path}: line 1: the header must have the columns seconds,fraction")
        for row in rows:
            values = []
            for column in ("seconds", "fraction"):
                try:
                    values.append(float(row[column] or ""))
                except ValueError:
                    raise ValueError(
                        f"{path}: line {rows.line_num}: column {column}: {row[column]!r} is no number"
                    ) from None
            if not (math.isfinite(values[0]) and values[0] >= 0):
                raise ValueError(f"{path}: line {rows.line_num}: column seconds: {values[0]} must be 0 or more")
            if not 0 < values[1] <= 1:
                raise ValueError(
                    f"{path}: line {rows.line_num}: column fraction: {values[1]} must be above 0, at most 1"
                )
            steps.append(CapStep(values[0], values[1]))
            if len(steps) > MAX_CAP_STEPS:
                raise ValueError(f"{path}: more than {MAX_CAP_STEPS} steps")
    return tuple(sorted(steps, key=lambda step: step.at_seconds))
