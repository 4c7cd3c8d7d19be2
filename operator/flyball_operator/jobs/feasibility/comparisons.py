"""What is compared with every node in each cycle, no more of it at once than a cut can wait for.

Caps are cut by the loop that compares. Whoever may create jobs can have each of thousands demand something else of its
nodes; those are compared in turn over several cycles, and until its next turn what was found last stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

Asked = TypeVar("Asked", bound=Hashable)
Demands = TypeVar("Demands")
Found = TypeVar("Found")

# With one node each, 1.3 microseconds: 65 ms a cycle.
MOST_COMPARISONS = 50_000


def turns_of_a_cycle(nodes: int) -> int:
    """How much may be compared with so many nodes in one cycle, of what asks for nothing special."""
    return max(1, MOST_COMPARISONS // max(1, nodes))


def as_one(asked: Hashable) -> int:
    """What is worth as much as any other."""
    return 1


def as_many_as(asked: Iterable[Asked], most: int, effort: Callable[[Asked], int]) -> list[Asked]:
    """The first of these that together take no more than so much effort; one at the least, where there is any left."""
    chosen: list[Asked] = []
    for item in asked:
        if most <= 0:
            break
        takes = effort(item)
        if chosen and takes > most:
            break
        chosen.append(item)
        most -= takes
    return chosen


def whose_turn_it_is(
    new: Iterable[Asked],
    before: Collection[Asked],
    most: int,
    cycle: int,
    effort: Callable[[Asked], int] = as_one,
) -> list[Asked]:
    """Of those that have had no turn yet, the first that came first, and of those that have, the longest ago first, as many
    as may be in a cycle. Somebody can have new ones come all the time: one turn of four is for the others."""
    kept = min(most // 4 + (cycle % 4 < most % 4), effort_of(before, effort, most))
    of_new = as_many_as(new, most - kept, effort)
    return [*of_new, *as_many_as(before, max(kept, most - effort_of(of_new, effort)), effort)]


def effort_of(asked: Iterable[Asked], effort: Callable[[Asked], int], most: float = math.inf) -> int:
    """What these take together; of more than `most` only that it is more."""
    together = 0
    for item in asked:
        together += effort(item)
        if together > most:
            break
    return together


class Comparisons(Generic[Asked, Demands, Found]):
    """What was found last of all that is asked for; `Asked` may be the identity of its demands, which are kept with it."""

    def __init__(self, effort: Callable[[Demands], int] = as_one) -> None:
        """`effort` is what it takes to compare something with one node, in comparisons of what asks for nothing special."""
        self._effort = effort
        self._found: dict[Asked, tuple[Demands, Found]] = {}  # those whose turn is longest ago first
        self._new: dict[Asked, Demands] = {}  # in the order in which they came
        self._cycle = 0
        self.outstanding = 0
        """How many have never been compared yet, for those before them had their turn first."""

    def all_at_once(self, asked: Iterable[Demands], nodes: int) -> bool:
        """Whether all of this is compared in each cycle with so many nodes."""
        turns = turns_of_a_cycle(nodes)
        return effort_of(asked, self._effort, turns) <= turns

    def step(
        self,
        asked: Mapping[Asked, Demands],
        nodes: int,
        compare: Callable[[Demands, Asked, Found | None], Found],
    ) -> dict[Asked, Found]:
        """Compare as many of `asked` as may be in one cycle with so many nodes.

        `compare` gets what was found before, None at first. What has had no turn yet is missing in the answer.
        """
        self._cycle += 1
        self._found = {key: found for key, found in self._found.items() if found[0] is asked.get(key)}
        waited = [key for key, demands in self._new.items() if demands is asked.get(key)]
        self._new = {key: asked[key] for key in (*waited, *asked) if key not in self._found}
        now = list(asked)
        if not self.all_at_once(asked.values(), nodes):
            turns = turns_of_a_cycle(nodes)
            now = whose_turn_it_is(self._new, self._found, turns, self._cycle, lambda key: self._effort(asked[key]))
        for key in now:
            demands, before = asked[key], self._found.pop(key, None)
            self._new.pop(key, None)
            self._found[key] = demands, compare(demands, key, None if before is None else before[1])
        self.outstanding = len(self._new)
        return {key: found for key, (_, found) in self._found.items()}
