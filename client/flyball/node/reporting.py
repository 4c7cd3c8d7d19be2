"""Reports to the agent how training goes on, in a thread beside it; nothing that happens here reaches the training."""

from __future__ import annotations

import logging
import time
from typing import Callable

from flyball.node.agent import AgentError, Caller

logger = logging.getLogger("flyball")

REPORT_SECONDS = 5.0
MAX_PAUSE_SECONDS = 60.0
# A clock that was asked for ends by itself, so that none outlives its training.
RENEW_SECONDS, ASKED_SECONDS = 5.0, 15.0
# What the agent takes.
MAX_WINDOW_SECONDS = 3600.0

# A step that has ended: how many have by then, when, and the samples that this process computed at once.
Done = tuple[int, float, int]


class Reporter:
    """Tells the agent of steps. `step_done` is all that the training calls: it stores a tuple or two.

    A window lies between the ends of two steps and contains nothing but steps: after what was none, such as a checkpoint,
    `interrupted` lets the next one begin a new window.
    """

    def __init__(self, agent: Caller, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._agent = agent
        self._monotonic = monotonic
        # Written by the training alone: the first step since it was interrupted, and the last one.
        self._first: Done | None = None
        self._last: Done | None = None
        # Written by the reports alone.
        self._seen_first: Done | None = None
        self._from: Done | None = None
        self._pause_seconds = 0.0
        self._not_before = 0.0
        self._warned = False
        self._wished: int | None = None
        self._wish_at = float("inf")
        self.clock_megahertz: int | None = None
        self.power_limit_milliwatts: int | None = None
        # Asked for with each report once somebody wants to see it.
        self.shows_energy = False
        self.energy_millijoules: int | None = None

    def step_done(self, iteration: int, local_batch_size: int) -> None:
        """A step of the whole job has ended now."""
        self._last = (iteration, self._monotonic(), local_batch_size)
        if self._first is None:
            self._first = self._last

    def interrupted(self) -> None:
        """What follows the last step was no step: its time belongs to no window."""
        self._first = None

    def wish_clock(self, max_megahertz: int | None) -> None:
        """Ask the agent for no clock above this from now on; None for whatever is granted."""
        self._wished, self._wish_at = max_megahertz, self._monotonic()

    def _ask_clock(self) -> None:
        """Ask again before the agent forgets it; raises AgentError."""
        now, wished = self._monotonic(), self._wished
        if self._wish_at <= now:
            self._wish_at = now + RENEW_SECONDS if wished is not None else float("inf")
            self._agent.call("PUT", "/v1/clocks", {"maxMegahertz": wished, "seconds": ASKED_SECONDS})

    def report_if_due(self) -> None:
        """Report every few seconds, but ever less often while the agent does not answer."""
        try:
            self._ask_clock()
        except AgentError as error:
            self._refused(error)
        if self._monotonic() >= self._not_before:
            self.report()

    def report(self) -> None:
        """Report what is new; raises nothing."""
        first = self._first
        last = self._last
        if first is None or last is None or self._first is not first:
            return
        if first is not self._seen_first:
            self._seen_first = self._from = first
        start = self._from or first
        if last[0] <= start[0]:
            return
        body = {
            "iterations": last[0],
            "windowIterations": last[0] - start[0],
            "windowSeconds": min(last[1] - start[1], MAX_WINDOW_SECONDS),
            "localBatchSize": last[2],
        }
        try:
            answer = self._agent.call("POST", "/v1/steps", body)
        except AgentError as error:
            self._pause_seconds = min(MAX_PAUSE_SECONDS, max(1.0, 2 * self._pause_seconds))
            self._not_before = self._monotonic() + self._pause_seconds
            self._refused(error)
            return
        self._pause_seconds = 0.0
        self._not_before = self._monotonic() + REPORT_SECONDS
        self._warned = False
        self._from = last
        self.clock_megahertz = _count(answer.get("clockMegahertz"))
        self.power_limit_milliwatts = _count(answer.get("powerLimitMilliwatts"))
        if self.shows_energy:
            try:
                self.energy_millijoules = _count(self._agent.call("GET", "/v1/energy").get("energyMillijoules"))
            except AgentError:
                self.energy_millijoules = None

    def _refused(self, error: AgentError) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("the node's agent does not hear this training, which goes on: %s", error)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
