"""`flyball simulate`: a trace under one policy, from event to event."""

from __future__ import annotations

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
    objective_named,
    read_cap_schedule,
    read_node_events,
    settings_of,
    warn_of_cut_jobs,
    workload,
)
from flyball_cli.terminal.endings import refuse
from flyball_cli.terminal.files import check_output_folder

if TYPE_CHECKING:
    from flyball_simulator.settings import SimulationResult


def register(root: typer.Typer) -> None:
    root.command("simulate")(simulate)


def simulate(
    trace: TraceOption,
    policy: Annotated[
        str,
        typer.Option(
            help="powerflow-paper, powerflow-strict, price, tiresias, tiresias-gittins, gandiva, afs, pollux, sia, srtf, "
            "fifo, or module:Class of your own; +zeus or +priced appended lets Zeus, or the joule's price, choose clocks."
        ),
    ],
    gpus: GpusOption = None,
    load: Annotated[
        float | None, typer.Option(help="Instead of --gpus: as many as this load of the trace takes.")
    ] = None,
    gpus_per_node: GpusPerNodeOption = 8,
    power_limit: Annotated[
        float | None, typer.Option(help="Hard cap, and PowerFlow's eta: a fraction of all GPUs' default power limits.")
    ] = None,
    cap_schedule: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="CSV seconds,fraction: how the cap changes.")
    ] = None,
    node_events: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="CSV seconds,node,state (up or down): nodes that fail and return."
        ),
    ] = None,
    checkpoint_seconds: Annotated[
        float, typer.Option(help="How often a job saves itself: what it loses at most when its node fails.")
    ] = 1800.0,
    clock: Annotated[
        int | None, typer.Option(help="One clock for the cluster, MHz, for policies that choose none.")
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0.0, help="For price and +priced: how many job-seconds a joule is worth.")
    ] = None,
    energy_budget: Annotated[
        float | None,
        typer.Option("--energy-budget-watts", help="For the policy price: the mean draw to meet, by moving the price."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws models, batch sizes and noise.")] = 0,
    model: ModelOption = "fitted",
    model_error: Annotated[float, typer.Option(min=0.0, help="For --model noisy: the relative error.")] = 0.1,
    power_off_empty_nodes: PowerOffOption = False,
    restart_scale: RestartScaleOption = 1.0,
    boot_seconds: BootSecondsOption = 120.0,
    node_overhead_watts: NodeOverheadOption = 0.0,
    objective: Annotated[
        str, typer.Option(help="What every job wants: time, balanced or energy; only powerflow-strict keeps to it.")
    ] = "time",
    first: FirstOption = None,
    trace_format: TraceFormatOption = None,
    data: DataOption = None,
    output: Annotated[
        Path | None, typer.Option(file_okay=False, help="For result.json, jobs.csv, timeline.csv and .png.")
    ] = None,
) -> None:
    """Replay a trace of jobs on a simulated cluster under one policy.

    The cluster has A100s; time jumps from event to event, so that a day of 1,901 jobs takes seconds. What a job takes at
    each number of GPUs and clock is measured data that the policy never sees: it knows what was learnt in the run.

    \b
      flyball simulate --trace synthetic --policy price --price 0.0003 \\
        --load 0.8 --power-off-empty-nodes
      flyball simulate --trace philly --policy afs+zeus --gpus 256 \\
        --output out/afs

    docs/simulator.md has the model, the policies and the formats.
    """
    from flyball_simulator.cluster.meter import ConservationError
    from flyball_simulator.engine import simulate as run

    check_output_folder("--output", output)
    try:
        find_modules_here([policy])
        source = workload(trace, seed, data, first, trace_format)
        size = cluster_gpus(source, gpus, load, gpus_per_node)
        settings = settings_of(
            policy,
            size,
            model,
            gpus_per_node=gpus_per_node,
            power_limit_fraction=power_limit,
            cap_steps=None if cap_schedule is None else read_cap_schedule(cap_schedule),
            node_events=None if node_events is None else read_node_events(node_events, size // gpus_per_node),
            checkpoint_seconds=checkpoint_seconds,
            clock_megahertz=clock,
            price=price,
            energy_budget_watts=energy_budget,
            seed=seed,
            model_error=model_error,
            power_off_empty_nodes=power_off_empty_nodes,
            restart_scale=restart_scale,
            boot_seconds=boot_seconds,
            node_overhead_watts=node_overhead_watts,
            objective=objective_named(objective),
        )
        _refuse_unused(policy, clock, price)
        warn_of_cut_jobs(source, size)
        jobs = source.workload(settings)
        with _Bar(f"{policy} on {source.name}", len(jobs)) as bar:
            result = run(jobs, settings, trace=source.name, progress=bar.show)
    except (ValueError, OSError, ConservationError) as error:
        refuse(str(error), error)
    _print(result)
    if output is not None:
        from flyball_simulator.experiments.results import write_result, write_whole

        paths = write_result(result, jobs, output)
        from flyball_studies.simulation.plots import png, timeline_figure

        paths.append(write_whole(output / "timeline.png", png(timeline_figure(result))))
        typer.echo("\n".join(str(path) for path in paths))


def _refuse_unused(policy: str, clock: int | None, price: float | None) -> None:
    """Raises ValueError for a knob that the policy does not have: the run would not be what its user thinks."""
    from flyball_planner.policies.view import Knob
    from flyball_simulator.outside_policies import policy_of

    knob = policy_of(policy).traits.knob
    for option, of, given in (("--clock", Knob.CLOCK, clock), ("--price", Knob.PRICE, price)):
        if given is not None and knob is not of:
            raise ValueError(f"{policy} does not listen to {option}: its knob is {knob}")


class _Bar:
    """Jobs done and simulated time, on stderr where that is a terminal."""

    def __init__(self, what: str, jobs: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("jobs, {task.fields[hours]:.1f} h simulated"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task(what, total=jobs, hours=0.0)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, seconds: float, done: int, jobs: int) -> None:
        self._progress.update(self._task, completed=done, total=jobs, hours=seconds / 3600.0)


def _print(result: SimulationResult) -> None:
    from flyball_simulator.experiments.results import result_document
    from rich.console import Console
    from rich.table import Table

    document = result_document(result)
    joules = document["energy_joules"]
    table = Table(title=f"{document['policy']} on {document['trace']}", title_justify="left", show_header=False)
    rows = [
        ("jobs", f"{document['jobs']:,} on {document['gpus']} GPUs"),
        ("mean JCT", f"{document['mean_jct_seconds']:,.0f} s"),
        ("p50, p99 JCT", f"{document['p50_jct_seconds']:,.0f} s, {document['p99_jct_seconds']:,.0f} s"),
        ("makespan", f"{document['makespan_seconds'] / 3600:,.1f} h"),
        ("energy", f"{joules['total'] / 1e9:.3f} GJ ({joules['total'] / 3.6e6:,.0f} kWh)"),
        ("of it busy, idle, nodes", " / ".join(f"{joules[where] / 1e9:.3f}" for where in ("gpu", "idle", "node"))),
        ("most power", f"{document['max_watts'] / 1e3:.1f} kW"),
        ("restarts, migrations", f"{document['restarts']:,}, {document['migrations']:,}"),
        ("simulated in", f"{document['wall_seconds']:.1f} s"),
    ]
    if document["cap_watts"] is not None:
        cap = (
            f"{document['cap_watts'] / 1e3:.1f} kW at the end, exceeded for {document['cap_violation_seconds']:,.0f} s"
        )
        rows.insert(7, ("cap", cap))
    if result.settings.energy_budget_watts is not None:
        watts, budget = joules["total"] / document["makespan_seconds"], result.settings.energy_budget_watts
        rows.insert(7, ("mean power", f"{watts / 1e3:.1f} kW, the budget is {budget / 1e3:.1f} kW"))
    if document["node_failures"]:
        lost = f"{document['evictions']:,} jobs evicted, {document['lost_gpu_seconds'] / 3600:,.1f} GPU-hours lost"
        rows.insert(-1, ("node failures", f"{document['node_failures']:,}: {lost}"))
    for name, value in rows:
        table.add_row(name, value)
    Console().print(table)
