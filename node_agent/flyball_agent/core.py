"""The decisions of the agent, pure: from a spec, the boards as read, their pods and the lease, to an order of sets.

Power is bounded by limits that were *read back*, never by ones that were asked for. A board's `held_milliwatts` is the
most that its limit may allow now; the node's total is their sum over every board, usable or not. Limits are lowered
first; a limit is raised only as far as the total stays within the grant. So at any point of any sequence of sets, and
whatever a setter does or says, the total is at most the larger of the grant and what it was before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from flyball_agent.desired import DesiredSpec, JobGrant
from flyball_agent.gpu import DeviceLimits

UNLOCKED = (0, 0)


class Mode(StrEnum):
    """What the agent is doing (`GPUNode.status.mode`)."""

    ADOPTING = "Adopting"  # no spec has come yet: the boards stay as they are
    FLOOR = "Floor"  # the spec grants no more than the boards' smallest limits: no lease is needed
    GRANTED = "Granted"  # a spec above the floor, within its lease
    FAILSAFE = "Failsafe"  # the lease has run out: limits only go down, to the failsafe


@dataclass(frozen=True, slots=True)
class PodName:
    """A pod by namespace and name."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Board:
    """One board as the agent knows it now.

    `requested_milliwatts` is None where it could not be read. `lock` is the clock range (MHz) that the agent set last;
    None where nobody knows. `pods` hold it (several, where it is shared).
    """

    uuid: str
    limits: DeviceLimits
    held_milliwatts: int
    requested_milliwatts: int | None
    usable: bool = True
    lock: tuple[int, int] | None = None
    pods: tuple[PodName, ...] = ()


class Purpose(StrEnum):
    """Why a board has its target."""

    JOB = "job"
    IDLE = "idle"
    FOREIGN = "foreign"
    UNTOUCHED = "untouched"


@dataclass(frozen=True, slots=True)
class Target:
    """What one board should be set to; None: as it is."""

    uuid: str
    purpose: Purpose
    limit_milliwatts: int | None = None
    lock: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class SetLimit:
    """One set of a power limit. `old_milliwatts` is what the board held before."""

    uuid: str
    old_milliwatts: int
    new_milliwatts: int


@dataclass(frozen=True, slots=True)
class SetLock:
    """One set of a clock range; UNLOCKED lets the clock go."""

    uuid: str
    lock: tuple[int, int]


def mode_of(spec: DesiredSpec | None, boards: Iterable[Board], lease_valid: bool) -> Mode:
    """What the agent is to do. A spec at or below the floor needs no lease."""
    if spec is None:
        return Mode.ADOPTING
    if spec.grant_milliwatts <= sum(board.limits.min_milliwatts for board in boards):
        return Mode.FLOOR
    return Mode.GRANTED if lease_valid else Mode.FAILSAFE


def targets_of(spec: DesiredSpec, boards: Sequence[Board], mode: Mode) -> dict[str, Target]:
    """What each board should be set to, by UUID.

    A board whose pods are all jobs' of the spec gets the least of their limits; one without a pod the idle limit and a
    free clock; one of any other pod the foreign limit, for as many boards as the spec reserves, and is else left
    alone. In failsafe no target is above the failsafe limit.
    """
    grants = {PodName(job.namespace, job.pod_name): job for job in spec.jobs}
    foreign_left = spec.foreign_gpus
    targets: dict[str, Target] = {}
    for board in boards:
        limits = board.limits
        jobs = [grants[pod] for pod in board.pods if pod in grants]
        if not board.pods:
            target = Target(
                board.uuid, Purpose.IDLE, limits.clamp_limit(spec.idle_limit_milliwatts), _lock(limits, None)
            )
        elif len(jobs) == len(board.pods):
            limit = limits.clamp_limit(min(job.power_limit_milliwatts for job in jobs))
            target = Target(board.uuid, Purpose.JOB, limit, _lock(limits, jobs[0]))
        elif foreign_left > 0:
            foreign_left -= 1
            limit = limits.clamp_limit(spec.foreign_limit_milliwatts or limits.default_milliwatts)
            target = Target(board.uuid, Purpose.FOREIGN, limit, _own_lock_off(board))
        else:
            target = Target(board.uuid, Purpose.UNTOUCHED, None, _own_lock_off(board))
        if mode is Mode.FAILSAFE and target.limit_milliwatts is not None:
            failsafe = limits.clamp_limit(spec.failsafe_limit_milliwatts)
            target = Target(board.uuid, target.purpose, min(target.limit_milliwatts, failsafe), target.lock)
        targets[board.uuid] = target
    return targets


def _lock(limits: DeviceLimits, job: JobGrant | None) -> tuple[int, int] | None:
    if not limits.clocks_megahertz:
        return None
    if job is None or job.clock_max_megahertz == 0:
        return UNLOCKED
    high = limits.clock_at_most(job.clock_max_megahertz)
    return min(limits.clock_at_most(job.clock_min_megahertz), high), high


def _own_lock_off(board: Board) -> tuple[int, int] | None:
    """A foreign pod's board keeps its clocks as its owner set them, but must not keep a lock of ours."""
    return UNLOCKED if board.lock is not None and board.lock != UNLOCKED else None


def total_held_milliwatts(boards: Iterable[Board]) -> int:
    """The most that the limits of all boards may add up to now."""
    return sum(board.held_milliwatts for board in boards)


def lowers(boards: Iterable[Board], targets: Mapping[str, Target]) -> list[SetLimit]:
    """The sets that take power away; all of them may be made at once."""
    sets = []
    for board in boards:
        limit = _target_limit(board, targets)
        if limit is not None and board.requested_milliwatts is not None and board.requested_milliwatts > limit:
            sets.append(SetLimit(board.uuid, board.held_milliwatts, limit))
    return sets


def raises(boards: Sequence[Board], targets: Mapping[str, Target], grant_milliwatts: int) -> list[SetLimit]:
    """The sets that give power, as far as the grant goes; all of them may be made at once.

    Where the grant does not reach every target (a board that will not go down holds its watts), the boards are served
    in order and the last one gets what is left.
    """
    room = grant_milliwatts - total_held_milliwatts(boards)
    sets = []
    for board in boards:
        limit = _target_limit(board, targets)
        if limit is None or board.requested_milliwatts is None or board.requested_milliwatts >= limit:
            continue
        new = min(limit, board.held_milliwatts + max(room, 0))
        if new > board.requested_milliwatts:
            room -= max(new - board.held_milliwatts, 0)
            sets.append(SetLimit(board.uuid, board.held_milliwatts, new))
    return sets


def lock_sets(boards: Iterable[Board], targets: Mapping[str, Target]) -> list[SetLock]:
    """The clock ranges to set."""
    sets = []
    for board in boards:
        target = targets.get(board.uuid)
        if board.usable and target is not None and target.lock is not None and target.lock != board.lock:
            sets.append(SetLock(board.uuid, target.lock))
    return sets


def above_target(boards: Iterable[Board], targets: Mapping[str, Target]) -> list[str]:
    """UUIDs of the usable boards that hold more than they should: while there are any, nothing is acknowledged."""
    uuids = []
    for board in boards:
        limit = _target_limit(board, targets)
        if limit is not None and board.held_milliwatts > limit:
            uuids.append(board.uuid)
    return uuids


def _target_limit(board: Board, targets: Mapping[str, Target]) -> int | None:
    target = targets.get(board.uuid)
    return target.limit_milliwatts if target is not None and board.usable else None


def supersedes(new: tuple[int, int], accepted: tuple[int, int] | None) -> bool:
    """Whether a spec of that (epoch, generation) is newer than the last accepted one."""
    return accepted is None or new > accepted
