"""A frontier of Kareus as the plan of a job's pipeline: what `flyball frontier` writes, with each computation's kernels."""

from __future__ import annotations

from typing import Any

from flyball_frontiers.frontier import Frontier
from flyball_frontiers.kareus.compose import MicrobatchSchedule
from flyball_frontiers.kareus.iteration import IterationPlan
from flyball_frontiers.pipeline.codec import PlanCodec
from flyball_frontiers.pipeline.document import highest, least_times
from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.timeline import written_out


def kareus_document(
    frontier: Frontier[IterationPlan], graph: ComputationGraph, static_power_watts: float
) -> dict[str, Any]:
    """The document of what `iteration_frontier` returned, joules and watts of all GPUs of a stage together.

    `kernels` lists how a microbatch may run: its clock, and of each partition the communication's SMs and between which
    kernels it runs. Each point has, beside the clocks, the places in that list of its computations.
    """
    listed: dict[MicrobatchSchedule, int] = {}
    codec = PlanCodec(graph)

    def of_plan(plan: IterationPlan) -> dict[str, Any]:
        places = [listed.setdefault(schedule, len(listed)) for schedule in plan.schedules]
        return {"clocks": codec.clocks_to_json(plan.pipeline), "kernels": codec.listed(plan.pipeline, places)}

    written = frontier.to_json(of_plan)
    for point in written["points"]:
        point |= point.pop("plan")
    return {
        "planner": "kareus",
        "gpus": graph.gpus,
        "blocking_power": static_power_watts,
        **written,
        "kernels": [schedule.to_json() for schedule in listed],
        "flat_out": written_out(graph, highest(graph), static_power_watts),
        "least_times": least_times(graph),
    }
