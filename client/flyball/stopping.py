"""When to stop, so that every process of the job stops after the same step and its state is one state.

Processes that only queue what a GPU is to compute are not all at the same step. So rank 0 asks the others, and each
promises not to go beyond the step that it is at, or the next one, before it knows when all stop: after the furthest of
those. Where one does not answer (it may be gone), rank 0 stops where it is, its state being whole; who hears nothing from
rank 0 leaves by itself.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any, Callable

from flyball.shared_values import SharedValues

EXIT_STATUS = 128 + signal.SIGTERM
ANSWER_SECONDS = 5.0
# How often a process that nobody asked looks whether another was.
LOOK_SECONDS = 1.0


class Stopping:
    """Whether this process has been asked to stop, and after which step it does. Without `values` it is alone."""

    def __init__(
        self,
        rank: int = 0,
        world_size: int = 1,
        values: SharedValues | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank = rank
        self._others = range(1, world_size) if values is not None else range(0)
        self._values = values
        self._monotonic = monotonic
        self._asked = False
        self._announced = False
        self._looked_at = monotonic()
        self._iteration = 0
        self._promised: int | None = None  # not to go beyond this step
        self._after: int | None = None
        self._promising = threading.Lock()
        self.agreed = True
        """Whether all processes leave after the same step, as far as this one knows."""
        self._before: Any = None
        if values is not None:
            answers = [f"answer-{other}" for other in self._others] if rank == 0 else []
            for name in ("asked", "stop", "after", *answers):
                values.declare(name)

    def ask(self) -> None:
        """Stop soon; may be called in a signal's handler."""
        self._asked = True

    @property
    def is_asked(self) -> bool:
        return self._asked

    def on_sigterm(self) -> bool:
        """Ask at SIGTERM, beside whatever handler there was; False where only the main thread could."""
        if threading.current_thread() is not threading.main_thread():
            return False
        before = self._before = signal.getsignal(signal.SIGTERM)
        process = os.getpid()

        def handle(number: int, frame: FrameType | None) -> None:
            if os.getpid() != process:  # a fork, such as a pool's worker, ends as it would without us
                signal.signal(number, before if before is not None else signal.SIG_DFL)
                os.kill(os.getpid(), number)
                return
            self.ask()
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGTERM, handle)
        return True

    def leave_sigterm(self) -> None:
        """Restore the handler that SIGTERM had before."""
        if self._before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def look(self) -> None:
        """What has to happen beside the training, a few times a second: tell the others, hear what they say."""
        values = self._values
        if values is None or not self._others or self._after is not None:
            return
        now = self._monotonic()
        if not self._asked and now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        if self._rank == 0:
            self._asked = self._asked or values.get("asked") is not None
            return
        if self._asked and not self._announced:
            values.put("asked", "yes")
            self._announced = True
        if self._promised is None and values.get("stop") is not None:
            with self._promising:  # the training may be ending a step at this moment
                self._promised = self._iteration + 1
            values.put(f"answer-{self._rank}", str(self._promised))

    def due(self, iteration: int) -> bool:
        """Whether to stop now, that many steps being done. Those that are asked may wait for each other here."""
        with self._promising:
            self._iteration = iteration
            promised = self._promised
        values = self._values
        if self._after is None:
            if values is None or not self._others:
                self._after = iteration if self._asked else None
            elif self._rank == 0:
                self._after = self._agree(values, iteration) if self._asked else None
            elif promised is not None and iteration >= promised:
                self._after = self._wait_for_decision(values, iteration)
        return self._after is not None and iteration >= self._after

    def _agree(self, values: SharedValues, iteration: int) -> int:
        """After which step all stop, as they have promised; this one where one does not answer."""
        until = self._monotonic() + ANSWER_SECONDS
        after = iteration
        try:
            values.put("stop", "yes")
            for other in self._others:
                answer = values.wait(f"answer-{other}", max(0.0, until - self._monotonic()), self._monotonic)
                if answer is None or not answer.isdecimal():
                    raise OSError(f"process {other} does not answer")
                after = max(after, int(answer))
            values.put("after", str(after))
        except OSError:
            self.agreed = False
            return iteration
        return after

    def _wait_for_decision(self, values: SharedValues, iteration: int) -> int:
        """After which step all stop, as rank 0 has decided; this one where no decision comes."""
        try:
            after = values.wait("after", 2 * ANSWER_SECONDS, self._monotonic)
        except OSError:
            after = None
        self.agreed = after is not None and after.isdecimal()
        return int(after) if after is not None and after.isdecimal() else iteration
