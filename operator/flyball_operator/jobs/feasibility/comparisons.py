"""What is compared with every node in each cycle, no more of it at once than a cut can wait for.

Caps are cut by the loop that compares. Whoever may create jobs can have each of thousands demand something else of its
nodes; those are compared in turn over several cycles, and until its next turn what was found last stands.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

Asked = TypeVar("Asked", bound=Hashable)
Demands = TypeVar("Demands")
Found = TypeVar("Found")

# With one node each, 1.3 microseconds: 65 ms a cycle.
MOST_COMPARISONS = 50_000


def turns_of_a_cycle(nodes: int) -> int:
    """How much may be compared with so many nodes in one cycle."""
    return max(1, MOST_COMPARISONS // max(1, nodes))


def whose_turn_it_is(new: Sequence[Asked], before: Sequence[Asked], most: int, cycle: int) -> list[Asked]:
    """Of those that have had no turn yet, the first that came first, and of those that have, the longest ago first, as many
    as may be in a cycle. Somebody can have new ones come all the time: one turn of four is for the others."""
    kept = most // 4 + (cycle % 4 < most % 4)
    of_new = min(len(new), max(most - kept, most - len(before)))
    return [*new[:of_new], *before[: most - of_new]]


class Comparisons(Generic[Asked, Demands, Found]):
    """What was found last of all that is asked for; `Asked` may be the identity of its demands, which are kept with it."""

    def __init__(self) -> None:
        self._found: dict[Asked, tuple[Demands, Found]] = {}  # those whose turn is longest ago first
        self._new: dict[Asked, Demands] = {}  # in the order in which they came
        self._cycle = 0
        self.outstanding = 0
        """How many have never been compared yet, for those before them had their turn first."""

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
        turns = turns_of_a_cycle(nodes)
        now = list(asked)
        if len(now) > turns:
            now = whose_turn_it_is(list(self._new), list(self._found), turns, self._cycle)
        for key in now:
            demands, before = asked[key], self._found.pop(key, None)
            self._new.pop(key, None)
            self._found[key] = demands, compare(demands, key, None if before is None else before[1])
        self.outstanding = len(self._new)
        return {key: found for key, (_, found) in self._found.items()}
