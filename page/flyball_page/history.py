"""The power of each cap over the last hours, in bounded memory: what the chart draws.

A step keeps one sample, the one with the least distance to the cap: no breach is averaged away, and none is made up of a
cap and a draw of two different moments. The last hour is kept in short steps, and all of it in longer ones. Where nothing
was known, nothing is kept, and the chart has a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

STEPS = 720
# A sample that comes late on a busy machine leaves a step empty; that is no gap in what is known.
MISSED_STEPS = 1
FINE_SECONDS = 3600.0
# More caps than a cluster has; the least recently seen one makes room.
MAX_CAPS = 64


@dataclass(frozen=True, slots=True)
class PowerSample:
    """What is known of one cap's power at a moment, in watts; None: not known."""

    cap: int | None = None
    committed: int | None = None
    measured: int | None = None

    @property
    def order(self) -> tuple[bool, int, int]:
        """Smaller for the sample that matters more: the one nearest to its cap or furthest above it, else the highest."""
        most = max(self.committed or 0, self.measured or 0)
        return (self.cap is None, 0 if self.cap is None else self.cap - most, -most)


class CapHistory:
    """One cap's samples by step, at most `steps` of them."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._samples: dict[int, PowerSample] = {}  # by step, in order

    def add(self, step: int, sample: PowerSample) -> None:
        last = next(reversed(self._samples), None)
        if last is not None and step < last:
            # The clock went back: what was kept has no place in time any more.
            self._samples.clear()
        before = self._samples.get(step)
        self._samples[step] = sample if before is None else min(before, sample, key=lambda each: each.order)
        while self._samples and next(iter(self._samples)) <= step - self._steps:
            del self._samples[next(iter(self._samples))]

    def columns(self, step_seconds: float) -> dict[str, list[float | int | None]]:
        """The samples as columns: `time` in seconds since 1970, and watts; where steps are missing is a row of None."""
        times: list[float | int | None] = []
        rows: list[PowerSample] = []
        expected: int | None = None
        for step, sample in self._samples.items():
            if expected is not None and step > expected + MISSED_STEPS:
                times.append(expected * step_seconds)
                rows.append(PowerSample())
            times.append(step * step_seconds)
            rows.append(sample)
            expected = step + 1
        return {
            "time": times,
            "capWatts": [row.cap for row in rows],
            "committedWatts": [row.committed for row in rows],
            "measuredWatts": [row.measured for row in rows],
        }


class PowerHistory:
    """The histories of all caps by their names: over the last hour in short steps, and over the last `seconds`."""

    def __init__(self, seconds: float, steps: int = STEPS, max_caps: int = MAX_CAPS) -> None:
        self.fine_step_seconds = max(1.0, min(seconds, FINE_SECONDS) / steps)
        self.step_seconds = max(1.0, seconds / steps)
        self._steps = steps
        self._max_caps = max_caps
        self._caps: dict[str, tuple[CapHistory, CapHistory]] = {}  # fine and whole; the least recently seen one first
        self.began: float | None = None

    def add(self, now: float, samples: Mapping[str, PowerSample]) -> None:
        """Take in what is known at `now`, in seconds since 1970; caps that are not named have a gap."""
        if self.began is None or now < self.began:
            self.began = now
        for name, sample in samples.items():
            fine, whole = self._caps.get(name) or (CapHistory(self._steps), CapHistory(self._steps))
            fine.add(int(now // self.fine_step_seconds), sample)
            whole.add(int(now // self.step_seconds), sample)
            self._caps.pop(name, None)  # to the end of the order
            self._caps[name] = fine, whole
        for name in list(self._caps)[: max(0, len(self._caps) - self._max_caps)]:
            del self._caps[name]

    def names(self) -> Iterable[str]:
        return self._caps.keys()

    def document(self, name: str, *, whole: bool = False) -> dict[str, object] | None:
        """What the browser gets of one cap, the last hour or all that is kept; None for one that was never seen."""
        kept = self._caps.get(name)
        if kept is None:
            return None
        step_seconds = self.step_seconds if whole else self.fine_step_seconds
        return {"cap": name, "stepSeconds": step_seconds, "began": self.began, **kept[whole].columns(step_seconds)}
