"""The live view in the terminal: power under its cap, who has which GPU, and why each job has what it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from flyball_testbed.demo.watch import CapSeen, JobSeen, Shares

# Distinct on dark and light grounds, neighbours far apart; jobs take them in turn (also in the picture).
PALETTE = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#6b8fd6",
    "#d37295", "#86bc5a", "#a0789b", "#499894", "#d4a6c8", "#f1ce63",
)  # fmt: skip
DRAW, LIMITS, CAP = "#59a14f", "#9db8d6", "#e15759"
BLOCKS = " ▁▂▃▄▅▆▇█"
PARTIAL = " ▏▎▍▌▋▊▉█"
CHART_ROWS = 8
GRID_COLUMNS = 16
# Narrower terminals show fewer columns of the jobs.
WIDE = 105


@dataclass(frozen=True, slots=True)
class Moment:
    """Power at one moment of the run, in watts; `cap` is what its owner asked for."""

    seconds: float
    draw: float
    limits: float
    cap: float | None


@dataclass(slots=True)
class View:
    """All that the screen shows. `seconds` are real; `compression` turns them, and joules, into simulated ones."""

    seconds: float
    compression: float
    headline: str
    max_watts: float
    gpus_per_node: int
    nodes: Sequence[str]
    cap: CapSeen | None
    history: Sequence[Moment]
    over_watts: float
    jobs: Sequence[JobSeen]
    held: Mapping[str, Shares]
    colours: Mapping[str, str]
    to_come: int = 0
    resizes: int = 0
    migrations: int = 0
    lost: Sequence[str] = field(default_factory=list)


def colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each job, in order."""
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(names)}


def simulated_time(seconds: float) -> str:
    """`2h46m`, `9m`, as people write a duration."""
    minutes = round(seconds / 60)
    return f"{minutes // 60}h{minutes % 60:02d}m" if minutes >= 60 else f"{minutes}m"


def energy(joules: float) -> str:
    """`850 kJ`, `1.5 MJ`, `2.3 GJ`."""
    for unit, size in (("GJ", 1e9), ("MJ", 1e6)):
        if joules >= size:
            return f"{joules / size:.{1 if joules < 10 * size else 0}f} {unit}"
    return f"{joules / 1e3:.0f} kJ"


def bar(share: float, width: int) -> str:
    """A horizontal bar, filled to `share` (0..1) in eighths of a character."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (PARTIAL[part] if part else "")).ljust(width)


def render(view: View, width: int, height: int) -> RenderableType:
    """The whole screen for a terminal of that size."""
    top = Table.grid(expand=True, padding=(0, 1))
    grid_width = max(24, min(GRID_COLUMNS, len(view.nodes)) * 2 + 4)
    top.add_column(ratio=1)
    top.add_column(width=grid_width)
    top.add_row(_power(view, width - grid_width - 8), _gpus(view))
    rows = max(1, height - CHART_ROWS - 3 - 5)
    return Group(_heading(view), top, _jobs(view, rows, width), _footer(view))


def _heading(view: View) -> RenderableType:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(" flyball demo ", style="bold white on #4e79a7")
    minutes, seconds = divmod(int(view.seconds), 60)
    text.append(f"  {minutes}:{seconds:02d}", style="bold")
    text.append(
        f"  =  {simulated_time(view.seconds * view.compression)} simulated (×{view.compression:g})  ", style="dim"
    )
    text.append(view.headline)
    return text


def _power(view: View, width: int) -> RenderableType:
    now = view.history[-1] if view.history else Moment(0, 0, 0, None)
    line = Text(no_wrap=True, overflow="crop")
    line.append(f"draw {now.draw / 1000:5.1f} kW", style=f"bold {DRAW}")
    line.append(f"   limits {now.limits / 1000:5.1f} kW", style=f"bold {LIMITS}")
    if now.cap is not None:
        line.append(f"   cap {now.cap / 1000:5.1f} kW ", style=f"bold {CAP}")
        enforced = view.cap is not None and view.cap.enforced
        line.append(
            " enforced " if enforced else " not enforced ",
            style="black on #59a14f" if enforced else "black on #edc948",
        )
    line.append(f"   of {view.max_watts / 1000:.1f} kW", style="dim")
    title = "power: [b]█[/b] draw  [b]▒[/b] limits  [b]━[/b] cap"
    return Panel(Group(line, *_chart(view, max(20, width))), title=title, title_align="left", border_style="dim")


def _chart(view: View, width: int) -> list[Text]:
    """Draw, limits and cap over time; each column is the worst moment of its share of the time."""
    columns: list[list[Moment]] = [[] for _ in range(width)]
    begin = view.history[0].seconds if view.history else 0.0
    span = max(60.0, (view.history[-1].seconds - begin) if view.history else 0.0)
    for moment in view.history:
        columns[min(width - 1, int((moment.seconds - begin) / span * width))].append(moment)
    top = max([view.max_watts * 0.75, *(moment.limits for moment in view.history)])
    lines = [Text(no_wrap=True) for _ in range(CHART_ROWS)]
    last: list[Moment] = []
    now = min(width - 1, int((view.history[-1].seconds - begin) / span * width)) if view.history else -1
    for index, moments in enumerate(columns):
        column = last = moments or (last if index <= now else [])
        draw = max((moment.draw for moment in column), default=0.0) / top * CHART_ROWS
        limits = max((moment.limits for moment in column), default=0.0) / top * CHART_ROWS
        caps = [moment.cap for moment in column if moment.cap is not None]
        cap = min(caps) / top * CHART_ROWS if caps else -1.0
        for row, line in enumerate(reversed(lines)):
            if row <= cap < row + 1:
                # Three heights within the row; over a full one the line needs the colour behind it.
                line.append("▁━▔"[int((cap - row) * 3)], style=f"{CAP} on {DRAW}" if draw >= row + 1 else CAP)
            elif draw >= row + 1:
                line.append("█", style=DRAW)
            elif draw > row:
                line.append(BLOCKS[max(1, int((draw - row) * 8))], style=DRAW)
            elif limits > row:
                line.append("▒" if limits >= row + 0.5 else " ", style=LIMITS)
            else:
                line.append(" ")
    return lines


def _gpus(view: View) -> RenderableType:
    """A column for each node, a square for each GPU, in the colour of the job that has it."""
    by_node: dict[str, list[str]] = {node: [] for node in view.nodes}
    for job, shares in view.held.items():
        for node, gpus in shares:
            if node in by_node:
                by_node[node] += [job] * gpus
    for jobs in by_node.values():
        jobs.sort()
    lines = []
    for first in range(0, min(len(view.nodes), GRID_COLUMNS * 2), GRID_COLUMNS):
        for index in range(view.gpus_per_node):
            line = Text()
            for node in view.nodes[first : first + GRID_COLUMNS]:
                jobs = by_node[node]
                if index < len(jobs):
                    line.append("■ ", style=view.colours.get(jobs[index], "white"))
                else:
                    line.append("· ", style="dim")
            lines.append(line)
    lines.append(Text("a column is a node", style="dim"))
    used = sum(len(jobs) for jobs in by_node.values())
    title = f"GPUs in use: {used}/{len(view.nodes) * view.gpus_per_node}"
    return Panel(Group(*lines), title=title, title_align="left", border_style="dim")


def _order(job: JobSeen) -> tuple[int, int]:
    """Running jobs first, the largest on top; then those that wait; then those that are done."""
    return (2 if job.outcome else 0 if job.gpus else 1, -job.gpus)


def _jobs(view: View, rows: int, width: int) -> RenderableType:
    table = Table(box=None, expand=True, padding=(0, 1), header_style="bold dim")
    wide = width >= WIDE
    headings = ["job", "GPUs", *(["of"] if wide else []), "MHz", *(["limit W"] if wide else []), "kW", "progress"]
    for heading in [*headings, *(["energy"] if wide else [])]:
        right = heading in ("GPUs", "MHz", "limit W", "kW", "energy")
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    table.add_column("why", ratio=1, no_wrap=True, overflow="ellipsis")
    live = sorted((job for job in view.jobs if not job.outcome), key=_order)
    for job in live[:rows]:
        colour = view.colours.get(job.name, "white")
        running = job.gpus > 0
        sizes = f"{job.min_gpus}-{job.max_gpus}" if job.min_gpus != job.max_gpus else f"{job.min_gpus}"
        limit = str(job.limit_watts) if running and job.limit_watts else ""
        # What it is about to get, while its pods come and go.
        size = str(job.gpus) if running else f"→{job.planned_gpus}" if job.planned_gpus else "–"
        cells: list[RenderableType] = [
            Text.assemble(("■ " if running else "□ ", colour), job.name),
            size,
            *([Text(sizes, style="dim")] if wide else []),
            str(job.clock_megahertz) if running and job.clock_megahertz else "",
            *([limit] if wide else []),
            f"{job.watts / 1000:.2f}" if running else "",
            Text.assemble((bar(job.progress, 10), colour), f" {job.progress:4.0%}"),
            *([energy(job.joules * view.compression) if job.joules else ""] if wide else []),
            Text(job.explanation or job.state, style="" if running else "dim"),
        ]
        table.add_row(*cells)
    hidden = len(live) - rows
    if hidden > 0:
        table.add_row(Text(f"… and {hidden} more", style="dim"))
    return table


def _footer(view: View) -> RenderableType:
    done = sum(job.outcome == "Succeeded" for job in view.jobs)
    failed = sum(job.outcome == "Failed" for job in view.jobs)
    running = sum(not job.outcome and job.gpus > 0 for job in view.jobs)
    waiting = len(view.jobs) - done - failed - running
    text = Text(" ", no_wrap=True, overflow="ellipsis")
    text.append(f"{running} running", style="bold")
    text.append(f", {waiting} waiting, {view.to_come} to come, {done} done")
    if failed:
        text.append(f", {failed} failed", style=f"bold {CAP}")
    text.append(f"   {view.resizes} resizes, {view.migrations} migrations   ")
    over = f"worst over cap: {view.over_watts:.0f} W"
    text.append(over, style="bold #59a14f" if view.over_watts < 1 else f"bold white on {CAP}")
    return text
