"""What each step was trained on, for those who compare runs: a line a step, in a file for each process of each start.

Written where FLYBALL_STEP_JOURNAL names a folder, which is made where it is not there. The mean over the processes of their
`loss` is the global batch's.
"""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any

from flyball.environment import Environment
from flyball.sampling import Part

logger = logging.getLogger("flyball")


class StepJournal:
    """One process' journal."""

    def __init__(self, path: str, world_size: int) -> None:
        self._path = path
        self._world_size = world_size
        self._samples: list[int] = []
        self._loss = 0.0
        self._is_broken = False

    @classmethod
    def of(cls, environment: Environment) -> StepJournal | None:
        """The journal that the environment asks for; None where it asks for none."""
        if environment.journal_directory is None:
            return None
        name = f"{environment.run}-{environment.rank:05d}.jsonl"
        return cls(os.path.join(environment.journal_directory, name), environment.world_size)

    def part_done(self, part: Part | None, loss: Any, iteration: int) -> None:
        """A part of step `iteration` has ended, whose mean loss was `loss` (a number, or what gives one by `float`)."""
        if part is None or self._is_broken:
            return
        if part.samples:
            self._samples += part.indices
        if loss is not None:
            self._loss += float(loss) * part.weight
        if not part.completes_batch:
            return
        line = {
            "iteration": iteration,
            "time": time.time(),
            "worldSize": self._world_size,
            "samples": self._samples,
            "loss": self._loss,
        }
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            with open(self._path, "a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            self._is_broken = True
            logger.warning("the journal of steps ends here, training goes on: %s", error)
        self._samples, self._loss = [], 0.0
