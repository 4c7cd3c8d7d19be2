"""Plans as JSON and back: what a look-up table is kept as, and what every point of `flyball frontier` carries.

Numbers are listed by GPU and instruction in the order of execution, as [[values, times], ...]: the values, so many
times over. A steady state of a thousand microbatches is one block of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.plan import PipelinePlan

Integers = NDArray[np.int64]

ELSEWHERE = "elsewhere"
"""The key of what runs on no GPU."""


class PlanCodec:
    """Writes and reads the plans of one graph.

    A whole look-up table is `frontier.dumps(codec.to_json)` and `frontier_from_json(text, codec.from_json)`.
    """

    def __init__(self, graph: ComputationGraph) -> None:
        self._graph = graph
        listed: dict[tuple[str, str], list[int]] = {}
        for stage, program in enumerate(graph.programs):
            for place in program:
                listed.setdefault((str(stage), graph.operations[place].instruction), []).append(place)
        for place, operation in enumerate(graph.operations):
            if operation.stage is None:
                listed.setdefault((ELSEWHERE, operation.instruction), []).append(place)
        self._listed = {key: np.array(places) for key, places in listed.items()}
        self._by_clock: dict[int, dict[int | None, int]] = {}
        self._known: Integers | None = (
            None  # the places that `_blocks_of_known` are of: all plans of a frontier share them
        )
        self._blocks_of_known: dict[tuple[str, str], list[tuple[list[int], int]]] = {}

    def clocks_to_json(self, plan: PipelinePlan) -> dict[str, dict[str, list[list[Any]]]]:
        """The clocks alone (MHz; null where the clock does not matter), by GPU and instruction."""
        return self._written(plan, [point.clock_megahertz for point in plan.kept_chosen])

    def listed(self, plan: PipelinePlan, values: Sequence[Any]) -> dict[str, dict[str, list[list[Any]]]]:
        """What each operation of a plan has, in the graph's order, listed as its clocks are."""
        if plan.places is None:
            return self._written(plan, values)
        kept: list[Any] = [None] * len(plan.kept_chosen)
        for place, value in zip(plan.places.tolist(), values, strict=True):
            kept[place] = value
        return self._written(plan, kept)

    def to_json(self, plan: PipelinePlan) -> dict[str, Any]:
        """The whole plan: clocks (MHz), planned seconds and planned joules."""
        return {
            "clocks": self.clocks_to_json(plan),
            "seconds": self._written(plan, plan.kept_durations.tolist()),
            "joules": self._written(plan, plan.kept_energies.tolist()),
        }

    def from_json(self, record: Any) -> PipelinePlan:
        """The plan that `to_json` wrote; raises ValueError that names GPU and instruction where it is not of this graph."""
        if not isinstance(record, Mapping):
            raise ValueError(f"a plan is {record!r}: wanted clocks, seconds and joules")
        clocks = self._read(record, "clocks", lambda value: value is None or isinstance(value, int))
        seconds = self._read(record, "seconds", lambda value: isinstance(value, (int, float)))
        joules = self._read(record, "joules", lambda value: isinstance(value, (int, float)))
        chosen = []
        for operation, clock in zip(self._graph.operations, clocks, strict=True):
            known = self._by_clock.get(id(operation.points))
            if known is None:
                known = {point.clock_megahertz: place for place, point in enumerate(operation.points)}
                self._by_clock[id(operation.points)] = known
            if clock not in known:
                raise ValueError(f"{operation.label} was not measured at {clock} MHz")
            chosen.append(operation.points[known[clock]])
        return PipelinePlan(np.array(seconds, dtype=np.float64), np.array(joules, dtype=np.float64), tuple(chosen))

    def _written(self, plan: PipelinePlan, values: Sequence[Any]) -> dict[str, dict[str, list[list[Any]]]]:
        written: dict[str, dict[str, list[list[Any]]]] = {}
        for (gpu, instruction), blocks in self._structure(plan).items():
            runs: list[list[Any]] = []
            for places, times in blocks:
                block = [values[place] for place in places]
                runs += [[block, times]] if times > 1 else _runs(block)
            written.setdefault(gpu, {})[instruction] = runs
        return written

    def _structure(self, plan: PipelinePlan) -> dict[tuple[str, str], list[tuple[list[int], int]]]:
        """Which kept values follow each other in each list, in blocks that repeat."""
        if not self._blocks_of_known or plan.places is not self._known:
            self._known = plan.places
            self._blocks_of_known = {
                key: _blocks(places if plan.places is None else plan.places[places])
                for key, places in self._listed.items()
            }
        return self._blocks_of_known

    def _read(self, record: Mapping[str, Any], name: str, fits: Callable[[Any], bool]) -> list[Any]:
        values: list[Any] = [None] * len(self._graph.operations)
        for (gpu, instruction), places in self._listed.items():
            where = f"{name}, GPU {gpu}, {instruction}"
            try:
                runs = record[name][gpu][instruction]
                expanded = [value for block, times in runs for value in list(block) * times]
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{where}: wanted [[values, times], ...], {error!r}") from error
            if len(expanded) != len(places) or not all(map(fits, expanded)):
                raise ValueError(
                    f"{where}: wanted {len(places)} numbers, found {len(expanded)}, or other things among them"
                )
            for place, value in zip(places.tolist(), expanded, strict=True):
                values[place] = value
        return values


def _blocks(places: Integers) -> list[tuple[list[int], int]]:
    """A sequence as (values, times): the stretch that repeats, and what is before and after it."""
    _, which, counts = np.unique(places, return_inverse=True, return_counts=True)
    again = np.flatnonzero(counts[which] > 1)
    if not len(again):
        return [(places.tolist(), 1)]
    first = int(again[0])
    period = int(np.flatnonzero(places[first + 1 :] == places[first])[0]) + 1
    times = len(again) // period
    last = first + period * times
    if (np.tile(places[first : first + period], times) != places[first:last]).any():
        return [(places.tolist(), 1)]
    block = places[first : first + period].tolist()
    listed = [(places[:first].tolist(), 1), (block, times), (places[last:].tolist(), 1)]
    return [(values, count) for values, count in listed if values]


def _runs(values: Sequence[Any]) -> list[list[Any]]:
    """Values as [values, times], where three or more of the same are one with a count."""
    runs: list[list[Any]] = []
    start = 0
    while start < len(values):
        end = start + 1
        while end < len(values) and values[end] == values[start]:
            end += 1
        if end - start >= 3:
            runs.append([[values[start]], end - start])
        elif runs and runs[-1][1] == 1:
            runs[-1][0].extend(values[start:end])
        else:
            runs.append([list(values[start:end]), 1])
        start = end
    return runs
