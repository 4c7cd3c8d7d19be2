"""What is drawn outside the GPUs, as a cap's meter and the agents' reports show it together: a figure for people.

It is what `staticOverheadWatts` should say. The meter is read every few seconds and the reports are up to half a minute
old, so that a job's start or end shows for a while as overhead that is none: the middle of two minutes is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

WINDOW_SECONDS = 120.0
SHORTEST_SECONDS = 60.0
# Of the cap: a figure is shown anew where it has moved by so much.
SHOWN_SHARE = 0.01
MAX_SAMPLES = 256


@dataclass(frozen=True, slots=True)
class Overhead:
    """The watts as they are shown (None: not known yet), and the differences whose middle they are, with their times."""

    watts: int | None = None
    samples: tuple[tuple[float, float], ...] = ()


NOT_KNOWN = Overhead()


def follow_overhead(before: Overhead, metered_watts: float, gpu_watts: float, cap_watts: float, now: float) -> Overhead:
    """The overhead after a new reading of the meter, of which the GPUs report to draw `gpu_watts`."""
    kept = (sample for sample in before.samples[-MAX_SAMPLES:] if now - sample[0] <= WINDOW_SECONDS)
    samples = (*kept, (now, max(0.0, metered_watts - gpu_watts)))
    if samples[-1][0] - samples[0][0] < SHORTEST_SECONDS:
        return Overhead(before.watts, samples)
    middle = median(watts for _, watts in samples)
    moved = before.watts is None or abs(middle - before.watts) > SHOWN_SHARE * cap_watts
    return Overhead(round(middle) if moved else before.watts, samples)
