"""Measures a stage of a pipeline while it trains: seconds and joules of its computations at one clock after the other.

Perseus (SOSP 2024, section 5): from the highest clock downwards, until lower ones are slower and save nothing. Seconds
are those of each computation. Joules are those of the GPU between two readings of its counter, which come about once a
second: in each such stretch it computed so long of this, so long of that, and waited; what it draws in each follows from
several of them (`drawn_watts`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from statistics import median
from typing import Callable, NamedTuple, Optional

from flyball.pipelines.drawn_watts import WAITING, watts_of_each

logger = logging.getLogger("flyball")

# At each clock, after the iteration in which it comes: so many stretches between readings, and whole iterations.
STRETCHES, ITERATIONS = 12, 3
# Nothing is asked more often, whatever computations take.
READ_SECONDS = 0.4
# Two clocks in a row at which every computation needs so much more than at the best one before end the sweep. One alone
# may have been measured while the machine was busy with something else.
CLEARLY_MORE = 1.01
DEARER_CLOCKS = 2

# A GPU that runs further below the clock that it was asked for than this does not run at it.
SETTLED_MEGAHERTZ = 30

Reading = Optional["tuple[float, float, int | None]"]
"""When the GPU's counter was read, the joules that it showed, and the clock at that moment if it is known; None: nobody
knows."""


class Measured(NamedTuple):
    """What one kind of computation took at one clock."""

    instruction: str
    clock_megahertz: int
    seconds: float
    joules: float


class StageProfile:
    """The sweep of one stage over `clocks`. `read` gives the GPU's counter; the caller tells of what is computed.

    `clock_megahertz` is what the GPU is to run at now: None once it is `done`. `failed` says why there is no profile.
    """

    def __init__(self, clocks: Iterable[int], read: Callable[[], Reading]) -> None:
        self._left = sorted(set(clocks), reverse=True)
        self._read = read
        self._computed: list[tuple[str, float, float]] = []
        self._readings: list[tuple[float, float]] = []
        self._looked_at = float("-inf")
        self._iterations = -1  # that in which the clock comes measures nothing
        self._unread = self._fastest = self._dearer = 0
        self._clocks: list[dict[str, Measured]] = []
        self._waiting: list[float] = []
        self.failed = "" if self._left else "there are no clocks to measure at"

    @property
    def done(self) -> bool:
        return not self._left or bool(self.failed)

    @property
    def clock_megahertz(self) -> int | None:
        return None if self.done else self._left[0]

    @property
    def rows(self) -> list[Measured]:
        """What was measured so far."""
        return [measured for at_clock in self._clocks for measured in at_clock.values()]

    @property
    def waiting_watts(self) -> float | None:
        """What the GPU draws while it waits, at the lowest clock that was measured; None while that is not known."""
        return self._waiting[-1] if self._waiting else None

    def computed(self, instruction: str, began: float, ended: float) -> None:
        """One computation has ended; the counter is read where that is due."""
        if self.done or self._iterations < 0:
            return
        self._computed.append((instruction, began, ended))
        if ended - self._looked_at >= READ_SECONDS:
            self._look(ended)

    def _look(self, now: float) -> None:
        self._looked_at = now
        found = self._read()
        if found is None:
            self._unread += 1
            if self._unread > 10:
                self.failed = "the agent at FLYBALL_SOCKET does not say what this GPU uses"
        elif not self._readings or found[0] > self._readings[-1][0] + READ_SECONDS / 2:
            self._readings.append(found[:2])
            self._fastest = max(self._fastest, found[2] or 0)

    def iteration_over(self) -> None:
        """All computations of an iteration are done: go on to the next clock, where this one is known."""
        if self.done:
            return
        self._iterations += 1
        if self._iterations < ITERATIONS or len(self._inside()) <= STRETCHES:
            return
        solved, fastest, clock = self._solve(), self._fastest, self._left.pop(0)
        self._computed, self._readings, self._iterations, self._fastest = [], [], -1, 0
        if 0 < fastest < clock - SETTLED_MEGAHERTZ:
            logger.info("not measured at %d MHz: the GPU ran at %d", clock, fastest)
            if not self._left and not self._clocks:
                self.failed = f"the GPU ran at none of its clocks, but at {fastest} MHz"
            return
        self._clocks.append(solved)
        logger.info("measured at %d MHz: %s", clock, list(solved.values()))
        self._dearer = self._dearer + 1 if len(self._clocks) > 1 and self._needs_more_than_before() else 0
        if self._dearer == DEARER_CLOCKS:
            self._left = []

    def _inside(self) -> list[tuple[float, float]]:
        """The readings of a time of which it is known what was computed."""
        if not self._computed:
            return []
        began, ended = self._computed[0][1], self._computed[-1][2]
        return [reading for reading in self._readings if began <= reading[0] <= ended]

    def _solve(self) -> dict[str, Measured]:
        clock, names = self._left[0], sorted({name for name, _, _ in self._computed})
        watts = watts_of_each(self._computed, self._inside())
        self._waiting.append(watts[WAITING])
        return {
            name: Measured(name, clock, seconds, seconds * watts[name])
            for name in names
            for seconds in (median(ended - began for own, began, ended in self._computed if own == name),)
        }

    def _needs_more_than_before(self) -> bool:
        now, before = self._clocks[-1], self._clocks[:-1]
        return all(
            measured.joules > CLEARLY_MORE * min(other[name].joules for other in before if name in other)
            for name, measured in now.items()
            if any(name in other for other in before)
        )


def csv_of(stage: int, rows: Iterable[Measured]) -> str:
    """The rows of one stage as `flyball frontier --profile` reads them, without the header."""
    return "".join(f"{stage},{line}\n" for line in rows_of(rows).splitlines())


def rows_of(rows: Iterable[Measured]) -> str:
    """The same without the stage: `forward,1410,0.150000000,27.000000`, instruction, megahertz, seconds and joules."""
    return "".join(f"{row.instruction},{row.clock_megahertz},{row.seconds:.9f},{row.joules:.6f}\n" for row in rows)
