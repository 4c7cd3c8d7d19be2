"""What each PowerCap comes to at this moment, and what its status may say of it.

Two rules keep the status honest while a cap moves. A lower cap is published as not enforced until every limit under it
is read back low enough; a higher cap is published before anything is raised for it. So at no instant does the status call
a cap enforced that the limits exceed. Caps count in whole watts, rounded down, because that is what the status can say.
"""

from __future__ import annotations

import math
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

# Sums and shares of watts that are whole but for rounding are whole.
WATT_TOLERANCE = 1e-6
# The reasons that each condition can have; docs/api.md lists the same.
REASONS: dict[str, frozenset[str]] = {
    "Feasible": frozenset({"FloorsFit", "FloorsExceedCap", "Unreadable"}),
    "Enforced": frozenset({"LimitsAcknowledged", "WaitingForAcknowledgements", "Infeasible", "Unreadable"}),
    "Breached": frozenset({"MeasuredOverCap", "WithinCap", "Unreadable"}),
}


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
    """The last reading's watts (with their fraction, which a ramp goes on from), energy period, instant and breach."""

    watts: float | None
    energy_period: EnergyPeriod | None
    at: float
    breach: JsonObject | None = None


class CapLedger:
    """Reads every cap once per cycle; remembers ramps, energy periods and breaches, as the statuses do over restarts."""

    def __init__(self) -> None:
        self._memory: dict[str, _Memory] = {}
        self.unread: list[tuple[CapView, str]] = []

    def read(
        self, caps: Iterable[CapView], pictures: Mapping[str, NodePicture], now: datetime, monotonic: float
    ) -> tuple[list[CapReading], list[str]]:
        """A reading of each cap, in the order of their names, and what cannot be read, in words (`unread` has the caps)."""
        specs: list[tuple[CapView, CapSpec, frozenset[str]]] = []
        self.unread = []
        for view in sorted(caps, key=lambda item: item.name):
            try:
                selector = LabelSelector.of(view.spec.get("nodeSelector"))
                nodes = selector.select((name, picture.labels) for name, picture in pictures.items())
                specs.append((view, CapSpec.of(view.spec), nodes))
            except ValueError as error:
                self.unread.append((view, str(error)))
        rules = _rules((view, nodes) for view, _, nodes in specs)
        readings = [self._read(view, spec, nodes, rules, pictures, now, monotonic) for view, spec, nodes in specs]
        for uid in self._memory.keys() - {view.uid for view, _, _ in specs}:
            del self._memory[uid]
        return readings, [f"PowerCap {view.name}: {why}" for view, why in self.unread]

    def _read(
        self,
        view: CapView,
        spec: CapSpec,
        nodes: frozenset[str],
        rules: Mapping[str, NodeRules],
        pictures: Mapping[str, NodePicture],
        now: datetime,
        monotonic: float,
    ) -> CapReading:
        measured = sum(pictures[name].measured_milliwatts for name in nodes) / MILLIWATTS
        memory = self._memory.get(view.uid)
        if memory is None:
            memory = _Memory(view.published_watts, _recorded_period(view), monotonic)
        elapsed = max(0.0, monotonic - memory.at)
        period = memory.energy_period
        if spec.energy_budget is not None:
            period = charge_energy(spec.energy_budget, period, now, measured * elapsed, elapsed)
        effective = effective_cap(
            spec,
            CapState(memory.watts, elapsed, period),
            now,
            sum(pictures[name].max_milliwatts for name in nodes) / MILLIWATTS,
        )
        overhead = view.static_overhead_watts
        under = {name: pictures[name] for name in nodes}
        counted = CapBudget(view.name, nodes, 0, view.expected)
        floor = sum(
            _floor_milliwatts(picture, rules.get(name, NodeRules()), view.expected) for name, picture in under.items()
        )
        reading = CapReading(
            view=view,
            nodes=nodes,
            effective=replace(effective, watts=float(math.floor(effective.watts + WATT_TOLERANCE))),
            committed_watts=overhead
            + committed(counted, {name: picture.power for name, picture in under.items()}) / MILLIWATTS,
            floor_watts=overhead + floor / MILLIWATTS,
            measured_watts=overhead + measured,
        )
        self._memory[view.uid] = _Memory(
            effective.watts,
            effective.energy_period or period,
            monotonic,
            _breach(memory.breach or view.status.get("breach"), reading, elapsed, now),
        )
        return reading

    def unread_statuses(self, now: datetime) -> list[tuple[CapView, JsonObject]]:
        """What the statuses of the caps that cannot be read must say: that nobody knows."""
        statuses = []
        for view, why in self.unread:
            message = f"{why}; until it is put right, nothing is raised on any node"
            conditions = [Condition(kind, None, "Unreadable", message) for kind in REASONS]
            merged = merge_conditions(view.conditions, conditions, view.generation, now)
            statuses.append((view, {"observedGeneration": view.generation, "conditions": merged}))
        return statuses

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
                f"the nodes may still draw {reading.committed_watts:.0f} W, {over:.0f} W over the cap"
                + (f"; {waiting} nodes have yet to acknowledge their grant" if waiting else ""),
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
            "committedWatts": math.ceil(reading.committed_watts),
            "measuredWatts": round(reading.measured_watts),
            "headroomWatts": int(reading.effective.watts - reading.committed_watts) if reading.enforced else 0,
            "nodes": len(reading.nodes),
            "conditions": merge_conditions(view.conditions, conditions, view.generation, now),
        }
        # What is not there any more must be said to be gone: statuses are written as patches.
        breach, period = memory.breach, memory.energy_period if "energyBudget" in view.spec else None
        status["breach"] = breach and {**breach, "until": breach.get("until"), "joules": int(breach["joules"])}
        status["energyPeriod"] = period and {
            "start": format_time(period.start),
            "consumedKilojoules": int(period.consumed_joules / 1e3),
        }
        return status


def _floor_milliwatts(picture: NodePicture, rules: NodeRules, expected: bool) -> int:
    """The least that a node can be brought to, by its limits or by its predicted draw: all of its worst hold while it
    cannot be commanded."""
    if not picture.commandable:
        worst = picture.power.worst
        return worst.expected_milliwatts if expected else worst.limit_milliwatts
    smallest = idle = picture.floor_milliwatts
    if expected and picture.gpu_model is not None:
        idle = min(smallest, round(picture.gpu_model.idle_power_watts * MILLIWATTS))
    foreign = smallest if rules.limit_foreign_pods else picture.default_milliwatts
    ours = max(0, picture.gpus - picture.foreign_gpus - picture.lost_gpus)
    return picture.foreign_gpus * foreign + picture.lost_gpus * picture.default_milliwatts + ours * idle


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
    return _rules((reading.view, reading.nodes) for reading in readings)


def _rules(caps: Iterable[tuple[CapView, frozenset[str]]]) -> dict[str, NodeRules]:
    rules: dict[str, NodeRules] = {}
    for view, nodes in caps:
        limit_foreign = view.spec.get("foreignPods") == "Limit"
        failsafe = int(view.spec.get("failsafeWattsPerGpu") or 0) * MILLIWATTS
        for node in nodes:
            before = rules.get(node, NodeRules())
            both = [value for value in (before.failsafe_milliwatts, failsafe) if value]
            rules[node] = NodeRules(before.limit_foreign_pods or limit_foreign, min(both) if both else 0)
    return rules
