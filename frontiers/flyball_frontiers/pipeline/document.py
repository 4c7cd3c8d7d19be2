"""A pipeline's frontier and plan as the JSON that `flyball frontier` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flyball_frontiers.frontier import RELATIVE_TOLERANCE, Frontier, FrontierPoint, rounded_up
from flyball_frontiers.pipeline.codec import PlanCodec
from flyball_frontiers.pipeline.envpipe import Reconfiguration, envpipe
from flyball_frontiers.pipeline.evaluate import run
from flyball_frontiers.pipeline.graph import ComputationGraph, Operation
from flyball_frontiers.pipeline.group_layout import Group
from flyball_frontiers.pipeline.groups import plan_groups
from flyball_frontiers.pipeline.lag import plan_with_lag
from flyball_frontiers.pipeline.perseus import PerseusPlanner, Progress
from flyball_frontiers.pipeline.plan import PipelinePlan
from flyball_frontiers.pipeline.profile import OperatingPoint, PipelineProfile
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
    document["at"] = _numbers(point)
    return document | _plan(graph, point.plan, blocking_power)


def groups_document(
    groups: Mapping[str, Group],
    points: int,
    at: float | None = None,
    stragglers: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The document of groups that wait for each other.

    It has their frontier, each point with the clocks of every group; what they need at the highest clocks, and with each
    planned for its own fastest iteration, waiting included; and under `at` what to run in iterations of `at` seconds (the
    fastest) while the groups in `stragglers` are so many times slower. Raises ValueError on a straggler that is no group,
    or an `at` that nobody can keep.
    """
    planned = plan_groups({name: group.planner() for name, group in groups.items()}, points, progress)
    if at is not None and at < planned.t_min * (1 - RELATIVE_TOLERANCE):
        raise ValueError(f"no plan takes {at} s; the fastest takes {rounded_up(planned.t_min)} s")
    wanted = planned.t_min if at is None else max(at, planned.t_min)
    deployment = planned.behind(stragglers or {}, wanted)
    codecs = {name: PlanCodec(group.graph) for name, group in groups.items()}

    def of_groups(points: Mapping[str, FrontierPoint[PipelinePlan]]) -> dict[str, Any]:
        return {
            name: _numbers(point) | {"clocks": codecs[name].clocks_to_json(point.plan)}
            for name, point in points.items()
        }

    written = planned.frontier().to_json(of_groups)
    for point in written["points"]:
        point["groups"] = point.pop("plan")
    gpus = {name: {"gpus": group.gpus, "t_min": planned.frontiers[name].t_min} for name, group in groups.items()}
    at_highest = {
        name: written_out(group.graph, highest(group.graph), group.blocking_power_watts)
        for name, group in groups.items()
    }
    slowest = max(run["time"] for run in at_highest.values())
    flat_out = sum(
        run["energy"] * groups[name].replicas + planned.frontiers[name].waiting_power_watts * (slowest - run["time"])
        for name, run in at_highest.items()
    )
    fastest = written["points"][0]["realised_time"]
    alone = sum(each.energy_within(each.at(each.t_min), fastest) for each in planned.frontiers.values())
    return written | {
        "groups": gpus,
        "flat_out": {"time": slowest, "energy": flat_out},
        "each_at_its_fastest": {"time": fastest, "energy": alone},
        "at": {
            "iteration": deployment.iteration_seconds,
            "stragglers": dict(stragglers or {}),
            "groups": of_groups(deployment.points),
        },
    }


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
    flat_out = written_out(graph, highest(graph), blocking_power)
    flat_out["energy"] *= replicas
    codec = PlanCodec(graph)
    written = result.to_json(codec.clocks_to_json)
    for point in written["points"]:
        point["clocks"] = point.pop("plan")
    head = {"planner": planner, "gpus": graph.gpus * replicas, "blocking_power": blocking_power}
    return head | written | {"flat_out": flat_out, "least_times": least_times(graph)}


def least_times(graph: ComputationGraph) -> list[list[float]]:
    """How long an iteration takes at the least where no clock may be above one: [MHz, seconds] for each there is.

    An operation that has no clock so low takes what it takes at its lowest.
    """
    clocks = sorted({point.clock_megahertz or 0 for operation in graph.operations for point in operation.points} - {0})

    def seconds(operation: Operation, clock: int) -> float:
        within = [point for point in operation.points if (point.clock_megahertz or 0) <= clock]
        slowest = min(operation.points, key=lambda point: point.clock_megahertz or 0)
        return min([point.time_seconds for point in within], default=slowest.time_seconds)

    durations = np.array([[seconds(operation, clock) for clock in clocks] for operation in graph.operations])
    _, finishes = run(graph, durations)
    return [[clock, float(time)] for clock, time in zip(clocks, finishes.max(axis=0), strict=True)] if clocks else []


def _plan(graph: ComputationGraph, plan: PipelinePlan, blocking_power: float) -> dict[str, Any]:
    written = written_out(graph, plan.chosen, blocking_power)
    return {key: written[key] for key in ("schedule", "timeline", "critical_path")}


def highest(graph: ComputationGraph) -> list[OperatingPoint]:
    """Every operation at its highest clock."""
    return [max(operation.points, key=lambda point: point.clock_megahertz or 0) for operation in graph.operations]


def _numbers(point: FrontierPoint[Any]) -> dict[str, float]:
    return {
        "time": point.time_seconds,
        "energy": point.energy_joules,
        "realised_time": point.realised_time_seconds,
        "realised_energy": point.realised_energy_joules,
    }
