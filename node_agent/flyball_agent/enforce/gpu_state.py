"""What the agent knows of one GPU, as data: its limits as read back, its clock lock, the pods that hold it, what failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from flyball_api.values.units import MilliwattsPerGpu
from msgspec import Struct
from msgspec.structs import replace

from flyball_agent.enforce.set_latencies import SetLatency
from flyball_agent.gpu.gpu import CallTimedOut, DriverUnavailable, GpuError, GpuLimits, GpuReading, PowerLimitReading

# NVIDIA's list has fewer.
MAX_XID_KINDS = 256


class PodName(Struct, frozen=True):
    """A pod by namespace and name."""

    namespace: str
    name: str


class ClockLock(Struct, frozen=True):
    """What an SM clock is locked to: a range in megahertz, or nothing (`UNLOCKED`)."""

    min_megahertz: int
    max_megahertz: int

    @property
    def is_range(self) -> bool:
        return self.max_megahertz > 0


UNLOCKED = ClockLock(0, 0)


class TargetPurpose(StrEnum):
    """Why a GPU has its target."""

    JOB = "job"
    IDLE = "idle"
    FOREIGN = "foreign"
    UNTOUCHED = "untouched"
    UNKNOWN = "unknown"


class Holders(StrEnum):
    """What is known of the pods that hold a GPU. Only a GPU that is known to have none is idle."""

    KNOWN = "known"
    UNRESOLVED = "unresolved"  # a pod holds a device of which it is not known which GPU it is: perhaps this one
    NOT_LISTED = "not-listed"  # the pods have not been listed yet in this process


@dataclass(frozen=True, slots=True)
class GpuFailure:
    """Why a GPU cannot be read now; `keeps_limits` where it surely keeps the limits that it had meanwhile."""

    reason: str
    message: str
    keeps_limits: bool

    @classmethod
    def of(cls, error: GpuError) -> Self:
        return cls(error.reason, str(error), error.keeps_limits)


# A driver that says it has set a limit, and still reads back less after so long, never will.
COMING_NS = 10_000_000_000


# Of more limits that are to come, the higher of the first two stands for both.
MAX_COMING = 8


class ComingLimits(Struct, frozen=True):
    """The limits that a GPU was set to and may have yet to take, in the order in which its driver works them off, and when
    it was set last. The first may be the one that it has. Of `MAX_COMING` there may have been more."""

    limits_milliwatts: tuple[MilliwattsPerGpu, ...]
    asked_ns: int

    def may_come(self, now_ns: int) -> bool:
        """Whether any may still be taken."""
        return now_ns - self.asked_ns < COMING_NS

    def after(self, new_milliwatts: MilliwattsPerGpu, now_ns: int) -> ComingLimits:
        """With another one asked for."""
        limits = self.limits_milliwatts if self.may_come(now_ns) else ()
        if limits[-1:] != (new_milliwatts,):
            limits = (*limits, new_milliwatts)
        if len(limits) > MAX_COMING:
            limits = max(limits[:2]), *limits[2:]
        return ComingLimits(limits, now_ns)

    def once_read(self, requested_milliwatts: MilliwattsPerGpu) -> ComingLimits | None:
        """Those from the first one on that the GPU has been read to have; None where there is no other.

        Where there may have been more, the one that it has may be one of those: all may come then, as long as any may.
        """
        if requested_milliwatts not in self.limits_milliwatts or len(self.limits_milliwatts) >= MAX_COMING:
            return self
        left = self.limits_milliwatts[self.limits_milliwatts.index(requested_milliwatts) :]
        return replace(self, limits_milliwatts=left) if len(left) > 1 else None


class LimitRefusal(Struct, frozen=True):
    """A GPU did not take a limit: how many times in a row it was asked, and when last."""

    limit_milliwatts: MilliwattsPerGpu
    times: int
    asked_ns: int


class GpuState(Struct, frozen=True):
    """One GPU as the agent knows it now. `held_milliwatts` is the most that its limit may allow.

    `index` is -1 for a GPU that was here once and is not found now. `limit` is None while it cannot be read, `lock`
    where it is not known what the clock is locked to, and `lock_coming` what it is being locked to by the last call that
    has yet to return. `ours_milliwatts` is the limit that the agent set last and read back,
    and `before_drift_milliwatts` what that was when another hand had changed it, until the agent has set it anew. `coming`
    is what it was set to with success and does not read back: it may take that yet. At `forgotten_ns` it was perhaps set
    last to what nobody remembers (None: what it was set to is known).
    """

    uuid: str
    index: int
    model: str
    limits: GpuLimits
    held_milliwatts: MilliwattsPerGpu
    reading: GpuReading | None = None
    limit: PowerLimitReading | None = None
    lock: ClockLock | None = None
    lock_coming: ClockLock | None = None
    lock_set_ns: int = 0  # when it was set last
    lock_drifts: int = 0  # how many times in a row the clock was found above it since
    lock_refused: str | None = None
    set_latency: SetLatency | None = None  # of the calls that have set its clock in this driver session
    pods: tuple[PodName, ...] = ()
    holders: Holders = Holders.KNOWN
    purpose: TargetPurpose = TargetPurpose.UNTOUCHED
    failure: GpuFailure | None = None
    set_error: str | None = None
    refusal: LimitRefusal | None = None
    coming: ComingLimits | None = None
    forgotten_ns: int | None = None
    ours_milliwatts: MilliwattsPerGpu | None = None
    before_drift_milliwatts: MilliwattsPerGpu | None = None
    above_since_ns: int | None = None  # since when it holds more than its target
    stays_above: bool = False  # for longer than a limit takes to settle
    throttled_seconds: Mapping[int, float] = {}  # by bit of ThrottleReason, since this process started
    xid_errors: Mapping[int, int] = {}  # how often the driver has reported which, since this process started
    last_xid: int | None = None  # in this driver session

    @property
    def usable(self) -> bool:
        """It can be read, and so be set."""
        return self.limit is not None

    @property
    def requested_milliwatts(self) -> MilliwattsPerGpu | None:
        return None if self.limit is None else self.limit.requested_milliwatts

    @property
    def next_lock(self) -> ClockLock | None:
        """What its clock is locked to once every call has returned; None where that is not known."""
        return self.lock if self.lock_coming is None else self.lock_coming

    def coming_milliwatts(self, now_ns: int) -> tuple[MilliwattsPerGpu, ...]:
        """The limits that it was set to and may have yet to take, in order."""
        return self.coming.limits_milliwatts if self.coming is not None and self.coming.may_come(now_ns) else ()

    def anything_may_come(self, now_ns: int) -> bool:
        """Whether it was perhaps set to a limit that nobody remembers, and may take that yet, whatever it is read to have:
        that may be by an earlier set. One that cannot be read counts at its largest limit then."""
        return self.usable and self.forgotten_ns is not None and now_ns - self.forgotten_ns < COMING_NS

    def gap_is_over(self, now_ns: int) -> bool:
        """Whether nothing that nobody remembers may come any more; of one that hangs, or of whose driver nothing is heard,
        it may, however long that lasts."""
        if self.forgotten_ns is None:
            return True
        failure = self.failure
        unheard = failure is not None and (not failure.keeps_limits or failure.reason == CallTimedOut.reason)
        return not unheard and now_ns - self.forgotten_ns >= COMING_NS

    def changed(self, **fields: Any) -> GpuState:
        """The same GPU with some fields changed."""
        return replace(self, **fields)

    def as_known(self, before: GpuState, now_ns: int) -> GpuState:
        """The GPU as a driver that was opened anew shows it, with what was known of it before: it may have hung all the
        while in the call that sets its limit."""
        return replace(
            self,
            pods=before.pods,
            holders=before.holders,
            coming=before.coming and replace(before.coming, asked_ns=now_ns),
            forgotten_ns=None if before.forgotten_ns is None else now_ns,
            throttled_seconds=before.throttled_seconds,
        )

    def read(self, reading: GpuReading, now_ns: int, elapsed_seconds: float) -> GpuState:
        """The GPU after it was read, `elapsed_seconds` after the last time. One that failed before was perhaps reset,
        which removes locks."""
        limit = reading.limit
        coming = self.coming and self.coming.once_read(limit.requested_milliwatts)
        known = self.forgotten_ns is None or now_ns - self.forgotten_ns >= COMING_NS
        return replace(
            self,
            reading=reading,
            limit=limit,
            coming=coming,
            forgotten_ns=None if known else self.forgotten_ns,
            held_milliwatts=_held(limit, coming, now_ns),
            failure=None,
            lock=self.lock if self.failure is None else None,
            throttled_seconds=_add(self.throttled_seconds, reading.throttle_reasons, elapsed_seconds),
        )

    def failed(self, error: GpuError) -> GpuState:
        """The GPU after it could not be read: what it held last stays reserved, and all that it may be set to where nobody
        knows what is to come."""
        held = (
            self.held_milliwatts if self.forgotten_ns is None else max(self.held_milliwatts, self.limits.max_milliwatts)
        )
        return replace(self, failure=GpuFailure.of(error), reading=None, limit=None, held_milliwatts=held)

    def forgotten(self, now_ns: int) -> GpuState:
        """The GPU once it is known that it was perhaps set to what nobody remembers."""
        held = self.held_milliwatts if self.usable else max(self.held_milliwatts, self.limits.max_milliwatts)
        return replace(self, forgotten_ns=now_ns, held_milliwatts=held)

    def hanging(self, now_ns: int, looked_ns: int) -> GpuState:
        """The GPU while a call on it has not returned, when it was looked at last at `looked_ns`: perhaps the one that sets
        its limit, which may be taken late after that, however long nobody has looked. What nobody remembers was asked for
        before: for that the clock stands still meanwhile."""
        hung_before = self.failure is not None and self.failure.reason == CallTimedOut.reason
        coming = self.coming
        if coming is not None:
            coming = replace(coming, asked_ns=now_ns) if hung_before or coming.may_come(now_ns) else None
        forgotten_ns = None if self.forgotten_ns is None else min(self.forgotten_ns + now_ns - looked_ns, now_ns)
        return replace(self, coming=coming, forgotten_ns=forgotten_ns)

    def after_set(
        self,
        new_milliwatts: MilliwattsPerGpu,
        outcome: GpuError | None,
        read_back: PowerLimitReading | GpuError,
        now_ns: int,
    ) -> GpuState:
        """The GPU after its limit was set and read back: what counts is what was read, whatever the setter returned."""
        set_error = None if outcome is None else str(outcome)
        coming = self.coming
        # Any other error says that nothing comes of it. A worker that is gone may have made the call before.
        if outcome is None or isinstance(outcome, CallTimedOut | DriverUnavailable):
            coming = (coming or ComingLimits((), now_ns)).after(new_milliwatts, now_ns)
        if isinstance(read_back, GpuError):
            failed = self.failed(read_back)
            held = max(failed.held_milliwatts, new_milliwatts)
            failed = replace(failed, set_error=set_error, held_milliwatts=held, ours_milliwatts=None, refusal=None)
            return replace(failed, coming=coming)
        taken = read_back.requested_milliwatts == new_milliwatts
        if not taken and set_error is None:
            set_error = (
                f"{self.uuid}: set to {new_milliwatts} mW with success, reads back {read_back.requested_milliwatts} mW"
            )
        coming = coming and coming.once_read(read_back.requested_milliwatts)
        last = self.refusal
        times = last.times + 1 if last is not None and last.limit_milliwatts == new_milliwatts else 1
        return replace(
            self,
            set_error=set_error,
            refusal=None if taken else LimitRefusal(new_milliwatts, times, now_ns),
            limit=read_back,
            coming=coming,
            held_milliwatts=_held(read_back, coming, now_ns),
            ours_milliwatts=new_milliwatts if taken else None,
            before_drift_milliwatts=None if taken else self.before_drift_milliwatts,
        )

    def forgotten_by_driver(self) -> GpuState:
        """The GPU after its driver was loaded anew, or it was reset: nothing that the agent set is in force any more."""
        return replace(
            self,
            lock=None,
            set_latency=None,
            coming=None,
            forgotten_ns=None,
            ours_milliwatts=None,
            before_drift_milliwatts=None,
            last_xid=None,
        )

    def reported(self, xid: int) -> GpuState:
        """The GPU after its driver has reported an Xid error. Of more kinds than there are, only the first are counted."""
        counts = dict(self.xid_errors)
        if xid in counts or len(counts) < MAX_XID_KINDS:
            counts[xid] = counts.get(xid, 0) + 1
        return replace(self, xid_errors=counts, last_xid=xid)


def _held(limit: PowerLimitReading, coming: ComingLimits | None, now_ns: int) -> MilliwattsPerGpu:
    held = limit.held_milliwatts
    if coming is None or not coming.may_come(now_ns):
        return held
    return max(held, *coming.limits_milliwatts)


def _add(seconds: Mapping[int, float], reasons: int, elapsed_seconds: float) -> Mapping[int, float]:
    if not reasons:
        return seconds
    added = dict(seconds)
    while reasons:
        bit = reasons & -reasons
        added[bit] = added.get(bit, 0.0) + elapsed_seconds
        reasons ^= bit
    return added
