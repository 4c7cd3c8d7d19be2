"""Grants that are better made a little later, and for how long they wait.

Raises wait for a plan that fits the caps; for a cut, which the API server's time belongs to; where there is only a watt or
two of them; and where limits go up and down. A cut waits only where it is small, and for a node that has not given what it
was asked for before.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping

from flyball_api.grant import Grant
from msgspec import Struct
from msgspec.structs import replace

from flyball_operator.power.bound import NodePower
from flyball_operator.power.caps.state import CapState
from flyball_operator.power.nodes.info import NodeInfo

# A plan that fits a cap which just fell is worth waiting for this long: two waves of grants take longer than one.
PLAN_GRACE_SECONDS = 0.3
BRAKED_PLAN_GRACE_SECONDS = 2.0
# For how long other statuses wait while a cap is brought down: what happens to a job is to be told within two seconds, its
# new limits and figures need not be.
CUT_YIELD_SECONDS, FIGURES_YIELD_SECONDS = 1.0, 3.0
# A grant that asks again what an agent has acknowledged waits this long, each time twice as long, up to the longest pause.
FIRST_REPETITION_SECONDS = 0.25
LONGEST_REPETITION_SECONDS = 10.0
# A raise by no more than so many thousandths of what a node is granted waits until its last grant is so old.
SMALL_PERMILLE = 20
SMALL_RAISE_SECONDS = 1.0
# So does such a cut of what does not come down.
SMALL_CUT_SECONDS = 0.5
# A pod's limit turns round where it is lowered so soon after it was raised. After a few turns the next raise waits,
# each time twice as long, up to the longest pause; without another turn for so long they are forgotten.
TURN_SECONDS = 5.0
FEW_TURNS = 3
FIRST_TURN_PAUSE_SECONDS, LONGEST_TURN_PAUSE_SECONDS = 0.5, 30.0
TURNS_FORGOTTEN_SECONDS = 60.0


class PlanGrace:
    """Remembers since when the plan in force has not fitted the caps.

    The time counts from then, not from each new plan's start: while a cap rises, or measurements come in, a plan is always
    near.
    """

    def __init__(self) -> None:
        self._unfitting_since: float | None = None

    def update(self, fits: bool, monotonic: float) -> None:
        """Take in whether the plan in force fits the caps."""
        if fits:
            self._unfitting_since = None
        elif self._unfitting_since is None:
            self._unfitting_since = monotonic

    def waits(
        self, next_is_near: bool, caps: Iterable[CapState], nodes: Mapping[str, NodeInfo], monotonic: float
    ) -> bool:
        """Whether a plan that fits the caps is so near that a cut of this one is not worth its own wave of grants.

        Where brakes hold every cap already, that can take its time.
        """
        if self._unfitting_since is None:
            return False
        braked = any(info.power.braked_milliwatts is not None for info in nodes.values())
        held = braked and all(cap.enforced for cap in caps)
        grace = BRAKED_PLAN_GRACE_SECONDS if held else PLAN_GRACE_SECONDS
        return next_is_near and monotonic - self._unfitting_since < grace


class CutYield:
    """Remembers since when some cap has been on its way down."""

    def __init__(self) -> None:
        self._cutting_since: float | None = None

    def update(self, caps: Iterable[CapState], monotonic: float) -> None:
        """Take in the caps as they stand."""
        if all(cap.enforced or not cap.attainable for cap in caps):
            self._cutting_since = None
        elif self._cutting_since is None:
            self._cutting_since = monotonic

    def is_cutting(self, monotonic: float, seconds: float = CUT_YIELD_SECONDS) -> bool:
        """Whether a cap is on its way down; only for so many seconds, as a cap may stay unmet for ever."""
        return self._cutting_since is not None and monotonic - self._cutting_since < seconds


class Repetitions:
    """Remembers how often a grant was sent that asks the same as the one before it, because a brake held its agent below.

    A grant lifts an emergency only once the agent has seen its end, of which nobody else can know: so it is sent again. An
    agent that does not see it, because its watch is behind or the store was restored from a backup, holds to it and
    acknowledges each one at once.
    """

    def __init__(self) -> None:
        self._sent: dict[str, tuple[int, float]] = {}  # how many, and when the next one is due, by node

    def held_back(
        self, grants: Mapping[str, Grant], power: Mapping[str, NodePower], monotonic: float
    ) -> frozenset[str]:
        """The nodes whose grant is a repetition that can wait."""
        return frozenset(
            name
            for name, (_, due) in self._sent.items()
            if monotonic < due and name in grants and _is_repetition(grants[name], power[name])
        )

    def sent(
        self, nodes: Container[str], grants: Mapping[str, Grant], power: Mapping[str, NodePower], monotonic: float
    ) -> None:
        """Take in to which nodes their grant is sent now; `grants` has those of the others, too."""
        repeated = {name for name, grant in grants.items() if _is_repetition(grant, power[name])}
        self._sent = {
            name: sent
            for name, sent in self._sent.items()
            if name in repeated or (name in power and name not in grants and not _is_followed(power[name]))
        }
        for name in repeated:
            if name in nodes:
                count, _ = self._sent.get(name, (0, monotonic))
                pause = min(FIRST_REPETITION_SECONDS * 2 ** min(count, 10), LONGEST_REPETITION_SECONDS)
                self._sent[name] = count + 1, monotonic + pause


class SmallChanges:
    """Remembers which nodes were granted anything a moment ago: a small raise of what they have comes with the next.

    Each acknowledgement wakes the operator. Where it leaves a watt more for the node, as where the whole watts of a share
    leave some over, or a GPU that does not come down is counted above what is granted, each grant would bring another, as
    fast as both can. And what a node with such a GPU has not given at one cut is asked of it, and of all that share a cap
    with it, at the next: so a small cut of it waits, too, if not as long.
    """

    def __init__(self) -> None:
        self._granted: dict[str, float] = {}  # when, by node

    def held_back(
        self, grants: Mapping[str, Grant], power: Mapping[str, NodePower], monotonic: float
    ) -> frozenset[str]:
        """The nodes whose grant can wait for that."""
        raises = frozenset(
            name
            for name, at in self._granted.items()
            if monotonic - at < SMALL_RAISE_SECONDS and name in grants and _is_small_raise(grants[name], power[name])
        )
        return raises | self._waiting_cuts(grants, power, monotonic).keys()

    def next_cut_seconds(self, grants: Mapping[str, Grant], power: Mapping[str, NodePower], monotonic: float) -> float:
        """Seconds until a cut that waits is to go, infinite where none does: until then nothing else may happen."""
        return min(self._waiting_cuts(grants, power, monotonic).values(), default=math.inf)

    def _waiting_cuts(
        self, grants: Mapping[str, Grant], power: Mapping[str, NodePower], monotonic: float
    ) -> dict[str, float]:
        """For how many seconds more each small cut waits, by node."""
        left = {name: at + SMALL_CUT_SECONDS - monotonic for name, at in self._granted.items() if name in grants}
        return {
            name: seconds
            for name, seconds in left.items()
            if seconds > 0.0 and _is_small_cut_in_vain(grants[name], power[name])
        }

    def sent(self, nodes: Iterable[str], monotonic: float) -> None:
        """Take in which nodes are granted something now."""
        self._granted = {name: at for name, at in self._granted.items() if monotonic - at < SMALL_RAISE_SECONDS}
        self._granted |= dict.fromkeys(nodes, monotonic)


class _Course(Struct, frozen=True):
    """How the limit of one pod has gone: when it was raised last and when lowered, and how often it turned round, lowered a
    moment after it had been raised. Turns are forgotten some time after the last."""

    raised_at: float = -math.inf
    lowered_at: float = -math.inf
    turned_at: float = -math.inf
    turns: int = 0

    def waits(self, monotonic: float) -> bool:
        """Whether it is not to be raised yet."""
        return self.turns > FEW_TURNS and monotonic - self.lowered_at < _turn_pause_seconds(self.turns)


class Reversals:
    """Remembers which limits go up and down: the more often they have turned, the longer they wait to rise again.

    Whatever the reason: two caps, a reserve, a GPU that does not take its limit or a plan can each have what one grant
    frees taken by the next, and no end of it. A cut waits for nothing, and what is new, a pod that comes, does neither.
    """

    def __init__(self) -> None:
        self._courses: dict[tuple[str, str, str], _Course] = {}  # by node, pod and job uid

    def held_back(
        self, grants: Mapping[str, Grant], power: Mapping[str, NodePower], monotonic: float
    ) -> frozenset[str]:
        """The nodes whose grant is a raise that is likely to be taken back."""
        waiting = {key for key, course in self._courses.items() if course.waits(monotonic)}
        return frozenset(
            name
            for name in {node for node, *_ in waiting} & grants.keys()
            if _is_raise_alone(grants[name], power[name])
            and any(rise > 0 and (name, *job) in waiting for job, rise in _rises(grants[name], power[name]))
        )

    def sent(
        self, nodes: Iterable[str], grants: Mapping[str, Grant], power: Mapping[str, NodePower], monotonic: float
    ) -> None:
        """Take in to which nodes their grant is sent now."""
        self._courses = {
            key: course
            for key, course in self._courses.items()
            if monotonic - max(course.raised_at, course.turned_at) < TURNS_FORGOTTEN_SECONDS
        }
        for name in nodes:
            for job, rise in _rises(grants[name], power[name]):
                course = self._courses.get((name, *job), _Course())
                if rise > 0:
                    self._courses[name, *job] = replace(course, raised_at=monotonic)
                elif rise < 0:
                    if monotonic - course.raised_at < TURN_SECONDS:
                        course = replace(course, turned_at=monotonic, turns=course.turns + 1)
                    self._courses[name, *job] = replace(course, lowered_at=monotonic, raised_at=-math.inf)


def _turn_pause_seconds(turns: int) -> float:
    return min(FIRST_TURN_PAUSE_SECONDS * 2.0 ** (turns - FEW_TURNS - 1), LONGEST_TURN_PAUSE_SECONDS)


def _rises(grant: Grant, power: NodePower) -> Iterator[tuple[tuple[str, str], int]]:
    """By how many milliwatts a GPU each pod's limit would rise, by its name and its job's uid; of those granted already."""
    before = {} if power.grant is None else {(job.pod_name, job.uid): job for job in power.grant.jobs}
    for job in grant.jobs:
        standing = before.get((job.pod_name, job.uid))
        if standing is not None:
            yield (job.pod_name, job.uid), job.power_limit_milliwatts - standing.power_limit_milliwatts


def _is_small_raise(grant: Grant, power: NodePower) -> bool:
    """Whether a grant is a raise alone, and a small one."""
    standing = power.grant
    if standing is None:
        return False
    limit_rise = grant.bound.limit_milliwatts - standing.bound.limit_milliwatts
    expected_rise = grant.bound.expected_milliwatts - standing.bound.expected_milliwatts
    most = standing.bound.limit_milliwatts * SMALL_PERMILLE // 1000
    if limit_rise > most or (not limit_rise and expected_rise > most):
        return False
    return _is_raise_alone(grant, power)


def _is_small_cut_in_vain(grant: Grant, power: NodePower) -> bool:
    """Whether a grant takes a little of a node that holds more than it was granted, as it has acknowledged itself."""
    standing = power.grant
    if standing is None or power.unsettled or (grant.epoch, grant.caps) != (standing.epoch, standing.caps):
        return False
    if power.accepted != standing.version or power.committed.limit_milliwatts <= standing.bound.limit_milliwatts:
        return False
    cut = standing.bound.limit_milliwatts - grant.bound.limit_milliwatts
    if not 0 < cut <= standing.bound.limit_milliwatts * SMALL_PERMILLE // 1000:
        return False
    return _differ_in_limits_alone(grant, standing)


def _is_raise_alone(grant: Grant, power: NodePower) -> bool:
    """Whether nothing about a grant is new but that some jobs' limits, or what is expected of them, are higher."""
    standing = power.grant
    if standing is None or (grant.epoch, grant.caps) != (standing.epoch, standing.caps):
        return False
    limit_rise = grant.bound.limit_milliwatts - standing.bound.limit_milliwatts
    expected_rise = grant.bound.expected_milliwatts - standing.bound.expected_milliwatts
    if min(limit_rise, expected_rise) < 0 or max(limit_rise, expected_rise) == 0:
        return False
    return all(rise >= 0 for _, rise in _rises(grant, power)) and _differ_in_limits_alone(grant, standing)


def _differ_in_limits_alone(grant: Grant, standing: Grant) -> bool:
    """Whether a grant asks all that the standing one does but for the jobs' limits and what they come to."""
    limits = {(job.pod_name, job.uid): job.power_limit_milliwatts for job in grant.jobs}
    jobs = tuple(
        replace(job, power_limit_milliwatts=limits.get((job.pod_name, job.uid), job.power_limit_milliwatts))
        for job in standing.jobs
    )
    return replace(standing, bound=grant.bound, jobs=jobs).same_content(grant)


def _is_followed(power: NodePower) -> bool:
    """Whether the agent has acknowledged the grant that stands, with nothing that holds it below."""
    standing = power.grant
    return standing is not None and power.braked_milliwatts is None and standing.version == power.accepted


def _is_repetition(grant: Grant, power: NodePower) -> bool:
    """Whether the agent has acknowledged a grant that asks all of this, and was made with knowledge of the same brakes."""
    standing = power.grant
    return (
        standing is not None
        and power.braked_milliwatts is not None
        and not power.unsettled
        and standing.epoch == grant.epoch
        and standing.caps == grant.caps
        and standing.same_content(grant)
    )
