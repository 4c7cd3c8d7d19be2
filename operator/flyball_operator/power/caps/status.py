"""PowerCap.status, made from the state of a cap.

A lower cap is published as not enforced until every limit under it is read back low enough; a higher one is published
before anything is raised for it (`CapState.budget`). So the status never calls a cap enforced that the limits exceed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from flyball_api.power_cap import (
    CapBreach,
    CapEnergyPeriod,
    CapMeasured,
    CapMeterStatus,
    CapNextChange,
    PowerCap,
    PowerCapStatus,
)
from flyball_api.values.conditions import Condition, merge_conditions
from flyball_api.values.times import whole_second
from flyball_api.values.units import (
    JOULES_PER_KILOJOULE,
    MILLIJOULES_PER_JOULE,
    MILLIWATTS_PER_WATT,
    NodeMilliwatts,
    allowed_watts,
    held_watts,
)
from msgspec.structs import replace

from flyball_operator.power.caps.meter import MeterPhase, MeterState, Silence
from flyball_operator.power.caps.overhead import Overhead
from flyball_operator.power.caps.schedule import EnergyPeriod, ScheduledChange
from flyball_operator.power.caps.state import Breach, CapState
from flyball_operator.power.nodes.energy_counters import CounterSum

# The reasons that each condition can have; docs/api.md lists the same.
REASONS: dict[str, frozenset[str]] = {
    "Feasible": frozenset({"FloorsFit", "FloorsExceedCap", "Unreadable"}),
    "Enforced": frozenset(
        {
            "LimitsAcknowledged",
            "WaitingForAcknowledgements",
            "ProofStale",
            "Adopting",
            "Joining",
            "Observing",
            "NoNodes",
            "Infeasible",
            "Unreadable",
        }
    ),
    "Breached": frozenset({"MeasuredOverCap", "WithinCap", "MeterSilent", "Unreadable"}),
    "MeterSilent": frozenset({"NoReading", "Implausible", "Reading", "NoMeter", "Unreadable"}),
    "ScheduleInvalid": frozenset({"CronUnreadable", "TimeZoneUnknown"}),
    "Emergency": frozenset({"Declared", "Ended"}),
}
# Those that every cap has; an emergency is shown where there is or was one.
ALWAYS_SHOWN = ("Feasible", "Enforced", "Breached", "MeterSilent")


@dataclass(frozen=True, slots=True)
class GrantsUnderWay:
    """What the grants of one step mean to statuses.

    `waiting` nodes have yet to acknowledge a cut or to get a raise, and `unconfirmed` ones a grant of this very leader.
    `unread` names the objects that cannot be read: nobody knows under which caps those nodes count, and with how much.
    `to_be_committed` has what each cap, by its name, comes to with the raises that are about to be sent.
    """

    waiting: int = 0
    unconfirmed: frozenset[str] = frozenset()
    unread: tuple[str, ...] = ()
    to_be_committed: Mapping[str, NodeMilliwatts] = field(default_factory=dict)


def cap_status(
    state: CapState, problems: Iterable[str], grants: GrantsUnderWay, now: datetime, *, feasible: bool
) -> PowerCapStatus:
    """The status of a cap. What is committed is published before it is: a raise waits until its status has been written."""
    cap, effective = state.cap, state.effective
    enforced = _enforced(state, feasible, grants)
    conditions = (
        _feasible(state, feasible, problems),
        enforced,
        _breached(state),
        _meter_silent(state),
        *_schedule_invalid(state),
        *_emergency(state),
    )
    period, breach = state.energy_period, state.breach
    to_be_committed = state.watts_of(grants.to_be_committed.get(state.name, NodeMilliwatts(0)))
    committed_watts = max(state.committed_watts, to_be_committed)
    return PowerCapStatus(
        observed_generation=cap.metadata.generation,
        conditions=merge_conditions(cap.status.conditions, conditions, cap.metadata.generation, now),
        effective_watts=allowed_watts(effective.watts),
        active_schedule=effective.active_window,
        next_change=None if state.next_change is None else _next_change(state.next_change),
        committed_watts=held_watts(committed_watts),
        least_watts=held_watts(state.least_watts),
        measured_watts=round(state.measured_watts),
        measured=_measured(state),
        meter=None if state.meter is None else _meter_status(state.meter, state.overhead),
        headroom_watts=allowed_watts(effective.watts - committed_watts) if enforced.status else 0,
        nodes=len(state.nodes),
        breach=None if breach is None else _stored_breach(breach),
        energy_period=None if period is None else _stored_period(period, state.counted, now),
    )


def _stored_period(period: EnergyPeriod, counted: CounterSum | None, now: datetime) -> CapEnergyPeriod:
    """The period in whole kilojoules; the rest is taken off what is counted, for the next leader to charge."""
    kilojoules = int(period.consumed_joules / JOULES_PER_KILOJOULE)
    stored = CapEnergyPeriod(period.start, kilojoules, whole_second(now))
    if counted is None:
        return stored
    rest = round((period.consumed_joules - kilojoules * JOULES_PER_KILOJOULE) * MILLIJOULES_PER_JOULE)
    return replace(stored, counted_millijoules=max(0, counted.millijoules - rest), counted_of=counted.of)


def _next_change(change: ScheduledChange) -> CapNextChange:
    return CapNextChange(whole_second(change.time), allowed_watts(change.watts), change.window)


def _stored_breach(breach: Breach) -> CapBreach:
    until = None if breach.until is None else whole_second(breach.until)
    return CapBreach(whole_second(breach.since), until, breach.watts, int(breach.joules))


def unreadable_status(cap: PowerCap, now: datetime) -> PowerCapStatus:
    """The status of a cap that cannot be read: all of its conditions are unknown, and its figures stay as they were."""
    message = f"{cap.refusal}; until it is put right, nothing is raised on any node"
    conditions = [Condition(kind, None, "Unreadable", message) for kind in ALWAYS_SHOWN]
    return replace(
        cap.status,
        observed_generation=cap.metadata.generation,
        conditions=merge_conditions(cap.status.conditions, conditions, cap.metadata.generation, now),
    )


def _feasible(state: CapState, feasible: bool, problems: Iterable[str]) -> Condition:
    return Condition(
        "Feasible",
        feasible,
        "FloorsFit" if feasible else "FloorsExceedCap",
        f"the nodes draw up to {state.least_watts:.0f} W at the least (smallest limits, foreign pods, unresponsive nodes, "
        f"static overhead); {state.effective.reason}" + "".join(f"; {problem}" for problem in problems),
    )


def _schedule_invalid(state: CapState) -> tuple[Condition, ...]:
    if not state.effective.problems:
        return ()
    problems = state.effective.problems
    return (Condition("ScheduleInvalid", True, problems[0].reason, "; ".join(item.message for item in problems)),)


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


def _nodes_have(number: int) -> str:
    return f"{_nodes(number)} {'has' if number == 1 else 'have'}"


def _enforced(state: CapState, feasible: bool, grants: GrantsUnderWay) -> Condition:
    if not state.nodes and not grants.unread:
        return Condition("Enforced", None, "NoNodes", "no node with GPUs is under the cap: see its nodeSelector")
    over = state.committed_watts - state.effective.watts
    if state.if_governed is not None:
        message = (
            f"the operator only observes: no limit is set, and those of {_nodes(len(state.nodes))} allow "
            f"{state.committed_watts:.0f} W; governed, with the pods that run now, they would allow "
            f"{state.if_governed.committed_watts:.0f} W of the cap's {state.effective.watts:.0f} W"
        )
        return Condition("Enforced", False, "Observing", message)
    unconfirmed = state.nodes & grants.unconfirmed
    if state.enforced and grants.unread:
        message = f"what cannot be read may be of nodes under this cap: {', '.join(grants.unread[:8])}"
        return Condition("Enforced", None, "Unreadable", message)
    if state.enforced and unconfirmed:
        message = (
            f"{_nodes_have(len(unconfirmed))} yet to acknowledge a grant of the operator that leads since a moment ago"
        )
        return Condition("Enforced", None, "Adopting", message)
    if state.enforced and state.unrecorded:
        message = f"{_nodes_have(len(state.unrecorded))} yet to be recorded as the cap's, by labels in their GPUNodes"
        return Condition("Enforced", None, "Joining", message)
    if state.enforced:
        message = (
            f"the limits of {_nodes(len(state.nodes))} add up to {state.committed_watts:.0f} W at most, "
            f"{abs(over):.0f} W under the cap"
        )
        if state.reserve_milliwatts:
            held = state.reserve_milliwatts / MILLIWATTS_PER_WATT
            message += f"; {held:.0f} W are held back for {state.spec.reserve_nodes} of them"
        return Condition("Enforced", True, "LimitsAcknowledged", message)
    if state.proof_stale:
        named = [f"{name}: {doubt}" for name, doubt in sorted(state.doubts.items())]
        message = (
            f"nobody can prove that the nodes draw less than {state.committed_watts:.0f} W, {over:.0f} W over the cap"
        )
        count = "counts at its" if len(named) == 1 else "count at their"
        message += f"; {len(named)} of them {count} GPUs' largest limits ({'; '.join(named)})"
        return Condition("Enforced", None, "ProofStale", message)
    message = f"the nodes may still draw {state.committed_watts:.0f} W, {over:.0f} W over the cap"
    if grants.waiting:
        whose = "its grant" if grants.waiting == 1 else "their grants"
        message += f"; {_nodes_have(grants.waiting)} yet to acknowledge {whose}"
    return Condition("Enforced", False, "WaitingForAcknowledgements" if feasible else "Infeasible", message)


def _breached(state: CapState) -> Condition:
    if state.meter is not None and state.metered_watts is None:
        message = f"nobody knows what is drawn; the agents report {state.measured_watts:.0f} W of the GPUs, with the "
        message += f"static overhead, cap {state.effective.watts:.0f} W"
        return Condition("Breached", None, "MeterSilent", message)
    breached = state.measured_watts > state.effective.watts
    message = f"measured {state.measured_watts:.0f} W, cap {state.effective.watts:.0f} W"
    return Condition(
        "Breached", breached, "MeasuredOverCap" if breached else "WithinCap", message + _meters_doing(state)
    )


def _emergency(state: CapState) -> tuple[Condition, ...]:
    brake = state.brake
    if brake is None or not brake.everything:
        return ()
    why = f": {brake.spec.reason}" if brake.spec.reason else ""
    if not brake.active:
        return (Condition("Emergency", False, "Ended", f"limits return with the nodes' next grants{why}"),)
    message = f"every GPU is held at its smallest limit until the emergency is ended{why}"
    if state.if_governed is not None:
        message = f"agents that only observe do not follow it{why}"
    return (Condition("Emergency", True, "Declared", message),)


def _meter_silent(state: CapState) -> Condition:
    if state.meter is None or state.spec.meter is None:
        return Condition("MeterSilent", False, "NoMeter", "the cap has no meter")
    source, silence, reading = state.spec.meter.source, state.meter.silence, state.reading
    if silence is None:
        return Condition("MeterSilent", False, "Reading", f"{source} is read")
    if silence is Silence.IMPLAUSIBLE:
        drawn = state.measured_milliwatts / MILLIWATTS_PER_WATT
        message = f"{source} reads {reading.watts or 0:.0f} W, and the agents report {drawn:.0f} W of the GPUs alone"
    elif reading.watts is None:
        message = f"{source} has not been read: {reading.error}"
    else:
        message = f"{source} has no new reading: {reading.error or 'its last one is not renewed'}"
    return Condition("MeterSilent", True, str(silence), message + _meters_doing(state))


def _meters_doing(state: CapState) -> str:
    """What limits are held to because of the meter, as the end of a sentence."""
    if state.meter is None or state.meter.allowed_watts is None or state.if_governed is not None:
        return ""
    doing = {
        MeterPhase.SHAPING: "limits are shaped",
        MeterPhase.CUT: "jobs are cut by priority",
        MeterPhase.SILENT: "limits are lowered",
    }[state.meter.phase]
    return f"; {doing}: they and the static overhead add up to {state.meter.allowed_watts:.0f} W at most"


def _measured(state: CapState) -> CapMeasured:
    """Where the measured watts come from."""
    if state.metered_watts is None or state.spec.meter is None:
        return CapMeasured("agents")
    time = None if state.reading.time is None else whole_second(state.reading.time)
    return CapMeasured(state.spec.meter.source, time, int(state.reading_age_seconds))


def _meter_status(meter: MeterState, overhead: Overhead) -> CapMeterStatus:
    allowed = None if meter.allowed_watts is None else allowed_watts(meter.allowed_watts)
    return CapMeterStatus(meter.phase.value, allowed, overhead.watts)
