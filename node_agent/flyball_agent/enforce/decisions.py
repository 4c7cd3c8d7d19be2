"""The decisions of the agent, pure: from a grant, the GPUs as read, their pods and the lease, to an order of sets.

Power is bounded by limits that were *read back*, never by ones that were asked for. A GPU's `held_milliwatts` is the
most that its limit may allow now; the node's total is their sum over every GPU, usable or not. Targets add up to no more
than the grant, with the GPUs that nobody may or can set as they are. Limits are cut first; a limit is raised only as far as
the total stays within the grant. So at any point of any sequence of sets, and whatever a setter does or returns, the total
is at most the larger of the grant and what it was before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from flyball_api.gpu_node import Acknowledgement, DriverSession
from flyball_api.grant import Grant, GrantVersion, JobGrant
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts, in_whole_watts, of_gpus

from flyball_agent.enforce.clock_wishes import Wish
from flyball_agent.enforce.gpu_state import UNLOCKED, ClockLock, GpuState, Holders, PodName, TargetPurpose
from flyball_agent.gpu.gpu import GpuLimits


class Mode(StrEnum):
    """What the agent is doing (`GPUNode.status.mode`)."""

    ADOPTING = "Adopting"  # no grant has come yet: the GPUs stay as they are
    FLOOR = "Floor"  # the grant is no more than the GPUs' smallest limits: no lease is needed
    GRANTED = "Granted"  # a larger grant, within its lease
    HOLDING = "Holding"  # the lease has run out, and the grant says to hold on for a while: nothing is raised
    FAILSAFE = "Failsafe"  # the lease has run out: limits only go down, to the failsafe
    OBSERVING = "Observing"  # told to set nothing: no grant is taken

    @property
    def lapsed(self) -> bool:
        """Whether the grant's lease has ended; then nothing is raised by it."""
        return self in (Mode.HOLDING, Mode.FAILSAFE)


@dataclass(frozen=True, slots=True)
class Target:
    """What one GPU should be set to; None: as it is."""

    uuid: str
    purpose: TargetPurpose
    limit_milliwatts: MilliwattsPerGpu | None = None
    lock: ClockLock | None = None


@dataclass(frozen=True, slots=True)
class SetLimit:
    """One set of a power limit. `old_milliwatts` is what the GPU held before."""

    uuid: str
    old_milliwatts: MilliwattsPerGpu
    new_milliwatts: MilliwattsPerGpu


@dataclass(frozen=True, slots=True)
class SetClockLock:
    """One set of a clock lock; UNLOCKED removes it."""

    uuid: str
    lock: ClockLock


def mode_of(grant: Grant | None, gpus: Iterable[GpuState], *, lease_valid: bool, hold_valid: bool = False) -> Mode:
    """What the agent is to do. A grant within the sum of the smallest limits needs no lease.

    `hold_valid`: the lease has ended no longer ago than the grant allows its limits to be held.
    """
    if grant is None:
        return Mode.ADOPTING
    if grant.bound.limit_milliwatts <= of_gpus(gpu.limits.min_milliwatts for gpu in gpus):
        return Mode.FLOOR
    if lease_valid:
        return Mode.GRANTED
    return Mode.HOLDING if hold_valid else Mode.FAILSAFE


def targets_of(
    grant: Grant, gpus: Sequence[GpuState], mode: Mode, clock_wishes: Mapping[Wish, int] = MappingProxyType({})
) -> dict[str, Target]:
    """What each GPU should be set to, by UUID.

    A GPU whose pods are all jobs' of the grant gets the least of their limits; one without a pod the idle limit and no
    clock lock; one of any other pod, or perhaps of one, its foreign limit, for as many GPUs as the grant reserves, and
    is else left alone. While the pods have not been listed, every GPU keeps what it has. In failsafe no target is above the
    failsafe limit; while holding all are as granted. Where targets, and what is held by GPUs that nobody may or can set,
    come to more than the grant's bound, all targets are lowered by the same share of what is above the smallest limits.
    `clock_wishes` are the highest clocks that pods want for their GPUs: they lower the lock of a GPU that one job's pod
    has alone, and change nothing else.
    """
    granted = _jobs_by_pod(grant)
    others = grant.other_gpus
    foreign_left = others.foreign_gpus
    targets: dict[str, Target] = {}
    for gpu in gpus:
        limits = gpu.limits
        jobs = [granted[pod] for pod in gpu.pods if pod in granted]
        limit: MilliwattsPerGpu | None
        if gpu.holders is Holders.NOT_LISTED:
            purpose, limit, lock = TargetPurpose.UNKNOWN, gpu.requested_milliwatts, None
        elif not gpu.pods and gpu.holders is Holders.KNOWN:
            purpose, limit, lock = TargetPurpose.IDLE, others.idle_power_limit_milliwatts, _lock_for(limits, None)
        elif _is_jobs_own(gpu, jobs):
            purpose, limit = TargetPurpose.JOB, min(job.power_limit_milliwatts for job in jobs)
            lock = _lock_for(limits, jobs[0], _wish_for(gpu, clock_wishes))
        elif foreign_left > 0:
            foreign_left -= 1
            purpose, limit = TargetPurpose.FOREIGN, _foreign_limit(grant, gpu)
            lock = _own_lock_removed(gpu)
        else:
            purpose, limit, lock = TargetPurpose.UNTOUCHED, None, _own_lock_removed(gpu)
        if limit is not None:
            # What it has needs no set, and so no rounding.
            limit = limit if limit == gpu.requested_milliwatts else limits.clamp_limit(limit)
            if mode is Mode.FAILSAFE:
                limit = min(limit, limits.clamp_limit(others.failsafe_power_limit_milliwatts))
        targets[gpu.uuid] = Target(gpu.uuid, purpose, limit, lock)
    return _within(grant.bound.limit_milliwatts, gpus, targets)


def locks_of_jobs(
    grant: Grant, gpus: Iterable[GpuState], clock_wishes: Mapping[Wish, int]
) -> dict[str, ClockLock | None]:
    """The locks that `targets_of` has for those of these GPUs whose pods are all jobs', by UUID.

    No limit takes part in them, and a computation waits for its GPU's.
    """
    granted = _jobs_by_pod(grant)
    locks = {}
    for gpu in gpus:
        jobs = [granted[pod] for pod in gpu.pods if pod in granted]
        if _is_jobs_own(gpu, jobs):
            locks[gpu.uuid] = _lock_for(gpu.limits, jobs[0], _wish_for(gpu, clock_wishes))
    return locks


def _jobs_by_pod(grant: Grant) -> dict[PodName, JobGrant]:
    return {PodName(job.namespace, job.pod_name): job for job in grant.jobs}


def _is_jobs_own(gpu: GpuState, jobs: Sequence[JobGrant]) -> bool:
    """Whether all of the GPU's pods are jobs' of the grant: these `jobs`."""
    return gpu.holders is not Holders.NOT_LISTED and bool(gpu.pods) and len(jobs) == len(gpu.pods)


def _foreign_limit(grant: Grant, gpu: GpuState) -> MilliwattsPerGpu:
    """The least of what the GPU's pods outside Flyball may draw each; of a pod that is not known, what others may."""
    others, jobs = grant.other_gpus, {(job.namespace, job.pod_name) for job in grant.jobs}
    pods = {(pod.namespace, pod.name) for pod in gpu.pods}
    limits = {others.foreign_limit_of(*pod) for pod in pods - jobs}
    limits = limits or {others.foreign_power_limit_milliwatts}
    return min(limit or gpu.limits.default_milliwatts for limit in limits)


def _within(bound: NodeMilliwatts, gpus: Sequence[GpuState], targets: dict[str, Target]) -> dict[str, Target]:
    """The targets, lowered by the same share of what lies above the smallest limits as far as the bound asks for it.

    What is held by GPUs without a target, or that do not come down to theirs, is taken off the bound first: a node of which
    one GPU holds what nobody has granted stays within its grant by the others.
    """
    limits = {gpu.uuid: limit for gpu in gpus if (limit := _target_limit(gpu, targets)) is not None}
    # One that stays above its target is lowered with the others, or it would be above no more and be tried anew for ever.
    coming = {gpu.uuid: limits[gpu.uuid] for gpu in gpus if gpu.uuid in limits and not gpu.stays_above}
    excess = of_gpus(coming.get(gpu.uuid, gpu.held_milliwatts) for gpu in gpus) - bound
    if excess <= 0:
        return targets
    smallest = {gpu.uuid: gpu.limits.min_milliwatts for gpu in gpus}
    above = {uuid: max(limit - smallest[uuid], 0) for uuid, limit in limits.items()}
    total = sum(above[uuid] for uuid in coming)
    left = max(total - excess, 0)
    lowered = dict(targets)
    for uuid, milliwatts in above.items():
        limit = in_whole_watts(MilliwattsPerGpu(smallest[uuid] + milliwatts * left // max(total, 1)))
        lowered[uuid] = replace(targets[uuid], limit_milliwatts=max(limit, smallest[uuid]))
    return lowered


def _lock_for(limits: GpuLimits, job: JobGrant | None, wish_megahertz: int | None = None) -> ClockLock | None:
    if not limits.clocks_megahertz:
        return None
    if job is None or (job.clock_max_megahertz == 0 and wish_megahertz is None):
        return UNLOCKED
    high = limits.clock_at_most(job.clock_max_megahertz or limits.clocks_megahertz[-1])
    if wish_megahertz is not None:
        high = min(high, limits.clock_at_most(wish_megahertz))
    return ClockLock(min(limits.clock_at_most(job.clock_min_megahertz), high), high)


def _wish_for(gpu: GpuState, clock_wishes: Mapping[Wish, int]) -> int | None:
    """The lowest clock that the one pod of a GPU wants for it."""
    if len(gpu.pods) != 1:
        return None
    whose = ((gpu.pods[0], ""), (gpu.pods[0], gpu.uuid))
    return min((clock_wishes[wish] for wish in whose if wish in clock_wishes), default=None)


def _own_lock_removed(gpu: GpuState) -> ClockLock | None:
    """A foreign pod's GPU keeps its clocks as its owner set them, but must not keep a lock of ours."""
    return UNLOCKED if gpu.next_lock is not None and gpu.next_lock.is_range else None


def total_held_milliwatts(gpus: Iterable[GpuState]) -> NodeMilliwatts:
    """The most that the limits of all GPUs may add up to now."""
    return of_gpus(gpu.held_milliwatts for gpu in gpus)


def limit_cuts(gpus: Iterable[GpuState], targets: Mapping[str, Target]) -> list[SetLimit]:
    """The sets that take power away; all of them may be made at once.

    What another hand has raised is put back to what it was. Where its target is above that, the rest is a raise: the others
    may hold what it is to have, or nothing may be raised at all.
    """
    sets = []
    for gpu in gpus:
        limit, requested = _target_limit(gpu, targets), gpu.requested_milliwatts
        if limit is not None and requested is not None and requested > limit:
            before = gpu.before_drift_milliwatts
            sets.append(SetLimit(gpu.uuid, gpu.held_milliwatts, limit if before is None else min(limit, before)))
    return sets


def limit_raises(
    gpus: Sequence[GpuState], targets: Mapping[str, Target], bound_milliwatts: NodeMilliwatts
) -> list[SetLimit]:
    """The sets that give power, as far as the grant's bound goes; all of them may be made at once.

    Where the bound does not reach every target (a GPU whose limit cannot be cut holds its watts), the GPUs are served
    in order and the last one gets what is left. What a driver enforces above what it is asked for it may enforce above the
    new limit as well: raised by that, the GPU would be cut again in the next round, and raised again after it for ever.
    """
    room = int(bound_milliwatts - total_held_milliwatts(gpus))
    sets = []
    for gpu in gpus:
        limit, taken = _target_limit(gpu, targets), gpu.limit
        if limit is None or taken is None or taken.requested_milliwatts >= limit:
            continue
        on_top = taken.above_requested_milliwatts
        new = min(limit, in_whole_watts(MilliwattsPerGpu(gpu.held_milliwatts + max(room, 0) - on_top)))
        if new > taken.requested_milliwatts:
            room -= max(new + on_top - gpu.held_milliwatts, 0)
            sets.append(SetLimit(gpu.uuid, gpu.held_milliwatts, new))
    return sets


def clock_locks(gpus: Iterable[GpuState], locks: Mapping[str, ClockLock | None]) -> list[SetClockLock]:
    """The clock locks to set or remove, of those that GPUs should have, by UUID (None: as it is)."""
    sets = []
    for gpu in gpus:
        lock = locks.get(gpu.uuid)
        if gpu.usable and lock is not None and lock != gpu.next_lock:
            sets.append(SetClockLock(gpu.uuid, lock))
    return sets


def _target_limit(gpu: GpuState, targets: Mapping[str, Target]) -> MilliwattsPerGpu | None:
    target = targets.get(gpu.uuid)
    return target.limit_milliwatts if target is not None and gpu.usable else None


# A GPU that refuses a limit is asked in so many rounds on end, then after pauses that double up to the longest one.
REFUSALS_IN_EACH_ROUND = 10
LONGEST_REFUSAL_PAUSE_NS = 60_000_000_000
_FIRST_REFUSAL_PAUSE_NS = 1_000_000_000


def worth_asking(sets: Iterable[SetLimit], gpus: Mapping[str, GpuState], now_ns: int) -> list[SetLimit]:
    """The sets without those of limits that their GPU has refused again and again, most lately a moment ago."""
    return [change for change in sets if not _refused_lately(change, gpus[change.uuid], now_ns)]


def _refused_lately(change: SetLimit, gpu: GpuState, now_ns: int) -> bool:
    refusal = gpu.refusal
    if refusal is None or refusal.limit_milliwatts != change.new_milliwatts:
        return False
    return now_ns - refusal.asked_ns < _pause_ns(refusal.times)


def _pause_ns(times: int) -> int:
    """How long a GPU is left alone after so many sets in a row that had no effect."""
    doublings = times - REFUSALS_IN_EACH_ROUND
    return min(_FIRST_REFUSAL_PAUSE_NS << min(doublings, 10), LONGEST_REFUSAL_PAUSE_NS) if doublings >= 0 else 0


def drift_of(gpu: GpuState) -> str | None:
    """A message where the limit that the agent had set was changed by another hand; None where it stands."""
    requested, ours = gpu.requested_milliwatts, gpu.ours_milliwatts
    if requested is None or ours is None or requested == ours:
        return None
    if gpu.purpose in (TargetPurpose.UNTOUCHED, TargetPurpose.UNKNOWN):
        return None
    return f"{gpu.uuid}: limit {ours} mW was changed to {requested} mW"


# A clock follows its lock in milliseconds; what is read so soon after a set may still be from before.
LOCK_SETTLE_NS = 200_000_000


def lock_drift_of(gpu: GpuState, now_ns: int) -> str | None:
    """What is wrong where the clock runs above the range that it was locked to: somebody removed or widened the lock.

    There is no read-back of a lock. A clock below the range proves nothing: power and heat hold it down, too.
    """
    clock = None if gpu.reading is None else gpu.reading.sm_clock_megahertz
    if gpu.lock_coming is not None:
        return None  # by now it may have that
    if gpu.lock is None or not gpu.lock.is_range or clock is None or now_ns - gpu.lock_set_ns < LOCK_SETTLE_NS:
        return None
    if clock <= gpu.lock.max_megahertz:
        return None
    return f"{gpu.uuid}: clock {clock} MHz is above {gpu.lock.max_megahertz} MHz, to which it was locked"


def lock_worth_setting(gpu: GpuState, now_ns: int) -> bool:
    """Whether a lock that did not hold is to be set again now: in some rounds on end, then after ever longer pauses."""
    return now_ns - gpu.lock_set_ns >= _pause_ns(gpu.lock_drifts)


@dataclass(frozen=True, slots=True)
class Judgement:
    """How the GPUs stand at the end of a round. `settling`: a limit above its target may still come down by itself.

    `may_acknowledge`: nothing is settling, and of each GPU it is known what it holds.
    """

    gpus: tuple[GpuState, ...]
    settling: bool
    may_acknowledge: bool


def judge(gpus: Iterable[GpuState], targets: Mapping[str, Target], now_ns: int, settle_ns: int) -> Judgement:
    """Which GPUs hold more than their targets, and for how long: up to `settle_ns` is waited for."""
    settling, known = False, True
    judged = []
    for gpu in gpus:
        limit = _target_limit(gpu, targets)
        since, stays = None, False
        if limit is not None and gpu.held_milliwatts > limit:
            since = now_ns if gpu.above_since_ns is None else gpu.above_since_ns
            stays = now_ns - since >= settle_ns
            settling = settling or not stays
        if (since, stays) != (gpu.above_since_ns, gpu.stays_above):
            gpu = gpu.changed(above_since_ns=since, stays_above=stays)
        # What a GPU that hangs or returns nonsense holds is not known, nor what one was asked for that nobody remembers.
        known = known and (gpu.failure is None or gpu.failure.keeps_limits) and not gpu.anything_may_come(now_ns)
        judged.append(gpu)
    return Judgement(tuple(judged), settling, known and not settling)


def acknowledgement_due(
    last: Acknowledgement | None,
    version: GrantVersion,
    session: DriverSession,
    total_milliwatts: NodeMilliwatts,
    bound_milliwatts: NodeMilliwatts,
    may_acknowledge: bool,
) -> bool:
    """Whether that the GPUs hold `total_milliwatts` under that grant is news that may be published now.

    `bound_milliwatts` is what brakes leave of the grant's bound. What was acknowledged may come to hold more again (a limit
    that drifted and will not come down): that is published at once, even while something settles.
    """
    if last is None or (last.version, last.session, last.bound_milliwatts) != (version, session, bound_milliwatts):
        return may_acknowledge
    return total_milliwatts > last.limits_milliwatts or (may_acknowledge and total_milliwatts != last.limits_milliwatts)
