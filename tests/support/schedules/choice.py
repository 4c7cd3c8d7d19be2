"""Which schedules to run where not many can be: few seeds, in whose schedules every two kinds of faults meet."""

from __future__ import annotations

from itertools import combinations

from tests.support.schedules.faults import Schedule, schedule_of

# Each round takes the schedules that bring at least so many of the pairs that are missing yet: the greedy cover of sets.
ROUNDS = (40, 28, 24, 20, 16, 13, 10, 8, 6, 5, 4, 3, 2, 1)


def kinds_that_meet(schedule: Schedule) -> set[tuple[str, str]]:
    """Each two kinds of faults, by their names in order, of which a schedule has both."""
    return set(combinations(sorted({fault.kind for fault in schedule.faults}), 2))


def seeds_in_which_kinds_meet(candidates: int) -> list[int]:
    """Few of the first so many seeds, in whose schedules every two kinds meet that meet in any of them."""
    meet = {seed: kinds_that_meet(schedule_of(seed)) for seed in range(candidates)}
    missing = set().union(*meet.values())
    chosen = []
    for least in ROUNDS:
        for seed, pairs in meet.items():
            if len(pairs & missing) >= least:
                chosen.append(seed)
                missing -= pairs
    return chosen
