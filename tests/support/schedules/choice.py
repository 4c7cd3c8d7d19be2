"""Which schedules to run where not many can be: few seeds, in whose schedules every two kinds of faults meet."""

from __future__ import annotations

import functools
import heapq
from itertools import combinations

from tests.support.schedules.faults import Schedule, schedule_of


def kinds_that_meet(schedule: Schedule) -> set[tuple[str, str]]:
    """Each two kinds of faults, by their names in order, of which a schedule has both."""
    return set(combinations(sorted({fault.kind for fault in schedule.faults}), 2))


@functools.cache
def seeds_in_which_kinds_meet(candidates: int) -> tuple[int, ...]:
    """Few of the first so many seeds, in whose schedules every two kinds meet that meet in any of them.

    The greedy cover of sets: each next seed brings the most pairs that are missing yet. What one brings only falls, so that
    the count of an earlier round is a bound, and few are counted anew.
    """
    meet = {seed: kinds_that_meet(schedule_of(seed)) for seed in range(candidates)}
    missing = set().union(*meet.values())
    bounds = [(-len(pairs), seed) for seed, pairs in meet.items()]
    heapq.heapify(bounds)
    chosen = []
    while missing:
        _, seed = heapq.heappop(bounds)
        brings = len(meet[seed] & missing)
        if bounds and -brings > bounds[0][0]:
            heapq.heappush(bounds, (-brings, seed))
            continue
        chosen.append(seed)
        missing -= meet[seed]
    return tuple(chosen)
