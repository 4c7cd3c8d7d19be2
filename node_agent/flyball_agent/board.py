"""What the enforcer remembers of each board, what it acknowledges, and what it counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from flyball_agent.core import Board, PodName, Purpose
from flyball_agent.gpu import DeviceLimits, DeviceReading, Gpu, GpuError, PowerLimitReading


@dataclass(slots=True)
class BoardState:
    """What the enforcer knows of one board. `gpu` is None for one that was here once and is not found now."""

    uuid: str
    index: int
    model: str
    limits: DeviceLimits
    held_milliwatts: int
    gpu: Gpu | None = None
    reading: DeviceReading | None = None
    limit: PowerLimitReading | None = None  # None: not readable now
    lock: tuple[int, int] | None = None
    lock_refused: str | None = None
    pods: tuple[PodName, ...] = ()
    purpose: Purpose = Purpose.UNTOUCHED
    error: GpuError | None = None
    set_error: str | None = None
    ours_milliwatts: int | None = None  # what we set last and read back so
    above_since_ns: int | None = None
    throttled_seconds: dict[int, float] = field(default_factory=dict)  # by reason bit, since this process started

    def view(self) -> Board:
        return Board(
            self.uuid,
            self.limits,
            self.held_milliwatts,
            None if self.limit is None else self.limit.requested_milliwatts,
            self.limit is not None,
            self.lock,
            self.pods,
        )


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The last spec that is in force as read back. `wall_time` (Unix seconds) is for people only."""

    epoch: int
    generation: int
    boot_id: str
    driver_incarnation: str
    limits_milliwatts: int
    wall_time: float

    @property
    def source(self) -> tuple[int, int, str, str]:
        """What was applied, and on which incarnation of the hardware."""
        return self.epoch, self.generation, self.boot_id, self.driver_incarnation


@dataclass(slots=True)
class Tally:
    """Counts since this process started."""

    drift_corrections: int = 0
    counter_resets: int = 0
    refused_specs: int = 0
    lease_renewals: int = 0
    lease_expiries: int = 0
    errors: Counter[tuple[str, int]] = field(default_factory=Counter)  # by (operation, NVML code)
    applied: Counter[str] = field(default_factory=Counter)  # sets by kind
    applied_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
