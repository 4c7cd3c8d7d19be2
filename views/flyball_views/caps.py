"""A PowerCap as a row: what it allows, what is committed and drawn under it, and whether it is held."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from flyball_api.gpu_node import GpuNode
from flyball_api.power_cap import CapBreach, PowerCap

from flyball_views.row import Aspect, Row, aspect, aspect_if_any


class CapMeasurement(Row, frozen=True):
    """What is drawn under a cap, by `source`: its meter, or the agents' reports (`agents`) and the static overhead.

    `time` is when the operator first saw a meter's reading; the agents' reports have no such time.
    """

    watts: int
    source: str = ""
    time: datetime | None = None


class CapPeriod(Row, frozen=True):
    """The present period of a cap's energy budget."""

    start: datetime
    seconds: int
    budget_kilojoules: int
    consumed_kilojoules: int


class CapRow(Row, frozen=True):
    """One PowerCap, in watts.

    `target_watts` is what the spec says (None: it gives `target_permille` of the maximum), `in_force_watts` that after
    schedule, budget and ramp. `nodes` are those that count under it by their labels of now or before, as their GPUNodes
    have them; `counted_nodes` is how many the operator counts. `current` is False while the status still speaks of an
    earlier spec. `refusal` says why the spec cannot be read, and `problems` what of the status.
    """

    name: str
    uid: str
    enforced: Aspect
    feasible: Aspect
    breached: Aspect
    meter_silent: Aspect
    emergency: Aspect | None = None
    target_watts: int | None = None
    target_permille: int | None = None
    in_force_watts: int | None = None
    committed_watts: int | None = None
    measured: CapMeasurement | None = None
    headroom_watts: int | None = None
    counted_nodes: int | None = None
    nodes: tuple[str, ...] = ()
    enforcement: str = ""
    static_overhead_watts: int | None = None
    schedule: str = ""
    meter_state: str = ""
    meter_allowed_watts: int | None = None
    breach: CapBreach | None = None
    period: CapPeriod | None = None
    current: bool = True
    deleting: bool = False
    created: datetime | None = None
    refusal: str = ""
    problems: tuple[str, ...] = ()

    @property
    def measured_watts(self) -> int | None:
        return None if self.measured is None else self.measured.watts


def nodes_under(cap: PowerCap, gpu_nodes: Iterable[GpuNode]) -> tuple[str, ...]:
    """The GPUNodes that count under a cap, by the labels that they have or had; none where its spec cannot be read."""
    if cap.spec is None:
        return ()
    matches = cap.spec.node_selector.matches
    return tuple(
        sorted(
            node.name for node in gpu_nodes if matches(node.labels) or any(matches(was) for was in node.former_labels)
        )
    )


def cap_row(cap: PowerCap, gpu_nodes: Iterable[GpuNode]) -> CapRow:
    """One cap's row."""
    spec, status = cap.spec, cap.status
    conditions, measured, meter = status.conditions, status.measured, status.meter
    return CapRow(
        name=cap.name,
        uid=cap.uid,
        enforced=aspect(conditions, "Enforced"),
        feasible=aspect(conditions, "Feasible"),
        breached=aspect(conditions, "Breached"),
        meter_silent=aspect(conditions, "MeterSilent"),
        emergency=aspect_if_any(conditions, "Emergency"),
        target_watts=None if spec is None else spec.watts,
        target_permille=None if spec is None else spec.permille_of_max,
        in_force_watts=status.effective_watts,
        committed_watts=status.committed_watts,
        measured=None
        if status.measured_watts is None
        else CapMeasurement(status.measured_watts)
        if measured is None
        else CapMeasurement(status.measured_watts, measured.source, measured.time),
        headroom_watts=status.headroom_watts,
        counted_nodes=status.nodes,
        nodes=nodes_under(cap, gpu_nodes),
        enforcement="" if spec is None else spec.enforcement,
        static_overhead_watts=None if spec is None else spec.static_overhead_watts,
        schedule=status.active_schedule or "",
        meter_state="" if meter is None else meter.state,
        meter_allowed_watts=None if meter is None else meter.allowed_watts,
        breach=status.breach,
        period=_period(cap),
        current=(status.observed_generation or 0) >= cap.metadata.generation,
        deleting=cap.metadata.deleting,
        created=cap.metadata.creation_timestamp,
        refusal=cap.refusal,
        problems=cap.problems,
    )


def _period(cap: PowerCap) -> CapPeriod | None:
    budget, period = None if cap.spec is None else cap.spec.energy_budget, cap.status.energy_period
    if budget is None or period is None:
        return None
    return CapPeriod(period.start, budget.period_seconds, budget.kilojoules, period.consumed_kilojoules)
