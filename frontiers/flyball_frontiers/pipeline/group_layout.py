"""Groups of pipelines as people write them down: a JSON document that names each group's profile and how it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flyball_frontiers.pipeline.blocking import checked_blocking_watts
from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.perseus import PerseusPlanner
from flyball_frontiers.pipeline.profile import PipelineProfile
from flyball_frontiers.pipeline.schedules import Schedule, pipeline_graph
from flyball_frontiers.pipeline.size import PlanSize, check_size

MOST_GROUPS = 64

_FIELDS = {
    "name",
    "profile",
    "microbatches",
    "blocking_power",
    "schedule",
    "chunks_per_gpu",
    "pipelines",
    "tensor_parallel",
}


@dataclass(frozen=True, eq=False)
class Group:
    """`pipelines` equal pipelines, each stage on `tensor_parallel` GPUs, which draw `blocking_power_watts` as they wait."""

    name: str
    graph: ComputationGraph
    blocking_power_watts: float
    pipelines: int
    tensor_parallel: int
    size: PlanSize

    @property
    def replicas(self) -> int:
        """How many GPUs do what one GPU of each stage does."""
        return self.pipelines * self.tensor_parallel

    @property
    def gpus(self) -> int:
        return self.graph.gpus * self.replicas

    def planner(self) -> PerseusPlanner:
        return PerseusPlanner(self.graph, self.blocking_power_watts, replicas=self.replicas)


def groups_from_json(document: Any, profile_of: Callable[[str], PipelineProfile]) -> dict[str, Group]:
    """The groups of {"groups": [{"name", "profile", "microbatches", ...}, ...]}, by name.

    `profile_of` reads the profile that a group names. What else a group may say: `blocking_power` (watts, 0), `schedule`
    (1f1b), `chunks_per_gpu`, `pipelines` and `tensor_parallel` (1). Raises ValueError that names the group and the field.
    """
    listed = document.get("groups") if isinstance(document, Mapping) else None
    if not isinstance(listed, list) or not 1 <= len(listed) <= MOST_GROUPS:
        raise ValueError(f'wanted an object with "groups", a list of 1 to {MOST_GROUPS}')
    groups: dict[str, Group] = {}
    for place, entry in enumerate(listed):
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or not name or name in groups:
            raise ValueError(f'groups[{place}]: wanted an object with a "name" that no other group has')
        try:
            groups[name] = _group(name, entry, profile_of)
        except ValueError as error:
            raise ValueError(f"groups[{place}] ({name}): {error}") from error
    return groups


def _group(name: str, entry: Mapping[str, Any], profile_of: Callable[[str], PipelineProfile]) -> Group:
    if unknown := sorted(set(map(str, entry)) - _FIELDS):
        raise ValueError(f"there is no field {unknown[0]!r}, only {', '.join(sorted(_FIELDS))}")
    path, power, schedule = entry.get("profile"), entry.get("blocking_power", 0.0), entry.get("schedule", "1f1b")
    if not isinstance(path, str):
        raise ValueError(f"profile {path!r} must be the name of a CSV file")
    if isinstance(power, bool) or not isinstance(power, int | float) or not 0 <= power < math.inf:
        raise ValueError(f"blocking_power {power!r} must be watts, not below 0")
    checked_blocking_watts("blocking_power", power)
    if schedule not in list(Schedule):
        raise ValueError(f"schedule {schedule!r} is none of {', '.join(Schedule)}")
    microbatches, chunks = _count(entry, "microbatches", None), _count(entry, "chunks_per_gpu", 1)
    pipelines, tensor_parallel = _count(entry, "pipelines", 1), _count(entry, "tensor_parallel", 1)
    profile = profile_of(path)
    size = check_size(profile, Schedule(schedule), microbatches, chunks_per_gpu=chunks)
    graph = pipeline_graph(profile, Schedule(schedule), microbatches, chunks_per_gpu=chunks)
    return Group(name, graph, float(power), pipelines, tensor_parallel, size)


def _count(entry: Mapping[str, Any], field: str, default: int | None) -> int:
    value = entry.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{field} {value!r} must be a whole number from 1")
    return value
