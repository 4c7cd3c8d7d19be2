"""Runs jobs of which little is known at other clocks for a moment, to learn what those take: within a budget of their time.

Where a job has run at one clock alone, what it would take at another is its class's word, and so is what is chosen by it.
Zeus measures each power limit in the first epoch of a job it does not know (NSDI 2023, section 4.2). Here it is a few
lower clocks, each for a window or two; the plan and the limits stay as they are, so that nothing is given to anybody else
meanwhile, and no cap is looser for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.values.units import MilliwattsPerGpu
from flyball_api.workloads import IncarnationView
from flyball_kube.process.logs import get_logger
from flyball_planner.models.gpu import GpuModel
from flyball_planner.snapshot import JobDecision

from flyball_operator.learning.profiles import Point, Profile, ProfileKey, Summary
from flyball_operator.learning.windows import SETTLED_MEGAHERTZ, nearest_clock
from flyball_operator.power.nodes.info import NodeInfo

logger = get_logger(__name__)

# What is tried, of the planned clock; a model has two parameters that only clocks tell.
SHARES = (0.85, 0.7)
# A clock with so many windows is known, and a profile with so many clocks.
LEAST_SAMPLES, ENOUGH_CLOCKS = 2, 3
# Agents report at least every 30 s, and the window in which the clock changes measures nothing.
LONGEST_SECONDS = 120.0


class Profiles(Protocol):
    """What was measured of jobs so far: the learner."""

    def profile(self, key: ProfileKey) -> Profile | None: ...


class Running(NamedTuple):
    """A job that runs: its incarnation, what the plan gives it, and the GPUs that it runs on.

    `limit_milliwatts` is the power limit of each that all its nodes have acknowledged, None while they have not.
    """

    job: EnergyAwareJob
    incarnation: IncarnationView
    decision: JobDecision
    gpu_model: GpuModel
    limit_milliwatts: MilliwattsPerGpu | None = None


def acknowledged_limit(
    uid: str, incarnation: IncarnationView, nodes: Mapping[str, NodeInfo]
) -> MilliwattsPerGpu | None:
    """The power limit of each of a job's GPUs in milliwatts, once all its nodes have acknowledged the same; else None.

    Under a brake its GPUs have less than that, and nobody here knows how much.
    """
    limits: set[MilliwattsPerGpu | None] = set()
    for name, _ in incarnation.nodes:
        found = nodes[name].gpu_node if name in nodes else None
        holds = found is not None and found.acknowledged_current and found.braked_milliwatts is None
        grant = found.grant if found is not None and holds else None
        own = (job.power_limit_milliwatts for job in (() if grant is None else grant.jobs) if job.uid == uid)
        limits.add(next(own, None))
    return limits.pop() if len(limits) == 1 else None


@dataclass(slots=True)
class _Explored:
    """What one operator has tried of one job: `ran_seconds` of it seen, `explored_seconds` of them at another clock."""

    seen_at: float
    ran_seconds: float = 0.0
    explored_seconds: float = 0.0
    clock: int | None = None
    began_at: float = 0.0
    incarnation: int = 0
    given_up: set[int] = field(default_factory=set)


class Explorations:
    """Which jobs run at which other clock now, `permille` of each one's running time at the most; 0: none."""

    def __init__(self, profiles: Profiles, permille: int) -> None:
        self._profiles = profiles
        self._permille = permille
        self._jobs: dict[str, _Explored] = {}

    def step(self, running: Iterable[Running], jobs: Collection[str], monotonic: float) -> float:
        """Take in who runs now; `jobs` has the uids of all that there are. The GPU seconds that it took since last time."""
        if self._permille == 0:
            return 0.0
        now = {item.job.uid: item for item in running}
        for uid in self._jobs.keys() - set(jobs):
            del self._jobs[uid]
        gpu_seconds = sum(self._charge(explored, now.get(uid), monotonic) for uid, explored in self._jobs.items())
        busy = {profile_key(now[uid]) for uid, explored in self._jobs.items() if explored.clock is not None}
        for uid, item in now.items():
            explored = self._jobs.setdefault(uid, _Explored(monotonic))
            allowed = self._permille / 1000 * explored.ran_seconds
            if explored.clock is not None or not may_be_tried(item) or profile_key(item) in busy:
                continue
            if explored.explored_seconds + LONGEST_SECONDS > allowed:
                continue
            clock = clock_to_try(self._profiles.profile(profile_key(item)), item, explored.given_up)
            if clock is not None:
                explored.clock, explored.began_at = clock, monotonic
                explored.incarnation = item.incarnation.incarnation
                busy.add(profile_key(item))
                logger.info("explore", job=item.job.key, megahertz=clock)
        return gpu_seconds

    def _charge(self, explored: _Explored, item: Running | None, monotonic: float) -> float:
        """Charge what has passed, and end what is over; the GPU seconds of it."""
        passed, explored.seen_at = monotonic - explored.seen_at, monotonic
        if item is None:
            explored.clock = None
            return 0.0
        explored.ran_seconds += passed
        if explored.clock is None:
            return 0.0
        explored.explored_seconds += passed
        profile = self._profiles.profile(profile_key(item))
        learned = profile is not None and _near(explored.clock, _known(profile.points, item))
        over = monotonic - explored.began_at >= LONGEST_SECONDS
        if over and not learned:
            explored.given_up.add(explored.clock)
        allocation = item.decision.allocation
        other = (
            not may_be_tried(item)
            or explored.incarnation != item.incarnation.incarnation
            or allocation is None
            or allocation.clock_megahertz <= explored.clock
        )
        if learned or over or other:
            logger.info("explored", job=item.job.key, megahertz=explored.clock, learned=learned)
            explored.clock = None
        return passed * item.incarnation.gpus

    def granted(self, decisions: Mapping[str, JobDecision]) -> Mapping[str, JobDecision]:
        """The decisions with the clocks that are tried, which are lower: for the grants. Limits stay the plan's."""
        changed = {}
        for uid, decision, clock in self._tried(decisions):
            allocation = decision.allocation
            if allocation is not None and clock < allocation.clock_megahertz:
                changed[uid] = replace(decision, allocation=replace(allocation, clock_megahertz=clock))
        return {**decisions, **changed} if changed else decisions

    def explained(self, decisions: Mapping[str, JobDecision]) -> Mapping[str, JobDecision]:
        """The decisions with an explanation of what is tried: for the statuses."""
        changed = {
            uid: replace(
                decision, explanation=f"{decision.explanation} For a moment at {clock} MHz, to learn it.".strip()
            )
            for uid, decision, clock in self._tried(decisions)
        }
        return {**decisions, **changed} if changed else decisions

    def _tried(self, decisions: Mapping[str, JobDecision]) -> list[tuple[str, JobDecision, int]]:
        return [
            (uid, decisions[uid], explored.clock)
            for uid, explored in self._jobs.items()
            if explored.clock is not None and uid in decisions
        ]


def clock_to_try(profile: Profile | None, item: Running, given_up: Collection[int] = ()) -> int | None:
    """The next clock that is worth a try; None where enough is known, or not even what the job does as planned."""
    allocation = item.decision.allocation
    if profile is None or allocation is None:
        return None
    planned = allocation.clock_megahertz
    known = _known(profile.points, item)
    anywhere = {point.clock_megahertz for point, summary in profile.points.items() if summary.samples >= LEAST_SAMPLES}
    if len(anywhere) >= ENOUGH_CLOCKS or not _near(planned, known):
        return None
    for share in SHARES:
        clock = nearest_clock(item.gpu_model.clocks_megahertz, share * planned)
        lowest = item.job.spec.clocks.min_megahertz or 0
        if lowest <= clock < planned and clock not in given_up and not _near(clock, known):
            return clock
    return None


def _known(points: Mapping[Point, Summary], item: Running) -> set[int]:
    """The clocks at which enough was measured of the job at its present size."""
    size = item.incarnation.gpus, len(item.incarnation.nodes)
    return {
        point.clock_megahertz
        for point, summary in points.items()
        if (point.gpus, point.nodes) == size and summary.samples >= LEAST_SAMPLES
    }


def _near(clock: int, known: Collection[int]) -> bool:
    return any(abs(clock - other) <= SETTLED_MEGAHERTZ for other in known)


def may_be_tried(item: Running) -> bool:
    """Neither a job that has to be somewhere by then, nor one whose clocks are another's, nor one that is only observed."""
    job, allocation = item.job, item.decision.allocation
    others = job.observed or job.spec.pipeline is not None or job.spec.recurrence is not None or job.due is not None
    return not others and allocation is not None and allocation.nodes == item.incarnation.nodes


def profile_key(item: Running) -> ProfileKey:
    """The profile that a job's measurements go to."""
    return ProfileKey(item.job.namespace, item.job.profile_key, item.gpu_model.product)
