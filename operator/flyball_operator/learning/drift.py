"""Whether a job has become another one: measured where it was measured before, it takes longer or draws more, or less.

A mean follows a change within fifty windows, and what was measured at other sizes and clocks never does by itself. So what
a changed job was before is dropped, not averaged away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from flyball_operator.learning.profiles import Point, Profile, Summary

# A window that is further off than this from what was measured there before, so often in a row, is no noise.
DRIFT_SHARE, DRIFT_WINDOWS = 0.15, 10
# A mean of fewer windows than this is no measure of a change.
LEAST_SAMPLES = 3


class Measured(NamedTuple):
    """One window: where, seconds and joules of an iteration, and when it ended."""

    point: Point
    seconds: float
    joules: float
    at: datetime


@dataclass(slots=True)
class ProfileDrift:
    """The last windows of a profile in a row that were off, and what had been measured there before the first of them."""

    before: dict[Point, Summary] = field(default_factory=dict)
    windows: list[Measured] = field(default_factory=list)

    def take_in(self, profile: Profile, window: Measured) -> Sequence[Measured]:
        """Take in one more window; returns those that are all that still holds, where it is the last of enough in a row.

        `profile` is that before this window. A window where nothing was measured before says nothing.
        """
        known = self.before.get(window.point) or profile.points.get(window.point)
        if known is None or known.samples < LEAST_SAMPLES:
            return ()
        if not _is_off(known, window):
            self.before, self.windows = {}, []
            return ()
        self.before[window.point] = known
        self.windows.append(window)
        if len(self.windows) < DRIFT_WINDOWS:
            return ()
        found, self.before, self.windows = self.windows, {}, []
        return found


def measured_anew(profile: Profile, windows: Sequence[Measured]) -> Profile:
    """The profile with these windows alone, and no fit; the runs of a recurring job are what they cost then, and stay."""
    anew = replace(profile, points={}, fit=None, drifted_at=windows[-1].at)
    for window in windows:
        anew = anew.with_window(*window)
    return anew


def _is_off(known: Summary, window: Measured) -> bool:
    seconds = abs(window.seconds - known.seconds) > DRIFT_SHARE * known.seconds
    joules = known.joules > 0 and abs(window.joules - known.joules) > DRIFT_SHARE * known.joules
    return seconds or joules
