"""`flyball kareus`: search a recorded table of kernel schedules, and compare strategies on a modelled pipeline."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyball_cli.research.frontier import MOST_POINTS
from flyball_cli.terminal.files import check_output_folder, read_json, read_text

if TYPE_CHECKING:
    from flyball_frontiers.kareus.search import PartitionSearch, SearchBudget
    from flyball_studies.kareus.pipeline_study import PipelineStudy
    from flyball_studies.kareus.table import RecordedTable
    from flyball_studies.kareus.table_study import MethodResult

PUBLISHED_TABLES = (
    "attention_tp2_bs4_seq4096_default_clock.csv=1410",
    "attention_tp2_bs4_seq4096_1200mhz.csv=1200",
)
REQUIRED_SHARE = 0.99
"""Of the full table's hypervolume, with at most a third of its measurements."""

app = typer.Typer(
    name="kareus",
    no_args_is_help=True,
    help="Kernel schedules and clocks chosen together (Kareus, OSDI '26).",
)


def register(root: typer.Typer) -> None:
    root.add_typer(app)


@app.command()
def replay(
    data: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Folder with the tables.")],
    table: Annotated[
        list[str] | None,
        typer.Option(
            help="FILE=MHZ: a table of DATA and the clock it was measured at; repeatable.", metavar="FILE=MHZ"
        ),
    ] = None,
    static_power: Annotated[
        float, typer.Option(min=0.0, help="Watts of all the partition's GPUs at rest (two A100s: 2 x 60 W).")
    ] = 120.0,
    initial: Annotated[int, typer.Option(min=2, help="Random schedules measured first.")] = 96,
    batches: Annotated[int, typer.Option(min=1, help="Batches after them, at the most.")] = 4,
    batch_size: Annotated[int, typer.Option(min=4, help="Schedules in a batch.")] = 32,
    tolerance: Annotated[
        float,
        typer.Option(min=0.0, help="Stop early where the hypervolume grows by less (appendix C: 0.001); 0: never."),
    ] = 0.0,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="The first of them; the others follow it.")] = 0,
    output: Annotated[Path | None, typer.Option(help="Folder for the JSON report and the pictures.")] = None,
) -> None:
    """Search a fully measured table as if nothing were known, and say how much of its frontier was found.

    A table holds one partition (a communication and the computations that it may run beside) under every schedule:
    which kernel the communication starts with, on how many SMs, at which clock. The search may measure at most a third
    of it. Beside the multi-pass search, in the same run and with the same budget: Bayesian optimisation of energy alone
    and of time alone, and random choice.

    What was found is a share of the full table's hypervolume, twice: below the paper's reference point (1.1 times the
    worst of the table, where nearly all of the area is easy), and below a near one (1.1 times the worst of the table's
    own frontier).

    \b
      flyball kareus replay ../shared/data/kareus --output out/kareus
    """
    from flyball_frontiers.kareus.search import SearchBudget
    from flyball_studies.kareus.table_study import METHODS, most_measurements, search_table, summarise_method
    from rich.console import Console
    from rich.progress import Progress

    check_output_folder("--output", output)
    recorded = _read(data, table or PUBLISHED_TABLES)
    budget = SearchBudget(initial, batches, batch_size, tolerance)
    most = most_measurements(recorded)
    if budget.most > most:
        raise typer.BadParameter(f"{budget.most} measurements are more than a third of the table's ({most})")
    console = Console()
    results: list[MethodResult] = []
    example: PartitionSearch | None = None
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("searching", total=len(METHODS) * seeds)
        for method, shares in METHODS.items():
            searches = []
            for each in range(seed, seed + seeds):
                progress.update(task, description=f"{method}, seed {each}")
                try:
                    searches.append(search_table(recorded, shares, static_power, budget, each))
                except (ValueError, ImportError) as error:
                    raise typer.BadParameter(str(error)) from error
                progress.advance(task)
            example = example or searches[0]
            results.append(summarise_method(method, recorded, searches, budget))

    _print_methods(console, results, recorded, seeds)
    if output is not None and example is not None:
        from flyball_studies.kareus import pictures

        output.mkdir(parents=True, exist_ok=True)
        report = output / "kareus-table.json"
        report.write_text(
            json.dumps(_table_report(recorded, results, budget, static_power, range(seed, seed + seeds)), indent=1)
        )
        written = [report, *pictures.draw_table(recorded, results, example, output)]
        console.print("wrote " + ", ".join(str(path) for path in written))


@app.command()
def pipeline(
    stages: Annotated[int, typer.Option(min=1, max=64, help="Pipeline stages.")] = 4,
    blocks: Annotated[
        int, typer.Option(min=2, help="Transformer blocks on each stage; the last has the head and one block less.")
    ] = 7,
    microbatches: Annotated[int, typer.Option(min=1, max=1024, help="Microbatches in an iteration.")] = 8,
    points: Annotated[int, typer.Option(min=2, max=MOST_POINTS, help="Points of each frontier.")] = 60,
    effort: Annotated[
        float, typer.Option(min=0.1, max=1.0, help="How much each search may measure, of appendix C's sample sizes.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the searches.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the JSON report, both together's plan (as a job's spec.pipeline takes it), and the picture."
        ),
    ] = None,
) -> None:
    """Compare what clocks alone, kernel schedules alone and both together save on a modelled pipeline.

    The kernels are of a Llama-like transformer block with tensor parallelism 8, on a model of an A100 whose power at two
    clocks is as measured. Every schedule of it can be measured, so the searched frontier stands beside the true one. Its
    figures show what follows from what; they are no GPU's.

    \b
      flyball kareus pipeline --microbatches 16 --output out/kareus
    """
    from flyball_frontiers.kareus.search import SearchBudget
    from flyball_studies.kareus.pipeline_study import ModelledPipeline, study_pipeline
    from rich.console import Console

    check_output_folder("--output", output)
    console = Console()
    with console.status("searching") as status:
        study = study_pipeline(
            ModelledPipeline(blocks=(blocks,) * (stages - 1) + (blocks - 1,), microbatches=microbatches),
            seed,
            points,
            budget=lambda partition: SearchBudget.for_partition(len(partition.computations)).scaled(effort),
            on_step=lambda step: status.update(step),
        )
    _print_strategies(console, study)
    if output is not None:
        from flyball_frontiers.kareus.plan_file import kareus_document
        from flyball_studies.kareus import pictures
        from flyball_studies.kareus.pipeline_study import Strategy

        output.mkdir(parents=True, exist_ok=True)
        report = output / "kareus-pipeline.json"
        report.write_text(json.dumps(study.to_json(), indent=1))
        joint, plan = study.results[Strategy.JOINT], output / "kareus-plan.json"
        plan.write_text(
            json.dumps(kareus_document(joint.frontier, joint.graph, study.pipeline.group.static_power_watts))
        )
        written = [report, plan, pictures.draw_pipeline(study, output)]
        console.print("wrote " + ", ".join(str(path) for path in written))


@app.command()
def search(
    folder: Annotated[
        Path, typer.Argument(file_okay=False, help="What is kept of the search; the job's volume has it.")
    ],
    clocks: Annotated[str, typer.Option(help="Clocks to try, in MHz.", metavar="HIGHEST:LOWEST:STEP")] = "1410:900:30",
    sms: Annotated[str, typer.Option(help="SMs of the communication to try.", metavar="LEAST:MOST:STEP")] = "3:30:3",
    kernels: Annotated[int, typer.Option(min=1, max=64, help="How many kernels it may be launched with.")] = 3,
    static_power: Annotated[float, typer.Option(min=0.0, help="Watts of all the partition's GPUs at rest.")] = 120.0,
    effort: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of the paper's measurements (appendix C).")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of all that is drawn.")] = 0,
    wait: Annotated[
        float, typer.Option(min=0.0, help="How many seconds to wait for each batch's measurements; 0: look once.")
    ] = 0.0,
) -> None:
    """Search the schedules of a partition while a job measures them (`job.measure_partition`, docs/training.md).

    The folder has the search (search.json), what is to be measured next (asked.json), and what the job has measured
    (measured.json). Begins where there is no search in it, else goes on with the one that there is, whatever the other
    options say. Once it is over, frontier.json has what no other schedule beats in time and energy.

    \b
      flyball kareus search attention --clocks 1410:900:30 --sms 3:30:3 --wait 600
    """
    from flyball_frontiers.kareus import after_measurements, asked_document, search_space
    from flyball_frontiers.kareus.schedule import clock_choices
    from flyball_frontiers.kareus.search import PartitionSearch, SearchBudget

    check_output_folder("FOLDER", folder)
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "search.json"
    try:
        if kept.exists():
            state = PartitionSearch.from_json(read_json(kept))
        else:
            highest, lowest, step = _three("--clocks", clocks, "1410:900:30")
            least, most, by = _three("--sms", sms, "3:30:3")
            if lowest > highest:
                raise ValueError(f"--clocks {clocks}: the highest comes first, as 1410:900:30")
            if least > most:
                raise ValueError(f"--sms {sms}: the least come first, as 3:30:3")
            space = search_space(
                clock_choices(lowest, highest, step), range(least, most + 1, by), range(kernels), not_overlapped=True
            )
            state = PartitionSearch(space, static_power, SearchBudget.for_partition(kernels).scaled(effort), seed)
            _keep(kept, state.to_json())
        asked = state.ask()
        _keep(folder / "asked.json", asked_document(state, asked))
        while asked:
            following = _measured(folder / "measured.json", wait, partial(after_measurements, state, asked))
            if following is None:
                typer.echo(f"batch {state.batch} is to be measured: {len(asked)} schedules, in {folder}/asked.json")
                return
            state = following
            _keep(kept, state.to_json())
            asked = state.ask()
            _keep(folder / "asked.json", asked_document(state, asked))
    except (ValueError, ImportError) as error:
        raise typer.BadParameter(str(error)) from error
    frontier, measured = state.frontier, len(state.samples)
    _keep(folder / "frontier.json", frontier.to_json(lambda schedule: schedule.to_json()))
    typer.echo(f"{measured} schedules of {len(state.candidates)} measured, {len(frontier.points)} on the frontier")


def _measured(
    path: Path, seconds: float, search_after: Callable[[Any], PartitionSearch | None]
) -> PartitionSearch | None:
    """The search after what was measured of its batch; None where that is not there within so many seconds."""
    until = time.monotonic() + seconds
    while True:
        found = search_after(read_json(path)) if path.exists() else None
        if found is not None or time.monotonic() >= until:
            return found
        time.sleep(0.2)


def _keep(path: Path, document: Any) -> None:
    """Write a file that is read meanwhile, whole."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(document))
    part.replace(path)


def _three(option: str, text: str, example: str) -> tuple[int, int, int]:
    try:
        first, second, step = (int(number) for number in text.split(":"))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not three whole numbers like {example}", param_hint=option) from None
    if step < 1:
        raise typer.BadParameter(f"{text!r} has a step below 1", param_hint=option)
    return first, second, step


def _read(data: Path, tables: Sequence[str]) -> RecordedTable:
    from flyball_studies.kareus.table import read_table

    whole: RecordedTable | None = None
    for entry in tables:
        name, _, clock = entry.rpartition("=")
        if not name or not clock.isdigit():
            raise typer.BadParameter(f"table {entry!r} is not FILE=MHZ")
        path = data / name
        if not path.is_file():
            raise typer.BadParameter(f"{data} has no {name}")
        try:
            part = read_table(read_text(path).splitlines(), int(clock))
            whole = part if whole is None else whole.merged(part)
        except ValueError as error:
            raise typer.BadParameter(f"{path}: {error}") from error
    if whole is None:
        raise typer.BadParameter("no table was named")
    return whole


def _print_methods(console: Any, results: Sequence[MethodResult], table: RecordedTable, seeds: int) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    whole = len(table.measurements)
    shown = Table(
        title=f"{whole} schedules, {len(table.frontier)} on the frontier, {seeds} seeds: share of its hypervolume",
        box=SIMPLE_HEAD,
    )
    shown.add_column("search")
    for heading in ("measured", "paper's ref.", "worst seed", "near ref.", "worst seed"):
        shown.add_column(heading, justify="right")
    for result in results:
        measured = result.measured[:, -1]
        shown.add_row(
            result.method,
            f"{measured.mean():.0f} ({measured.mean() / whole:.0%})",
            f"{result.paper[:, -1].mean():.3%}",
            f"{result.paper[:, -1].min():.3%}",
            f"[bold]{result.near[:, -1].mean():.2%}[/bold]",
            f"{result.near[:, -1].min():.2%}",
        )
    console.print(shown)
    ours = results[0]
    held = "held" if ours.paper[:, -1].min() >= REQUIRED_SHARE else "MISSED"
    console.print(
        f"{held}: at least {REQUIRED_SHARE:.0%} below the paper's reference with at most a third, under every seed. Random "
        f"choice has {results[-1].paper[:, -1].mean():.2%} of it too: the near reference tells the methods apart."
    )
    total = sum(ours.frontier_found_by.values())
    passes = ", ".join(f"{why} {count / total:.0%}" for why, count in sorted(ours.frontier_found_by.items()))
    console.print(
        f"frontier points by the pass that found them: {passes} (paper, section 6.6, over its partitions: initial 35%, "
        "total 25%, dynamic 22%, static 12%, uncertainty 6%)"
    )


def _table_report(
    table: RecordedTable, results: Sequence[MethodResult], budget: SearchBudget, static_power: float, seeds: range
) -> dict[str, Any]:
    from flyball_studies.kareus.table_study import References

    references = References.of(table)
    return {
        "schedules": len(table.measurements),
        "repetition_spread": {"time": table.time_spread, "energy": table.energy_spread},
        "static_power_watts": static_power,
        "seeds": len(seeds),
        "first_seed": seeds.start,
        "budget": {"initial": budget.initial, "batches": budget.batches, "batch_size": budget.batch_size},
        "references": {"paper": references.paper, "near": references.near},
        "frontier": table.frontier.to_json(lambda schedule: schedule.to_json()),
        "methods": {result.method: result.to_json() for result in results},
    }


def _print_strategies(console: Any, study: PipelineStudy) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = "against sequential execution, and (last two columns) against Perseus"
    shown = Table(title=title, box=SIMPLE_HEAD, pad_edge=False)  # which fits into 80 columns
    shown.add_column("strategy", no_wrap=True)
    for heading in ("measured", "time", "energy", "iso-time", "iso-energy"):
        shown.add_column(heading, justify="right")

    def share(value: float | None) -> str:
        return "-" if value is None else f"{0.0 - value + 0.0:+.1%}"

    for strategy, result in study.results.items():
        time_saved, energy_saved = study.at_full_speed(strategy)
        shown.add_row(
            str(strategy),
            str(result.measurements),
            share(time_saved),
            share(energy_saved),
            share(study.iso_time_energy_saved(strategy)),
            share(study.iso_energy_time_saved(strategy)),
        )
    console.print(shown)
    console.print(
        "time, energy: at each strategy's fastest, against sequential execution at the highest clock; iso-time: energy "
        "where it takes Perseus' least time; iso-energy: time where it takes Perseus' least energy. Kareus on the paper's "
        "testbed (Tables 3 and 4): up to -14.9% and -22.1%, then -28.3% and -27.5%."
    )
