"""Which point of its plan's frontier a pipeline is wanted at now, and of which straggler it is told: by a file that the
operator has kept up to date.

What a job's objective, deadline and grant ask for may change while it trains; the file is mounted into the pod, and is
written anew where the pod is.
"""

from __future__ import annotations

import json
import logging
import time
from datetime import datetime
from typing import Any, Callable, NamedTuple

from flyball.environment import OBJECTIVES, PipelineSection
from flyball.pipelines.plan import StagePlans

logger = logging.getLogger("flyball")

# An open, a read and a close of 200 bytes: 20 us.
LOOK_SECONDS = 0.25
MAX_BYTES = 4096


class _Straggler(NamedTuple):
    """Iterations take `degree` times as long between two moments, in seconds since the epoch, by the `replica` (None: by
    none of the job's)."""

    degree: float = 1.0
    replica: int | None = None
    since: float = float("-inf")
    until: float = float("inf")


class WantedPoint:
    """How long an iteration is to take now, and how much longer it takes by what somebody has told the job. What cannot be
    read changes nothing, for one warning."""

    def __init__(
        self,
        plans: StagePlans,
        section: PipelineSection,
        monotonic: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._plans = plans
        self._file = section.point_file
        self._monotonic = monotonic
        self._wall_clock = wall_clock
        self._look_at = float("-inf")
        self._warned = False
        self._seconds = plans.seconds_for(section.objective, section.iteration_seconds)
        self._straggler = _Straggler()
        self._text = ""  # by which both are

    def seconds(self) -> float:
        """By the file as it was within the last quarter of a second, else by what the process was started with."""
        self._look()
        return self._seconds

    def degree(self, replica: int) -> float:
        """How many times as long as it needs this replica takes an iteration now; 1: none says so, or it is slow itself."""
        self._look()
        slow = self._straggler
        waits = slow.degree > 1.0 and slow.replica != replica and slow.since <= self._wall_clock() < slow.until
        return slow.degree if waits else 1.0

    def _look(self) -> None:
        now = self._monotonic()
        if self._file is None or now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        try:
            with open(self._file, encoding="utf-8") as file:
                text = file.read(MAX_BYTES)
            if text.strip() and text != self._text:  # empty: nothing is told yet
                self._seconds, self._straggler = self._read(text)
                self._text = text
        except (OSError, ValueError, RecursionError) as error:
            if not self._warned:
                self._warned = True
                logger.warning("the pipeline's plan is not changed any more, training goes on: %s", error)

    def _read(self, text: str) -> tuple[float, _Straggler]:
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("objective") not in OBJECTIVES:
            raise ValueError(f"{self._file}: this is no point of a plan: {text[:80]!r}")
        seconds, megahertz = (_positive(document.get(name)) for name in ("iterationSeconds", "maxMegahertz"))
        return self._plans.seconds_for(document["objective"], seconds, megahertz), _straggler(document.get("straggler"))


def _straggler(found: Any) -> _Straggler:
    """Raises ValueError where it cannot be read."""
    if found is None:
        return _Straggler()
    if not isinstance(found, dict):
        raise ValueError(f"{found!r:.80} is no straggler")
    degree, replica = _positive(found.get("degree")), found.get("replica")
    if degree is None or not (replica is None or type(replica) is int):
        raise ValueError(f"{found!r:.80} is no straggler")
    return _Straggler(
        degree, replica, _instant(found.get("from"), float("-inf")), _instant(found.get("until"), float("inf"))
    )


def _instant(text: Any, missing: float) -> float:
    """Seconds since the epoch. Raises ValueError where it is no time like 2026-01-31T12:00:00Z."""
    return missing if text is None else datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%S%z").timestamp()


def _positive(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e12:
        raise ValueError(f"{value!r} is no number above 0")
    return float(value)
