"""The pictures of `flyball kareus`: how fast a frontier is found, where its points came from, and what it is worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flyball_frontiers.kareus.search import PartitionSearch, Pass

from flyball_studies.kareus.pipeline_study import PipelineStudy, Strategy
from flyball_studies.kareus.table import RecordedTable
from flyball_studies.kareus.table_study import MethodResult, References
from flyball_studies.picture_files import saved, without_display

METHOD_COLOURS = ("#1b7837", "#d95f02", "#7570b3", "#7f7f7f")
PASS_COLOURS = {
    Pass.INITIAL: "#6baed6",
    Pass.TOTAL: "#1b7837",
    Pass.DYNAMIC: "#d95f02",
    Pass.STATIC: "#7570b3",
    Pass.UNCERTAINTY: "#e7298a",
}
STRATEGY_STYLES = {
    Strategy.SEQUENTIAL: ("#000000", "X"),
    Strategy.PERSEUS: ("#7f7f7f", "-"),
    Strategy.NANOBATCHING: ("#d95f02", "-"),
    Strategy.KERNELS: ("#7570b3", "D"),
    Strategy.JOINT: ("#1b7837", "-"),
    Strategy.EXHAUSTIVE: ("#000000", ":"),
}


def draw_table(
    table: RecordedTable, results: Sequence[MethodResult], example: PartitionSearch, folder: Path
) -> list[Path]:
    """Write the two pictures of a table's search into `folder` and return their paths."""
    without_display()
    return [
        saved(_growth(table, results), folder / "kareus-hypervolume.png"),
        saved(_samples(table, example), folder / "kareus-frontier.png"),
    ]


def draw_pipeline(study: PipelineStudy, folder: Path) -> Path:
    """Write the picture of a pipeline's strategies into `folder` and return its path."""
    without_display()
    return saved(_strategies(study), folder / "kareus-pipeline.png")


def _growth(table: RecordedTable, results: Sequence[MethodResult]) -> Any:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11.5, 4.6), layout="constrained")
    panels = (("near", "below 1.1 x the worst of the frontier"), ("paper", "below 1.1 x the worst of the table"))
    third = len(table.measurements) / 3
    for axis, (name, title) in zip(axes, panels, strict=True):
        for result, colour in zip(results, METHOD_COLOURS, strict=True):
            shares, measured = 100 * getattr(result, name), result.measured.mean(axis=0)
            axis.plot(measured, shares.mean(axis=0), marker="o", markersize=4, color=colour, label=result.method)
            axis.plot(measured, shares.min(axis=0), linestyle=":", linewidth=1.3, color=colour)
        axis.plot([], [], color="black", marker="o", markersize=4, label="mean over seeds")
        axis.plot([], [], color="black", linestyle=":", linewidth=1.3, label="worst seed")
        axis.axhline(99, color="black", linewidth=0.8, linestyle="--")
        axis.axvline(third, color="black", linewidth=0.8)
        axis.set_ylim(top=100)
        axis.set_xlabel("schedules measured")
        axis.set_ylabel("hypervolume, % of the full table's")
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.3)
        axis.annotate(
            "a third of the table", (third, axis.get_ylim()[0]), xytext=(-4, 6), textcoords="offset points",
            rotation=90, ha="right", va="bottom", fontsize=8,
        )  # fmt: skip
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", fontsize=8, ncols=6, frameon=False)
    figure.suptitle("How much of the frontier is found, after each batch (dashed: 99 %)")
    return figure


def _samples(table: RecordedTable, example: PartitionSearch) -> Any:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11.5, 4.8), layout="constrained")
    times = 1000 * np.array([m.time_seconds for m in table.measurements.values()])
    energies = np.array([m.energy_joules for m in table.measurements.values()])
    near = References.of(table).near
    for axis in axes:
        axis.scatter(times, energies, s=7, color="#c8c8c8", label="not measured", zorder=1)
        for why, colour in PASS_COLOURS.items():
            found = [s.measurement for s in example.samples if s.found_by is why]
            axis.scatter(
                [1000 * m.time_seconds for m in found],
                [m.energy_joules for m in found],
                s=16,
                color=colour,
                label=f"measured: {why}",
                zorder=2,
            )
        for front, style, label in (
            (table.frontier, {"color": "black", "linewidth": 1.2}, "the table's frontier"),
            (example.frontier, {"color": "#1b7837", "linewidth": 1.2, "linestyle": "--"}, "the frontier found"),
        ):
            axis.step(
                [1000 * point.time_seconds for point in front.points],
                [point.energy_joules for point in front.points],
                where="post",
                label=label,
                zorder=3,
                **style,
            )
        axis.set_xlabel("time (ms)")
        axis.set_ylabel("energy (J)")
        axis.grid(alpha=0.3)
    axes[0].set_title("the whole table", fontsize=10)
    axes[1].set_title("near the frontier", fontsize=10)
    axes[1].set_xlim(1000 * table.frontier.t_min * 0.985, 1000 * near[0] * 1.02)
    axes[1].set_ylim(table.frontier.cheapest.energy_joules * 0.97, near[1] * 1.02)
    axes[0].legend(loc="upper left", fontsize=8)
    figure.suptitle(f"One search: {len(example.samples)} of {len(table.measurements)} schedules measured")
    return figure


def _strategies(study: PipelineStudy) -> Any:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8.5, 5), layout="constrained")
    for strategy, (colour, style) in STRATEGY_STYLES.items():
        result = study.results[strategy]
        label = f"{strategy}" + (f", {result.measurements} measured" if result.measurements else "")
        points = sorted(result.frontier.points, key=lambda point: point.realised_time_seconds)
        times = [point.realised_time_seconds for point in points]
        energies = [point.realised_energy_joules / 1000 for point in points]
        if style in "-:":
            width = 1.2 if style == ":" else 2.0
            least = int(np.argmin(energies))  # what is slower than this serves only to wait for somebody else
            axis.plot(times[: least + 1], energies[: least + 1], style, color=colour, linewidth=width, label=label)
            axis.plot(times[least:], energies[least:], style, color=colour, linewidth=width / 2, alpha=0.35)
        else:
            axis.scatter(times[:1], energies[:1], marker=style, color=colour, s=55, label=label, zorder=4)
    perseus = study.results[Strategy.PERSEUS].frontier.fastest
    saved = study.iso_time_energy_saved(Strategy.JOINT)
    if saved is not None:
        there, top = perseus.realised_time_seconds, perseus.realised_energy_joules / 1000
        low = (1 - saved) * top
        axis.annotate("", (there, low), (there, top), arrowprops={"arrowstyle": "<->", "color": "#444444"})
        axis.annotate(
            f"{saved:.1%} less energy\nat the same time",
            (there, low + 0.8 * (top - low)),
            xytext=(-6, 0),
            textcoords="offset points",
            ha="right",
            fontsize=9,
        )
    axis.set_xlabel("iteration time (s)")
    axis.set_ylabel("iteration energy (kJ)")
    axis.grid(alpha=0.3)
    axis.legend(loc="upper right", fontsize=8)
    shape, gpus = study.pipeline, study.pipeline.group.gpus
    axis.set_title(
        f"A modelled pipeline: {len(shape.blocks)} stages of {gpus} GPUs, {shape.microbatches} microbatches, 1F1B\n"
        "(faint: worth it only where somebody slower is waited for)",
        fontsize=10,
    )
    return figure
