"""Multi-pass multi-objective Bayesian optimisation of one partition's schedules (Kareus, Algorithm 1, appendix C).

`PartitionSearch` is a value: `ask` gives the schedules to measure next, `tell` takes the measurements and gives the
search after them. So a profiler that takes minutes a batch can drive it, and it can be stored between batches;
`optimise` runs it to the end where measuring is a function call.

Three departures from the paper, all measured on its public table (docs/frontiers.md):
- Hypervolume improvement is averaged over the bootstrap ensemble and the model of all the data. Trees never predict
  below the best they saw, so that a single one often promises no improvement anywhere.
- Within a pass, each choice counts as measured, as predicted, for the next one. The paper takes the best k of one
  ranking, which are near copies that would all win the same area.
- The search stops when the hypervolume *below the frontier's own worst corner* has stopped growing. Below the paper's
  reference, 1.1 times the worst time and energy measured, nearly all of the area is under schedules that nobody would
  run, and its growth is under the threshold long before the frontier is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from flyball_frontiers.frontier import Frontier, FrontierPoint
from flyball_frontiers.kareus.acquisition import (
    REFERENCE_MARGIN,
    choose_by_improvement,
    frontier_indices,
    hypervolume,
)
from flyball_frontiers.kareus.schedule import KernelSchedule, Measurement, encode, launch_timings
from flyball_frontiers.kareus.surrogate import Prediction, predict

Measure = Callable[[KernelSchedule], Measurement]
"""The measuring function: a profiler, a recorded table, or a model."""


class Pass(StrEnum):
    """Why a schedule was measured: the paper's passes (section 4.3.2), and those of the baselines beside it."""

    INITIAL = "Initial"
    TOTAL = "TotalEnergy"
    DYNAMIC = "DynamicEnergy"
    STATIC = "StaticEnergy"
    UNCERTAINTY = "Uncertainty"
    LEAST_ENERGY = "LeastEnergy"  # single-objective: the least predicted total energy
    LEAST_TIME = "LeastTime"  # single-objective: the least predicted time
    RANDOM = "Random"


Shares = tuple[tuple[Pass, float], ...]

MULTI_PASS: Shares = ((Pass.TOTAL, 0.4), (Pass.DYNAMIC, 0.2), (Pass.STATIC, 0.2), (Pass.UNCERTAINTY, 0.2))
"""Appendix C, "Sample size": what share of a batch each pass chooses."""

SINGLE_ENERGY: Shares = ((Pass.LEAST_ENERGY, 0.8), (Pass.UNCERTAINTY, 0.2))
SINGLE_TIME: Shares = ((Pass.LEAST_TIME, 0.8), (Pass.UNCERTAINTY, 0.2))
RANDOM_ONLY: Shares = ((Pass.RANDOM, 1.0),)
"""Baselines: standard Bayesian optimisation of one objective, and random search."""


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """How much a search may measure, and when it stops (appendix C).

    `initial` random schedules, then at most `batches` of `batch_size`; it stops early where the hypervolume has grown by
    less than `tolerance` of itself on average over the last `patience` batches (tolerance 0: never). Raises ValueError
    where a number is out of range.
    """

    initial: int
    batches: int
    batch_size: int
    tolerance: float = 1e-3
    patience: int = 2

    def __post_init__(self) -> None:
        if self.initial < 2 or self.batches < 0 or self.batch_size < 1 or self.patience < 1 or self.tolerance < 0:
            raise ValueError(
                f"{self}: initial >= 2, batches >= 0, batch_size >= 1, tolerance >= 0 and patience >= 1 are needed"
            )

    @classmethod
    def for_partition(cls, computations: int) -> SearchBudget:
        """Appendix C, "Sample size": small partitions have 1 computation, medium ones 2-3, large ones more."""
        if computations <= 1:
            return cls(initial=36, batches=3, batch_size=16)
        if computations <= 3:
            return cls(initial=48, batches=4, batch_size=16)
        return cls(initial=96, batches=4, batch_size=32)

    def scaled(self, share: float) -> SearchBudget:
        """As many batches, but each of `share` of the size, and `share` of the initial schedules; two and one at least."""
        return replace(
            self, initial=max(2, round(share * self.initial)), batch_size=max(1, round(share * self.batch_size))
        )

    @property
    def most(self) -> int:
        """The most schedules that will be measured."""
        return self.initial + self.batches * self.batch_size


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured schedule, why it was measured, and in which batch (0: the initial ones)."""

    schedule: KernelSchedule
    measurement: Measurement
    found_by: Pass
    batch: int


@dataclass(frozen=True)
class PartitionSearch:
    """Where the search of one partition stands.

    `candidates` is the whole search space, each once. `static_power_watts` is of all the partition's GPUs at rest.
    `seed` fixes every draw: the same samples give the same next batch. Raises ValueError where candidates repeat or are
    fewer than two, the static power is negative, or the shares do not add up to 1.
    """

    candidates: tuple[KernelSchedule, ...]
    static_power_watts: float
    budget: SearchBudget
    seed: int
    shares: Shares = MULTI_PASS
    samples: tuple[Sample, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.candidates)) < max(2, len(self.candidates)):
            raise ValueError(f"{len(self.candidates)} candidate schedules: at least two, each once")
        if not self.static_power_watts >= 0:
            raise ValueError(f"static power {self.static_power_watts} W is negative")
        if min(share for _, share in self.shares) < 0 or abs(sum(share for _, share in self.shares) - 1.0) > 1e-9:
            raise ValueError(f"shares {self.shares} of the passes: none negative, together 1")

    def to_json(self) -> dict[str, Any]:
        """What `json.dumps` takes: everything that the next batch follows from."""
        places = {schedule: place for place, schedule in enumerate(self.candidates)}
        return {
            "candidates": [schedule.to_json() for schedule in self.candidates],
            "static_power_watts": self.static_power_watts,
            "budget": asdict(self.budget),
            "seed": self.seed,
            "shares": [[str(which), share] for which, share in self.shares],
            "samples": [
                {
                    "candidate": places[sample.schedule],
                    "time": sample.measurement.time_seconds,
                    "energy": sample.measurement.energy_joules,
                    "found_by": str(sample.found_by),
                    "batch": sample.batch,
                }
                for sample in self.samples
            ],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> PartitionSearch:
        """The search that `to_json` wrote: it asks for the same next batch. Raises ValueError that says what is wrong."""
        try:
            candidates = tuple(KernelSchedule.from_json(schedule) for schedule in record["candidates"])
            samples = tuple(
                Sample(
                    candidates[int(sample["candidate"])],
                    Measurement(float(sample["time"]), float(sample["energy"])),
                    Pass(sample["found_by"]),
                    int(sample["batch"]),
                )
                for sample in record["samples"]
            )
            shares = tuple((Pass(which), float(share)) for which, share in record["shares"])
            budget = SearchBudget(**record["budget"])
            return cls(candidates, float(record["static_power_watts"]), budget, int(record["seed"]), shares, samples)
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"no search that was written: {error!r}") from error

    @property
    def batch(self) -> int:
        """The number of the next batch: 0 is the initial one."""
        return self.samples[-1].batch + 1 if self.samples else 0

    @property
    def done(self) -> bool:
        """Nothing left to measure, the budget is spent, or the hypervolume has stopped growing (lines 15-17)."""
        if not self.samples:
            return False
        return self.batch > self.budget.batches or len(self.samples) == len(self.candidates) or self._settled()

    @property
    def frontier(self) -> Frontier[KernelSchedule]:
        """The frontier of what was measured (line 18); raises ValueError before anything was."""
        return Frontier.of(
            FrontierPoint(s.measurement.time_seconds, s.measurement.energy_joules, s.schedule) for s in self.samples
        )

    def ask(self) -> tuple[tuple[KernelSchedule, Pass], ...]:
        """The schedules to measure next, each with the pass that chose it; empty where the search is done."""
        if self.done:
            return ()
        rng = np.random.default_rng([self.seed, self.batch])
        measured = {sample.schedule for sample in self.samples}
        left = [schedule for schedule in self.candidates if schedule not in measured]
        if not self.samples:
            drawn = rng.choice(len(left), min(self.budget.initial, len(left)), replace=False)
            return tuple((left[index], Pass.INITIAL) for index in sorted(drawn))
        return self._acquire(left, rng)

    def tell(
        self, asked: Sequence[tuple[KernelSchedule, Pass]], measurements: Sequence[Measurement]
    ) -> PartitionSearch:
        """The search after `asked` was measured.

        Raises ValueError where the two do not match, or where a measurement is no more than the static power explains.
        """
        if len(asked) != len(measurements):
            raise ValueError(f"{len(asked)} schedules were asked for, {len(measurements)} measurements came")
        for measurement in measurements:
            measurement.dynamic_energy_joules(self.static_power_watts)
        batch = self.batch
        new = tuple(
            Sample(schedule, measurement, why, batch)
            for (schedule, why), measurement in zip(asked, measurements, strict=True)
        )
        return replace(self, samples=(*self.samples, *new))

    def hypervolumes(self) -> list[float]:
        """Hypervolume in joule-seconds after each batch, the initial one first, below today's frontier's worst corner.

        Today's for all of them, so that they can be compared.
        """
        time, energy, _ = self._arrays()
        front = frontier_indices(time, energy)
        reference = (REFERENCE_MARGIN * time[front].max(), REFERENCE_MARGIN * energy[front].max())
        batches = np.array([sample.batch for sample in self.samples])
        return [hypervolume(time[batches <= b], energy[batches <= b], reference) for b in range(self.batch)]

    def _settled(self) -> bool:
        volumes = np.array(self.hypervolumes()[-self.budget.patience - 1 :])
        if len(volumes) <= self.budget.patience or volumes[0] <= 0:
            return False
        return bool(np.mean(np.diff(volumes) / volumes[:-1]) < self.budget.tolerance)

    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Measured seconds, joules, and dynamic joules, in the order of the samples."""
        time = np.array([sample.measurement.time_seconds for sample in self.samples])
        energy = np.array([sample.measurement.energy_joules for sample in self.samples])
        return time, energy, energy - self.static_power_watts * time

    def _acquire(self, left: list[KernelSchedule], rng: np.random.Generator) -> tuple[tuple[KernelSchedule, Pass], ...]:
        """One batch (Algorithm 1, lines 3-13); a schedule that two passes want goes to the first, the second goes on."""
        size = min(self.budget.batch_size, len(left))
        shuffle = rng.permutation(len(left))  # among equals, the order of the candidates must not decide
        if self.shares == RANDOM_ONLY:  # nothing to predict, nor to train
            return tuple((left[index], Pass.RANDOM) for index in shuffle[:size])
        time, _, dynamic = self._arrays()
        timings = launch_timings(self.candidates)
        features = encode([sample.schedule for sample in self.samples], timings)
        predicted = predict(features, time, dynamic, encode(left, timings), rng)
        chosen: dict[int, Pass] = {}
        for number, (why, share) in enumerate(self.shares):
            last = number == len(self.shares) - 1
            wanted = size - len(chosen) if last else min(round(share * size), size - len(chosen))
            for index in self._choices(why, predicted, shuffle, wanted, frozenset(chosen)):
                chosen[index] = why
        return tuple((left[index], why) for index, why in chosen.items())

    def _choices(
        self, why: Pass, predicted: Prediction, shuffle: np.ndarray, wanted: int, taken: frozenset[int]
    ) -> list[int]:
        """The `wanted` candidates that one pass likes best among those not `taken`."""
        power = self.static_power_watts
        totals = power * predicted.time + predicted.dynamic_energy
        if why is Pass.RANDOM:
            return [int(index) for index in shuffle if int(index) not in taken][:wanted]
        if why in (Pass.UNCERTAINTY, Pass.LEAST_TIME, Pass.LEAST_ENERGY):
            least = {
                Pass.UNCERTAINTY: -predicted.uncertainty,
                Pass.LEAST_TIME: predicted.time[-1],
                Pass.LEAST_ENERGY: totals[-1],
            }[why]
            return [int(index) for index in np.lexsort((shuffle, least)) if int(index) not in taken][:wanted]
        time, energy, dynamic = self._arrays()
        measured, candidates = {
            Pass.TOTAL: (energy, totals),
            Pass.DYNAMIC: (dynamic, predicted.dynamic_energy),
            Pass.STATIC: (power * time, power * predicted.time),
        }[why]
        return choose_by_improvement(time, measured, predicted.time, candidates, shuffle, wanted, taken)


def optimise(
    candidates: Sequence[KernelSchedule],
    measure: Measure,
    static_power_watts: float,
    budget: SearchBudget,
    seed: int,
    shares: Shares = MULTI_PASS,
    on_batch: Callable[[PartitionSearch], None] | None = None,
) -> PartitionSearch:
    """Algorithm 1 to its end: measure what is asked for until the search is done; `on_batch` sees it after each batch."""
    search = PartitionSearch(tuple(candidates), static_power_watts, budget, seed, shares)
    while asked := search.ask():
        search = search.tell(asked, [measure(schedule) for schedule, _ in asked])
        if on_batch is not None:
            on_batch(search)
    return search
