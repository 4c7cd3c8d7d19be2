"""Pauses before a job is started again: short at first, doubled each time that a start comes to nothing.

A job that a cap has paused soon after its start waits, too: a cap that goes up and down must not start it each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

# The longest pause, as a multiple of the first: 10 s grow to 10 min.
LONGEST_OF_FIRST = 60
# A job that waits for longer than this gives its GPUs and watts to others meanwhile.
GIVES_BACK_AFTER_SECONDS = 30.0
# Before the API server is asked again for what it has refused; twice as long each time.
FIRST_REFUSAL_SECONDS = 10.0
LONGEST_REFUSAL_SECONDS = 600.0
# No pause is doubled more often: by then each has come to its longest, and a float holds it.
MOST_DOUBLINGS = 16


def doubled_seconds(first_seconds: float, doublings: int, longest_seconds: float) -> float:
    """A pause that was doubled so often, and is at most the longest."""
    return min(first_seconds * 2.0 ** min(doublings, MOST_DOUBLINGS), longest_seconds)


def refusal_seconds(refused_before: int) -> float:
    """How long to wait before something is asked for again that the API server refuses, and has refused so often before."""
    return doubled_seconds(FIRST_REFUSAL_SECONDS, refused_before, LONGEST_REFUSAL_SECONDS)


def pause_seconds(first_seconds: float, repeats: int) -> float:
    """The pause after so many starts in a row that came to nothing, the last included; none before the first."""
    if repeats < 1:
        return 0.0
    return doubled_seconds(first_seconds, repeats - 1, first_seconds * LONGEST_OF_FIRST)


@dataclass(frozen=True, slots=True)
class Pause:
    """A job is not started before `until` (monotonic seconds; `until_time` by the calendar), after `repeats` in a row.

    `gives_back`: others may have its GPUs and watts meanwhile. `reason` is one of BACK_OFF_REASONS, `message` says what
    happened.
    """

    until: float
    until_time: datetime
    reason: str
    message: str
    repeats: int
    gives_back: bool

    def over(self, monotonic: float) -> bool:
        return monotonic >= self.until


FAILED, DISRUPTED, NOT_STARTED = "RestartBackOff", "DisruptionBackOff", "StartTimedOut"
POWER_PAUSED = "PowerBackOff"
BACK_OFF_REASONS = frozenset({FAILED, DISRUPTED, NOT_STARTED, POWER_PAUSED})
# In these pauses others may have the GPUs and watts however short they are; a changed spec ends them.
NOT_OF_A_FAILURE = frozenset({NOT_STARTED, POWER_PAUSED})
