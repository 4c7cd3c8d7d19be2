"""What `flyball simulate` and `flyball compare` have in common: their options, the cluster and the jobs."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from flyball_planner.snapshot import Objective
    from flyball_simulator.settings import CapStep, NodeEvent, SimulationSettings
    from flyball_simulator.workloads.source import WorkloadSource

MODELS = ("ideal", "fitted", "noisy")
MAX_STEPS = 100_000  # rows of a schedule

TraceOption = Annotated[
    str, typer.Option(help="itp, itp-months, itp-02, philly, pai, synthetic, or a CSV (plain or .gz).")
]
TraceFormatOption = Annotated[
    str | None,
    typer.Option(help="flyball, philly, pai-hours, pai-seconds, helios or acme (default: by the file's header)."),
]
DataOption = Annotated[Path | None, typer.Option(file_okay=False, help="Folder of the public traces.")]
FirstOption = Annotated[int | None, typer.Option(min=1, help="Only the first so many jobs.")]
GpusOption = Annotated[int | None, typer.Option(min=1, help="GPUs of the cluster, whole nodes.")]
GpusPerNodeOption = Annotated[int, typer.Option(min=1, help="A power of two.")]
ModelOption = Annotated[str, typer.Option(help="How well policies know jobs: by ideal, fitted or noisy models.")]
PowerOffOption = Annotated[bool, typer.Option("--power-off-empty-nodes", help="Power empty nodes off; else they idle.")]
RestartScaleOption = Annotated[float, typer.Option(min=0.0, help="Multiplies what a resize costs.")]
BootSecondsOption = Annotated[float, typer.Option(min=0.0, help="How long a node that was off takes to boot.")]
NodeOverheadOption = Annotated[float, typer.Option(min=0.0, help="Watts that a powered node draws beside its GPUs.")]


def workload(trace: str, seed: int, data: Path | None, first: int | None, trace_format: str | None) -> WorkloadSource:
    """Raises ValueError for a trace or a format that does not exist, or a format of a trace that is no file."""
    from flyball_simulator.workloads.source import WorkloadSource
    from flyball_simulator.workloads.trace_formats import format_named
    from flyball_simulator.workloads.trace_library import TRACE_NAMES, is_named

    if not is_named(trace) and not Path(trace).exists():
        raise ValueError(f"--trace {trace}: there is no such file, and it is none of {', '.join(TRACE_NAMES)}")
    if trace_format is not None:
        format_named(trace_format)
        if is_named(trace):
            raise ValueError(f"--trace-format is for files, and {trace} is a trace of the library")
    return WorkloadSource(trace, seed, None if data is None else str(data), first, trace_format)


def cluster_gpus(source: WorkloadSource, gpus: int | None, load: float | None, gpus_per_node: int) -> int:
    """The GPUs given, or those that give the load. Raises ValueError unless exactly one of the two is given."""
    from flyball_simulator.workloads.source import gpus_for_load

    if gpus is not None and load is not None:
        raise ValueError(f"--gpus {gpus} and --load {load:g} both say how large the cluster is: give one of them")
    if gpus is None and load is None:
        raise ValueError(
            "say how large the cluster is: either --gpus N or --load FRACTION (of the time GPUs are wanted)"
        )
    return gpus if gpus is not None else gpus_for_load(source.trace_jobs(), load or 0.0, gpus_per_node)


def find_modules_here(policies: Sequence[str]) -> None:
    """Let a policy `module:Class` be found in the working directory, as `python -m` finds modules."""
    here = str(Path.cwd())
    if any(":" in policy for policy in policies) and here not in sys.path:
        sys.path.insert(0, here)


def warn_of_cut_jobs(source: WorkloadSource, gpus: int) -> None:
    """Say on stderr which jobs no simulated job can be as large as."""
    from flyball_simulator.workloads.workload import cut_jobs, largest_size

    cut = cut_jobs(source.trace_jobs(), gpus)
    if cut:
        most = max(cut, key=lambda job: job.gpus)
        typer.secho(
            f"flyball: {len(cut):,} of the trace's jobs ask for more than {largest_size(gpus)} GPUs, the largest job here "
            f"(job {most.job_id}: {most.gpus:,}); they run on that many, with the work of that many",
            err=True,
            fg=typer.colors.YELLOW,
        )


def settings_of(policy: str, gpus: int, model: str, **fields: Any) -> SimulationSettings:
    """Settings with what the command line gives; None leaves the default. Raises ValueError for what is no model."""
    from flyball_simulator.settings import Knowledge, SimulationSettings

    if model not in MODELS:
        raise ValueError(f"--model {model} is none of {', '.join(MODELS)}")
    base = SimulationSettings(policy=policy, gpus=gpus, knowledge=Knowledge(model))
    return replace(base, **{name: value for name, value in fields.items() if value is not None})


def objective_named(name: str) -> Objective:
    """Raises ValueError for what is none."""
    from flyball_planner.snapshot import Objective

    found = next((objective for objective in Objective if objective.lower() == name.lower()), None)
    if found is None:
        raise ValueError(f"--objective {name} is none of {', '.join(objective.lower() for objective in Objective)}")
    return found


def read_cap_schedule(path: Path) -> tuple[CapStep, ...]:
    """A CSV with the columns seconds,fraction. Raises ValueError that names line and column of what is wrong."""
    from flyball_simulator.settings import CapStep

    steps = []
    for where, row in _rows(path, ("seconds", "fraction")):
        seconds, fraction = _seconds(where, row), _number(where, row, "fraction")
        if not 0 < fraction <= 1:
            raise ValueError(f"{where}: column fraction: {fraction} must be above 0, at most 1")
        steps.append(CapStep(seconds, fraction))
    return tuple(sorted(steps, key=lambda step: step.at_seconds))


def read_node_events(path: Path, nodes: int) -> tuple[NodeEvent, ...]:
    """A CSV with the columns seconds,node,state, of a cluster of so many nodes.

    Raises ValueError that names line and column of what is wrong.
    """
    from flyball_simulator.settings import NodeEvent

    events = []
    for where, row in _rows(path, ("seconds", "node", "state")):
        node, state = _number(where, row, "node"), (row["state"] or "").strip()
        if node != int(node) or not 0 <= node < nodes:
            raise ValueError(f"{where}: column node: {row['node']!r} is no number of a node, from 0 to {nodes - 1}")
        if state not in ("up", "down"):
            raise ValueError(f"{where}: column state: {state!r} must be up or down")
        events.append(NodeEvent(_seconds(where, row), int(node), state == "up"))
    return tuple(sorted(events, key=lambda event: event.at_seconds))


def _rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str | None]]]:
    """Each row of a CSV, and what an error calls it. Raises ValueError for what is none, or too long."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        try:
            if not rows.fieldnames or not set(columns) <= set(rows.fieldnames):
                raise ValueError(f"{path}: line 1: the header must have the columns {','.join(columns)}")
            for count, row in enumerate(rows, 1):
                where = f"{path}: line {rows.line_num}"
                if count > MAX_STEPS:
                    raise ValueError(f"{where}: more than {MAX_STEPS} rows")
                if None in row:
                    raise ValueError(f"{where}: more values than the header's {len(rows.fieldnames)} columns")
                yield where, row
        except csv.Error as error:
            raise ValueError(f"{path}: line {rows.line_num + 1}: not valid CSV: {error}") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not a text file: {error}") from None


def _number(where: str, row: dict[str, str | None], column: str) -> float:
    try:
        number = float(row[column] or "")
    except ValueError:
        raise ValueError(f"{where}: column {column}: {row[column]!r} is no number") from None
    if not math.isfinite(number):
        raise ValueError(f"{where}: column {column}: {number} must be finite")
    return number


def _seconds(where: str, row: dict[str, str | None]) -> float:
    seconds = _number(where, row, "seconds")
    if seconds < 0:
        raise ValueError(f"{where}: column seconds: {seconds} must be 0 or more")
    return seconds
