"""What a job was trained on, read from the journals of steps that its processes wrote, and two such runs compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """One step of a whole job: its samples in the order of the ranks, its loss over all of them, when, and by how many."""

    iteration: int
    start: str
    world_size: int
    samples: tuple[int, ...]
    loss: float
    ended_at: float


def read_steps(folder: Path) -> list[TrainedStep]:
    """Every step of every start that all its processes have ended, in the order of starts and iterations."""
    lines: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    # By name, and so by start and rank.
    for path in sorted(folder.glob("*.jsonl")):
        start = path.stem.rpartition("-")[0]
        for text in path.read_text().splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue  # torn by a kill
            lines.setdefault((start, line["iteration"]), []).append(line)
    steps = []
    for (start, iteration), found in sorted(lines.items()):
        world_size = int(found[0]["worldSize"])
        if len(found) == world_size:
            steps.append(
                TrainedStep(
                    iteration,
                    start,
                    world_size,
                    tuple(sample for line in found for sample in line["samples"]),
                    sum(line["loss"] for line in found) / world_size,
                    max(line["time"] for line in found),
                )
            )
    return steps


def history(steps: list[TrainedStep]) -> list[TrainedStep]:
    """The steps that made the model what it is: of one that was made again after a kill, the last."""
    by_iteration = sorted(steps, key=lambda step: (step.iteration, step.start))
    return [list(same)[-1] for _, same in groupby(by_iteration, key=lambda step: step.iteration)]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two histories beside each other."""

    steps: int
    same_samples: bool
    worst_loss_difference: float
    """The largest difference of a step's losses, as a share of the loss."""


def compare(one: list[TrainedStep], other: list[TrainedStep]) -> Comparison:
    """How two histories differ. Raises ValueError where they are not of the same steps."""
    if [step.iteration for step in one] != [step.iteration for step in other]:
        raise ValueError(f"{len(one)} and {len(other)} steps: not the same, and each once")
    pairs = list(zip(one, other, strict=True))
    return Comparison(
        steps=len(pairs),
        same_samples=all(a.samples == b.samples for a, b in pairs),
        worst_loss_difference=max((abs(a.loss - b.loss) / abs(b.loss) for a, b in pairs), default=0.0),
    )
