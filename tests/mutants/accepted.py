"""Mutants that no test kills, each with the reason; docs/power-safety.md has the same list for readers."""

from __future__ import annotations

_SHORTCUT = "a shortcut: where no status is behind, a second admission comes to the same grants"
_NANOSECOND = "a nanosecond of a pause"
_READABLE = "a GPU with a target limit can be read: it has a requested one"
_NOT_ABOVE = "a shortcut: nothing above the target limit is set"
_METER = "a cap with a meter has a state of it, and no other cap has one; both are asked for the types' sake"
_PERIODS = "under the same spec there is a period both times or at neither; both are asked for the types' sake"
_COUNTED = "the sum and what it is of are written together; both are asked for the types' sake"

ACCEPTED: dict[str, str] = {
    "flyball_operator.power.admission:_Admitter.allowed_part: standing is not None and braked is not None"
    " -> without 'standing is not None'": "a brake is of a grant: where one is braked, one stands",
    "flyball_operator.power.brakes:Brakes._sends: continue -> forgotten": (
        "a shortcut: under a cap that holds, no share of the limits is too much, and no node has to be lowered"
    ),
    "flyball_operator.power.cap_state:CapState.next_change_seconds: self.spec.meter is None or self.meter is None"
    " -> without 'self.spec.meter is None'": _METER,
    "flyball_operator.power.cap_state:CapState.next_change_seconds: self.spec.meter is None or self.meter is None"
    " -> without 'self.meter is None'": _METER,
    "flyball_operator.power.cap_tracker:CapTracker.read:"
    "  for _, spec, under in readable if spec.energy_budget is not None -> without 'if spec.energy_budget is not None'": (
        "a shortcut: counters that no budget is charged by are followed for nothing"
    ),
    "flyball_operator.power.cap_tracker:_counted:"
    " period is None or period.counted_of is None or period.counted_millijoules is None"
    " -> without 'period.counted_of is None'": _COUNTED,
    "flyball_operator.power.cap_tracker:_counted:"
    " period is None or period.counted_of is None or period.counted_millijoules is None"
    " -> without 'period.counted_millijoules is None'": _COUNTED,
    "flyball_operator.power.cap_tracker:CapTracker._evaluate:"
    " reading.watts is not None and meter.silence is None and (meter.read_at > last.read_at) and (not stat"
    " -> without 'reading.watts is not None'": (
        "a reading is new only where it has watts; both are asked for the types' sake"
    ),
    "flyball_operator.power.cap_tracker:_in_same_period:"
    " one is not None and other is not None and (one.start == other.start) -> without 'one is not None'": _PERIODS,
    "flyball_operator.power.cap_tracker:_in_same_period:"
    " one is not None and other is not None and (one.start == other.start) -> without 'other is not None'": _PERIODS,
    "flyball_operator.power.controller:PowerController.__init__: self._now = 0.0 -> forgotten": (
        "each answer comes after an observation, which sets it"
    ),
    "flyball_operator.power.controller:PowerController._grants:"
    " if any((_unpublished(cap, wished) for cap in state.caps.states)): -> if True": _SHORTCUT,
    "flyball_operator.power.controller:_unpublished: published is not None and admission.committed[cap.name] > published"
    " -> without 'admission.committed[cap.name] > published'": _SHORTCUT,
    "flyball_operator.power.controller:_unpublished: admission.committed[cap.name] > published -> GtE": _SHORTCUT,
    "flyball_operator.power.late_nodes:throttled: if not late: -> if False": (
        "a shortcut: where no node is late, both ways come to the same targets"
    ),
    "flyball_agent.enforce.decisions:judge: if (since, stays) != (gpu.above_since_ns, gpu.stays_above): -> if True": (
        "a shortcut: a copy of a GPU's state with nothing changed is equal to it"
    ),
    "flyball_agent.enforce.decisions:_own_lock_removed: gpu.lock is not None and gpu.lock.is_range"
    " -> without 'gpu.lock.is_range'": "what is unlocked already is not unlocked again",
    "flyball_agent.enforce.decisions:limit_cuts: limit is not None and requested is not None and (requested > limit)"
    " -> without 'requested is not None'": _READABLE,
    "flyball_agent.enforce.decisions:limit_raises: limit is None or requested is None or requested >= limit"
    " -> without 'requested is None'": _READABLE,
    "flyball_agent.enforce.decisions:limit_raises: limit is None or requested is None or requested >= limit"
    " -> without 'requested >= limit'": _NOT_ABOVE,
    "flyball_agent.enforce.decisions:limit_raises: requested >= limit -> Gt": _NOT_ABOVE,
    "flyball_agent.enforce.decisions:lock_worth_setting: now_ns - gpu.lock_set_ns >= _pause_ns(gpu.lock_drifts) -> Gt": (
        _NANOSECOND
    ),
    "flyball_api.grant:Grant.lowered: job.power_limit_milliwatts > smallest -> GtE": (
        "a shortcut: a limit that is the smallest keeps nothing above it, and comes out as it is"
    ),
    "flyball_api.gpu_node:GpuNode.acknowledged_current: acknowledged is not None and acknowledged.is_of(self.grant)"
    " -> without 'acknowledged is not None'": (
        "what was acknowledged since the driver's load is there; both are asked for the types' sake"
    ),
    "flyball_api.gpu_node:GpuNode.braked_milliwatts: self.grant is None or bound is None or (not self.acknowledged_current)"
    " -> without 'self.grant is None'": ("what is current is of a grant; both are asked for the types' sake"),
}
