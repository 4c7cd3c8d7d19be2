"""Which nodes the jobs of a simulation sit on: buddy cells, migrations, and nodes that are off, booting or lost.

All sizes are powers of two and all nodes alike, so a set of jobs whose GPUs add up to no more than there are always fits
once running jobs may migrate (PowerFlow section 5.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from flyball_planner.ledger.pools import level_of, take_room
from flyball_planner.placement.buddy import FreeCells
from flyball_planner.placement.cells import fewest_that_free

Cells = tuple[tuple[int, int], ...]  # (node, GPUs)


class Occupant(Protocol):
    """A job that can hold GPUs: `cells` is where it does, () for nowhere."""

    cells: Cells

    @property
    def index(self) -> int: ...
    @property
    def gpus(self) -> int: ...
    @property
    def movable(self) -> bool: ...


SomeOccupant = TypeVar("SomeOccupant", bound=Occupant)


class Nodes:
    """The free GPUs of each node, and who has the others."""

    def __init__(self, count: int, gpus_per_node: int) -> None:
        self.count = count
        self.gpus_per_node = gpus_per_node
        self.free = [gpus_per_node] * count
        self.lost: set[int] = set()

    @property
    def usable_gpus(self) -> int:
        return (self.count - len(self.lost)) * self.gpus_per_node

    def empty(self) -> list[int]:
        """The nodes that nobody is on."""
        return [node for node in range(self.count) if self.free[node] == self.gpus_per_node and node not in self.lost]

    def release(self, occupant: Occupant) -> None:
        """The occupant leaves its nodes."""
        for node, gpus in occupant.cells:
            self.free[node] += gpus
        occupant.cells = ()

    def occupy(self, occupant: Occupant, cells: Cells) -> None:
        """The occupant takes exactly these cells, which are free."""
        for node, gpus in cells:
            self.free[node] -= gpus
            if self.free[node] < 0:
                raise AssertionError(f"node {node} would hold {-self.free[node]} GPUs more than it has")
        occupant.cells = cells

    def settle(
        self, wanted: Sequence[tuple[SomeOccupant, int]], residents: Iterable[SomeOccupant], on: Sequence[int]
    ) -> list[SomeOccupant]:
        """Cells for every occupant that has none, at its wanted size, migrating residents where no cell is whole.

        `on`: powered nodes, taken before others of the same fill. The migrated residents have their new cells, too; they
        are returned. Raises AssertionError where the sizes do not fit by count, which no policy may ask for.
        """
        evicted = self._evacuate([gpus for _, gpus in wanted], residents)
        size_of = {id(occupant): gpus for occupant, gpus in wanted}
        was = {id(occupant): cells for occupant, cells in evicted}
        queue = [occupant for occupant, _ in wanted] + [occupant for occupant, _ in evicted]
        queue.sort(key=lambda occupant: (-size_of.get(id(occupant), occupant.gpus), occupant.index))
        for occupant in queue:
            cells = self._take(size_of.get(id(occupant), occupant.gpus), was.get(id(occupant), ()), on)
            if cells is None:
                raise AssertionError(
                    f"{size_of.get(id(occupant), occupant.gpus)} GPUs have no cell: free is {self.free}"
                )
            self.occupy(occupant, cells)
        return [occupant for occupant, cells in evicted if occupant.cells != cells]

    def settle_in_order(
        self, wanted: Sequence[tuple[SomeOccupant, int]], on: Sequence[int]
    ) -> tuple[list[SomeOccupant], list[SomeOccupant]]:
        """Cells for the occupants in the order given, each after its betters; nobody moves for the sake of a cell.

        A occupant keeps its own cells unless a better one took them. Returns those without a cell, and those that ran and
        had to go elsewhere.
        """
        former = {id(occupant): occupant.cells for occupant, gpus in wanted if occupant.cells and occupant.gpus == gpus}
        held = list(self.free)  # where nobody that is named sits now
        for occupant, _ in wanted:
            self.release(occupant)
        homeless: list[SomeOccupant] = []
        moved: list[SomeOccupant] = []
        for occupant, gpus in wanted:
            own = former.get(id(occupant), ())
            if own and all(self.free[node] >= part for node, part in own):
                self.occupy(occupant, own)
                continue
            spare = [min(free, unheld) for free, unheld in zip(self.free, held, strict=True)]
            cells = self._take(gpus, (), on, spare) or self._take(gpus, (), on)
            if cells is None:
                homeless.append(occupant)
                continue
            for node, part in cells:
                held[node] = max(0, held[node] - part)
            self.occupy(occupant, cells)
            if own:
                moved.append(occupant)
        return homeless, moved

    def _usable(self, free: Sequence[int]) -> list[int]:
        return [0 if node in self.lost else gpus for node, gpus in enumerate(free)] if self.lost else list(free)

    def _take(self, gpus: int, home: Cells, on: Sequence[int], free: Sequence[int] | None = None) -> Cells | None:
        """Free cells for a job: the smallest that holds it, on its old node or a powered one where that makes no odds."""
        cells = FreeCells(self._usable(self.free if free is None else free))
        preferred = [*(node for node, _ in home), *on]
        per_node = min(gpus, self.gpus_per_node)
        taken: list[int] = []
        for _ in range(gpus // per_node):
            node = cells.take(level_of(per_node), per_node, preferred)
            if node is None:
                return None
            taken.append(node)
        return tuple((node, per_node) for node in sorted(taken))

    def _evacuate(self, sizes: Sequence[int], residents: Iterable[SomeOccupant]) -> list[tuple[SomeOccupant, Cells]]:
        """Free the nodes that yield the lacking cells by moving the fewest residents; who had to go, and from where."""
        top = level_of(self.gpus_per_node)
        room = [sum(free >> level for free in self._usable(self.free)) for level in range(top + 1)]
        for gpus in sizes:
            take_room(room, level_of(min(gpus, self.gpus_per_node)), max(1, gpus // self.gpus_per_node))
        if min(room) >= 0:
            return []
        within_nodes = [occupant for occupant in residents if len(occupant.cells) == 1]
        on_node = _by_node(occupant for occupant in within_nodes if occupant.movable)
        evicted: list[tuple[SomeOccupant, Cells]] = []
        for level in range(top, -1, -1):
            while room[level] < 0:
                cheapest = self._cheapest(level, on_node)
                if cheapest is None:  # then those go that would rather not: what was promised has to fit
                    on_node = _by_node(occupant for occupant in within_nodes if occupant.cells)
                    cheapest = self._cheapest(level, on_node)
                if cheapest is None:
                    raise AssertionError(f"no node can yield a cell of {1 << level} GPUs: free is {self.free}")
                node, leaving = cheapest
                for occupant in leaving:
                    on_node[node].remove(occupant)
                    before = self.free[node]
                    evicted.append((occupant, occupant.cells))
                    self.release(occupant)
                    for lower in range(top + 1):
                        room[lower] += (self.free[node] >> lower) - (before >> lower)
                    take_room(room, level_of(occupant.gpus), 1)
        return evicted

    def _cheapest(self, level: int, on_node: dict[int, list[SomeOccupant]]) -> tuple[int, list[SomeOccupant]] | None:
        best: tuple[tuple[int, int, int], list[SomeOccupant]] | None = None
        for node, residents in on_node.items():
            leaving = fewest_that_free(residents, (1 << level) - self.free[node] % (1 << level), 1 << level)
            if leaving is not None:
                key = (len(leaving), sum(occupant.gpus for occupant in leaving), node)
                if best is None or key < best[0]:
                    best = (key, leaving)
        return None if best is None else (best[0][2], best[1])


def _by_node(occupants: Iterable[SomeOccupant]) -> dict[int, list[SomeOccupant]]:
    on_node: dict[int, list[SomeOccupant]] = {}
    for occupant in occupants:
        on_node.setdefault(occupant.cells[0][0], []).append(occupant)
    return on_node
