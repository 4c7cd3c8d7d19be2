"""`flyball compare`: many policies over their settings and seeds, and one report."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flyball_cli.research.simulation_options import (
    BootSecondsOption,
    DataOption,
    FirstOption,
    GpusOption,
    GpusPerNodeOption,
    ModelOption,
    NodeOverheadOption,
    PowerOffOption,
    RestartScaleOption,
    TraceFormatOption,
    TraceOption,
    cluster_gpus,
    find_modules_here,
    settings_of,
    warn_of_cut_jobs,
    workload,
)
from flyball_cli.terminal.endings import refuse
from flyball_cli.terminal.files import check_output_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flyball_simulator.experiments.matrix import Cell, Outcome
    from flyball_simulator.experiments.worker_processes import Event

DEFAULT_LOAD = 0.8


def register(root: typer.Typer) -> None:
    root.command("compare")(compare)


def compare(
    trace: TraceOption,
    policies: Annotated[
        str,
        typer.Option(
            help="Names with commas between them, as of simulate: also module:Class of your own; +zeus, +priced."
        ),
    ],
    output: Annotated[Path, typer.Option(file_okay=False, help="For the report and everything it is made of.")],
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<knob=values>",
            help="clock=1410,1110 or power_limit=0.4,0.3 or price=0,0.0003: for the policies with that knob; none for "
            "no sweep (default: four to six values of each policy's knob).",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 0 on.")] = 1,
    gpus: GpusOption = None,
    load: Annotated[
        float | None,
        typer.Option(help="Instead of --gpus: as many as this load of the trace takes (default: 0.8)."),
    ] = None,
    gpus_per_node: GpusPerNodeOption = 8,
    model: ModelOption = "fitted",
    power_off_empty_nodes: PowerOffOption = False,
    both: Annotated[
        bool, typer.Option("--on-and-off", help="Every policy twice: empty nodes left on, and powered off.")
    ] = False,
    restart_scale: RestartScaleOption = 1.0,
    boot_seconds: BootSecondsOption = 120.0,
    node_overhead_watts: NodeOverheadOption = 0.0,
    first: FirstOption = None,
    trace_format: TraceFormatOption = None,
    data: DataOption = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Simulations at a time (default: one for each core).")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run everything again, also what an earlier call finished.")
    ] = False,
) -> None:
    """Run a matrix of policies, settings and seeds, and compare them at equal energy.

    Finished runs are kept in OUTPUT/runs: after Ctrl-C, or with one more policy, the same command goes on from there.
    OUTPUT gets comparison.json, runs.csv, pictures, and report.html, one page that needs nothing else.

    \b
      flyball compare --trace synthetic --load 0.8 --seeds 3 \\
        --policies price,afs,tiresias,afs+zeus --sweep clock=1410,1230,1080 \\
        --sweep price=0,0.0001,0.001 --power-off-empty-nodes --output out/compare
    """
    from flyball_simulator.experiments.matrix import run_matrix
    from flyball_simulator.experiments.sweeps import cells_of, default_sweeps, parse_sweeps

    check_output_folder("--output", output)
    try:
        source = workload(trace, 0, data, first, trace_format)
        if gpus is None and load is None:
            load = DEFAULT_LOAD
        size = cluster_gpus(source, gpus, load, gpus_per_node)
        names = [name.strip() for name in policies.split(",") if name.strip()]
        if not names:
            raise ValueError("--policies names none")
        find_modules_here(names)
        base = settings_of(
            names[0],
            size,
            model,
            gpus_per_node=gpus_per_node,
            restart_scale=restart_scale,
            boot_seconds=boot_seconds,
            node_overhead_watts=node_overhead_watts,
        )
        sweeps = parse_sweeps(sweep) if sweep else default_sweeps(names)
        ways = (False, True) if both else (power_off_empty_nodes,)
        cells = cells_of(names, sweeps, range(seeds), base, source, ways)
        warn_of_cut_jobs(source, size)
        source.workload(base)  # a bad trace is reported once, before any process starts
        with _Bar(cells) as bar:
            outcomes = run_matrix(
                cells, output / "runs", processes=jobs or os.cpu_count() or 1, resume=not fresh, listen=bar.take_event
            )
    except (ValueError, OSError) as error:
        refuse(str(error), error)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; finished runs are kept in {output / 'runs'}, the same command goes on", err=True)
        raise typer.Exit(130) from None
    empty = "left on, and powered off" if both else "powered off" if power_off_empty_nodes else "left on"
    facts = [
        ("trace", source.name),
        ("cluster", f"{size} GPUs, {gpus_per_node} a node"),
        ("what policies know", f"{model} models"),
        ("drawn by", f"{seeds} seed{'s' if seeds > 1 else ''}"),
        ("nodes", f"empty nodes {empty}"),
        ("policies", ", ".join(names)),
        ("sweeps", "; ".join(f"{knob}={_values(values)}" for knob, values in sweeps.items()) or "none"),
    ]
    for path in _write(outcomes, facts, output):
        typer.echo(str(path))
    failed = [outcome for outcome in outcomes if outcome.result is None]
    for outcome in failed:
        typer.secho(f"failed: {outcome.cell}: {outcome.error}", err=True, fg=typer.colors.RED)
    _print(outcomes)
    if failed:
        raise typer.Exit(1)


def _values(values: Sequence[float | None]) -> str:
    return ",".join("none" if value is None else f"{value:g}" for value in values)


class _Bar:
    """Runs done, on stderr."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._cells = cells
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("simulating", total=len(cells))

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def take_event(self, event: Event) -> None:
        from flyball_simulator.experiments.worker_processes import Failed, Finished, Started

        if isinstance(event, Started):
            self._progress.update(self._task, description=str(self._cells[event.task]))
        elif isinstance(event, (Finished, Failed)):
            self._progress.advance(self._task)


def _write(outcomes: Sequence[Outcome], facts: list[tuple[str, str]], output: Path) -> list[Path]:
    from flyball_simulator.experiments.comparison import comparison_document, comparisons, curves, run_rows
    from flyball_simulator.experiments.results import table_csv, write_whole

    entries, found = comparisons(outcomes), curves(outcomes)
    paths = [
        write_whole(output / "comparison.json", json.dumps(comparison_document(outcomes, entries), indent=2) + "\n"),
        write_whole(output / "runs.csv", table_csv(run_rows(outcomes))),
    ]
    if found:
        from flyball_studies.simulation.plots import MEAN_JCT, P99_JCT, energy_figure, pareto_figure, png
        from flyball_studies.simulation.report import report_html

        command = shlex.join(["flyball", *sys.argv[1:]])
        title = f"Scheduling policies on {facts[0][1]}"
        paths += [
            write_whole(output / "pareto-mean.png", png(pareto_figure(found, MEAN_JCT))),
            write_whole(output / "pareto-p99.png", png(pareto_figure(found, P99_JCT))),
            write_whole(output / "energy.png", png(energy_figure(found))),
            write_whole(output / "report.html", report_html(title, facts, outcomes, found, entries, command)),
        ]
    return paths


def _print(outcomes: Sequence[Outcome]) -> None:
    from flyball_simulator.experiments.comparison import curves
    from rich.console import Console
    from rich.table import Table

    table = Table(title="at each policy's fastest and thriftiest setting", title_justify="left")
    for heading in ("policy", "mean JCT, s", "energy, GJ", "mean JCT, s", "energy, GJ"):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    for curve in curves(outcomes):
        ends = (curve.fastest, curve.thriftiest)
        figures = [(f"{one.mean_jct_seconds.mean:,.0f}", f"{one.energy_joules.mean / 1e9:.2f}") for one in ends]
        table.add_row(curve.label, *figures[0], *figures[1])
    Console().print(table)
