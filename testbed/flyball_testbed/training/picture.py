"""Two trainings beside each other: their losses, and by how many processes the second was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flyball_testbed.training.journals import TrainedStep


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
    top = losses.get_ylim()[1]
    for event in events:
        for axes in (losses, sizes):
            axes.axvline(event.iteration, color="#888888", linewidth=0.8, linestyle=":")
        losses.annotate(
            event.what, (event.iteration, top), rotation=90, va="top", ha="right", fontsize=8, color="#444444",
            xytext=(-2, -4), textcoords="offset points",
        )  # fmt: skip
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def curve(steps: Sequence[TrainedStep]) -> tuple[list[int], list[float]]:
    """Steps and losses."""
    return [step.iteration for step in steps], [step.loss for step in steps]
