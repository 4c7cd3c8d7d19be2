"""A recurring job replayed from its trace, recurrence by recurrence: by bandits, grid search with pruning, the default.

Zeus, section 6.1: the training trace says how many epochs a run needs (one recorded seed drawn per run), the power
trace how long an epoch takes and at how many watts. The optimisers see only what a real run would show them. Every
policy faces the same draws: the n-th run at a batch size needs the same epochs whoever starts it.

A recurrence is one arrival of the job, and ends when its target is reached: what failed and stopped runs cost on the
way counts to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from flyball_frontiers.zeus.power_limit import LeastCost
from flyball_frontiers.zeus.profiler import SLICE_SECONDS, Reading, SliceProfiler
from flyball_planner.recurrences.cost import energy_time_cost
from flyball_planner.recurrences.recurring import STOP_FACTOR, ChoiceRule, RecurringJob

from flyball_studies.zeus.trace import WorkloadTrace

MOST_TRIES = 20
"""Runs of one recurrence before a replay gives up: the target is then out of reach."""

READINGS_PER_SLICE = 16
"""Iteration boundaries within one slice of a profile; only the grain of the replayed profile."""


class Policy(StrEnum):
    KNOWLEDGE_GRADIENT = "Knowledge gradient"  # what a RecurringJob does unless told otherwise
    ZEUS = "Zeus"  # as in the paper
    COMMIT = "Explore, then commit"  # Zeus' two rounds of pruning, then the least mean
    GRID_STOPPED = "Grid search, stopped early"  # at as many times the least cost as Zeus
    GRID_SEARCH = "Grid search"
    DEFAULT = "Default"


BANDITS: dict[Policy, tuple[ChoiceRule, int]] = {
    Policy.KNOWLEDGE_GRADIENT: (ChoiceRule.KNOWLEDGE_GRADIENT, 1),
    Policy.ZEUS: (ChoiceRule.THOMPSON, 2),
    Policy.COMMIT: (ChoiceRule.LEAST_MEAN, 2),
}
"""How each chooses, and its rounds of pruning."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The workload as it is from the middle of a replay on (`WorkloadTrace.drifted`)."""

    trace: WorkloadTrace
    first_recurrence: int


@dataclass(frozen=True, slots=True)
class TrialRun:
    """One run of a recurrence: its configuration and what it took. `power_limit_watts`: of all but profiled slices."""

    batch_size: int
    power_limit_watts: int
    time_seconds: float
    energy_joules: float
    cost_joules: float
    epochs: float
    reached: bool


@dataclass(frozen=True, slots=True)
class Recurrence:
    """One arrival of the job: its runs in order, the last of which reached the target."""

    runs: tuple[TrialRun, ...]

    @property
    def time_seconds(self) -> float:
        return math.fsum(run.time_seconds for run in self.runs)

    @property
    def energy_joules(self) -> float:
        return math.fsum(run.energy_joules for run in self.runs)

    @property
    def cost_joules(self) -> float:
        return math.fsum(run.cost_joules for run in self.runs)


@dataclass
class ReplayedCluster:
    """Runs of one workload as its trace recorded them, counting draws so that policies can be compared."""

    trace: WorkloadTrace
    energy_weight: float
    seed: int
    slice_seconds: float = SLICE_SECONDS
    _runs: dict[int, int] = field(default_factory=dict)

    def epochs_needed(self, batch_size: int) -> float | None:
        """Epochs to the target of the next run at this batch size; None where it never gets there."""
        run = self._runs.get(batch_size, 0)
        self._runs[batch_size] = run + 1
        draw = np.random.default_rng([self.seed, batch_size, run])
        found = self.trace.epochs[batch_size]
        return found[int(draw.integers(len(found)))]

    def run(self, batch_size: int, power_limit_watts: int, cost_limit_joules: float | None = None) -> TrialRun:
        """One run at a configuration, stopped where its cost meets the limit or its epochs the maximum."""
        return self._continued(batch_size, power_limit_watts, cost_limit_joules, 0.0, 0.0, 0.0)

    def run_profiled(self, batch_size: int, cost_limit_joules: float | None) -> TrialRun:
        """A first run at a batch size: profile the power limits in slices, then run on at the best (section 4.2).

        Where an epoch is shorter than the slices of all limits, they share it evenly, as in the artifact's replay.
        """
        by_limit = self.trace.profiles[batch_size]
        shortest = min(profile.seconds for profile in by_limit.values())
        profiler = SliceProfiler(
            tuple(1000 * watts for watts in by_limit),
            LeastCost(self.energy_weight),
            slice_seconds=min(self.slice_seconds, shortest / len(by_limit)),
            settle_seconds=0.0,
        )
        time = energy = epochs = 0.0
        while not profiler.done:
            limit = profiler.wanted_power_limit_milliwatts
            profiler = profiler.advance(Reading(epochs, time, energy, limit))
            if profiler.done or profiler.wanted_power_limit_milliwatts != limit:
                continue
            step = profiler.slice_seconds / READINGS_PER_SLICE * (1 + 1e-9)
            profile = by_limit[limit // 1000]
            time, energy = time + step, energy + step * profile.average_power_watts
            epochs += step / profile.seconds
        best = profiler.wanted_power_limit_milliwatts // 1000
        return self._continued(batch_size, best, cost_limit_joules, time, energy, epochs)

    def _continued(
        self, batch_size: int, power_limit_watts: int, limit: float | None, time: float, energy: float, epochs: float
    ) -> TrialRun:
        """A run from where a profile left it to its target, its cost limit or its last epoch."""
        profile = self.trace.profiles[batch_size][power_limit_watts]
        needed = self.epochs_needed(batch_size)
        reached = self.trace.reaches(batch_size, needed)
        wanted = float(self.trace.maximum_epochs if needed is None or not reached else needed)
        rest = max(0.0, wanted - epochs)
        per_epoch = self._cost(profile.joules, profile.seconds)
        if limit is not None and self._cost(energy, time) + rest * per_epoch > limit:
            rest, reached = max(0.0, limit - self._cost(energy, time)) / per_epoch, False
        time, energy = time + rest * profile.seconds, energy + rest * profile.joules
        return TrialRun(batch_size, power_limit_watts, time, energy, self._cost(energy, time), epochs + rest, reached)

    def _cost(self, energy: float, time: float) -> float:
        return energy_time_cost(energy, time, self.energy_weight, self.trace.maximum_power_watts)


@dataclass(frozen=True)
class Replay:
    """One policy's recurrences on one workload, and the regret against the best configuration (equations 8 and 9)."""

    trace: WorkloadTrace
    policy: Policy
    energy_weight: float
    recurrences: tuple[Recurrence, ...]
    drift: Drift | None = None

    def cumulative_regret(self) -> np.ndarray:
        """Joules, shape (recurrences,): cost so far above that of the best configuration every time."""
        costs = np.array([recurrence.cost_joules for recurrence in self.recurrences])
        least = np.full(len(costs), _least_cost(self.trace, self.energy_weight))
        if self.drift is not None:
            least[self.drift.first_recurrence :] = _least_cost(self.drift.trace, self.energy_weight)
        return np.cumsum(costs - least)

    def converged(self, last: int = 5) -> tuple[float, float]:
        """Mean (seconds, joules) of the last recurrences: where the policy converged to (section 6.2 takes five)."""
        tail = self.recurrences[-last:]
        return (
            math.fsum(recurrence.time_seconds for recurrence in tail) / len(tail),
            math.fsum(recurrence.energy_joules for recurrence in tail) / len(tail),
        )


@dataclass(frozen=True, kw_only=True)
class BanditReplay(Replay):
    """A bandit's recurrences, and what it has learnt by their end."""

    final_state: RecurringJob


def recurrences_of_paper(trace: WorkloadTrace) -> int:
    """2 * |B| * |P|: grid search finishes and can still exploit its choice (section 6.2)."""
    return 2 * len(trace.batch_sizes) * len(trace.power_limits_watts)


def drift_of(trace: WorkloadTrace, energy_weight: float, factor: float, recurrences: int) -> Drift:
    """The best batch size's epochs take `factor` times as long from the middle of the recurrences on."""
    return Drift(trace.drifted(energy_weight, factor), recurrences // 2)


def replay_bandit(
    policy: Policy,
    trace: WorkloadTrace,
    energy_weight: float,
    seed: int,
    recurrences: int,
    stop_factor: float = STOP_FACTOR,
    window: int | None = None,
    job: RecurringJob | None = None,
    drift: Drift | None = None,
) -> BanditReplay:
    """One of `BANDITS` on a workload; `job` continues a known job (as one carried from another GPU model)."""
    cluster = ReplayedCluster(trace, energy_weight, seed)
    choice, rounds = BANDITS[policy]
    state = job or RecurringJob(
        trace.batch_sizes,
        trace.default_batch_size,
        seed,
        stop_factor,
        window,
        choice=choice,
        pruning_rounds=rounds,
    )
    limits: dict[int, int] = {}

    def once() -> TrialRun:
        nonlocal state
        state, decision = state.decide()
        size = decision.batch_size
        if size in limits:
            run = cluster.run(size, limits[size], decision.cost_limit_joules)
        else:
            run = cluster.run_profiled(size, decision.cost_limit_joules)
            limits[size] = run.power_limit_watts
        state = state.finish(decision.number, run.cost_joules, reached=run.reached, epochs=run.epochs)
        return run

    repeated = _repeat(once, recurrences, cluster, drift)
    return BanditReplay(trace, policy, energy_weight, repeated, drift, final_state=state)


def replay_grid_search(
    trace: WorkloadTrace,
    energy_weight: float,
    seed: int,
    recurrences: int,
    stop_factor: float = math.inf,
    drift: Drift | None = None,
) -> Replay:
    """Grid search with pruning (section 6.1): each configuration once, then the cheapest seen, for ever.

    The default batch size at the largest limit comes first; a batch size that fails is left out from then on. While it
    searches, a run is stopped at `stop_factor` times the least cost seen (the paper's never is): at its first limit the
    batch size has failed, at a later one that limit.
    """
    cluster = ReplayedCluster(trace, energy_weight, seed)
    limits = sorted(trace.power_limits_watts, reverse=True)
    sizes = sorted(trace.batch_sizes, key=lambda size: (size != trace.default_batch_size, size))
    left = [(size, limit) for size in sizes for limit in limits]
    found: dict[tuple[int, int], float] = {}

    def once() -> TrialRun:
        nonlocal left
        size, limit = left[0] if left else min(found, key=lambda configuration: (found[configuration], configuration))
        most = stop_factor * min(found.values()) if left and found and math.isfinite(stop_factor) else None
        run = cluster.run(size, limit, most)
        stopped = not run.reached and most is not None and run.cost_joules >= most * (1 - 1e-9)
        if stopped and any(configuration[0] == size for configuration in found):
            left.pop(0)
        elif not run.reached:
            left = [configuration for configuration in left if configuration[0] != size]
            for configuration in [configuration for configuration in found if configuration[0] == size]:
                del found[configuration]
        elif left:
            found[left.pop(0)] = run.cost_joules
        return run

    policy = Policy.GRID_STOPPED if math.isfinite(stop_factor) else Policy.GRID_SEARCH
    return Replay(trace, policy, energy_weight, _repeat(once, recurrences, cluster, drift), drift)


def replay_default(
    trace: WorkloadTrace, energy_weight: float, seed: int, recurrences: int, drift: Drift | None = None
) -> Replay:
    """The default batch size at the largest power limit, every time (section 6.1)."""
    cluster = ReplayedCluster(trace, energy_weight, seed)
    limit = trace.power_limits_watts[-1]

    def once() -> TrialRun:
        return cluster.run(trace.default_batch_size, limit)

    return Replay(trace, Policy.DEFAULT, energy_weight, _repeat(once, recurrences, cluster, drift), drift)


def _least_cost(trace: WorkloadTrace, energy_weight: float) -> float:
    return trace.expected_cost(*trace.optimum(energy_weight), energy_weight)


def _repeat(
    once: Callable[[], TrialRun], recurrences: int, cluster: ReplayedCluster, drift: Drift | None
) -> tuple[Recurrence, ...]:
    finished: list[Recurrence] = []
    for number in range(recurrences):
        if drift is not None and number == drift.first_recurrence:
            cluster.trace = drift.trace
        runs = [once()]
        while not runs[-1].reached:
            if len(runs) == MOST_TRIES:
                title = cluster.trace.title
                raise RuntimeError(f"{title}: recurrence {number} missed its target {MOST_TRIES} times in a row")
            runs.append(once())
        finished.append(Recurrence(tuple(runs)))
    return tuple(finished)
