"""From microbatch frontiers to the frontier of the whole training iteration (Kareus, section 4.4, last paragraph).

Kareus hands this step to Perseus. So do we: a point of a microbatch frontier is an operating point of a computation to
the pipeline's exact solver, and what it chooses is read back as kernel schedules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flyball_frontiers.frontier import Frontier, FrontierPoint
from flyball_frontiers.kareus.compose import MicrobatchSchedule
from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.perseus import PerseusPlanner
from flyball_frontiers.pipeline.plan import PipelinePlan
from flyball_frontiers.pipeline.profile import OperatingPoint, PipelineProfile
from flyball_frontiers.pipeline.schedules import Schedule, pipeline_graph

MicrobatchFrontiers = Mapping[tuple[int, str], Frontier[MicrobatchSchedule]]
"""By stage and instruction (`forward`, `backward`): joules of all GPUs of the stage together."""


@dataclass(frozen=True, eq=False)
class IterationPlan:
    """One point of the iteration's frontier: the pipeline's plan, and how each operation of the graph runs."""

    pipeline: PipelinePlan
    schedules: tuple[MicrobatchSchedule, ...]


def iteration_frontier(
    microbatches: MicrobatchFrontiers,
    count: int,
    static_power_watts: float,
    points: int = 100,
    schedule: Schedule = Schedule.ONE_F_ONE_B,
) -> tuple[Frontier[IterationPlan], ComputationGraph]:
    """The frontier of an iteration of `count` microbatches, and the graph whose operations its plans speak of.

    `static_power_watts` is of all GPUs of one stage, which is what they draw while they wait (section 4.4). Raises what
    the pipeline's builder raises where a stage or instruction is missing.
    """
    operating: dict[tuple[int, str], tuple[OperatingPoint, ...]] = {}
    back: dict[tuple[tuple[int, str], OperatingPoint], MicrobatchSchedule] = {}
    for key, frontier in microbatches.items():
        listed = []
        for point in frontier.points:
            as_operating = OperatingPoint(point.time_seconds, point.energy_joules, point.plan.clock_megahertz)
            back[key, as_operating] = point.plan
            listed.append(as_operating)
        operating[key] = tuple(listed)
    graph = pipeline_graph(PipelineProfile(operating), schedule, count)
    planned = PerseusPlanner(graph, static_power_watts).frontier(points)

    def schedules(plan: PipelinePlan) -> tuple[MicrobatchSchedule, ...]:
        return tuple(
            back[(operation.chunk, operation.instruction), chosen]
            for operation, chosen in zip(graph.operations, plan.chosen, strict=True)
        )

    read_back = Frontier.of(
        (
            FrontierPoint(
                point.time_seconds,
                point.energy_joules,
                IterationPlan(point.plan, schedules(point.plan)),
                point.realised_time_seconds,
                point.realised_energy_joules,
            )
            for point in planned.points
        ),
        planned.waiting_power_watts,
    )
    return read_back, graph
