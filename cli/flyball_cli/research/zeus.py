"""`flyball zeus`: pick a power limit from a profile, and replay recurring jobs against grid search."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyball_cli.terminal.endings import refuse
from flyball_cli.terminal.files import check_output_folder, read_text

if TYPE_CHECKING:
    from flyball_frontiers.zeus.power_limit import PowerLimitMeasurement, WouldSave
    from flyball_studies.zeus.study import TransferStudy, WorkloadStudy
    from flyball_studies.zeus.trace import WorkloadTrace

PAPER_ENERGY_SAVED = (0.153, 0.758)
PAPER_TIME_SAVED = (-0.128, 0.601)
"""Zeus (NSDI '23), section 6.2: the range over its workloads on a V100 at eta 0.5."""

app = typer.Typer(
    name="zeus",
    no_args_is_help=True,
    help="Energy against time for one job: its power limit, and its batch size if it recurs (Zeus, NSDI '23).",
)


class SelectorName(StrEnum):
    ENERGY = "energy"
    TIME = "time"
    COST = "cost"
    SLOWDOWN = "slowdown"


def register(root: typer.Typer) -> None:
    root.add_typer(app)


@app.command("power-limit")
def power_limit(
    profile: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="One line a power limit; see above for the columns.")
    ],
    selector: Annotated[
        SelectorName, typer.Option(help="What to look for: least energy, time or cost, or energy within a slowdown.")
    ] = SelectorName.COST,
    energy_weight: Annotated[
        float, typer.Option("--energy-weight", "--eta", min=0.0, max=1.0, help="For cost: 1 energy only, 0 time only.")
    ] = 0.5,
    slowdown: Annotated[
        float, typer.Option(min=1.0, help="For slowdown: 1.1 allows ten per cent more time than the largest limit.")
    ] = 1.1,
    iterations: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            help="Iterations in each row, where the file does not say; by default 40 in Zeus's windows, else 1.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Choose a job's power limit from a few seconds of measurement at each.

    PROFILE is CSV: power_limit_watts,time_seconds,energy_joules[,iterations], or the window log that Zeus's own library
    writes (window_name,elapsed_time,gpu0_energy,...).

    The cost of a limit is eta * energy + (1 - eta) * MAXPOWER * time. Nothing is changed: this is observer mode, it says
    what each limit would save against the largest.

    \b
      flyball zeus power-limit profile.csv --selector slowdown --slowdown 1.05
    """
    from flyball_frontiers.zeus import LeastCost, LeastEnergy, LeastEnergyWithin, LeastTime, Selector, would_save
    from flyball_frontiers.zeus.profile_table import read_profile

    try:
        measurements, gpus = read_profile(read_text(profile).splitlines(), iterations)
        selectors: dict[SelectorName, Selector] = {
            SelectorName.ENERGY: LeastEnergy(),
            SelectorName.TIME: LeastTime(),
            SelectorName.COST: LeastCost(energy_weight, gpus),
            SelectorName.SLOWDOWN: LeastEnergyWithin(slowdown),
        }
        saving = would_save(measurements, selectors[selector])
    except ValueError as error:
        raise typer.BadParameter(f"{profile}: {error}") from error

    if as_json:
        from dataclasses import asdict

        typer.echo(json.dumps({"gpus": gpus, "selector": str(selector), **asdict(saving)}, indent=2))
        return
    _print_limits(measurements, saving, profile.name, gpus, str(selector))


def _print_limits(
    measurements: Sequence[PowerLimitMeasurement], saving: WouldSave, name: str, gpus: int, selector: str
) -> None:
    """A table of what was measured at each power limit, and what the chosen one would save."""
    from flyball_api.values.units import MILLIWATTS_PER_WATT
    from flyball_frontiers.zeus.power_limit import unlimited
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{name}: {gpus} GPU{'s' if gpus > 1 else ''}, per iteration", box=SIMPLE_HEAD)
    for heading in ("limit (W)", "time (ms)", "energy (J)", "power (W)", "energy", "time"):
        table.add_column(heading, justify="right")
    largest = unlimited(measurements)
    for m in sorted(measurements, key=lambda m: -m.power_limit_milliwatts):
        table.add_row(
            f"{m.power_limit_milliwatts / MILLIWATTS_PER_WATT:g}",
            f"{1000 * m.seconds_per_iteration:.1f}",
            f"{m.joules_per_iteration:.2f}",
            f"{m.average_power_watts:.1f}",
            f"{m.joules_per_iteration / largest.joules_per_iteration - 1:+.1%}",
            f"{m.seconds_per_iteration / largest.seconds_per_iteration - 1:+.1%}",
            style="bold green" if m.power_limit_milliwatts == saving.power_limit_milliwatts else "",
        )
    console = Console()
    console.print(table)
    console.print(
        f"{selector}: {saving.power_limit_milliwatts / MILLIWATTS_PER_WATT:g} W "
        f"saves {saving.energy_saved_fraction:.1%} of the energy "
        f"for {saving.time_added_fraction:+.1%} time"
    )


@app.command()
def replay(
    data: Annotated[
        Path,
        typer.Argument(exists=True, file_okay=False, help="Folder with summary_train.csv and summary_power_<gpu>.csv."),
    ],
    gpu: Annotated[str, typer.Option(help="Which power table: the GPU of summary_power_<gpu>.csv.")] = "v100",
    workload: Annotated[
        list[str] | None, typer.Option(metavar="<str>", help="Only this workload, by its title; repeatable.")
    ] = None,
    energy_weight: Annotated[
        float, typer.Option("--energy-weight", "--eta", min=0.0, max=1.0, help="1: energy only, 0: time only.")
    ] = 0.5,
    stop_factor: Annotated[
        float, typer.Option("--stop-factor", "--beta", min=1.01, help="Stop a run at this many times the least cost.")
    ] = 2.0,
    window: Annotated[
        int | None, typer.Option(min=2, max=50, help="Only the latest runs count, against data drift.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="The first of them; the others follow it.")] = 0,
    drift: Annotated[
        float,
        typer.Option(min=1.0, help="From the middle on an epoch at the best batch size takes this many times as long."),
    ] = 1.0,
    recurrences: Annotated[
        int | None, typer.Option(min=10, help="Arrivals of each job; default 2 x batch sizes x limits, as the paper.")
    ] = None,
    carry_from: Annotated[
        str | None, typer.Option(help="Also carry each job over from this GPU, by epochs x epoch cost.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for the JSON report and the pictures.")] = None,
) -> None:
    """Replay recorded training jobs that recur, under policies that choose their batch sizes.

    These are what a recurring job does here (the knowledge gradient), Zeus as in its paper, its exploration followed by
    the least mean for ever, grid search with pruning with and without early stopping, and the default configuration.

    DATA holds the traces of the Zeus artifact: epochs to the target by batch size and seed, and time and power of an
    epoch by batch size and power limit. A recurrence ends when its target is reached; what failed and stopped runs cost
    on the way counts. Savings are of the last five recurrences against the default; regret is what all recurrences
    together cost above the best configuration, had it been known from the start.

    \b
      flyball zeus replay ../shared/data/zeus-nsdi23 --output out/zeus
      flyball zeus replay ../shared/data/zeus-nsdi23 --gpu p100 \\
        --carry-from v100 --workload NeuMF
    """
    from flyball_studies.zeus.study import SeedResult, replay_seed, study_transfer, summarise
    from rich.console import Console
    from rich.progress import Progress

    check_output_folder("--output", output)
    traces = _read(data, gpu, workload)
    sources = _read(data, carry_from, workload) if carry_from else []
    console = Console()
    studies: list[WorkloadStudy] = []
    examples: list[SeedResult] = []
    transfers: list[TransferStudy] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("replaying", total=len(traces) * seeds + len(sources))
        for trace in traces:
            results = []
            for each in range(seed, seed + seeds):
                progress.update(task, description=f"{trace.title}, seed {each}")
                results.append(replay_seed(trace, energy_weight, each, recurrences, stop_factor, window, drift))
                progress.advance(task)
            studies.append(summarise(trace, energy_weight, results))
            examples.append(results[0])
        for source, target in zip(sources, traces, strict=False):
            progress.update(task, description=f"{target.title}, carried over")
            transfers.append(
                study_transfer(source, target, energy_weight, range(seed, seed + seeds), recurrences or 50)
            )
            progress.advance(task)

    _print_studies(console, studies, gpu, seeds)
    if transfers:
        _print_transfers(console, transfers, str(carry_from), gpu)
    if output is not None:
        from flyball_studies.zeus import pictures

        output.mkdir(parents=True, exist_ok=True)
        report = output / f"zeus-{gpu}.json"
        report.write_text(
            json.dumps(
                _report(studies, transfers, gpu, range(seed, seed + seeds), stop_factor, window, drift), indent=1
            )
        )
        written = [report, *pictures.draw_all(studies, examples, gpu, output)]
        console.print("wrote " + ", ".join(str(path) for path in written))


def _read(data: Path, gpu: str, titles: Sequence[str] | None) -> list[WorkloadTrace]:
    from flyball_studies.zeus.trace import ZEUS_WORKLOADS, read_workload

    known = [name.title for name in ZEUS_WORKLOADS]
    for title in titles or ():
        if title not in known:
            raise typer.BadParameter(f"workload {title!r} is not one of {', '.join(known)}")
    tables = []
    for name in ("summary_train.csv", f"summary_power_{gpu}.csv"):
        if not (data / name).is_file():
            raise typer.BadParameter(f"{data} has no {name}")
        try:
            tables.append(read_text(data / name).splitlines())
        except ValueError as error:
            refuse(f"{data / name}: {error}", error)
    chosen = [name for name in ZEUS_WORKLOADS if not titles or name.title in titles]
    try:
        return [read_workload(name, *tables) for name in chosen]
    except ValueError as error:
        refuse(f"{data}, summary_train.csv (training table) and summary_power_{gpu}.csv (power table): {error}", error)


def _print_studies(console: Any, studies: Sequence[WorkloadStudy], gpu: str, seeds: int) -> None:
    from flyball_studies.zeus.replay import Policy
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    ours, zeus = Policy.KNOWLEDGE_GRADIENT, Policy.ZEUS
    plural = "s" if seeds > 1 else ""
    savings = Table(
        title=f"{gpu.upper()}, {seeds} seed{plural}: saved against the default once converged (negative: takes more)",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    savings.add_column("workload", no_wrap=True)
    savings.add_column("best", justify="right", no_wrap=True)
    for heading in ("energy", "Zeus", "best", "time", "Zeus", "best"):
        savings.add_column(heading, justify="right", no_wrap=True)
    others = {zeus: "Zeus", Policy.COMMIT: "commit", Policy.GRID_STOPPED: "stopped grid", Policy.GRID_SEARCH: "grid"}
    regret = Table(
        title="cumulative regret over all recurrences; of the others, how many times ours",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    regret.add_column("workload", no_wrap=True)
    for heading in ("runs", "ours", *others.values(), "below Zeus"):
        regret.add_column(heading, justify="right", no_wrap=heading == "ours")
    for study in studies:
        found = study.summaries
        savings.add_row(
            study.trace.title,
            f"{study.optimum[0]}, {study.optimum[1]}",
            f"[bold]{found[ours].energy_saved:.1%}[/bold]",
            f"{found[zeus].energy_saved:.1%}",
            f"{study.optimum_energy_saved:.1%}",
            f"[bold]{found[ours].time_saved:+.1%}[/bold]",
            f"{found[zeus].time_saved:+.1%}",
            f"{study.optimum_time_saved:+.1%}",
        )
        least = found[ours].final_regret
        regret.add_row(
            study.trace.title,
            str(found[ours].regret.shape[1]),
            f"[bold]{least / 1e6:.3g} MJ[/bold]",
            *(f"{found[other].final_regret / least:.2f}" if least > 0 else "-" for other in others),
            f"{study.seeds_of_less_regret(ours, zeus)}/{seeds}",
        )
    console.print(savings)
    console.print(regret)
    energies = [study.summaries[zeus].energy_saved for study in studies]
    times = [study.summaries[zeus].time_saved for study in studies]
    console.print(
        f"Zeus: energy saved {min(energies):.1%} to {max(energies):.1%} (paper, V100: {PAPER_ENERGY_SAVED[0]:.1%} to "
        f"{PAPER_ENERGY_SAVED[1]:.1%}); time saved {min(times):+.1%} to {max(times):+.1%} (paper: "
        f"{PAPER_TIME_SAVED[0]:+.1%} to {PAPER_TIME_SAVED[1]:+.1%})"
    )


def _print_transfers(console: Any, transfers: Sequence[TransferStudy], source: str, target: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=f"cumulative regret on {target.upper()}, with what {source.upper()} taught", box=SIMPLE_HEAD)
    table.add_column("workload")
    for heading in ("carried over (J)", "from nothing (J)"):
        table.add_column(heading, justify="right")
    for study in transfers:
        table.add_row(study.title, f"{study.carried_regret:.2e}", f"{study.cold_regret:.2e}")
    console.print(table)


def _report(
    studies: Sequence[WorkloadStudy],
    transfers: Sequence[TransferStudy],
    gpu: str,
    seeds: range,
    stop_factor: float,
    window: int | None,
    drift: float,
) -> dict[str, Any]:
    return {
        "gpu": gpu,
        "seeds": len(seeds),
        "first_seed": seeds.start,
        "stop_factor": stop_factor,
        "window": window,
        "drift": drift,
        "paper": {"energy_saved": PAPER_ENERGY_SAVED, "time_saved": PAPER_TIME_SAVED},
        "workloads": [study.to_json() for study in studies],
        "carried": [
            {"workload": t.title, "carried_regret_joules": t.carried_regret, "cold_regret_joules": t.cold_regret}
            for t in transfers
        ],
    }
