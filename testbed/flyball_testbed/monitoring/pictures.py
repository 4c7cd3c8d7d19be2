"""The dashboards as pictures: their own queries, put to a Prometheus that watched a run, drawn by matplotlib.

There is no Grafana in it: what is drawn is the list of panels with its titles, questions, units and thresholds, so that who
reads the documents sees what a panel says of real data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import EngFormatter, Formatter, FuncFormatter, MaxNLocator

from flyball_testbed.monitoring.panel import COLUMNS, Choice, Colour, Dashboard, Panel, Query, Row, Shape, Unit, lines
from flyball_testbed.monitoring.prometheus import Prometheus, Series

INCHES_WIDE = 15.0
HEADING_INCHES, NUMBER_INCHES, PANEL_INCHES, LINE_OF_TABLE_INCHES = 0.42, 1.15, 3.2, 0.27
STEPS = 240
MOST_SHOWN = 12
INK, FAINT, GRID = "#24292f", "#6b7280", "#e5e7eb"
COLOURS = {Colour.GOOD: "#2f9e5b", Colour.LOOK: "#e08a1e", Colour.ACT: "#d1373b"}
STYLE: dict[Any, Any] = {
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9ca3af",
    "xtick.color": FAINT,
    "ytick.color": FAINT,
}
CYCLE = mpl.colormaps["tab20"].colors[::2] + mpl.colormaps["tab20"].colors[1::2]  # type: ignore[attr-defined]
_ENGINEERING = {
    Unit.WATTS: "W", Unit.JOULES: "J", Unit.SECONDS: "s", Unit.HERTZ: "Hz", Unit.BYTES: "B", Unit.KILOWATT_HOURS: "kWh",
    Unit.PER_SECOND: "/s", Unit.KILOGRAMS: "kg",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlotRange:
    """What is looked at: a Prometheus, from `start` to `end` (seconds since 1970); rates over `rate_interval`."""

    prometheus: Prometheus
    start: float
    end: float
    rate_interval: str

    @property
    def span(self) -> str:
        return f"{math.ceil(self.end - self.start)}s"

    def bound(self, made: Dashboard, query: Query, chosen: dict[str, str]) -> str:
        return made.bound(query.expr, rate_interval=self.rate_interval, span=self.span, chosen=chosen)


def draw(made: Dashboard, view: PlotRange, path: Path) -> None:
    """One dashboard into a PNG. Raises PrometheusError where a query is refused."""
    with mpl.rc_context(STYLE):
        bands = [band for row in made.rows for band in _bands(made, row, view)]
        heights = [band.inches for band in bands]
        figure = Figure(figsize=(INCHES_WIDE, sum(heights) + 0.6), facecolor="white")
        FigureCanvasAgg(figure)
        total = sum(heights) + 0.6
        figure.text(0.012, 1 - 0.26 / total, made.title, fontsize=15, fontweight="bold", color=INK, va="center")
        figure.text(
            0.988,
            1 - 0.26 / total,
            made.description,
            fontsize=8.5,
            color=FAINT,
            va="center",
            ha="right",
        )
        top = 1 - 0.55 / total
        for band in bands:
            bottom = top - band.inches / total
            band.draw(figure, made, view, top, bottom)
            top = bottom
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=100)


@dataclass(frozen=True, slots=True)
class _Band:
    """What stands side by side: a heading, or panels with what is chosen for each."""

    inches: float
    heading: str = ""
    panels: tuple[tuple[Panel, dict[str, str]], ...] = ()

    def draw(self, figure: Figure, made: Dashboard, view: PlotRange, top: float, bottom: float) -> None:
        if self.heading:
            figure.text(
                0.012, (top + bottom) / 2, self.heading, fontsize=11, fontweight="bold", color=FAINT, va="center"
            )
            return
        inches, shape = figure.get_figheight(), self.panels[0][0].shape
        # Room for title and question above, and for the legend below.
        above = 0.06 if shape is Shape.NUMBER else 0.46
        below = 0.80 if shape in (Shape.LINES, Shape.STACKED) else 0.06
        grid = GridSpec(
            1, COLUMNS, figure=figure, left=0.012, right=0.988, wspace=0.0,
            top=top - above / inches, bottom=bottom + below / inches,
        )  # fmt: skip
        at = 0
        for panel, chosen in self.panels:
            cell = grid[0, at : at + panel.width]
            at += panel.width
            axes = figure.add_subplot(cell)
            position = axes.get_position()
            inset = 0.042 if panel.shape in (Shape.LINES, Shape.STACKED) else 0.004
            axes.set_position((position.x0 + inset, position.y0, position.width - inset - 0.008, position.height))
            {Shape.NUMBER: _draw_number, Shape.TABLE: _draw_table}.get(panel.shape, _draw_lines)(
                axes, made, panel, chosen, view
            )


def _bands(made: Dashboard, row: Row, view: PlotRange) -> list[_Band]:
    bands = [_Band(HEADING_INCHES, row.title)]
    for line in lines(row.panels):
        drawn = [(panel, chosen) for panel in line for chosen in _choices(made, panel, view)]
        # A repeated panel may need several lines.
        size = COLUMNS // line[0].width if line[0].repeated else len(drawn)
        bands += [_Band(_inches(made, some, view), panels=some) for some in batched(drawn, size)]
    return bands


def batched(
    panels: Sequence[tuple[Panel, dict[str, str]]], size: int
) -> Iterator[tuple[tuple[Panel, dict[str, str]], ...]]:
    """`panels` in parts of `size`."""
    for at in range(0, len(panels), max(1, size)):
        yield tuple(panels[at : at + size])


def _inches(made: Dashboard, line: Sequence[tuple[Panel, dict[str, str]]], view: PlotRange) -> float:
    shape = line[0][0].shape
    if shape is Shape.NUMBER:
        return NUMBER_INCHES
    if shape is Shape.TABLE:
        return 0.8 + LINE_OF_TABLE_INCHES * (1 + len(_table(made, line[0][0], view)))
    return PANEL_INCHES


def _choices(made: Dashboard, panel: Panel, view: PlotRange) -> list[dict[str, str]]:
    """What each drawing of a panel is chosen for: once for all, or once for each value of the variable that repeats it."""
    if not panel.repeated:
        return [{}]
    (variable,) = (one for one in made.variables if isinstance(one, Choice) and one.name == panel.repeated)
    found = view.prometheus.query(f"group by ({variable.name}) ({variable.metric})", view.end)
    return [{variable.name: sample.labels[variable.name]} for sample in sorted(found, key=lambda one: str(one.labels))]


def _title(axes: Axes, panel: Panel, chosen: dict[str, str]) -> None:
    title = panel.title
    for name, value in chosen.items():
        title = title.replace(f"${name}", value)
    # In points: a table's axes are many times as high as a chart's.
    above: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom"}
    axes.annotate(title, (0, 1), xytext=(0, 14), fontweight="bold", fontsize=10, color=INK, **above)
    axes.annotate(panel.question, (0, 1), xytext=(0, 4), fontsize=8, color=FAINT, style="italic", **above)


def _draw_number(axes: Axes, made: Dashboard, panel: Panel, chosen: dict[str, str], view: PlotRange) -> None:
    found = view.prometheus.query(view.bound(made, panel.queries[0], chosen), view.end)
    value = found[0].value if found else math.nan
    colour = colour_of(panel, value)
    axes.set_axis_off()
    axes.add_patch(
        mpl.patches.FancyBboxPatch(
            (0.0, 0.0), 1.0, 1.0, transform=axes.transAxes, boxstyle="round,pad=0,rounding_size=0.02", linewidth=0.8,
            facecolor=GRID if colour is None else COLOURS[colour], edgecolor="white", mutation_aspect=2,
        )
    )  # fmt: skip
    ink, faint = (INK, FAINT) if colour is None else ("white", "white")
    text = written(value, panel.unit)
    axes.text(
        0.5, 0.50, text, transform=axes.transAxes, ha="center", va="center", fontsize=19, fontweight="bold", color=ink
    )
    axes.text(0.5, 0.84, panel.title, transform=axes.transAxes, ha="center", va="center", fontsize=9, color=ink)
    question = panel.question if len(panel.question) < 42 else _folded(panel.question)
    axes.text(0.5, 0.15, question, transform=axes.transAxes, ha="center", va="center", fontsize=6.6, color=faint)


def _folded(text: str) -> str:
    """The text broken into two lines of about the same length."""
    words = text.split()
    at = min(range(1, len(words)), key=lambda n: abs(len(" ".join(words[:n])) - len(" ".join(words[n:]))))
    return " ".join(words[:at]) + "\n" + " ".join(words[at:])


def colour_of(panel: Panel, value: float) -> Colour | None:
    """What a number means; None where it has no good or bad, or is not known."""
    colour = panel.base
    for step in panel.thresholds:
        if value >= step.value:
            colour = step.colour
    return None if panel.base is None or math.isnan(value) else colour


def _draw_lines(axes: Axes, made: Dashboard, panel: Panel, chosen: dict[str, str], view: PlotRange) -> None:
    step = (view.end - view.start) / STEPS
    found: list[tuple[str, Series, Query]] = []
    for query in panel.queries:
        asked = view.bound(made, query, chosen)
        answer = view.prometheus.query_range(asked, view.start, view.end, step)
        found += [(legend(query.legend, series.labels), series, query) for series in answer]
    if panel.shape is Shape.STACKED:
        found.sort(key=lambda line: -_mean(line[1].values))
    times = [view.start + step * number for number in range(STEPS + 1)]
    shown = found[:MOST_SHOWN]
    if panel.shape is Shape.STACKED and shown:
        stack = [_on_grid(series, times, step, 0.0) for _, series, _ in shown]
        colours = [CYCLE[number % len(CYCLE)] for number in range(len(shown))]
        axes.stackplot(
            _minutes(times, view), stack, labels=[name for name, _, _ in shown], colors=colours, alpha=0.75, linewidth=0
        )
    else:
        for number, (name, series, query) in enumerate(shown):
            values = _on_grid(series, times, step, math.nan)
            colour = CYCLE[number % len(CYCLE)] if query.colour is None else COLOURS[query.colour]
            axes.plot(
                _minutes(times, view),
                values,
                label=name,
                linewidth=1.6,
                color=colour,
                linestyle="--" if query.upper else "-",
            )
    for threshold in panel.thresholds:
        if threshold.value > 1e-6:
            axes.axhline(threshold.value, color=COLOURS[threshold.colour], linewidth=1, linestyle=(0, (5, 3)))
    axes.set_xlim(0, (view.end - view.start) / 60)
    axes.set_ylim(bottom=0, top=panel.at_most)
    if not panel.at_most and axes.get_ylim()[1] < 1e-6:
        axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(_formatter(panel.unit))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=panel.unit is Unit.COUNT))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda minutes, _: f"{minutes:g} min" if minutes else ""))
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    if shown:
        columns = min(len(shown), max(3, panel.width // 3))
        axes.legend(
            loc="upper left", bbox_to_anchor=(-0.02, -0.10), ncols=columns, frameon=False, fontsize=7.5, handlelength=1.2,
            columnspacing=1.2, labelcolor=INK, borderaxespad=0,
        )  # fmt: skip
    else:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", color=FAINT)
    _title(axes, panel, chosen)


def _minutes(times: Sequence[float], view: PlotRange) -> list[float]:
    return [(at - view.start) / 60 for at in times]


def _on_grid(series: Series, times: Sequence[float], step: float, missing: float) -> list[float]:
    found = {round((at - times[0]) / step): value for at, value in zip(series.times, series.values, strict=True)}
    return [found.get(number, missing) for number in range(len(times))]


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else 0.0


def _table(made: Dashboard, panel: Panel, view: PlotRange) -> list[list[str]]:
    """A row for each job, sorted by name: its name, then each query's value, or its label where the query has no unit."""
    rows: dict[tuple[str, str], list[str]] = {}
    for column, query in enumerate(panel.queries):
        for sample in view.prometheus.query(view.bound(made, query, {}), view.end):
            key = sample.labels["namespace"], sample.labels["job_name"]
            row = rows.setdefault(key, [""] * len(panel.queries))
            row[column] = sample.labels["state"] if query.unit is None else written(sample.value, query.unit)
    return [[name, *row] for (_, name), row in sorted(rows.items())]


def _draw_table(axes: Axes, made: Dashboard, panel: Panel, chosen: dict[str, str], view: PlotRange) -> None:
    rows = _table(made, panel, view)
    axes.set_axis_off()
    _title(axes, panel, chosen)
    if not rows:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", color=FAINT)
        return
    titles = ["Job", *(query.legend for query in panel.queries)]
    for number, row in enumerate([titles, *rows]):
        middle = 1 - (number + 0.5) / (len(rows) + 1)
        for column, text in enumerate(row):
            ink, weight = (FAINT, "bold") if number == 0 else (INK, "normal")
            axes.text(0.005 + column / len(titles), middle, text, fontsize=9, color=ink, fontweight=weight, va="center")
        axes.axhline(1 - (number + 1) / (len(rows) + 1), color=GRID, linewidth=0.8)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)


def legend(pattern: str, labels: Mapping[str, str]) -> str:
    """A series' name: the pattern with its labels in it, as Grafana writes it."""
    text = pattern
    for name, value in labels.items():
        text = text.replace(f"{{{{{name}}}}}", value)
    return text


def written(value: float, unit: Unit) -> str:
    """A number with its unit, as a person reads it."""
    if math.isnan(value):
        return "no data"
    if unit is Unit.SHARE:
        return f"{100 * value:.1f} %"
    if unit in (Unit.COUNT, Unit.MONEY):
        return f"{value:.3g}" if value % 1 else f"{value:.0f}"
    if unit is Unit.CELSIUS:
        return f"{value:.0f} °C"
    if unit in (Unit.KILOWATT_HOURS, Unit.KILOGRAMS):
        return f"{value:.3g} {_ENGINEERING[unit]}"
    if value == 0 or unit is Unit.PER_SECOND:
        return f"{value:.3g} {_ENGINEERING[unit]}"
    return EngFormatter(unit=_ENGINEERING[unit], places=0 if unit is Unit.SECONDS and value >= 10 else 2)(value)


def _formatter(unit: Unit) -> Formatter:
    if unit in (Unit.COUNT, Unit.MONEY):
        return FuncFormatter(lambda value, _: f"{value:g}")
    if unit is Unit.SHARE:
        return FuncFormatter(lambda value, _: f"{100 * value:g} %")
    if unit is Unit.CELSIUS:
        return FuncFormatter(lambda value, _: f"{value:g} °C")
    if unit is Unit.PER_SECOND:  # a prefix would make metres of thousandths
        return FuncFormatter(lambda value, _: f"{value:g} /s")
    return EngFormatter(unit=_ENGINEERING[unit])
