"""`flyball frontier`: the time-energy frontier of a pipeline, from a profile of its stages."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from flyball_planner.frontier import Frontier
    from flyball_planner.pipeline import ComputationGraph, PipelinePlan, PipelineProfile


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
    points: Annotated[int, typer.Option(min=2, help="How many points, from the fastest time to T*.")] = 200,
    output: Annotated[Path | None, typer.Option(help="Where the JSON goes; without it, to standard output.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the frontier into this PNG.")] = None,
    at: Annotated[
        float | None, typer.Option(help="The iteration time in seconds to plan for; without it, the fastest.")
    ] = None,
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

        flyball frontier --profile stages.csv --microbatches 96 --blocking-power 83.64 --output f.json --plot f.png
    """
    from flyball_planner.pipeline import PipelineProfile

    replicas = data_parallel * tensor_parallel
    try:
        measured = PipelineProfile.from_csv(profile.read_text())
    except (ValueError, OSError) as error:
        _refuse(f"{profile}: {error}", error)
    try:
        if planner is PlannerName.PERSEUS:
            graph = _graph(measured, schedule, microbatches, chunks_per_gpu)
            document = perseus_document(graph, blocking_power, points, at, replicas)
        else:
            if schedule != "1f1b":
                raise ValueError(f"EnvPipe plans 1f1b, not {schedule}")
            if at is not None:
                raise ValueError("EnvPipe plans for the pipeline's own speed: --at is for perseus")
            if microbatches is None:
                raise ValueError("--microbatches is needed: how many an iteration of one pipeline has")
            document = envpipe_document(measured, microbatches, blocking_power, planner, activation_slots, replicas)
    except (ValueError, OSError) as error:
        _refuse(str(error), error)
    text = json.dumps(document, allow_nan=False)
    if output is None:
        typer.echo(text)
    else:
        output.write_text(text + "\n")
        typer.echo(summary(document))
    if plot is not None:
        plot.write_bytes(drawn(document, _title(profile, schedule, microbatches)))


def _title(profile: Path, schedule: str, microbatches: int | None) -> str:
    if microbatches is None:
        return f"{Path(schedule).stem}, {profile.stem}"
    return f"{profile.stem}, {schedule}, {microbatches} microbatch{'es' if microbatches > 1 else ''}"


def _refuse(message: str, cause: Exception) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(2) from cause


def _graph(profile: PipelineProfile, schedule: str, microbatches: int | None, chunks_per_gpu: int) -> ComputationGraph:
    from flyball_planner.pipeline import Schedule, graph_from_json, pipeline_graph

    if schedule.endswith(".json"):
        try:
            document = json.loads(Path(schedule).read_text())
            if not isinstance(document, dict):
                raise ValueError('wanted an object with "operations" and "dependencies"')
            return graph_from_json(document, profile)
        except ValueError as error:
            raise ValueError(f"{schedule}: {error}") from error
    if schedule not in list(Schedule):
        raise ValueError(f"schedule {schedule!r} is none of {', '.join(Schedule)}, and no .json file")
    if microbatches is None:
        raise ValueError("--microbatches is needed: how many an iteration of one pipeline has")
    return pipeline_graph(profile, Schedule(schedule), microbatches, chunks_per_gpu=chunks_per_gpu)


def perseus_document(
    graph: ComputationGraph, blocking_power: float, points: int, at: float | None = None, replicas: int = 1
) -> dict[str, Any]:
    """What the command writes for Perseus: the frontier, the run at the highest clocks, and the plan at `at` seconds."""
    from flyball_planner.pipeline import PerseusPlanner

    planner = PerseusPlanner(graph, blocking_power, replicas=replicas)
    result = planner.frontier(points)
    point = result.fastest if at is None else planner.plan(at)
    document = _document(PlannerName.PERSEUS, result, graph, blocking_power, replicas)
    document["at"] = {
        "time": point.time_seconds,
        "energy": point.energy_joules,
        "realised_time": point.realised_time_seconds,
        "realised_energy": point.realised_energy_joules,
    }
    return document | _plan(graph, point.plan, blocking_power)


def envpipe_document(
    profile: PipelineProfile,
    microbatches: int,
    blocking_power: float,
    planner: PlannerName,
    activation_slots: str | None = None,
    replicas: int = 1,
) -> dict[str, Any]:
    """The same for EnvPipe, whose frontier is one point."""
    from flyball_planner.pipeline import Reconfiguration, envpipe

    slots = [int(each) for each in activation_slots.split(",")] if activation_slots else None
    reconfiguration = Reconfiguration(planner.removeprefix("envpipe-"))
    result = envpipe(
        profile,
        microbatches,
        blocking_power,
        reconfiguration=reconfiguration,
        activation_slots=slots,
        replicas=replicas,
    )
    document = _document(planner, result.frontier, result.graph, blocking_power, replicas)
    document["at"] = document["points"][0]
    return document | _plan(result.graph, result.frontier.fastest.plan, blocking_power)


def _document(
    planner: PlannerName, result: Frontier[PipelinePlan], graph: ComputationGraph, blocking_power: float, replicas: int
) -> dict[str, Any]:
    """The frontier, and what it is to be measured against: every operation at its highest clock."""
    from flyball_planner.pipeline import written_out

    highest = [max(operation.points, key=lambda point: point.clock_megahertz or 0) for operation in graph.operations]
    flat_out = written_out(graph, highest, blocking_power)
    flat_out["energy"] *= replicas
    head = {"planner": str(planner), "gpus": graph.gpus * replicas, "blocking_power": blocking_power}
    return head | result.to_json() | {"flat_out": flat_out}


def _plan(graph: ComputationGraph, plan: PipelinePlan, blocking_power: float) -> dict[str, Any]:
    from flyball_planner.pipeline import written_out

    written = written_out(graph, plan.chosen, blocking_power)
    return {key: written[key] for key in ("schedule", "timeline", "critical_path")}


def summary(document: dict[str, Any]) -> str:
    """One sentence each on the frontier and on the plan that was asked for."""
    at, flat_out, count = document["at"], document["flat_out"], len(document["points"])
    saved = 1 - at["realised_energy"] / flat_out["energy"]
    slower = at["realised_time"] / flat_out["time"] - 1
    return (
        f"{count} point{'s' if count > 1 else ''} from {document['t_min']:.4f} s to {document['t_star']:.4f} s\n"
        f"planned for {at['time']:.4f} s: {at['realised_energy']:.1f} J in {at['realised_time']:.4f} s, "
        f"{saved:.2%} less energy and {slower:.2%} more time than at the highest clocks "
        f"({flat_out['energy']:.1f} J in {flat_out['time']:.4f} s)"
    )


def drawn(document: dict[str, Any], title: str) -> bytes:
    """A PNG of the frontier: planned and realised energy over time, and the run at the highest clocks."""
    import io

    import matplotlib

    matplotlib.use("Agg")  # no display is needed, nor looked for
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8.4, 4.8), layout="constrained")
    draw_frontier(axis, document)
    axis.set_title(title, fontsize=11)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=130, format="png")
    plt.close(figure)
    return buffer.getvalue()


def draw_frontier(axis: Any, document: dict[str, Any]) -> None:
    """Draw one document of this command into matplotlib axes."""
    points, flat_out, at = document["points"], document["flat_out"], document["at"]
    unit, name = (1e3, "kJ") if flat_out["energy"] >= 1e4 else (1.0, "J")
    times = [point["time"] for point in points]
    energies = [point["energy"] / unit for point in points]
    cheapest = min(range(len(points)), key=energies.__getitem__)
    axis.plot(times[: cheapest + 1], energies[: cheapest + 1], color="#08306b", lw=1.2, label="planned", zorder=5)
    if cheapest + 1 < len(points):
        axis.plot(
            times[cheapest:],
            energies[cheapest:],
            color="#08306b",
            lw=1.2,
            ls=(0, (5, 3)),
            zorder=5,
            label="planned, worth its time behind a straggler only",
        )
    axis.scatter(
        [point["realised_time"] for point in points],
        [point["realised_energy"] / unit for point in points],
        s=15,
        color="#f4a582",
        zorder=4,
        linewidths=0,
        label="realised on the clocks there are",
    )
    axis.scatter([flat_out["time"]], [flat_out["energy"] / unit], s=46, color="black", zorder=5, label="highest clocks")
    axis.scatter(
        [at["realised_time"]],
        [at["realised_energy"] / unit],
        s=60,
        facecolors="none",
        edgecolors="#1b7837",
        linewidths=1.8,
        zorder=6,
        label="the plan written out",
    )
    saved = 1 - at["realised_energy"] / flat_out["energy"]
    axis.annotate(
        f"{-saved:+.1%} energy, {at['realised_time'] / flat_out['time'] - 1:+.1%} time",
        (at["realised_time"], at["realised_energy"] / unit),
        xytext=(14, 2),
        textcoords="offset points",
        fontsize=9,
        color="#1b7837",
        va="bottom",
    )
    axis.set_xlabel("iteration time (s)")
    axis.set_ylabel(f"energy of an iteration, all GPUs ({name})")
    axis.grid(alpha=0.3)
    axis.set_axisbelow(True)
    axis.legend(fontsize=9, frameon=False, loc="upper right")
