"""The computations of one training iteration and what waits for what (Perseus, section 3.2).

Each GPU (one per pipeline stage; its replicas do the same) runs its program in order; dependencies between programs are
data that is sent. Operations of no GPU (stage None) take time on no program: transfers, data loading elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from flyball_frontiers.pipeline.profile import OperatingPoint, PipelineProfile, ProfileError


class GraphError(ValueError):
    """Computations that cannot be run in any order; says which, and why."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One computation: what (`instruction`, `microbatch`), on which GPU (`stage`), at which measured points.

    `chunk` is the part of the model that an interleaved schedule runs (its virtual stage), else the stage itself.
    """

    instruction: str
    microbatch: int
    stage: int | None
    points: tuple[OperatingPoint, ...]
    chunk: int = 0
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or f"{self.instruction} of microbatch {self.microbatch} on stage {self.stage}"


@dataclass(frozen=True)
class ComputationGraph:
    """Operations, the program of each GPU (places in `operations`, in order), and dependencies (before, after).

    Raises GraphError where a dependency names no operation, an operation stands in no program or in two, or where
    operations wait for each other in a circle (the circle is spelt out).
    """

    operations: tuple[Operation, ...]
    programs: tuple[tuple[int, ...], ...]
    dependencies: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        count = len(self.operations)
        if not count:
            raise GraphError("there is nothing to run: no operations")
        programmed = [place for program in self.programs for place in program]
        wanted = [place for place, operation in enumerate(self.operations) if operation.stage is not None]
        if sorted(programmed) != wanted:
            raise GraphError("every operation that has a stage must stand exactly once in the programs")
        for before, after in self.dependencies:
            if not (0 <= before < count and 0 <= after < count):
                raise GraphError(f"dependency ({before}, {after}) names an operation that is not among the {count}")
        self.topological_order  # noqa: B018  (raises on a circle)

    @property
    def gpus(self) -> int:
        """How many GPUs the pipeline has, one per program: what blocks when it does not compute."""
        return len(self.programs)

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Dependencies and the order of the programs together, each once, sorted."""
        sequence = {pair for program in self.programs for pair in pairwise(program)}
        return tuple(sorted(sequence | set(self.dependencies)))

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        lists: list[list[int]] = [[] for _ in self.operations]
        for before, after in self.edges:
            lists[after].append(before)
        return tuple(tuple(each) for each in lists)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        lists: list[list[int]] = [[] for _ in self.operations]
        for before, after in self.edges:
            lists[before].append(after)
        return tuple(tuple(each) for each in lists)

    @cached_property
    def topological_order(self) -> tuple[int, ...]:
        waiting = [len(each) for each in self.predecessors]
        ready = [place for place, count in enumerate(waiting) if count == 0]
        order: list[int] = []
        while ready:
            place = ready.pop()
            order.append(place)
            for after in self.successors[place]:
                waiting[after] -= 1
                if waiting[after] == 0:
                    ready.append(after)
        if len(order) < len(self.operations):
            raise GraphError(f"operations wait for each other in a circle: {self._circle(waiting)}")
        return tuple(order)

    def _circle(self, waiting: Sequence[int]) -> str:
        """One circle among the operations that never got ready: walk back along what is waited for until one repeats."""
        place = next(place for place, count in enumerate(waiting) if count > 0)
        walked: list[int] = []
        while place not in walked:
            walked.append(place)
            place = next(before for before in self.predecessors[place] if waiting[before] > 0)
        circle = [*walked[walked.index(place) :], place]
        return " -> ".join(self.operations[each].label for each in reversed(circle))


def graph_from_json(document: Mapping[str, Any], profile: PipelineProfile | None = None) -> ComputationGraph:
    """Any DAG of computations: {"operations": [...], "dependencies": [[name, name], ...]}.

    An operation is {"name", "stage" (a GPU, from 0; null: none), "instruction", "microbatch", "points"}, where points
    are [{"frequency", "time", "energy"}, ...], or are absent: then the profile's for that stage and instruction. The
    operations of one stage run in the order in which the file lists them. Raises GraphError or ProfileError that names
    the operation.
    """
    listed = document.get("operations")
    if not isinstance(listed, list) or not listed:
        raise GraphError('the document must have "operations", a list that is not empty')
    operations: list[Operation] = []
    places: dict[str, int] = {}
    for place, entry in enumerate(listed):
        operation = _operation_from_json(place, entry, profile)
        if operation.name in places:
            raise GraphError(f"operations[{place}]: the name {operation.name!r} is taken by [{places[operation.name]}]")
        places[operation.name] = place
        operations.append(operation)
    stages = sorted({operation.stage for operation in operations if operation.stage is not None})
    programs = tuple(
        tuple(place for place, operation in enumerate(operations) if operation.stage == stage) for stage in stages
    )
    dependencies: list[tuple[int, int]] = []
    listed = document.get("dependencies", [])
    if not isinstance(listed, list):
        raise GraphError(
            f'"dependencies" is {listed!r}: wanted a list of [before, after], two names of operations each'
        )
    for index, pair in enumerate(listed):
        names = [name for name in pair if isinstance(name, str) and name in places] if isinstance(pair, list) else []
        if len(names) != 2 or len(pair) != 2:
            raise GraphError(f"dependencies[{index}] is {pair!r}: wanted two names of operations, [before, after]")
        dependencies.append((places[names[0]], places[names[1]]))
    return ComputationGraph(tuple(operations), programs, tuple(dependencies))


def _operation_from_json(place: int, entry: Any, profile: PipelineProfile | None) -> Operation:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise GraphError(f'operations[{place}]: wanted an object with a "name"')
    name, stage = entry["name"], entry.get("stage")
    if stage is not None and not (isinstance(stage, int) and stage >= 0):
        raise GraphError(f"operations[{place}] ({name}): stage {stage!r} must be a whole number from 0, or null")
    instruction, microbatch = str(entry.get("instruction", name)), entry.get("microbatch", 0)
    if not isinstance(microbatch, int):
        raise GraphError(f"operations[{place}] ({name}): microbatch {microbatch!r} must be a whole number")
    if (points := entry.get("points")) is not None:
        if not isinstance(points, list) or not all(isinstance(point, Mapping) for point in points):
            raise GraphError(
                f'operations[{place}] ({name}): points {points!r} must be a list of {{"frequency", "time", "energy"}}'
            )
        rows: Iterable[Mapping[str, object]] = ({"stage": 0, "instruction": "any", **point} for point in points)
        try:
            measured = PipelineProfile.from_rows(rows).points[0, "any"]
        except ProfileError as error:
            raise ProfileError(f"operations[{place}] ({name}), points: {error}") from error
    elif profile is not None and stage is not None:
        measured = profile.of(stage, instruction)
    else:
        raise GraphError(f"operations[{place}] ({name}) has no points, and there is no profile to take them from")
    return Operation(instruction, microbatch, stage, measured, chunk=stage or 0, name=name)


def graph_to_json(graph: ComputationGraph) -> dict[str, Any]:
    """What `graph_from_json` reads; every operation carries its points."""
    names = [operation.name or f"{place}: {operation.label}" for place, operation in enumerate(graph.operations)]
    order = [place for program in graph.programs for place in program]
    order += [place for place, operation in enumerate(graph.operations) if operation.stage is None]
    return {
        "operations": [
            {
                "name": names[place],
                "stage": graph.operations[place].stage,
                "instruction": graph.operations[place].instruction,
                "microbatch": graph.operations[place].microbatch,
                "points": [
                    {"frequency": p.clock_megahertz, "time": p.time_seconds, "energy": p.energy_joules}
                    for p in graph.operations[place].points
                ],
            }
            for place in order
        ],
        "dependencies": [[names[before], names[after]] for before, after in graph.dependencies],
    }
