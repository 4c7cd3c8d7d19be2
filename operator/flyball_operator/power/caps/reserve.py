"""What a cap holds back for nodes that jump to their largest limits before anybody can know: `PowerCap.spec.reserveNodes`.

A node that boots, or whose driver is loaded anew, draws what its defaults allow from that moment on; the first sign of it
comes seconds later (docs/power-safety.md, "What is not promised"). Who reserves k nodes holds back, at every moment, the
largest k distances from what a node may draw to its largest limits.

A raise shortens a distance and a cut frees what it lengthens one by; so no grant makes the sum of both pass the cap.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from flyball_api.grant import PowerBound
from flyball_api.units import NodeMilliwatts

from flyball_operator.power.bound import CapBudget
from flyball_operator.power.nodes.info import NodeInfo


def reserve_of(cap: CapBudget, under: Mapping[str, NodeInfo], nodes: int) -> NodeMilliwatts:
    """What a cap over the nodes `under` holds back for so many of them, as the cap counts.

    For a node whose proof is void already the reserve is in use: it counts at its largest limits, and is one of them.
    """
    if not nodes:
        return NodeMilliwatts(0)
    in_use = sum(info.proof_void for info in under.values())
    distances = (
        cap.counted(PowerBound(info.max_limits_milliwatts, info.max_limits_milliwatts))
        - cap.counted(info.power.committed)
        for info in under.values()
        if not info.proof_void
    )
    return NodeMilliwatts(sum(heapq.nlargest(max(0, nodes - in_use), (max(0, distance) for distance in distances))))
