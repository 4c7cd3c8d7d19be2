"""Watts and milliwatts: the types that keep one GPU's apart from a node's, and the only roundings between the two units.

People and the planner count in watts, the API and the driver in whole milliwatts. What is allowed is rounded down and what
is held is rounded up, so that no sum of rounded figures passes the cap that the exact ones kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NewType

MILLIWATTS_PER_WATT = 1000
MILLIJOULES_PER_JOULE = 1000
MILLIJOULES_PER_KILOJOULE = 1_000_000
JOULES_PER_KILOJOULE = 1000
# Sums and shares of watts that are whole but for the error of floating point are whole.
WATT_TOLERANCE = 1e-6

# To a type checker each is an int of its own kind: one GPU's milliwatts are never added to, taken from or compared with a
# node's. A plain int, such as a difference that has been worked out, goes with both. At run time both are ints.
if TYPE_CHECKING:

    class MilliwattsPerGpu(int):
        """What one GPU may draw or draws, or the limit of each of several."""

        def __add__(self, other: MilliwattsPerGpu) -> MilliwattsPerGpu: ...  # type: ignore[override]
        def __radd__(self, other: MilliwattsPerGpu) -> MilliwattsPerGpu: ...  # type: ignore[override]
        def __sub__(self, other: MilliwattsPerGpu) -> MilliwattsPerGpu: ...  # type: ignore[override]
        def __rsub__(self, other: MilliwattsPerGpu) -> MilliwattsPerGpu: ...  # type: ignore[override]
        def __lt__(self, other: MilliwattsPerGpu) -> bool: ...  # type: ignore[override]
        def __le__(self, other: MilliwattsPerGpu) -> bool: ...  # type: ignore[override]
        def __gt__(self, other: MilliwattsPerGpu) -> bool: ...  # type: ignore[override]
        def __ge__(self, other: MilliwattsPerGpu) -> bool: ...  # type: ignore[override]

    class NodeMilliwatts(int):
        """What several GPUs may draw or draw together: a job's on one node, a node's, or those of many nodes."""

        def __add__(self, other: NodeMilliwatts) -> NodeMilliwatts: ...  # type: ignore[override]
        def __radd__(self, other: NodeMilliwatts) -> NodeMilliwatts: ...  # type: ignore[override]
        def __sub__(self, other: NodeMilliwatts) -> NodeMilliwatts: ...  # type: ignore[override]
        def __rsub__(self, other: NodeMilliwatts) -> NodeMilliwatts: ...  # type: ignore[override]
        def __lt__(self, other: NodeMilliwatts) -> bool: ...  # type: ignore[override]
        def __le__(self, other: NodeMilliwatts) -> bool: ...  # type: ignore[override]
        def __gt__(self, other: NodeMilliwatts) -> bool: ...  # type: ignore[override]
        def __ge__(self, other: NodeMilliwatts) -> bool: ...  # type: ignore[override]

else:
    MilliwattsPerGpu = NewType("MilliwattsPerGpu", int)
    NodeMilliwatts = NewType("NodeMilliwatts", int)


def node_milliwatts(per_gpu: MilliwattsPerGpu, gpus: int) -> NodeMilliwatts:
    """What `gpus` GPUs come to at `per_gpu` each."""
    return NodeMilliwatts(per_gpu * gpus)


def of_gpus(each: Iterable[MilliwattsPerGpu]) -> NodeMilliwatts:
    """What several GPUs come to together."""
    return NodeMilliwatts(sum(map(int, each)))


def of_nodes(parts: Iterable[NodeMilliwatts]) -> NodeMilliwatts:
    """What several nodes, or parts of one, come to together."""
    return NodeMilliwatts(sum(map(int, parts)))


def in_whole_watts(milliwatts: MilliwattsPerGpu) -> MilliwattsPerGpu:
    """A limit rounded down to the whole watts that agents set."""
    return MilliwattsPerGpu(milliwatts // MILLIWATTS_PER_WATT * MILLIWATTS_PER_WATT)


def allowed_milliwatts(watts: float) -> int:
    """Watts that something may draw in whole milliwatts, rounded down."""
    return math.floor((watts + WATT_TOLERANCE) * MILLIWATTS_PER_WATT)


def held_milliwatts(watts: float) -> int:
    """Watts that something may already draw in whole milliwatts, rounded up."""
    return math.ceil((watts - WATT_TOLERANCE) * MILLIWATTS_PER_WATT)


def allowed_watts(watts: float) -> int:
    """Watts that something may draw in whole watts, rounded down, as statuses have them."""
    return math.floor(watts + WATT_TOLERANCE)


def held_watts(watts: float) -> int:
    """Watts that something may already draw in whole watts, rounded up, as statuses have them."""
    return math.ceil(watts - WATT_TOLERANCE)
