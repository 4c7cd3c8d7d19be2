"""A small cluster under the power protocol, for tests: everything real but the transport, the hardware and the clock.

The leader is the real PowerController over a copy of the API's objects that may lag, the agents take the real decisions,
and between them grants, reports and statuses are answered, refused, lost on the way, lost on the way back, or land long
after they were given up. `check` says what must hold after every action.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from typing import Any

import msgspec
from flyball_agent.clock import NANOSECONDS
from flyball_agent.enforce import decisions
from flyball_agent.enforce.brakes import (
    Followed,
    Seen,
    braked,
    everything_lowered,
    lowest_bound,
    lowest_targets,
    under_new_grant,
    with_seen,
)
from flyball_agent.enforce.gpu_state import GpuState, PodName
from flyball_agent.gpu.gpu import GpuLimits, PowerLimitReading
from flyball_api.brake_acknowledgement import BrakeAcknowledgement
from flyball_api.gpu_node import (
    Acknowledgement,
    DriverSession,
    GpuClocks,
    GpuNode,
    GpuNodeStatus,
    GpuReport,
    PowerLimits,
    RoundTime,
)
from flyball_api.grant import BrakeVersion, Grant, PowerBound
from flyball_api.power_brake import PowerBrake, PowerBrakeSpec
from flyball_api.power_cap import ForeignWeight, PodWeight, PowerCap, PowerCapSpec, PowerCapStatus
from flyball_api.reading import ObjectMeta
from flyball_api.values.label_selector import LabelSelector
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts, of_nodes
from flyball_api.workloads import IncarnationView, NodeView, PodView
from flyball_operator.cluster.outcome import Outcome
from flyball_operator.cluster.state import ClusterState
from flyball_operator.power import grant_writes as grant_writes_module
from flyball_operator.power.bound import committed_bound
from flyball_operator.power.caps.memberships import LabelSync
from flyball_operator.power.caps.meter import MeterReading
from flyball_operator.power.controller import PowerController, PowerSettings
from flyball_operator.power.cycle import Answered, BrakeAnswered, PlanInForce, PowerCycle, SendGrant
from flyball_operator.power.grants import brakes as brakes_module
from flyball_operator.power.grants.brakes import SendBrake
from flyball_operator.power.nodes.reservations import NO_RULES, least_bound
from flyball_planner.models.gpu import GpuModel
from flyball_planner.snapshot import JobDecision

from tests.support.operator_objects import A100, NOW, decision, incarnation_view, node_view, running_pod

GPUS = 2
NODES = ("a", "b", "c")
LABELS = {"a": {"row": "1"}, "b": {"row": "1", "rack": "1"}, "c": {"rack": "1"}}
NAMESPACES = {f"{name}-{GPUS + 1}": "lab" for name in NODES}  # of pods that are not of namespace team
MIN, DEFAULT, LARGEST = 100, 400, 450  # watts of one GPU
AT_ONCE = 2  # grants under way: fewer than there are nodes
STALE_SECONDS = 90.0
SETTLE_NS = 2
GPU_LIMITS = GpuLimits(MilliwattsPerGpu(MIN * 1000), MilliwattsPerGpu(LARGEST * 1000), MilliwattsPerGpu(DEFAULT * 1000))
REPORTED_LIMITS = PowerLimits(GPU_LIMITS.min_milliwatts, GPU_LIMITS.max_milliwatts, GPU_LIMITS.default_milliwatts)
LARGEST_OF_NODE = NodeMilliwatts(GPUS * LARGEST * 1000)

SELECTORS = {"hall": {}, "row": {"matchLabels": {"row": "1"}}, "rack": {"matchLabels": {"rack": "1"}}}
UNDER = {"hall": NODES, "row": ("a", "b"), "rack": ("b", "c")}
OVERHEAD_WATTS = {"hall": 50, "row": 0, "rack": 10}


def cap_watts(name: str, tenths: int) -> int:
    return OVERHEAD_WATTS[name] + len(UNDER[name]) * GPUS * LARGEST * tenths // 10


@cache
def gpu_model() -> GpuModel:
    """What is known of the GPUs before any agent reports them."""
    return GpuModel.from_device(
        A100,
        min_power_limit_watts=MIN,
        max_power_limit_watts=LARGEST,
        default_power_limit_watts=DEFAULT,
        clocks_megahertz=tuple(range(210, 1411, 15)),
    )


def foreign_weights(tenths: int) -> tuple[ForeignWeight, ...]:
    """What people give foreign pods along with each figure of a cap: nothing, less or more than others have, or more with
    less for those of a label."""
    of_tier = PodWeight(LabelSelector({"tier": "batch"}), 700)
    weights: tuple[tuple[ForeignWeight, ...], ...] = (
        (),
        (ForeignWeight("team", 400),),
        (ForeignWeight("team", 2500, (of_tier,)),),
    )
    return weights[tenths % len(weights)]


@cache
def node(name: str) -> NodeView:
    return msgspec.structs.replace(node_view(name, GPUS), labels=LABELS[name])


@cache
def pod(name: str, index: int) -> PodView:
    """A pod of one GPU on a node: of a job of ours, or from index `GPUS` on foreign, the second of another namespace.

    On every node but the first foreign pods have a label.
    """
    uid, pod_name = f"uid-{name}-{index}" if index < GPUS else "", f"{name}-{index}"
    return msgspec.structs.replace(
        running_pod(pod_name, name, uid=uid, gpus=1),
        namespace=NAMESPACES.get(pod_name, "team"),
        labels=(("tier", "batch"),) if name != NODES[0] else (),
    )


@cache
def incarnation(name: str, index: int) -> IncarnationView:
    return incarnation_view(f"uid-{name}-{index}", 1, (name, 1))


@cache
def planned(name: str, index: int, watts: int, share: float) -> JobDecision:
    return decision(f"uid-{name}-{index}", (name, 1), watts=float(watts), predicted_watts=watts * share)


@dataclass
class Agent:
    """One node: the limits of its hardware, and its agent, which keeps what it accepted over restarts."""

    name: str
    boot: int = 0
    accepted: Grant | None = None
    followed: Followed = field(default_factory=dict)
    lease_valid: bool = True
    acknowledged: Acknowledgement | None = None
    stuck: set[int] = field(default_factory=set)  # GPUs whose setter reports success and does nothing
    pods: dict[int, int] = field(default_factory=dict)  # which pod, by its index, holds which GPU
    gpus: list[GpuState] = field(default_factory=list)
    reports: int = 0
    seconds: float = 0.0  # by the node's clock

    def __post_init__(self) -> None:
        self.gpus = [
            GpuState(f"GPU-{self.name}-{index}", index, A100, GPU_LIMITS, GPU_LIMITS.default_milliwatts)
            for index in range(GPUS)
        ]
        self.start()

    @property
    def session(self) -> DriverSession:
        return DriverSession(f"boot-{self.boot}", "driver-1")

    @property
    def boottime_nanoseconds(self) -> int:
        """When this is, later than the last report."""
        return int(self.seconds * NANOSECONDS) + self.reports

    @property
    def limits_milliwatts(self) -> int:
        return sum(gpu.held_milliwatts for gpu in self.gpus)

    def start(self) -> None:
        """Boot: every limit is at its default, and every setter works."""
        self.stuck = set()
        for index in range(GPUS):
            self.put(index, GPU_LIMITS.default_milliwatts)
            self.gpus[index] = self.gpus[index].changed(above_since_ns=None, stays_above=False)

    def put(self, index: int, milliwatts: MilliwattsPerGpu) -> None:
        limit = PowerLimitReading(milliwatts, milliwatts)
        self.gpus[index] = self.gpus[index].changed(held_milliwatts=milliwatts, limit=limit)

    def tick(self, grant: Grant | None, seen: Seen, now_ns: int, steps: int) -> None:
        """One round of at most `steps` sets, cuts first, as the enforcer makes it; then judge what may be acknowledged.

        The GPUNode has `grant`, and the PowerBrakes are as `seen`.
        """
        if grant is not None and (self.accepted is None or grant.version > self.accepted.version):
            self.accepted, self.followed = grant, under_new_grant(self.followed, grant, seen)
            self.gpus = [gpu.changed(above_since_ns=None, stays_above=False) for gpu in self.gpus]
        held = {gpu: PodName("team", f"{self.name}-{index}") for index, gpu in self.pods.items()}
        self.gpus = [gpu.changed(pods=(held[index],) if index in held else ()) for index, gpu in enumerate(self.gpus)]
        if self.accepted is None:
            return
        self.followed = with_seen(self.followed, self.accepted, seen)
        in_force = braked(self.accepted, self.followed)
        mode = decisions.mode_of(in_force, self.gpus, lease_valid=self.lease_valid)
        targets = decisions.targets_of(in_force, self.gpus, mode)
        bound = in_force.bound.limit_milliwatts
        if everything_lowered(self.followed):
            targets = lowest_targets(targets, self.gpus)
            bound = min(bound, lowest_bound(self.gpus))
        steps = self._set(decisions.limit_cuts(self.gpus, targets), steps)
        if not mode.lapsed:
            steps = self._set(decisions.limit_raises(self.gpus, targets, bound), steps)
        if steps == 0:
            return  # it stopped on the way
        judgement = decisions.judge(self.gpus, targets, now_ns, SETTLE_NS)
        self.gpus = list(judgement.gpus)
        total = decisions.total_held_milliwatts(self.gpus)
        version = self.accepted.version
        may_acknowledge = judgement.may_acknowledge
        if decisions.acknowledgement_due(self.acknowledged, version, self.session, total, bound, may_acknowledge):
            self.reports += 1
            self.acknowledged = Acknowledgement(
                *version,
                total,
                *self.session,
                bound_milliwatts=bound,
                digest=self.accepted.digest,
                boottime_nanoseconds=self.boottime_nanoseconds,
            )

    def _set(self, sets: list[decisions.SetLimit], steps: int) -> int:
        """Make the sets that there are steps for; returns the steps left."""
        indices = {gpu.uuid: index for index, gpu in enumerate(self.gpus)}
        for change in sets[:steps]:
            if indices[change.uuid] not in self.stuck:
                index = indices[change.uuid]
                self.put(index, change.new_milliwatts)
                self.gpus[index] = self.gpus[index].changed(before_drift_milliwatts=None)
        return max(0, steps - len(sets))

    def status(self) -> GpuNodeStatus:
        """What the agent reports."""
        self.reports += 1  # no report is like the one before: the energy counters go on
        reports = tuple(
            GpuReport(
                gpu.uuid,
                gpu.index,
                A100,
                msgspec.structs.replace(
                    REPORTED_LIMITS,
                    requested_milliwatts=gpu.held_milliwatts,
                    enforced_milliwatts=gpu.held_milliwatts,
                ),
                GpuClocks(210, 1410, 15),
                energy_millijoules=self.reports,
            )
            for gpu in self.gpus
        )
        last_round = RoundTime(self.boottime_nanoseconds, "")
        return GpuNodeStatus(*self.session, devices=reports, acknowledged=self.acknowledged, last_round=last_round)


Item = GpuNode | PowerCap | PowerBrake | BrakeAcknowledgement


class ApiServer:
    """GPUNodes, PowerCaps, PowerBrakes and their acknowledgements, and every change of them in order."""

    def __init__(self) -> None:
        self.gpu_nodes: dict[str, GpuNode] = {}
        self.caps: dict[str, PowerCap] = {}
        self.brakes: dict[str, PowerBrake] = {}
        self.brake_acknowledgements: dict[str, BrakeAcknowledgement] = {}
        self.log: list[Item] = []
        self.reboots: list[int] = []  # where in the log
        self.version = 0

    def put(self, item: Item) -> Item:
        self.version += 1
        metadata = msgspec.structs.replace(item.metadata, resource_version=str(self.version))
        item = replace(item, metadata=metadata)
        self.log.append(item)
        if isinstance(item, GpuNode):
            self.gpu_nodes[item.name] = item
        elif isinstance(item, PowerBrake):
            self.brakes[item.cap] = item
        elif isinstance(item, BrakeAcknowledgement):
            self.brake_acknowledgements[item.node] = item
        else:
            self.caps[item.name] = item
        return item

    def brake(self, cap: str, spec: PowerBrakeSpec, replaced: str) -> PowerBrake | None:
        """Take a brake as the CRD's rules and the admission policy do; None where it is refused."""
        before = self.brakes.get(cap)
        if replaced != ("" if before is None else before.metadata.resource_version):
            return None
        version = BrakeVersion(spec.epoch, spec.sequence)
        if before is not None and (version <= before.version or (before.active and spec.emergency is None)):
            return None
        after = self.put(PowerBrake(ObjectMeta(cap), spec))
        assert isinstance(after, PowerBrake)
        return after

    def brakes_as_of(self, changes_ago: int) -> dict[str, PowerBrake]:
        """The brakes as a watch that is behind, or an old backup, has them."""
        upto = self.log[: max(0, len(self.log) - changes_ago)]
        return {item.cap: item for item in upto if isinstance(item, PowerBrake)}

    def grant(self, name: str, replaced: str | None, grant: Grant) -> GpuNode | None:
        """Take a grant if the GPUNode has not changed since it was read; None where that is refused."""
        before = self.gpu_nodes.get(name)
        if replaced is None:
            if before is not None:
                return None
            before = GpuNode(ObjectMeta(name, uid=f"uid-{name}", labels=LABELS[name]), None, GpuNodeStatus())
        elif before is None or before.metadata.resource_version != replaced:
            return None
        # What the CRD's transition rule demands.
        assert before.grant is None or grant.version > before.grant.version
        after = self.put(replace(before, grant=grant))
        assert isinstance(after, GpuNode)
        return after

    def sync_labels(self, sync: LabelSync) -> GpuNode | None:
        """Take what a leader says of labels if the GPUNode is as it was read; None where that is refused."""
        assert sync.node.gpu_node is not None
        before = self.gpu_nodes[sync.node.name]
        if before.metadata.resource_version != sync.node.gpu_node.metadata.resource_version:
            return None
        metadata = msgspec.structs.replace(before.metadata, labels=dict(sync.node.labels))
        after = self.put(replace(before, metadata=metadata, former_labels=sync.former_labels))
        assert isinstance(after, GpuNode)
        return after

    def acknowledged(self, name: str) -> GpuNode | None:
        """The GPUNode with the later of its node's two acknowledgements."""
        item, brake = self.gpu_nodes.get(name), self.brake_acknowledgements.get(name)
        return item if item is None or brake is None else item.with_acknowledgement(brake.acknowledged)

    def reported(self, name: str, status: GpuNodeStatus) -> None:
        before = self.gpu_nodes.get(name)
        if before is not None and before.status != status:
            self.put(replace(before, status=status))

    def committed(self, name: str) -> PowerBound:
        """The most that the node may draw by the objects as they are."""
        item = self.acknowledged(name)
        if item is None:
            return committed_bound(None, None, DriverSession(), LARGEST_OF_NODE)
        return committed_bound(
            item.grant,
            item.acknowledged,
            item.session,
            LARGEST_OF_NODE,
            read_back_since=item.read_back_since_milliwatts,
        )


@dataclass
class Write:
    """A grant on its way; `answered`: its sender has given it up."""

    term: Term
    node: str
    replaced: str | None
    grant: Grant
    answered: bool = False


@dataclass
class BrakeWrite:
    """A brake on its way; `answered`: its sender has given it up."""

    term: Term
    send: SendBrake
    answered: bool = False


class Term:
    """One leader: its controller, and its copy of what the API server has."""

    def __init__(self, epoch: int, api: ApiServer, behind: int) -> None:
        self.epoch = epoch
        self.api = api
        # No node leaves a cap here: labels go and come back, and nobody brings its node to leave.
        settings = PowerSettings(
            stale_after_seconds=STALE_SECONDS, label_settle_seconds=float("inf"), gpu_models={A100: gpu_model()}
        )
        self.controller = PowerController(epoch, settings)
        self.only_braked = False  # as its last cycle did
        self.gpu_nodes: dict[str, GpuNode] = {}
        self.caps: dict[str, PowerCap] = {}
        self.brakes: dict[str, PowerBrake] = {}
        self.brake_acknowledgements: dict[str, BrakeAcknowledgement] = {}
        self.seen = 0
        self.deliver(len(api.log) - behind)

    def deliver(self, upto: int) -> None:
        """The watch brings the changes up to here."""
        for item in self.api.log[self.seen : max(self.seen, upto)]:
            self.absorb(item)
        self.seen = max(self.seen, upto)

    def absorb(self, item: Item) -> None:
        copy: dict[str, Any] = self.caps
        if isinstance(item, BrakeAcknowledgement):
            copy = self.brake_acknowledgements
        elif not isinstance(item, PowerCap):
            copy = self.gpu_nodes if isinstance(item, GpuNode) else self.brakes
        name = item.metadata.name
        known = copy.get(name)
        if known is None or int(known.metadata.resource_version) < int(item.metadata.resource_version):
            copy[name] = item

    @property
    def age_seconds(self) -> float:
        """A watch that has missed a reboot is one that nobody has proven fresh for long (docs/power-safety.md)."""
        return STALE_SECONDS + 1.0 if any(at >= self.seen for at in self.api.reboots) else STALE_SECONDS


@contextmanager
def few_grants_at_once() -> Iterator[None]:
    """So few that not every node's fits, and brakes for a single node, of which there are few here."""
    usual = grant_writes_module.MAX_GRANTS_AT_ONCE, brakes_module.FEWEST_NODES
    grant_writes_module.MAX_GRANTS_AT_ONCE, brakes_module.FEWEST_NODES = AT_ONCE, 1
    try:
        yield
    finally:
        grant_writes_module.MAX_GRANTS_AT_ONCE, brakes_module.FEWEST_NODES = usual


class PowerCluster:
    """Three nodes of two GPUs under three overlapping caps, led by one operator after the other."""

    def __init__(self) -> None:
        self.api = ApiServer()
        self.agents = {name: Agent(name) for name in NODES}
        self.plan: dict[tuple[str, int], tuple[int, float]] = {}
        self.pods: set[tuple[str, int]] = {(name, index) for name in NODES for index in range(GPUS)}
        self.writes: list[Write | BrakeWrite] = []
        self.unlabelled: set[str] = set()  # names of Nodes whose labels are gone
        self.unreadable: set[str] = set()  # names of a GPUNode or a cap that the leader cannot read
        self.seconds = 0.0
        self.readings: dict[str, MeterReading] = {}  # by the cap's uid, which is its name here
        self.plan_is_near = False
        # What the leader has known of each cap, whether it finds it enforced, and whether it has held since.
        self.known_watts: dict[str, int] = {}
        self.found_enforced: dict[str, bool] = {}
        self.holds: dict[str, bool] = {}
        # Caps whose status says Enforced from before something that was nobody's command.
        self.void_claims: set[str] = set()

    def begin(
        self,
        tenths: list[int],
        expected: list[bool],
        wishes: list[tuple[int, float]],
        rounds: int,
        metered: Container[str] = (),
        ramped: Mapping[str, int] | None = None,
    ) -> None:
        """Make the caps, of so many tenths of the most that their nodes can draw, and go so many rounds without a fault.

        The caps in `metered` have a meter, which says nothing until `meter_reads` does; those in `ramped` a ramp of so many
        watts a second.
        """
        for name, share, is_expected in zip(SELECTORS, tenths, expected, strict=True):
            spec = msgspec.convert(
                {
                    "watts": cap_watts(name, share),
                    "nodeSelector": SELECTORS[name],
                    "staticOverheadWatts": OVERHEAD_WATTS[name],
                    "enforcement": "Expected" if is_expected else "Hard",
                    **({"meter": {"file": name}} if name in metered else {}),
                    **({"rampWattsPerSecond": ramped[name]} if ramped and name in ramped else {}),
                },
                PowerCapSpec,
            )
            self.api.put(PowerCap(ObjectMeta(name, uid=name, generation=1), spec, "", PowerCapStatus()))
        self.plan_changes(wishes, near=False)
        self.term = Term(1, self.api, 0)
        for agent in self.agents.values():
            agent.pods = {index: index for index in range(GPUS)}
        for _ in range(rounds):
            self.clean_round()

    def meter_reads(self, name: str, watts: float) -> None:
        """A cap's meter is read at this moment."""
        self.readings[name] = MeterReading(watts, self.seconds, None, "")

    def hardware_watts(self, cap: str) -> float:
        """What the limits under a cap allow, as the hardware has them, with the static overhead."""
        return OVERHEAD_WATTS[cap] + sum(self.agents[name].limits_milliwatts for name in UNDER[cap]) / 1000

    def clean_round(self) -> None:
        """Everything arrives, and every agent does what it should."""
        self.term.deliver(len(self.api.log))
        self.cycle(["answered"] * AT_ONCE, ["answered"] * 3, 3.0)
        for name in NODES:
            self.tick(name, 9, reports=True)

    # --- the operator ----------------------------------------------------------------------------------------------

    def operator_cycle(
        self, sent: list[str], statuses: list[str], seconds: float, behind: int, unreadable: str
    ) -> None:
        self.unreadable = {unreadable}
        self.term.deliver(len(self.api.log) - behind)
        self.cycle(sent, statuses, seconds)
        self.unreadable = set()

    def agents_tick(self, ticks: list[tuple[int, bool]]) -> None:
        for name, (steps, reports) in zip(NODES, ticks, strict=True):
            if steps:
                self.tick(name, steps, reports)

    def cycle(self, sent: list[str], statuses: list[str], seconds: float) -> None:
        self.seconds += seconds
        term = self.term
        now = NOW + timedelta(seconds=self.seconds)
        state = term.controller.observe(self.cluster(), now, self.seconds, self.readings)
        decided = {f"uid-{name}-{index}": planned(name, index, *wish) for (name, index), wish in self.plan.items()}
        plan = PlanInForce(decided, next_is_near=self.plan_is_near)
        instructions = term.controller.brake(PowerCycle(state, plan, now, self.seconds), ends=not term.only_braked)
        brakes = instructions.brakes
        term.only_braked = bool(brakes) and not term.only_braked
        if not term.only_braked:  # the cycle goes on
            instructions = term.controller.step(PowerCycle(state, plan, now, self.seconds))
        knows = term.age_seconds <= STALE_SECONDS  # of every reboot
        self.found_enforced = {cap.name: cap.enforced and knows for cap in state.caps.states}
        for info in state.nodes.values():
            if info.doubt:  # a silent agent, for instance, is nobody's command either
                self.forget(info.name)
        for brake, fate in zip(brakes, [*statuses[::-1], *["answered"] * 3], strict=False):
            brake_write = BrakeWrite(term, brake)
            self.writes.append(brake_write)
            self.resolve(brake_write, {"lost": "zombie"}.get(fate, fate))
        assert len(instructions.sends) <= AT_ONCE
        for send, fate in zip(instructions.sends, sent, strict=False):
            self.send(send, fate)
        for write, fate in zip(instructions.cap_statuses, statuses, strict=False):
            if fate != "lost":
                item = self.api.put(replace(self.api.caps[write.cap.name], status=write.status))
                if fate == "answered":
                    term.absorb(item)
        for sync, fate in zip(instructions.label_syncs, reversed(statuses), strict=False):
            synced = None if fate == "lost" else self.api.sync_labels(sync)
            if synced is not None and fate == "answered":
                term.absorb(synced)
        if term.age_seconds <= STALE_SECONDS:
            self.void_claims -= {
                cap.name
                for cap in state.caps.states
                if self.claims_enforced(cap.name) == cap.enforced
                # A claim of less is older than this: its successor was lost on the way.
                and (self.api.caps[cap.name].status.effective_watts or 0) >= cap.effective.watts
            }

    def cluster(self) -> ClusterState:
        """What the leader sees of the cluster, by its copy."""
        term = self.term
        return ClusterState(
            jobs={},
            caps=[
                replace(cap, spec=None, refusal=f"PowerCap {name}: spec") if name in self.unreadable else cap
                for name, cap in term.caps.items()
            ],
            gpu_nodes={
                name: item.with_acknowledgement(term.brake_acknowledgements[name].acknowledged)
                if name in term.brake_acknowledgements
                else item
                for name, item in term.gpu_nodes.items()
                if name not in self.unreadable
            },
            nodes=[
                msgspec.structs.replace(node(name), labels={}) if name in self.unlabelled else node(name)
                for name in NODES
            ],
            pods=[pod(name, index) for name, index in sorted(self.pods)],
            incarnations={f"uid-{name}-{index}": [incarnation(name, index)] for name in NODES for index in range(GPUS)},
            pods_of={},
            reports_of={},
            unread=tuple(sorted(self.unreadable & set(NODES))),
            age_seconds=term.age_seconds,
            brakes=dict(term.brakes),
        )

    def send(self, send: SendGrant, fate: str) -> None:
        gpu_node = send.node.gpu_node
        replaced = None if gpu_node is None else gpu_node.metadata.resource_version
        write = Write(self.term, send.node.name, replaced, send.grant)
        self.writes.append(write)
        unanswered = [
            item.node
            for item in self.writes
            if isinstance(item, Write) and item.term is self.term and not item.answered
        ]
        assert len(unanswered) <= AT_ONCE
        assert len(set(unanswered)) == len(unanswered)
        if fate != "slow":
            self.resolve(write, fate)

    def resolve(self, write: Write | BrakeWrite, fate: str) -> None:
        """Bring a write to its end, or for a zombie to its sender's giving up."""
        outcome = Outcome.UNKNOWN
        if fate in ("answered", "answer lost"):
            after: Item | None
            if isinstance(write, Write):
                after = self.api.grant(write.node, write.replaced, write.grant)
            else:
                after = self.api.brake(write.send.cap, write.send.spec, write.send.resource_version)
            if fate == "answered":
                outcome = Outcome.REFUSED if after is None else Outcome.DONE
                if after is not None:
                    write.term.absorb(after)
        elif fate == "refused":
            outcome = Outcome.REFUSED
        if not write.answered:
            write.answered = True
            if isinstance(write, Write):
                write.term.controller.handle(Answered(write.node, outcome))
            else:
                write.term.controller.handle_brake(BrakeAnswered(write.send.cap, outcome))
        if fate not in ("zombie", "slow"):
            self.writes.remove(write)

    def a_write_under_way_ends(self, which: int, fate: str) -> None:
        if self.writes:
            self.resolve(self.writes[which % len(self.writes)], fate)

    # --- people ------------------------------------------------------------------------------------------------------

    def cap_changes(self, name: str, tenths: int) -> None:
        before = self.api.caps[name]
        assert before.spec is not None
        spec = msgspec.structs.replace(
            before.spec, watts=cap_watts(name, tenths), foreign_weights=foreign_weights(tenths)
        )
        metadata = msgspec.structs.replace(before.metadata, generation=before.metadata.generation + 1)
        self.api.put(replace(before, metadata=metadata, spec=spec))

    def emergency(self, cap: str, state: str) -> None:
        """An SRE declares an emergency ("Active") or ends it ("Ended"), by one write, as `flyball emergency` does."""
        before = self.api.brakes.get(cap)
        if state == "Ended" and (before is None or not before.active):
            return
        version = BrakeVersion() if before is None else before.version
        spec = PowerBrakeSpec(version.epoch, version.sequence + 1, 0, state)  # type: ignore[arg-type]
        assert self.api.brake(cap, spec, "" if before is None else before.metadata.resource_version) is not None

    def plan_changes(self, wishes: list[tuple[int, float]], near: bool) -> None:
        """A new plan is in force; `near`: the one after it is being made."""
        places = [(name, index) for name in NODES for index in range(GPUS)]
        self.plan = dict(zip(places, wishes, strict=True))
        self.plan_is_near = near

    def pod_comes_or_goes(self, name: str, index: int, seen: bool, gpu: int | None) -> None:
        """For the operator and for the hardware, which may know differently; the last pod is a foreign one."""
        (self.pods.add if seen else self.pods.discard)((name, index))
        held = self.agents[name].pods
        held.pop(index, None)
        if gpu is not None and gpu not in held.values():
            held[index] = gpu

    # --- the agents ----------------------------------------------------------------------------------------------------

    def tick(self, name: str, steps: int, reports: bool) -> None:
        agent, item = self.agents[name], self.api.gpu_nodes.get(name)
        # Who cannot report is behind with what it sees, too; what it sees then may be older than what it has seen before.
        seen = self.api.brakes if reports else self.api.brakes_as_of(4)
        agent.seconds = self.seconds
        agent.tick(None if item is None else item.grant, seen, int(self.seconds), steps)
        if not reports:
            return
        if not self._acknowledges_a_brake(name):
            self.api.reported(name, agent.status())
        item = self.api.acknowledged(name)
        if item is None or item.grant is None or item.acknowledged is None or not item.acknowledged_current:
            return
        if item.acknowledged.limits_milliwatts > item.grant.bound.limit_milliwatts:
            # A GPU that will not go down may draw all that it holds, which nobody has predicted.
            self.forget(name, expected_only=True)

    def _acknowledges_a_brake(self, name: str) -> bool:
        """Whether the small object says it at first, as `GpuNodeChannel` has it; the next report is the status again."""
        now, item = self.agents[name].acknowledged, self.api.acknowledged(name)
        last = None if item is None else item.acknowledged
        if now is None or last is None or (now.version, now.digest) != (last.version, last.digest):
            return False
        if (now.bound_milliwatts or 0) >= (
            last.bound_milliwatts or 0
        ) or now.limits_milliwatts > last.limits_milliwatts:
            return False
        self.api.put(BrakeAcknowledgement(ObjectMeta(name), now))
        return True

    def fault(self, name: str, fault: str, behind: int) -> None:
        agent = self.agents[name]
        if fault == "leader changes":
            # Nothing but the API's objects reaches the next leader, and perhaps an old copy of them; writes of the last
            # one that are under way may yet land.
            self.term = Term(self.term.epoch + 1, self.api, behind)
            self.found_enforced = {}
        elif fault == "labels change":
            item = self.api.gpu_nodes.get(name)
            if (
                item is not None and item.acknowledged is not None
            ):  # before its first grant it counts where its labels say
                self.unlabelled ^= {name}  # for all that its Node says, it is under the hall's cap only; its watts stay
        elif fault == "setter lies":
            agent.stuck.add(0)
        elif fault in ("reboot", "another hand raises a limit"):
            # Nobody's command; the caps over it are not enforced from the moment that the agent reports it.
            agent.seconds = self.seconds
            if fault == "reboot":
                agent.boot += 1
                agent.start()
            else:
                before = agent.gpus[0].before_drift_milliwatts or agent.gpus[0].held_milliwatts
                agent.put(0, GPU_LIMITS.max_milliwatts)
                agent.gpus[0] = agent.gpus[0].changed(before_drift_milliwatts=before)
            if name in self.api.gpu_nodes:
                self.api.reboots.append(len(self.api.log))
                self.api.reported(name, agent.status())
            self.forget(name)
            self.found_enforced = {}  # the leader has yet to see it
        else:
            agent.lease_valid = fault == "lease is renewed"

    def forget(self, name: str, *, expected_only: bool = False) -> None:
        """Nobody's command lets the caps over this node be passed."""
        for cap, nodes in UNDER.items():
            if name in nodes and (not expected_only or self.is_expected(cap)):
                self.holds[cap] = False
                self.void_claims.add(cap)

    def claims_enforced(self, cap: str) -> bool:
        """Whether the cap's status says Enforced."""
        return any(item.type == "Enforced" and item.is_true for item in self.api.caps[cap].status.conditions)

    # --- what must hold -------------------------------------------------------------------------------------------------

    def is_expected(self, name: str) -> bool:
        spec = self.api.caps[name].spec
        return spec is not None and spec.expected

    def may_draw(self, cap: str) -> int:
        """The sum under a cap, with every grant that may yet land."""
        total = 0
        for name in UNDER[cap]:
            bound = self.api.committed(name)
            item = self.api.gpu_nodes.get(name)
            version = None if item is None else item.metadata.resource_version
            for write in self.writes:
                if isinstance(write, Write) and write.node == name and write.replaced == version:
                    bound = bound | write.grant.committed
            total += bound.expected_milliwatts if self.is_expected(cap) else bound.limit_milliwatts
        return total

    def _no_node_holds_more_than_it_may_draw(self) -> None:
        for name, agent in self.agents.items():
            assert agent.limits_milliwatts <= self.api.committed(name).limit_milliwatts, name

    def _a_cap_that_holds_goes_on_holding(self) -> None:
        for name, cap in self.term.caps.items():
            if name not in self.unreadable and cap.spec is not None and cap.spec.watts is not None:
                if self.known_watts.get(name) != cap.spec.watts:
                    self.holds[name] = False
                self.known_watts[name] = cap.spec.watts
            budget = (self.known_watts.get(name, 0) - OVERHEAD_WATTS[name]) * 1000
            within = self.may_draw(name) <= budget
            assert within or not self.holds.get(name), f"{name}: {self.may_draw(name)} mW of {budget} mW"
            # A leader that counts a grant which is lost, but might have arrived, may go on counting it.
            self.holds[name] = within and self.found_enforced.get(name, False)

    def _an_enforced_cap_is_kept_by_the_hardware(self) -> None:
        for name, cap in self.api.caps.items():
            if not self.claims_enforced(name) or name in self.void_claims or self.is_expected(name):
                continue
            watts = cap.status.effective_watts
            assert watts is not None
            drawn = sum(self.agents[node].limits_milliwatts for node in UNDER[name])
            assert drawn <= (watts - OVERHEAD_WATTS[name]) * 1000, name

    # --- and at the end -------------------------------------------------------------------------------------------------

    def comes_to_rest(self) -> None:
        """Once the faults cease everything comes to rest, and what can be met is enforced."""
        self.plan_is_near = False
        for agent in self.agents.values():
            agent.stuck.clear()
            agent.lease_valid = True
            agent.pods = {index: index for index in range(GPUS) if (agent.name, index) in self.pods}
        for write in list(self.writes):
            self.resolve(write, "lost")
        for selector in SELECTORS:
            self.emergency(selector, "Ended")
        for _ in range(14):
            self.clean_round()
            self.check()
        self.term.deliver(len(self.api.log))
        state = self.term.controller.observe(self.cluster(), NOW + timedelta(seconds=self.seconds), self.seconds)
        for cap in state.caps.states:
            # Jobs are not paused here: at the least, every GPU draws its smallest limit.
            least = of_nodes(least_bound(state.nodes[name], NO_RULES).limit_milliwatts for name in cap.nodes)
            assert cap.enforced or cap.budget().budget_milliwatts < least, cap.name
        for name in NODES:
            item = self.api.gpu_nodes[name]
            assert item.acknowledged_current, name
            assert item.grant is not None
            assert item.grant.epoch == self.term.epoch
            assert item.braked_milliwatts is None, name

    def check(self) -> None:
        """What must hold after every action."""
        self._no_node_holds_more_than_it_may_draw()
        self._a_cap_that_holds_goes_on_holding()
        self._an_enforced_cap_is_kept_by_the_hardware()
