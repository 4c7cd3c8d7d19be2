"""Bandits beside grid search and the default over many seeds: savings, regret, and what carrying costs over is worth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flyball_planner.recurrences.recurring import STOP_FACTOR

from flyball_studies.zeus.replay import (
    BANDITS,
    Policy,
    Replay,
    drift_of,
    recurrences_of_paper,
    replay_bandit,
    replay_default,
    replay_grid_search,
)
from flyball_studies.zeus.trace import WorkloadTrace


@dataclass(frozen=True)
class SeedResult:
    """Every policy's replay of one workload under one seed: the same draws for all."""

    seed: int
    replays: dict[Policy, Replay]


@dataclass(frozen=True, slots=True)
class PolicySummary:
    """One policy over all seeds, against the default's converged seconds and joules under the same seeds.

    `energy_saved` and `time_saved` are fractions (negative: it takes more). `regret` is cumulative, in joules, shape
    (seeds, recurrences).
    """

    policy: Policy
    energy_saved: float
    time_saved: float
    regret: np.ndarray

    @property
    def final_regret(self) -> float:
        """Mean cumulative regret after the last recurrence, joules."""
        return float(self.regret[:, -1].mean())


@dataclass(frozen=True)
class WorkloadStudy:
    """What one workload's replays come to. `optimum` is (batch size, watts) of the exhaustive sweep."""

    trace: WorkloadTrace
    energy_weight: float
    optimum: tuple[int, int]
    optimum_energy_saved: float
    optimum_time_saved: float
    summaries: dict[Policy, PolicySummary]

    def seeds_of_less_regret(self, policy: Policy, than: Policy) -> int:
        """In how many seeds the cumulative regret of one policy ends below another's."""
        one, other = (self.summaries[each].regret[:, -1] for each in (policy, than))
        return int((one < other).sum())

    def to_json(self) -> dict[str, Any]:
        """What `json.dumps` takes: fractions, joules, and the mean, least and greatest regret at each recurrence."""
        return {
            "workload": self.trace.title,
            "energy_weight": self.energy_weight,
            "default": {
                "batch_size": self.trace.default_batch_size,
                "power_limit_watts": self.trace.power_limits_watts[-1],
            },
            "optimum": {
                "batch_size": self.optimum[0],
                "power_limit_watts": self.optimum[1],
                "energy_saved": self.optimum_energy_saved,
                "time_saved": self.optimum_time_saved,
            },
            "policies": {
                str(policy): {
                    "energy_saved": summary.energy_saved,
                    "time_saved": summary.time_saved,
                    "final_regret_joules": [float(value) for value in summary.regret[:, -1]],
                    "mean_regret_joules": [float(value) for value in summary.regret.mean(axis=0)],
                    "least_regret_joules": [float(value) for value in summary.regret.min(axis=0)],
                    "greatest_regret_joules": [float(value) for value in summary.regret.max(axis=0)],
                }
                for policy, summary in self.summaries.items()
            },
            "seeds_where_zeus_regrets_less": self.seeds_of_less_regret(Policy.ZEUS, Policy.GRID_SEARCH),
        }


def replay_seed(
    trace: WorkloadTrace,
    energy_weight: float,
    seed: int,
    recurrences: int | None = None,
    stop_factor: float = STOP_FACTOR,
    window: int | None = None,
    drift_factor: float = 1.0,
) -> SeedResult:
    """All policies under one seed; `recurrences` defaults to the paper's 2 * |B| * |P|.

    From the middle on an epoch at the best batch size takes `drift_factor` times as long.
    """
    count = recurrences or recurrences_of_paper(trace)
    drift = None if drift_factor == 1.0 else drift_of(trace, energy_weight, drift_factor, count)
    replays: dict[Policy, Replay] = {
        policy: replay_bandit(policy, trace, energy_weight, seed, count, stop_factor, window, drift=drift)
        for policy in BANDITS
    }
    replays[Policy.GRID_STOPPED] = replay_grid_search(trace, energy_weight, seed, count, stop_factor, drift)
    replays[Policy.GRID_SEARCH] = replay_grid_search(trace, energy_weight, seed, count, drift=drift)
    replays[Policy.DEFAULT] = replay_default(trace, energy_weight, seed, count, drift)
    return SeedResult(seed, replays)


def summarise(trace: WorkloadTrace, energy_weight: float, results: Sequence[SeedResult]) -> WorkloadStudy:
    """One workload's study from its seeds (Zeus, section 6.2: the last five recurrences, against Default)."""
    default_time, default_energy = _converged(results, Policy.DEFAULT)
    summaries: dict[Policy, PolicySummary] = {}
    for policy in Policy:
        time, energy = _converged(results, policy)
        summaries[policy] = PolicySummary(
            policy,
            energy_saved=1.0 - energy / default_energy,
            time_saved=1.0 - time / default_time,
            regret=np.array([result.replays[policy].cumulative_regret() for result in results]),
        )
    optimum = trace.optimum(energy_weight)
    best = trace.expected(*optimum)
    start = trace.expected(trace.default_batch_size, trace.power_limits_watts[-1])
    return WorkloadStudy(trace, energy_weight, optimum, 1.0 - best[1] / start[1], 1.0 - best[0] / start[0], summaries)


@dataclass(frozen=True, slots=True)
class TransferStudy:
    """A job carried to another GPU model against one that starts there with nothing: mean cumulative regret, joules."""

    title: str
    carried_regret: float
    cold_regret: float
    seeds: int


def study_transfer(
    source: WorkloadTrace,
    target: WorkloadTrace,
    energy_weight: float,
    seeds: Iterable[int],
    recurrences: int,
    policy: Policy = Policy.KNOWLEDGE_GRADIENT,
) -> TransferStudy:
    """What carrying epochs x epoch cost from `source` to `target` saves (Zeus, section 7, heterogeneous GPUs).

    Each seed learns on the source for the paper's count of recurrences, then runs `recurrences` on the target, with
    draws it has not seen; the cold job sees the same draws there.
    """
    chosen = tuple(seeds)
    offset = 1 + max(chosen)
    carried_regrets, cold_regrets = [], []
    for seed in chosen:
        learnt = replay_bandit(policy, source, energy_weight, seed, recurrences_of_paper(source)).final_state
        carried = learnt.carried_to(epoch_costs(target, energy_weight), seed)
        warm = replay_bandit(policy, target, energy_weight, offset + seed, recurrences, job=carried)
        cold = replay_bandit(policy, target, energy_weight, offset + seed, recurrences)
        carried_regrets.append(warm.cumulative_regret()[-1])
        cold_regrets.append(cold.cumulative_regret()[-1])
    return TransferStudy(target.title, float(np.mean(carried_regrets)), float(np.mean(cold_regrets)), len(chosen))


def epoch_costs(trace: WorkloadTrace, energy_weight: float) -> dict[int, float]:
    """EpochCost(b; eta) in joules of every batch size, at its best power limit (Zeus, section 4.1, equation 7)."""
    weighed = trace.maximum_power_watts * (1.0 - energy_weight)
    return {
        size: min(energy_weight * profile.joules + weighed * profile.seconds for profile in by_limit.values())
        for size, by_limit in trace.profiles.items()
    }


def _converged(results: Sequence[SeedResult], policy: Policy) -> tuple[float, float]:
    """Mean (seconds, joules) over seeds of where a policy converged to."""
    means = np.mean([result.replays[policy].converged() for result in results], axis=0)
    return float(means[0]), float(means[1])
