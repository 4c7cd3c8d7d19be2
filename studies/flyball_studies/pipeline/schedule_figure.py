"""A pipeline's plan as a picture: stages by time, coloured by clock."""

from __future__ import annotations

from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display is needed, nor looked for

import matplotlib.pyplot as plt
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PatchCollection
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from flyball_studies.picture_files import png

LETTERS = {"forward": "F", "backward": "B", "recompute": "R", "recompute_backward": "RB", "load": "L"}
LOW = ("forward", "load")  # whose bars are lower than the others'
CONSTANT_COLOUR, BLOCKED_COLOUR = "#8c8c8c", "#ececec"


def titled_panel(name: str, plan: dict[str, Any], reference: dict[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """A plan as `schedule_png` takes it, under a title that says what it needs, and how that compares with a reference."""
    if "at" in plan:
        plan = {**plan, "time": plan["at"]["realised_time"], "energy": plan["at"]["realised_energy"]}
    title = f"{name}: {plan['energy']:,.0f} J in {plan['time']:.3f} s"
    if reference is not None:
        energy, time = plan["energy"] / reference["energy"] - 1, plan["time"] / reference["time"] - 1
        title += f" ({energy:+.1%} energy, {round(time, 4) + 0.0:+.1%} time)"
    return title, plan


def schedule_png(panels: list[tuple[str, dict[str, Any]]], *, critical_path: bool = True) -> bytes:
    """A PNG with one panel per (title, plan); a plan has schedule, timeline and critical_path as `flyball frontier`
    writes them."""
    stages = max(len(plan["schedule"]) for _, plan in panels)
    end = max(finish for _, plan in panels for row in plan["timeline"] for _, finish in row)
    clocks = [entry[2] for _, plan in panels for row in plan["schedule"] for entry in row if entry[2] is not None]
    colour = Normalize(min(clocks, default=0), max(clocks, default=1))
    width = min(18.0, max(9.0, 0.16 * max(len(row) for _, plan in panels for row in plan["schedule"]) * 2))
    figure, axes = plt.subplots(
        len(panels),
        1,
        figsize=(width, len(panels) * (0.9 + 0.36 * stages)),
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, (title, plan) in zip(axes[:, 0], panels, strict=True):
        _draw_panel(axis, plan, colour, critical_path)
        axis.set_xlim(0, end)
        axis.set_title(title, fontsize=10, loc="left")
    axes[-1, 0].set_xlabel("time (s)")
    lettered = any(_has_letters(plan, width) for _, plan in panels)
    handles = _legend(panels, critical_path, lettered)
    figure.legend(handles=handles, loc="outside lower left", ncols=8, fontsize=8, frameon=False)
    mappable = ScalarMappable(colour, plt.get_cmap("coolwarm"))
    figure.colorbar(mappable, ax=axes[:, 0].tolist(), label="SM clock (MHz)", fraction=0.025, pad=0.01, aspect=25)
    return png(figure)


def _has_letters(plan: dict[str, Any], inches: float) -> bool:
    """Whether each computation is wide enough, in a picture that wide, to have its letter and number on it."""
    end = max(finish for row in plan["timeline"] for _, finish in row)
    narrowest: float = min(finish - start for row in plan["timeline"] for start, finish in row)
    return bool(narrowest / end * inches > 0.13)


def _legend(panels: list[tuple[str, dict[str, Any]]], critical_path: bool, lettered: bool) -> list[Any]:
    """What letters (heights, where none are written), colours and the line mean, of what the pictures show."""
    entries = [entry for _, plan in panels for row in plan["schedule"] for entry in row]
    shown = {entry[0] for entry in entries}
    handles: list[Any] = [
        Line2D([], [], linestyle="none", label=f"{letter if lettered else _bars(name)} {name.replace('_', ' and ')}")
        for name, letter in LETTERS.items()
        if name in shown
    ]
    if lettered and any(len(entry) > 3 for entry in entries):
        handles.append(Line2D([], [], linestyle="none", label="F1.0: microbatch 1, part 0 of the model"))
    handles.append(Patch(facecolor=BLOCKED_COLOUR, label="waits"))
    if any(entry[2] is None for entry in entries):
        handles.append(Patch(facecolor=CONSTANT_COLOUR, label="at any clock"))
    if critical_path:
        handles.append(Line2D([], [], color="#111111", lw=1.3, label="critical path"))
    return handles


def _bars(instruction: str) -> str:
    return "low:" if instruction in LOW else "high:"


def _draw_panel(axis: Any, plan: dict[str, Any], colour: Any, critical_path: bool) -> None:
    palette = plt.get_cmap("coolwarm")
    end = max(finish for row in plan["timeline"] for _, finish in row)
    inches = axis.figure.get_figwidth()
    labelled = _has_letters(plan, inches)
    for stage, (row, times) in enumerate(zip(plan["schedule"], plan["timeline"], strict=True)):
        axis.add_patch(Rectangle((0, stage - 0.4), end, 0.8, facecolor=BLOCKED_COLOUR, zorder=0))
        boxes, colours = [], []
        for (instruction, microbatch, clock, *part), (start, finish) in zip(row, times, strict=True):
            height = 0.54 if instruction in LOW else 0.8
            boxes.append(Rectangle((start, stage - height / 2), finish - start, height))
            colours.append(CONSTANT_COLOUR if clock is None else palette(colour(clock)))
            label = f"{LETTERS.get(instruction, instruction[:1])}{microbatch}{''.join(f'.{each}' for each in part)}"
            points_wide = 72 * inches * 0.88 * (finish - start) / end
            if labelled and (size := min(7.0, points_wide / (0.66 * len(label)))) >= 4:
                dark = clock is None or abs(colour(clock) - 0.5) > 0.38
                axis.text(
                    (start + finish) / 2,
                    stage,
                    label,
                    ha="center",
                    va="center",
                    fontsize=size,
                    color="white" if dark else "black",
                )
        edge = {"edgecolor": "white", "linewidth": 0.6} if labelled else {"edgecolor": "none"}
        axis.add_collection(PatchCollection(boxes, facecolor=colours, zorder=2, **edge))
    if critical_path:
        path = [(plan["timeline"][stage][index], stage) for stage, index in plan["critical_path"]]
        axis.plot(
            [moment for times, _ in path for moment in times],
            [stage + 0.4 for _, stage in path for _ in range(2)],
            color="#111111",
            lw=1.3,
            solid_joinstyle="miter",
            zorder=3,
        )
    stages = len(plan["schedule"])
    axis.set_ylim(stages - 0.45, -0.55)
    axis.set_yticks(range(stages), [f"S{stage}" for stage in range(stages)], fontsize=8)
    axis.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
