"""Fair shares: at equal priority a tenant that holds few GPUs comes before one that holds many.

What a tenant holds is what its jobs hold at their smallest sizes: the rest is lent, and is taken back for whoever waits.
Waiting jobs take turns, that of the tenant who holds least first, and a job is paused for one of another tenant's only
where its own tenant keeps at least as many GPUs as the other then has. Each such pause makes shares more even, so that no
two jobs ever take turns at pausing each other (max-min fairness by progressive filling; Bertsekas and Gallager, Data
Networks, section 6.5.2, for whole jobs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from flyball_planner.ledger.state import Candidate


def least_gpus(candidate: Candidate) -> int:
    """What a job holds of its tenant's share: its smallest size."""
    return candidate.ladder[0] if candidate.ladder else candidate.job.gpus_min


class Shares:
    """How many GPUs each tenant holds in a plan in the making; `recount` after each change of who runs."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._candidates = candidates
        self._several = len({candidate.job.tenant for candidate in candidates}) > 1
        self._held: dict[str, int] = {}
        self.recount()

    def recount(self) -> None:
        """Take in who runs now."""
        if not self._several:
            return
        self._held = dict.fromkeys(self._held, 0)
        for candidate in self._candidates:
            of = candidate.job.tenant
            self._held[of] = self._held.get(of, 0) + (0 if candidate.option is None else least_gpus(candidate))

    def in_turn(
        self, waiting: Sequence[Candidate], tier: Callable[[Candidate], Any], rank: Callable[[Candidate], Any]
    ) -> Iterator[Candidate]:
        """The waiting jobs by `tier`; inside each the tenant that holds least is next, with its first job by `rank`."""
        ranked = sorted(waiting, key=lambda candidate: (tier(candidate), rank(candidate)))
        if not self._several:
            yield from ranked
            return
        begin = 0
        while begin < len(ranked):
            end = begin
            queues: dict[str, list[Candidate]] = {}
            while end < len(ranked) and tier(ranked[end]) == tier(ranked[begin]):
                queues.setdefault(ranked[end].job.tenant, []).append(ranked[end])
                end += 1
            begin = end
            for queue in queues.values():
                queue.reverse()  # the first is taken from the end
            heap = [(self._held[of], rank(queue[-1]), of) for of, queue in queues.items()]
            heapify(heap)
            while heap:
                held, _, of = heappop(heap)
                if held != self._held[of]:  # another's turn took something from it
                    heappush(heap, (self._held[of], rank(queues[of][-1]), of))
                    continue
                yield queues[of].pop()
                if queues[of]:
                    heappush(heap, (self._held[of], rank(queues[of][-1]), of))

    def may_take(self, candidate: Candidate) -> bool:
        """Whether any other tenant holds so much more that a job of it might be paused for this one."""
        if not self._several:
            return False
        then = self._held[candidate.job.tenant] + least_gpus(candidate)
        return any(held > then for of, held in self._held.items() if of != candidate.job.tenant)

    def yields(self, other: Candidate, candidate: Candidate) -> bool:
        """Whether `other`, of the same priority, is to be paused for a waiting job of another tenant."""
        if other.job.tenant == candidate.job.tenant or not other.adjustable:
            return False
        then = self._held[candidate.job.tenant] + least_gpus(candidate)
        return self._held[other.job.tenant] - least_gpus(other) >= then

    def started(self, candidate: Candidate) -> None:
        """A waiting job of its tenant has just been given its smallest size."""
        if self._several:
            self._held[candidate.job.tenant] += least_gpus(candidate)

    def paused(self, candidate: Candidate) -> None:
        """A job of its tenant has just been paused."""
        if self._several:
            self._held[candidate.job.tenant] -= least_gpus(candidate)
