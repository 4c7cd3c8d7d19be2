"""The power decisions of an operator that observes: what it would do is worked out and said, and nothing of it is done.

An ordinary PowerController is led through the cluster as it would be, had each agent acknowledged what that controller last
granted it; what comes out is what a governing operator would come to. Of all this only GPUNodes are made, in whose
statuses agents report, and statuses of caps are written. No cap is called enforced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

import msgspec
from flyball_api.gpu_node import Acknowledgement, GpuNode
from flyball_api.grant import Grant

from flyball_operator.cluster.outcome import Outcome
from flyball_operator.cluster.state import ClusterState
from flyball_operator.power.caps.meter import MeterReading
from flyball_operator.power.caps.status import GrantsUnderWay
from flyball_operator.power.caps.status_writes import CapStatuses
from flyball_operator.power.controller import PowerController, PowerSettings
from flyball_operator.power.cycle import Answered, BrakeAnswered, PowerCycle, PowerInstructions, PowerState
from flyball_operator.power.holds import HoldAction, Holds


class ObservingController:
    """Takes a PowerController's place in one leader term; `planned_on` is the state that plans are made on."""

    def __init__(self, epoch: int, settings: PowerSettings) -> None:
        self._settings = settings
        self._seen = PowerController(epoch, settings)
        self._imagined = PowerController(epoch, settings)
        self._if_governed: PowerState | None = None
        self._grants: dict[str, Grant] = {}  # what each node would have been granted last
        self._cap_statuses = CapStatuses(settings.status_interval_seconds, epoch, settings.stale_after_seconds)
        self._holds = Holds()

    def observe(
        self,
        cluster: ClusterState,
        now: datetime,
        monotonic: float,
        readings: Mapping[str, MeterReading] | None = None,
    ) -> PowerState:
        """What stands and what every node may draw now, each cap with what it would come to, were its nodes governed."""
        seen = self._seen.observe(cluster, now, monotonic, readings)
        self._grants = {name: grant for name, grant in self._grants.items() if name in cluster.gpu_nodes}
        governed = {name: self._as_if_governed(item) for name, item in cluster.gpu_nodes.items()}
        # What would be committed is in no status: as before a cap's first one, no raise waits for it to say so.
        caps = [replace(cap, status=msgspec.structs.replace(cap.status, committed_watts=None)) for cap in cluster.caps]
        self._if_governed = self._imagined.observe(
            replace(cluster, gpu_nodes=governed, caps=caps), now, monotonic, readings
        )
        by_uid = {state.cap.uid: state for state in self._if_governed.caps.states}
        refusals = {cap.uid: cap.refusal for cap in self._if_governed.caps.unreadable}
        states = [
            msgspec.structs.replace(state, if_governed=by_uid[state.cap.uid])
            for state in seen.caps.states
            if state.cap.uid in by_uid
        ]
        # None is said to be as if it were governed.
        unknown = [
            replace(state.cap, spec=None, refusal=refusals[state.cap.uid])
            for state in seen.caps.states
            if state.cap.uid not in by_uid
        ]
        shown = msgspec.structs.replace(seen.caps, states=tuple(states), unreadable=(*seen.caps.unreadable, *unknown))
        return replace(seen, caps=shown, cutting=False, figures_wait=False)

    def planned_on(self, state: PowerState) -> PowerState:
        """The cluster as it would be, were it governed."""
        return state if self._if_governed is None else self._if_governed

    def brake(self, cycle: PowerCycle, *, ends: bool) -> PowerInstructions:
        """None is written: who sets nothing lowers nothing."""
        return PowerInstructions()

    def step(self, cycle: PowerCycle) -> PowerInstructions:
        """The GPUNodes to be made, and the statuses of the caps that are due."""
        state, now, monotonic = cycle.state, cycle.now, cycle.monotonic
        # Of its statuses none is ever sent, and so none may be on its way.
        unsent = {cap.uid for cap in state.cluster.caps}
        imagined = self._imagined.step(replace(cycle, state=self.planned_on(state), status_writes=unsent))
        missing = tuple(send for send in imagined.sends if send.node.gpu_node is None)
        for send in imagined.sends:
            if send.node.gpu_node is not None:
                self._grants[send.node.name] = send.grant
                self._imagined.handle(Answered(send.node.name, Outcome.DONE))
        grants = GrantsUnderWay(unread=state.cluster.unread)
        fresh = self._settings.is_fresh(state.cluster)
        holds = self._holds.step(state.cluster.caps, state.cluster.gpu_nodes.values(), monotonic, fresh)
        return PowerInstructions(
            sends=missing,
            cap_statuses=self._cap_statuses.step(
                state.caps, cycle.plan.infeasible, grants, now, monotonic, cycle.status_writes
            ),
            # What a governing operator kept from being deleted must not stay for ever.
            holds=tuple(change for change in holds if change.action is not HoldAction.HOLD),
        )

    def handle(self, event: Answered) -> bool:
        """Take in what became of a GPUNode that was to be made."""
        return self._imagined.handle(event)

    def handle_brake(self, event: BrakeAnswered) -> None:
        """None is ever sent."""

    def _as_if_governed(self, gpu_node: GpuNode) -> GpuNode:
        """The GPUNode, had its agent acknowledged what it would have been granted last. Without a report it stays as it is:
        nobody knows what is there."""
        granted, status = self._grants.get(gpu_node.name), gpu_node.status
        grant = gpu_node.grant
        if granted is not None and (grant is None or granted.version > grant.version):
            grant = granted
        if grant is None or not status.boot_id:
            return gpu_node
        acknowledged = Acknowledgement(
            epoch=grant.epoch,
            generation=grant.generation,
            limits_milliwatts=grant.bound.limit_milliwatts,
            boot_id=status.boot_id,
            driver_load=status.driver_load,
            bound_milliwatts=grant.bound.limit_milliwatts,
            bound_by=status.agent_version,
            digest=grant.digest,
        )
        # Each grant is a write, and each write a version.
        version = f"{gpu_node.metadata.resource_version}/{grant.epoch}.{grant.generation}"
        return replace(
            gpu_node,
            metadata=msgspec.structs.replace(gpu_node.metadata, resource_version=version),
            grant=grant,
            status=msgspec.structs.replace(
                status, acknowledged=acknowledged, last_round=None
            ),  # whose limits are as found
        )
