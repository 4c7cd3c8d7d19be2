"""Recorded training of one workload: epochs to the target by batch size, time and power by batch size and limit.

The two tables of the Zeus artifact (NSDI '23, section 6.1, "Methodology"): a training trace and a power trace. Text in,
values out; who reads the files is elsewhere.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from flyball_planner.recurrences.cost import energy_time_cost

LEAST_BATCH_SIZE = 8
"""Zeus sweeps "from 8 to the maximum batch size that fits in GPU memory" (section 2.2); the tables hold some below."""


@dataclass(frozen=True, slots=True)
class WorkloadName:
    """Which rows of the tables belong to a workload, and how it is run (Zeus, Table 1).

    `target_metric` is written as in the table. `maximum_epochs` ends a run that does not reach the target; the paper
    does not print it, these are of the artifact's replay scripts.
    """

    title: str
    dataset: str
    network: str
    optimizer: str
    target_metric: str
    default_batch_size: int
    maximum_epochs: int


ZEUS_WORKLOADS: tuple[WorkloadName, ...] = (
    WorkloadName("DeepSpeech2", "librispeech", "deepspeech2", "adamw", "40", 192, 16),
    WorkloadName("BERT (QA)", "squad", "bert_base_uncased", "adamw", "84.0", 32, 6),
    WorkloadName("BERT (SA)", "sentiment140", "bert_base_uncased", "adamw", "0.84", 128, 10),
    WorkloadName("ResNet-50", "imagenet", "resnet50", "adadelta", "0.65", 256, 100),
    WorkloadName("ShuffleNet V2", "cifar100", "shufflenetv2", "adadelta", "0.6", 1024, 100),
    WorkloadName("NeuMF", "movielens-1m", "ncf", "adam", "0.41", 1024, 100),
)
"""Table 1's six workloads under the names of its figures."""

WORKLOAD_COLUMNS = ("dataset", "network", "optimizer")
"""What tells workloads apart in both tables."""


@dataclass(frozen=True, slots=True)
class EpochProfile:
    """What one epoch takes at one batch size and power limit: seconds, and the average draw in watts."""

    seconds: float
    average_power_watts: float

    @property
    def joules(self) -> float:
        return self.seconds * self.average_power_watts


@dataclass(frozen=True)
class WorkloadTrace:
    """One workload on one GPU model.

    `epochs[batch size]` holds epochs to the target of each recorded seed, None for a seed that never reached it.
    `profiles[batch size][power limit in watts]` what an epoch takes. Both have the same batch sizes. Raises ValueError
    where they differ, a limit is missing for some batch size, or the default batch size is not there.
    """

    title: str
    default_batch_size: int
    maximum_epochs: int
    epochs: Mapping[int, tuple[float | None, ...]]
    profiles: Mapping[int, Mapping[int, EpochProfile]]

    def __post_init__(self) -> None:
        if set(self.epochs) != set(self.profiles) or self.default_batch_size not in self.epochs:
            raise ValueError(
                f"{self.title}: trained at batch sizes {sorted(self.epochs)}, profiled at {sorted(self.profiles)}; both "
                f"must be the same and hold the default {self.default_batch_size}"
            )
        limits = {tuple(sorted(by_limit)) for by_limit in self.profiles.values()}
        if len(limits) != 1:
            raise ValueError(f"{self.title}: every batch size must be profiled at the same power limits, not {limits}")

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(sorted(self.epochs))

    @property
    def power_limits_watts(self) -> tuple[int, ...]:
        return tuple(sorted(self.profiles[self.default_batch_size]))

    @property
    def maximum_power_watts(self) -> float:
        """MAXPOWER: the largest limit of the GPU (Zeus, equation 2)."""
        return float(self.power_limits_watts[-1])

    def reaches(self, batch_size: int, epochs: float | None) -> bool:
        """Whether a run that needs so many epochs ends in time; None is a seed that never did."""
        return batch_size in self.epochs and epochs is not None and epochs <= self.maximum_epochs

    def reliable(self, batch_size: int) -> bool:
        """Whether every recorded seed of a batch size reaches the target in time."""
        return all(self.reaches(batch_size, epochs) for epochs in self.epochs[batch_size])

    def expected(self, batch_size: int, power_limit_watts: int) -> tuple[float, float]:
        """Mean (seconds, joules) to the target of a configuration; raises ValueError where it is not reliable."""
        if not self.reliable(batch_size):
            raise ValueError(f"{self.title}: not every recorded run at batch size {batch_size} reaches the target")
        found = [epochs for epochs in self.epochs[batch_size] if epochs is not None]
        epochs, profile = math.fsum(found) / len(found), self.profiles[batch_size][power_limit_watts]
        return epochs * profile.seconds, epochs * profile.joules

    def expected_cost(self, batch_size: int, power_limit_watts: int, energy_weight: float) -> float:
        """Mean energy-time cost of a reliable configuration in joules (Zeus, equation 5); ValueError as `expected`."""
        seconds, joules = self.expected(batch_size, power_limit_watts)
        return energy_time_cost(joules, seconds, energy_weight, self.maximum_power_watts)

    def drifted(self, energy_weight: float, factor: float) -> WorkloadTrace:
        """The workload after a drift: an epoch at the batch size of least cost takes `factor` times as long."""
        size = self.optimum(energy_weight)[0]
        slower = {
            limit: EpochProfile(factor * profile.seconds, profile.average_power_watts)
            for limit, profile in self.profiles[size].items()
        }
        return replace(self, profiles={**self.profiles, size: slower})

    def optimum(self, energy_weight: float) -> tuple[int, int]:
        """The (batch size, power limit in watts) of least expected cost: what an exhaustive sweep finds.

        Only batch sizes that every recorded seed reaches the target with are choices. Raises ValueError without one.
        """
        costs = {
            (size, limit): self.expected_cost(size, limit, energy_weight)
            for size in self.batch_sizes
            for limit in self.power_limits_watts
            if self.reliable(size)
        }
        if not costs:
            raise ValueError(f"{self.title}: no batch size reaches the target with every recorded seed")
        return min(costs, key=lambda configuration: (costs[configuration], configuration))


def read_workload(name: WorkloadName, training_table: Iterable[str], power_table: Iterable[str]) -> WorkloadTrace:
    """One workload from the lines of `summary_train.csv` and of a `summary_power_<gpu>.csv`.

    Batch sizes are those of both tables from `LEAST_BATCH_SIZE` up. The default batch size of Table 1 is lowered to the
    largest that fits where the GPU's memory is smaller. Raises ValueError where the tables hold no such workload, or
    where a row of it is wrong, naming the table and the line.
    """
    profiles: dict[int, dict[int, EpochProfile]] = {}
    for row in _rows("power table", power_table, ("batch_size", "power_limit", "time_per_epoch", "average_power")):
        if row.belongs_to(name) and row.count("batch_size") >= LEAST_BATCH_SIZE:
            profiles.setdefault(row.count("batch_size"), {})[row.count("power_limit")] = EpochProfile(
                row.number("time_per_epoch"), row.number("average_power")
            )
    epochs: dict[int, list[float | None]] = {}
    for row in _rows("training table", training_table, ("batch_size", "target_metric", "target_epoch")):
        if row.belongs_to(name) and row.text("target_metric") == name.target_metric:
            size = row.count("batch_size")
            if size in profiles:
                missed = row.text("target_epoch").lower() == "nan"
                epochs.setdefault(size, []).append(None if missed else row.number("target_epoch", least=0.0))
    if not epochs:
        raise ValueError(
            f"{name.title}: no row of both tables has dataset {name.dataset}, network {name.network}, optimizer "
            f"{name.optimizer} and target metric {name.target_metric}"
        )
    return WorkloadTrace(
        title=name.title,
        default_batch_size=min(name.default_batch_size, max(epochs)),
        maximum_epochs=name.maximum_epochs,
        epochs={size: tuple(found) for size, found in sorted(epochs.items())},
        profiles={size: profiles[size] for size in sorted(epochs)},
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of a table, and where it stands."""

    where: str
    fields: Mapping[str, str | None]

    def belongs_to(self, name: WorkloadName) -> bool:
        return tuple(map(self.text, WORKLOAD_COLUMNS)) == (name.dataset, name.network, name.optimizer)

    def text(self, column: str) -> str:
        return (self.fields[column] or "").strip()

    def number(self, column: str, least: float = math.ulp(0.0)) -> float:
        """A finite number, above 0 unless `least` says otherwise; raises ValueError that names line and column."""
        try:
            value = float(self.text(column))
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= least):
            raise ValueError(f"{self.where}: {column} {self.text(column)!r} must be a finite number, 0 or more")
        return value

    def count(self, column: str) -> int:
        """A whole number above 0; raises ValueError that names line and column."""
        if not (self.text(column).isdigit() and int(self.text(column)) > 0):
            raise ValueError(f"{self.where}: {column} {self.text(column)!r} must be a whole number above 0")
        return int(self.text(column))


def _rows(table: str, lines: Iterable[str], columns: tuple[str, ...]) -> Iterator[_Row]:
    reader = csv.DictReader(lines)
    there = reader.fieldnames or []
    if missing := [column for column in (*WORKLOAD_COLUMNS, *columns) if column not in there]:
        raise ValueError(f"{table}: no column {', '.join(missing)} among {', '.join(there) or 'none at all'}")
    for fields in reader:
        yield _Row(f"{table}, line {reader.line_num}", fields)
