"""`flyball schedule-plot`: a pipeline's plan as a picture, stages by time, coloured by clock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flyball_cli.terminal.endings import refuse
from flyball_cli.terminal.files import check_picture, read_json


def register(root: typer.Typer) -> None:
    root.command("schedule-plot")(schedule_plot)


def schedule_plot(
    frontiers: Annotated[
        list[Path], typer.Argument(exists=True, dir_okay=False, help="JSON that `flyball frontier --output` wrote.")
    ],
    output: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("schedule.png"),
    flat_out: Annotated[
        bool, typer.Option(help="Draw the first one's run at the highest clocks above, to compare with.")
    ] = True,
    critical_path: Annotated[bool, typer.Option(help="Trace the critical path.")] = True,
) -> None:
    """Draw what each GPU computes when, and at which clock; several files one above the other, on one scale of time.

    It draws what `flyball frontier` wrote:

    \b
      flyball frontier --profile stages.csv --microbatches 6 \\
        --blocking-power 83.64 --output f.json
      flyball schedule-plot f.json --output f.png
    """
    from flyball_studies.pipeline.schedule_figure import schedule_png, titled_panel

    check_picture("--output", output)
    panels: list[tuple[str, dict[str, Any]]] = []
    for path in frontiers:
        try:
            document = read_json(path)
            if "points" in document and "timeline" not in document:  # of groups, or of Kareus
                raise ValueError("it has points, and no schedule that could be drawn")
            _check_stages(document["timeline"], document["schedule"])
            _check_stages(document["flat_out"]["timeline"], document["flat_out"]["schedule"])
            if flat_out and not panels:
                panels.append(titled_panel("highest clocks", document["flat_out"], None))
            panels.append(titled_panel(document["planner"], document, document["flat_out"]))
        except (KeyError, TypeError, ValueError) as error:
            refuse(f"{path}: not what `flyball frontier` writes: {_what_is_missing(error)}", error)
    try:
        picture = schedule_png(panels, critical_path=critical_path)
    except (KeyError, TypeError, ValueError) as error:
        refuse(
            f"{', '.join(map(str, frontiers))}: not what `flyball frontier` writes: {_what_is_missing(error)}", error
        )
    output.write_bytes(picture)
    typer.echo(f"wrote {output}")


def _check_stages(timeline: Any, schedule: Any) -> None:
    """Raise ValueError unless each stage has as many times as operations, and some stage has any."""
    for name, rows in (("schedule", schedule), ("timeline", timeline)):
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
            raise ValueError(f"{name!r} must be a list with a list for each stage")
    if len(schedule) != len(timeline):
        raise ValueError(f"{len(schedule)} stages in 'schedule', {len(timeline)} in 'timeline'")
    for stage, (operations, times) in enumerate(zip(schedule, timeline, strict=True)):
        if len(operations) != len(times):
            raise ValueError(
                f"stage {stage} has {len(operations)} operations in 'schedule', {len(times)} in 'timeline'"
            )
    if not any(timeline):
        raise ValueError("its plan has no operations")


def _what_is_missing(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
