"""What each half of Kareus is worth, and both together, on a modelled pipeline whose every schedule can be measured.

The rows of Kareus' Tables 3, 4 and 8 on the kernels of a Llama-like transformer block with tensor parallelism: sequential
execution (Megatron-LM), clocks alone (Perseus), nanobatching with clocks, kernel schedules alone at the highest clock,
and both together, by search and by enumeration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from flyball_frontiers.frontier import Frontier
from flyball_frontiers.kareus.compose import MicrobatchSchedule, PartitionChoices, microbatch_frontier
from flyball_frontiers.kareus.iteration import IterationPlan, iteration_frontier
from flyball_frontiers.kareus.partition import Kernel, Partition, Partitioning, find_partitions, search_space
from flyball_frontiers.kareus.schedule import KernelSchedule, clock_choices, communication_sm_choices
from flyball_frontiers.kareus.search import PartitionSearch, SearchBudget, optimise
from flyball_frontiers.pipeline.graph import ComputationGraph
from flyball_frontiers.pipeline.profile import BACKWARD, FORWARD

from flyball_studies.kareus.model import GpuGroup, measure_alone, measure_partition, measure_sequential

NANOBATCHING_SMS = 24
"""What a communication library takes that was tuned to run alone (Kareus, section 3.2)."""


class Strategy(StrEnum):
    SEQUENTIAL = "Sequential, highest clock"
    PERSEUS = "Clocks only (Perseus)"
    NANOBATCHING = "Nanobatching + clocks"
    KERNELS = "Kernel schedules only"
    JOINT = "Joint, searched (Kareus)"
    EXHAUSTIVE = "Joint, enumerated"


def transformer_block(scale: float = 1.0) -> tuple[Kernel, ...]:
    """The forward kernels of one block in one nanobatch, in milliseconds of an A100-like GPU, times `scale`.

    The residual addition that ends a block comes first in the next one, so that a block ends in its communication.
    """

    def kernel(name: str, compute: float, memory: float, *, short: bool = False, link: bool = False) -> Kernel:
        return Kernel(name, link, short, scale * compute / 1000, scale * memory / 1000)

    return (
        kernel("Dropout + add", 0.01, 0.08, short=True),
        kernel("Norm", 0.02, 0.11, short=True),
        kernel("Linear QKV", 0.36, 0.10),
        kernel("RoPE", 0.02, 0.09, short=True),
        kernel("FlashAttention", 0.48, 0.07),
        kernel("Linear projection", 0.26, 0.09),
        kernel("AllReduce", 0.0, 0.62, link=True),
        kernel("Dropout + add", 0.01, 0.08, short=True),
        kernel("Norm", 0.02, 0.11, short=True),
        kernel("Linear up", 0.62, 0.15),
        kernel("Activation", 0.03, 0.14, short=True),
        kernel("Linear down", 0.60, 0.15),
        kernel("AllReduce", 0.0, 0.62, link=True),
    )


def backward_of(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """The backward kernels: the reverse order, twice the arithmetic and memory, the same communication."""
    return tuple(
        Kernel(
            f"d {kernel.name}",
            kernel.communication,
            kernel.memory_bound,
            (1 if kernel.communication else 2) * kernel.compute_seconds,
            (1 if kernel.communication else 2) * kernel.memory_seconds,
        )
        for kernel in reversed(kernels)
    )


@dataclass(frozen=True)
class ModelledPipeline:
    """A pipeline of transformer blocks: `blocks[stage]` of them on each stage, and the head's work on the last.

    `head` runs alone, forward and backward, on the last stage; it is what unbalances the pipeline.
    """

    blocks: tuple[int, ...] = (7, 7, 7, 6)
    microbatches: int = 8
    block: tuple[Kernel, ...] = field(default_factory=transformer_block)
    head: tuple[Kernel, ...] = (Kernel("Head", compute_seconds=0.0024, memory_seconds=0.0006),)
    group: GpuGroup = field(default_factory=GpuGroup)
    clocks_megahertz: tuple[int, ...] = clock_choices(900, 1410, 30)
    communication_sms: tuple[int, ...] = communication_sm_choices(8)

    def __post_init__(self) -> None:
        if not self.blocks or min(self.blocks) < 1:
            raise ValueError(f"blocks {self.blocks}: every stage needs at least one transformer block")

    def kernels(self, stage: int, instruction: str) -> tuple[Kernel, ...]:
        """One nanobatch's kernels of a stage's forward or backward pass."""
        ahead = self.block * self.blocks[stage] + (self.head if stage == len(self.blocks) - 1 else ())
        return ahead if instruction == FORWARD else backward_of(ahead)

    def partitionings(self) -> dict[tuple[int, str], Partitioning]:
        """By stage and instruction."""
        return {
            (stage, instruction): find_partitions(self.kernels(stage, instruction))
            for stage in range(len(self.blocks))
            for instruction in (FORWARD, BACKWARD)
        }

    def space(self, partition: Partition) -> tuple[KernelSchedule, ...]:
        """Every candidate schedule of a partition."""
        return search_space(self.clocks_megahertz, self.communication_sms, range(len(partition.computations)))


@dataclass(frozen=True)
class StrategyResult:
    """One strategy's iteration frontier, how many schedules were measured for it over all partitions, and its graph."""

    strategy: Strategy
    frontier: Frontier[IterationPlan]
    measurements: int
    graph: ComputationGraph


@dataclass(frozen=True)
class PipelineStudy:
    """All strategies on one pipeline."""

    pipeline: ModelledPipeline
    results: Mapping[Strategy, StrategyResult]
    searches: Mapping[str, PartitionSearch]

    def at_full_speed(self, strategy: Strategy) -> tuple[float, float]:
        """Time and energy saved at the strategy's fastest point, of sequential execution's (Table 3)."""
        base = self.results[Strategy.SEQUENTIAL].frontier.fastest
        own = self.results[strategy].frontier.fastest
        return (
            1.0 - own.realised_time_seconds / base.realised_time_seconds,
            1.0 - own.realised_energy_joules / base.realised_energy_joules,
        )

    def iso_time_energy_saved(self, strategy: Strategy) -> float | None:
        """Energy saved at Perseus' least time (Table 4); None where the strategy is never that fast."""
        base = self.results[Strategy.PERSEUS].frontier.fastest
        try:
            own = self.results[strategy].frontier.at(base.realised_time_seconds)
        except ValueError:
            return None
        return 1.0 - own.realised_energy_joules / base.realised_energy_joules

    def iso_energy_time_saved(self, strategy: Strategy) -> float | None:
        """Time saved at the least energy Perseus reaches (Table 4); None where the strategy never spends so little."""
        base = min(self.results[Strategy.PERSEUS].frontier.points, key=lambda point: point.realised_energy_joules)
        try:
            own = self.results[strategy].frontier.at_energy(base.realised_energy_joules)
        except ValueError:
            return None
        return 1.0 - own.realised_time_seconds / base.realised_time_seconds

    def to_json(self) -> dict[str, Any]:
        """What `json.dumps` takes."""
        return {
            strategy.name.lower(): {
                "name": str(strategy),
                "measurements": result.measurements,
                "full_speed_time_saved": self.at_full_speed(strategy)[0],
                "full_speed_energy_saved": self.at_full_speed(strategy)[1],
                "iso_time_energy_saved": self.iso_time_energy_saved(strategy),
                "iso_energy_time_saved": self.iso_energy_time_saved(strategy),
                "frontier": result.frontier.to_json(),
            }
            for strategy, result in self.results.items()
        }


def study_pipeline(
    pipeline: ModelledPipeline,
    seed: int,
    points: int = 60,
    budget: Callable[[Partition], SearchBudget] = lambda partition: SearchBudget.for_partition(
        len(partition.computations)
    ),
    on_step: Callable[[str], None] | None = None,
) -> PipelineStudy:
    """Every strategy on a modelled pipeline; `on_step` hears what is being worked on.

    `budget` says how much each partition's search may measure; appendix C's sizes by default.
    """
    report = on_step or (lambda step: None)
    partitionings = pipeline.partitionings()
    types = {
        partition.name: partition for partitioning in partitionings.values() for partition, _ in partitioning.types
    }
    searches: dict[str, PartitionSearch] = {}
    for number, (name, partition) in enumerate(types.items()):
        report(f"searching {name}")
        searches[name] = optimise(
            pipeline.space(partition),
            partial(measure_partition, pipeline.group, partition),
            pipeline.group.static_power_watts,
            budget(partition),
            seed + number,
        )
    results: dict[Strategy, StrategyResult] = {}
    for strategy in Strategy:
        report(str(strategy))
        results[strategy] = _result(pipeline, strategy, partitionings, types, searches, points)
    return PipelineStudy(pipeline, results, searches)


def _result(
    pipeline: ModelledPipeline,
    strategy: Strategy,
    partitionings: Mapping[tuple[int, str], Partitioning],
    types: Mapping[str, Partition],
    searches: Mapping[str, PartitionSearch],
    points: int,
) -> StrategyResult:
    highest = max(pipeline.clocks_megahertz)
    clocks = (highest,) if strategy in (Strategy.SEQUENTIAL, Strategy.KERNELS) else pipeline.clocks_megahertz
    measured = {name: _measured(pipeline, strategy, types[name], searches[name]) for name in types}
    microbatches: dict[tuple[int, str], Frontier[MicrobatchSchedule]] = {}
    for key, partitioning in partitionings.items():
        overlapped = [
            PartitionChoices(partition.name, count, measured[partition.name])
            for partition, count in partitioning.types
            if measured[partition.name]
        ]
        microbatches[key] = microbatch_frontier(
            overlapped,
            {clock: measure_alone(pipeline.group, partitioning.alone, clock) for clock in clocks},
            {} if strategy is Strategy.NANOBATCHING else _sequential(pipeline, key, clocks),
            pipeline.group.static_power_watts,
        )
    frontier, graph = iteration_frontier(microbatches, pipeline.microbatches, pipeline.group.static_power_watts, points)
    return StrategyResult(strategy, frontier, sum(len(choices) for choices in measured.values()), graph)


def _sequential(pipeline: ModelledPipeline, key: tuple[int, str], clocks: Sequence[int]) -> dict[int, Any]:
    return {clock: measure_sequential(pipeline.group, pipeline.kernels(*key), clock) for clock in clocks}


def _measured(
    pipeline: ModelledPipeline, strategy: Strategy, partition: Partition, search: PartitionSearch
) -> dict[KernelSchedule, Any]:
    """The schedules of a partition that a strategy may choose from, with their measurements."""
    if strategy is Strategy.JOINT:
        return {sample.schedule: sample.measurement for sample in search.samples}
    allowed: list[KernelSchedule] = []
    if strategy is Strategy.EXHAUSTIVE:
        allowed = list(pipeline.space(partition))
    elif strategy is Strategy.KERNELS:
        allowed = [s for s in pipeline.space(partition) if s.clock_megahertz == max(pipeline.clocks_megahertz)]
    elif strategy is Strategy.NANOBATCHING:
        allowed = [KernelSchedule(clock, NANOBATCHING_SMS, 0) for clock in pipeline.clocks_megahertz]
    return {schedule: measure_partition(pipeline.group, partition, schedule) for schedule in allowed}
