"""Decides what every node may draw: a state machine that is given the cluster and the plan, and gives instructions.

Pure as far as the world goes: no I/O, and no clock of its own. One cycle is one `observe` and one `step`, with no wait
between them; what became of the grants that a step sent comes back as `Answered` events at any time between cycles.
Everything that the controller remembers could be lost: a new leader starts with an empty one, and the API objects carry
whatever the promise needs (docs/power-safety.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from flyball_api.gpu_node import GpuNode
from flyball_api.grant import Grant, JobGrant, PowerBound
from flyball_api.units import MilliwattsPerGpu
from flyball_api.workloads import PodView
from flyball_planner.models.gpu import GpuModel
from flyball_planner.snapshot import JobDecision

from flyball_operator.outcome import Outcome
from flyball_operator.power.acknowledgements import Acknowledgements
from flyball_operator.power.admission import (
    Admission,
    GrantTarget,
    admit_grants,
    at_smallest_limits,
    throttle,
    without_entries,
)
from flyball_operator.power.bound import CapBudget, NodePower
from flyball_operator.power.brakes import Brakes, SendBrake
from flyball_operator.power.cap_state import CapState, CapStates, CapTracker
from flyball_operator.power.cap_status import CapStatuses, CapStatusWrite, GrantsUnderWay
from flyball_operator.power.gpu_facts import KnownGpus
from flyball_operator.power.heartbeats import Heartbeats
from flyball_operator.power.holds import HoldChange, Holds
from flyball_operator.power.memberships import LabelSync, Memberships
from flyball_operator.power.meter import MeterReading
from flyball_operator.power.node_info import NodeInfo, read_nodes, sign_of_a_boot
from flyball_operator.power.ramp import Ramps, Turns, holds_up_stops, waiting_starts, waiting_stops
from flyball_operator.power.targets import grant_targets
from flyball_operator.watches import ClusterState

Entry = tuple[str, str, str, int, str, int]

# A plan that fits a cap which just fell is worth waiting for this long: two waves of grants take longer than one.
PLAN_GRACE_SECONDS = 0.3
BRAKED_PLAN_GRACE_SECONDS = 2.0
# For how long other statuses wait while a cap is brought down.
CUT_YIELD_SECONDS = 3.0
# Grants under way at a time; a new leader adopts a thousand nodes over several cycles.
MAX_GRANTS_AT_ONCE = 200


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


@dataclass(frozen=True, slots=True)
class PlanInForce:
    """The last plan: each job's decision by uid, the caps that it cannot hold, and whether the next one is being made."""

    decisions: Mapping[str, JobDecision] = field(default_factory=dict)
    infeasible: Collection[str] = ()
    next_is_near: bool = False


@dataclass(frozen=True, slots=True)
class PowerState:
    """What the cluster comes to in one cycle, before anything is decided.

    `cutting`: a cap is on its way down, so that the API server's time belongs to the agents' acknowledgements, and other
    statuses should wait.
    """

    cluster: ClusterState
    nodes: Mapping[str, NodeInfo]
    caps: CapStates
    cutting: bool = False

    @property
    def all_read(self) -> bool:
        """Every cap and GPUNode could be read. Else nothing is raised: a cap that cannot be read must not count as no
        cap, nor a node's grant as none."""
        return not self.caps.unreadable and not self.cluster.unread

    def planning_budgets(self) -> list[CapBudget]:
        """What the plan should aim at under each cap."""
        return [state.planning_budget() for state in self.caps.states]


@dataclass(frozen=True, slots=True)
class SendGrant:
    """Write this grant to the node's GPUNode, whose version must be the one that `node` was read from."""

    node: NodeInfo
    grant: Grant
    waits: bool  # part of what the node should have waits for watts that others have yet to free


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of a grant that was sent to a node; `invalid` is the grant where the API server takes none such."""

    node: str
    outcome: Outcome
    invalid: Grant | None = None


@dataclass(frozen=True, slots=True)
class BrakeAnswered:
    """What became of a brake that was sent for a cap."""

    cap: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class PowerInstructions:
    """What to do after one step. Brakes and grants go first; they wait for no status.

    `untaint` are nodes whose agents have acknowledged a grant and that are to be opened for pods, `taint` those whose
    acknowledgement is doubted or void since, and that are to be closed again; `reserved` the pods (by
    name and job uid) whose nodes are granted just what they should have. `held_up` are the incarnations (by job uid and
    number) whose stop has to wait for a ramp. `owing` nodes have yet to acknowledge a grant.
    """

    brakes: tuple[SendBrake, ...] = ()
    sends: tuple[SendGrant, ...] = ()
    untaint: tuple[NodeInfo, ...] = ()
    taint: tuple[NodeInfo, ...] = ()
    cap_statuses: tuple[CapStatusWrite, ...] = ()
    reserved: frozenset[tuple[str, str]] = frozenset()
    held_up: frozenset[tuple[str, int]] = frozenset()
    owing: int = 0
    label_syncs: tuple[LabelSync, ...] = ()
    holds: tuple[HoldChange, ...] = ()

    def is_reserved(self, pod: PodView) -> bool:
        """Whether the pod's watts are reserved, so that its gate may open."""
        return (pod.name, pod.job_uid) in self.reserved


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A grant whose writing has begun: the version of the GPUNode that it replaces, and what it commits."""

    replaced: str
    committed: PowerBound


class PowerController:
    """The power decisions of one leader term."""

    def __init__(self, epoch: int, settings: PowerSettings) -> None:
        self._epoch = epoch
        self._settings = settings
        self._caps = CapTracker(settings.grant_lease_seconds)
        self._cap_statuses = CapStatuses(settings.status_interval_seconds, epoch)
        self._known_gpus = KnownGpus(settings.gpu_models)
        self._acknowledgements = Acknowledgements(settings.acknowledge_timeout_seconds)
        self._brakes = Brakes(epoch)
        self._heartbeats = Heartbeats(settings.report_timeout_seconds)
        self._memberships = Memberships(settings.label_settle_seconds)
        self._holds = Holds()
        # Until the version that a write replaces is seen to be gone, or the API server has refused it, the grant may stand
        # there already, whatever our copy shows.
        self._attempts: dict[str, _Attempt] = {}
        self._under_way: dict[str, bool] = {}  # grants without an answer yet; True: no earlier attempt is without one
        self._pod_limits: dict[tuple[str, str], MilliwattsPerGpu] = {}  # as they should be, by pod name and job uid
        # What the API server took no grant with, by node: a grant without entries is sent there for as long as they are
        # wanted, as one bad entry must not keep a cut from the node.
        self._refused_entries: dict[str, frozenset[Entry]] = {}
        self._ramps = Ramps()
        self._starts, self._stops = Turns(), Turns()
        self._running: dict[tuple[str, int], JobDecision] = {}  # by which each incarnation was granted its watts last
        self._throttling_since: float | None = None
        self._cutting_since: float | None = None
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
        unresponsive = self._acknowledgements.update(cluster.gpu_nodes, monotonic)
        views = {view.name: view for view in cluster.nodes}
        signs = {name for name, item in cluster.gpu_nodes.items() if sign_of_a_boot(views.get(name), item)}
        silent = self._heartbeats.update(cluster.gpu_nodes, monotonic, signs)
        nodes = read_nodes(cluster.nodes, cluster.gpu_nodes, cluster.pods, unresponsive, silent, self._known_gpus)
        self._count_attempts(nodes, cluster.gpu_nodes)
        self._brakes.update(cluster.brakes)
        caps = self._caps.read(cluster.caps, nodes, now, monotonic, cluster.brakes, readings)
        return PowerState(cluster, nodes, caps, self._is_cutting(caps.states, monotonic))

    def planned_on(self, state: PowerState) -> PowerState:
        """The state that plans are made on: as it stands."""
        return state

    def step(
        self,
        state: PowerState,
        plan: PlanInForce,
        now: datetime,
        monotonic: float,
        status_writes: Collection[str] = (),
        stopping: Collection[tuple[str, int]] = (),
    ) -> PowerInstructions:
        """What to send and to publish now, of the state that `observe` has just returned.

        `status_writes` has the uids of the caps whose statuses are being written, `stopping` the incarnations (by job uid
        and number) that are to be stopped.
        """
        held_up = self._held_up(state, stopping, monotonic)
        plan = self._with_held_up(plan, state.cluster, held_up)
        leaving = self._memberships.to_be_lowered(state.caps, state.nodes, monotonic)
        brakes = self._brakes.due(state.caps.states, state.nodes, monotonic) if self._settings.brakes else ()
        sends, grants = self._grants(state, plan, leaving, monotonic)
        instructions = PowerInstructions(
            brakes=brakes,
            sends=sends,
            untaint=tuple(
                info
                for info in state.nodes.values()
                if info.acknowledged and not info.doubt and info.node and info.node.startup_taint
            ),
            taint=tuple(info for info in state.nodes.values() if _to_be_closed(info)),
            cap_statuses=self._cap_statuses.due(state.caps, plan.infeasible, grants, now, monotonic, status_writes),
            reserved=self._may_start(state, monotonic),
            held_up=held_up,
            owing=len(self._acknowledgements.owing),
            label_syncs=self._label_syncs(state, leaving, {send.node.name for send in sends}),
            holds=tuple(
                self._holds.due(
                    state.cluster.caps, state.cluster.gpu_nodes.values(), monotonic, self._is_fresh(state.cluster)
                )
            ),
        )
        for send in sends:
            self._begin(send)
        return instructions

    def handle(self, event: Answered) -> bool:
        """Take in what became of a grant; True where its entries were refused, so that the next step sends one without."""
        certain = self._under_way.pop(event.node, False)
        # A refusal of this write proves nothing about an earlier one whose answer was lost.
        if certain and event.outcome is Outcome.REFUSED:
            self._attempts.pop(event.node, None)
        if event.invalid is None or not event.invalid.jobs:
            return False
        self._refused_entries[event.node] = _entries(event.invalid.jobs)
        return True

    def handle_brake(self, event: BrakeAnswered) -> None:
        """Take in what became of a brake. Whether it took effect, acknowledgements say."""
        self._brakes.answered(event.cap, done=event.outcome is Outcome.DONE, monotonic=self._now)

    def _count_attempts(self, nodes: dict[str, NodeInfo], gpu_nodes: Mapping[str, GpuNode]) -> None:
        """Count every node with what was attempted there, as long as nobody knows whether it arrived.

        A GPUNode that cannot be read now, or is gone while its Node is there, shows nothing of that.
        """
        for name, attempt in list(self._attempts.items()):
            seen = gpu_nodes.get(name)
            if name not in nodes or (seen is not None and seen.metadata.resource_version != attempt.replaced):
                del self._attempts[name]
                continue
            power = nodes[name].power
            # The attempt covers what was committed then; a doubt of the node can be younger.
            power = replace(power, committed=power.committed | attempt.committed, unsettled=True)
            nodes[name] = replace(nodes[name], power=power, power_if_believed=attempt.committed)

    def _label_syncs(
        self, state: PowerState, leaving: frozenset[str], granted: Collection[str]
    ) -> tuple[LabelSync, ...]:
        """What GPUNodes should say of labels; never beside a grant, of which only one of two writes would be taken."""
        found = self._memberships.syncs(state.caps, state.nodes, leaving, self._may_raise(state))
        return tuple(sync for sync in found if sync.node.name not in granted and sync.node.name not in self._under_way)

    def _grants(
        self, state: PowerState, plan: PlanInForce, leaving: frozenset[str], monotonic: float
    ) -> tuple[tuple[SendGrant, ...], GrantsUnderWay]:
        """The grants to send now, and what they mean to the caps' statuses."""
        owing = self._acknowledgements.owing
        unadopted = self._unadopted(state)
        unheard = unadopted | self._unheard(state)
        power = {name: info.power for name, info in state.nodes.items()}
        metered = [budget for item in state.caps.states if (budget := item.meter_budget()) is not None]
        budgets = [*(item.budget() for item in state.caps.states), *metered]
        targets = self._targets(state, plan, leaving)
        priorities = {uid: job.spec.priority for uid, job in state.cluster.jobs.items()} if metered else {}
        fitting = throttle(targets, power, budgets, _fixed(state.nodes), priorities)
        # No plan knows of meters: what they ask for waits for none.
        if self._waits_for_the_plan(state, not metered and fitting != targets, plan, monotonic):
            return (), GrantsUnderWay(len(owing), unheard, state.cluster.unread)
        fitting, ramps = self._ramps.apply(fitting, power, state.caps.states, monotonic)
        budgets += ramps
        self._pod_limits = {
            (job.pod_name, job.uid): job.power_limit_milliwatts for target in fitting for job in target.jobs
        }
        may_raise = self._may_raise(state) and not unadopted
        admission = wished = admit_grants(fitting, power, budgets, self._epoch, may_raise)
        if any(_unpublished(cap, wished) for cap in state.caps.states):
            # What is committed is published first; cuts wait for no status.
            published = [*(item.published_budget() for item in state.caps.states), *metered, *ramps]
            admission = admit_grants(fitting, power, published, self._epoch, may_raise)
        sends = tuple(
            SendGrant(state.nodes[node], grant, node in admission.waiting)
            for node, grant in self._sendable(
                admission, power, self._brakes.held_back(monotonic) | _unrecorded_raises(state.caps, admission, power)
            )
        )
        waiting = len(owing | admission.grants.keys() | set(admission.waiting))
        return sends, GrantsUnderWay(waiting, unheard, state.cluster.unread, wished.committed)

    def _targets(self, state: PowerState, plan: PlanInForce, leaving: frozenset[str]) -> list[GrantTarget]:
        targets = grant_targets(
            state.nodes,
            plan.decisions,
            [item for of_job in state.cluster.incarnations.values() for item in of_job],
            state.cluster.pods,
            state.caps.rules,
            self._settings.grant_lease_seconds,
            self._settings.guard_fraction,
        )
        targets = [at_smallest_limits(target) if target.node in leaving else target for target in targets]
        caps_over = state.caps.names_over_nodes()
        targets = [
            replace(target, caps=self._brakes.over(state.nodes[target.node], caps_over.get(target.node, ())))
            for target in targets
        ]
        return [
            without_entries(target) if self._refused_entries.get(target.node) == _entries(target.jobs) else target
            for target in targets
        ]

    def _waits_for_the_plan(self, state: PowerState, throttled: bool, plan: PlanInForce, monotonic: float) -> bool:
        """Whether a plan that fits the caps is so near that a cut of this one is not worth its own wave of grants.

        Where brakes hold every cap already, that can take its time. The time counts from when the plan in force did not fit
        any more, not from each new plan's start: while a cap rises, or measurements come in, a plan is always near.
        """
        if not throttled:
            self._throttling_since = None
            return False
        if self._throttling_since is None:
            self._throttling_since = monotonic
        braked = any(info.power.braked_milliwatts is not None for info in state.nodes.values())
        held = braked and all(cap.enforced for cap in state.caps.states)
        grace = BRAKED_PLAN_GRACE_SECONDS if held else PLAN_GRACE_SECONDS
        return plan.next_is_near and monotonic - self._throttling_since < grace

    def _may_raise(self, state: PowerState) -> bool:
        """Whether everything is read, and our copy is fresh: an older one may have missed a reboot."""
        return state.all_read and self._is_fresh(state.cluster)

    def _is_fresh(self, cluster: ClusterState) -> bool:
        return cluster.age_seconds <= self._settings.stale_after_seconds

    def _unheard(self, state: PowerState) -> frozenset[str]:
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

    def _sendable(
        self, admission: Admission, power: Mapping[str, NodePower], held_back: frozenset[str]
    ) -> Iterable[tuple[str, Grant]]:
        """The deepest cuts first, one write at a time for each node, and not too many at once; none to those held back.

        The end of each write brings the next cycle: what finds no room now is decided on again then.
        """

        def rise(node: str) -> int:
            standing = power[node].grant
            before = 0 if standing is None else standing.bound.limit_milliwatts
            return admission.grants[node].bound.limit_milliwatts - before

        free = sorted(admission.grants.keys() - self._under_way.keys() - held_back, key=lambda node: (rise(node), node))
        room = max(0, MAX_GRANTS_AT_ONCE - len(self._under_way))
        return [(node, admission.grants[node]) for node in free[:room]]

    def _begin(self, send: SendGrant) -> None:
        """Remember a grant that is about to be sent, until its answer and its object have been seen.

        The first grant of a node is not counted before its GPUNode is seen: it is covered by the defaults, which such a
        node counts with in any case.
        """
        name, gpu_node = send.node.name, send.node.gpu_node
        self._under_way[name] = name not in self._attempts
        if gpu_node is not None:
            self._attempts[name] = _Attempt(gpu_node.metadata.resource_version, send.grant.committed)

    def _may_start(self, state: PowerState, monotonic: float) -> frozenset[tuple[str, str]]:
        """The reserved pods, without those of jobs whose start has to wait for a ramp."""
        reserved = self._reserved(state.cluster.gpu_nodes)
        waiting = waiting_starts(state.cluster.pods, state.cluster.gpu_nodes, reserved)
        allowed = self._starts.allowed(waiting, state.caps.states, state.nodes, monotonic)
        held_back = {job.uid for job in waiting if job.key not in allowed}
        return frozenset(pod for pod in reserved if pod[1] not in held_back)

    def _held_up(
        self, state: PowerState, stopping: Collection[tuple[str, int]], monotonic: float
    ) -> frozenset[tuple[str, int]]:
        """The incarnations whose stop has to wait for a ramp."""
        waiting = waiting_stops(state.cluster.pods, state.cluster.gpu_nodes, stopping)
        caps = [cap for cap in state.caps.states if holds_up_stops(cap)]
        return frozenset(job.key for job in waiting) - self._stops.allowed(waiting, caps, state.nodes, monotonic)

    def _with_held_up(
        self, plan: PlanInForce, cluster: ClusterState, held_up: Collection[tuple[str, int]]
    ) -> PlanInForce:
        """The plan, but for incarnations whose stop has to wait as it was: their load is to stay until their turn."""
        kept = {key: self._running[key] for key in held_up if key in self._running}
        decisions = {**plan.decisions, **{uid: decision for (uid, _), decision in kept.items()}}
        self._running = {
            (item.job_uid, item.incarnation): decision
            for of_job in cluster.incarnations.values()
            for item in of_job
            if (decision := decisions.get(item.job_uid)) is not None
            and decision.allocation is not None
            and decision.allocation.nodes == item.nodes
        }
        return replace(plan, decisions=decisions) if kept else plan

    def _reserved(self, gpu_nodes: Mapping[str, GpuNode]) -> frozenset[tuple[str, str]]:
        """The pods whose grant, as the API server has it, gives them the limit that they should have."""
        return frozenset(
            (job.pod_name, job.uid)
            for gpu_node in gpu_nodes.values()
            if gpu_node.grant is not None
            for job in gpu_node.grant.jobs
            if self._pod_limits.get((job.pod_name, job.uid)) == job.power_limit_milliwatts
        )

    def _is_cutting(self, caps: Iterable[CapState], monotonic: float) -> bool:
        """Whether a cap is on its way down; only for a moment, as a cap may stay unmet for ever."""
        if all(cap.enforced or not cap.attainable for cap in caps):
            self._cutting_since = None
            return False
        if self._cutting_since is None:
            self._cutting_since = monotonic
        return monotonic - self._cutting_since < CUT_YIELD_SECONDS


def _to_be_closed(info: NodeInfo) -> bool:
    """Whether no pod may come to a node any more until its agent has acknowledged a grant anew.

    One that never had an acknowledgement is its administrator's to close: pods may have to come before its agent can.
    """
    return info.proof_void and info.node is not None and not info.node.startup_taint


def _entries(jobs: Iterable[JobGrant]) -> frozenset[Entry]:
    """What tells entries of grants apart, whatever they are granted."""
    return frozenset((job.namespace, job.name, job.uid, job.incarnation, job.pod_name, job.gpus) for job in jobs)


def _unpublished(cap: CapState, admission: Admission) -> bool:
    """Whether more would be committed under the cap than its status says."""
    published = cap.published_milliwatts
    return published is not None and admission.committed[cap.name] > published


def _unrecorded_raises(caps: CapStates, admission: Admission, power: Mapping[str, NodePower]) -> frozenset[str]:
    """The nodes whose raise waits until their GPUNode says under which labels it is: what is handed out under labels that
    only their Node has would count under no cap once that is gone."""
    unrecorded = frozenset(name for cap in caps.states for name in cap.unrecorded)
    return frozenset(
        name
        for name in unrecorded & admission.grants.keys()
        if not power[name].committed.covers(admission.grants[name].bound)
    )


def _fixed(nodes: Mapping[str, NodeInfo]) -> frozenset[str]:
    """The nodes that cannot be commanded."""
    return frozenset(name for name, info in nodes.items() if not info.commandable)
