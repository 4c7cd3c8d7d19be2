"""Bounds, limits and readings of plain figures, for tests that write many of them.

The types that keep one GPU's milliwatts apart from a node's are given here once; what a test compares with is of plain
integers, since both are integers at run time.
"""

from __future__ import annotations

from flyball_agent.gpu.gpu import GpuLimits, PowerLimitReading
from flyball_api.grant import PowerBound
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts


def power_bound(limits: int, expected: int | None = None) -> PowerBound:
    """What several GPUs may draw together, in milliwatts: by their limits, and as predicted (else the same)."""
    return PowerBound(NodeMilliwatts(limits), NodeMilliwatts(limits if expected is None else expected))


def limit_reading(requested: int, enforced: int | None = None) -> PowerLimitReading:
    """One GPU's limit as its driver reports it, in milliwatts: as requested, and as enforced (else the same)."""
    return PowerLimitReading(MilliwattsPerGpu(requested), MilliwattsPerGpu(requested if enforced is None else enforced))


def gpu_limits(smallest: int, largest: int, default: int, clocks: tuple[int, ...] = ()) -> GpuLimits:
    """What a GPU can be set to: power limits in milliwatts, clocks in megahertz."""
    return GpuLimits(MilliwattsPerGpu(smallest), MilliwattsPerGpu(largest), MilliwattsPerGpu(default), clocks)
