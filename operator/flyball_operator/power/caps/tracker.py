"""Evaluates every cap once per cycle, with what must be remembered for that: ramps, energy periods, breaches, meters.

An operator that begins takes what there is to remember from the caps' statuses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import datetime

from flyball_api.grant import PowerBound
from flyball_api.power_brake import PowerBrake
from flyball_api.power_cap import CapBreach, CapEnergyPeriod, PowerCap, PowerCapSpec
from flyball_api.values.label_selector import LabelSelector
from flyball_api.values.units import MILLIJOULES_PER_JOULE, MILLIWATTS_PER_WATT, NodeMilliwatts, allowed_watts, of_nodes
from flyball_kube.process.logs import get_logger
from msgspec import Struct
from msgspec.structs import replace

from flyball_operator.power.bound import CapBudget
from flyball_operator.power.caps.foreign_shares import with_foreign_shares
from flyball_operator.power.caps.meter import (
    NEVER_READ,
    MeteredLoad,
    MeterReading,
    MeterState,
    first_state,
    follow_meter,
)
from flyball_operator.power.caps.overhead import NOT_KNOWN, Overhead, follow_overhead
from flyball_operator.power.caps.reserve import reserve_under
from flyball_operator.power.caps.schedule import (
    EffectiveCap,
    EnergyPeriod,
    KnownChange,
    LastEvaluation,
    ScheduledChange,
    charge_energy,
    effective_cap,
    next_scheduled_change,
)
from flyball_operator.power.caps.state import Breach, CapState, CapStates
from flyball_operator.power.nodes.energy_counters import CounterSum, Drawn, EnergyCounters, most_joules
from flyball_operator.power.nodes.failsafe import MINIMUM, failsafe_of, node_failsafes
from flyball_operator.power.nodes.info import NodeInfo
from flyball_operator.power.nodes.reservations import NO_RULES, least_bound, node_rules

logger = get_logger(__name__)

# What was counted before an operator began may have been reported so long before.
REPORT_SLACK_SECONDS = 60.0


class _Memory(Struct, frozen=True):
    """Of the last evaluation: the watts with their fraction (which a ramp goes on from), energy period, instant, breach."""

    watts: float | None
    ramp_at: float  # since when the ramp holds them below what is allowed, or the last evaluation, where it does not
    energy_period: EnergyPeriod | None
    at: float
    now: datetime  # the same instant by the wall clock
    breach: Breach | None
    meter: MeterState | None = None
    overhead: Overhead = NOT_KNOWN
    uncharged_seconds: float = 0.0  # before that instant
    counted: CounterSum | None = None  # what is charged already, by the operator before this one
    spec: PowerCapSpec | None = None  # that `known_change` was worked out for
    known_change: KnownChange | None = None
    budget_watts: float | None = None
    budget_at: float = 0.0


class CapTracker:
    """Evaluates every cap once per cycle; remembers ramps, energy periods and breaches (over restarts: the statuses do)."""

    def __init__(self, grant_lease_seconds: int = 60) -> None:
        self._grant_lease_seconds = grant_lease_seconds
        self._memory: dict[str, _Memory] = {}
        self._refusals: dict[str, str] = {}  # of the caps that could not be worked out, by uid
        self._counters = EnergyCounters()

    def step(
        self,
        caps: Iterable[PowerCap],
        nodes: Mapping[str, NodeInfo],
        now: datetime,
        monotonic: float,
        brakes: Mapping[str, PowerBrake] | None = None,
        readings: Mapping[str, MeterReading] | None = None,
        wanted_gpus: int | None = None,
        clock_ahead_seconds: float = 0.0,
    ) -> CapStates:
        """Evaluate all caps as of the wall clock's `now`; `monotonic` gives the seconds since the last call.

        `brakes` are the PowerBrakes by the names of their caps. An emergency is for the nodes under its cap now and for
        those whose grant says that they were: it outlasts a change of labels, and its cap. `readings` has what the caps'
        meters said last, by the caps' uids. Jobs want `wanted_gpus` together (None: all that there are).
        `clock_ahead_seconds` is by how much `now` is certainly ahead of the API server's clock.
        Raises ValueError where `now` has no time zone.
        """
        if now.tzinfo is None:
            raise ValueError(f"the time {now} has no time zone; schedules are in UTC")
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
        states: list[CapState] = []
        for cap, spec, under in readable:
            try:
                state = self._evaluate(
                    cap,
                    spec,
                    {name: nodes[name] for name in under},
                    least,
                    now,
                    monotonic,
                    brakes.get(cap.name),
                    readings.get(cap.uid),
                    clock_ahead_seconds,
                )
            except Exception as error:
                # A mistake of ours that one cap shows must not end the cycle that holds all others.
                unreadable.append(self._refused(cap, error))
            else:
                states.append(state)
                self._refusals.pop(cap.uid, None)
        for uid in self._memory.keys() - {cap.uid for cap, _, _ in readable}:
            del self._memory[uid]
        for uid in self._refusals.keys() - {cap.uid for cap, _, _ in readable}:
            del self._refusals[uid]
        failsafes = node_failsafes(
            (failsafe_of(state.spec, state.effective.falls_in_seconds, self._grant_lease_seconds), state.nodes)
            for state in states
        )
        if unreadable:  # nobody knows what these ask for, and of which nodes
            failsafes = {}
        rules = {name: replace(rule, failsafe=failsafes.get(name, MINIMUM)) for name, rule in rules.items()}
        limiting = ((state.spec, state.budget()) for state in states)
        rules = with_foreign_shares(rules, limiting, nodes, wanted_gpus)
        return CapStates(tuple(states), tuple(unreadable), rules)

    def _refused(self, cap: PowerCap, error: Exception) -> PowerCap:
        """A cap that cannot be worked out, as one that cannot be read; logged once for as long as it is for the same."""
        refusal = f"PowerCap {cap.name} cannot be worked out: {type(error).__name__}: {error}"
        if self._refusals.get(cap.uid) != refusal:
            self._refusals[cap.uid] = refusal
            logger.error("a cap that cannot be worked out", cap=cap.name, exc_info=error)
        return dataclasses.replace(cap, spec=None, refusal=refusal)

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
        clock_ahead_seconds: float,
    ) -> CapState:
        memory = self._memory.get(cap.uid) or _recorded(cap, now, monotonic)
        measured = of_nodes(info.measured_milliwatts for info in under.values())
        period, counted = self._energy(memory, spec, under, measured, now)
        largest_watts = of_nodes(info.max_limits_milliwatts for info in under.values()) / MILLIWATTS_PER_WATT
        held_watts = (
            memory.budget_watts if memory.spec == spec and _in_same_period(memory.energy_period, period) else None
        )
        ramp_age, budget_age = monotonic - memory.ramp_at, monotonic - memory.budget_at
        last_evaluation = LastEvaluation(memory.watts, ramp_age, period, held_watts, budget_age)
        effective = effective_cap(spec, last_evaluation, now, largest_watts, clock_ahead_seconds)
        known = _known_change(memory, spec, now, largest_watts)
        state = _state(cap, spec, under, least, effective, measured, brake, counted, known.change)
        if spec.meter is not None:
            last = first_state(cap.status, monotonic) if memory.meter is None else memory.meter
            reading = NEVER_READ if reading is None else reading
            meter = follow_meter(spec.meter, last, reading, _metered_load(state, under, least), monotonic)
            state = _with_meter(state, last, meter, reading, memory.overhead, monotonic)
        state = replace(state, breach=_breach(memory.breach, state, max(0.0, monotonic - memory.at), now))
        held_by_ramp = effective.watts == memory.watts and effective.watts < effective.target_watts
        self._memory[cap.uid] = _Memory(
            effective.watts,
            memory.ramp_at if held_by_ramp else monotonic,
            period,
            monotonic,
            now,
            state.breach,
            state.meter,
            state.overhead,
            spec=spec,
            known_change=known,
            budget_watts=effective.budget_watts,
            budget_at=memory.budget_at if effective.budget_watts == held_watts else monotonic,
        )
        return state

    def _energy(
        self,
        memory: _Memory,
        spec: PowerCapSpec,
        under: Mapping[str, NodeInfo],
        measured: NodeMilliwatts,
        now: datetime,
    ) -> tuple[EnergyPeriod | None, CounterSum | None]:
        """The energy period with what is drawn until now, and what the counters show, where the cap has a budget."""
        if spec.energy_budget is None:
            return memory.energy_period, None
        counted = self._counters.total(under)
        charge = self._drawn(memory, under, counted, measured)
        return charge_energy(spec.energy_budget, memory.energy_period, now, charge.joules, charge.seconds), counted

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


def _state(
    cap: PowerCap,
    spec: PowerCapSpec,
    under: Mapping[str, NodeInfo],
    least: Mapping[str, PowerBound],
    effective: EffectiveCap,
    measured: NodeMilliwatts,
    brake: PowerBrake | None,
    counted: CounterSum | None,
    next_change: ScheduledChange | None,
) -> CapState:
    """A cap as it is in force, with the watts of the nodes `under` it as it counts them; without meter and breach."""
    counts = CapBudget(cap.name, frozenset(under), NodeMilliwatts(0), spec.expected)
    reserve = reserve_under(under, spec.reserve_nodes)
    return CapState(
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
        reserve=reserve,
        reserve_milliwatts=reserve.of((name, counts.counted(info.power.committed)) for name, info in under.items()),
        energy_period=effective.energy_period,
        brake=brake,
        counted=counted,
        next_change=next_change,
    )


def _known_change(memory: _Memory, spec: PowerCapSpec, now: datetime, largest_watts: float) -> KnownChange:
    """The schedule's next change, looked for no further than where the last look ended, as long as that is true.

    A clock that was set back has changes before it again.
    """
    known = memory.known_change if memory.spec == spec and memory.now <= now else None
    if known is not None and known.until is not None and known.until <= now:
        known = None
    return next_scheduled_change(spec, now, largest_watts, known) if known is None or not known.final else known


def _with_meter(
    state: CapState, last: MeterState, meter: MeterState, reading: MeterReading, overhead: Overhead, monotonic: float
) -> CapState:
    """A cap with what its meter shows now; a new reading that is believed shows what is drawn outside the GPUs, too."""
    if reading.watts is not None and meter.silence is None and meter.read_at > last.read_at and not state.doubts:
        drawn = state.measured_milliwatts / MILLIWATTS_PER_WATT
        overhead = follow_overhead(overhead, reading.watts, drawn, state.effective.watts, monotonic)
    age = 0.0 if reading.watts is None else monotonic - reading.seen_at
    return replace(state, reading=reading, reading_age_seconds=age, meter=meter, overhead=overhead)


def _metered_load(state: CapState, under: Mapping[str, NodeInfo], least: Mapping[str, PowerBound]) -> MeteredLoad:
    """What the limits under a cap come to, whatever the cap itself counts."""
    limits = of_nodes(info.power.committed.limit_milliwatts for info in under.values())
    largest = state.watts_of(of_nodes(info.max_limits_milliwatts for info in under.values()))
    return MeteredLoad(
        cap_watts=state.effective.watts,
        limits_watts=state.watts_of(NodeMilliwatts(limits)),
        least_watts=state.watts_of(of_nodes(least[name].limit_milliwatts for name in under)),
        most_watts=largest if state.spec.expected else min(largest, state.effective.watts),
        # What a node reported before it went away says nothing of what it draws now.
        gpu_watts=of_nodes(info.measured_milliwatts for info in under.values() if not info.doubt) / MILLIWATTS_PER_WATT,
        ramp_watts_per_second=state.spec.ramp_watts_per_second,
    )


def _recorded_under(selector: LabelSelector, info: NodeInfo) -> bool:
    """Whether the node's GPUNode keeps labels that the cap selects; where there is none, nothing was granted either."""
    gpu_node = info.gpu_node
    return gpu_node is None or any(map(selector.matches, (gpu_node.labels, *gpu_node.former_labels)))


def _in_same_period(one: EnergyPeriod | None, other: EnergyPeriod | None) -> bool:
    return one is not None and other is not None and one.start == other.start


def _recorded(cap: PowerCap, now: datetime, monotonic: float) -> _Memory:
    """What the operator before this one remembered of a cap, by its status.

    What was drawn since, without a leader, is charged by the counters, or at what is drawn now.
    """
    period, breach = cap.status.energy_period, cap.status.breach
    charged_until = None if period is None else period.charged_until
    return _Memory(
        watts=cap.status.effective_watts,
        ramp_at=monotonic,
        energy_period=None if period is None else EnergyPeriod(period.start, period.consumed_kilojoules * 1e3),
        at=monotonic,
        now=now,
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
