"""A pipeline's time-energy frontier as a picture, from a document of `flyball_frontiers.pipeline.document`."""

from __future__ import annotations

from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display is needed, nor looked for

import matplotlib.pyplot as plt

from flyball_studies.picture_files import png


def frontier_png(document: dict[str, Any], title: str) -> bytes:
    """A PNG of the frontier: planned and realised energy over time, and the run at the highest clocks."""
    figure, axis = plt.subplots(figsize=(8.4, 4.8), layout="constrained")
    draw_frontier(axis, document)
    axis.set_title(title, fontsize=11)
    return png(figure)


def draw_frontier(axis: Any, document: dict[str, Any]) -> None:
    """Draw one document into matplotlib axes."""
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
