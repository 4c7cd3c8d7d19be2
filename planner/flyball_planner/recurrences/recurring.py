"""The batch size of a job that comes again and again: explore with pruning, then Thompson sampling.

Zeus, sections 4.3 and 4.4, Algorithm 3. `RecurringJob` is a value: each decision and each result gives a new one, so it
can be stored between recurrences (they are hours apart) and a decision can be made again with the same result. Random
draws come from the seed and the number of the decision, never from a generator that lives on.

Three readings where the paper is silent:
- The drift window holds the most recent runs of all batch sizes ("a time frame of two weeks", section 6.4). A batch size
  that was not run within it is neither forgotten, which would force a costly exploration of each every few weeks, nor
  believed as firmly as before: it counts as seen once, at its last cost, so that sampling looks again where it matters.
- Early stopping holds a run to beta times the least cost *within the drift window*. When data drift makes every batch
  size dearer than that, every run would be stopped for ever; so each Thompson run that follows a stopped one may cost
  beta times more than the last. A job is then trained at the price of a constant factor, however far costs moved.
- Where the second round of pruning loses every batch size, the survivors of the first are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from flyball_planner.recurrences.bandit import (
    FLAT_PRIOR,
    Belief,
    choose_arm,
    learn,
    most_valuable_arm,
    pooled_spread,
)
from flyball_planner.recurrences.pruning import Explored, PruningRound

STOP_FACTOR = 2.0
"""Zeus, section 4.4: beta, above the 14 % by which runs of one configuration vary, and the best of 1.5-5 (Fig. 12)."""

KEPT_RUNS = 50
"""Runs kept of each batch size, which bounds the stored state; more would hardly move a belief."""


class NoBatchSizeReachesTarget(RuntimeError):
    """Every batch size that may be tried failed to reach the target metric."""


class ChoiceRule(StrEnum):
    """How a batch size is chosen once pruning is over."""

    KNOWLEDGE_GRADIENT = "KnowledgeGradient"  # least cost less what a run teaches
    THOMPSON = "Thompson"  # as in the paper
    LEAST_MEAN = "LeastMean"  # explore, then commit


class Purpose(StrEnum):
    """Why a run has its batch size."""

    EXPLORE = "Explore"  # the next step of pruning
    BEST_KNOWN = "BestKnown"  # concurrent with an exploring run
    SAMPLE = "Sample"  # chosen by what is believed


@dataclass(frozen=True, slots=True)
class Run:
    """One finished run: cost in joules (of what it ran, if it was stopped), whether it reached the target, epochs."""

    batch_size: int
    cost: float
    reached: bool
    epochs: float


@dataclass(frozen=True, slots=True)
class Decision:
    """One recurrence's batch size. `cost_limit_joules`: stop the run there (None: nothing is known to compare with)."""

    number: int
    batch_size: int
    purpose: Purpose
    cost_limit_joules: float | None


@dataclass(frozen=True)
class RecurringJob:
    """What is known of a recurring job's batch sizes on one GPU model, and which runs are out.

    `batch_sizes` may be in any order; `default_batch_size` is the user's. `seed` fixes every random draw. Build one with
    the first three; the rest is knobs and state. `window`: how many of the latest runs count, against data drift (Zeus,
    section 4.4; 10 in section 6.4); None: all. `choice` and `pruning_rounds` default to what regrets least
    (docs/frontiers.md); the paper's are Thompson and 2. Raises ValueError where the default is not among the batch sizes,
    or a knob is out of range (`stop_factor` > 1, 2 <= `window` <= KEPT_RUNS).
    """

    batch_sizes: tuple[int, ...]
    default_batch_size: int
    seed: int
    stop_factor: float = STOP_FACTOR
    window: int | None = None
    prior: Belief = FLAT_PRIOR
    choice: ChoiceRule = ChoiceRule.KNOWLEDGE_GRADIENT
    pruning_rounds: int = 1
    rounds: tuple[PruningRound, ...] = ()
    runs: tuple[Run, ...] = ()
    pending: tuple[Decision, ...] = ()
    decisions: int = 0
    arms: tuple[int, ...] | None = None  # set once sampling has begun

    def __post_init__(self) -> None:
        if not self.stop_factor > 1.0:
            raise ValueError(f"stop factor {self.stop_factor} is not above 1 (beta, 2 by default; inf never stops)")
        if self.window is not None and not 2 <= self.window <= KEPT_RUNS:
            raise ValueError(f"window {self.window} is not 2 to {KEPT_RUNS} runs (None: no drift is expected)")
        if self.pruning_rounds < 1:
            raise ValueError(f"{self.pruning_rounds} rounds of pruning: at least 1")
        if not self.rounds:
            first = PruningRound(tuple(sorted(self.batch_sizes)), self.default_batch_size)
            object.__setattr__(self, "rounds", (first,))
            object.__setattr__(self, "batch_sizes", first.batch_sizes)

    # What is known

    @property
    def exploring(self) -> bool:
        """Whether pruning is still under way (Algorithm 3, lines 2-9)."""
        return self.arms is None

    def costs(self, batch_size: int) -> tuple[float, ...]:
        """The costs of one batch size that its belief rests on, oldest first, stopped runs at what they had cost.

        Those within the window; where there are none, the last one before it. A stopped run would have cost at least
        what it did; counting it keeps the belief of a bad batch size bad.
        """
        recent = tuple(run.cost for run in self._recent() if run.batch_size == batch_size)
        return recent or tuple(run.cost for run in self.runs if run.batch_size == batch_size)[-1:]

    def beliefs(self) -> dict[int, Belief]:
        """The belief of every batch size that sampling chooses from, or may once pruning is over."""
        return {size: learn(self.costs(size), self.prior) for size in self.arms or self.rounds[-1].batch_sizes}

    @property
    def least_cost(self) -> float | None:
        """The least cost in joules of a run that reached the target, within the window; None before one did."""
        best = self._best_known()
        return None if best is None else best.cost

    @property
    def best_batch_size(self) -> int:
        """The batch size of least believed cost; the best run's while exploring; the default before any run."""
        if self.arms is not None:
            beliefs = self.beliefs()
            return min(beliefs, key=lambda size: (math.isinf(beliefs[size].variance), beliefs[size].mean, size))
        best = self._best_known()
        return self.default_batch_size if best is None else best.batch_size

    def epochs(self, batch_size: int) -> float | None:
        """Mean epochs to the target at a batch size; None where none of its runs reached it."""
        reached = [run.epochs for run in self.runs if run.batch_size == batch_size and run.reached]
        return math.fsum(reached) / len(reached) if reached else None

    # Deciding and learning

    def decide(self) -> tuple[RecurringJob, Decision]:
        """The batch size for a recurrence that is submitted now, and the job that remembers having decided.

        Raises NoBatchSizeReachesTarget where pruning found none.
        """
        limit = self._cost_limit()
        if self.arms is None:
            following = self.rounds[-1].next_batch_size
            if following is None:
                raise NoBatchSizeReachesTarget(
                    f"none of the batch sizes {self.rounds[0].batch_sizes} reached the target metric; it may be out of "
                    "reach, or the epochs allowed too few"
                )
            if any(decision.purpose is Purpose.EXPLORE for decision in self.pending):
                decision = Decision(self.decisions, self.best_batch_size, Purpose.BEST_KNOWN, limit)
            else:
                decision = Decision(self.decisions, following, Purpose.EXPLORE, limit)
        else:
            decision = Decision(self.decisions, self._chosen(), Purpose.SAMPLE, limit)
        return replace(self, decisions=self.decisions + 1, pending=(*self.pending, decision)), decision

    def finish(self, number: int, cost_joules: float, *, reached: bool, epochs: float) -> RecurringJob:
        """The search with the result of the run of decision `number` added; runs may end in any order.

        `cost_joules` is the energy-time cost of what ran; `reached` whether the target metric was; `epochs` how many it
        ran. Raises KeyError where that decision is not out, ValueError on a cost that is not positive.
        """
        if not (cost_joules > 0 and math.isfinite(cost_joules)):
            raise ValueError(f"decision {number}: cost {cost_joules} J is not a positive number")
        decision = self._pending(number)
        run = Run(decision.batch_size, cost_joules, reached, epochs)
        learnt = replace(self.abandon(number), runs=_kept((*self.runs, run)))
        if decision.purpose is not Purpose.EXPLORE or self.arms is not None:
            return learnt
        return learnt._pruned(Explored(run.batch_size, run.cost, run.reached))

    def abandon(self, number: int) -> RecurringJob:
        """The job after the run of decision `number` was deleted without a result: an exploration will be repeated.

        Raises KeyError where that decision is not out.
        """
        gone = self._pending(number)
        return replace(self, pending=tuple(decision for decision in self.pending if decision is not gone))

    # On another GPU model

    def carried_to(self, epoch_costs: Mapping[int, float], seed: int) -> RecurringJob:
        """The job on another GPU model, where `epoch_costs` gives the joules of one epoch at each batch size that fits.

        Epochs to the target do not depend on the GPU, and what an epoch costs is profiled in seconds (Zeus, section 7,
        "Supporting heterogeneous GPUs"; equation 6). So every run that reached the target is carried over as its epochs
        times `epoch_costs[batch size]`, and sampling goes on at once. A batch size that the first GPU never offered is
        sampled first, unless it lies beyond one that pruning dropped. Where no batch size has both epochs and a cost,
        exploration begins anew. Raises ValueError where there are no epoch costs, or one is not positive.
        """
        sizes = tuple(sorted(epoch_costs))
        if not sizes or not all(cost > 0 and math.isfinite(cost) for cost in epoch_costs.values()):
            raise ValueError(f"epoch costs {dict(epoch_costs)}: at least one batch size, each at a positive cost")
        kept = self.arms if self.arms is not None else self.rounds[-1].batch_sizes
        known = [size for size in kept if size in epoch_costs and self.epochs(size) is not None]
        dropped = set(self.batch_sizes) - set(kept)
        arms = tuple(
            size
            for size in sizes
            if size in known or (known and size not in self.batch_sizes and not _beyond(size, known, dropped))
        )
        carried = tuple(
            replace(run, cost=run.epochs * epoch_costs[run.batch_size])
            for run in self.runs
            if run.reached and run.batch_size in known
        )
        return RecurringJob(
            sizes,
            self.default_batch_size if self.default_batch_size in sizes else sizes[-1],
            seed,
            stop_factor=self.stop_factor,
            window=self.window,
            choice=self.choice,
            pruning_rounds=self.pruning_rounds,
            runs=carried,
            arms=arms or None,
        )

    # Storing

    def to_json(self) -> dict[str, Any]:
        """What `json.dumps` takes: everything, a few kilobytes at most (KEPT_RUNS bounds it)."""
        flat = math.isinf(self.prior.variance)
        return {
            "batch_sizes": list(self.batch_sizes),
            "default_batch_size": self.default_batch_size,
            "seed": self.seed,
            "stop_factor": None if math.isinf(self.stop_factor) else self.stop_factor,
            "window": self.window,
            "prior": None if flat else [self.prior.mean, self.prior.variance, self.prior.observations],
            "choice": str(self.choice),
            "pruning_rounds": self.pruning_rounds,
            "rounds": [pruning.to_json() for pruning in self.rounds],
            "runs": [[run.batch_size, run.cost, run.reached, run.epochs] for run in self.runs],
            "pending": [[d.number, d.batch_size, str(d.purpose), d.cost_limit_joules] for d in self.pending],
            "decisions": self.decisions,
            "arms": None if self.arms is None else list(self.arms),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> RecurringJob:
        """The job that `to_json` wrote; raises KeyError where a field is missing, ValueError where one is wrong."""
        return cls(
            batch_sizes=tuple(record["batch_sizes"]),
            default_batch_size=record["default_batch_size"],
            seed=record["seed"],
            stop_factor=math.inf if record["stop_factor"] is None else record["stop_factor"],
            window=record["window"],
            prior=FLAT_PRIOR if record["prior"] is None else Belief(*record["prior"]),
            choice=ChoiceRule(record["choice"]),
            pruning_rounds=record["pruning_rounds"],
            rounds=tuple(PruningRound.from_json(pruning) for pruning in record["rounds"]),
            runs=tuple(Run(*run) for run in record["runs"]),
            pending=tuple(Decision(n, size, Purpose(why), limit) for n, size, why, limit in record["pending"]),
            decisions=record["decisions"],
            arms=None if record["arms"] is None else tuple(record["arms"]),
        )

    # Inside

    def _chosen(self) -> int:
        """The batch size to run next, once pruning is over.

        Nobody knows how often a job will come again; as often as it has, or for as long as what is learnt counts, is as
        good a guess as any. Runs that are out count as though they came to the mean, so that others are tried beside them.
        """
        if self.choice is ChoiceRule.THOMPSON:
            return choose_arm(self.beliefs(), np.random.default_rng([self.seed, self.decisions]))
        if self.choice is ChoiceRule.LEAST_MEAN:
            return self.best_batch_size
        costs = {size: self.costs(size) for size in self.arms or ()}
        recent = self._recent()
        spread = pooled_spread(
            [[run.cost for run in recent if run.reached and run.batch_size == size] for size in costs]
        )
        for decision in self.pending:
            seen = costs.get(decision.batch_size, ())
            if seen:
                costs[decision.batch_size] = (*seen, math.fsum(seen) / len(seen))
        return most_valuable_arm(costs, spread, min(self.decisions, self.window or math.inf))

    def _recent(self) -> tuple[Run, ...]:
        return self.runs if self.window is None else self.runs[-self.window :]

    def _best_known(self) -> Run | None:
        reached = [run for run in self._recent() if run.reached]
        return min(reached, key=lambda run: (run.cost, run.batch_size)) if reached else None

    def _cost_limit(self) -> float | None:
        """beta times the least cost, and beta times more for each run of an arm stopped in a row (see the module)."""
        least_cost = self.least_cost
        if least_cost is None or math.isinf(self.stop_factor):
            return None
        stopped = 0
        for run in reversed(self.runs):
            if self.arms is None or run.reached:
                break
            stopped += run.batch_size in self.arms
        return least_cost * self.stop_factor ** (1 + stopped)

    def _pending(self, number: int) -> Decision:
        for decision in self.pending:
            if decision.number == number:
                return decision
        raise KeyError(f"decision {number} is not out; these are: {[decision.number for decision in self.pending]}")

    def _pruned(self, result: Explored) -> RecurringJob:
        current = self.rounds[-1].after(result)
        rounds = (*self.rounds[:-1], current)
        if current.next_batch_size is not None:
            return replace(self, rounds=rounds)
        if not current.survivors:
            # Nothing at all in the first round: `decide` says so. In a later one: keep what survived the one before.
            return replace(self, rounds=rounds, arms=rounds[-2].survivors if len(rounds) > 1 else None)
        if len(rounds) == self.pruning_rounds:
            return replace(self, rounds=rounds, arms=current.survivors)
        return replace(self, rounds=(*rounds, current.following()))


def _beyond(size: int, known: list[int], dropped: set[int]) -> bool:
    """Whether a dropped batch size lies between `size` and the nearest known one: then it is worse still (convexity)."""
    nearest = min(known, key=lambda other: abs(other - size))
    return any(min(size, nearest) < other < max(size, nearest) for other in dropped)


def _kept(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """The last `KEPT_RUNS` runs of each batch size, in order."""
    kept: list[Run] = []
    counts: dict[int, int] = {}
    for run in reversed(runs):
        counts[run.batch_size] = counts.get(run.batch_size, 0) + 1
        if counts[run.batch_size] <= KEPT_RUNS:
            kept.append(run)
    return tuple(reversed(kept))
