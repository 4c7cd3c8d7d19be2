"""Kareus (OSDI '26): kernel schedules and clocks chosen together, from measured partitions up to the iteration.

- `partition`: what repeats in a microbatch; `schedule`: the candidates; `search`: which to measure (`surrogate`,
  `acquisition`).
- `exchange`: what a search asks of a job that measures, and what that answers.
- `compose`: partitions to microbatches; `iteration`: microbatches to the pipeline's frontier;
  `plan_file`: that as the plan of a job.
- `table`, `model`: measuring functions without a GPU; `table_study`, `pipeline_study`: what the search finds on them.
"""

from flyball_frontiers.kareus.compose import MicrobatchSchedule, PartitionChoices, microbatch_frontier
from flyball_frontiers.kareus.exchange import after_measurements, asked_document, choices
from flyball_frontiers.kareus.iteration import IterationPlan, iteration_frontier
from flyball_frontiers.kareus.partition import Kernel, Partition, Partitioning, find_partitions, search_space
from flyball_frontiers.kareus.plan_file import kareus_document
from flyball_frontiers.kareus.schedule import NOT_OVERLAPPED, KernelSchedule, Measurement
from flyball_frontiers.kareus.search import Measure, PartitionSearch, Pass, SearchBudget, optimise

__all__ = [
    "NOT_OVERLAPPED",
    "IterationPlan",
    "Kernel",
    "KernelSchedule",
    "Measure",
    "Measurement",
    "MicrobatchSchedule",
    "Partition",
    "PartitionChoices",
    "PartitionSearch",
    "Partitioning",
    "Pass",
    "SearchBudget",
    "after_measurements",
    "asked_document",
    "choices",
    "find_partitions",
    "iteration_frontier",
    "kareus_document",
    "microbatch_frontier",
    "optimise",
    "search_space",
]
