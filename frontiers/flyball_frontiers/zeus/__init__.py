"""Zeus (NSDI '23): the power limit of a job, and the batch size of a job that recurs, by energy and time.

- `power_limit`: selectors over measured limits; `profiler`: the slice profiler that measures them during training.
- `recurring`: the batch size of a recurring job (`pruning`, then the `bandit`).
- `trace`, `replay`, `study`: recorded workloads, replayed.
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
from flyball_frontiers.zeus.recurring import Decision, NoBatchSizeReachesTarget, Purpose, RecurringJob, Run

__all__ = [
    "Decision",
    "LeastCost",
    "LeastEnergy",
    "LeastEnergyWithin",
    "LeastTime",
    "NoBatchSizeReachesTarget",
    "Phase",
    "PowerLimitMeasurement",
    "Purpose",
    "Reading",
    "RecurringJob",
    "Run",
    "Selector",
    "SliceProfiler",
    "WouldSave",
    "power_limit_frontier",
    "would_save",
]
