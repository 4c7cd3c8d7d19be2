"""Watts and milliwatts: the types that keep one GPU's apart from a node's, and the only roundings between the two units.

People and the planner count in watts, the API and the driver in whole milliwatts. What is allowed is rounded down and what
is held is rounded up, so that no sum of rounded figures passes the cap that the exact ones kept.
"""

from __future__ import annotations

import math
from typing import NewType

MILLIWATTS_PER_WATT = 1000
MILLIJOULES_PER_JOULE = 1000
MILLIJOULES_PER_KILOJOULE = 1_000_000
JOULES_PER_KILOJOULE = 1000
# Sums and shares of watts that are whole but for the error of floating point are whole.
WATT_TOLERANCE = 1e-6

MilliwattsPerGpu = NewType("MilliwattsPerGpu", int)
"""What one GPU may draw or draws, or the limit of each of several."""

NodeMilliwatts = NewType("NodeMilliwatts", int)
"""What several GPUs may draw or draw together: a job's on one node, a node's, or those of many nodes."""


def node_milliwatts(per_gpu: MilliwattsPerGpu, gpus: int) -> NodeMilliwatts:
    """What `gpus` GPUs come to at `per_gpu` each."""
    return NodeMilliwatts(per_gpu * gpus)


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
