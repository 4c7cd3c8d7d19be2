"""Bounds of a job on clocks and power limits that no GPU of the cluster can take: said, not bent in silence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flyball_api.energy_aware_job import EnergyAwareJob
from flyball_api.values.units import MILLIWATTS_PER_WATT

from flyball_operator.power.nodes.info import NodeInfo


@dataclass(frozen=True, slots=True)
class GpuRanges:
    """What the cluster's GPUs can be set to: the lowest and highest clock, the smallest power limit in watts."""

    lowest_megahertz: int
    highest_megahertz: int
    smallest_watts: float


def gpu_ranges(nodes: Iterable[NodeInfo]) -> GpuRanges | None:
    """The ranges over all GPUs that are known; None where none is."""
    known = [info for info in nodes if info.gpu_model is not None]
    models = {info.gpu_model for info in known if info.gpu_model is not None}
    if not models:
        return None
    return GpuRanges(
        min(min(model.clocks_megahertz) for model in models),
        max(max(model.clocks_megahertz) for model in models),
        min((info.min_limit_milliwatts for info in known if info.min_limit_milliwatts), default=0)
        / MILLIWATTS_PER_WATT,
    )


def bounds_beyond(job: EnergyAwareJob, ranges: GpuRanges | None) -> str:
    """Which of a job's bounds no GPU can take, and what is used instead; empty where all can be kept."""
    if ranges is None:
        return ""
    least_clock, most_clock = job.spec.clocks.min_megahertz, job.spec.clocks.max_megahertz
    watts, found = job.spec.power_limit.max_watts, []
    if least_clock is not None and least_clock > ranges.highest_megahertz:
        found.append(f"clocks.minMegahertz {least_clock} is above {ranges.highest_megahertz} MHz, the highest there is")
    if most_clock is not None and most_clock < ranges.lowest_megahertz:
        found.append(f"clocks.maxMegahertz {most_clock} is below {ranges.lowest_megahertz} MHz, the lowest there is")
    if watts is not None and watts < ranges.smallest_watts:
        found.append(f"powerLimit.maxWatts {watts} is below {ranges.smallest_watts:.0f} W, the smallest there is")
    return f"{'; '.join(found)}: that is used instead" if found else ""
