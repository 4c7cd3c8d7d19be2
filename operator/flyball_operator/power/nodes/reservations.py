"""What the GPUs are reserved at that no plan commands: those of pods outside Flyball, lost ones, and idle ones.

The one place for these rules: the targets of grants, the least that a cap can be brought to and the planner's snapshot all
take their figures from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from flyball_api.grant import PowerBound
from flyball_api.power_cap import ForeignWeight, PowerCapSpec
from flyball_api.values.units import (
    MilliwattsPerGpu,
    NodeMilliwatts,
    held_milliwatts,
    in_whole_watts,
    node_milliwatts,
    of_nodes,
)
from flyball_api.workloads import PERMILLE
from msgspec import Struct
from msgspec.structs import replace

from flyball_operator.power.nodes.failsafe import MINIMUM, Failsafe
from flyball_operator.power.nodes.info import ForeignPod, NodeInfo


class ForeignWeights(Struct, frozen=True):
    """What each GPU of a pod outside Flyball weighs under one cap, in thousandths of any other GPU."""

    of_namespaces: Mapping[str, ForeignWeight] = MappingProxyType({})

    @classmethod
    def given_by(cls, spec: PowerCapSpec) -> ForeignWeights:
        """The weights that a cap gives."""
        return cls({each.namespace: each for each in spec.foreign_weights})

    def of(self, pod: ForeignPod) -> int:
        """The weight of each of the pod's GPUs: its namespace's, or what less its labels give it or it asks for itself."""
        given = self.of_namespaces.get(pod.namespace)
        if given is None:
            return max(1, pod.permille)
        labels = dict(pod.labels)
        weight = min([given.permille, *(each.permille for each in given.pods if each.selector.matches(labels))])
        return max(1, weight * pod.permille // PERMILLE)


NO_WEIGHTS = ForeignWeights()


class ForeignShare(Struct, frozen=True):
    """What a cap comes to for each of its GPUs of weight 1000, and what foreign pods' GPUs weigh under it."""

    milliwatts: MilliwattsPerGpu
    weights: ForeignWeights = NO_WEIGHTS

    def of(self, pod: ForeignPod | None) -> MilliwattsPerGpu:
        """What it comes to for each GPU of a foreign pod, in whole watts; None: one of weight 1000."""
        weight = PERMILLE if pod is None else self.weights.of(pod)
        return in_whole_watts(MilliwattsPerGpu(self.milliwatts * weight // PERMILLE))


class NodeRules(Struct, frozen=True):
    """What the caps over one node ask of its GPUs beside their watts; `emergency`: every GPU at its smallest limit.

    Where foreign pods are limited, each of their GPUs gets the least of `foreign_shares`, at least its smallest limit.
    """

    limit_foreign_pods: bool = False
    foreign_shares: tuple[ForeignShare, ...] = ()
    failsafe: Failsafe = MINIMUM
    emergency: bool = False

    @property
    def lowers_foreign_pods(self) -> bool:
        """GPUs of pods outside Flyball get less than their default limit."""
        return self.limit_foreign_pods or self.emergency

    def limiting_foreign_pods(self, share: ForeignShare) -> NodeRules:
        """These rules with at most this share for each GPU of a foreign pod."""
        return replace(self, foreign_shares=(*self.foreign_shares, share))


NO_RULES = NodeRules()


def node_rules(
    caps: Iterable[tuple[PowerCapSpec, frozenset[str]]], in_emergency: Iterable[str] = ()
) -> dict[str, NodeRules]:
    """What caps, each given with its nodes, together ask of every node under any of them: the strictest of each rule.

    `in_emergency` names the nodes that an emergency is for.
    """
    rules: dict[str, NodeRules] = {}
    for spec, nodes in caps:
        for node in nodes:
            before = rules.get(node, NO_RULES)
            rules[node] = NodeRules(before.limit_foreign_pods or spec.foreign_pods == "Limit")
    for node in in_emergency:
        rules[node] = replace(rules.get(node, NO_RULES), emergency=True)
    return rules


def foreign_gpu_milliwatts(node: NodeInfo, rules: NodeRules, pod: ForeignPod | None = None) -> MilliwattsPerGpu:
    """What each GPU of a pod outside Flyball may draw: the default limit, unless a cap limits such pods.

    None: a pod of weight 1000.
    """
    if not rules.lowers_foreign_pods:
        return node.default_limit_milliwatts
    shares = () if rules.emergency else rules.foreign_shares
    share = min((share.of(pod) for share in shares), default=MilliwattsPerGpu(0))
    return max(node.min_limit_milliwatts, min(node.default_limit_milliwatts, share))


def lost_gpu_milliwatts(node: NodeInfo) -> MilliwattsPerGpu:
    """What each lost GPU may draw: its reset puts it back to its default limit, whatever was set before."""
    return node.default_limit_milliwatts


def reserved_milliwatts(node: NodeInfo, rules: NodeRules) -> NodeMilliwatts:
    """What the node's foreign and lost GPUs may draw together."""
    return NodeMilliwatts(foreign_milliwatts(node, rules) + node_milliwatts(lost_gpu_milliwatts(node), node.lost_gpus))


def foreign_milliwatts(node: NodeInfo, rules: NodeRules) -> NodeMilliwatts:
    """What the GPUs of pods outside Flyball may draw together."""
    return NodeMilliwatts(
        of_nodes(node_milliwatts(foreign_gpu_milliwatts(node, rules, pod), pod.gpus) for pod in node.foreign_pods)
    )


def idle_bound(node: NodeInfo, gpus: int) -> PowerBound:
    """What `gpus` GPUs without a pod may draw at the smallest limit, and what they are predicted to draw."""
    predicted = node.min_limit_milliwatts
    if node.gpu_model is not None:
        predicted = min(predicted, MilliwattsPerGpu(held_milliwatts(node.gpu_model.idle_power_watts)))
    return PowerBound(node_milliwatts(node.min_limit_milliwatts, gpus), node_milliwatts(predicted, gpus))


def least_bound(node: NodeInfo, rules: NodeRules) -> PowerBound:
    """The least that a node can be brought to; all that it may draw now while it cannot be commanded."""
    return resting_bound(node, replace(rules, foreign_shares=()))


def resting_bound(node: NodeInfo, rules: NodeRules) -> PowerBound:
    """What a node comes to with all of Flyball's pods at the smallest limit; all that it may draw now while it cannot be
    commanded."""
    if not node.commandable:
        return node.power.committed
    reserved = reserved_milliwatts(node, rules)
    ours = max(0, node.gpus - node.foreign_gpus - node.lost_gpus)
    return PowerBound(reserved, reserved) + idle_bound(node, ours)
