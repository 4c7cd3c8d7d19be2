"""Zeus (NSDI '23): the power limit of a job, by energy and time.

`power_limit` has selectors over measured limits, `profiler` the slice profiler that measures them during training. The
batch size of a job that recurs is the operator's to choose, and so is in `flyball_planner.recurrences`.
"""

from flyball_frontiers.zeus.power_limit import (
    LeastCost,
    LeastEnergy,
    LeastEnergyWithin,
    LeastTime,
    PowerLimitMeasurement,
    Selector,
    WouldSave,
    power_limit_frontier,
    would_save,
)
from flyball_frontiers.zeus.profiler import Phase, Reading, SliceProfiler

__all__ = [
    "LeastCost",
    "LeastEnergy",
    "LeastEnergyWithin",
    "LeastTime",
    "Phase",
    "PowerLimitMeasurement",
    "Reading",
    "Selector",
    "SliceProfiler",
    "WouldSave",
    "power_limit_frontier",
    "would_save",
]
