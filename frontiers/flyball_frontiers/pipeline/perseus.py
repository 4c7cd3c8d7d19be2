"""Perseus: every point of a pipeline's time-energy frontier, planned exactly and realised on real clocks.

The frontier runs from T_min, every computation as fast as it goes, to T*, every computation at its least effective
energy (Perseus, section 3.1). Its energy is Equation 3 without a straggler, computation and blocking until the pipeline
itself has finished; what waiting longer costs is the frontier's `waiting_power_watts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from flyball_frontiers.frontier import RELATIVE_TOLERANCE, Frontier, FrontierPoint, rounded_up
from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.plan import PipelinePlan
from flyball_frontiers.pipeline.solver.optimality import least_costs
from flyball_frontiers.pipeline.solver.relaxation import RelaxedPlan, TimeCostProgram
from flyball_frontiers.pipeline.solver.rounding import Rounding
from flyball_frontiers.pipeline.solver.steady import find_layers, middle, shorten, tie

Floats = NDArray[np.float64]

Progress = Callable[[int, int], None]
"""Told how many points are solved, and of how many."""

ENERGY_WEIGHT = 3.0
"""How much more a step in energy counts than one in time when points are spread: a look-up between two points loses at
most the energy from one to the next, and time that is not used up is lost only as far as it could have saved energy."""

FINER = 1.3
"""How many times more points are solved than are wanted where the curve's range in energy is known at its end alone."""

LEAST_RANGE = 1 / 8
"""What that range is taken for at least, as a share of what all operations together could cost more."""

OPTIMAL_WITHIN = 5e-7
"""How far a plan that repeats its steady state may be above what is proven to be the least, as a share of its energy."""

PROVEN_PLANS = 9
"""Of how many plans of a frontier that is proven: the fastest, and others evenly along the curve."""


class PerseusPlanner:
    """Plans one pipeline; what it solves it keeps, so that one planner serves a whole frontier and single times.

    `replicas` is how many GPUs do what one GPU of each stage does: data parallel times tensor parallel degree (section
    4.4); energies and the waiting power are those of all of them. A graph that repeats itself (1F1B with many
    microbatches) is planned as such, which costs as much for any number of microbatches. That nothing is lost by it is
    proven with each solve; where it is not, more of the pipeline is planned operation by operation, in the end all of it.
    `repeat=False` does so from the start.
    """

    def __init__(
        self, graph: ComputationGraph, blocking_power_watts: float, *, replicas: int = 1, repeat: bool = True
    ) -> None:
        if not (blocking_power_watts >= 0 and np.isfinite(blocking_power_watts)):
            raise ValueError(f"blocking power must be finite and not negative, not {blocking_power_watts} W")
        if replicas < 1:
            raise ValueError(f"replicas must be at least 1, not {replicas}")
        self.graph = graph
        self.blocking_power_watts = blocking_power_watts
        self.replicas = replicas
        self._layers = find_layers(graph) if repeat else None
        self._widening, self._drifting = 1.0, False
        self._prepare()
        self.t_min = self._program.makespan(self._program.shortest)
        self.t_star = self._program.cheapest().time_seconds

    def _prepare(self) -> None:
        """The program, with ties as far as `_widening` leaves any, and in a common period unless `_drifting`."""
        graph, power, layers = self.graph, self.blocking_power_watts, self._layers
        tied = middle(layers, graph.gpus, self._widening) if layers else None
        self._ties = None if layers is None or tied is None else tie(layers, tied)
        shortened = None if layers is None or tied is None else shorten(graph, layers, tied)
        self._drifting &= self._ties is not None
        self._program = TimeCostProgram(graph, power, self._ties, drifting=self._drifting)
        self._rounding = Rounding(self._program, power, shortened)

    @property
    def repeats(self) -> float:
        """How many times the usual layers are planned one by one, so that repeating the others loses nothing; 0 where all
        are."""
        return 0.0 if self._ties is None else self._widening

    @property
    def drifts(self) -> bool:
        """Whether stages drift apart, so that a common period for all would lose something."""
        return self._drifting

    @property
    def waiting_power_watts(self) -> float:
        return self.replicas * self.graph.gpus * self.blocking_power_watts

    def frontier(self, points: int = 200, progress: Progress | None = None) -> Frontier[PipelinePlan]:
        """The frontier by so many exact points from t_min to t_star, both included; one where these are the same.

        They are spread evenly along the curve, measured in shares of its whole range in time and, `ENERGY_WEIGHT` times,
        in energy: where a little time costs much energy they stand close. `progress` is told how many of them are
        solved. Raises ValueError for less than two.
        """
        if points < 2:
            raise ValueError(f"a frontier needs at least 2 points, not {points}")
        return self._realised(self._proven(lambda: self._along_the_curve(points, progress or _no_progress)))

    def frontier_at(self, times_seconds: Iterable[float]) -> Frontier[PipelinePlan]:
        """The exact points at given times; those outside [t_min, t_star] count as its ends."""
        times = sorted({min(max(time, self.t_min), self.t_star) for time in times_seconds})
        return self._realised(self._proven(lambda: self._solve_falling(times)))

    def plan(self, time_seconds: float) -> FrontierPoint[PipelinePlan]:
        """The exact point at one time: a new solve, where `Frontier.at` looks up the nearest that is known.

        Raises ValueError below t_min.
        """
        if time_seconds < self.t_min * (1 - RELATIVE_TOLERANCE):
            raise ValueError(f"no plan takes {time_seconds} s; the fastest takes {rounded_up(self.t_min)} s")
        return self.frontier_at([time_seconds]).points[0]

    def relaxed(self, time_seconds: float) -> FrontierPoint[None]:
        """Planned seconds and joules alone, the bound that no clocks can beat: a solve without rounding.

        Raises SolverError below t_min.
        """
        (plan,) = self._proven(lambda: [self._program.solve(time_seconds)])
        return FrontierPoint(time_seconds, self.replicas * self._energy(plan), None)

    def _energy(self, plan: RelaxedPlan) -> float:
        """Joules of one GPU of each stage: what is computed, and blocking while it is not."""
        return plan.cost_joules + self.graph.gpus * self.blocking_power_watts * plan.time_seconds

    def _proven(self, solve: Callable[[], list[RelaxedPlan]]) -> list[RelaxedPlan]:
        """What `solve` comes to, with looser and fewer ties as long as a sample of it is better for that.

        Plans that are proven are not tried again. A proof may fail of what is optimal, for want of digits alone.
        """
        plans = solve()
        while self._ties is not None and (doubtful := self._unproven(plans)):
            before = vars(self).copy()
            if not self._loosen(doubtful):
                vars(self).update(before)
                break
            plans = solve()
        return plans

    def _loosen(self, doubtful: Sequence[RelaxedPlan]) -> bool:
        """Go on to looser ties with which one of the plans is better: stages that may drift apart or, where they may
        already or that alone is no better, fewer layers tied besides. False where neither is."""
        for widening in (self._widening, 2 * self._widening)[self._drifting :]:
            self._drifting, self._widening = True, widening
            self._prepare()
            if any(self._is_better(plan) for plan in reversed(doubtful)):
                return True
        return False

    def _unproven(self, plans: Sequence[RelaxedPlan]) -> list[RelaxedPlan]:
        """Those of a sample of the plans (in rising time) of which it is not proven that nothing cheaper is as fast."""
        sample = plans[:: -(-len(plans) // PROVEN_PLANS)]
        program = self._program
        cells = program.ties.cell
        least = least_costs(
            self.graph,
            program.curves,
            program.kinds[cells],
            np.stack([plan.durations for plan in sample], axis=1)[cells],
            np.array([plan.time_seconds for plan in sample]),
        )
        return [
            plan
            for plan, proven in zip(sample, least.tolist(), strict=True)
            if plan.cost_joules - proven > OPTIMAL_WITHIN * abs(self._energy(plan))
        ]

    def _is_better(self, plan: RelaxedPlan) -> bool:
        """Whether the program as it is now knows a cheaper plan that is as fast."""
        saved = plan.cost_joules - self._program.solve(plan.time_seconds).cost_joules
        return saved > OPTIMAL_WITHIN / 10 * abs(self._energy(plan))

    def _along_the_curve(self, points: int, progress: Progress) -> list[RelaxedPlan]:
        if self.t_star <= self.t_min:
            return [self._program.cheapest()]
        return self._walk_evenly(points, progress) if self._drifting else self._walk_freely(points, progress)

    def _walk_evenly(self, points: int, progress: Progress) -> list[RelaxedPlan]:
        """From t_star down, the next time is where the curve, going on with its slope, has left an even share behind.

        It is convex and the slope grows, so that a step may come out longer than wanted; the later ones are then
        shorter. The fastest plan is solved before, from nothing.
        """
        program = self._program
        slowest = program.cheapest()
        fastest = program.solve(self.t_min)
        progress(2, points)
        time_range, cost_range = self.t_star - self.t_min, fastest.cost_joules - slowest.cost_joules
        plans = [slowest]
        program.forget()
        for left in range(points - 1, 1, -1):
            last = plans[-1]
            remaining = last.time_seconds - self.t_min
            length = remaining / time_range + ENERGY_WEIGHT * (fastest.cost_joules - last.cost_joules) / cost_range
            speed = 1 / time_range + ENERGY_WEIGHT * last.joules_per_second / cost_range
            step = min(
                length / left / speed, remaining * (left - 1) / left
            )  # a price at a corner may be the one behind
            plans.append(program.solve(last.time_seconds - step))
            progress(len(plans) + 1, points)
        return [*plans, fastest][::-1]

    def _walk_freely(self, points: int, progress: Progress) -> list[RelaxedPlan]:
        """From t_star down in finer steps than wanted, of which those are kept that lie evenly.

        A network simplex takes as long from nothing to the fastest plan as along the whole curve, so what that costs is
        not known before. It is at least what it would be if the slope stayed as it is.
        """
        program, slowest = self._program, self._program.cheapest()
        time_range = self.t_star - self.t_min
        least = LEAST_RANGE * (program.cost(program.shortest) - slowest.cost_joules)
        plans = [slowest]
        program.forget()
        while (remaining := plans[-1].time_seconds - self.t_min) > 0:
            last = plans[-1]
            known = max(least, last.cost_joules - slowest.cost_joules + last.joules_per_second * remaining)
            speed = 1 / time_range + ENERGY_WEIGHT * last.joules_per_second / known
            step = (1 + ENERGY_WEIGHT) / (FINER * points) / speed
            plans.append(program.solve(self.t_min if step > remaining / 2 else last.time_seconds - step))
            progress(min(points - 1, round(points * (1 - remaining / time_range))), points)
        progress(points, points)
        along = _along(plans)
        if len(plans) < points or np.diff(along).max() > 2 * along[-1] / (points - 1):
            times = np.interp(np.linspace(0, along[-1], points), along, [plan.time_seconds for plan in plans])
            return [*self._solve_falling(times[:0:-1].tolist()), slowest]
        kept = list(range(len(plans)))
        while len(kept) > points:
            gaps = along[kept[2:]] - along[kept[:-2]]
            del kept[1 + int(gaps.argmin())]
        return [plans[place] for place in reversed(kept)]

    def _solve_falling(self, times: list[float]) -> list[RelaxedPlan]:
        self._program.forget()
        return [self._program.solve(time) for time in reversed(times)][::-1]

    def _realised(self, plans: list[RelaxedPlan]) -> Frontier[PipelinePlan]:
        """Round all plans, run them with the independent evaluator, and put both sides into one frontier."""
        replicas = self.replicas
        return Frontier.of(
            (
                FrontierPoint(
                    plan.time_seconds,
                    replicas * self._energy(plan),
                    rounded.plan,
                    rounded.time_seconds,
                    replicas * rounded.energy_joules,
                )
                for plan, rounded in zip(plans, self._rounding.round(plans), strict=True)
            ),
            waiting_power_watts=self.waiting_power_watts,
        )


def _along(plans: Sequence[RelaxedPlan]) -> Floats:
    """How far along the curve plans of falling times are, from the first: in shares of the range in time and,
    `ENERGY_WEIGHT` times, in energy."""
    times = np.array([plan.time_seconds for plan in plans])
    costs = np.array([plan.cost_joules for plan in plans])
    along: Floats = (times[0] - times) / (times[0] - times[-1])
    along += ENERGY_WEIGHT * (costs - costs[0]) / (costs[-1] - costs[0])
    return along


def _no_progress(done: int, of: int) -> None:
    """Stands for a caller that follows no progress."""
