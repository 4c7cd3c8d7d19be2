"""How one partition runs: at which clock, with how many SMs for its communication, launched beside which kernel.

Kareus (OSDI '26), section 4.1, "Decision variables"; appendix C, "Search space".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

NOT_OVERLAPPED = -1
"""`launch_kernel` of a communication that runs by itself, after every computation of its partition."""


NOTHING_WAITS = 1_000
"""How the surrogates see `last_kernel` None: beyond every kernel."""


@dataclass(frozen=True, slots=True)
class KernelSchedule:
    """One candidate: clock x SMs x launch timing.

    `launch_kernel` is the index of the computation kernel that the communication is launched together with, or
    `NOT_OVERLAPPED`. `last_kernel` is the last kernel allowed to run beside it; what follows waits for the communication
    to end (None: nothing waits). `threads_per_block` is of the communication kernel (0: its library's default).
    """

    clock_megahertz: int
    communication_sms: int
    launch_kernel: int
    last_kernel: int | None = None
    threads_per_block: int = 0

    @property
    def launch_timing(self) -> tuple[int, int | None]:
        """What is categorical about the schedule: which kernels run beside the communication."""
        return (self.launch_kernel, self.last_kernel)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> KernelSchedule:
        """The schedule that `to_json` wrote; raises TypeError where a field is missing or unknown."""
        return cls(**record)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one execution of a partition took under a schedule: seconds, and joules of all its GPUs together."""

    time_seconds: float
    energy_joules: float

    def dynamic_energy_joules(self, static_power_watts: float) -> float:
        """Energy above what the GPUs draw at rest (section 2.1): total less static power times time.

        Raises ValueError where that is not positive: the static power is then too high for the measurement.
        """
        dynamic = self.energy_joules - static_power_watts * self.time_seconds
        if not dynamic > 0:
            raise ValueError(
                f"{self.energy_joules} J in {self.time_seconds} s is no more than a static power of "
                f"{static_power_watts} W explains; the static power is of all the partition's GPUs, at rest"
            )
        return dynamic


def encode(schedules: Sequence[KernelSchedule], timings: Sequence[tuple[int, int | None]]) -> np.ndarray:
    """Features for the surrogates, shape (schedules, 6 + timings), whose launch timings are all among `timings`.

    Clock, SMs, threads per block, all threads of the communication, first and last kernel beside it, and the timing
    one-hot. The products and the positions are not in the paper; with them the same trees need fewer measurements.
    """
    column = {timing: index for index, timing in enumerate(timings)}
    features = np.zeros((len(schedules), 6 + len(timings)), dtype=np.float32)
    for row, schedule in enumerate(schedules):
        sms, threads = schedule.communication_sms, schedule.threads_per_block
        last = NOTHING_WAITS if schedule.last_kernel is None else schedule.last_kernel
        features[row, :6] = (schedule.clock_megahertz, sms, threads, sms * threads, schedule.launch_kernel, last)
        features[row, 6 + column[schedule.launch_timing]] = 1.0
    return features


def launch_timings(schedules: Iterable[KernelSchedule]) -> tuple[tuple[int, int | None], ...]:
    """The launch timings that occur, in a fixed order."""
    return tuple(sorted({s.launch_timing for s in schedules}, key=lambda t: (t[0], -2 if t[1] is None else t[1])))


def communication_sm_choices(group_gpus: int) -> tuple[int, ...]:
    """SMs to try for a communication among so many GPUs (appendix C: fewer than 4 GPUs 1-20, else 3-30 in threes)."""
    return tuple(range(1, 21)) if group_gpus < 4 else tuple(range(3, 31, 3))


def clock_choices(lowest_megahertz: int, highest_megahertz: int, step_megahertz: int) -> tuple[int, ...]:
    """Clocks to try, rising, the highest always among them (appendix C: 900 to 1410 MHz in steps of 30 on an A100)."""
    return tuple(reversed(range(highest_megahertz, lowest_megahertz - 1, -step_megahertz)))
