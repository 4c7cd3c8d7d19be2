"""After which step all processes save together, without waiting for each other while they train.

Rank 0, once it is time, asks for a turn; beside their training the others see that and answer, and look after each of their
steps from then on. When all have answered, rank 0 says at the end of a step after which one is saved: in synchronous
training no other can have ended that, which rank 0 has to begin, too.
"""

from __future__ import annotations

import time
from typing import Callable

from flyball.shared_values import SharedValues
from flyball.state.together import Together

# How often a process looks, beside its training, whether a turn is asked for.
LOOK_SECONDS = 1.0
# A process may be so far ahead of rank 0, whose computations it has only queued.
LEAD_STEPS = 2


class SaveTurns:
    """`ask` where it is time (rank 0), `look` beside the training, `due` after each step; without `values` a process is
    alone."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        values: SharedValues | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rank = rank
        self._alone = values is None or world_size == 1
        self._turns = Together("turn", rank, world_size, values, monotonic)
        self._monotonic = monotonic
        self._look_at = float("-inf")
        self._number = 0  # of the turn that is asked for, or was last
        self._asked = False  # a turn is asked for, and its step is not known yet
        self._answered = False  # by all, as rank 0 sees it
        self._after: int | None = None

    @property
    def is_asked(self) -> bool:
        """Whether a turn is on its way."""
        return self._asked or self._after is not None

    def ask(self) -> None:
        """Rank 0: save with all as soon as may be. Raises OSError."""
        self._turns.begin(self._number + 1, "asked")
        self._number += 1
        self._asked, self._answered = True, self._alone

    def look(self) -> None:
        """What has to happen beside the training, a few times a second. Raises OSError."""
        now = self._monotonic()
        if self._alone or (now < self._look_at and not (self._rank == 0 and self._asked)):
            return
        self._look_at = now + LOOK_SECONDS
        if self._rank == 0:
            if self._asked and not self._answered:
                self._answered = not self._turns.all_done(self._number, 0.0)
            return
        found = self._turns.newest("begun")
        if found is not None and found[0] > self._number:
            self._number, self._asked = found[0], True
            self._turns.done(self._number, well=True)

    def due(self, iteration: int) -> int | None:
        """The step after which all processes save, once that step is done; None before.

        `iteration` steps are done here. It is a past one where this process missed it. Raises OSError.
        """
        if self._asked:
            self._take_step(iteration)
        after = self._after
        if after is None or iteration < after:
            return None
        self._after = None
        return after

    def _take_step(self, iteration: int) -> None:
        if self._rank != 0:
            found = self._turns.newest("ended")
            if found is not None and found[0] == self._number:
                self._asked, self._after = False, int(found[1])
        elif self._answered:
            self._asked = False
            self._after = iteration if self._alone else iteration + LEAD_STEPS
            self._turns.end(self._number, str(self._after))
