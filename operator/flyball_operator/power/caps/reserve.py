"""What a cap holds back for nodes that jump to their largest limits before anybody can know: `PowerCap.spec.reserveNodes`.

A node that boots, or whose driver is loaded anew, draws what its defaults allow from that moment on; the first sign of it
comes seconds later (docs/power-safety.md, "What is not promised"). Who reserves k nodes holds back, at every moment, the
largest k distances from what a node may draw to its largest limits.

So what is held back follows from what is granted, and has to be reckoned beside it: from what nodes are to draw wherever
grants are decided on. Were it taken from what they may draw at that moment, grants would follow it and it them, for ever.
A raise shortens a distance and a cut frees what it lengthens one by; so no cut makes the sum of both pass the cap.
"""

from __future__ import annotations

from collections.abc import Mapping

from flyball_operator.power.bound import NO_RESERVE, JumpReserve
from flyball_operator.power.nodes.info import NodeInfo


def reserve_under(under: Mapping[str, NodeInfo], nodes: int) -> JumpReserve:
    """The reserve of so many nodes for a cap over the nodes `under`.

    For a node whose proof is void already it is in use: the node counts at its largest limits, and is one of them.
    """
    if not nodes:
        return NO_RESERVE
    largest = {name: info.largest_milliwatts for name, info in under.items() if not info.proof_void}
    return JumpReserve(max(0, nodes - (len(under) - len(largest))), largest)
