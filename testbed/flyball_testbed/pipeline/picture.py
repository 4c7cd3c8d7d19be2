"""Iterations of a pipeline as they went: stages by time, coloured by the clock that each board really had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flyball_testbed.pipeline.journals import Iteration


@dataclass(frozen=True, slots=True)
class IterationPanel:
    """One iteration of one or more replicas, under a title."""

    title: str
    replicas: Sequence[Iteration]


def draw(panels: Sequence[IterationPanel], path: Path) -> None:
    """Draw the panels below each other, on one scale of time and one of clocks."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.patches import Patch, Rectangle

    shown = [item for panel in panels for item in panel.replicas]
    clocks = [computation.clock_megahertz for item in shown for computation in item.computations]
    norm, colours = Normalize(min(clocks), max(clocks)), pyplot.get_cmap("coolwarm")
    rows = [sum(1 + max(c.stage for c in item.computations) for item in panel.replicas) for panel in panels]
    figure, axes = pyplot.subplots(
        len(panels),
        1,
        sharex=True,
        squeeze=False,
        figsize=(13, 0.9 * len(panels) + 0.34 * sum(rows)),
        height_ratios=rows,
        layout="constrained",
    )
    longest = max(item.seconds for item in shown)
    for axis, panel, height in zip(axes[:, 0], panels, rows, strict=True):
        labels, row = [], 0
        for item in panel.replicas:
            stages = 1 + max(computation.stage for computation in item.computations)
            for stage in range(stages):
                axis.add_patch(Rectangle((0, row + stage + 0.06), item.seconds, 0.88, facecolor="#ececec", linewidth=0))
                named = f"replica {item.replica}, stage {stage}" if len(panel.replicas) > 1 else f"stage {stage}"
                labels.append((row + stage + 0.5, named))
            for computation in item.computations:
                start, width = computation.start - item.began, computation.end - computation.start
                rgba = colours(norm(computation.clock_megahertz))
                axis.add_patch(
                    Rectangle(
                        (start, row + computation.stage + 0.06),
                        width,
                        0.88,
                        facecolor=rgba,
                        edgecolor="white",
                        linewidth=0.5,
                    )
                )
                dark = abs(norm(computation.clock_megahertz) - 0.5) > 0.35
                axis.text(
                    start + width / 2,
                    row + computation.stage + 0.52,
                    f"{computation.instruction[0].upper()}{computation.microbatch}",
                    ha="center",
                    va="center",
                    fontsize=6.5,
                    color="white" if dark else "#222222",
                )
            row += stages
            if item is not panel.replicas[-1]:
                axis.axhline(row, color="#555555", linewidth=0.8)
        axis.set_title(panel.title, loc="left", fontsize=10)
        axis.set_yticks([place for place, _ in labels], [name for _, name in labels], fontsize=8)
        axis.set_ylim(height, 0)
        axis.set_xlim(0, longest * 1.002)
        for side in ("top", "right", "left"):
            axis.spines[side].set_visible(False)
        axis.tick_params(axis="y", length=0)
    axes[-1, 0].set_xlabel("seconds since the iteration began")
    figure.colorbar(
        ScalarMappable(norm, colours),
        ax=axes[:, 0].tolist(),
        label="SM clock that the board had (MHz)",
        pad=0.01,
        aspect=40,
    )
    figure.legend(
        handles=[
            Patch(facecolor="none", label="F forward, B backward pass of a microbatch"),
            Patch(facecolor="#ececec", label="waits"),
        ],
        loc="outside lower left",
        ncols=2,
        fontsize=8,
        frameon=False,
    )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
