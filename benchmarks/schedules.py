"""Random schedules of faults over the real operator and agents, judged by a referee that excuses nothing.

    python benchmarks/schedules.py [--count 1000 | --seconds 600] [--seed 0] [--jobs 2] [--only GROUP] [--without GROUP]
    python benchmarks/schedules.py --show 1234

Each schedule is a cluster of its own in virtual time: two operators (their loop, leader's term, Lease, informers, executor,
power controller), three nodes with their agents (rounds, enforcer, journal, status channel), an API server in memory, and 3
to 14 faults of a random part of all kinds (docs/power-safety.md, "How it is tested"). A seed is always the same schedule.
At the first claim that is not true the schedule is shrunk to the fewest faults that still do it, its course is printed, and
the status is 1. `--show` prints the course of one seed. Every half minute a line says up to which seed all have held, so
that runs can be added up, and one that was killed goes on with `--seed`.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count as counting
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.schedules.faults import GROUPS, Schedule, schedule_of
from tests.support.schedules.run import Outcome, run, shrunk

SEEDS_AT_ONCE = 20
TRACE_LINES = 80
TOLD_EVERY_SECONDS = 30.0


@dataclass
class Batch:
    """What some schedules came to."""

    schedules: int = 0
    judged: int = 0
    processor_seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    windows: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    violations: list[tuple[int, str]] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.schedules += 1
        self.judged += outcome.judged
        self.faults.update(fault.kind for fault in outcome.schedule.faults)
        for window in outcome.windows:
            self.windows[window.cause].append(window.seconds)
        if outcome.violation:
            self.violations.append((outcome.schedule.seed, outcome.violation))

    def merge(self, other: Batch) -> None:
        self.schedules += other.schedules
        self.judged += other.judged
        self.processor_seconds += other.processor_seconds
        self.faults += other.faults
        for cause, seconds in other.windows.items():
            self.windows[cause] += seconds
        self.violations += other.violations


def run_some(seeds: list[int], groups: frozenset[str]) -> Batch:
    batch, before = Batch(), time.process_time()
    for seed in seeds:
        batch.add(run(schedule_of(seed, groups)))
    batch.processor_seconds = time.process_time() - before
    return batch


def parts(first: int, count: int | None) -> Iterator[list[int]]:
    """The seeds, some at a time; without `count`, for ever."""
    seeds = counting(first) if count is None else iter(range(first, first + count))
    while part := list(islice(seeds, SEEDS_AT_ONCE)):
        yield part


def ignore_interrupts() -> None:
    """A terminal sends Ctrl-C to every process: what is under way comes to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_all(options: argparse.Namespace, groups: frozenset[str]) -> Batch:
    total, started, told, begun = Batch(), time.monotonic(), time.monotonic(), options.seed
    seeds, interrupted = parts(options.seed, options.count), False
    with ProcessPoolExecutor(options.jobs, initializer=ignore_interrupts) as pool:
        under_way: dict[Future[Batch], int] = {}  # with the first seed of each
        while True:
            late = options.seconds is not None and time.monotonic() - started > options.seconds
            while not late and not interrupted and not total.violations and len(under_way) < 2 * options.jobs:
                if (part := next(seeds, None)) is None:
                    break
                under_way[pool.submit(run_some, part, groups)] = part[0]
                begun = part[-1] + 1
            if not under_way:
                return total
            try:
                done, _ = wait(under_way, return_when=FIRST_COMPLETED)
            except KeyboardInterrupt:
                interrupted = True
                continue
            for future in done:
                total.merge(future.result())
                del under_way[future]
            if time.monotonic() - told > TOLD_EVERY_SECONDS:
                told = time.monotonic()
                judged_to = min(under_way.values(), default=begun) - 1
                print(
                    f"{datetime.now(UTC):%H:%M:%S} all seeds from {options.seed} to {judged_to} "
                    f"have been judged, {total.schedules} schedules in {told - started:.0f} s and "
                    f"{total.processor_seconds:.0f} processor seconds, {len(total.violations)} violations",
                    flush=True,
                )


def show(schedule: Schedule) -> None:
    outcome = run(schedule, keep_trace=True)
    print(f"seed {schedule.seed}: caps at {schedule.beginning.tenths} tenths, expected {schedule.beginning.expected}")
    for fault in schedule.faults:
        print(f"  {fault}")
    print("\n".join(outcome.trace[-TRACE_LINES:]))
    print(outcome.violation or "every claim was true")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=None, help="how many seeds; 1000 without --seconds")
    parser.add_argument("--seconds", type=float, default=None, help="begin no more schedules after so many seconds")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--only", action="append", choices=sorted(GROUPS), help="only faults of this group (repeatable)"
    )
    parser.add_argument(
        "--without", action="append", choices=sorted(GROUPS), default=[], help="no faults of this group"
    )
    parser.add_argument("--show", type=int, metavar="SEED", help="print the course of one schedule, shrunk if it fails")
    options = parser.parse_args()
    groups = frozenset(options.only or GROUPS) - set(options.without)
    if options.show is not None:
        schedule = schedule_of(options.show, groups)
        show(shrunk(schedule) if run(schedule).violation else schedule)
        return 0
    if options.count is None and options.seconds is None:
        options.count = 1000
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell began this in the background
    started = time.monotonic()
    total = run_all(options, groups)
    seconds = time.monotonic() - started
    print(
        f"{total.schedules} schedules from seed {options.seed}, {sum(total.faults.values())} faults, {total.judged} looks "
        f"at a claim, {seconds:.0f} s, {total.schedules / seconds:.1f} a second, {total.processor_seconds:.0f} processor "
        f"seconds, {total.processor_seconds / max(1, total.schedules):.3f} each: "
        f"{len(total.violations)} claims were not true"
    )
    for kind, number in total.faults.most_common():
        print(f"  {number:8d} x {kind}")
    print("limits above a claim by what nobody commanded: how often, median and longest seconds")
    for cause, windows in sorted(total.windows.items(), key=lambda item: -len(item[1])):
        print(f"  {len(windows):8d} x {cause}: {statistics.median(windows):.2f} s, {max(windows):.2f} s")
    for seed, violation in sorted(total.violations):
        print(f"NOT TRUE, seed {seed}: {violation}")
    if total.violations:
        seed = min(total.violations)[0]
        print(f"the fewest faults of seed {seed} that do it, and their course:")
        show(shrunk(schedule_of(seed, groups)))
    return 1 if total.violations else 0


if __name__ == "__main__":
    sys.exit(main())
