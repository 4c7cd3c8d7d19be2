"""`flyball schedule-plot`: a pipeline's plan as a picture, stages by time, coloured by clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from flyball_cli.terminal.endings import refuse
from flyball_cli.terminal.files import check_picture, read_text


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
            document = json.loads(read_text(path))
            if not any(document["timeline"]):
                raise ValueError("its plan has no operations")
            if flat_out and not panels:
                panels.append(titled_panel("highest clocks", document["flat_out"], None))
            panels.append(titled_panel(document["planner"], document, document["flat_out"]))
        except (KeyError, TypeError, ValueError) as error:
            refuse(f"{path}: not what `flyball frontier` writes: {_what_is_missing(error)}", error)
    try:
        picture = schedule_png(panels, critical_path)
    except (KeyError, TypeError, ValueError) as error:
        refuse(
            f"{', '.join(map(str, frontiers))}: not what `flyball frontier` writes: {_what_is_missing(error)}", error
        )
    output.write_bytes(picture)
    typer.echo(f"wrote {output}")


def _what_is_missing(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
