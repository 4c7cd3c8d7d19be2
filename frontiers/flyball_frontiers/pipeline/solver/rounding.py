"""Plans of a pipeline on real clocks: rounded where the pipeline is unlike itself, and repeated where it repeats.

The steady state of a long pipeline is rounded once, as a block of layers whose first starts are pinned: each copy of the
block then finds what the one before it found, and takes as long. The independent evaluator runs what comes of it on the
whole graph. Where a plan's stages drift apart, so that no block can be repeated, the plan is rounded as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flyball_frontiers.frontier import RELATIVE_TOLERANCE
from flyball_frontiers.pipeline.evaluate import spans
from flyball_frontiers.pipeline.plan import PipelinePlan
from flyball_frontiers.pipeline.solver.realise import PIN_TOLERANCE, Pins, Realiser
from flyball_frontiers.pipeline.solver.relaxation import RelaxedPlan, TimeCostProgram
from flyball_frontiers.pipeline.solver.steady import Shortened

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

NUMBERS_AT_ONCE = 2_000_000
"""How many durations of a whole graph are held at a time, and with it the memory."""


@dataclass(frozen=True, eq=False)
class RoundedPlan:
    """A plan on real clocks, and what the evaluator says of it: the iteration's seconds and joules, blocking included."""

    plan: PipelinePlan
    time_seconds: float
    energy_joules: float


class Rounding:
    """Rounds the plans of one program. `shortened` is its graph with the steady state once, None where it has none."""

    def __init__(self, program: TimeCostProgram, blocking_power_watts: float, shortened: Shortened | None) -> None:
        self._program, self._blocking_power = program, blocking_power_watts
        self._graph, self._shortened = program.graph, shortened
        curves = program.curves
        width = max(len(curve.points) for curve in curves)
        self._seconds, self._joules = np.zeros((len(curves), width)), np.zeros((len(curves), width))
        for kind, curve in enumerate(curves):
            self._seconds[kind, : len(curve.points)] = [point.time_seconds for point in curve.points]
            self._joules[kind, : len(curve.points)] = [point.energy_joules for point in curve.points]

    def round(self, plans: Sequence[RelaxedPlan]) -> list[RoundedPlan]:
        """The plans on real clocks, in the same order; they must rise in time. None takes longer than planned."""
        rounded: list[RoundedPlan | None] = [None] * len(plans)
        if self._shortened is not None:
            rounded = self._round_repeated(plans, self._shortened)
        left = [number for number, plan in enumerate(rounded) if plan is None]
        for number, plan in zip(left, self._round_whole([plans[number] for number in left]), strict=True):
            rounded[number] = plan
        return [plan for plan in rounded if plan is not None]

    def _round_repeated(self, plans: Sequence[RelaxedPlan], short: Shortened) -> list[RoundedPlan | None]:
        """Each plan with its block repeated, or None where that would take longer than planned."""
        program = self._program
        cells = np.zeros(len(short.graph.operations), dtype=np.int64)
        cells[short.places] = program.ties.cell
        realiser = Realiser(short.graph, program.curves, program.kinds[cells], np.bincount(short.places))
        planned = np.stack([plan.durations for plan in plans], axis=1)[cells]
        layer = np.array([plan.layer_seconds for plan in plans])
        times = np.array([plan.time_seconds for plan in plans])
        ends = times * (1 + PIN_TOLERANCE) - short.removed_layers * layer
        snapped = realiser.snap(planned)
        entry = realiser.earliest_starts(snapped)[short.entry]
        starts = _steady_starts(entry, snapped[short.entry], short.within, layer)
        pins = Pins(
            np.concatenate([short.entry, short.exit]), np.concatenate([starts, starts + short.block_layers * layer])
        )
        fine = np.flatnonzero(realiser.keeps(snapped, ends, pins))
        if not fine.size:
            return [None] * len(plans)
        choices = realiser.realise(planned[:, fine], ends[fine], pins.of(fine))
        found = self._run(choices, cells, short.places, [plans[number] for number in fine.tolist()])
        rounded: list[RoundedPlan | None] = [None] * len(plans)
        for number, plan in zip(fine.tolist(), found, strict=True):
            if plan.time_seconds <= times[number]:
                rounded[number] = plan
        return rounded

    def _round_whole(self, plans: Sequence[RelaxedPlan]) -> list[RoundedPlan]:
        """Each plan on the whole graph."""
        if not plans:
            return []
        program, cells = self._program, self._program.ties.cell
        realiser = Realiser(self._graph, program.curves, program.kinds[cells])
        at_once = max(1, NUMBERS_AT_ONCE // len(cells))
        rounded: list[RoundedPlan] = []
        for first in range(0, len(plans), at_once):
            some = plans[first : first + at_once]
            planned = np.stack([plan.durations for plan in some], axis=1)[cells]
            choices = realiser.realise(planned, np.array([plan.time_seconds for plan in some]))
            rounded += self._run(choices, cells, None, some)
        return rounded

    def _run(
        self, choices: Integers, cells: Integers, places: Integers | None, plans: Sequence[RelaxedPlan]
    ) -> list[RoundedPlan]:
        """Run choices (operations, plans) with the evaluator on the whole graph, where `places` says which stands for
        which operation."""
        program, graph = self._program, self._graph
        kinds = program.kinds[cells]
        seconds, joules = self._seconds[kinds[:, None], choices], self._joules[kinds[:, None], choices]
        every = np.arange(len(cells)) if places is None else places
        programmed = [place for row in graph.programs for place in row]
        copies = np.bincount(every, minlength=len(cells)).astype(np.float64)
        on_gpu = np.bincount(every[programmed], minlength=len(cells)).astype(np.float64)
        ends = spans(graph, seconds, places, at_once=max(1, NUMBERS_AT_ONCE // len(graph.operations)))
        energies = copies @ joules + self._blocking_power * (graph.gpus * ends - on_gpu @ seconds)
        points = [curve.points for curve in program.curves]
        listed = kinds.tolist()
        return [
            RoundedPlan(
                PipelinePlan(
                    plan.durations[cells],
                    program.energies(plan.durations)[cells],
                    tuple([points[kind][choice] for kind, choice in zip(listed, column, strict=True)]),
                    places,
                ),
                min(span, plan.time_seconds) if span <= plan.time_seconds * (1 + RELATIVE_TOLERANCE) else span,
                energy,
            )
            for plan, column, span, energy in zip(
                plans, choices.T.tolist(), ends.tolist(), energies.tolist(), strict=True
            )
        ]


def _steady_starts(entry: Floats, durations: Floats, within: Integers, layer_seconds: Floats) -> Floats:
    """The earliest starts (operations of a layer, plans), none before `entry`, from which every layer starts
    `layer_seconds` after the one before it: potentials of the dependencies within a layer and into the next."""
    starts = entry
    for _ in range(len(entry)):
        later = starts.copy()
        reached = starts[within[0]] + durations[within[0]] - within[2][:, None] * layer_seconds
        np.maximum.at(later, within[1], reached)
        if (later - starts <= PIN_TOLERANCE * layer_seconds).all():
            break
        starts = later
    return starts
