"""Frontiers: the least energy at each speed, of pipelines (Perseus), power limits (Zeus) and kernel schedules (Kareus).

Every method answers with a `Frontier`. The names below are imported when first asked for, because the methods bring a
linear-programming solver and a gradient-boosting library that most users of one frontier do not need.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flyball_frontiers.frontier import Frontier, FrontierPoint, frontier_from_json
    from flyball_frontiers.kareus import iteration_frontier
    from flyball_frontiers.pipeline import (
        PerseusPlanner,
        PipelineProfile,
        PlanCodec,
        Schedule,
        StragglerTable,
        pipeline_frontier,
        pipeline_graph,
    )
    from flyball_frontiers.zeus import power_limit_frontier

__all__ = [
    "Frontier",
    "FrontierPoint",
    "PerseusPlanner",
    "PipelineProfile",
    "PlanCodec",
    "Schedule",
    "StragglerTable",
    "frontier_from_json",
    "iteration_frontier",
    "pipeline_frontier",
    "pipeline_graph",
    "power_limit_frontier",
]

_MODULES = {
    "Frontier": "frontier",
    "frontier_from_json": "frontier",
    "FrontierPoint": "frontier",
    "PerseusPlanner": "pipeline",
    "PipelineProfile": "pipeline",
    "PlanCodec": "pipeline",
    "Schedule": "pipeline",
    "StragglerTable": "pipeline",
    "pipeline_frontier": "pipeline",
    "iteration_frontier": "kareus",
    "pipeline_graph": "pipeline",
    "power_limit_frontier": "zeus",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
