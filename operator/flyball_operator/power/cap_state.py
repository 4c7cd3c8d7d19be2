"""What each PowerCap comes to at this moment: its nodes, the watts it allows, and what is committed under it.

A higher cap is used only once the cap's status has published it, so that at no instant do the limits exceed the cap that
its status calls enforced. Caps count in whole watts, rounded down, because that is what the status can show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from flyball_api.grant import PowerBound
from flyball_api.label_selector import LabelSelector
from flyball_api.power_brake import PowerBrake
from flyball_api.power_cap import CapBreach, CapEnergyPeriod, PowerCap, PowerCapSpec
from flyball_api.units import MILLIWATTS_PER_WATT, NodeMilliwatts, allowed_milliwatts, allowed_watts
from msgspec import Struct, field
from msgspec.structs import replace

from flyball_operator.power.bound import CapBudget
from flyball_operator.power.cap_schedule import (
    EffectiveCap,
    EnergyPeriod,
    LastEvaluation,
    ScheduledChange,
    charge_energy,
    effective_cap,
    next_scheduled_change,
)
from flyball_operator.power.energy_counters import MILLIJOULES_PER_JOULE, CounterSum, Drawn, EnergyCounters, most_joules
from flyball_operator.power.failsafe import failsafe_of, node_failsafes
from flyball_operator.power.foreign_shares import with_foreign_shares
from flyball_operator.power.meter import (
    NEVER_READ,
    MeteredLoad,
    MeterReading,
    MeterState,
    first_state,
    follow_meter,
)
from flyball_operator.power.node_info import NodeInfo
from flyball_operator.power.node_reserve import reserve_of
from flyball_operator.power.overhead import NOT_KNOWN, Overhead, follow_overhead
from flyball_operator.power.reservations import NO_RULES, NodeRules, least_bound, node_rules

# How often a cap is looked at while more than it allows is drawn.
BREACH_LOOK_SECONDS = 0.5
# What was counted before an operator began may have been reported so long before.
REPORT_SLACK_SECONDS = 60.0


class Breach(Struct, frozen=True):
    """A time that more was measured than the cap allowed: the most watts above it, and the joules above it."""

    since: datetime
    watts: int
    joules: float = 0.0
    until: datetime | None = None


class CapState(Struct, frozen=True):
    """One cap now. The milliwatts of its nodes' GPUs are without the cap's static overhead, all watts are with it.

    `leaving` are those of its nodes that it selects by their former labels only, `unrecorded` those that nobody would know
    to be its own if their labels changed now: their GPUNode has not been told of them yet. `reserve_milliwatts` are held
    back for nodes that jump to their largest limits.

    `doubts` has the nodes whose acknowledgement may not be true any more, and why; they count at their largest limits, and
    `committed_if_believed` is the sum if they did not. `brake` is the last one that was written for the cap.
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
        """What the cap's meter says; None where it has none, or one that is not believed."""
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
        """What is in force now is enforced, and the cap's status says so."""
        return self.enforced and self._told_enforced and self.cap.status.effective_watts == int(self.effective.watts)

    @property
    def told_of_an_earlier_spec(self) -> bool:
        """The cap's status calls it enforced, but as its spec was before: over other nodes, perhaps, or in limits."""
        return self._told_enforced and self.cap.status.observed_generation != self.cap.metadata.generation

    @property
    def _told_enforced(self) -> bool:
        return any(item.type == "Enforced" and item.status == "True" for item in self.cap.status.conditions)

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
        published = self.cap.status.effective_watts
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
    def published_milliwatts(self) -> NodeMilliwatts | None:
        """What the cap's status has published as committed, without the static overhead; None before its first status."""
        watts = self.cap.status.committed_watts
        return None if watts is None else NodeMilliwatts(allowed_milliwatts(watts - self.spec.static_overhead_watts))

    def published_budget(self) -> CapBudget:
        """What grants may use before another status is written: nothing above what the last one calls committed."""
        budget, published = self.budget(), self.published_milliwatts
        if published is None:
            return budget
        return replace(budget, budget_milliwatts=min(budget.budget_milliwatts, published))

    def watts_of(self, milliwatts: NodeMilliwatts) -> float:
        """What the GPUs' milliwatts come to with the static overhead."""
        return self._watts(milliwatts)

    def planning_budget(self) -> CapBudget:
        """What the plan should aim at: the cap, less what is held back."""
        return replace(self._budget(self.effective.watts), pauses=self.spec.on_infeasible == "Pause")

    def _budget(self, watts: float) -> CapBudget:
        left = allowed_milliwatts(watts - self.spec.static_overhead_watts) - self.reserve_milliwatts
        return CapBudget(self.name, self.nodes, NodeMilliwatts(left), self.spec.expected)

    def _watts(self, milliwatts: NodeMilliwatts) -> float:
        return self.spec.static_overhead_watts + milliwatts / MILLIWATTS_PER_WATT


class CapStates(Struct, frozen=True):
    """Every cap at one instant, in the order of their names, and what they together ask of each node.

    Of an `unreadable` cap nobody knows what it bounds; its `refusal` says why.
    """

    states: tuple[CapState, ...] = ()
    unreadable: tuple[PowerCap, ...] = ()
    rules: Mapping[str, NodeRules] = field(default_factory=dict)

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


class _Memory(Struct, frozen=True):
    """Of the last evaluation: the watts with their fraction (which a ramp goes on from), energy period, instant, breach."""

    watts: float | None
    energy_period: EnergyPeriod | None
    at: float
    breach: Breach | None
    meter: MeterState | None = None
    overhead: Overhead = NOT_KNOWN
    uncharged_seconds: float = 0.0  # before that instant
    counted: CounterSum | None = None  # what is charged already, by the operator before this one
    spec: PowerCapSpec | None = None  # that `next_change` was worked out for
    next_change: ScheduledChange | None = None


class CapTracker:
    """Evaluates every cap once per cycle; remembers ramps, energy periods and breaches (over restarts: the statuses do)."""

    def __init__(self, grant_lease_seconds: int = 60) -> None:
        self._grant_lease_seconds = grant_lease_seconds
        self._memory: dict[str, _Memory] = {}
        self._counters = EnergyCounters()

    def read(
        self,
        caps: Iterable[PowerCap],
        nodes: Mapping[str, NodeInfo],
        now: datetime,
        monotonic: float,
        brakes: Mapping[str, PowerBrake] | None = None,
        readings: Mapping[str, MeterReading] | None = None,
        wanted_gpus: int | None = None,
    ) -> CapStates:
        """All caps as of the wall clock's `now`; `monotonic` gives the seconds since the last call.

        `brakes` are the PowerBrakes by the names of their caps. An emergency is for the nodes under its cap now and for
        those whose grant says that they were: it outlasts a change of labels, and its cap. `readings` has what the caps'
        meters said last, by the caps' uids. Jobs want `wanted_gpus` together (None: all that there are).
        """
        brakes, readings = brakes or {}, readings or {}
        readable: list[tuple[PowerCap, PowerCapSpec, frozenset[str]]] = []
        unreadable = []
        for cap in sorted(caps, key=lambda item: item.name):
            if cap.spec is None:
                unreadable.append(cap)
                continue
            sets = ((name, labels) for name, info in nodes.items() for labels in (info.labels, *info.former_labels))
            readable.append((cap, cap.spec, cap.spec.node_selector.select(sets)))
        charged = (name for _, spec, under in readable if spec.energy_budget is not None for name in under)
        self._counters.update(nodes, charged, monotonic)
        active = {cap for cap, brake in brakes.items() if brake.active}
        in_emergency = {name for cap, _, under in readable if cap.name in active for name in under}
        in_emergency |= {name for name, info in nodes.items() if any(cap in active for cap in info.named_caps)}
        rules = node_rules([(spec, under) for _, spec, under in readable], in_emergency)
        least = {name: least_bound(info, rules.get(name, NO_RULES)) for name, info in nodes.items()}
        states = tuple(
            self._evaluate(
                cap,
                spec,
                {name: nodes[name] for name in under},
                least,
                now,
                monotonic,
                brakes.get(cap.name),
                readings.get(cap.uid),
            )
            for cap, spec, under in readable
        )
        for uid in self._memory.keys() - {cap.uid for cap, _, _ in readable}:
            del self._memory[uid]
        failsafes = node_failsafes(
            (failsafe_of(state.spec, state.effective.falls_in_seconds, self._grant_lease_seconds), state.nodes)
            for state in states
        )
        rules = {name: replace(rule, failsafe=failsafes.get(name, rule.failsafe)) for name, rule in rules.items()}
        limiting = ((state.spec, state.budget()) for state in states)
        rules = with_foreign_shares(rules, limiting, nodes, wanted_gpus)
        return CapStates(states, tuple(unreadable), rules)

    def _evaluate(
        self,
        cap: PowerCap,
        spec: PowerCapSpec,
        under: Mapping[str, NodeInfo],
        least: Mapping[str, PowerBound],
        now: datetime,
        monotonic: float,
        brake: PowerBrake | None,
        reading: MeterReading | None,
    ) -> CapState:
        memory = self._memory.get(cap.uid) or _recorded(cap, now, monotonic)
        elapsed = max(0.0, monotonic - memory.at)
        measured = NodeMilliwatts(sum(info.measured_milliwatts for info in under.values()))
        period, counted = memory.energy_period, None
        if spec.energy_budget is not None:
            counted = self._counters.total(under)
            charge = self._drawn(memory, under, counted, measured)
            period = charge_energy(spec.energy_budget, period, now, charge.joules, charge.seconds)
        largest_watts = sum(info.max_limits_milliwatts for info in under.values()) / MILLIWATTS_PER_WATT
        effective = effective_cap(spec, LastEvaluation(memory.watts, elapsed, period), now, largest_watts)
        next_change = memory.next_change
        if memory.spec != spec or (next_change is not None and next_change.time <= now):
            next_change = next_scheduled_change(spec, now, largest_watts)
        counts = CapBudget(cap.name, frozenset(under), NodeMilliwatts(0), spec.expected)
        state = CapState(
            cap=cap,
            spec=spec,
            nodes=counts.nodes,
            leaving=frozenset(name for name, info in under.items() if not spec.node_selector.matches(info.labels)),
            unrecorded=frozenset(name for name, info in under.items() if not _recorded_under(spec.node_selector, info)),
            effective=replace(effective, watts=float(allowed_watts(effective.watts))),
            committed_milliwatts=counts.counted_together([info.power.committed for info in under.values()]),
            least_milliwatts=counts.counted_together([least[name] for name in under]),
            measured_milliwatts=measured,
            committed_if_believed=counts.counted_together([info.power_if_believed for info in under.values()]),
            doubts={name: info.doubt for name, info in under.items() if info.doubt},
            reserve_milliwatts=reserve_of(counts, under, spec.reserve_nodes),
            energy_period=effective.energy_period,
            brake=brake,
            counted=counted,
            next_change=next_change,
        )
        if spec.meter is not None:
            last = first_state(cap.status, monotonic) if memory.meter is None else memory.meter
            reading = NEVER_READ if reading is None else reading
            meter = follow_meter(spec.meter, last, reading, _metered_load(state, under, least), monotonic)
            age = 0.0 if reading.watts is None else monotonic - reading.seen_at
            state = replace(state, reading=reading, reading_age_seconds=age, meter=meter, overhead=memory.overhead)
            if (
                reading.watts is not None
                and meter.silence is None
                and meter.read_at > last.read_at
                and not state.doubts
            ):
                drawn = measured / MILLIWATTS_PER_WATT
                overhead = follow_overhead(memory.overhead, reading.watts, drawn, state.effective.watts, monotonic)
                state = replace(state, overhead=overhead)
        state = replace(state, breach=_breach(memory.breach, state, elapsed, now))
        self._memory[cap.uid] = _Memory(
            effective.watts,
            period,
            monotonic,
            state.breach,
            state.meter,
            state.overhead,
            spec=spec,
            next_change=next_change,
        )
        return state

    def _drawn(
        self, memory: _Memory, under: Mapping[str, NodeInfo], counted: CounterSum | None, measured: NodeMilliwatts
    ) -> Drawn:
        """What is to be charged now. Of the time in which nobody led counters know, unless a node has come, gone or booted
        since, or one of them has begun anew: then what is drawn now stands for it."""
        if memory.counted is None and not memory.uncharged_seconds:
            return self._counters.drawn(under)
        before, seconds = memory.counted, memory.uncharged_seconds
        if before is not None and counted is not None and before.of == counted.of:
            risen = (counted.millijoules - before.millijoules) / MILLIJOULES_PER_JOULE
            if risen >= 0:
                return Drawn(min(risen, most_joules(under.values(), seconds + REPORT_SLACK_SECONDS)), seconds)
        return Drawn(measured / MILLIWATTS_PER_WATT * seconds, seconds)


def _metered_load(state: CapState, under: Mapping[str, NodeInfo], least: Mapping[str, PowerBound]) -> MeteredLoad:
    """What the limits under a cap come to, whatever the cap itself counts."""
    limits = sum(info.power.committed.limit_milliwatts for info in under.values())
    largest = state.watts_of(NodeMilliwatts(sum(info.max_limits_milliwatts for info in under.values())))
    return MeteredLoad(
        cap_watts=state.effective.watts,
        limits_watts=state.watts_of(NodeMilliwatts(limits)),
        least_watts=state.watts_of(NodeMilliwatts(sum(least[name].limit_milliwatts for name in under))),
        most_watts=largest if state.spec.expected else min(largest, state.effective.watts),
        # What a node reported before it went away says nothing of what it draws now.
        gpu_watts=sum(info.measured_milliwatts for info in under.values() if not info.doubt) / MILLIWATTS_PER_WATT,
        ramp_watts_per_second=state.spec.ramp_watts_per_second,
    )


def _recorded_under(selector: LabelSelector, info: NodeInfo) -> bool:
    """Whether the node's GPUNode keeps labels that the cap selects; where there is none, nothing was granted either."""
    gpu_node = info.gpu_node
    return gpu_node is None or any(map(selector.matches, (gpu_node.labels, *gpu_node.former_labels)))


def _recorded(cap: PowerCap, now: datetime, monotonic: float) -> _Memory:
    """What the operator before this one remembered of a cap, by its status.

    What was drawn since, without a leader, is charged by the counters, or at what is drawn now.
    """
    period, breach = cap.status.energy_period, cap.status.breach
    charged_until = None if period is None else period.charged_until
    return _Memory(
        watts=cap.status.effective_watts,
        energy_period=None if period is None else EnergyPeriod(period.start, period.consumed_kilojoules * 1e3),
        at=monotonic,
        breach=None if breach is None else _recorded_breach(breach),
        uncharged_seconds=0.0 if charged_until is None else max(0.0, (now - charged_until).total_seconds()),
        counted=_counted(period),
    )


def _counted(period: CapEnergyPeriod | None) -> CounterSum | None:
    if period is None or period.counted_of is None or period.counted_millijoules is None:
        return None
    return CounterSum(period.counted_millijoules, period.counted_of)


def _recorded_breach(breach: CapBreach) -> Breach:
    return Breach(breach.since, breach.watts, float(breach.joules), breach.until)


def _breach(before: Breach | None, state: CapState, elapsed: float, now: datetime) -> Breach | None:
    """The last breach: since when measured watts were above the cap, the most of them, the joules above, and its end."""
    over = state.measured_watts - state.effective.watts
    goes_on = before if before is not None and before.until is None else None
    if over <= 0:
        return before if goes_on is None else replace(goes_on, until=now)
    if goes_on is None:
        return Breach(now, round(over))
    return replace(goes_on, watts=max(goes_on.watts, round(over)), joules=goes_on.joules + over * elapsed)
