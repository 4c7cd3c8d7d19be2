"""The pictures of `flyball zeus replay`: savings, cumulative regret, and where each policy searched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flyball_studies.picture_files import saved, without_display
from flyball_studies.zeus.replay import Policy, Replay
from flyball_studies.zeus.study import SeedResult, WorkloadStudy

COLOURS = {
    Policy.KNOWLEDGE_GRADIENT: "#1b7837",
    Policy.ZEUS: "#7570b3",
    Policy.GRID_STOPPED: "#d95f02",
    Policy.GRID_SEARCH: "#e6ab02",
    Policy.DEFAULT: "#7f7f7f",
}
OURS = Policy.KNOWLEDGE_GRADIENT


def draw_all(studies: Sequence[WorkloadStudy], examples: Sequence[SeedResult], gpu: str, folder: Path) -> list[Path]:
    """Write the three PNGs into `folder` and return their paths."""
    without_display()
    return [
        saved(_savings(studies, gpu), folder / f"zeus-{gpu}-savings.png"),
        saved(_regret(studies, gpu), folder / f"zeus-{gpu}-regret.png"),
        saved(_paths(studies, examples, gpu), folder / f"zeus-{gpu}-paths.png"),
    ]


def _savings(studies: Sequence[WorkloadStudy], gpu: str) -> Any:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(12.5, 4.4), layout="constrained", sharey=True)
    places = np.arange(len(studies))
    for axis, what in zip(axes, ("energy", "time"), strict=True):
        for offset, policy in zip(
            (-0.3, -0.1, 0.1, 0.3), (Policy.DEFAULT, Policy.GRID_STOPPED, Policy.ZEUS, OURS), strict=True
        ):
            saved = [getattr(study.summaries[policy], f"{what}_saved") for study in studies]
            bars = axis.bar(places + offset, [1 - s for s in saved], 0.19, color=COLOURS[policy], label=policy)
            if policy is OURS:
                axis.bar_label(bars, [f"{-s:+.0%}" for s in saved], fontsize=7.5, padding=5)
        best = [1 - getattr(study, f"optimum_{what}_saved") for study in studies]
        axis.scatter(places + 0.3, best, marker="_", color="black", s=120, zorder=3, label="best configuration")
        axis.set_xticks(places, [study.trace.title for study in studies], rotation=20)
        axis.set_title(f"{what} to the target, of the default's", fontsize=10)
        axis.grid(axis="y", alpha=0.3)
        axis.set_axisbelow(True)
    axes[0].set_ylim(0, 1.08 * axes[0].get_ylim()[1])
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", fontsize=9, ncols=5, frameon=False)
    figure.suptitle(f"Where each policy converged to on {gpu.upper()} (mean of the last five recurrences)")
    return figure


def _grid_of(count: int) -> tuple[int, int]:
    columns = min(3, count)
    return -(-count // columns), columns


def _regret(studies: Sequence[WorkloadStudy], gpu: str) -> Any:
    import matplotlib.pyplot as plt

    drawn = (Policy.GRID_SEARCH, Policy.GRID_STOPPED, Policy.ZEUS, OURS)
    rows, columns = _grid_of(len(studies))
    figure, axes = plt.subplots(rows, columns, figsize=(3.9 * columns, 3.1 * rows), layout="constrained", squeeze=False)
    for axis, study in zip(axes.flat, studies, strict=False):
        for policy in drawn:
            regret = study.summaries[policy].regret
            arrivals = np.arange(1, regret.shape[1] + 1)
            axis.plot(arrivals, regret.mean(axis=0), color=COLOURS[policy], label=policy)
            axis.fill_between(
                arrivals, regret.min(axis=0), regret.max(axis=0), color=COLOURS[policy], alpha=0.2, linewidth=0
            )
        # Lucky draws can take a seed's regret below zero, where a logarithm has no place: the band is cut at the frame.
        means = np.concatenate([study.summaries[policy].regret.mean(axis=0) for policy in drawn])
        axis.set_yscale("log", nonpositive="clip")
        axis.set_ylim(bottom=means[means > 0].min() / 2)
        axis.set_title(study.trace.title, fontsize=10)
        axis.grid(alpha=0.3)
        axis.set_xlabel("job recurrence")
        axis.set_ylabel("cumulative regret (J)")
    for axis in list(axes.flat)[len(studies) :]:
        axis.set_visible(False)
    axes.flat[0].legend(loc="lower right", fontsize=8)
    figure.suptitle(f"Cumulative regret, {gpu.upper()}: mean, and the range over all seeds")
    return figure


def _paths(studies: Sequence[WorkloadStudy], examples: Sequence[SeedResult], gpu: str) -> Any:
    import matplotlib.pyplot as plt

    rows, columns = _grid_of(len(studies))
    figure, axes = plt.subplots(
        2 * rows, columns, figsize=(3.9 * columns, 5.6 * rows), layout="constrained", squeeze=False
    )
    for axis in axes.flat:
        axis.set_visible(False)
    for index, (study, example) in enumerate(zip(studies, examples, strict=True)):
        for below, policy in enumerate((OURS, Policy.GRID_SEARCH)):
            axis = axes[2 * (index // columns) + below][index % columns]
            axis.set_visible(True)
            _path(axis, study, example.replays[policy])
            axis.set_title(f"{study.trace.title}: {policy}", fontsize=9)
    figure.suptitle(
        f"Where one seed searched on {gpu.upper()}: circles are runs, later ones darker; the star is the best "
        "configuration.\nBackground: expected cost, darker is dearer; crossed out: misses the target.",
        fontsize=10,
    )
    return figure


def _path(axis: Any, study: WorkloadStudy, replay: Replay) -> None:
    trace = study.trace
    sizes, limits = trace.batch_sizes, trace.power_limits_watts
    costs = np.full((len(limits), len(sizes)), np.nan)
    for column, size in enumerate(sizes):
        if trace.reliable(size):
            for row, limit in enumerate(limits):
                costs[row, column] = trace.expected_cost(size, limit, study.energy_weight)
    axis.imshow(np.log(costs), cmap="Blues", origin="lower", aspect="auto", alpha=0.8)
    for column, size in enumerate(sizes):
        if not trace.reliable(size):
            axis.plot([column - 0.5, column + 0.5], [-0.5, len(limits) - 0.5], color="#bbbbbb", linewidth=0.8)
            axis.plot([column - 0.5, column + 0.5], [len(limits) - 0.5, -0.5], color="#bbbbbb", linewidth=0.8)
    runs = [run for recurrence in replay.recurrences for run in recurrence.runs]
    columns = np.array([sizes.index(run.batch_size) for run in runs])
    rows = np.array([limits.index(run.power_limit_watts) for run in runs])
    axis.plot(columns, rows, color="#444444", linewidth=0.5, alpha=0.35)
    best = sizes.index(study.optimum[0]), limits.index(study.optimum[1])
    axis.scatter(*best, marker="*", s=330, color="#1b7837", zorder=3, edgecolors="white", linewidths=0.7)
    order = np.arange(len(runs))
    axis.scatter(
        columns,
        rows,
        c=order,
        cmap="Oranges",
        s=24,
        vmin=-len(runs) / 3,
        edgecolors="#555555",
        linewidths=0.4,
        zorder=4,
    )
    axis.set_xticks(range(len(sizes)), [str(size) for size in sizes], rotation=60, fontsize=7)
    axis.set_yticks(range(len(limits)), [str(limit) for limit in limits], fontsize=7)
    axis.set_xlabel("batch size", fontsize=8)
    axis.set_ylabel("power limit (W)", fontsize=8)
