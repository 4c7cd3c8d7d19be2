"""Mutants that no test kills, each with the reason; docs/proof.md has the same list for readers."""

from __future__ import annotations

_SHORTCUT = "a shortcut: where no status is behind, a second admission comes to the same grants"
_NANOSECOND = "a nanosecond of a pause"
_READABLE = "a GPU with a target limit can be read: it has a requested one"
_NOT_ABOVE = "a shortcut: nothing above the target limit is set"
_METER = "a cap with a meter has a state of it, and no other cap has one; both are asked for the types' sake"
_NEW_READING = "a reading is new only where it has watts; both are asked for the types' sake"
_CAP_GONE = "a uid that is gone does not come back: only memory is kept"
_PERIODS = "under the same spec there is a period both times or at neither; both are asked for the types' sake"
_COUNTED = "the sum and what it is of are written together; both are asked for the types' sake"
_NO_RISE = "where nothing rises, what the ramp allows is what the cap comes to"
_BUDGET = "a cap with a budget has a period of it, and no other cap has one; both are asked for the types' sake"
_CLOCK = "a report has a clock where it says when it was made; both are asked for the types' sake"
_SHARES = "the shares of a step that is over are made anew: only memory is kept"
_GRANTED = "what was granted longer ago is looked at by nobody: only memory is kept"
_RAMP = "only caps with a ramp come here; asked for the type's sake"

ACCEPTED: dict[str, str] = {
    "flyball_operator.power.grants.admission:_Admitter.allowed_part: standing is not None and braked is not None"
    " -> without 'standing is not None'": "a brake is of a grant: where one is braked, one stands",
    "flyball_operator.power.grants.admission:_Admitter.grant_for: grant.version <= node.accepted -> Lt": (
        "the next grant is above what was accepted, or below it"
    ),
    "flyball_operator.power.grants.brakes:Brakes._sends: continue -> forgotten": (
        "a shortcut: under a cap that holds, no share of the limits is too much, and no node has to be lowered"
    ),
    "flyball_operator.power.caps.state:CapState.next_change_seconds: self.spec.meter is None or self.meter is None"
    " -> without 'self.spec.meter is None'": _METER,
    "flyball_operator.power.caps.state:CapState.next_change_seconds: self.spec.meter is None or self.meter is None"
    " -> without 'self.meter is None'": _METER,
    "flyball_operator.power.caps.meter:follow_meter:"
    " reading.watts is not None and reading.seen_at > before.read_at -> without 'reading.watts is not None'": _NEW_READING,
    "flyball_operator.power.caps.meter:follow_meter:"
    " watts is not None and new and (now - max(state.changed_at, state.cap_fell_at) >= meter.settle_second"
    " -> without 'watts is not None'": _NEW_READING,
    "flyball_operator.power.caps.meter:_breach_lasts: state.above_cap_since is None or watts <= load.cap_watts"
    " -> without 'state.above_cap_since is None'": (
        "a reading above the cap has been noted as such before; asked for the type's sake"
    ),
    "flyball_operator.power.caps.status:_meter_silent: state.meter is None or state.spec.meter is None"
    " -> without 'state.meter is None'": _METER,
    "flyball_operator.power.caps.status:_meter_silent: state.meter is None or state.spec.meter is None"
    " -> without 'state.spec.meter is None'": _METER,
    "flyball_operator.power.caps.status:_meter_silent: reading.watts or 0 -> without '0'": (
        "what is implausible has been read; asked for the type's sake"
    ),
    "flyball_operator.power.caps.status:_measured: state.metered_watts is None or state.spec.meter is None"
    " -> without 'state.spec.meter is None'": _METER,
    "flyball_operator.power.caps.status_writes:CapStatuses.step:"
    " self._written_at = {uid: at for uid, at in self._written_at.items() if uid in known} -> forgotten": _CAP_GONE,
    "flyball_operator.power.caps.status_writes:CapStatuses.step:  for uid, at in self._written_at.items() if uid in known"
    " -> without 'if uid in known'": _CAP_GONE,
    "flyball_operator.power.caps.status_writes:_only_rises:"
    " (after.effective_watts or 0) > (before.effective_watts or 0) -> GtE": (
        "asked only of what is urgent: where the watts are the same, by something else"
    ),
    "flyball_operator.power.caps.tracker:CapTracker.step:"
    "  for _, spec, under in readable if spec.energy_budget is not None -> without 'if spec.energy_budget is not None'": (
        "a shortcut: counters that no budget is charged by are followed for nothing"
    ),
    "flyball_operator.power.caps.tracker:_counted:"
    " period is None or period.counted_of is None or period.counted_millijoules is None"
    " -> without 'period.counted_of is None'": _COUNTED,
    "flyball_operator.power.caps.tracker:_counted:"
    " period is None or period.counted_of is None or period.counted_millijoules is None"
    " -> without 'period.counted_millijoules is None'": _COUNTED,
    "flyball_operator.power.caps.tracker:_with_meter:"
    " reading.watts is not None and meter.silence is None and (meter.read_at > last.read_at) and (not stat"
    " -> without 'reading.watts is not None'": _NEW_READING,
    "flyball_operator.power.caps.tracker:_known_change: memory.now <= now -> Lt": (
        "two looks within a microsecond: the second one begins anew, and the next goes on"
    ),
    "flyball_operator.power.caps.tracker:_in_same_period:"
    " one is not None and other is not None and (one.start == other.start) -> without 'one is not None'": _PERIODS,
    "flyball_operator.power.caps.tracker:_in_same_period:"
    " one is not None and other is not None and (one.start == other.start) -> without 'other is not None'": _PERIODS,
    "flyball_operator.power.controller:PowerController.__init__: self._now = 0.0 -> forgotten": (
        "each answer comes after an observation, which sets it"
    ),
    "flyball_operator.power.controller:PowerController._grants:"
    " if any((_unpublished(cap, wished) for cap in state.caps.states)): -> if True": _SHORTCUT,
    "flyball_operator.power.controller:PowerController._remember_granted: if grant is not None: -> if True": (
        "a node whose grant is another leader's has one; asked for the type's sake"
    ),
    "flyball_operator.power.controller:_unpublished: published is not None and admission.committed[cap.name] > published"
    " -> without 'admission.committed[cap.name] > published'": _SHORTCUT,
    "flyball_operator.power.controller:_unpublished: admission.committed[cap.name] > published -> GtE": _SHORTCUT,
    "flyball_operator.power.grants.late_nodes:throttled: if not late: -> if False": (
        "a shortcut: where no node is late, both ways come to the same targets"
    ),
    "flyball_operator.power.caps.schedule:_beginnings:"
    " if (now - CLOCKS_PUT_BACK).astimezone(zone).utcoffset() == (now + CLOCKS_PUT_BACK).astimezone(zone)."
    " -> if False": "a shortcut: away from a change of clocks, the walk from one beginning to the next finds the same",
    "flyball_operator.power.caps.schedule:effective_cap:"
    " ramp is not None and before is not None and (least.watts > before) -> without 'least.watts > before'": _NO_RISE,
    "flyball_operator.power.caps.schedule:effective_cap: least.watts > before -> GtE": _NO_RISE,
    "flyball_operator.power.caps.schedule:effective_cap:"
    " spec.energy_budget is not None and period is not None and (_from_next_period(spec, spec.energy_budge"
    " -> without 'spec.energy_budget is not None'": _BUDGET,
    "flyball_operator.power.caps.schedule:effective_cap:"
    " spec.energy_budget is not None and period is not None and (_from_next_period(spec, spec.energy_budge"
    " -> without 'period is not None'": _BUDGET,
    "flyball_operator.power.caps.schedule:next_scheduled_change: known.final or known.until is None"
    " -> without 'known.until is None'": "what is known without an `until` is final; asked for the type's sake",
    "flyball_operator.power.caps.schedule:_base: spec.permille_of_max or 0 -> without '0'": (
        "a cap without watts has permille; asked for the type's sake"
    ),
    "flyball_operator.power.nodes.heartbeats:_Pulse.doubt_silence: self.doubted_at < silent_at -> LtE": (
        "a doubt from the same instant stays as it is"
    ),
    "flyball_operator.power.nodes.heartbeats:_take_in: clock is not None and gpu_node.alive_nanoseconds is not None"
    " -> without 'clock is not None'": _CLOCK,
    "flyball_operator.power.nodes.heartbeats:_take_in: clock is not None and gpu_node.alive_nanoseconds is not None"
    " -> without 'gpu_node.alive_nanoseconds is not None'": _CLOCK,
    "flyball_operator.power.nodes.heartbeats:Heartbeats.update:"
    " pulse.status is not gpu_node.status and pulse.status != gpu_node.status"
    " -> without 'pulse.status is not gpu_node.status'": "a shortcut: a status is equal to itself",
    "flyball_operator.power.nodes.info:NodeInfo._open:"
    " self.node is not None and self.node.gpus > 0 and (not self.node.cordoned)"
    " -> without 'self.node is not None'": (
        "asked only of a node that is believed, which none is whose Node is gone; asked for the type's sake"
    ),
    "flyball_operator.power.nodes.info:_Facts.same:"
    " self.node is other.node and self.gpu_node is other.gpu_node and (self.gpus is other.gpus) and (self["
    " -> without 'self.gpus is other.gpus'": "of the same Node and GPUNode the facts of their GPUs are the same",
    "flyball_operator.power.nodes.info:read_nodes: pod.holds_or_wants and pod.node and (not pod.finished)"
    " -> without 'pod.holds_or_wants'": (
        "a shortcut: the observed pods outside Flyball have GPUs, and who holds none is left out in the end"
    ),
    "flyball_operator.power.nodes.info:read_nodes: pod.holds_or_wants and pod.node and (not pod.finished)"
    " -> without 'pod.node'": "a shortcut: nobody asks for the pods of a node without a name",
    "flyball_operator.power.bound:JumpReserve.of: if not self.nodes: -> if False": (
        "a shortcut: the largest none of the distances come to nothing"
    ),
    "flyball_operator.power.grants.throttling:_excess: if _fits(least, loads, above, cap): -> if False": (
        "a shortcut: the search ends where it begins"
    ),
    "flyball_operator.power.grants.throttling:_excess: if not cap.reserve.nodes: -> if False": (
        "a shortcut: the search ends where it begins, or at the last of what can be taken"
    ),
    "flyball_operator.power.caps.foreign_shares:share_of_each_gpu: if budget.reserve.nodes: -> if True": (
        "a shortcut: with nothing held back all whole watts are shared out, and shares are whole watts"
    ),
    "flyball_operator.power.caps.reserve:reserve_under: if not nodes: -> if False": (
        "a shortcut: the largest none of the distances come to nothing"
    ),
    "flyball_operator.power.patience:SmallChanges.sent:"
    " self._granted = {name: at for name, at in self._granted.items() if monotonic - at < SMALL_RAISE_SECO"
    " -> forgotten": _GRANTED,
    "flyball_operator.power.patience:SmallChanges.sent:"
    "  for name, at in self._granted.items() if monotonic - at < SMALL_RAISE_SECONDS"
    " -> without 'if monotonic - at < SMALL_RAISE_SECONDS'": _GRANTED,
    "flyball_operator.power.patience:SmallChanges.sent: monotonic - at < SMALL_RAISE_SECONDS -> LtE": _GRANTED,
    "flyball_operator.power.grants.ramp:Ramps.step:"
    " self._shares = {uid: known for uid, known in self._shares.items() if uid in uids} -> forgotten": _SHARES,
    "flyball_operator.power.grants.ramp:Ramps.step:  for uid, known in self._shares.items() if uid in uids"
    " -> without 'if uid in uids'": _SHARES,
    "flyball_operator.power.grants.ramp:Ramps._update_allowance: cap.spec.ramp_watts_per_second or 0 -> without '0'": _RAMP,
    "flyball_operator.power.grants.ramp:Turns.update: cap.spec.ramp_watts_per_second or 0 -> without '0'": _RAMP,
    "flyball_operator.power.grants.ramp:_raised_to: job.power_limit_milliwatts > most -> GtE": (
        "a limit that is replaced by itself"
    ),
    "flyball_operator.power.grants.ramp:waiting_starts:"
    " pod.gated and pod.job_uid and (not pod.deleting) and (not pod.finished) -> without 'pod.job_uid'": (
        "a shortcut: no grant has an entry for a pod of no job"
    ),
    "flyball_operator.power.nodes.pod_gpus:PodsGpus.of:"
    " found.drawn_milliwatts is not None and (info.doubt or found.gpus < pod.gpus)"
    " -> without 'found.drawn_milliwatts is not None'": "a shortcut: a copy of what has no draw is equal to it",
    "flyball_operator.power.nodes.pod_gpus:_sum_of: values and len(known) == len(values) -> without 'values'": (
        "of a pod that holds fewer GPUs than it asks for no draw is known in any case"
    ),
    "flyball_agent.enforce.decisions:judge: if (since, stays) != (gpu.above_since_ns, gpu.stays_above): -> if True": (
        "a shortcut: a copy of a GPU's state with nothing changed is equal to it"
    ),
    "flyball_agent.enforce.decisions:_own_lock_removed: gpu.next_lock is not None and gpu.next_lock.is_range"
    " -> without 'gpu.next_lock.is_range'": "what is unlocked already is not unlocked again",
    "flyball_agent.enforce.decisions:limit_cuts: limit is not None and requested is not None and (requested > limit)"
    " -> without 'requested is not None'": _READABLE,
    "flyball_agent.enforce.decisions:limit_raises: limit is None or taken is None or taken.requested_milliwatts >= limit"
    " -> without 'taken is None'": _READABLE,
    "flyball_agent.enforce.decisions:limit_raises: limit is None or taken is None or taken.requested_milliwatts >= limit"
    " -> without 'taken.requested_milliwatts >= limit'": _NOT_ABOVE,
    "flyball_agent.enforce.decisions:limit_raises: taken.requested_milliwatts >= limit -> Gt": _NOT_ABOVE,
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
