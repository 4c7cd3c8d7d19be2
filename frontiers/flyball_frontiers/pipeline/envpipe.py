"""EnvPipe: one plan that keeps the pipeline's speed and lets everything within its envelope run slower.

The baseline beside Perseus (envpipe-atc23, section 4): a valley clock per stage, forwards moved ahead as far as memory
allows, then clocks raised along the critical path until the pipeline is as fast as at the highest clocks. It assumes
that the last stage is the heaviest; where it is not, the envelope is not the critical path and the paper's loop would
not end. This one ends once the time is met or the critical path has no clock left to raise, which is the same thing:
a path all at its highest clocks is no longer than the pipeline at its highest clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from flyball_frontiers.frontier import Frontier, FrontierPoint
from flyball_frontiers.pipeline.evaluate import execute
from flyball_frontiers.pipeline.graph import ComputationGraph, GraphError
from flyball_frontiers.pipeline.plan import PipelinePlan
from flyball_frontiers.pipeline.profile import BACKWARD, FORWARD, OperatingPoint, PipelineProfile, ProfileError
from flyball_frontiers.pipeline.schedules import graph_of_programs, one_f_one_b
from flyball_frontiers.pipeline.timeline import critical_path

RELATIVE_TOLERANCE = 1e-9
"""Iterations that differ by less than this share take equally long."""


class Reconfiguration(StrEnum):
    """How clocks are raised along the critical path: one step on the units of lowest clock, or all the way from the
    end of the path."""

    BALANCED = "balanced"
    GREEDY = "greedy"


@dataclass(frozen=True, eq=False)
class EnvPipeResult:
    """The plan as a frontier of one point, the graph it is for (its order may differ from 1F1B's), and how it came.

    `baseline` is the same order at the highest clocks; `ahead` how many forwards each stage runs earlier than 1F1B;
    `valley_clocks_megahertz` the energy-optimal clock of each stage; `iterations` how often clocks were raised.
    """

    frontier: Frontier[PipelinePlan]
    baseline: FrontierPoint[PipelinePlan]
    graph: ComputationGraph
    ahead: tuple[int, ...]
    valley_clocks_megahertz: tuple[int, ...]
    iterations: int


def envpipe(
    profile: PipelineProfile,
    microbatches: int,
    blocking_power_watts: float,
    *,
    reconfiguration: Reconfiguration = Reconfiguration.BALANCED,
    activation_slots: Sequence[int] | None = None,
    replicas: int = 1,
) -> EnvPipeResult:
    """Plan a 1F1B pipeline with EnvPipe; `activation_slots[s]` is how many microbatches' activations stage s can hold.

    Without slots nothing is rescheduled. `replicas` as for `PerseusPlanner`. Raises GraphError where a stage has fewer
    slots than 1F1B needs, ProfileError where a stage's instructions have no clock in common.
    """
    ahead = rescheduled(profile, microbatches, activation_slots) if activation_slots else (0,) * profile.stages
    graph = graph_of_programs(profile, one_f_one_b(profile.stages, microbatches, ahead))
    valley = tuple(valley_clock(profile, stage) for stage in range(profile.stages))
    ladders = _ladders(graph)
    levels = [len(ladder) - 1 for ladder in ladders]
    baseline = _point(graph, ladders, levels, blocking_power_watts, replicas)
    for place in _inside_the_envelope(graph):
        operation, ladder = graph.operations[place], ladders[place]
        clocks = [point.clock_megahertz for point in ladder]
        if len(ladder) > 1 and valley[operation.chunk] in clocks:
            levels[place] = clocks.index(valley[operation.chunk])
    iterations = 0
    while path := _raisable_critical_path(graph, ladders, levels, baseline.time_seconds):
        if reconfiguration is Reconfiguration.GREEDY:
            levels[path[0]] = len(ladders[path[0]]) - 1
        else:
            lowest = min(ladders[place][levels[place]].clock_megahertz or 0 for place in path)
            for place in path:
                if ladders[place][levels[place]].clock_megahertz == lowest:
                    levels[place] += 1
        iterations += 1
    frontier = Frontier(
        (_point(graph, ladders, levels, blocking_power_watts, replicas),),
        waiting_power_watts=replicas * graph.gpus * blocking_power_watts,
    )
    return EnvPipeResult(frontier, baseline, graph, ahead, valley, iterations)


def valley_clock(profile: PipelineProfile, stage: int) -> int:
    """The clock (MHz) at which one forward and one backward pass of a stage need least energy (section 4.2)."""
    forward = {point.clock_megahertz: point.energy_joules for point in profile.of(stage, FORWARD)}
    backward = {point.clock_megahertz: point.energy_joules for point in profile.of(stage, BACKWARD)}
    common = [clock for clock in forward if clock is not None and clock in backward]
    if not common:
        raise ProfileError(f"stage {stage}: {FORWARD} and {BACKWARD} have no clock in common to be swept over")
    return min(common, key=lambda clock: (forward[clock] + backward[clock], clock))


def rescheduled(profile: PipelineProfile, microbatches: int, activation_slots: Sequence[int]) -> tuple[int, ...]:
    """How many forwards each stage can run ahead of 1F1B (section 4.3): as many as there is memory for, and as do not
    make the pipeline slower at its highest clocks.

    From the first stage on, because a stage can only run ahead on what the one before it has sent.
    """
    stages = profile.stages
    if len(activation_slots) != stages:
        raise GraphError(f"activation_slots has {len(activation_slots)} entries for {stages} stages")
    for stage, slots in enumerate(activation_slots):
        if slots < min(stages - stage, microbatches):
            raise GraphError(
                f"stage {stage} has {slots} activation slots; 1F1B holds up to {min(stages - stage, microbatches)}"
            )

    def seconds(ahead: Sequence[int]) -> float:
        graph = graph_of_programs(profile, one_f_one_b(stages, microbatches, ahead))
        ladders = _ladders(graph)
        return execute(graph, [ladder[-1] for ladder in ladders], 0.0).time_seconds

    chosen = [0] * stages
    limit = seconds(chosen) * (1 + RELATIVE_TOLERANCE)
    held = microbatches
    for stage in range(stages - 1):
        # never more than the stage before holds: it would wait for a forward that comes only after its own backward
        low, high = 0, min(activation_slots[stage], held) - min(stages - stage, microbatches)
        while low < high:
            middle = (low + high + 1) // 2
            if seconds([*chosen[:stage], middle, *chosen[stage + 1 :]]) <= limit:
                low = middle
            else:
                high = middle - 1
        chosen[stage] = low
        held = min(stages - stage, microbatches) + low
    return tuple(chosen)


def _ladders(graph: ComputationGraph) -> list[tuple[OperatingPoint, ...]]:
    """Each operation's points, lowest clock first: what a reconfiguration climbs."""
    sorted_points: dict[int, tuple[OperatingPoint, ...]] = {}
    for operation in graph.operations:
        if id(operation.points) not in sorted_points:
            ladder = sorted(operation.points, key=lambda point: point.clock_megahertz or 0)
            sorted_points[id(operation.points)] = tuple(ladder)
    return [sorted_points[id(operation.points)] for operation in graph.operations]


def _inside_the_envelope(graph: ComputationGraph) -> list[int]:
    """All but the outermost path: the first microbatch on its way in, the last stage, the last one on its way out."""
    last_stage = graph.gpus - 1
    last_microbatch = max(operation.microbatch for operation in graph.operations)
    return [
        place
        for place, operation in enumerate(graph.operations)
        if operation.stage != last_stage
        and not (operation.instruction == FORWARD and operation.microbatch == 0)
        and not (operation.instruction == BACKWARD and operation.microbatch == last_microbatch)
    ]


def _raisable_critical_path(
    graph: ComputationGraph, ladders: Sequence[Sequence[OperatingPoint]], levels: Sequence[int], wanted_seconds: float
) -> list[int]:
    """The units of the critical path whose clock can still be raised, from its end (Algorithm 2); none where the time
    is met. Of two units that a start waits for, the one that sends the data counts, as in the paper."""
    execution = execute(graph, [ladder[level] for ladder, level in zip(ladders, levels, strict=True)], 0.0)
    if execution.time_seconds <= wanted_seconds * (1 + RELATIVE_TOLERANCE):
        return []
    path = critical_path(graph, execution)[::-1]
    return [place for place in path if levels[place] < len(ladders[place]) - 1]


def _point(
    graph: ComputationGraph,
    ladders: Sequence[Sequence[OperatingPoint]],
    levels: Sequence[int],
    blocking_power_watts: float,
    replicas: int,
) -> FrontierPoint[PipelinePlan]:
    chosen = tuple(ladder[level] for ladder, level in zip(ladders, levels, strict=True))
    execution = execute(graph, chosen, blocking_power_watts)
    durations = np.array([point.time_seconds for point in chosen])
    plan = PipelinePlan(durations, np.array([point.energy_joules for point in chosen]), chosen)
    return FrontierPoint(execution.time_seconds, replicas * execution.energy_joules, plan)
