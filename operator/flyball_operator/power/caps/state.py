"""One cap at one instant: its nodes, the watts it allows, what is committed under it, and what follows from these.

A higher cap is used only once the cap's status has published it, so that at no instant do the limits exceed the cap that
its status calls enforced. Caps count in whole watts, rounded down, because that is what the status can show.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from flyball_api.power_brake import PowerBrake
from flyball_api.power_cap import PowerCap, PowerCapSpec, PowerCapStatus
from flyball_api.values.bounds import least
from flyball_api.values.conditions import has_condition
from flyball_api.values.units import MILLIWATTS_PER_WATT, NodeMilliwatts, allowed_milliwatts, allowed_watts
from msgspec import Struct, field
from msgspec.structs import replace

from flyball_operator.power.bound import NO_RESERVE, CapBudget, JumpReserve
from flyball_operator.power.caps.meter import NEVER_READ, MeterReading, MeterState
from flyball_operator.power.caps.overhead import NOT_KNOWN, Overhead
from flyball_operator.power.caps.schedule import EffectiveCap, EnergyPeriod, ScheduledChange
from flyball_operator.power.nodes.energy_counters import CounterSum
from flyball_operator.power.nodes.info import NodeInfo
from flyball_operator.power.nodes.reservations import NodeRules

# How often a cap is looked at while more than it allows is drawn.
BREACH_LOOK_SECONDS = 0.5


class Breach(Struct, frozen=True):
    """A time that more was measured than the cap allowed: the most watts above it, and the joules above it."""

    since: datetime
    watts: int
    joules: float = 0.0
    until: datetime | None = None


class SentWatts(Struct, frozen=True):
    """The least watts in force and committed that statuses say which were sent over one version of their cap, and when the
    last of them was; None: they say nothing of it."""

    over_version: str
    at: float
    effective_watts: int | None
    committed_watts: int | None

    @classmethod
    def of(cls, cap: PowerCap, status: PowerCapStatus, monotonic: float) -> SentWatts:
        """What this status, sent now, says."""
        return cls(cap.metadata.resource_version, monotonic, status.effective_watts, status.committed_watts)

    def or_less(self, before: SentWatts | None) -> SentWatts:
        """The same with what was sent before it, any of which may be what is taken."""
        if before is None or before.over_version != self.over_version:
            return self
        return replace(
            self,
            effective_watts=least(self.effective_watts, before.effective_watts),
            committed_watts=least(self.committed_watts, before.committed_watts),
        )


NOTHING_SENT = SentWatts("", 0.0, None, None)


class CapState(Struct, frozen=True):
    """One cap now. The milliwatts of its nodes' GPUs are without the cap's static overhead, all watts are with it.

    `leaving` are those of its nodes that it selects by their former labels only, `unrecorded` those that nobody would know
    to be its own if their labels changed now: their GPUNode has not been told of them yet. `reserve_milliwatts` is what
    `reserve` holds back now, for nodes that jump to their largest limits.

    `doubts` has the nodes whose acknowledgement may not be true any more, and why; they count at their largest limits, and
    `committed_if_believed` is the sum if they did not. `brake` is the last one that was written for the cap. `unseen` is
    what the cap's status may say by now, beside what it was seen to say.
    """

    cap: PowerCap
    spec: PowerCapSpec
    nodes: frozenset[str]
    leaving: frozenset[str]
    unrecorded: frozenset[str]
    effective: EffectiveCap
    committed_milliwatts: NodeMilliwatts
    least_milliwatts: NodeMilliwatts
    measured_milliwatts: NodeMilliwatts
    committed_if_believed: NodeMilliwatts
    doubts: Mapping[str, str]
    reserve: JumpReserve = NO_RESERVE
    reserve_milliwatts: NodeMilliwatts = NodeMilliwatts(0)
    energy_period: EnergyPeriod | None = None
    counted: CounterSum | None = None
    breach: Breach | None = None
    brake: PowerBrake | None = None
    reading: MeterReading = NEVER_READ
    reading_age_seconds: float = 0.0
    meter: MeterState | None = None
    overhead: Overhead = NOT_KNOWN
    next_change: ScheduledChange | None = None
    if_governed: CapState | None = None
    unseen: SentWatts = NOTHING_SENT

    @property
    def name(self) -> str:
        return self.cap.name

    @property
    def committed_watts(self) -> float:
        """The most that the nodes may draw now."""
        return self._watts(self.committed_milliwatts)

    @property
    def least_watts(self) -> float:
        """What the nodes draw at most once everything under the cap is at its smallest limit."""
        return self._watts(self.least_milliwatts) if self.if_governed is None else self.if_governed.least_watts

    @property
    def metered_watts(self) -> float | None:
        """The watts that the cap's meter shows; None where it has no meter, or one that is not believed."""
        return None if self.meter is None or self.meter.silence is not None else self.reading.watts

    @property
    def measured_watts(self) -> float:
        """What all under the cap draws: by its meter, else by the agents' reports."""
        metered = self.metered_watts
        return self._watts(self.measured_milliwatts) if metered is None else metered

    @property
    def enforced(self) -> bool:
        """Nothing under the cap may draw more than it allows."""
        return self.if_governed is None and self.committed_watts <= self.effective.watts

    @property
    def known_enforced(self) -> bool:
        """Whether the watts in force now are enforced, and published as enforced in the cap's status."""
        return (
            self.cap.status.effective_watts == allowed_watts(self.effective.watts)
            and self.enforced
            and self._published_enforced
        )

    @property
    def status_of_an_earlier_spec(self) -> bool:
        """The cap's status calls it enforced, but as its spec was before: over other nodes, perhaps, or in limits."""
        return self.cap.status.observed_generation != self.cap.metadata.generation and self._published_enforced

    @property
    def _published_enforced(self) -> bool:
        return has_condition(self.cap.status.conditions, "Enforced")

    @property
    def proof_stale(self) -> bool:
        """Nothing but doubt of some nodes' acknowledgements keeps the cap from being enforced."""
        return not self.enforced and self._watts(self.committed_if_believed) <= self.effective.watts

    @property
    def attainable(self) -> bool:
        """The cap can be met by lowering limits."""
        return self.least_watts <= self.effective.watts

    def budget(self) -> CapBudget:
        """What grants may use: by the lower of the cap and what its status has published."""
        published = least(self.cap.status.effective_watts, self.unseen.effective_watts)
        return self._budget(self.effective.watts if published is None else min(self.effective.watts, published))

    @property
    def next_change_seconds(self) -> float:
        """After how long the cap must be looked at anew even if nothing changes (infinite: never)."""
        if self.spec.meter is None or self.meter is None:
            return self.effective.next_change_seconds
        looks_again = BREACH_LOOK_SECONDS if self.meter.waits else float(self.spec.meter.interval_seconds)
        return min(self.effective.next_change_seconds, looks_again)

    def meter_budget(self) -> CapBudget | None:
        """What all limits may add up to because of the cap's meter, whatever the cap itself counts; None: no bound."""
        if self.meter is None or self.meter.allowed_watts is None:
            return None
        left = NodeMilliwatts(allowed_milliwatts(self.meter.allowed_watts - self.spec.static_overhead_watts))
        return CapBudget(f"{self.name} (meter)", self.nodes, left, by_priority=self.meter.by_priority)

    @property
    def grantable_milliwatts(self) -> NodeMilliwatts:
        """What the nodes may draw at most beside what is held back now."""
        return NodeMilliwatts(self.planning_budget().budget_milliwatts - self.reserve_milliwatts)

    @property
    def is_over_budget(self) -> bool:
        """Whether more is committed than the cap itself allows beside what it holds back."""
        return self.committed_milliwatts > self.grantable_milliwatts

    def is_over(self, nodes: Mapping[str, NodeInfo]) -> bool:
        """Whether more is committed than the cap, or what its meter leaves of it, allows."""
        if self.is_over_budget:
            return True
        metered = self.meter_budget()
        return metered is not None and (
            metered.committed({name: nodes[name].power for name in self.nodes}) > metered.budget_milliwatts
        )

    @property
    def published_milliwatts(self) -> NodeMilliwatts | None:
        """What the cap's status has published as committed, without the static overhead; None before its first status."""
        watts = least(self.cap.status.committed_watts, self.unseen.committed_watts)
        return None if watts is None else NodeMilliwatts(allowed_milliwatts(watts - self.spec.static_overhead_watts))

    def published_budget(self) -> CapBudget | None:
        """What grants may use before another status is written: nothing above what the last one calls committed; None
        before the first one."""
        published = self.published_milliwatts
        if published is None:
            return None
        return CapBudget(f"{self.name} (published)", self.nodes, published, self.spec.expected)

    def watts_of(self, milliwatts: NodeMilliwatts) -> float:
        """What the GPUs' milliwatts come to with the static overhead."""
        return self._watts(milliwatts)

    def planning_budget(self) -> CapBudget:
        """What the plan should aim at."""
        return replace(self._budget(self.effective.watts), pauses=self.spec.on_infeasible == "Pause")

    def _budget(self, watts: float) -> CapBudget:
        left = NodeMilliwatts(allowed_milliwatts(watts - self.spec.static_overhead_watts))
        return CapBudget(self.name, self.nodes, left, self.spec.expected, reserve=self.reserve)

    def _watts(self, milliwatts: NodeMilliwatts) -> float:
        return self.spec.static_overhead_watts + milliwatts / MILLIWATTS_PER_WATT


class CapStates(Struct, frozen=True):
    """Every cap at one instant, in the order of their names, and what they together ask of each node.

    Of an `unreadable` cap nobody knows what it bounds; its `refusal` says why.
    """

    states: tuple[CapState, ...] = ()
    unreadable: tuple[PowerCap, ...] = ()
    rules: Mapping[str, NodeRules] = field(default_factory=dict)

    def with_unseen(self, sent: Mapping[str, SentWatts]) -> CapStates:
        """The same with what has been `sent` of the caps and is not seen yet, by their uids."""
        states = (
            replace(state, unseen=sent[uid]) if (uid := state.cap.uid) in sent else state for state in self.states
        )
        return replace(self, states=tuple(states))

    def names_over_nodes(self) -> dict[str, list[str]]:
        """The names of the caps over each node, by the node's name."""
        names: dict[str, list[str]] = {}
        for state in self.states:
            for node in state.nodes:
                names.setdefault(node, []).append(state.name)
        return names

    @property
    def problems(self) -> list[str]:
        """One sentence for each cap that cannot be read."""
        return [cap.refusal for cap in self.unreadable]
