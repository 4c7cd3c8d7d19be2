"""`flyball frontier-groups`: the frontier of pipelines that are not alike and wait for each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flyball_cli.research.frontier import ANNOUNCED_FROM_SECONDS, MOST_POINTS, progress_bar, write_document
from flyball_cli.terminal.endings import refuse
from flyball_cli.terminal.files import check_output_file, read_json, read_text

if TYPE_CHECKING:
    from flyball_frontiers.pipeline import Group, PipelineProfile


def register(root: typer.Typer) -> None:
    root.command("frontier-groups")(frontier_groups)


def frontier_groups(
    layout: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="JSON that lists the groups.")],
    points: Annotated[
        int,
        typer.Option(
            min=2, max=MOST_POINTS, help="How many points, from the fastest time to that of least energy (T*)."
        ),
    ] = 60,
    output: Annotated[Path | None, typer.Option(help="Where the JSON goes; without it, to standard output.")] = None,
    at: Annotated[
        float | None, typer.Option(help="The iteration time in seconds to plan for; without it, the fastest.")
    ] = None,
    straggler: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP=DEGREE", help="A group that takes so many times as long, as a40=1.2; repeatable."),
    ] = None,
) -> None:
    """Find the energy that data-parallel groups of different pipelines need at each iteration time, and all their clocks.

    Groups may have other GPUs, stages, microbatches and schedules; gradients are exchanged when the last is done, so that
    each group is planned for the iteration that all of them share. Profiles are found beside the layout:

    \b
      {"groups": [{"name": "a100", "profile": "a100.csv", "pipelines": 3,
                   "microbatches": 24, "blocking_power": 83.64},
                  {"name": "a40", "profile": "a40.csv",
                   "microbatches": 12, "blocking_power": 70.38}]}

    A group may also say schedule, chunks_per_gpu and tensor_parallel, as the options of `flyball frontier`. A straggler
    with time to spare gets faster clocks for it; the iteration lasts longer only where these do not suffice.

    \b
      flyball frontier-groups groups.json --output plan.json --straggler a40=1.2
    """
    from flyball_frontiers.pipeline import PipelineProfile
    from flyball_frontiers.pipeline.document import groups_document

    check_output_file("--output", output)

    def profile_of(name: str) -> PipelineProfile:
        try:
            return PipelineProfile.from_csv(read_text(layout.parent / name))
        except OSError as error:
            raise ValueError(f"profile {name}: {error.strerror or error}") from error
        except ValueError as error:
            raise ValueError(f"profile {name}: {error}") from error

    try:
        if at is not None and not (math.isfinite(at) and at > 0):
            raise ValueError(f"--at {at}: wanted an iteration time in seconds, above 0")
        degrees = _degrees(straggler or [])
        groups = _groups(layout, profile_of)
        if unknown := sorted(set(degrees) - set(groups)):
            raise ValueError(f"--straggler {unknown[0]}: there is no such group, only {', '.join(groups)}")
        seconds = sum(group.size.seconds for group in groups.values())
        if seconds > ANNOUNCED_FROM_SECONDS:
            typer.echo(f"{len(groups)} groups: about {seconds:,.0f} s of one core for 200 points", err=True)
        with progress_bar(points) as progress:
            document = groups_document(groups, points, at, degrees, progress)
    except (ValueError, OSError) as error:
        refuse(str(error), error)
    write_document(document, output, _summary)


def _groups(layout: Path, profile_of: Callable[[str], PipelineProfile]) -> dict[str, Group]:
    """The groups that a layout lists. Raises ValueError that names the file."""
    from flyball_frontiers.pipeline import groups_from_json

    try:
        return groups_from_json(read_json(layout), profile_of)
    except ValueError as error:
        raise ValueError(f"{layout}: {error}") from error


def _degrees(written: list[str]) -> dict[str, float]:
    degrees: dict[str, float] = {}
    for each in written:
        name, _, number = each.rpartition("=")
        try:
            degrees[name] = float(number)
        except ValueError as error:
            raise ValueError(f"--straggler {each}: wanted GROUP=DEGREE, as a40=1.2") from error
        if not name or not 1 <= degrees[name] < math.inf:
            raise ValueError(f"--straggler {each}: wanted GROUP=DEGREE, a name and a number from 1, as a40=1.2")
    return degrees


def _summary(document: dict[str, Any]) -> str:
    """What the groups come to together, and what each runs."""
    from flyball_frontiers.frontier import rounded_up

    fastest, flat_out, at = document["points"][0]["realised_energy"], document["flat_out"], document["at"]
    alone = document["each_at_its_fastest"]["energy"]
    lines = [
        f"{len(document['points'])} points from {rounded_up(document['t_min'])} s to {document['t_star']:.4f} s; at the "
        f"fastest {fastest:.1f} J, {1 - fastest / alone:.2%} less than with each group planned for its own fastest "
        f"({alone:.1f} J) and {1 - fastest / flat_out['energy']:.2%} less than at the highest clocks "
        f"({flat_out['energy']:.1f} J in {flat_out['time']:.4f} s)",
        f"iterations of {at['iteration']:.4f} s:",
    ]
    for name, point in at["groups"].items():
        slow = at["stragglers"].get(name, 1.0)
        note = f", {slow:g} times as long as measured" if slow > 1 else ""
        lines.append(f"  {name}: planned for {point['time']:.4f} s{note}")
    return "\n".join(lines)
