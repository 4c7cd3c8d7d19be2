"""Decides what every node may draw: a state machine that is given the cluster and the plan, and gives instructions.

Pure as far as the world goes: no I/O, and no clock of its own. One cycle is one `observe`, one `brake` and, unless it ends
there, one `step`, with no wait between them; what became of the grants that a step sent comes back as `Answered` events at
any time between cycles. Everything that the controller remembers could be lost: a new leader starts with an empty one, and
the API objects carry whatever the promise needs (docs/power-safety.md).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from flyball_api.grant import Grant
from flyball_planner.models.gpu import GpuModel
from msgspec.structs import replace

from flyball_operator.cluster.outcome import Outcome
from flyball_operator.cluster.state import ClusterState
from flyball_operator.power.bound import NodePower
from flyball_operator.power.caps.memberships import LabelSync, Memberships
from flyball_operator.power.caps.meter import MeterReading
from flyball_operator.power.caps.state import CapState, CapStates
from flyball_operator.power.caps.status import GrantsUnderWay
from flyball_operator.power.caps.status_writes import CapStatuses, CapStatusWrite
from flyball_operator.power.caps.tracker import CapTracker
from flyball_operator.power.cycle import (
    Answered,
    BrakeAnswered,
    PlanInForce,
    PowerCycle,
    PowerInstructions,
    PowerState,
    SendGrant,
)
from flyball_operator.power.grant_writes import GrantWrites
from flyball_operator.power.grants.admission import GrantAdmission, GrantTarget, admit_grants, at_smallest_limits
from flyball_operator.power.grants.brakes import Brakes
from flyball_operator.power.grants.late_nodes import left_as_granted, throttled
from flyball_operator.power.grants.ramp import Ramps
from flyball_operator.power.grants.targets import grant_targets
from flyball_operator.power.holds import Holds
from flyball_operator.power.nodes.acknowledgements import Acknowledgements
from flyball_operator.power.nodes.gpu_facts import KnownGpus
from flyball_operator.power.nodes.heartbeats import Heartbeats
from flyball_operator.power.nodes.info import NodeInfo, NodeMemory, read_nodes, sign_of_a_boot
from flyball_operator.power.patience import (
    FIGURES_YIELD_SECONDS,
    CutYield,
    PlanGrace,
    Repetitions,
    Reversals,
    SmallChanges,
)
from flyball_operator.power.starts_and_stops import StartsAndStops


@dataclass(frozen=True, slots=True)
class PowerSettings:
    """What the controller can be configured to; all durations in seconds.

    `gpu_models` is what is known of GPUs beside what they report; None: the catalogue. `brakes`: a cut may be a brake.
    """

    grant_lease_seconds: int = 60
    guard_fraction: float = 0.05
    stale_after_seconds: float = 90.0
    acknowledge_timeout_seconds: float = 10.0
    report_timeout_seconds: float = 75.0
    label_settle_seconds: float = 60.0
    status_interval_seconds: float = 5.0
    gpu_models: Mapping[str, GpuModel] | None = None
    brakes: bool = True

    def is_fresh(self, cluster: ClusterState) -> bool:
        """Whether our copy of the cluster is proven young enough to raise anything, or to release it."""
        return cluster.age_seconds <= self.stale_after_seconds


class PowerController:
    """The power decisions of one leader term."""

    def __init__(self, epoch: int, settings: PowerSettings) -> None:
        self._epoch = epoch
        self._settings = settings
        self._caps = CapTracker(settings.grant_lease_seconds)
        self._cap_statuses = CapStatuses(settings.status_interval_seconds, epoch, settings.stale_after_seconds)
        self._known_gpus = KnownGpus(settings.gpu_models)
        self._nodes: NodeMemory = {}
        self._acknowledgements = Acknowledgements(settings.acknowledge_timeout_seconds)
        self._brakes = Brakes(epoch)
        self._repetitions = Repetitions()
        self._small_changes = SmallChanges()
        self._reversals = Reversals()
        self._heartbeats = Heartbeats(settings.report_timeout_seconds)
        self._memberships = Memberships(settings.label_settle_seconds)
        self._holds = Holds()
        self._writes = GrantWrites()
        self._ramps = Ramps()
        self._starts_and_stops = StartsAndStops()
        self._plan_grace = PlanGrace()
        self._cut_yield = CutYield()
        self._before: dict[str, Grant] = {}  # the grants of the leader before, by node
        self._braked_for: frozenset[str] = frozenset()  # nodes of caps that were over in the cycle that braked
        self._now = 0.0  # by the monotonic clock, at the last cycle

    def observe(
        self,
        cluster: ClusterState,
        now: datetime,
        monotonic: float,
        readings: Mapping[str, MeterReading] | None = None,
    ) -> PowerState:
        """What stands and what every node may draw now; `now` is the wall clock, in which schedules are agreed.

        `readings` has what the caps' meters said last, by the caps' uids.
        """
        self._now = monotonic
        self._acknowledgements.update(cluster.gpu_nodes, monotonic)
        views = {view.name: view for view in cluster.nodes}
        signs = {name for name, item in cluster.gpu_nodes.items() if sign_of_a_boot(views.get(name), item)}
        self._heartbeats.update(
            cluster.gpu_nodes, monotonic, signs, cluster.unread, behind_seconds=cluster.reports_behind_seconds
        )
        nodes = read_nodes(
            cluster.nodes,
            cluster.gpu_nodes,
            cluster.pods,
            self._acknowledgements.unresponsive,
            self._heartbeats.silent_seconds(monotonic),
            self._known_gpus,
            self._nodes,
        )
        self._writes.update(nodes, cluster.gpu_nodes)
        nodes = self._writes.counted(nodes)
        self._brakes.update(cluster.brakes)
        caps = self._caps.step(
            cluster.caps,
            nodes,
            now,
            monotonic,
            cluster.brakes,
            readings,
            cluster.wanted_gpus,
            cluster.clock_ahead_seconds,
        ).with_unseen(self._cap_statuses.update_sent(cluster.caps, monotonic - cluster.age_seconds))
        self._cut_yield.update(caps.states, monotonic)
        return PowerState(
            cluster,
            nodes,
            caps,
            self._cut_yield.is_cutting(monotonic),
            self._cut_yield.is_cutting(monotonic, FIGURES_YIELD_SECONDS),
            self._heartbeats.next_silence_seconds(monotonic),
        )

    def planned_on(self, state: PowerState) -> PowerState:
        """The state that plans are made on: as it stands."""
        return state

    def brake(self, cycle: PowerCycle, *, ends: bool) -> PowerInstructions:
        """The brakes to write now, of the state that `observe` has just returned; of a plan they need nothing.

        `ends`: where there are any, the cycle ends with them, and with what is to be said of caps: that one is over.
        """
        state = cycle.state
        brakes = self._brakes.step(state.caps.states, state.nodes, cycle.monotonic) if self._settings.brakes else ()
        if not (brakes and ends):
            return PowerInstructions(brakes=brakes)
        # By the time that grants are decided on, the brakes may have brought every cap down.
        over = (cap.nodes for cap in state.caps.states if cap.is_over(state.nodes))
        self._braked_for = self._braked_for.union(*over)
        grants = self._none_decided(state)
        return PowerInstructions(brakes=brakes, cap_statuses=self._statuses(cycle, grants))

    def step(self, cycle: PowerCycle) -> PowerInstructions:
        """What to send and to publish now beside brakes, of the cycle that `brake` has just been given."""
        state, monotonic = cycle.state, cycle.monotonic
        turns = self._starts_and_stops
        turns.update_stops(state, cycle.stopping, monotonic)
        plan = turns.with_held_up(cycle.plan)
        turns.follow(plan, state.cluster)
        self._memberships.update(state.caps, state.nodes, monotonic)
        leaving = self._memberships.to_be_lowered(monotonic)
        sends, grants, next_cut_seconds = self._grants(state, plan, leaving, monotonic)
        turns.update_starts(state, monotonic)
        instructions = PowerInstructions(
            sends=sends,
            untaint=tuple(info for info in state.nodes.values() if _to_be_opened(info)),
            taint=tuple(info for info in state.nodes.values() if _to_be_closed(info)),
            cap_statuses=self._statuses(cycle, grants),
            reserved=turns.may_start,
            held_up=turns.held_up,
            owing=len(self._acknowledgements.owing),
            label_syncs=self._label_syncs(state, leaving, {send.node.name for send in sends}, monotonic),
            holds=tuple(
                self._holds.step(
                    state.cluster.caps,
                    state.cluster.gpu_nodes.values(),
                    monotonic,
                    self._settings.is_fresh(state.cluster),
                )
            ),
            next_cut_seconds=next_cut_seconds,
        )
        for send in sends:
            self._writes.begin(send)
            self._heartbeats.sent(send.node.name, send.grant.version, monotonic)
        return instructions

    def handle(self, event: Answered) -> bool:
        """Take in what became of a grant; True where its entries were refused, so that the next step sends one without."""
        return self._writes.take_answer(event)

    def handle_brake(self, event: BrakeAnswered) -> None:
        """Take in what became of a brake. Whether it took effect, acknowledgements say."""
        self._brakes.take_answer(event.cap, done=event.outcome is Outcome.DONE, monotonic=self._now)

    def _statuses(self, cycle: PowerCycle, grants: GrantsUnderWay) -> tuple[CapStatusWrite, ...]:
        return self._cap_statuses.step(
            cycle.state.caps, cycle.plan.infeasible, grants, cycle.now, cycle.monotonic, cycle.status_writes
        )

    def _label_syncs(
        self, state: PowerState, leaving: frozenset[str], granted: Collection[str], monotonic: float
    ) -> tuple[LabelSync, ...]:
        """What GPUNodes should say of labels; never beside a grant, of which only one of two writes would be taken."""
        found = self._memberships.syncs(state.caps, state.nodes, leaving, self._may_raise(state))
        written = self._writes.under_way
        free = [sync for sync in found if sync.node.name not in granted and sync.node.name not in written]
        return tuple(self._memberships.take_due(free, monotonic))

    def _grants(
        self, state: PowerState, plan: PlanInForce, leaving: frozenset[str], monotonic: float
    ) -> tuple[tuple[SendGrant, ...], GrantsUnderWay, float]:
        """The grants to send now, what they mean to the caps' statuses, and seconds until a cut that waits is to go."""
        unadopted = self._unadopted(state)
        power = {name: info.power for name, info in state.nodes.items()}
        metered = [budget for item in state.caps.states if (budget := item.meter_budget()) is not None]
        budgets = [*(item.budget() for item in state.caps.states), *metered]
        targets = self._targets(state, plan, leaving)
        priorities = {uid: job.spec.priority for uid, job in state.cluster.jobs.items()} if metered else {}
        fitting, fits = throttled(targets, state.nodes, budgets, priorities)
        fits = fits or bool(metered)  # no plan knows of meters: what they ask for waits for none
        self._plan_grace.update(fits, monotonic)
        if self._plan_grace.waits(plan.next_is_near, state.caps.states, state.nodes, monotonic):
            return (), self._none_decided(state), math.inf
        fitting, ramps = self._ramps.step(fitting, power, state.caps.states, monotonic)
        budgets += ramps
        self._starts_and_stops.aim_at(fitting)
        may_raise = self._may_raise(state) and not unadopted
        left = left_as_granted(state.nodes, state.caps, leaving | self._braked_for, self._epoch)
        self._braked_for = frozenset()
        fitting = [target for target in fitting if target.node not in left]
        admission = wished = admit_grants(fitting, power, budgets, self._epoch, may_raise)
        if any(_unpublished(cap, wished) for cap in state.caps.states):
            # What is committed is published first; cuts wait for no status.
            published = [budget for item in state.caps.states if (budget := item.published_budget()) is not None]
            admission = admit_grants(fitting, power, [*budgets, *published], self._epoch, may_raise)
        held_back = (
            self._brakes.held_back(monotonic)
            | _not_to_be_made(state)
            | _unrecorded_raises(state.caps, admission, power)
            | self._repetitions.held_back(admission.grants, power, monotonic)
            | self._small_changes.held_back(admission.grants, power, monotonic)
            | self._reversals.held_back(admission.grants, power, monotonic)
        )
        next_cut_seconds = self._small_changes.next_cut_seconds(admission.grants, power, monotonic)
        sends = tuple(
            SendGrant(state.nodes[node], grant, node in admission.waiting)
            for node, grant in self._writes.sendable(admission, power, held_back)
        )
        sent = {send.node.name for send in sends}
        self._repetitions.sent(sent, admission.grants, power, monotonic)
        self._small_changes.sent(sent, monotonic)
        self._reversals.sent(sent, admission.grants, power, monotonic)
        waiting = len(self._acknowledgements.owing | admission.grants.keys() | set(admission.waiting))
        # Where the one raise waits for a status, another one may go in its place: both are to be published.
        committed = {name: max(sum_, admission.committed[name]) for name, sum_ in wished.committed.items()}
        under_way = GrantsUnderWay(waiting, unadopted | self._unconfirmed(state), state.cluster.unread, committed)
        return sends, under_way, next_cut_seconds

    def _none_decided(self, state: PowerState) -> GrantsUnderWay:
        """What grants mean to the caps' statuses in a cycle in which none is decided on."""
        unconfirmed = self._unadopted(state) | self._unconfirmed(state)
        return GrantsUnderWay(len(self._acknowledgements.owing), unconfirmed, state.cluster.unread)

    def _targets(self, state: PowerState, plan: PlanInForce, leaving: frozenset[str]) -> list[GrantTarget]:
        targets = grant_targets(
            state.nodes,
            plan.decisions,
            [item for of_job in state.cluster.incarnations.values() for item in of_job],
            state.cluster.pods,
            state.caps.rules,
            self._settings.grant_lease_seconds,
            self._settings.guard_fraction,
            None if plan.made else self._remember_granted(state),
        )
        targets = [at_smallest_limits(target) if target.node in leaving else target for target in targets]
        caps_over = state.caps.names_over_nodes()
        # Nobody knows over which nodes a cap lies that cannot be read; an emergency under it is for those of before.
        unreadable = {cap.name for cap in state.caps.unreadable}
        targets = [
            replace(
                target,
                caps=self._brakes.over(
                    info, (*caps_over.get(info.name, ()), *(name for name in info.named_caps if name in unreadable))
                ),
            )
            for target in targets
            if (info := state.nodes[target.node])
        ]
        return [self._writes.writable(target) for target in targets]

    def _remember_granted(self, state: PowerState) -> Mapping[str, Grant]:
        """Remember the grants of the leader before while they stand; gives all of them, by node."""
        for name in self._unadopted(state):
            grant = state.cluster.gpu_nodes[name].grant
            if grant is not None:
                self._before[name] = grant
        return self._before

    def _may_raise(self, state: PowerState) -> bool:
        """Whether everything is read, our copy is fresh (an older one may have missed a reboot), and no status speaks for a
        spec that is no more: it claims its watts of nodes that the cap has let go, until it is written anew."""
        republished = not any(cap.status_of_an_earlier_spec for cap in state.caps.states)
        return state.all_read and self._settings.is_fresh(state.cluster) and republished

    def _unconfirmed(self, state: PowerState) -> frozenset[str]:
        """The nodes that are believed by what they acknowledged to another leader.

        Nobody knows how long ago that was, or whether the agent has been alive since: silence is counted from when this
        leader first looked. Until there is none, no cap is called enforced; each agent acknowledges its adoption at once.
        """
        return frozenset(
            name
            for name, info in state.nodes.items()
            if info.acknowledged and not info.doubt and info.power.accepted.epoch != self._epoch
        )

    def _unadopted(self, state: PowerState) -> frozenset[str]:
        """The nodes whose grant is another leader's, who could write there still: nothing is raised meanwhile."""
        return frozenset(
            name
            for name, gpu_node in state.cluster.gpu_nodes.items()
            if gpu_node.grant is not None and gpu_node.grant.epoch != self._epoch
        )


def _to_be_opened(info: NodeInfo) -> bool:
    """Whether pods may come to a node that has been closed: its agent has acknowledged a grant, and nobody doubts it."""
    return info.acknowledged and not info.doubt and info.is_closed


def _to_be_closed(info: NodeInfo) -> bool:
    """Whether no pod may come to a node any more until its agent has acknowledged a grant anew.

    One that never had an acknowledgement is its administrator's to close: pods may have to come before its agent can.
    """
    return info.proof_void and info.node is not None and not info.is_closed


def _not_to_be_made(state: PowerState) -> frozenset[str]:
    """The nodes whose GPUNode cannot be read: it is there, so that none can be made."""
    unread = frozenset(state.cluster.unread)
    return frozenset(name for name in unread & state.nodes.keys() if state.nodes[name].gpu_node is None)


def _unpublished(cap: CapState, admission: GrantAdmission) -> bool:
    """Whether more would be committed under the cap than its status says."""
    published = cap.published_milliwatts
    return published is not None and admission.committed[cap.name] > published


def _unrecorded_raises(caps: CapStates, admission: GrantAdmission, power: Mapping[str, NodePower]) -> frozenset[str]:
    """The nodes whose raise waits until their GPUNode says under which labels it is: what is handed out under labels that
    only their Node has would count under no cap once that is gone."""
    unrecorded = frozenset(name for cap in caps.states for name in cap.unrecorded)
    return frozenset(
        name
        for name in unrecorded & admission.grants.keys()
        if not power[name].committed.covers(admission.grants[name].bound)
    )
