"""What each PowerCap comes to at this moment, and what its status may say of it.

Two rules keep the status honest while a cap moves. A lower cap is published as not enforced until every limit under it
is read back low enough; a higher cap is published before anything is raised for it. So at no instant does the status call
a cap enforced that the limits exceed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from flyball_operator.caps import CapSpec, CapState, EffectiveCap, EnergyPeriod, charge_energy, effective_cap
from flyball_operator.conditions import Condition, merge_conditions
from flyball_operator.grants import CapBudget, committed
from flyball_operator.label_selector import LabelSelector
from flyball_operator.picture import MILLIWATTS, NodePicture
from flyball_operator.requests import CapView, format_time, parse_time
from flyball_operator.wanting import NodeRules

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CapReading:
    """One cap now: its nodes, the watts it allows, what is committed under it and measured, all with the overhead."""

    view: CapView
    nodes: frozenset[str]
    effective: EffectiveCap
    committed_watts: float
    floor_watts: float
    measured_watts: float

    @property
    def enforced(self) -> bool:
        return self.committed_watts <= self.effective.watts

    @property
    def published(self) -> bool:
        """The status says the present watts, so that what they allow may be handed out."""
        return self.view.published_watts is not None and self.view.published_watts >= int(self.effective.watts)

    def budget(self) -> CapBudget:
        """Milliwatts for the nodes' GPUs: by the lower of the cap and what its status has told the world."""
        told = self.view.published_watts
        watts = self.effective.watts if told is None else min(self.effective.watts, told)
        return CapBudget(
            self.view.name,
            self.nodes,
            int((watts - self.view.static_overhead_watts) * MILLIWATTS),
            self.view.expected,
        )

    def planning_budget(self) -> CapBudget:
        """The same by the cap alone: what the plan should aim at."""
        watts = self.effective.watts - self.view.static_overhead_watts
        return replace(self.budget(), budget_milliwatts=int(watts * MILLIWATTS))


@dataclass(frozen=True, slots=True)
class _Memory:
    state: CapState
    at: float
    breach: JsonObject | None = None


class CapLedger:
    """Reads every cap once per cycle; remembers ramps, energy periods and breaches, as the statuses do over restarts."""

    def __init__(self) -> None:
        self._memory: dict[str, _Memory] = {}

    def read(
        self, caps: Iterable[CapView], pictures: Mapping[str, NodePicture], now: datetime, monotonic: float
    ) -> tuple[list[CapReading], list[str]]:
        """A reading of each cap, in the order of their names, and what cannot be read, in words."""
        readings, problems = [], []
        seen = set()
        for view in sorted(caps, key=lambda item: item.name):
            try:
                spec = CapSpec.of(view.spec)
                selector = LabelSelector.of(view.spec.get("nodeSelector"))
            except ValueError as error:
                problems.append(f"PowerCap {view.name}: {error}")
                continue
            seen.add(view.uid)
            readings.append(self._read(view, spec, selector, pictures, now, monotonic))
        for uid in self._memory.keys() - seen:
            del self._memory[uid]
        return readings, problems

    def _read(
        self,
        view: CapView,
        spec: CapSpec,
        selector: LabelSelector,
        pictures: Mapping[str, NodePicture],
        now: datetime,
        monotonic: float,
    ) -> CapReading:
        nodes = frozenset(name for name, picture in pictures.items() if selector.matches(picture.labels))
        measured = sum(pictures[name].measured_milliwatts for name in nodes) / MILLIWATTS
        memory = self._memory.get(view.uid)
        if memory is None:
            memory = _Memory(CapState(view.published_watts, 0.0, _recorded_period(view)), monotonic)
        elapsed = max(0.0, monotonic - memory.at)
        period = memory.state.energy_period
        if spec.energy_budget is not None:
            period = charge_energy(spec.energy_budget, period, now, measured * elapsed, elapsed)
        effective = effective_cap(
            spec,
            CapState(memory.state.effective_watts, elapsed, period),
            now,
            sum(pictures[name].max_milliwatts for name in nodes) / MILLIWATTS,
        )
        if spec.ramp_watts_per_second is not None and effective.watts < effective.target_watts:
            # A rise of less than a watt is kept for later: its time must not be lost to rounding.
            last = memory.state.effective_watts
            if last is not None and 0 < effective.watts - last < 1.0:
                effective = replace(effective, watts=last)
                monotonic = memory.at
        overhead = view.static_overhead_watts
        reading = CapReading(
            view=view,
            nodes=nodes,
            effective=effective,
            committed_watts=overhead
            + committed(CapBudget(view.name, nodes, 0, view.expected), {name: pictures[name].power for name in nodes})
            / MILLIWATTS,
            floor_watts=overhead + sum(_floor_milliwatts(pictures[name]) for name in nodes) / MILLIWATTS,
            measured_watts=overhead + measured,
        )
        self._memory[view.uid] = replace(
            memory,
            state=CapState(effective.watts, 0.0, effective.energy_period or period),
            at=monotonic,
            breach=_breach(memory.breach or view.status.get("breach"), reading, elapsed, now),
        )
        return reading

    def status(
        self, reading: CapReading, feasible: bool, problems: Iterable[str], waiting: int, now: datetime
    ) -> JsonObject:
        """PowerCap.status for this reading; `waiting` nodes have yet to acknowledge a cut or to get a raise."""
        view, memory = reading.view, self._memory[reading.view.uid]
        said = [*reading.effective.problems, *problems]
        over = reading.committed_watts - reading.effective.watts
        measured_over = reading.measured_watts - reading.effective.watts
        if reading.enforced:
            enforced = Condition(
                "Enforced",
                True,
                "LimitsAcknowledged",
                f"the limits of {len(reading.nodes)} nodes add up to {reading.committed_watts:.0f} W at most, "
                f"{-over:.0f} W under the cap",
            )
        else:
            enforced = Condition(
                "Enforced",
                False,
                "WaitingForAcknowledgements" if feasible else "Infeasible",
                f"the nodes may still draw {reading.committed_watts:.0f} W, {over:.0f} W over the cap; "
                f"{waiting} nodes have yet to acknowledge their grant",
            )
        conditions = [
            Condition(
                "Feasible",
                feasible,
                "FloorsFit" if feasible else "FloorsExceedCap",
                f"the nodes hold {reading.floor_watts:.0f} W at the least (smallest limits, foreign pods, silent nodes, "
                f"static overhead); {reading.effective.reason}" + "".join(f"; {problem}" for problem in said),
            ),
            enforced,
            Condition(
                "Breached",
                measured_over > 0,
                "MeasuredOverCap" if measured_over > 0 else "WithinCap",
                f"measured {reading.measured_watts:.0f} W, cap {reading.effective.watts:.0f} W",
            ),
        ]
        status: JsonObject = {
            "observedGeneration": view.generation,
            "effectiveWatts": int(reading.effective.watts),
            "activeSchedule": reading.effective.active_window,
            "committedWatts": round(reading.committed_watts),
            "measuredWatts": round(reading.measured_watts),
            "headroomWatts": int(reading.effective.watts - reading.committed_watts) if reading.enforced else 0,
            "nodes": len(reading.nodes),
            "conditions": merge_conditions(view.conditions, conditions, view.generation, now),
        }
        if memory.breach:
            status["breach"] = {**memory.breach, "joules": int(memory.breach["joules"])}
        if memory.state.energy_period is not None and "energyBudget" in view.spec:
            status["energyPeriod"] = {
                "start": format_time(memory.state.energy_period.start),
                "consumedKilojoules": int(memory.state.energy_period.consumed_joules / 1e3),
            }
        return status


def _floor_milliwatts(picture: NodePicture) -> int:
    """The least that a node can be brought to: all of its worst hold while it cannot be commanded."""
    if not picture.commandable:
        return picture.power.worst.limit_milliwatts
    fixed = picture.foreign_gpus + picture.lost_gpus
    return fixed * picture.default_milliwatts + (picture.gpus - fixed) * picture.floor_milliwatts


def _recorded_period(view: CapView) -> EnergyPeriod | None:
    recorded = view.status.get("energyPeriod") or {}
    start = parse_time(recorded.get("start"))
    return None if start is None else EnergyPeriod(start, (recorded.get("consumedKilojoules") or 0) * 1e3)


def _breach(before: JsonObject | None, reading: CapReading, elapsed: float, now: datetime) -> JsonObject | None:
    """The last breach: since when measured watts were above the cap, the most of them, the joules above, and its end."""
    over = reading.measured_watts - reading.effective.watts
    standing = before if before and not before.get("until") else None
    if over <= 0:
        return before if standing is None else {**standing, "until": format_time(now)}
    if standing is None:
        return {"since": format_time(now), "watts": round(over), "joules": 0.0}
    return {
        "since": standing["since"],
        "watts": max(standing["watts"], round(over)),
        "joules": standing["joules"] + over * elapsed,
    }


def node_rules(readings: Iterable[CapReading]) -> dict[str, NodeRules]:
    """What the caps together ask of each node: the strictest of each."""
    rules: dict[str, NodeRules] = {}
    for reading in readings:
        limit_foreign = reading.view.spec.get("foreignPods") == "Limit"
        failsafe = int(reading.view.spec.get("failsafeWattsPerGpu") or 0) * MILLIWATTS
        for node in reading.nodes:
            before = rules.get(node, NodeRules())
            both = [value for value in (before.failsafe_milliwatts, failsafe) if value]
            rules[node] = NodeRules(before.limit_foreign_pods or limit_foreign, min(both) if both else 0)
    return rules
