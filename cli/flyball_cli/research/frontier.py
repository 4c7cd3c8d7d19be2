"""`flyball frontier`: the time-energy frontier of a pipeline, from a profile of its stages."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyball_cli.terminal.endings import refuse
from flyball_cli.terminal.files import check_output_file, check_picture, read_json, read_text

if TYPE_CHECKING:
    from flyball_frontiers.pipeline import ComputationGraph, PipelineProfile


# More points than clocks could tell apart: what was meant is another number.
MOST_POINTS = 10_000
ANNOUNCED_FROM_SECONDS = 20.0
"""Work that is estimated to take longer is announced."""


class PlannerName(StrEnum):
    PERSEUS = "perseus"
    ENVPIPE_BALANCED = "envpipe-balanced"
    ENVPIPE_GREEDY = "envpipe-greedy"


def register(root: typer.Typer) -> None:
    root.command("frontier")(frontier)


def frontier(
    profile: Annotated[
        Path,
        typer.Option(exists=True, dir_okay=False, help="CSV: stage,instruction,frequency,time,energy (MHz, s, J)."),
    ],
    schedule: Annotated[
        str,
        typer.Option(help="1f1b, gpipe, interleaved-1f1b, early-recompute-1f1b, or a .json file with any DAG."),
    ] = "1f1b",
    microbatches: Annotated[
        int | None, typer.Option(min=1, help="Microbatches in an iteration of one pipeline; a .json file has its own.")
    ] = None,
    blocking_power: Annotated[
        float, typer.Option(min=0.0, help="Watts that a GPU draws while it waits for others.")
    ] = 0.0,
    points: Annotated[
        int,
        typer.Option(
            min=2, max=MOST_POINTS, help="How many points, from the fastest time to that of least energy (T*)."
        ),
    ] = 200,
    output: Annotated[Path | None, typer.Option(help="Where the JSON goes; without it, to standard output.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the frontier into this PNG.")] = None,
    at: Annotated[
        float | None, typer.Option(help="The iteration time in seconds to plan for; without it, the fastest.")
    ] = None,
    clock_lag: Annotated[
        float, typer.Option(min=0.0, max=10.0, help="Seconds until a changed clock is there (10-20 ms on real boards).")
    ] = 0.0,
    planner: Annotated[
        PlannerName, typer.Option(help="EnvPipe plans one point, for 1F1B, and is here to be compared with.")
    ] = PlannerName.PERSEUS,
    chunks_per_gpu: Annotated[int, typer.Option(min=1, help="Parts of the model on each GPU, if interleaved.")] = 1,
    data_parallel: Annotated[int, typer.Option(min=1, help="Pipelines that run in parallel.")] = 1,
    tensor_parallel: Annotated[int, typer.Option(min=1, help="GPUs that share each stage.")] = 1,
    activation_slots: Annotated[
        str | None, typer.Option(help="For EnvPipe: microbatches each stage can hold activations of, as 8,8,6,4.")
    ] = None,
) -> None:
    """Find the energy that a pipeline needs at each iteration time, and the clocks that reach it.

    The JSON has t_min, t_star, points (time, energy, realised_time, realised_energy), and the schedule at --at: for each
    stage a list of (instruction, microbatch, MHz) in the order of execution. Energy counts all GPUs of the iteration,
    blocking included.

    \b
      flyball frontier --profile stages.csv --microbatches 96 \\
        --blocking-power 83.64 --output f.json --plot f.png
    """
    from flyball_frontiers.pipeline import PipelineProfile, ProfileError, Reconfiguration, Schedule, check_size
    from flyball_frontiers.pipeline.blocking import checked_blocking_watts
    from flyball_frontiers.pipeline.document import envpipe_document, perseus_document

    check_output_file("--output", output)
    check_picture("--plot", plot)
    replicas = data_parallel * tensor_parallel
    try:
        measured = PipelineProfile.from_csv(read_text(profile))
    except (ValueError, OSError) as error:
        refuse(f"{profile}: {error}", error)
    try:
        if at is not None and not (math.isfinite(at) and at > 0):
            raise ValueError(f"--at {at}: wanted an iteration time in seconds, above 0")
        checked_blocking_watts("--blocking-power", blocking_power)
        if planner is PlannerName.PERSEUS:
            if activation_slots is not None:
                raise ValueError("--activation-slots is for EnvPipe: --planner envpipe-balanced or envpipe-greedy")
            graph = _graph(measured, schedule, microbatches, chunks_per_gpu)
            with progress_bar(points) as progress:
                document = perseus_document(graph, blocking_power, points, at, replicas, progress, clock_lag)
        else:
            if clock_lag:
                raise ValueError("EnvPipe plans for clocks that change at once: --clock-lag is for perseus")
            if schedule != "1f1b":
                raise ValueError(f"EnvPipe plans 1f1b, not {schedule}")
            if at is not None:
                raise ValueError("EnvPipe plans for the pipeline's own speed: --at is for perseus")
            if microbatches is None:
                raise ValueError("--microbatches is needed: how many an iteration of one pipeline has")
            reconfiguration = Reconfiguration(planner.removeprefix("envpipe-"))
            slots = _slots(activation_slots, measured.stages)
            check_size(measured, Schedule.ONE_F_ONE_B, microbatches)
            document = envpipe_document(measured, microbatches, blocking_power, reconfiguration, slots, replicas)
    except ProfileError as error:
        refuse(f"{profile}: {error}", error)
    except (ValueError, OSError) as error:
        refuse(str(error), error)
    write_document(document, output, summary)
    if plot is not None:
        from flyball_studies.pipeline.frontier_figure import frontier_png

        plot.write_bytes(frontier_png(document, _title(profile, schedule, microbatches)))


def write_document(document: dict[str, Any], output: Path | None, summarised: Callable[[dict[str, Any]], str]) -> None:
    """Print the document, or write it to a file and print its summary."""
    text = json.dumps(document, allow_nan=False)
    if output is None:
        typer.echo(text)
    else:
        output.write_text(text + "\n")
        typer.echo(summarised(document))


def _slots(text: str | None, stages: int) -> list[int] | None:
    if text is None:
        return None
    entries = text.split(",")
    if len(entries) != stages or not all(entry.strip().isdigit() for entry in entries):
        raise ValueError(
            f"--activation-slots {text}: wanted a whole number for each of the {stages} stages, as 8,8,6,4"
        )
    return [int(entry) for entry in entries]


def _title(profile: Path, schedule: str, microbatches: int | None) -> str:
    if microbatches is None:
        return f"{Path(schedule).stem}, {profile.stem}"
    return f"{profile.stem}, {schedule}, {microbatches} microbatch{'es' if microbatches > 1 else ''}"


def _graph(profile: PipelineProfile, schedule: str, microbatches: int | None, chunks_per_gpu: int) -> ComputationGraph:
    from flyball_frontiers.pipeline import PlanSize, Schedule, check_size, graph_from_json, pipeline_graph
    from flyball_frontiers.pipeline.size import MOST_PLANNED

    if schedule.endswith(".json"):
        try:
            document = read_json(Path(schedule))
            if not isinstance(document, dict):
                raise ValueError('wanted an object with "operations" and "dependencies"')
            listed = document.get("operations")
            count = len(listed) if isinstance(listed, list) else 0
            if not PlanSize(count, count).fits:
                raise ValueError(f"{count:,} operations are too many to plan: up to {MOST_PLANNED:,} fit")
            return graph_from_json(document, profile)
        except ValueError as error:
            raise ValueError(f"{schedule}: {error}") from error
    if schedule not in list(Schedule):
        raise ValueError(f"schedule {schedule!r} is none of {', '.join(Schedule)}, and no .json file")
    if microbatches is None:
        raise ValueError("--microbatches is needed: how many an iteration of one pipeline has")
    size = check_size(profile, Schedule(schedule), microbatches, chunks_per_gpu=chunks_per_gpu)
    if size.seconds > ANNOUNCED_FROM_SECONDS:
        typer.echo(str(size), err=True)
    return pipeline_graph(profile, Schedule(schedule), microbatches, chunks_per_gpu=chunks_per_gpu)


@contextmanager
def progress_bar(points: int) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error while the points are solved, where somebody looks."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("points", total=points)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def summary(document: dict[str, Any]) -> str:
    """One sentence each on the frontier and on the plan that was asked for."""
    from flyball_frontiers.frontier import rounded_up

    at, flat_out, count = document["at"], document["flat_out"], len(document["points"])
    saved = 1 - at["realised_energy"] / flat_out["energy"]
    slower = at["realised_time"] / flat_out["time"] - 1
    return (
        f"{count} point{'s' if count > 1 else ''} from {rounded_up(document['t_min'])} s to {document['t_star']:.4f} s\n"
        f"planned for {at['time']:.4f} s: {at['realised_energy']:.1f} J in {at['realised_time']:.4f} s, "
        f"{abs(saved):.2%} {'less' if saved >= 0 else 'more'} energy and {abs(slower):.2%} "
        f"{'more' if slower >= 0 else 'less'} time than at the highest clocks "
        f"({flat_out['energy']:.1f} J in {flat_out['time']:.4f} s)" + _summary_of_lag(document.get("with_clock_lag"))
    )


def _summary_of_lag(run: dict[str, Any] | None) -> str:
    if run is None:
        return ""
    return (
        f"\nwith clocks {1000 * run['lag']:g} ms late: {run['energy']:.1f} J in {run['time']:.4f} s, up to "
        f"{max(run['clock_changes'])} changes of clock on a GPU"
    )
