"""Consolidation: the few migrations that leave a node empty, where what its idleness saves pays for them.

PowerFlow section 5.3 packs jobs onto few nodes when they are placed; as jobs end, nodes are left half empty. A node is
cleared only if saved watts times the seconds that it would have been occupied exceed what all moved jobs pay (restart
energy and lost time, in joules). Jobs go only to nodes that stay occupied at least as long in any case: moving a long job
beside one that is about to end would only change which node stays on.

Each step is exact: of all nodes, all sets of movable jobs of powers of two and all arrangements, the one that saves most.
Which arrangements exist is decided by counting cells (`ledger/slots.py`), and how the missing cells are made by covering
(`cover`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from flyball_planner.ledger.pools import level_of
from flyball_planner.placement.buddy import FreeCells
from flyball_planner.placement.cover import Cost, Levels, Offer, cells_made, cheapest_cover, subsets


@dataclass(frozen=True, slots=True)
class PackedNode:
    """One of a set of interchangeable nodes: GPUs free for jobs, watts that it draws less once empty, and whether it stays
    on in any case (for pods of others), so that jobs on it keep nothing awake."""

    free_gpus: int
    saved_watts: float
    stays_on: bool = False


@dataclass(frozen=True, slots=True)
class Occupant:
    """GPUs that a job holds on one node (a gang of several nodes has several occupants, none of them movable).

    `migration_joules`: what its move costs, lost time included; `remaining_seconds`: how long it will hold its GPUs yet.
    """

    index: int
    node: int
    gpus: int
    movable: bool
    migration_joules: float
    remaining_seconds: float


class Move(NamedTuple):
    """One occupant goes from a node to another."""

    occupant: int  # its index
    source: int
    target: int


class Clearance(NamedTuple):
    """The moves that leave one node empty, what that saves, and what the moves cost."""

    node: int
    moves: tuple[Move, ...]
    saved_joules: float
    migration_joules: float


_Cover = tuple[Cost, tuple[Occupant, ...]]  # joules and moves, and who leaves


def consolidate(nodes: Sequence[PackedNode], occupants: Iterable[Occupant], empty_seconds: float) -> list[Clearance]:
    """Clear nodes, the one that saves most first, until no further one pays for its moves.

    `empty_seconds` bounds how far ahead savings are counted: how long an empty node is expected to stay empty. With the
    moves made nothing more is proposed. Deterministic; ties go to fewer moves, then to the first node. Raises ValueError
    where an occupant is on a node that does not exist, and where `empty_seconds` is infinite.
    """
    if not 0 <= empty_seconds < math.inf:
        raise ValueError(f"consolidation: a hold of {empty_seconds} s must be finite and not negative")
    occupancy = _Occupancy(nodes, occupants, empty_seconds)
    steps = []
    while (step := occupancy.best_step()) is not None:
        occupancy.apply(step)
        steps.append(step)
    return steps


class _Occupancy:
    """Who is on which node, as the steps so far leave it."""

    def __init__(self, nodes: Sequence[PackedNode], occupants: Iterable[Occupant], empty_seconds: float) -> None:
        self._nodes = nodes
        self._empty_seconds = empty_seconds
        self._free = [node.free_gpus for node in nodes]
        self._residents: list[list[Occupant]] = [[] for _ in nodes]
        largest = 1
        for occupant in sorted(occupants, key=lambda occupant: (-occupant.gpus, occupant.index)):
            if not 0 <= occupant.node < len(nodes):
                raise ValueError(f"occupant {occupant.index} is on node {occupant.node}, and there are {len(nodes)}")
            whole = occupant.gpus & (occupant.gpus - 1) == 0
            self._residents[occupant.node].append(occupant if whole else replace(occupant, movable=False))
            largest = max(largest, occupant.gpus)
        self._levels = level_of(largest) + 1
        self._occupied_seconds = [self._occupied(node) for node in range(len(nodes))]
        self._offers_of: dict[tuple[int, float], list[Offer[Occupant]]] = {}

    def _occupied(self, node: int) -> float:
        """For how long a node will be on for its occupants, as far ahead as savings count."""
        if self._nodes[node].stays_on:
            return self._empty_seconds
        longest = max((occupant.remaining_seconds for occupant in self._residents[node]), default=0.0)
        return min(self._empty_seconds, longest)

    def apply(self, step: Clearance) -> None:
        """Make the moves of a step."""
        moved = {}
        for move in step.moves:
            occupant = next(item for item in self._residents[move.source] if item.index == move.occupant)
            self._residents[move.source].remove(occupant)
            self._free[move.source] += occupant.gpus
            moved[move] = occupant
        for move, occupant in moved.items():
            self._residents[move.target].append(replace(occupant, node=move.target))
            self._free[move.target] -= occupant.gpus
        touched = {node for move in step.moves for node in (move.source, move.target)}
        for node in touched:
            self._residents[node].sort(key=lambda occupant: (-occupant.gpus, occupant.index))
            self._occupied_seconds[node] = self._occupied(node)
        for key in [key for key in self._offers_of if key[0] in touched]:
            del self._offers_of[key]

    def best_step(self) -> Clearance | None:
        """The clearance that saves most, its moves paid; None where none saves anything."""
        candidates = []
        for node, residents in enumerate(self._residents):
            if not residents or self._nodes[node].stays_on or not all(occupant.movable for occupant in residents):
                continue
            own = sum(occupant.migration_joules for occupant in residents)
            saved = self._nodes[node].saved_watts * self._occupied_seconds[node]
            if saved > own:
                candidates.append((own - saved, len(residents), node))
        if not candidates:
            return None
        room_from = self._room_by_seconds()
        covers: dict[tuple[float, Levels], _Cover | None] = {}
        best: tuple[float, float, int, tuple[Occupant, ...]] | None = None
        for loss, moves, node in sorted(candidates):
            if best is not None and loss > best[0]:
                break  # not even without further moves
            seconds = self._occupied_seconds[node]
            lacking = self._lacking(node, room_from[seconds])
            if lacking[0]:
                continue  # too few GPUs, whoever moves
            cover: _Cover | None = ((0.0, 0.0), ())
            if any(lacking):
                key = (seconds, lacking)
                if key not in covers:
                    covers[key] = self._cheapest_cover(seconds, lacking, None)
                cover = covers[key]
                if cover is not None and any(occupant.node == node for occupant in cover[1]):
                    cover = self._cheapest_cover(seconds, lacking, node)
            if cover is None:
                continue
            (joules, more), evicted = cover
            found = (loss + joules, moves + more, node, evicted)
            if found[0] < 0 and (best is None or found[:3] < best[:3]):
                best = found
        return None if best is None else self._arranged(best[2], best[3])

    def _room_by_seconds(self) -> dict[float, Levels]:
        """For each length of occupation: the free cells of the nodes that stay occupied at least as long."""
        by_seconds: dict[float, list[int]] = {}
        for node, seconds in enumerate(self._occupied_seconds):
            if seconds > 0:
                room = by_seconds.setdefault(seconds, [0] * self._levels)
                for level in range(self._levels):
                    room[level] += self._free[node] >> level
        longest_first = sorted(by_seconds, reverse=True)
        totals = accumulate((tuple(by_seconds[seconds]) for seconds in longest_first), _sum)
        return dict(zip(longest_first, totals, strict=True))

    def _lacking(self, node: int, room: Levels) -> Levels:
        """How many cells the occupants of a node lack elsewhere, at each level."""
        return tuple(
            max(
                0,
                sum(occupant.gpus >> level for occupant in self._residents[node])
                - (room[level] - (self._free[node] >> level)),
            )
            for level in range(self._levels)
        )

    def _cheapest_cover(self, seconds: float, lacking: Levels, excluded: int | None) -> _Cover | None:
        """The evictions of fewest joules that make the cells that lack, on nodes occupied for `seconds` at least."""
        return cheapest_cover(
            lacking,
            (
                offer
                for node, occupied in enumerate(self._occupied_seconds)
                if node != excluded and occupied >= seconds
                for offer in self._offers(node, seconds)
            ),
        )

    def _offers(self, node: int, seconds: float) -> list[Offer[Occupant]]:
        """Every way for occupants to leave a node that could be worth it, of equal sizes the cheapest first.

        Only occupants that hold their GPUs no longer than `seconds` may leave: a longer one would keep its new node on.
        """
        key = (node, seconds)
        if key not in self._offers_of:
            by_size: dict[int, list[Occupant]] = {}
            for occupant in self._residents[node]:
                if occupant.movable and min(occupant.remaining_seconds, self._empty_seconds) <= seconds:
                    by_size.setdefault(occupant.gpus, []).append(occupant)
            for alike in by_size.values():
                alike.sort(key=lambda occupant: (occupant.migration_joules, occupant.index))
            best: dict[Levels, Offer[Occupant]] = {}
            for leaving in subsets(list(by_size.values())):
                cells = cells_made(self._free[node], [occupant.gpus for occupant in leaving], self._levels)
                cost = (math.fsum(occupant.migration_joules for occupant in leaving), float(len(leaving)))
                if any(cells) and (cells not in best or cost < best[cells].cost):
                    best[cells] = Offer(cost, node, cells, leaving)
            self._offers_of[key] = list(best.values())
        return self._offers_of[key]

    def _arranged(self, node: int, evicted: Sequence[Occupant]) -> Clearance:
        """The moves of a clearance: everyone who is lifted takes the smallest cell that holds it, largest first."""
        seconds = self._occupied_seconds[node]
        lifted = [*self._residents[node], *evicted]
        freed = [0] * len(self._free)
        for occupant in evicted:
            freed[occupant.node] += occupant.gpus
        cells = FreeCells(
            [
                free + freed[other] if other != node and self._occupied_seconds[other] >= seconds else 0
                for other, free in enumerate(self._free)
            ]
        )
        moves = []
        for occupant in sorted(lifted, key=lambda occupant: (-occupant.gpus, occupant.index)):
            target = cells.take(level_of(occupant.gpus), occupant.gpus)
            assert target is not None  # noqa: S101 - the count said that everyone has a cell
            if target != occupant.node:
                moves.append(Move(occupant.index, occupant.node, target))
        paid = math.fsum(occupant.migration_joules for occupant in lifted)
        return Clearance(node, tuple(moves), self._nodes[node].saved_watts * seconds, paid)


def _sum(left: Levels, right: Levels) -> Levels:
    return tuple(one + other for one, other in zip(left, right, strict=True))
