"""The pictures of the simulator: a run over time, and policies' JCT against their energy.

A policy has the same colour and marker in every picture; `+zeus` is the same, hollow and dashed. Colours are of the
Okabe-Ito and Tol sets, which the colour-blind can tell apart and which show on white and on black; the marker says the
same again.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from flyball_simulator.experiments.comparison import PolicyCurve, SettingSummary
from flyball_simulator.settings import SimulationResult
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

COLOURS_AND_MARKERS = {
    "price": ("#D55E00", "*"),
    "powerflow-paper": ("#0072B2", "o"),
    "powerflow-strict": ("#56B4E9", "s"),
    "afs": ("#E69F00", "P"),
    "tiresias": ("#009E73", "^"),
    "tiresias-gittins": ("#66A61E", "v"),
    "gandiva": ("#CC79A7", "D"),
    "pollux": ("#999933", "X"),
    "sia": ("#9A6BD0", "p"),
    "srtf": ("#CC6677", "h"),
    "fifo": ("#8A8A8A", "<"),
}
OTHERS = (("#7F6A4F", "d"), ("#4C8C8A", ">"), ("#B35C9E", "8"), ("#5F7FBF", "H"))

INK, FAINT = "#010203", "#040506"  # stand for the reader's own colours in pictures that are made to be inlined
BINS = 700


class Look(NamedTuple):
    """How a policy is drawn."""

    colour: str
    marker: str
    hollow: bool


def look_of(label: str, labels: Sequence[str]) -> Look:
    """The same for a policy in every picture; with both, "nodes off" curves are solid and the nodes-on ones hollow."""
    name, _, variant = label.partition(", ")
    base, plus, _ = name.partition("+")
    bases = list(dict.fromkeys(other.partition(", ")[0].partition("+")[0] for other in labels))
    strangers = [other for other in bases if other not in COLOURS_AND_MARKERS]
    colour, marker = COLOURS_AND_MARKERS.get(base) or OTHERS[strangers.index(base) % len(OTHERS)]
    both = not variant and f"{name}, nodes off" in labels
    return Look(colour, marker, bool(plus) or both)


@dataclass(frozen=True, slots=True)
class Axis:
    """What the vertical axis shows of a setting."""

    attribute: str
    title: str


MEAN_JCT = Axis("mean_jct_seconds", "mean JCT")
P99_JCT = Axis("p99_jct_seconds", "p99 JCT")


def pareto_figure(curves: Sequence[PolicyCurve], axis: Axis, heading: str = "") -> Figure:
    """Every policy's settings: JCT against total energy, with 95 % intervals over seeds.

    Lines join what no other setting of the policy beats by mean JCT; the others are small and faint.
    """
    labels = [curve.label for curve in curves]
    figure = Figure(figsize=(9.6, 5.6), layout="constrained")
    plot = figure.add_subplot()
    joules, unit = _energy_unit(max(one.energy_joules.mean for curve in curves for one in curve.settings))
    seconds = [getattr(one, axis.attribute).mean for curve in curves for one in curve.settings]
    scale, time_unit = _time_unit(float(np.median(seconds)))
    for order, curve in enumerate(reversed(curves)):  # the best on top
        look = look_of(curve.label, labels)
        face = "none" if look.hollow else look.colour
        size = 11 if look.marker == "*" else 6.5
        for kept, alpha, shrink in ((False, 0.4, 0.65), (True, 1.0, 1.0)):
            chosen = [one for one in curve.settings if one.on_envelope is kept]
            if not chosen:
                continue
            x = [one.energy_joules.mean / joules for one in chosen]
            y = [getattr(one, axis.attribute).mean / scale for one in chosen]
            plot.errorbar(
                x,
                y,
                xerr=[one.energy_joules.half / joules for one in chosen],
                yerr=[_within_positive(one, axis) / scale for one in chosen],
                fmt="none",
                ecolor=look.colour,
                elinewidth=1.0,
                alpha=0.45 * alpha,
                zorder=order + 2,
            )
            plot.plot(
                x,
                y,
                color=look.colour,
                linestyle=("--" if look.hollow else "-") if kept and len(x) > 1 else "",
                linewidth=1.4,
                marker=look.marker,
                markersize=size * shrink,
                markerfacecolor=face,
                markeredgecolor=look.colour,
                markeredgewidth=1.2,
                alpha=alpha,
                label=curve.label if kept else None,
                zorder=order + 2.5,
            )
    _scale_times(plot, [second / scale for second in seconds])
    plot.set_xlabel(f"total energy ({unit})")
    plot.set_ylabel(f"{axis.title} ({time_unit})")
    plot.xaxis.set_major_locator(MaxNLocator(8))
    energies = [one.energy_joules.mean / joules for curve in curves for one in curve.settings]
    margin = max(0.08 * (max(energies) - min(energies)), 0.02 * max(energies))
    plot.set_xlim(min(energies) - margin, max(energies) + margin)  # intervals of few seeds are wider than any page
    _calm(plot, "both")
    handles, names = plot.get_legend_handles_labels()
    figure.legend(
        handles[::-1], names[::-1], loc="outside right upper", fontsize=9, frameon=False, title="shortest JCT first"
    )
    if heading:
        plot.set_title(heading, fontsize=11, loc="left")
    return figure


def energy_figure(curves: Sequence[PolicyCurve]) -> Figure:
    """Where each policy's joules went, at its setting of fewest joules and at its fastest."""
    figure = Figure(figsize=(9.6, 0.9 + 0.42 * len(curves)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True, sharex=True)
    joules, unit = _energy_unit(max(one.energy_joules.mean for curve in curves for one in curve.settings))
    places = np.arange(len(curves))[::-1]
    parts = (("gpu", "GPUs at work", "#0072B2"), ("idle", "idle GPUs", "#E69F00"), ("node", "nodes", "#8A8A8A"))
    for panel, which, title in zip(
        panels, ("thriftiest", "fastest"), ("at the fewest joules", "at the shortest mean JCT"), strict=True
    ):
        start = np.zeros(len(curves))
        for part, label, colour in parts:
            width = np.array([getattr(getattr(curve, which), f"{part}_joules") / joules for curve in curves])
            if width.any():
                panel.barh(places, width, 0.7, left=start, color=colour, label=label)
            start += width
        panel.set_title(title, fontsize=10, loc="left")
        panel.set_xlabel(f"energy ({unit})")
        _calm(panel, "x")
        panel.margins(y=0.02)
    panels[0].set_yticks(places, [curve.label for curve in curves], fontsize=9)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return figure


def timeline_figure(result: SimulationResult) -> Figure:
    """Watts against the cap, GPUs in use, and jobs waiting, over the run.

    What varies faster than the picture can show is drawn as its time-weighted mean, with its range behind it.
    """
    settings = result.settings
    figure = Figure(figsize=(10.5, 7.2), layout="constrained")
    power, gpus, jobs = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
    samples = result.samples
    times = np.array([sample.seconds for sample in samples])
    end = max(result.makespan_seconds, float(times[-1]) + 1.0) if len(times) else 1.0
    scale, unit = (3600.0, "hours") if end < 4 * 86_400 else (86_400.0, "days")
    edges = np.linspace(0.0, end, BINS + 1)
    middle = (edges[:-1] + edges[1:]) / 2 / scale

    def draw(plot: Any, values: Sequence[float], colour: str, label: str, divisor: float = 1.0) -> None:
        mean, low, high = binned(times, np.asarray(values, dtype=float) / divisor, edges)
        plot.fill_between(middle, low, high, color=colour, alpha=0.22, linewidth=0)
        plot.plot(middle, mean, color=colour, linewidth=1.3, label=label)

    overhead = settings.node_overhead_watts  # a cap is on the GPUs alone
    draw(power, [s.watts - s.powered_nodes * overhead for s in samples], "#0072B2", "GPUs", 1000.0)
    if overhead:
        draw(power, [sample.watts for sample in samples], "#8A8A8A", "with nodes", 1000.0)
    caps = [sample.cap_watts for sample in samples]
    if any(cap is not None for cap in caps):
        limits = np.array([np.nan if cap is None else cap / 1000.0 for cap in caps])
        power.step(
            np.append(times, end) / scale,
            np.append(limits, limits[-1]),
            where="post",
            color="#D55E00",
            linewidth=1.6,
            label="cap",
        )
    power.set_ylabel("power (kW)")
    draw(gpus, [sample.busy_gpus for sample in samples], "#009E73", "busy")
    if any(sample.powered_nodes * settings.gpus_per_node < settings.gpus for sample in samples):
        draw(gpus, [sample.powered_nodes * settings.gpus_per_node for sample in samples], "#8A8A8A", "powered on")
    gpus.axhline(settings.gpus, color="#8A8A8A", linewidth=0.9, linestyle=":", label="all")
    gpus.set_ylabel("GPUs")
    draw(jobs, [sample.running_jobs for sample in samples], "#56B4E9", "running")
    draw(jobs, [sample.waiting_jobs for sample in samples], "#CC79A7", "waiting")
    jobs.set_ylabel("jobs")
    jobs.set_xlabel(f"{unit} since the first submission")
    for plot in (power, gpus, jobs):
        plot.set_ylim(bottom=0, top=1.08 * plot.get_ylim()[1])
        plot.set_xlim(0, end / scale)
        _calm(plot, "both")
        plot.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9, frameon=False)
    figure.suptitle(f"{settings.policy}, {result.trace}, {settings.gpus} GPUs", fontsize=11, x=0.01, ha="left")
    return figure


def binned(times: Any, values: Any, edges: Any) -> tuple[Any, Any, Any]:
    """Time-weighted mean, least and most in each bin, of what is constant from each time to the next."""
    if not len(times):
        nothing = np.zeros(len(edges) - 1)
        return nothing, nothing, nothing
    grid = np.union1d(times, edges)
    grid = grid[(grid >= edges[0]) & (grid <= edges[-1])]
    position = np.searchsorted(times, grid[:-1], side="right") - 1
    held = np.where(position >= 0, values[np.maximum(position, 0)], 0.0)  # nothing is drawn before the first sample
    starts = np.searchsorted(grid, edges[:-1])
    lengths = np.diff(grid)
    mean = np.add.reduceat(held * lengths, starts) / np.add.reduceat(lengths, starts)
    return mean, np.minimum.reduceat(held, starts), np.maximum.reduceat(held, starts)


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(buffer, dpi=140, format="png")
    return buffer.getvalue()


@contextmanager
def inlined() -> Iterator[None]:
    """Figures made within take the colours of the page around them; draw them with `inline_svg` within, too."""
    names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "axes.titlecolor")
    look: dict[Any, Any] = dict.fromkeys(names, INK)
    look |= {"svg.fonttype": "none", "font.family": "sans-serif", "svg.hashsalt": "flyball"}
    look |= {"grid.color": FAINT, "figure.facecolor": "none", "axes.facecolor": "none"}
    with rc_context(look):
        yield


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """An `<svg>` element for a page: no external address, ids of its own, text as text, black as the page's ink."""
    buffer = io.StringIO()
    FigureCanvasSVG(figure)
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\s*xmlns(:\w+)?="[^"]*"', "", text)
    text = text.replace("xlink:href", "href")
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(url\(|href=")#', rf"\g<1>#{name}-", text)
    text = text.replace(INK, "currentColor").replace(FAINT, "currentColor")
    text = re.sub(r"font: ([^;\"]*?)'DejaVu Sans'[^;\"]*", r"font: \1var(--font)", text)
    text = re.sub(r'\s(width|height)="[\d.]+pt"', "", text, count=2)
    return text.replace("<svg", f'<svg role="img" aria-label="{description}"', 1)


def _calm(plot: Any, grid: str) -> None:
    plot.grid(axis=grid, alpha=0.25)
    plot.set_axisbelow(True)
    plot.spines[["top", "right"]].set_visible(False)


def _within_positive(one: SettingSummary, axis: Axis) -> float:
    estimate = getattr(one, axis.attribute)
    half: float = min(estimate.half, 0.95 * estimate.mean)  # an interval of few seeds may reach below zero
    return half


def _energy_unit(most: float) -> tuple[float, str]:
    for size, unit in ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ")):
        if most >= 2 * size:
            return size, unit
    return 1.0, "J"


def _time_unit(typical: float) -> tuple[float, str]:
    if typical >= 2 * 3600:
        return 3600.0, "hours"
    return (60.0, "minutes") if typical >= 120 else (1.0, "seconds")


def _scale_times(plot: Any, values: Sequence[float]) -> None:
    """Make the axis of times linear from zero, or logarithmic where they lie far apart."""
    if max(values) > 6 * min(values):
        plot.set_yscale("log")
        plot.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        plot.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        plot.yaxis.set_minor_formatter(NullFormatter())
    else:
        plot.set_ylim(bottom=0)
