"""Random schedules of faults over the real operator and agents, judged by a referee that believes nobody.

    python benchmarks/schedules.py [--count 1000 | --seconds 600] [--seed 0] [--jobs 2] [--only GROUP] [--without GROUP]
    python benchmarks/schedules.py --count 100000 --record FILE
    python benchmarks/schedules.py --show 1234
    python benchmarks/schedules.py --fingerprint --count 200

Each schedule is a cluster of its own in virtual time: two operators (their loop, leader's term, Lease, informers, executor,
power controller), three nodes with their agents (rounds, enforcer, journal, status channel), an API server in memory, and 3
to 14 faults of a random part of all kinds (docs/proof.md). A seed is always the same schedule.
At the first claim that is not true the schedule is shrunk to the fewest faults that still do it, its course is printed, and
the status is 1. `--show` prints the course of one seed.

With `--record` every part that has been judged is added to a file, and seeds that are in it, judged on the very same code,
are not run again: what takes hours can be done in pieces, each ended by Ctrl-C or `--seconds`. Parts of other code stay in
the file and are counted by themselves. Every half minute a line says how far it has come.

`--fingerprint` prints a digest over everything that happens in the schedules, every object that is stored among it: code
that was made faster has the same one as before.
"""

from __future__ import annotations

import argparse
import hashlib
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count as counting
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.schedule_records import Part, Records, code_that_runs, commit_of_checkout, runs_of
from tests.support.schedules.faults import GROUPS, Schedule, schedule_of
from tests.support.schedules.run import Outcome, run, shrunk

SEEDS_AT_ONCE = 20
TRACE_LINES = 80
SHOWN_EVERY_SECONDS = 30.0


@dataclass
class Batch:
    """What some schedules came to; `fingerprints` by their seeds, where those were asked for."""

    schedules: int = 0
    judged: int = 0
    processor_seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    windows: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    violations: list[tuple[int, str]] = field(default_factory=list)
    fingerprints: dict[int, str] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        self.schedules += 1
        self.judged += outcome.judged
        self.faults.update(fault.kind for fault in outcome.schedule.faults)
        for window in outcome.windows:
            self.windows[window.cause].append(window.seconds)
        if outcome.violation:
            self.violations.append((outcome.schedule.seed, outcome.violation))
        if outcome.fingerprint:
            self.fingerprints[outcome.schedule.seed] = outcome.fingerprint

    def merge(self, other: Batch) -> None:
        self.schedules += other.schedules
        self.judged += other.judged
        self.processor_seconds += other.processor_seconds
        self.faults += other.faults
        for cause, seconds in other.windows.items():
            self.windows[cause] += seconds
        self.violations += other.violations
        self.fingerprints |= other.fingerprints

    def as_part(self, seeds: list[int], code: str, commit: str, groups: str) -> Part:
        return Part(
            code,
            commit,
            groups,
            runs_of(seeds),
            self.judged,
            round(self.processor_seconds, 3),
            dict(self.faults),
            {cause: [round(each, 3) for each in seconds] for cause, seconds in self.windows.items()},
            self.violations,
        )

    @classmethod
    def of(cls, part: Part) -> Batch:
        windows = defaultdict(list, {cause: list(seconds) for cause, seconds in part.windows.items()})
        return cls(
            part.schedules, part.judged, part.processor_seconds, Counter(part.faults), windows, list(part.violations)
        )


def run_some(seeds: list[int], groups: frozenset[str], fingerprints: bool) -> Batch:
    batch, before = Batch(), time.process_time()
    for seed in seeds:
        batch.add(run(schedule_of(seed, groups), keep_trace=fingerprints))
    batch.processor_seconds = time.process_time() - before
    return batch


def parts(first: int, count: int | None, judged: Container[int] = ()) -> Iterator[list[int]]:
    """The seeds that have not been judged yet, some at a time; without `count`, for ever."""
    seeds = counting(first) if count is None else iter(range(first, first + count))
    missing = (seed for seed in seeds if seed not in judged)
    while part := list(islice(missing, SEEDS_AT_ONCE)):
        yield part


def ignore_interrupts() -> None:
    """A terminal sends Ctrl-C to every process: what is under way comes to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Progress:
    """Says every half minute how far a run has come; `before` are those of its seeds that were judged before it."""

    def __init__(self, count: int | None, before: int) -> None:
        self._count = count
        self._before = before
        self._started = self._shown_at = time.monotonic()

    def tell(self, total: Batch) -> None:
        now = time.monotonic()
        if now - self._shown_at < SHOWN_EVERY_SECONDS:
            return
        self._shown_at, seconds = now, now - self._started
        judged, left = self._before + total.schedules, ""
        if self._count is not None:
            minutes = (self._count - judged) * seconds / total.schedules / 60
            left = f" of {self._count:,}, the others in {minutes:.0f} min"
        print(
            f"{datetime.now(UTC):%H:%M:%S} {judged:,} schedules judged{left}; {total.schedules / seconds:.1f} a second, "
            f"{total.schedules / total.processor_seconds:.1f} a processor second, {len(total.violations)} violations",
            flush=True,
        )


def run_all(
    options: argparse.Namespace,
    groups: frozenset[str],
    judged: Container[int],
    progress: Progress,
    keep: Callable[[list[int], Batch], None],
) -> Batch:
    """Run what has not been judged yet; `keep` is told of each part once it has been."""
    total, started = Batch(), time.monotonic()
    seeds, interrupted = parts(options.seed, options.count, judged), False
    with ProcessPoolExecutor(options.jobs, initializer=ignore_interrupts) as pool:
        under_way: dict[Future[Batch], list[int]] = {}
        while True:
            late = options.seconds is not None and time.monotonic() - started > options.seconds
            while not late and not interrupted and not total.violations and len(under_way) < 2 * options.jobs:
                if (part := next(seeds, None)) is None:
                    break
                under_way[pool.submit(run_some, part, groups, options.fingerprint)] = part
            if not under_way:
                return total
            try:
                done, _ = wait(under_way, return_when=FIRST_COMPLETED)
            except KeyboardInterrupt:
                print("what is under way comes to its end", flush=True)
                interrupted = True
                continue
            for future in done:
                batch = future.result()
                total.merge(batch)
                keep(under_way.pop(future), batch)
            progress.tell(total)


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
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="add what has been judged to this file, and leave out what is in it"
    )
    parser.add_argument("--fingerprint", action="store_true", help="print a digest over everything that happens")
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
    code, commit, named = code_that_runs(), commit_of_checkout(), " ".join(sorted(groups))
    wanted = range(options.seed, sys.maxsize if options.count is None else options.seed + options.count)
    try:
        records = None if options.record is None else Records(options.record)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    judged = set() if records is None else {seed for seed in records.judged(code, named) if seed in wanted}
    if judged:
        print(f"{len(judged):,} of these schedules have been judged on this code ({code}) before", flush=True)

    def keep(seeds: list[int], batch: Batch) -> None:
        if records is not None:
            records.add(batch.as_part(seeds, code, commit, named))

    started = time.monotonic()
    total = run_all(options, groups, judged, Progress(options.count, len(judged)), keep)
    seconds = time.monotonic() - started
    print(
        f"{total.schedules:,} schedules in {seconds:.0f} s and {total.processor_seconds:.0f} processor seconds: "
        f"{total.schedules / seconds:.1f} a second, {total.schedules / max(0.001, total.processor_seconds):.1f} a "
        "processor second"
    )
    if records is not None:
        total = Batch()
        for part in records.of(code, named):
            total.merge(Batch.of(part))
        for of_code, (of_commit, schedules, violations) in records.by_code().items():
            print(f"  code {of_code} (commit {of_commit}): {schedules:,} schedules, {violations} violations")
    print(
        f"{total.schedules:,} schedules of code {code} (commit {commit}), {sum(total.faults.values()):,} faults, "
        f"{total.judged:,} looks at a claim, {total.processor_seconds:.0f} processor seconds: "
        f"{len(total.violations)} claims were not true"
    )
    if total.fingerprints:
        digest = hashlib.sha256("".join(each for _, each in sorted(total.fingerprints.items())).encode())
        print(f"fingerprint of {len(total.fingerprints):,} schedules from seed {options.seed}: {digest.hexdigest()}")
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
