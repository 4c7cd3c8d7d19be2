"""A row of GPUs behind a meter, for tests of the closed loop: what is drawn follows limits, and what is read follows late,
with noise, or not at all.

Limits and jobs are one number each: what matters here is the loop in time. The draw is what the jobs want under their
limits, and something that no limit governs; the meter averages it, is late, and has the faults that a test gives it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from flyball_api.power_cap import CapMeter
from flyball_operator.power.caps.meter import (
    NEVER_READ,
    MeteredLoad,
    MeterPhase,
    MeterReading,
    MeterState,
    follow_meter,
)

STEP_SECONDS = 1.0
ACKNOWLEDGED_SECONDS = 1.0


@dataclass(frozen=True)
class Sample:
    """One moment of a run, all in watts; `allowed` is what the meter lets limits add up to (the cap, where nothing)."""

    seconds: float
    cap: float
    limits: float
    allowed: float
    drawn: float
    read: float | None
    phase: MeterPhase
    silent: bool


@dataclass
class Plant:
    """A cap of `cap_watts` over GPUs that draw at least `least_watts`; every function is of the seconds since the start.

    `wanted` is what the GPUs would draw without limits, `hidden` what is drawn beside them that nobody told the cap,
    `meter_fault` turns what the meter should read into what it says (None: nothing).
    """

    meter: CapMeter
    cap: Callable[[float], float]
    wanted: Callable[[float], float]
    hidden: Callable[[float], float] = lambda seconds: 0.0
    meter_fault: Callable[[float, float], float | None] = lambda seconds, watts: watts
    least_watts: float = 300.0
    lag_seconds: float = 4.0
    noise_share: float = 0.0
    seed: int = 0
    restarts: tuple[float, ...] = ()  # when another leader takes over, with what a status says
    samples: list[Sample] = field(default_factory=list)

    def run(self, seconds: float) -> list[Sample]:
        """The samples of a run of so many seconds."""
        noise = random.Random(self.seed)
        state = MeterState(MeterPhase.WITHIN, 0.0)
        reading, limits = NEVER_READ, min(self.cap(0.0), self.wanted(0.0))
        pending: list[tuple[float, float]] = []
        drawn: list[float] = []
        next_read, restarts = 0.0, list(self.restarts)
        for step in range(int(seconds / STEP_SECONDS)):
            now = step * STEP_SECONDS
            cap = self.cap(now)
            if restarts and now >= restarts[0]:
                restarts.pop(0)
                phase = MeterPhase.WITHIN if state.allowed_watts is None else state.phase
                state = MeterState(phase, now, state.allowed_watts, changed_at=now)
            drawn.append(min(max(self.wanted(now), self.least_watts), limits) + self.hidden(now))
            if now >= next_read:
                next_read = now + self.meter.interval_seconds
                lag = int(self.lag_seconds / STEP_SECONDS)
                window = drawn[max(0, len(drawn) - 1 - lag) :]
                read = self.meter_fault(now, sum(window) / len(window))
                if read is not None:
                    reading = MeterReading(read * (1 + noise.gauss(0, self.noise_share)), now, None, "")
            load = MeteredLoad(cap, limits, self.least_watts, cap)
            state = follow_meter(self.meter, state, reading, load, now)
            granted = min(cap, cap if state.allowed_watts is None else state.allowed_watts)
            # A cut is in force once it is acknowledged; what it frees is granted no sooner.
            pending.append((now + ACKNOWLEDGED_SECONDS, granted))
            while pending and pending[0][0] <= now:
                limits = max(self.least_watts, pending.pop(0)[1])
            self.samples.append(
                Sample(now, cap, limits, granted, drawn[-1], reading.watts, state.phase, state.silence is not None)
            )
        return self.samples
