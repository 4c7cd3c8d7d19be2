"""The published solver of Perseus, lowtime, on our graphs: the peer that frontiers are compared with.

It plans in whole units of time, on exponentials fitted to the Pareto-optimal points (its own cost model), with one
maximum flow a unit. What it hands back is what it would run: a clock for each operation.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator

import networkx
from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.profile import OperatingPoint
from lowtime.cost_model import ExponentialModel
from lowtime.graph_utils import add_sink_node, add_source_node
from lowtime.operation import CandidateExecutionOptions, ExecutionOption, Operation, OperationSpec
from lowtime.solver import PhillipsDessouky

Chosen = tuple[OperatingPoint, ...]  # one point of lowtime's frontier: what each operation runs at


def fitted_options(
    points: tuple[OperatingPoint, ...], unit_seconds: float, blocking_power_watts: float
) -> CandidateExecutionOptions[int]:
    """The Pareto-optimal points in units of time, with effective energy as cost, as lowtime's own example makes them."""
    options = CandidateExecutionOptions(
        options=[
            ExecutionOption(point.time_seconds, unit_seconds, point.energy_joules, point.clock_megahertz)
            for point in points
        ]
    )
    for option in options.options:
        option.cost -= blocking_power_watts * option.quant_time * unit_seconds
    return options


def fit(options: CandidateExecutionOptions[int]) -> ExponentialModel:
    """lowtime's exponential; what it warns of while it tries first guesses is of no concern."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ExponentialModel(options)


def lowtime_frontier(
    graph: ComputationGraph, blocking_power_watts: float, unit_seconds: float
) -> tuple[Iterator[Chosen], list[float]]:
    """lowtime's points, slowest first, and a list to which the CPU seconds spent in lowtime are added as they come."""
    logging.getLogger("lowtime").setLevel(logging.WARNING)
    specs: dict[int, OperationSpec[int]] = {}
    nodes = networkx.DiGraph()
    for place, operation in enumerate(graph.operations):
        key = id(operation.points)
        if key not in specs:
            options = fitted_options(operation.points, unit_seconds, blocking_power_watts)
            specs[key] = OperationSpec(options=options, cost_model=fit(options))
        nodes.add_node(place + 2, op=Operation(spec=specs[key]))
    nodes.add_edges_from((before + 2, after + 2) for before, after in graph.edges)
    add_source_node(nodes, 0)
    add_sink_node(nodes, 1)
    nodes.graph.update(source_node=0, sink_node=1)
    by_clock = [{point.clock_megahertz: point for point in operation.points} for operation in graph.operations]
    operations = [nodes.nodes[place + 2]["op"] for place in range(len(graph.operations))]
    spent = [0.0]

    def points() -> Iterator[Chosen]:
        results = PhillipsDessouky(nodes).run()
        while True:
            started = time.process_time()
            result = next(results, None)
            spent[0] += time.process_time() - started
            if result is None:
                return
            yield tuple(points[operation.assigned_knob] for points, operation in zip(by_clock, operations, strict=True))

    return points(), spent
