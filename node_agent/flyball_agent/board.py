"""What the enforcer remembers of each board, what it acknowledges, and what it counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from flyball_agent.core import Board, PodName, Purpose
from flyball_agent.gpu import DeviceLimits, DeviceReading, Gpu, GpuDriver, GpuError, GpuNotFound, PowerLimitReading
from flyball_agent.journal import JournalState


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


def find_boards(driver: GpuDriver, journal: JournalState, *, half_set: bool) -> dict[str, BoardState]:
    """Every board that the driver shows, and those that the journal remembers and the driver does not show, by UUID.

    Before it is read, a board may hold the most that it can; or, where the journal's last set of it was in this very
    incarnation of the driver (`half_set`), the larger of what it was and what it was to be.
    """

    def most(uuid: str, limits: DeviceLimits) -> int:
        intent = journal.intents.get(uuid)
        if intent is None or not half_set:
            return limits.max_milliwatts
        return max(intent.old_milliwatts, intent.new_milliwatts)

    boards = {
        gpu.uuid: BoardState(gpu.uuid, gpu.index, gpu.model, gpu.limits, most(gpu.uuid, gpu.limits), gpu)
        for gpu in driver.gpus()
    }
    for known in journal.boards.values():
        if known.uuid not in boards:
            limits = DeviceLimits(known.min_milliwatts, known.max_milliwatts, known.default_milliwatts)
            missing = BoardState(known.uuid, -1, known.model, limits, most(known.uuid, limits))
            missing.error = GpuNotFound("find", known.uuid, detail="the board was here before and is not found now")
            boards[known.uuid] = missing
    return boards


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
