"""What each GPU of a pod outside Flyball may draw under a cap that limits such pods: as much as every other, no more.

The share is that of a cap divided by those of its GPUs that somebody has or wants, whatever is planned: so it follows the
cap at once, leaves room for the others at their smallest limits, and cannot be had more of by asking. GPUs that nobody
wants are at their smallest limits. Who writes the cap may give the pods of a namespace another weight, by which it is
divided, and those of them with some label a smaller one; every GPU that no foreign pod holds weighs 1000.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from flyball_api.grant import PowerBound
from flyball_api.power_cap import PowerCapSpec
from flyball_api.values.units import (
    MILLIWATTS_PER_WATT,
    MilliwattsPerGpu,
    NodeMilliwatts,
    in_whole_watts,
    node_milliwatts,
    of_nodes,
)
from flyball_api.workloads import PERMILLE
from msgspec.structs import replace

from flyball_operator.power.bound import CapBudget
from flyball_operator.power.nodes.info import NodeInfo
from flyball_operator.power.nodes.reservations import (
    NO_WEIGHTS,
    ForeignShare,
    ForeignWeights,
    NodeRules,
    lost_gpu_milliwatts,
)


class _Sharing(NamedTuple):
    """So many GPUs of one node, of one smallest limit and one weight."""

    node: str
    min_limit_milliwatts: MilliwattsPerGpu
    weight: int
    gpus: int

    def at(self, share: MilliwattsPerGpu) -> NodeMilliwatts:
        """What they have where a GPU of weight 1000 has so much."""
        return node_milliwatts(
            max(self.min_limit_milliwatts, MilliwattsPerGpu(share * self.weight // PERMILLE)), self.gpus
        )


def share_of_each_gpu(
    budget: CapBudget,
    nodes: Mapping[str, NodeInfo],
    weights: ForeignWeights = NO_WEIGHTS,
    wanted_gpus: int | None = None,
) -> ForeignShare:
    """The milliwatts, in whole watts, that each GPU under the cap could have at once; those that need more have more.

    Nodes that cannot be commanded keep what they may draw, lost GPUs what a reset gives them; the rest is divided. Jobs
    want `wanted_gpus` of the GPUs that no foreign pod holds (None: all of them).
    """
    kept: dict[str, NodeMilliwatts] = {}  # by node, what is not divided
    sharing: list[_Sharing] = []
    wanted = sum(info.gpus for info in nodes.values()) if wanted_gpus is None else wanted_gpus
    for info in (nodes[name] for name in sorted(budget.nodes) if name in nodes):
        if not info.commandable:
            kept[info.name] = budget.counted(info.power.committed)
            continue
        lost = node_milliwatts(lost_gpu_milliwatts(info), info.lost_gpus)
        # A foreign pod can hold a GPU that is lost: both count.
        others = max(info.gpus - info.lost_gpus - info.foreign_gpus, 0)
        theirs = min(others, wanted)
        wanted -= theirs
        resting = node_milliwatts(info.min_limit_milliwatts, others - theirs)
        kept[info.name] = budget.counted(PowerBound(lost, lost)) + resting
        sharing.append(_Sharing(info.name, info.min_limit_milliwatts, PERMILLE, theirs))
        sharing += [
            _Sharing(info.name, info.min_limit_milliwatts, weights.of(pod), pod.gpus) for pod in info.foreign_pods
        ]
    left = int(budget.budget_milliwatts - of_nodes(kept.values()))
    if budget.reserve.nodes:
        # The more is shared out, the less is held back for nodes that jump to their largest limits.
        watts = range(max(0, left) // MILLIWATTS_PER_WATT + 1)
        fitting = bisect_right(watts, left, key=lambda shared: _with_reserve(shared, kept, sharing, budget))
        left = (fitting - 1) * MILLIWATTS_PER_WATT
    return ForeignShare(in_whole_watts(_share(left, sharing)), weights)


def _with_reserve(watts: int, kept: Mapping[str, NodeMilliwatts], sharing: list[_Sharing], budget: CapBudget) -> int:
    """So many watts that are shared out and what is held back beside them, in milliwatts."""
    milliwatts, draws = watts * MILLIWATTS_PER_WATT, dict(kept)
    share = _share(milliwatts, sharing)
    for each in sharing:
        draws[each.node] = draws.get(each.node, NodeMilliwatts(0)) + each.at(share)
    return milliwatts + budget.reserve.of(draws.items())


def _share(left: int, sharing: list[_Sharing]) -> MilliwattsPerGpu:
    """What each GPU of weight 1000 has of so many milliwatts; those whose smallest limit is more have that."""
    share = MilliwattsPerGpu(0)
    while weight := sum(each.weight * each.gpus for each in sharing):
        share = MilliwattsPerGpu(max(0, left) * PERMILLE // weight)
        greedy = [each for each in sharing if each.min_limit_milliwatts * PERMILLE > share * each.weight]
        if not greedy:
            break
        left -= of_nodes(node_milliwatts(each.min_limit_milliwatts, each.gpus) for each in greedy)
        sharing = [each for each in sharing if each.min_limit_milliwatts * PERMILLE <= share * each.weight]
    return share


def with_foreign_shares(
    rules: Mapping[str, NodeRules],
    caps: Iterable[tuple[PowerCapSpec, CapBudget]],
    nodes: Mapping[str, NodeInfo],
    wanted_gpus: int | None = None,
) -> dict[str, NodeRules]:
    """The rules of each node with what each cap that limits foreign pods leaves to those that there are."""
    found = {name: replace(rule, foreign_shares=()) if rule.foreign_shares else rule for name, rule in rules.items()}
    for spec, budget in caps:
        under = [name for name in budget.nodes if name in nodes]
        if spec.foreign_pods == "Limit" and any(nodes[name].foreign_pods for name in under):
            share = share_of_each_gpu(budget, nodes, ForeignWeights.given_by(spec), wanted_gpus)
            found |= {name: found[name].limiting_foreign_pods(share) for name in under}
    return found
