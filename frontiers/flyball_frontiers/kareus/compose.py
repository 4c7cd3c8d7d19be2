"""From the measured schedules of partitions to the frontier of a whole microbatch (Kareus, section 4.4, Algorithm 2).

One clock for the whole microbatch, since changing it takes milliseconds; one schedule for each type of partition. The
sum over partitions of a Pareto-optimal choice uses only Pareto-optimal parts, so what is dominated at a clock is dropped
before it is combined: exact, and far from the product of all schedules.

Dominated in time and *dynamic* energy, that is. In a pipeline a microbatch off the critical path waits at static power
for what it does not compute, so that a slower schedule of less dynamic energy saves joules even where its total is
higher; a frontier of total energy, as Algorithm 2 prints it, has thrown it away. Nothing is lost the other way: what is
dominated in dynamic energy is dominated in total energy too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flyball_frontiers.frontier import Frontier, FrontierPoint
from flyball_frontiers.kareus.schedule import KernelSchedule, Measurement

NOTHING = Measurement(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class PartitionChoices:
    """One type of partition: its name, how often a microbatch runs it, and every measured schedule."""

    name: str
    count: int
    measured: Mapping[KernelSchedule, Measurement]


@dataclass(frozen=True, slots=True)
class MicrobatchSchedule:
    """How a microbatch runs: its clock, and the schedule of each type of partition; none where it runs sequentially."""

    clock_megahertz: int
    partitions: tuple[tuple[str, KernelSchedule], ...] = ()

    @property
    def sequential(self) -> bool:
        return not self.partitions

    def to_json(self) -> dict[str, Any]:
        return {
            "clock_megahertz": self.clock_megahertz,
            "sequential": self.sequential,
            "partitions": [[name, schedule.to_json()] for name, schedule in self.partitions],
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> MicrobatchSchedule:
        return cls(
            record["clock_megahertz"],
            tuple((name, KernelSchedule.from_json(schedule)) for name, schedule in record["partitions"]),
        )


def microbatch_frontier(
    partitions: Sequence[PartitionChoices],
    alone: Mapping[int, Measurement],
    sequential: Mapping[int, Measurement],
    static_power_watts: float = 0.0,
) -> Frontier[MicrobatchSchedule]:
    """The frontier of one microbatch, exact over everything measured (Algorithm 2; section 4.5 for `sequential`).

    `alone` holds, by clock, what the kernels outside every partition take together (empty: there are none), and
    `sequential` what the whole microbatch takes unsplit, a candidate at its clocks. A clock counts only where every
    partition and `alone` were measured at it. `static_power_watts`, of all the microbatch's GPUs, is the frontier's
    waiting power: with it, what is traded for time is dynamic energy. Raises ValueError where nothing is left.
    """
    points = [
        FrontierPoint(m.time_seconds, m.energy_joules, MicrobatchSchedule(clock)) for clock, m in sequential.items()
    ]
    if partitions:
        clocks = set.intersection(*({schedule.clock_megahertz for schedule in p.measured} for p in partitions))
        for clock in sorted(clocks & set(alone) if alone else clocks):
            points += _at_clock(partitions, alone.get(clock, NOTHING), clock, static_power_watts)
    if not points:
        raise ValueError(
            "no clock at which every partition was measured, and no sequential execution; measured clocks: "
            + "; ".join(f"{p.name}: {sorted({s.clock_megahertz for s in p.measured})}" for p in partitions)
        )
    return Frontier.of(points, static_power_watts)


def _at_clock(
    partitions: Sequence[PartitionChoices], alone: Measurement, clock: int, static_power_watts: float
) -> list[FrontierPoint[MicrobatchSchedule]]:
    """Algorithm 2, lines 3-12, at one clock: sums of every combination, dominated ones dropped at each step."""
    sums = [FrontierPoint(alone.time_seconds, alone.energy_joules, MicrobatchSchedule(clock))]
    for partition in partitions:
        best = Frontier.of(
            (
                FrontierPoint(m.time_seconds, m.energy_joules, schedule)
                for schedule, m in partition.measured.items()
                if schedule.clock_megahertz == clock
            ),
            static_power_watts,
        )
        combined = Frontier.of(
            (
                FrontierPoint(
                    total.time_seconds + partition.count * own.time_seconds,
                    total.energy_joules + partition.count * own.energy_joules,
                    MicrobatchSchedule(clock, (*total.plan.partitions, (partition.name, own.plan))),
                )
                for total in sums
                for own in best.points
            ),
            static_power_watts,
        )
        sums = list(combined.points)
    return sums
