"""Which jobs to evict so that every missing cell of free GPUs comes to be, at the least cost: a small covering problem.

Each node offers to give up some of those on it, for so many more free cells at each level (their own demand for cells met)
and at a price; of each node at most one offer is taken. Lifting anybody takes no cell of any level away, so the offers
only add up, and dynamic programming over what is still missing is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Generic, NamedTuple, TypeVar

Levels = tuple[int, ...]  # a number of cells for each level: of 1, 2, 4 ... GPUs
Cost = tuple[float, float]  # compared in this order, and added up
Member = TypeVar("Member")


class Offer(NamedTuple, Generic[Member]):
    """Some of those on one node leave it: what that costs, where, and the cells that it makes at each level."""

    cost: Cost
    place: int
    cells: Levels
    members: tuple[Member, ...]


def subsets(kinds: Sequence[Sequence[Member]]) -> Iterable[tuple[Member, ...]]:
    """Every way to take the first few of each kind."""
    for counts in product(*(range(len(kind) + 1) for kind in kinds)):
        yield tuple(member for count, kind in zip(counts, kinds, strict=True) for member in kind[:count])


def cells_made(free_gpus: int, leaving_gpus: Sequence[int], levels: int) -> Levels:
    """How many more cells of each level a node has once jobs of these sizes (powers of two) have left and been placed."""
    freed = free_gpus + sum(leaving_gpus)
    return tuple(
        (freed >> level) - (free_gpus >> level) - sum(gpus >> level for gpus in leaving_gpus) for level in range(levels)
    )


def cheapest_cover(lacking: Levels, offers: Iterable[Offer[Member]]) -> tuple[Cost, tuple[Member, ...]] | None:
    """The offers of least cost that make all the cells that lack, and who leaves; None where no choice makes them."""
    # Nobody needs more offers than cells lack, so of those that make the same cells so many of the cheapest do.
    enough = sum(lacking)
    alike: dict[Levels, list[Offer[Member]]] = {}
    for offer in offers:
        useful = tuple(map(min, offer.cells, lacking))
        if any(useful):
            alike.setdefault(useful, []).append(offer)
    choices: dict[int, list[tuple[Levels, Offer[Member]]]] = {}
    for useful, equals in alike.items():
        for offer in sorted(equals, key=lambda item: (item.cost, item.place))[:enough]:
            choices.setdefault(offer.place, []).append((useful, offer))
    nothing: tuple[Cost, tuple[Member, ...]] = ((0.0, 0.0), ())
    reached = {lacking: nothing}
    for place in sorted(choices):
        for left, (cost, members) in list(reached.items()):
            for useful, offer in choices[place]:
                after = tuple(max(0, lacks - cells) for lacks, cells in zip(left, useful, strict=True))
                total = (cost[0] + offer.cost[0], cost[1] + offer.cost[1])
                if after not in reached or total < reached[after][0]:
                    reached[after] = (total, members + offer.members)
    return reached.get((0,) * len(lacking))
