"""The picture of a run: power under its cap above, who had the GPUs below, on one axis of time."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

DRAW, LIMITS, CAP, BASELINE = "#3b8132", "#7f9fc4", "#d1373b", "#8a8a8a"
GRID = "#e6e6e6"
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.labelcolor": "#333333",
    "xtick.color": "#666666",
    "ytick.color": "#666666",
    "hatch.linewidth": 0.6,
}
# Points a second that are drawn; more cannot be seen.
DRAWN_HERTZ = 4.0
# Of the height: up to where the lines of moments go, and from where their words hang; above is the legend.
MARKS_SHARE, MARKS_TEXT_SHARE = 0.84, 0.58


@dataclass(frozen=True, slots=True)
class PowerTrace:
    """The referee's rows, `seconds` from the first submission; watts. `cap` is what its owner asked for, or None."""

    seconds: Sequence[float]
    draw: Sequence[float]
    limits: Sequence[float]
    cap: Sequence[float | None]
    enforced: Sequence[bool]


def read_power(path: Path, start_seconds: float, end_seconds: float) -> PowerTrace:
    """The part of referee.csv between two of its times, thinned to what can be drawn: in each step the worst moment."""
    rows: list[tuple[float, float, float, float | None, bool]] = []
    step = 1.0 / DRAWN_HERTZ
    with path.open() as file:
        for row in csv.DictReader(file):
            at = float(row["seconds"])
            if not start_seconds <= at <= end_seconds:
                continue
            cap = float(row["cap_watts"]) if row["cap_watts"] else None
            new = (at - start_seconds, float(row["true_watts"]), float(row["limits_watts"]), cap)
            enforced = row["enforced_cap_watts"] != ""
            if rows and int(rows[-1][0] / step) == int(new[0] / step):
                last = rows[-1]
                rows[-1] = (last[0], max(last[1], new[1]), max(last[2], new[2]), new[3], last[4] and enforced)
            else:
                rows.append((*new, enforced))
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), (), ()]
    return PowerTrace(*columns)


@dataclass(frozen=True, slots=True)
class GpuTrace:
    """Who held how many GPUs at `seconds`: one mapping job -> GPUs for each."""

    seconds: Sequence[float]
    held: Sequence[Mapping[str, int]]


def draw(
    path: Path,
    power: PowerTrace,
    gpus: GpuTrace,
    colours: Mapping[str, str],
    *,
    total_gpus: int,
    max_watts: float,
    compression: float,
    baseline_max_watts: float,
    marks: Sequence[tuple[float, str]] = (),
    title: str,
    subtitle: str,
) -> None:
    """Write the PNG."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11.5, 7.6), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1.15, 1])
        figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold", color="#222222")
        _power(above, power, max_watts, baseline_max_watts)
        _mark(above, marks, max_watts)
        above.set_title(subtitle, loc="left", fontsize=9.5, color="#666666", pad=10)
        _gpus(below, gpus, colours, total_gpus)
        end = max([*power.seconds, *gpus.seconds, 1.0])
        below.set_xlim(0, end)
        below.set_xlabel("seconds since the first job was submitted")
        hours = below.secondary_xaxis(
            -0.2, functions=(lambda x: x * compression / 3600, lambda x: x * 3600 / compression)
        )
        hours.set_xlabel(f"simulated hours (time is compressed ×{compression:g})")
        hours.spines["bottom"].set_color("#cccccc")
        figure.savefig(path)


def _power(axes: Axes, power: PowerTrace, max_watts: float, baseline_max_watts: float) -> None:
    kilo = 1000.0
    seconds = list(power.seconds)
    cap = [float("nan") if watts is None else watts / kilo for watts in power.cap]
    axes.fill_between(seconds, [watts / kilo for watts in power.draw], color=DRAW, alpha=0.28, linewidth=0)
    axes.plot(seconds, [watts / kilo for watts in power.draw], color=DRAW, linewidth=1.2, label="true draw of all GPUs")
    axes.plot(seconds, [w / kilo for w in power.limits], color=LIMITS, linewidth=1.4, label="sum of their power limits")
    axes.plot(seconds, cap, color=CAP, linewidth=2.2, label="power cap", drawstyle="steps-post")
    pending = [value if not enforced else float("nan") for value, enforced in zip(cap, power.enforced, strict=True)]
    axes.plot(
        seconds, pending, color="#f2b134", linewidth=5, alpha=0.9, zorder=1.5, label="cap not reported as enforced"
    )
    axes.axhline(
        baseline_max_watts / kilo,
        color=BASELINE,
        linewidth=1,
        linestyle=(0, (4, 3)),
        label="highest draw of the baseline (no cap)",
    )
    axes.set_ylim(0, max_watts / kilo)
    axes.set_ylabel("kW")
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(loc="upper right", ncols=3, frameon=False, fontsize=8.5, borderaxespad=0.2)


def _mark(axes: Axes, marks: Sequence[tuple[float, str]], max_watts: float) -> None:
    """A thin line at each moment that needs a word, and the word upright to its left: the last chapter is at the right end,
    and its moments are close together."""
    for seconds, text in marks:
        axes.axvline(seconds, ymax=MARKS_SHARE, color=BASELINE, linewidth=0.9, linestyle=(0, (2, 2)))
        axes.annotate(
            text,
            (seconds, max_watts / 1000 * MARKS_TEXT_SHARE),
            (-4, 0),
            textcoords="offset points",
            ha="right",
            va="top",
            rotation=90,
            fontsize=8.5,
            color="#444444",
        )


def _gpus(axes: Axes, gpus: GpuTrace, colours: Mapping[str, str], total_gpus: int) -> None:
    jobs = [job for job in colours if any(job in held for held in gpus.held)]
    if jobs:
        layers = [[held.get(job, 0) for held in gpus.held] for job in jobs]
        axes.stackplot(
            list(gpus.seconds),
            layers,
            colors=[colours[job] for job in jobs],
            edgecolor="white",
            linewidth=0.35,
            step="post",
        )
        _name_the_large(axes, gpus, jobs, layers)
    axes.axhline(total_gpus, color="#666666", linewidth=0.8)
    axes.set_ylim(0, total_gpus * 1.02)
    axes.set_ylabel("GPUs, by job")
    step = max(1, total_gpus // 8)
    axes.set_yticks(range(0, total_gpus + 1, step))
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def _name_the_large(axes: Axes, gpus: GpuTrace, jobs: Sequence[str], layers: Sequence[Sequence[int]]) -> None:
    """Write a job's name into its area where there is room for it."""
    if len(gpus.seconds) < 2:
        return
    span = gpus.seconds[-1] - gpus.seconds[0]
    total = max(map(sum, zip(*layers, strict=True)))
    bases = [0] * len(gpus.seconds)
    for job, layer in zip(jobs, layers, strict=True):
        # Its largest rectangle: while neither its own GPUs nor those below it change.
        best = (0.0, 0, 0)
        begin = 0
        for index in range(1, len(layer) + 1):
            if index == len(layer) or (layer[index], bases[index]) != (layer[begin], bases[begin]):
                end = min(index, len(layer) - 1)
                width = gpus.seconds[end] - gpus.seconds[begin]
                if width > span * 0.0065 * (len(job) + 1) and layer[begin] >= max(2, total * 0.042):
                    best = max(best, (width * layer[begin], begin, end))
                begin = index
        if best[0]:
            _, begin, end = best
            middle = (gpus.seconds[begin] + gpus.seconds[end]) / 2
            height = bases[begin] + layer[begin] / 2
            axes.text(middle, height, job, ha="center", va="center", fontsize=7, color="white", fontweight="bold")
        bases = [base + own for base, own in zip(bases, layer, strict=True)]
