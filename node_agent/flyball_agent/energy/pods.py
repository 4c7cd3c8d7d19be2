"""The pods that hold GPUs now, each with its recent energy and clocks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW_SAMPLES = 600


class Window:
    """The recent energy and clock of one pod, a sample a tick: bounded, and exact between samples by interpolation."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int, int | None]] = deque(maxlen=WINDOW_SAMPLES)

    def add(self, time_ns: int, energy_millijoules: int, clock_megahertz: int | None) -> None:
        if not self._samples or time_ns > self._samples[-1][0]:
            self._samples.append((time_ns, energy_millijoules, clock_megahertz))

    def energy_millijoules(self, start_ns: int, end_ns: int) -> int | None:
        """What was used in between; past the last sample by the last rate. None where there are not two samples."""
        if len(self._samples) < 2:
            return None
        return max(0, round(self._at(end_ns) - self._at(max(start_ns, self._samples[0][0]))))

    def _at(self, time_ns: int) -> float:
        samples = self._samples
        index = len(samples) - 1
        while index > 1 and samples[index - 1][0] >= time_ns:
            index -= 1
        (t0, e0, _), (t1, e1, _) = samples[index - 1], samples[index]
        return e0 + (e1 - e0) * (time_ns - t0) / (t1 - t0)

    def clock_megahertz(self, start_ns: int, end_ns: int) -> int | None:
        """The mean of the clocks sampled in between (the last one, where none was); None where none is known."""
        clocks = [clock for time_ns, _, clock in self._samples if start_ns < time_ns <= end_ns and clock is not None]
        if clocks:
            return round(sum(clocks) / len(clocks))
        return self._samples[-1][2] if self._samples else None


@dataclass(slots=True)
class PodOnGpus:
    """A pod that holds GPUs now. `energy_key` is its name in the accounts, `uid` None until it is known.

    `devices` are what it was handed out, as the kubelet names them: for as long as a pod lives they stay the same.
    """

    energy_key: str
    gpus: int
    uid: str | None = None
    shared: bool = False  # some GPU is another pod's, too
    devices: frozenset[str] = frozenset()
    window: Window = field(default_factory=Window)
