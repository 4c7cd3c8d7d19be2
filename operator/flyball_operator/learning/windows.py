"""The time and energy of a job's iterations, from the agents' reports that can be trusted to measure them.

A window counts once every node of a job's incarnation has reported a new one, at a clock that has settled, after the
warm-up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from flyball_api.gpu_node import PodReport
from flyball_api.workloads import IncarnationView
from flyball_planner.fitting.fit import Observation
from flyball_planner.models.gpu import GpuModel

from flyball_operator.learning.profiles import Point, Summary
from flyball_operator.power.nodes.info import NodeInfo

# Caches, allocators and boost clocks settle in a job's first windows.
WARM_UP_WINDOWS = 2
# A window whose clock is further than this from the one before spans a change of clocks, and measures neither.
SETTLED_MEGAHERTZ = 30
# Bounds of what a window can be; drivers have reported kilowatts for a 400 W GPU.
SHORTEST_SECONDS, LONGEST_SECONDS = 1e-4, 3600.0
LEAST_GPU_WATTS, MOST_OF_MAX_LIMIT = 1.0, 1.2
# Windows average noise away, not the model's own error: more of them do not weigh more.
MAX_FIT_WEIGHT = 10


@dataclass(frozen=True, slots=True)
class Window:
    """One window of a whole job: seconds of an iteration, joules of all its GPUs, where it was measured and on what."""

    point: Point
    gpu_model: GpuModel
    seconds: float
    joules: float


def read_window(
    reports: Mapping[str, PodReport], incarnation: IncarnationView, nodes: Mapping[str, NodeInfo]
) -> Window | None:
    """The window that an incarnation's nodes have reported together; None where it is not whole, mixed, or absurd.

    The slowest node sets the time, all nodes the energy, and the clock is their mean, at the nearest one supported.
    """
    parts = [reports.get(node) for node, _ in incarnation.nodes]
    present = [part for part in parts if part is not None and not part.ended and part.last_report_time is not None]
    models = {None if (info := nodes.get(node)) is None else info.gpu_model for node, _ in incarnation.nodes}
    model = models.pop() if len(models) == 1 else None
    if model is None or not present or len(present) != len(parts):
        return None
    gpus = sum(part.gpus for part in present)
    batches = {part.local_batch_size for part in present}
    if gpus != incarnation.gpus or len(batches) != 1 or min(batches) < 1 or min(p.clock_megahertz for p in present) < 1:
        return None
    seconds = max(part.microseconds_per_iteration for part in present) / 1e6
    joules = sum(part.millijoules_per_iteration for part in present) / 1e3
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        return None
    if not LEAST_GPU_WATTS <= joules / seconds / gpus <= MOST_OF_MAX_LIMIT * model.max_power_limit_watts:
        return None
    clock = nearest_clock(model.clocks_megahertz, sum(part.clock_megahertz * part.gpus for part in present) / gpus)
    return Window(Point(gpus, len(present), batches.pop(), clock), model, seconds, joules)


def nearest_clock(clocks: Sequence[int], megahertz: float) -> int:
    index = bisect_left(clocks, megahertz)
    return min(clocks[max(0, index - 1) : index + 1], key=lambda clock: abs(clock - megahertz))


@dataclass(slots=True)
class Track:
    """How far one incarnation's reports have been taken in."""

    incarnation: int
    reported: dict[str, datetime | None] = field(default_factory=dict)
    windows: int = 0
    clock_megahertz: int = 0
    last: Window | None = None  # None: it measures nothing

    def take_in(self, window: Window) -> bool:
        """Take in the next window; True where it measures something: after the warm-up, at a clock like the last one's."""
        settled = abs(window.point.clock_megahertz - self.clock_megahertz) <= SETTLED_MEGAHERTZ
        self.clock_megahertz = window.point.clock_megahertz
        self.windows += 1
        taken = settled and self.windows > WARM_UP_WINDOWS
        self.last = window if taken else None
        return taken


def observations(points: Mapping[Point, Summary]) -> list[Observation]:
    """What the planner's fitting takes."""
    return [
        Observation(
            point.gpus,
            point.nodes,
            point.local_batch_size,
            point.clock_megahertz,
            summary.seconds,
            summary.joules if summary.joules > 0 else None,
            min(summary.samples, MAX_FIT_WEIGHT),
        )
        for point, summary in points.items()
    ]
