"""The power of each cap over the last hours, in bounded memory: what the chart draws.

A step keeps the worst that was seen in it, so that no breach is averaged away: the lowest cap, the highest committed bound
and the highest draw. Where nothing was known, nothing is kept, and the chart has a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

STEPS = 720
# More caps than a cluster has; the least recently seen one makes room.
MAX_CAPS = 64


@dataclass(frozen=True, slots=True)
class PowerSample:
    """What is known of one cap's power at a moment, in watts; None: not known."""

    cap: int | None = None
    committed: int | None = None
    measured: int | None = None


def _worse(one: int | None, other: int | None, *, lowest: bool = False) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other) if lowest else max(one, other)


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
        before = self._samples.get(step, PowerSample())
        self._samples[step] = PowerSample(
            cap=_worse(before.cap, sample.cap, lowest=True),
            committed=_worse(before.committed, sample.committed),
            measured=_worse(before.measured, sample.measured),
        )
        while self._samples and next(iter(self._samples)) <= step - self._steps:
            del self._samples[next(iter(self._samples))]

    def columns(self, step_seconds: float) -> dict[str, list[float | int | None]]:
        """The samples as columns: `time` in seconds since 1970, and watts; where steps are missing is a row of None."""
        times: list[float | int | None] = []
        rows: list[PowerSample] = []
        expected: int | None = None
        for step, sample in self._samples.items():
            if expected is not None and step > expected:
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
    """The histories of all caps over the last `seconds`, by their names."""

    def __init__(self, seconds: float, steps: int = STEPS, max_caps: int = MAX_CAPS) -> None:
        self.step_seconds = max(1.0, seconds / steps)
        self._steps = steps
        self._max_caps = max_caps
        self._caps: dict[str, CapHistory] = {}  # the least recently seen one first
        self.began: float | None = None

    def add(self, now: float, samples: Mapping[str, PowerSample]) -> None:
        """Take in what is known at `now`, in seconds since 1970; caps that are not named have a gap."""
        if self.began is None or now < self.began:
            self.began = now
        for name, sample in samples.items():
            history = self._caps.pop(name, None) or CapHistory(self._steps)
            history.add(int(now // self.step_seconds), sample)
            self._caps[name] = history
        for name in list(self._caps)[: max(0, len(self._caps) - self._max_caps)]:
            del self._caps[name]

    def names(self) -> Iterable[str]:
        return self._caps.keys()

    def document(self, name: str) -> dict[str, object] | None:
        """What the browser gets of one cap; None for one that was never seen."""
        history = self._caps.get(name)
        if history is None:
            return None
        return {
            "cap": name,
            "stepSeconds": self.step_seconds,
            "began": self.began,
            **history.columns(self.step_seconds),
        }
