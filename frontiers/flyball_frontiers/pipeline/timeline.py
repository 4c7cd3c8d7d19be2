"""A plan written out for who runs it and who looks at it: programs with clocks, seconds, and the critical path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flyball_frontiers.pipeline.evaluate import Execution, execute
from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.profile import OperatingPoint

RELATIVE_TOLERANCE = 1e-9
"""What starts this share of the iteration after another ends has waited for it."""


def written_out(
    graph: ComputationGraph, chosen: Sequence[OperatingPoint], blocking_power_watts: float
) -> dict[str, Any]:
    """JSON of one plan, run by the independent evaluator.

    `schedule` has a list per stage of [instruction, microbatch, MHz] in the order of execution (MHz null where the
    clock does not matter; the part of the model follows as a fourth entry where a GPU runs several). `timeline` has the
    same shape with [start, finish] in seconds, `critical_path` the places [stage, index] of one longest path.
    """
    execution = execute(graph, chosen, blocking_power_watts)
    chunks = [{graph.operations[place].chunk for place in program} for program in graph.programs]
    several = any(len(each) > 1 for each in chunks)
    schedule = [
        [
            [
                graph.operations[place].instruction,
                graph.operations[place].microbatch,
                chosen[place].clock_megahertz,
                *([graph.operations[place].chunk] if several else []),
            ]
            for place in program
        ]
        for program in graph.programs
    ]
    timeline = [
        [[float(execution.starts[place]), float(execution.finishes[place])] for place in program]
        for program in graph.programs
    ]
    where = {place: [stage, index] for stage, row in enumerate(graph.programs) for index, place in enumerate(row)}
    return {
        "time": execution.time_seconds,
        "energy": execution.energy_joules,
        "schedule": schedule,
        "timeline": timeline,
        "critical_path": [where[place] for place in critical_path(graph, execution) if place in where],
    }


def critical_path(graph: ComputationGraph, execution: Execution) -> list[int]:
    """Operations of one longest path, first to last; of several that a start waited for, those of other GPUs first."""
    tolerance = RELATIVE_TOLERANCE * execution.time_seconds
    current = int(execution.finishes.argmax())
    path = [current]
    while before := graph.predecessors[current]:
        tight = [place for place in before if execution.finishes[place] >= execution.starts[current] - tolerance]
        stage = graph.operations[current].stage
        current = min(tight, key=lambda place: graph.operations[place].stage == stage)
        path.append(current)
    return path[::-1]
