"""What each GPU of a pod outside Flyball may draw under a cap that limits such pods: as much as every other, no more.

The share is that of a cap divided by its GPUs, whatever they do and whatever is planned: so it follows the cap at once,
leaves room for the others at their smallest limits, and cannot be had more of by asking.
"""

from __future__ import annotations

from collections.abc import Mapping

from flyball_api.grant import PowerBound
from flyball_api.units import MILLIWATTS_PER_WATT, MilliwattsPerGpu, node_milliwatts

from flyball_operator.power.bound import CapBudget
from flyball_operator.power.node_info import NodeInfo
from flyball_operator.power.reservations import lost_gpu_milliwatts


def share_of_each_gpu(budget: CapBudget, nodes: Mapping[str, NodeInfo]) -> MilliwattsPerGpu:
    """The milliwatts, in whole watts, that each GPU under the cap could have at once; those that need more have more.

    Nodes that cannot be commanded keep what they may draw, lost GPUs what a reset gives them; the rest is divided.
    """
    left = int(budget.budget_milliwatts)
    sharing: list[tuple[MilliwattsPerGpu, int]] = []  # the smallest limit of a node's GPUs, and how many they are
    for info in (nodes[name] for name in budget.nodes if name in nodes):
        if not info.commandable:
            left -= budget.counted(info.power.committed)
            continue
        lost = node_milliwatts(lost_gpu_milliwatts(info), info.lost_gpus)
        left -= budget.counted(PowerBound(lost, lost))
        # A foreign pod can hold a GPU that is lost: both count.
        sharing.append((info.min_limit_milliwatts, max(info.gpus - info.lost_gpus, info.foreign_gpus)))
    share = 0
    while sharing and (gpus := sum(count for _, count in sharing)):
        share = max(0, left) // gpus
        greedy = [(smallest, count) for smallest, count in sharing if smallest > share]
        if not greedy:
            break
        left -= sum(smallest * count for smallest, count in greedy)
        sharing = [(smallest, count) for smallest, count in sharing if smallest <= share]
    return MilliwattsPerGpu(share // MILLIWATTS_PER_WATT * MILLIWATTS_PER_WATT)
