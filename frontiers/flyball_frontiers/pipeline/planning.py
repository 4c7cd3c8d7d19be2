"""From a profile to its frontier in one call."""

from __future__ import annotations

from pathlib import Path

from flyball_frontiers.frontier import Frontier
from flyball_frontiers.pipeline.perseus import PerseusPlanner
from flyball_frontiers.pipeline.plan import PipelinePlan
from flyball_frontiers.pipeline.profile import PipelineProfile, ProfileError
from flyball_frontiers.pipeline.schedules import Schedule, pipeline_graph
from flyball_frontiers.pipeline.size import check_size


def pipeline_frontier(
    profile: PipelineProfile | str | Path,
    microbatches: int,
    blocking_power_watts: float = 0.0,
    *,
    schedule: Schedule | str = Schedule.ONE_F_ONE_B,
    points: int = 200,
    chunks_per_gpu: int = 1,
    replicas: int = 1,
) -> Frontier[PipelinePlan]:
    """The time-energy frontier of a pipeline (Perseus), s and J of an iteration of all its GPUs.

    `profile` may be the path of a CSV (stage,instruction,frequency,time,energy); `blocking_power_watts` is what a GPU
    draws while it waits. Raises ProfileError or GraphError where they do not fit together, SizeError where the pipeline
    is too large to be planned, OSError where the file cannot be read, ValueError on other numbers.
    """
    named = Schedule(schedule)
    try:
        measured = (
            profile
            if isinstance(profile, PipelineProfile)
            else PipelineProfile.from_csv(Path(profile).read_text(encoding="utf-8-sig"))
        )
        check_size(measured, named, microbatches, chunks_per_gpu=chunks_per_gpu)
        graph = pipeline_graph(measured, named, microbatches, chunks_per_gpu=chunks_per_gpu)
    except ProfileError as error:
        if isinstance(profile, PipelineProfile):
            raise
        raise ProfileError(f"{profile}: {error}") from error
    return PerseusPlanner(graph, blocking_power_watts, replicas=replicas).frontier(points)
