"""What is compared with every node in each cycle, no more of it at once than a cut can wait for.

Caps are cut by the loop that compares. Whoever may create jobs can have each of thousands demand something else of its
nodes; those are compared in turn over several cycles, and until its next turn what was found last stands.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

Asked = TypeVar("Asked", bound=Hashable)
Demands = TypeVar("Demands")
Found = TypeVar("Found")

# With one node each, 1.3 microseconds: 65 ms a cycle.
MOST_COMPARISONS = 50_000


class Comparisons(Generic[Asked, Demands, Found]):
    """What was found last of all that is asked for; `Asked` may be the identity of its demands, which are kept with it."""

    def __init__(self) -> None:
        self._found: dict[Asked, tuple[Demands, Found]] = {}
        self._compared_in: dict[Asked, int] = {}
        self._cycle = 0
        self.outstanding = 0
        """How many have never been compared yet, for those before them had their turn first."""

    def step(
        self,
        asked: Mapping[Asked, Demands],
        nodes: int,
        compare: Callable[[Demands, Asked, Found | None], Found],
    ) -> dict[Asked, Found]:
        """Compare as many of `asked` as may be in one cycle with so many nodes, those first whose last turn is longest ago.

        `compare` gets what was found before, None at first. What has had no turn yet is missing in the answer.
        """
        self._cycle += 1
        self._found = {key: found for key, found in self._found.items() if found[0] is asked.get(key)}
        self._compared_in = {key: self._compared_in[key] for key in self._found}
        turns = max(1, MOST_COMPARISONS // max(1, nodes))
        now = list(asked)
        if len(now) > turns:
            now = sorted(now, key=self._last_turn)[:turns]
        for key in now:
            demands, before = asked[key], self._found.get(key)
            self._found[key] = demands, compare(demands, key, None if before is None else before[1])
            self._compared_in[key] = self._cycle
        self.outstanding = len(asked) - len(self._found)
        return {key: found for key, (_, found) in self._found.items()}

    def _last_turn(self, key: Asked) -> int:
        return self._compared_in.get(key, 0)
