"""Everything that the enforcer knows, as data: what the status and the metrics of a node are made from."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from flyball_api.gpu_node import Acknowledgement, DriverSession
from flyball_api.grant import Grant
from flyball_api.values.units import NodeMilliwatts

from flyball_agent.clock import NANOSECONDS
from flyball_agent.enforce.brakes import Followed, Seen, braked
from flyball_agent.enforce.decisions import Mode, mode_of, total_held_milliwatts
from flyball_agent.enforce.gpu_state import GpuState, PodName
from flyball_agent.enforce.journal import Journal
from flyball_agent.enforce.records import GrantLease


@dataclass(slots=True)
class EnforcementCounts:
    """Counts since this process started."""

    drift_corrections: int = 0
    lock_drift_corrections: int = 0
    counter_resets: int = 0
    refused_grants: int = 0
    lease_renewals: int = 0
    lease_expiries: int = 0
    unreadable_records: int = 0  # of the journal, at the start
    errors: dict[tuple[str, int], int] = field(default_factory=Counter)  # by (operation, NVML code)
    applied: dict[str, int] = field(default_factory=Counter)  # sets by kind
    applied_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))


@dataclass(frozen=True, slots=True)
class LimitDrift:
    """Somebody else changed a limit, or a clock lock, that the agent had set; found at `found_ns` of CLOCK_BOOTTIME."""

    found_ns: int
    message: str
    reason: str = "LimitChanged"


@dataclass(slots=True)
class EnforcerState:
    """Everything that the enforcer of one node knows; it alone changes it, and others only read.

    `confirmed`: this process has seen the grant, or a newer one, at the API server. Until then the grant is what the
    journal remembers, which may be older than what was acknowledged last (a sick disk, a damaged record): it may only
    lower. `brakes_seen` are the PowerBrakes as this process last saw them (None: not yet), `brakes` those that lower the
    grant, and `in_force` is the grant as they leave it. `journal_error` says why the journal takes no writes, `must_exit`
    why a fresh process may do better, `driver_error` why there is no driver, and `driver_broken` why the one that there
    is should be opened anew. `knows_reported`: this process was told which GPUs were reported before it. What is known of
    the GPUs is of `looked_ns` (CLOCK_BOOTTIME), when it began to be read last.
    """

    session: DriverSession
    gpus: dict[str, GpuState]  # by UUID
    looked_ns: int | None = None
    grant: Grant | None = None
    in_force: Grant | None = None
    confirmed: bool = False
    brakes: Followed = field(default_factory=dict)
    brakes_seen: Seen | None = None
    lease: GrantLease | None = None
    mode: Mode = Mode.ADOPTING
    acknowledged: Acknowledgement | None = None
    invalid_grant: str | None = None
    stale_grant: str | None = None
    last_drift: LimitDrift | None = None
    settling: bool = False
    journal_error: str | None = None
    must_exit: str | None = None
    driver_version: str = ""
    driver_error: str | None = None
    driver_absent_reason: str = ""
    driver_broken: str | None = None
    knows_reported: bool = False
    counts: EnforcementCounts = field(default_factory=EnforcementCounts)

    def put(self, gpu: GpuState) -> None:
        """What is known of a GPU now. Take it from `gpus` anew after each await: its pods may have changed meanwhile."""
        self.gpus[gpu.uuid] = gpu

    def lease_remaining_seconds(self, now_ns: int) -> float:
        """0 where there is no lease or it has run out."""
        if self.lease is None or self.lease.boot_id != self.session.boot_id:
            return 0.0
        return max(0.0, (self.lease.deadline_ns - now_ns) / NANOSECONDS)

    def mode_at(self, boot_id: str, now_ns: int) -> Mode:
        """What the agent is to do in this boot, at that time of CLOCK_BOOTTIME."""
        grant, lease, gpus = self.in_force, self.lease, self.gpus.values()
        if grant is None or lease is None:
            return mode_of(grant, gpus, lease_valid=False)
        hold_ns = grant.other_gpus.failsafe_hold_seconds * NANOSECONDS
        valid, held = lease.valid(boot_id, now_ns), lease.valid(boot_id, now_ns, hold_ns)
        return mode_of(grant, gpus, lease_valid=valid, hold_valid=held)

    @property
    def held_milliwatts(self) -> NodeMilliwatts:
        """The most that the limits of all GPUs may add up to now."""
        return total_held_milliwatts(self.gpus.values())

    @property
    def may_raise(self) -> bool:
        """This process has seen at the API server what it is held to: the grant, and the brakes of the caps in it."""
        return self.confirmed and (self.brakes_seen is not None or self.grant is None or not self.grant.caps)

    def may_raise_at(self, now_ns: int) -> bool:
        """And it knows of each GPU what may come of it yet."""
        return self.may_raise and not any(gpu.anything_may_come(now_ns) for gpu in self.gpus.values())

    def gpus_of(self, pod: PodName) -> list[GpuState]:
        """The GPUs that a pod holds."""
        return [gpu for gpu in self.gpus.values() if pod in gpu.pods]


def state_at_start(
    journal: Journal, session: DriverSession, gpus: dict[str, GpuState], *, observe: bool
) -> EnforcerState:
    """What an enforcer knows before its first step: these GPUs and, unless it only observes, what its journal remembers."""
    remembered = journal.state
    state = EnforcerState(
        session,
        gpus,
        grant=None if observe else remembered.grant,
        brakes={} if observe else {brake.cap: brake for brake in remembered.brakes},
        lease=None if observe else remembered.lease,
        mode=Mode.OBSERVING if observe else Mode.ADOPTING,
        journal_error=journal.degraded,
    )
    state.counts.unreadable_records = journal.unreadable_records
    if state.grant is not None:
        state.in_force = braked(state.grant, state.brakes)
    return state
