"""Which point of its plan's frontier a pipeline is wanted at now: by a file that the operator has kept up to date.

What a job's objective, deadline and grant ask for may change while it trains; the file is mounted into the pod, and is
written anew where the pod is.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any, Callable

from flyball.environment import OBJECTIVES, PipelineSection
from flyball.pipelines.plan import StagePlans

logger = logging.getLogger("flyball")

LOOK_SECONDS = 1.0
MAX_BYTES = 4096


class WantedPoint:
    """How long an iteration is to take now. What cannot be read changes nothing, for one warning."""

    def __init__(
        self, plans: StagePlans, section: PipelineSection, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._plans = plans
        self._file = section.point_file
        self._monotonic = monotonic
        self._look_at = float("-inf")
        self._warned = False
        self._seconds = plans.seconds_for(section.objective, section.iteration_seconds)

    def seconds(self) -> float:
        """By the file as it was within the last second, else by what the process was started with."""
        now = self._monotonic()
        if self._file is not None and now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            try:
                with open(self._file, encoding="utf-8") as file:
                    self._seconds = self._read(file.read(MAX_BYTES))
            except (OSError, ValueError, RecursionError) as error:
                if not self._warned:
                    self._warned = True
                    logger.warning("the pipeline's plan is not changed any more, training goes on: %s", error)
        return self._seconds

    def _read(self, text: str) -> float:
        if not text.strip():  # nothing is told yet
            return self._seconds
        told = json.loads(text)
        if not isinstance(told, dict) or told.get("objective") not in OBJECTIVES:
            raise ValueError(f"{self._file}: this is no point of a plan: {text[:80]!r}")
        seconds, megahertz = (_positive(told.get(name)) for name in ("iterationSeconds", "maxMegahertz"))
        return self._plans.seconds_for(told["objective"], seconds, megahertz)


def _positive(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e12:
        raise ValueError(f"{value!r} is no number above 0")
    return float(value)
