"""Finds the power limit of jobs of which nothing is known: each runs at several for a moment, and then at the cheapest.

Zeus' just-in-time profile (NSDI 2023, section 4.2): while a job trains, one limit after the other is set, the largest
first, each until a few windows have been measured; from then on it runs at the one whose eta * joules + (1 - eta) *
MAXPOWER * seconds is least for an iteration. Here the largest is the plan's own, and the others are shares of what the
job draws there, so that each of them bites. All are within the grant, whose watts go to nobody else meanwhile. What is
measured goes into the job's profile as anything is; a job whose profile knows enough is planned by its model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from flyball_api.values.units import allowed_milliwatts
from flyball_kube.process.logs import get_logger
from flyball_planner.recurrences.cost import energy_time_cost
from flyball_planner.snapshot import JobDecision

from flyball_operator.learning.exploration import (
    ENOUGH_CLOCKS,
    LEAST_SAMPLES,
    LONGEST_SECONDS,
    Profiles,
    Running,
    may_be_tried,
    profile_key,
)
from flyball_operator.learning.profiles import Profile
from flyball_operator.learning.windows import Window

logger = get_logger(__name__)

# Each limit is so much of what the job draws lower than the one before.
STEP_SHARE = 0.1
# A limit that costs so much more than the cheapest ends the profile: those below it cost more still.
CLEARLY_MORE = 1.02
# Zeus' eta, by objective. A job that wants time alone has nothing to find below its plan.
ENERGY_WEIGHTS = {"Energy": 1.0, "Balanced": 0.5}


class Windows(Profiles, Protocol):
    """What was measured of jobs, how many windows each has reported, and the last if it measures anything: the learner."""

    def window(self, uid: str) -> tuple[int, Window | None]: ...


class Slice(NamedTuple):
    """What an iteration took at one limit of each GPU; `limit_watts` None: as planned."""

    limit_watts: float | None
    seconds: float
    joules: float


@dataclass(slots=True)
class _Profiled:
    """One incarnation of a job: what was measured of it, and at which limit it is now.

    `limit_watts` is the one that is tried, or that was found; None: the plan's own. `tried_seconds` are those at lower
    limits in all incarnations.
    """

    incarnation: int
    seen_at: float
    tried_seconds: float = 0.0
    under_way: bool = False
    over: bool = False
    limit_watts: float | None = None
    began_at: float = 0.0
    first_window: int | None = None  # the first that counts, once the limit has been acknowledged
    last_window: int = 0
    taken: list[Window] = field(default_factory=list)
    slices: list[Slice] = field(default_factory=list)


class PowerLimitProfiles:
    """Which jobs run at which other limit now; each is tried at `limits` lower ones at the most, 0: nobody at any."""

    def __init__(self, learner: Windows, limits: int) -> None:
        self._learner = learner
        self._limits = limits
        self._jobs: dict[str, _Profiled] = {}

    def step(self, running: Collection[Running], jobs: Collection[str], monotonic: float) -> float:
        """Take in who runs now; `jobs` has the uids of all that there are.

        The GPU seconds that went to lower limits which were only tried, since last time.
        """
        if self._limits == 0:
            return 0.0
        now = {item.job.uid: item for item in running}
        for uid in self._jobs.keys() - set(jobs):
            del self._jobs[uid]
        gpu_seconds = 0.0
        for uid, item in now.items():
            profiled = self._jobs.get(uid)
            if profiled is None or profiled.incarnation != item.incarnation.incarnation:
                spent = 0.0 if profiled is None else profiled.tried_seconds
                profiled = self._jobs[uid] = _Profiled(item.incarnation.incarnation, monotonic, spent)
            passed, profiled.seen_at = monotonic - profiled.seen_at, monotonic
            if profiled.under_way and profiled.limit_watts is not None:
                profiled.tried_seconds += passed
                gpu_seconds += passed * item.incarnation.gpus
            if profiled.under_way:
                self._go_on(profiled, item, monotonic)
        for uid in self._jobs.keys() - now.keys():
            waiting = self._jobs[uid]
            self._jobs[uid] = _Profiled(waiting.incarnation, monotonic, waiting.tried_seconds)
        busy = {profile_key(now[uid]) for uid, profiled in self._jobs.items() if profiled.under_way}
        for uid, item in now.items():
            profiled = self._jobs[uid]
            if profiled.under_way or profiled.over or profile_key(item) in busy or not may_be_profiled(item):
                continue
            if not _is_known(self._learner.profile(profile_key(item))):
                profiled.under_way, profiled.began_at = True, monotonic
                busy.add(profile_key(item))
                logger.info("profile power limits", job=item.job.key)
        return gpu_seconds

    def under_way(self, item: Running) -> bool:
        """Whether a job's limits are being tried now."""
        profiled = self._jobs.get(item.job.uid)
        return profiled is not None and profiled.under_way

    def _go_on(self, profiled: _Profiled, item: Running, monotonic: float) -> None:
        if not may_be_profiled(item):
            self._end(profiled, item, None)
            return
        self._take(profiled, item)
        measured = len(profiled.taken) >= LEAST_SAMPLES
        if not measured and monotonic - profiled.began_at < LONGEST_SECONDS:
            return
        if measured:
            seconds = sum(window.seconds for window in profiled.taken) / len(profiled.taken)
            joules = sum(window.joules for window in profiled.taken) / len(profiled.taken)
            profiled.slices.append(Slice(profiled.limit_watts, seconds, joules))
        following = next_limit(profiled.slices, profiled.limit_watts, item, self._limits)
        spent = profiled.tried_seconds >= self._limits * LONGEST_SECONDS  # in the starts before this one, too
        if following is None or spent:
            self._end(profiled, item, cheapest(profiled.slices, item))
            return
        profiled.limit_watts, profiled.began_at = following, monotonic
        profiled.first_window, profiled.taken = None, []

    def _take(self, profiled: _Profiled, item: Running) -> None:
        """Count a new window that lies wholly in the time in which the GPUs had this limit."""
        allocation, (number, window) = item.decision.allocation, self._learner.window(item.job.uid)
        if allocation is None:
            return
        wanted = _at_most(allocation.power_limit_watts, profiled.limit_watts)
        if item.limit_milliwatts != allowed_milliwatts(wanted):
            profiled.first_window, profiled.taken = None, []
        elif profiled.first_window is None:
            # One is being measured: it began before.
            profiled.first_window, profiled.last_window = number + 2, number
        elif number > profiled.last_window:
            profiled.last_window = number
            if number >= profiled.first_window and window is not None:
                profiled.taken.append(window)

    def _end(self, profiled: _Profiled, item: Running, limit_watts: float | None) -> None:
        profiled.under_way, profiled.over, profiled.limit_watts = False, True, limit_watts
        logger.info(
            "profiled power limits",
            job=item.job.key,
            chosen_watts=limit_watts,
            slices=[[limit, round(seconds, 4), round(joules, 1)] for limit, seconds, joules in profiled.slices],
        )

    def granted(self, decisions: Mapping[str, JobDecision]) -> Mapping[str, JobDecision]:
        """The decisions with the limits that are tried or were found, where those are lower: for the grants."""
        changed = {}
        for uid, decision, limit, _ in self._limited(decisions):
            allocation = decision.allocation
            if allocation is not None and limit < allocation.power_limit_watts:
                changed[uid] = replace(decision, allocation=replace(allocation, power_limit_watts=limit))
        return {**decisions, **changed} if changed else decisions

    def explained(self, decisions: Mapping[str, JobDecision]) -> Mapping[str, JobDecision]:
        """The decisions with an explanation of their limits: for the statuses."""
        changed = {}
        for uid, decision, limit, profiled in self._limited(decisions):
            why = "for a moment, to learn it" if profiled.under_way else "the cheapest of those that were tried"
            words = f"{decision.explanation} Each GPU is held to {limit:g} W: {why}."
            changed[uid] = replace(decision, explanation=words.strip())
        return {**decisions, **changed} if changed else decisions

    def _limited(self, decisions: Mapping[str, JobDecision]) -> Iterable[tuple[str, JobDecision, float, _Profiled]]:
        for uid, profiled in self._jobs.items():
            if profiled.limit_watts is not None and uid in decisions:
                yield uid, decisions[uid], profiled.limit_watts, profiled


def may_be_profiled(item: Running) -> bool:
    """Whether a job's limits may be tried, and a lower one than planned can be what its objective asks for.

    Not of a job whose clocks have a lower bound: limits know none.
    """
    bounded = item.job.spec.clocks.min_megahertz is not None
    return item.job.spec.objective in ENERGY_WEIGHTS and not bounded and may_be_tried(item)


def next_limit(slices: Collection[Slice], last: float | None, item: Running, limits: int) -> float | None:
    """The limit in whole watts to be tried after `last`; None at the end.

    That is after `limits` of them, at the GPU's smallest, where one was clearly dearer, and where nobody knows what
    the job draws as planned.
    """
    planned = next((measured for measured in slices if measured.limit_watts is None), None)
    if planned is None:
        return None
    costs = [cost(measured, item) for measured in slices]
    if costs[-1] > CLEARLY_MORE * min(costs):
        return None
    drawn = planned.joules / planned.seconds / item.incarnation.gpus
    below = [float(round(drawn * (1.0 - STEP_SHARE * step))) for step in range(1, limits + 1)]
    left = [limit for limit in below if last is None or limit < last]
    return next((limit for limit in left if limit >= item.gpu_model.min_power_limit_watts), None)


def cheapest(slices: Collection[Slice], item: Running) -> float | None:
    """The limit of least cost; None: as planned."""
    return min(slices, key=lambda measured: cost(measured, item)).limit_watts if slices else None


def cost(measured: Slice, item: Running) -> float:
    """What an iteration costs at a limit, in joules as the job's objective weighs them."""
    weight = ENERGY_WEIGHTS[item.job.spec.objective]
    most_watts = item.gpu_model.max_power_limit_watts * item.incarnation.gpus
    return energy_time_cost(measured.joules, measured.seconds, weight, most_watts)


def _at_most(planned: float, limit_watts: float | None) -> float:
    return planned if limit_watts is None else min(planned, limit_watts)


def _is_known(profile: Profile | None) -> bool:
    """Whether enough clocks were measured of a job, at whatever size, for its model to choose by."""
    if profile is None:
        return False
    return (
        len({point.clock_megahertz for point, summary in profile.points.items() if summary.samples >= LEAST_SAMPLES})
        >= ENOUGH_CLOCKS
    )
