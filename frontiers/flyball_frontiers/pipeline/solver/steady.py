"""The steady state of a pipeline: what repeats from microbatch to microbatch, and plans that repeat with it.

Between its warm-up and its flush a 1F1B pipeline does the same again and again. An optimal plan may do so too: where
all copies of a computation have one duration, and start times that grow linearly, the linear program of an iteration
keeps its size however many microbatches there are. Nothing about the schedule is taken for granted: layers are found in
the graph itself, and a graph that has none is planned as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flyball_frontiers.pipeline.graph import ComputationGraph

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

HEAD_LAYERS_PER_GPU, TAIL_LAYERS_PER_GPU = 1.0, 1.5
"""How many layers for each GPU are planned one by one at the beginning of the steady state, which the warm-up disturbs,
and at its end, which the flush disturbs for longer. With as many, plans are mostly those in which nothing is tied; the
planner takes more where it finds no proof of that."""

FEWEST_TIED_LAYERS = 4
"""Ties of fewer layers save nothing: a tied computation has two start times."""

BLOCK_LAYERS = (16, 24)
"""How many layers, at least and at most, a plan on real clocks repeats: enough that the seconds which rounding leaves over
can be spent among them."""


@dataclass(frozen=True, eq=False)
class Layers:
    """A graph cut into layers, so that each dependency stays in its layer or goes to the next.

    `layer` and `kind` (place in the period) have an entry per operation; no two operations share both. All layers from
    `first` to `last` (both included) have the same operations with the same dependencies into the next.
    """

    layer: Integers
    kind: Integers
    first: int
    last: int

    @property
    def whole(self) -> int:
        """How many layers there are from `first` to `last`."""
        return self.last - self.first + 1


@dataclass(frozen=True, eq=False)
class Ties:
    """Which operations share a duration (`cell`, per operation, counted from 0), and start one after the other at even
    intervals: `lap` 0 is the first of its cell. `order` is the operations' layer."""

    cell: Integers
    lap: Integers
    order: Integers

    @cached_property
    def copies(self) -> Integers:
        """How many operations each cell has."""
        return np.bincount(self.cell)

    @classmethod
    def none(cls, count: int) -> Ties:
        """Every operation is a cell of its own."""
        places = np.arange(count)
        return cls(places, np.zeros_like(places), places)


def find_layers(graph: ComputationGraph) -> Layers | None:
    """The layers of a graph, or None where it has no steady state: where what waits for what changes all the time.

    An operation's layer is its microbatch less an offset of its kind (GPU, part of the model, instruction). Offsets with
    which every dependency spans at most one layer are the solution of difference constraints (Bellman and Ford).
    """
    names = [(o.stage, o.chunk, o.instruction) for o in graph.operations]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    kind = np.array([numbers[name] for name in names])
    microbatch = np.array([operation.microbatch for operation in graph.operations])
    edges = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
    if len(np.unique(np.stack([kind, microbatch]), axis=1).T) < len(kind) or not len(edges):
        return None
    before, after = edges[:, 0], edges[:, 1]
    spans = np.unique(np.stack([kind[before], kind[after], microbatch[after] - microbatch[before]]), axis=1)
    offset = _offsets(spans, len(numbers))
    if offset is None:
        return None
    layer = microbatch - offset[kind]
    layer -= layer.min()
    signature = _signatures(graph, layer, kind, before, after)
    changes = np.flatnonzero(signature[1:] != signature[:-1]) + 1
    bounds = np.concatenate([[0], changes, [len(signature)]])
    longest = int(np.argmax(np.diff(bounds)))
    return Layers(layer, kind, int(bounds[longest]), int(bounds[longest + 1]) - 1)


def _offsets(spans: Integers, kinds: int) -> Integers | None:
    """Offsets o with 0 <= span - (o[after] - o[before]) <= 1 for every (before, after, span); None if there are none."""
    source = np.concatenate([spans[0], spans[1]])
    target = np.concatenate([spans[1], spans[0]])
    most = np.concatenate([spans[2], 1 - spans[2]])
    offset = np.zeros(kinds, dtype=np.int64)
    for _ in range(kinds + 1):
        lowered = offset.copy()
        np.minimum.at(lowered, target, offset[source] + most)
        if (lowered == offset).all():
            return offset
        offset = lowered
    return None


def _signatures(
    graph: ComputationGraph, layer: Integers, kind: Integers, before: Integers, after: Integers
) -> Integers:
    """A number for each layer; two that are equal have the same operations and the same dependencies from them."""
    draw = np.random.default_rng(0)
    points: dict[object, int] = {}
    by_identity: dict[int, int] = {}  # hashing all points of each operation would take longer than all else
    for operation in graph.operations:
        if id(operation.points) not in by_identity:
            by_identity[id(operation.points)] = points.setdefault(operation.points, len(points))
    measured = np.array([by_identity[id(operation.points)] for operation in graph.operations])
    signature: Integers = np.zeros(int(layer.max()) + 1, dtype=np.int64)
    for where, what in (
        (layer, np.stack([kind, measured, np.zeros_like(kind)])),
        (layer[before], np.stack([kind[before], kind[after], 1 + layer[after] - layer[before]])),
    ):
        each, which = np.unique(what, axis=1, return_inverse=True)
        words: Integers = draw.integers(-(1 << 62), 1 << 62, size=(each.shape[1],))
        np.add.at(signature, where, words[which.reshape(-1)])  # wraps around
    return signature


def boundary_layers(gpus: int, widening: float = 1.0) -> tuple[int, int]:
    """How many layers at the beginning and at the end are planned one by one; `widening` is how many times the usual
    number."""
    return math.ceil(widening * HEAD_LAYERS_PER_GPU * gpus), math.ceil(widening * TAIL_LAYERS_PER_GPU * gpus)


def middle(layers: Layers, gpus: int, widening: float = 1.0) -> tuple[int, int] | None:
    """The layers (first, last) far enough from warm-up and flush to be planned as one; None where they are too few."""
    head, tail = boundary_layers(gpus, widening)
    first, last = layers.first + head, layers.last - tail
    return (first, last) if last - first + 1 >= FEWEST_TIED_LAYERS else None


def tie(layers: Layers, tied: tuple[int, int]) -> Ties:
    """Ties of the operations of one kind in the layers from `tied[0]` to `tied[1]`."""
    first, last = tied
    block = np.minimum(layers.layer, first) + np.maximum(layers.layer - last, 0)
    _, cell = np.unique(layers.kind * (int(layers.layer.max()) + 1) + block, return_inverse=True)
    inside = (layers.layer >= first) & (layers.layer <= last)
    return Ties(cell.reshape(-1), np.where(inside, layers.layer - first, 0), layers.layer)


@dataclass(frozen=True, eq=False)
class Shortened:
    """A graph without the copies of a block of layers that are planned alike.

    `places` says for each operation of the whole graph which of the short one stands for it. `entry` are the short
    graph's operations in the first layer of the block, `exit` those of the same kinds in the first layer after it;
    `removed_layers` are the layers that were taken out behind the block, a multiple of its `block_layers`. `within` are the
    dependencies of one layer and into the next, as (places in `entry`, places in `entry`, layers from one to the other).
    """

    graph: ComputationGraph
    places: Integers
    entry: Integers
    exit: Integers
    block_layers: int
    removed_layers: int
    within: Integers


def shorten(graph: ComputationGraph, layers: Layers, tied: tuple[int, int]) -> Shortened | None:
    """The graph with one block of layers for all copies of it that `tied` holds; None where it holds one only.

    The last layer of `tied` is left behind the block: what starts in it does so as in the block's first.
    """
    count = tied[1] - tied[0]
    block = min(range(BLOCK_LAYERS[0], BLOCK_LAYERS[1] + 1), key=lambda size: (count % size, size))
    first, removed = tied[0] + count % block, count - count % block - block
    if removed < block:
        return None
    kinds = int(layers.kind.max()) + 1
    at = np.full((int(layers.layer.max()) + 1, kinds), -1)
    at[layers.layer, layers.kind] = np.arange(len(layers.layer))
    copy = (layers.layer >= first) & (layers.layer < tied[1])
    standing = np.where(copy, first + (layers.layer - first) % block, layers.layer)
    kept = standing == layers.layer
    number = np.cumsum(kept) - 1
    places = number[at[standing, layers.kind]]
    dependencies = np.array(graph.dependencies, dtype=np.int64).reshape(-1, 2)
    dependencies = dependencies[kept[dependencies[:, 1]]]
    remaining = np.flatnonzero(kept).tolist()
    short = ComputationGraph(
        tuple(graph.operations[place] for place in remaining),
        tuple(tuple(int(number[place]) for place in program if kept[place]) for program in graph.programs),
        tuple(zip(places[dependencies[:, 0]].tolist(), number[dependencies[:, 1]].tolist(), strict=True)),
    )
    present = np.flatnonzero(at[first] >= 0)
    column = np.full(kinds, -1)
    column[present] = np.arange(len(present))
    edges = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
    edges = edges[layers.layer[edges[:, 0]] == first]
    within = np.stack(
        [column[layers.kind[edges[:, 0]]], column[layers.kind[edges[:, 1]]], layers.layer[edges[:, 1]] - first]
    )
    return Shortened(short, places, number[at[first, present]], number[at[tied[1], present]], block, removed, within)
