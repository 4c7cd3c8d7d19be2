"""Each GPU node as the operator knows it now: Kubernetes' facts, the agent's report, and the most that it may draw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from flyball_api.gpu_node import DriverSession, GpuNode
from flyball_api.grant import JobGrant, PowerBound
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts
from flyball_api.workloads import PERMILLE, Labels, NodeView, PodView
from flyball_planner.models.gpu import GpuModel
from msgspec import Struct
from msgspec.structs import replace

from flyball_operator.power.bound import NEVER, NodePower, acknowledges_another, committed_bound
from flyball_operator.power.nodes.gpu_facts import GpuFacts, KnownGpus


class ForeignPod(NamedTuple):
    """A pod outside Flyball and how many of its node's GPUs it holds; `permille`: what it asks for of their share, which
    a cap may give by its `labels`."""

    namespace: str
    name: str
    gpus: int
    permille: int = PERMILLE
    labels: Labels = ()


class NodeInfo(Struct, frozen=True):
    """One GPU node; `node` is None where only its GPUNode is left, `gpu_node` where it has none yet.

    `gpu_model` is None where nobody knows what its GPUs are: such a node is reserved at the largest limit known
    and never used. `lost_gpus` are those that its agent reports as unhealthy or does not see at all. `responsive` is False
    while a grant sent to it has gone unacknowledged for too long.

    `labels` are those of now, `former_labels` sets that it had before and still counts under (`memberships`).

    `doubt` says why the last acknowledgement may not be true any more (empty: it is believed); the node then counts at the
    largest limits of its GPUs, and `power_if_believed` is what it would count with otherwise.

    `min_limit_milliwatts` is the smallest limit that every one of its GPUs accepts (0 where nobody knows it), and
    `default_limit_milliwatts` the largest default limit of one of them. `max_limits_milliwatts` adds up the largest limits
    of all its GPUs: the node's share of a cap that is given as permille of the maximum. `largest_milliwatts` is the most
    that it may draw at any limit, by its agent's word too. `foreign_pods`, in the order of
    their names, hold `foreign_gpus` together.
    """

    name: str
    labels: Mapping[str, str]
    former_labels: tuple[Mapping[str, str], ...]
    node: NodeView | None
    gpu_node: GpuNode | None
    gpu_model: GpuModel | None
    gpus: int
    foreign_pods: tuple[ForeignPod, ...]
    lost_gpus: int
    power: NodePower
    power_if_believed: PowerBound
    doubt: str
    responsive: bool
    min_limit_milliwatts: MilliwattsPerGpu
    default_limit_milliwatts: MilliwattsPerGpu
    max_limits_milliwatts: NodeMilliwatts
    largest_milliwatts: NodeMilliwatts
    measured_milliwatts: NodeMilliwatts

    @property
    def foreign_gpus(self) -> int:
        """How many of its GPUs pods outside Flyball hold."""
        return sum([pod.gpus for pod in self.foreign_pods])

    @property
    def acknowledged(self) -> bool:
        """The agent has acknowledged a grant since the last boot and driver load, so that the limits are known."""
        return self.gpu_node is not None and self.gpu_node.acknowledged_since_driver_load

    @property
    def named_caps(self) -> tuple[str, ...]:
        """The caps that the grant which stands names."""
        return () if self.power.grant is None else tuple(cap.name for cap in self.power.grant.caps)

    @property
    def follows_brakes(self) -> bool:
        """Whether the node's agent lowers limits by PowerBrakes.

        Only such an agent reports the bound that it holds limits to, which shows the watts that a brake has freed.
        """
        acknowledged = None if self.gpu_node is None else self.gpu_node.acknowledged
        return acknowledged is not None and acknowledged.bound_milliwatts is not None

    @property
    def proof_void(self) -> bool:
        """What its agent acknowledged once is true no more, or may not be."""
        acknowledged = None if self.gpu_node is None else self.gpu_node.acknowledged
        return acknowledged is not None and (self.doubt != "" or not self.acknowledged)

    @property
    def is_closed(self) -> bool:
        """Its startup taint keeps pods away."""
        return self.node is not None and self.node.startup_taint

    @property
    def believed(self) -> bool:
        """What its GPUs may draw is what its agent acknowledged and was granted since, and it is known what they take."""
        return self.acknowledged and not self.doubt and self.gpu_model is not None

    @property
    def commandable(self) -> bool:
        """Grants sent there take effect: it may be planned with."""
        return self.believed and self.responsive

    @property
    def late(self) -> bool:
        """Whether a grant sent there will probably take effect, but not within a known time."""
        return self.believed and not self.responsive

    @property
    def schedulable(self) -> bool:
        """Pods may be placed there."""
        return self.commandable and self._open

    @property
    def _open(self) -> bool:
        return self.node is not None and self.node.gpus > 0 and not self.node.cordoned

    def granted(self, pod_name: str, job_uid: str) -> JobGrant | None:
        """The entry of a job's pod in the grant that stands; None where it has none."""
        return None if self.power.grant is None else self.power.grant.entry_of(pod_name, job_uid)

    def expects(self, pod: PodView) -> bool:
        """Whether a pod that is placed there may come: also where the node has turned late since it was granted the pod."""
        return self.schedulable or (self.late and self._open and self.granted(pod.name, pod.job_uid) is not None)


class _Facts(NamedTuple):
    """All that a NodeInfo is made of."""

    node: NodeView | None
    gpu_node: GpuNode | None
    gpus: GpuFacts
    foreign_pods: tuple[ForeignPod, ...]
    responsive: bool
    silent_seconds: float | None

    def same(self, other: _Facts) -> bool:
        """Whether both are the same objects and figures: what informers hold is made anew only where it has changed."""
        return (
            self.node is other.node
            and self.gpu_node is other.gpu_node
            and self.gpus is other.gpus
            and self[3:] == other[3:]
        )


NodeMemory = dict[str, tuple[_Facts, NodeInfo]]


def read_nodes(
    nodes: Iterable[NodeView],
    gpu_nodes: Mapping[str, GpuNode],
    pods: Iterable[PodView],
    unresponsive: frozenset[str],
    silent: Mapping[str, float] | None = None,
    known: KnownGpus | None = None,
    memory: NodeMemory | None = None,
) -> dict[str, NodeInfo]:
    """Every Node that has GPUs or may have some, and every GPUNode, keyed and ordered by name.

    A node that vanished stays committed until somebody releases its GPUNode: that an API object is gone proves nothing
    about the hardware. `silent` has the nodes whose agents have not reported for too long, and for how many seconds.
    `known` is what is known of GPUs beside what they report now, and remembers it of each node; None: the catalogue.
    `memory` keeps what was read, so that only nodes of which something has changed are read anew the next time.
    """
    known = KnownGpus() if known is None else known
    by_name = {node.name: node for node in nodes if node.gpus or node.hidden_gpus or node.name in gpu_nodes}
    sharing = {
        name for name, node in by_name.items() if node.hidden_gpus and name in gpu_nodes and gpu_nodes[name].gpus
    }
    foreign: dict[str, list[ForeignPod]] = {}
    ours: dict[str, set[tuple[str, str]]] = {name: set() for name in sharing}
    for pod in pods:
        if pod.job_uid:
            if pod.node in sharing:
                ours[pod.node].add((pod.namespace, pod.name))
        elif pod.holds_or_wants and pod.node and not pod.finished:
            held = ForeignPod(pod.namespace, pod.name, pod.gpus, pod.power_permille, pod.labels)
            foreign.setdefault(pod.node, []).append(held)
    for name in sharing:
        foreign[name] = _by_boards(by_name[name], gpu_nodes[name], foreign.get(name, ()), ours[name])
    silent = silent or {}
    names = sorted(by_name.keys() | gpu_nodes.keys())
    known.forget_all_but(names)
    memory = {} if memory is None else memory
    for name in memory.keys() - names:
        del memory[name]
    infos: dict[str, NodeInfo] = {}
    for name in names:
        node, gpu_node = by_name.get(name), gpu_nodes.get(name)
        gpus = known.facts_of(name, node, gpu_node)
        facts = _Facts(
            node, gpu_node, gpus, tuple(sorted(foreign.get(name, ()))), name not in unresponsive, silent.get(name)
        )
        before = memory.get(name)
        if before is None or not before[0].same(facts):
            before = memory[name] = facts, _node_info(name, facts)
        infos[name] = before[1]
    return infos


def _node_info(name: str, read: _Facts) -> NodeInfo:
    node, gpu_node, facts, foreign_pods, responsive, silent_seconds = read
    power = _node_power(gpu_node, facts)
    believed = power.committed
    doubt = _doubt(node, gpu_node, silent_seconds)
    labels = node.labels if node is not None else gpu_node.labels if gpu_node is not None else {}
    if doubt:
        power = replace(
            power, committed=power.committed | PowerBound(facts.largest_milliwatts, facts.largest_milliwatts)
        )
    return NodeInfo(
        name=name,
        labels=labels,
        former_labels=former_labels(labels, gpu_node),
        node=node,
        gpu_node=gpu_node,
        gpu_model=facts.model,
        gpus=facts.gpus,
        foreign_pods=_no_more_than(foreign_pods, facts.gpus),
        lost_gpus=facts.lost_gpus,
        power=power,
        power_if_believed=believed,
        doubt=doubt,
        responsive=responsive,
        min_limit_milliwatts=facts.min_limit_milliwatts,
        default_limit_milliwatts=facts.default_limit_milliwatts,
        max_limits_milliwatts=facts.max_limits_milliwatts,
        largest_milliwatts=facts.largest_milliwatts,
        measured_milliwatts=facts.measured_milliwatts,
    )


def _by_boards(
    node: NodeView, gpu_node: GpuNode, pods: Iterable[ForeignPod], ours: Collection[tuple[str, str]]
) -> list[ForeignPod]:
    """The foreign pods of a node that hands out parts of its GPUs, with the boards that its agent sees them on.

    What they ask for is slices or instances, of which nobody but the agent knows the boards. Beside those, pods may hold
    whole GPUs, which count from when they are bound.
    """
    found = {(pod.namespace, pod.name): pod for pod in pods}
    held = {key: pod for key, pod in found.items() if node.gpus}
    on_boards = Counter((report.pod.namespace, report.pod.name) for report in gpu_node.gpus if report.pod is not None)
    theirs = {key: found.get(key, ForeignPod(*key, gpus=0)) for key in on_boards if key not in ours}
    # Who asks for little must take nothing from others on its board, and which of these are is not known here.
    wish = max(
        (pod.permille for pod in (found | theirs).values() if not (node.gpus and pod.gpus)),
        default=PERMILLE,
    )
    for key, known in theirs.items():
        whole = known.gpus if node.gpus else 0
        held[key] = known._replace(gpus=max(on_boards[key], whole), permille=known.permille if whole else wish)
    return list(held.values())


def _no_more_than(pods: Iterable[ForeignPod], gpus: int) -> tuple[ForeignPod, ...]:
    """The pods with no more GPUs together than a node has: they may ask for what no node has."""
    fitting = []
    for pod in pods:
        held = min(pod.gpus, gpus)
        gpus -= held
        if held:
            fitting.append(pod._replace(gpus=held))
    return tuple(fitting)


def former_labels(labels: Mapping[str, str], gpu_node: GpuNode | None) -> tuple[Mapping[str, str], ...]:
    """The sets of labels, other than these, under which a node was granted what it may still draw."""
    if gpu_node is None:
        return ()
    found: list[Mapping[str, str]] = []
    for former in (gpu_node.labels, *gpu_node.former_labels):
        if former != labels and former not in found:
            found.append(former)
    return tuple(found)


def _node_power(gpu_node: GpuNode | None, facts: GpuFacts) -> NodePower:
    largest, unseen = facts.largest_milliwatts, facts.unseen_milliwatts
    if gpu_node is None:
        return NodePower(None, committed_bound(None, None, DriverSession(), largest, unseen))
    acknowledged = gpu_node.acknowledged
    return NodePower(
        gpu_node.grant,
        committed_bound(
            gpu_node.grant,
            acknowledged,
            gpu_node.session,
            largest,
            unseen,
            min(gpu_node.read_back_since_milliwatts, largest),
        ),
        NEVER if acknowledged is None else acknowledged.version,
        braked_milliwatts=gpu_node.braked_milliwatts,
        unsettled=acknowledges_another(gpu_node.grant, acknowledged),
    )


def sign_of_a_boot(node: NodeView | None, gpu_node: GpuNode) -> str:
    """What Kubernetes shows of a boot since the agent's last acknowledgement; empty where it shows none.

    It shows within seconds, whatever becomes of the agent.
    """
    if gpu_node.acknowledged is None:
        return ""  # there is nothing to doubt
    if node is None:
        return "its Node is gone, and with it every sign of a boot"
    if node.boot_id and node.boot_id != gpu_node.acknowledged.boot_id:
        return "it has booted since its agent's last acknowledgement"
    return "" if node.ready else "its Node is not ready"


def _doubt(node: NodeView | None, gpu_node: GpuNode | None, silent_seconds: float | None) -> str:
    """Why what the agent acknowledged last may not be true any more; empty where nothing speaks against it."""
    if gpu_node is None or gpu_node.acknowledged is None:
        return ""
    sign = sign_of_a_boot(node, gpu_node)
    if not sign and silent_seconds is not None:
        return f"its agent has reported nothing for {silent_seconds:.0f} s"
    return sign
