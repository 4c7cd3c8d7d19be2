"""The independent evaluator: what a choice of clocks really takes, by running the programs, not by planning.

It shares nothing with the solver but the graph: GPUs run their programs in order, an operation starts when its GPU is
free and its data are there, a GPU that does not compute draws the blocking power until the iteration ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.profile import OperatingPoint

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Execution:
    """One iteration as it runs: start and finish of each operation (s), and where the joules go.

    `computation_joules` are the operations', `blocking_joules` those of GPUs that wait within the iteration.
    """

    starts: Floats
    finishes: Floats
    time_seconds: float
    computation_joules: float
    blocking_joules: float

    @property
    def energy_joules(self) -> float:
        return self.computation_joules + self.blocking_joules


def execute(graph: ComputationGraph, chosen: Sequence[OperatingPoint], blocking_power_watts: float) -> Execution:
    """Run the graph with one chosen operating point for each operation (Perseus, Equation 3, terms 1 and 2)."""
    durations = np.array([[point.time_seconds] for point in chosen])
    starts, finishes = run(graph, durations)
    time = float(finishes.max())
    busy = float(durations[[place for program in graph.programs for place in program]].sum())
    return Execution(
        starts[:, 0],
        finishes[:, 0],
        time,
        float(np.sum([point.energy_joules for point in chosen])),
        blocking_power_watts * (graph.gpus * time - busy),
    )


def run(graph: ComputationGraph, durations: Floats) -> tuple[Floats, Floats]:
    """Starts and finishes (s) of every operation for K sets of durations at once, all of shape (operations, K)."""
    starts, finishes = np.zeros_like(durations), np.zeros_like(durations)
    free = [np.zeros(durations.shape[1])] * (graph.gpus + 1)
    for gpu, place, needs in in_order(graph):
        start = free[gpu]
        for before in needs:
            start = np.maximum(start, finishes[before])
        starts[place] = start
        finishes[place] = start + durations[place]
        if gpu < graph.gpus:
            free[gpu] = finishes[place]
    return starts, finishes


def in_order(graph: ComputationGraph) -> Iterator[tuple[int, int, list[int]]]:
    """(GPU, operation, what it waits for on others) in an order in which it can be run; on no GPU, `graph.gpus`.

    Programs are stepped in turn: each GPU runs as far as its data allow, until all have run to their end.
    """
    count = len(graph.operations)
    needs: list[list[int]] = [[] for _ in range(count)]
    for before, after in graph.dependencies:
        needs[after].append(before)
    done = [False] * count
    queues = [(gpu, list(program)) for gpu, program in enumerate(graph.programs)]
    queues += [(graph.gpus, [place]) for place, operation in enumerate(graph.operations) if operation.stage is None]
    position = [0] * len(queues)
    waiting = list(range(len(queues)))
    while waiting:
        for number in waiting:
            gpu, queue = queues[number]
            while position[number] < len(queue) and all(done[before] for before in needs[queue[position[number]]]):
                place = queue[position[number]]
                yield gpu, place, needs[place]
                done[place] = True
                position[number] += 1
        waiting = [number for number in waiting if position[number] < len(queues[number][1])]


def spans(graph: ComputationGraph, durations: Floats, places: Integers | None = None, *, at_once: int = 64) -> Floats:
    """Iteration times (s) of K sets of durations, `at_once` of them in memory at a time. With `places`, row
    `places[i]` of `durations` is operation i's."""
    every = slice(None) if places is None else places
    return np.concatenate(
        [
            run(graph, durations[:, first : first + at_once][every])[1].max(axis=0)
            for first in range(0, durations.shape[1], at_once)
        ]
    )
