"""A pipeline's frontier and plan as the JSON that `flyball frontier` writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flyball_frontiers.frontier import Frontier
from flyball_frontiers.pipeline.codec import PlanCodec
from flyball_frontiers.pipeline.envpipe import Reconfiguration, envpipe
from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.lag import plan_with_lag
from flyball_frontiers.pipeline.perseus import PerseusPlanner, Progress
from flyball_frontiers.pipeline.plan import PipelinePlan
from flyball_frontiers.pipeline.profile import PipelineProfile
from flyball_frontiers.pipeline.timeline import written_out


def perseus_document(
    graph: ComputationGraph,
    blocking_power: float,
    points: int,
    at: float | None = None,
    replicas: int = 1,
    progress: Progress | None = None,
    clock_lag: float = 0.0,
) -> dict[str, Any]:
    """The document of Perseus: the frontier, the run at the highest clocks, and the plan at `at` seconds.

    With `clock_lag` (s) the plan is one that keeps that time although its clocks change so late.
    """
    planner = PerseusPlanner(graph, blocking_power, replicas=replicas)
    result = planner.frontier(points, progress)
    point = result.fastest if at is None else planner.plan(at)
    document = _document("perseus", result, graph, blocking_power, replicas)
    if clock_lag:
        lagged = plan_with_lag(planner, point.time_seconds, clock_lag)
        point = lagged.point
        document["with_clock_lag"] = {
            "lag": clock_lag,
            "time": lagged.execution.time_seconds,
            "energy": lagged.execution.energy_joules,
            "clock_changes": list(lagged.execution.clock_changes),
        }
    document["at"] = {
        "time": point.time_seconds,
        "energy": point.energy_joules,
        "realised_time": point.realised_time_seconds,
        "realised_energy": point.realised_energy_joules,
    }
    return document | _plan(graph, point.plan, blocking_power)


def envpipe_document(
    profile: PipelineProfile,
    microbatches: int,
    blocking_power: float,
    reconfiguration: Reconfiguration,
    activation_slots: Sequence[int] | None = None,
    replicas: int = 1,
) -> dict[str, Any]:
    """The same for EnvPipe, whose frontier is one point."""
    result = envpipe(
        profile,
        microbatches,
        blocking_power,
        reconfiguration=reconfiguration,
        activation_slots=activation_slots,
        replicas=replicas,
    )
    document = _document(f"envpipe-{reconfiguration}", result.frontier, result.graph, blocking_power, replicas)
    document["at"] = document["points"][0]
    return document | _plan(result.graph, result.frontier.fastest.plan, blocking_power)


def _document(
    planner: str, result: Frontier[PipelinePlan], graph: ComputationGraph, blocking_power: float, replicas: int
) -> dict[str, Any]:
    """The frontier, and what it is to be measured against: every operation at its highest clock."""
    highest = [max(operation.points, key=lambda point: point.clock_megahertz or 0) for operation in graph.operations]
    flat_out = written_out(graph, highest, blocking_power)
    flat_out["energy"] *= replicas
    codec = PlanCodec(graph)
    written = result.to_json(codec.clocks_to_json)
    for point in written["points"]:
        point["clocks"] = point.pop("plan")
    head = {"planner": planner, "gpus": graph.gpus * replicas, "blocking_power": blocking_power}
    return head | written | {"flat_out": flat_out}


def _plan(graph: ComputationGraph, plan: PipelinePlan, blocking_power: float) -> dict[str, Any]:
    written = written_out(graph, plan.chosen, blocking_power)
    return {key: written[key] for key in ("schedule", "timeline", "critical_path")}
