"""Finding the partitions of a microbatch: what repeats, is optimised once, and is composed again.

Kareus, section 4.2. A microbatch runs as two nanobatches of half its samples, staggered, so that the communication of
one has no data in common with the computations that run beside it. A partition is one such communication with the
longest run of computations of the other nanobatch: all those between two communications.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flyball_frontiers.kareus.schedule import NOT_OVERLAPPED, KernelSchedule


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a nanobatch. Two kernels are the same work where they are equal.

    `memory_bound` marks the short ones (norms, rotary embedding, dropout) that are grouped with their like.
    `compute_seconds` and `memory_seconds`: what it takes on all SMs at the highest clock if only arithmetic, or only
    memory (for a communication: the links), were slow; a model needs them, a profiler does not.
    """

    name: str
    communication: bool = False
    memory_bound: bool = False
    compute_seconds: float = 0.0
    memory_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Partition:
    """One communication, and the computations of the other nanobatch that it may run beside, in order."""

    communication: Kernel
    computations: tuple[Kernel, ...]

    @property
    def name(self) -> str:
        return " > ".join(kernel.name for kernel in self.computations) + " || " + self.communication.name


@dataclass(frozen=True)
class Partitioning:
    """A microbatch taken apart: each type of partition with how often it occurs, and the kernels that run alone.

    `alone` is in order of execution: the first nanobatch's computations before anything overlaps, and the end.
    """

    types: tuple[tuple[Partition, int], ...]
    alone: tuple[Kernel, ...]


def find_partitions(kernels: Sequence[Kernel]) -> Partitioning:
    """The partitions of a microbatch whose nanobatches each run `kernels` in order (sections 4.2 and 4.5).

    Consecutive communications are fused into one; consecutive memory-bound computations are grouped into one. Raises
    ValueError where there is no kernel, or nothing to overlap.
    """
    runs, communications = _alternating(kernels)
    if not communications or not any(runs):
        raise ValueError(
            f"{len(kernels)} kernels, {len(communications)} of them communication: a partition needs a communication and "
            "a computation"
        )
    found: list[Partition] = []
    alone: list[Kernel] = list(runs[0])
    for index, communication in enumerate(communications):
        # The first nanobatch communicates while the second computes the same part, then the other way round.
        for beside in (runs[index], runs[index + 1]):
            if beside:
                found.append(Partition(communication, beside))
            else:
                alone.append(communication)
    alone.extend(runs[-1])
    counts = {partition: found.count(partition) for partition in dict.fromkeys(found)}
    return Partitioning(tuple(counts.items()), tuple(alone))


def _alternating(kernels: Sequence[Kernel]) -> tuple[list[tuple[Kernel, ...]], list[Kernel]]:
    """Runs of computations and the communications between them: runs[i], communications[i], runs[i + 1], ..."""
    runs: list[list[Kernel]] = [[]]
    communications: list[Kernel] = []
    for kernel in kernels:
        if not kernel.communication:
            run = runs[-1]
            if kernel.memory_bound and run and run[-1].memory_bound:
                run[-1] = _fused(run[-1], kernel)
            else:
                run.append(kernel)
        elif communications and not runs[-1]:
            communications[-1] = _fused(communications[-1], kernel)
        else:
            communications.append(kernel)
            runs.append([])
    return [tuple(run) for run in runs], communications


def _fused(first: Kernel, second: Kernel) -> Kernel:
    return Kernel(
        f"{first.name} + {second.name}",
        first.communication,
        first.memory_bound,
        first.compute_seconds + second.compute_seconds,
        first.memory_seconds + second.memory_seconds,
    )


def search_space(
    clocks_megahertz: Iterable[int],
    communication_sms: Iterable[int],
    launch_kernels: Iterable[int],
    *,
    threads_per_block: Iterable[int] = (0,),
    not_overlapped: bool = False,
) -> tuple[KernelSchedule, ...]:
    """Every candidate schedule of a partition: clock x SMs x launch timing (section 4.1, appendix C).

    `not_overlapped` adds the communication by itself after the computations. Raises ValueError where a choice is
    missing.
    """
    launches = [*launch_kernels, *([NOT_OVERLAPPED] if not_overlapped else [])]
    sms, threads = list(communication_sms), list(threads_per_block)
    space = tuple(
        KernelSchedule(clock, count, launch, None, block)
        for clock in clocks_megahertz
        for count in sms
        for launch in launches
        for block in threads
    )
    if not space:
        raise ValueError("the search space is empty: clocks, SMs and launch kernels each need at least one choice")
    return space
