"""For how long what is near is waited for: a plan that fits the caps, and a cut that the API server's time belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flyball_api.grant import Grant

from flyball_operator.power.bound import NodePower
from flyball_operator.power.cap_state import CapState
from flyball_operator.power.node_info import NodeInfo

# A plan that fits a cap which just fell is worth waiting for this long: two waves of grants take longer than one.
PLAN_GRACE_SECONDS = 0.3
BRAKED_PLAN_GRACE_SECONDS = 2.0
# For how long other statuses wait while a cap is brought down: what happens to a job is to be told within two seconds.
CUT_YIELD_SECONDS = 1.0
# A grant that asks again what an agent has acknowledged waits this long, each time twice as long, up to the longest pause.
FIRST_REPETITION_SECONDS = 0.25
LONGEST_REPETITION_SECONDS = 10.0


class PlanGrace:
    """Remembers since when the plan in force has not fitted the caps.

    The time counts from then, not from each new plan's start: while a cap rises, or measurements come in, a plan is always
    near.
    """

    def __init__(self) -> None:
        self._unfitting_since: float | None = None

    def waits(
        self,
        fits: bool,
        next_is_near: bool,
        caps: Iterable[CapState],
        nodes: Mapping[str, NodeInfo],
        monotonic: float,
    ) -> bool:
        """Whether a plan that fits the caps is so near that a cut of this one is not worth its own wave of grants.

        Where brakes hold every cap already, that can take its time.
        """
        if fits:
            self._unfitting_since = None
            return False
        if self._unfitting_since is None:
            self._unfitting_since = monotonic
        braked = any(info.power.braked_milliwatts is not None for info in nodes.values())
        held = braked and all(cap.enforced for cap in caps)
        grace = BRAKED_PLAN_GRACE_SECONDS if held else PLAN_GRACE_SECONDS
        return next_is_near and monotonic - self._unfitting_since < grace


class CutYield:
    """Remembers since when some cap has been on its way down."""

    def __init__(self) -> None:
        self._cutting_since: float | None = None

    def is_cutting(self, caps: Iterable[CapState], monotonic: float) -> bool:
        """Whether a cap is on its way down; only for a moment, as a cap may stay unmet for ever."""
        if all(cap.enforced or not cap.attainable for cap in caps):
            self._cutting_since = None
            return False
        if self._cutting_since is None:
            self._cutting_since = monotonic
        return monotonic - self._cutting_since < CUT_YIELD_SECONDS


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
        """The nodes whose grant is a repetition that can wait; the others' count as sent."""
        repeated = {name for name, grant in grants.items() if _is_repetition(grant, power[name])}
        self._sent = {
            name: sent
            for name, sent in self._sent.items()
            if name in repeated or (name in power and name not in grants and not _is_followed(power[name]))
        }
        waiting = set()
        for name in repeated:
            count, due = self._sent.get(name, (0, monotonic))
            if monotonic < due:
                waiting.add(name)
                continue
            pause = min(FIRST_REPETITION_SECONDS * 2 ** min(count, 10), LONGEST_REPETITION_SECONDS)
            self._sent[name] = count + 1, monotonic + pause
        return frozenset(waiting)


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
