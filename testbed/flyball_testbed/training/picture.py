"""Two trainings beside each other: their losses, and by how many processes the second was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flyball_testbed.training.journals import TrainedStep

LABEL_WIDTH = 0.045  # of all steps: a line of small slanting writing


@dataclass(frozen=True, slots=True)
class Event:
    """What befell a training after a step."""

    iteration: int
    what: str


def draw(alone: Sequence[TrainedStep], elastic: Sequence[TrainedStep], events: Sequence[Event], path: Path) -> None:
    """Draw both losses over the steps, what befell the second, and its sizes below."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (losses, sizes) = pyplot.subplots(
        2, 1, sharex=True, figsize=(10, 6), height_ratios=(3, 1), layout="constrained"
    )
    losses.plot(*curve(alone), color="#f0a860", linewidth=5, label="one process, left alone")
    losses.plot(*curve(elastic), color="#1f4e8c", linewidth=1.2, label="EnergyAwareJob: resized, killed, cut")
    losses.set_ylabel("loss of the global batch (nats a byte)")
    losses.legend(loc="upper right")
    losses.grid(alpha=0.3)
    sizes.step(
        [step.iteration for step in elastic], [step.world_size for step in elastic], where="mid", color="#1f4e8c"
    )
    sizes.fill_between(
        [step.iteration for step in elastic],
        [step.world_size for step in elastic],
        step="mid",
        alpha=0.25,
        color="#1f4e8c",
    )
    sizes.set_ylabel("GPUs")
    sizes.set_xlabel("step")
    most = max(step.world_size for step in elastic)
    sizes.set_ylim(0, most + 1)
    sizes.set_yticks(range(0, most + 1, max(1, most // 4)))
    last = max(step.iteration for step in (*alone, *elastic))
    for event, label_at in labelled(events, last * LABEL_WIDTH):
        for axes in (losses, sizes):
            axes.axvline(event.iteration, color="#888888", linewidth=0.8, linestyle=":")
        losses.annotate(
            event.what, (label_at, 1), xycoords=("data", "axes fraction"), rotation=30, va="bottom", ha="left",
            rotation_mode="anchor", fontsize=8, color="#444444", xytext=(0, 3), textcoords="offset points",
        )  # fmt: skip
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def labelled(events: Sequence[Event], width: float) -> list[tuple[Event, float]]:
    """What befell it, in order, and the step at which each is written: none within `width` steps of the one before.

    What came after the same step is written as one.
    """
    events_at: dict[int, list[str]] = {}
    for event in sorted(events, key=lambda event: event.iteration):
        events_at.setdefault(event.iteration, []).append(event.what)
    placed: list[tuple[Event, float]] = []
    for iteration, whats in events_at.items():
        least = placed[-1][1] + width if placed else float(iteration)
        placed.append((Event(iteration, "; ".join(whats)), max(float(iteration), least)))
    return placed


def curve(steps: Sequence[TrainedStep]) -> tuple[list[int], list[float]]:
    """Steps and losses."""
    return [step.iteration for step in steps], [step.loss for step in steps]
