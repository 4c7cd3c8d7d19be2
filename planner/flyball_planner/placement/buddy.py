"""Buddy allocation of GPUs by count: which node gives a cell of 2^level GPUs with the least harm to larger cells.

A node with c free GPUs is a buddy tree whose free cells are the binary digits of c: 6 free are a cell of 4 and one of 2.
Taking from the smallest cell that is large enough keeps the large ones whole (PowerFlow section 5.3). Devices are not
numbered: which GPUs a pod gets is the kubelet's choice, so a cell is a count that never exceeds what its node has free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush


def smallest_cell(free: int, level: int) -> int:
    """The smallest free buddy cell of at least 2^level GPUs on a node with `free` free ones; 0 where there is none."""
    units = free >> level
    return (units & -units) << level


class FreeCells:
    """The nodes of one pool by how many GPUs they have free; a cell is found and taken in O(GPUs of a node)."""

    def __init__(self, free: Sequence[int]) -> None:
        self._free = list(free)
        self._by_count: dict[int, list[int]] = {}
        for place, count in enumerate(self._free):
            if count > 0:
                self._by_count.setdefault(count, []).append(place)
        for places in self._by_count.values():
            heapify(places)

    def take(self, level: int, gpus: int, preferred: Iterable[int] = ()) -> int | None:
        """Take `gpus` GPUs (at most 2^level) from the best node, and say which; None where no node has such a cell.

        Best: the smallest sufficient cell, then the fewest free GPUs, then a preferred node, then the first.
        """
        best: tuple[int, int] | None = None
        for count in self._by_count:
            cell = smallest_cell(count, level)
            if cell and (best is None or (cell, count) < best) and self._first(count) is not None:
                best = (cell, count)
        if best is None:
            return None
        count = best[1]
        place = next((place for place in preferred if self._free[place] == count), None)
        if place is None:
            place = self._first(count)
            assert place is not None  # noqa: S101 - a count without nodes is never the best
        self._free[place] = count - gpus
        if count > gpus:
            heappush(self._by_count.setdefault(count - gpus, []), place)
        return place

    def _first(self, count: int) -> int | None:
        """The first node with exactly so many free GPUs; entries of nodes whose count has changed are dropped."""
        places = self._by_count[count]
        while places and self._free[places[0]] != count:
            heappop(places)
        return places[0] if places else None
