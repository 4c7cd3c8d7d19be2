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
class Site:
    """One of a set of interchangeable nodes: GPUs free for jobs, watts that it draws less once empty, and whether it stays
    on in any case (for pods of others), so that jobs on it keep nothing awake."""

    free_gpus: int
    saved_watts: float
    stays_on: bool = False


@dataclass(frozen=True, slots=True)
class Tenant:
    """GPUs that a job holds on one site (a gang of several nodes has several tenants, none of them movable).

    `migration_joules`: what its move costs, lost time included; `remaining_seconds`: how long it will hold its GPUs yet.
    """

    index: int
    site: int
    gpus: int
    movable: bool
    migration_joules: float
    remaining_seconds: float


class Move(NamedTuple):
    """One tenant goes from a site to another."""

    tenant: int  # its index
    source: int
    target: int


class Clearance(NamedTuple):
    """The moves that leave one site empty, what that saves, and what the moves cost."""

    site: int
    moves: tuple[Move, ...]
    saved_joules: float
    migration_joules: float


_Cover = tuple[Cost, tuple[Tenant, ...]]  # joules and moves, and who leaves


def consolidate(sites: Sequence[Site], tenants: Iterable[Tenant], empty_seconds: float) -> list[Clearance]:
    """Clear sites, the one that saves most first, until no further one pays for its moves.

    `empty_seconds` bounds how far ahead savings are counted: how long an empty node is expected to stay empty. With the
    moves made nothing more is proposed. Deterministic; ties go to fewer moves, then to the first site. Raises ValueError
    where a tenant is on a site that does not exist, and where `empty_seconds` is infinite.
    """
    if not 0 <= empty_seconds < math.inf:
        raise ValueError(f"consolidation: a hold of {empty_seconds} s must be finite and not negative")
    occupancy = _Occupancy(sites, tenants, empty_seconds)
    steps = []
    while (step := occupancy.best_step()) is not None:
        occupancy.apply(step)
        steps.append(step)
    return steps


class _Occupancy:
    """Who is on which site, as the steps so far leave it."""

    def __init__(self, sites: Sequence[Site], tenants: Iterable[Tenant], empty_seconds: float) -> None:
        self._sites = sites
        self._empty_seconds = empty_seconds
        self._free = [site.free_gpus for site in sites]
        self._residents: list[list[Tenant]] = [[] for _ in sites]
        largest = 1
        for tenant in sorted(tenants, key=lambda tenant: (-tenant.gpus, tenant.index)):
            if not 0 <= tenant.site < len(sites):
                raise ValueError(f"tenant {tenant.index} is on site {tenant.site}, and there are {len(sites)}")
            whole = tenant.gpus & (tenant.gpus - 1) == 0
            self._residents[tenant.site].append(tenant if whole else replace(tenant, movable=False))
            largest = max(largest, tenant.gpus)
        self._levels = level_of(largest) + 1
        self._occupied_seconds = [self._occupied(site) for site in range(len(sites))]
        self._offers_of: dict[tuple[int, float], list[Offer[Tenant]]] = {}

    def _occupied(self, site: int) -> float:
        """For how long a site will be on for its tenants, as far ahead as savings count."""
        if self._sites[site].stays_on:
            return self._empty_seconds
        longest = max((tenant.remaining_seconds for tenant in self._residents[site]), default=0.0)
        return min(self._empty_seconds, longest)

    def apply(self, step: Clearance) -> None:
        """Make the moves of a step."""
        moved = {}
        for move in step.moves:
            tenant = next(item for item in self._residents[move.source] if item.index == move.tenant)
            self._residents[move.source].remove(tenant)
            self._free[move.source] += tenant.gpus
            moved[move] = tenant
        for move, tenant in moved.items():
            self._residents[move.target].append(replace(tenant, site=move.target))
            self._free[move.target] -= tenant.gpus
        touched = {site for move in step.moves for site in (move.source, move.target)}
        for site in touched:
            self._residents[site].sort(key=lambda tenant: (-tenant.gpus, tenant.index))
            self._occupied_seconds[site] = self._occupied(site)
        for key in [key for key in self._offers_of if key[0] in touched]:
            del self._offers_of[key]

    def best_step(self) -> Clearance | None:
        """The clearance that saves most, its moves paid; None where none saves anything."""
        candidates = []
        for site, residents in enumerate(self._residents):
            if not residents or self._sites[site].stays_on or not all(tenant.movable for tenant in residents):
                continue
            own = sum(tenant.migration_joules for tenant in residents)
            saved = self._sites[site].saved_watts * self._occupied_seconds[site]
            if saved > own:
                candidates.append((own - saved, len(residents), site))
        if not candidates:
            return None
        room_from = self._room_by_seconds()
        covers: dict[tuple[float, Levels], _Cover | None] = {}
        best: tuple[float, float, int, tuple[Tenant, ...]] | None = None
        for loss, moves, site in sorted(candidates):
            if best is not None and loss > best[0]:
                break  # not even without further moves
            seconds = self._occupied_seconds[site]
            lacking = self._lacking(site, room_from[seconds])
            if lacking[0]:
                continue  # too few GPUs, whoever moves
            cover: _Cover | None = ((0.0, 0.0), ())
            if any(lacking):
                key = (seconds, lacking)
                if key not in covers:
                    covers[key] = self._cheapest_cover(seconds, lacking, None)
                cover = covers[key]
                if cover is not None and any(tenant.site == site for tenant in cover[1]):
                    cover = self._cheapest_cover(seconds, lacking, site)
            if cover is None:
                continue
            (joules, more), evicted = cover
            found = (loss + joules, moves + more, site, evicted)
            if found[0] < 0 and (best is None or found[:3] < best[:3]):
                best = found
        return None if best is None else self._arranged(best[2], best[3])

    def _room_by_seconds(self) -> dict[float, Levels]:
        """For each length of occupation: the free cells of the sites that stay occupied at least as long."""
        by_seconds: dict[float, list[int]] = {}
        for site, seconds in enumerate(self._occupied_seconds):
            if seconds > 0:
                room = by_seconds.setdefault(seconds, [0] * self._levels)
                for level in range(self._levels):
                    room[level] += self._free[site] >> level
        longest_first = sorted(by_seconds, reverse=True)
        totals = accumulate((tuple(by_seconds[seconds]) for seconds in longest_first), _sum)
        return dict(zip(longest_first, totals, strict=True))

    def _lacking(self, site: int, room: Levels) -> Levels:
        """How many cells the tenants of a site lack elsewhere, at each level."""
        return tuple(
            max(
                0,
                sum(tenant.gpus >> level for tenant in self._residents[site])
                - (room[level] - (self._free[site] >> level)),
            )
            for level in range(self._levels)
        )

    def _cheapest_cover(self, seconds: float, lacking: Levels, excluded: int | None) -> _Cover | None:
        """The evictions of fewest joules that make the cells that lack, on sites occupied for `seconds` at least."""
        return cheapest_cover(
            lacking,
            (
                offer
                for site, occupied in enumerate(self._occupied_seconds)
                if site != excluded and occupied >= seconds
                for offer in self._offers(site, seconds)
            ),
        )

    def _offers(self, site: int, seconds: float) -> list[Offer[Tenant]]:
        """Every way for tenants to leave a site that could be worth it, of equal sizes the cheapest first.

        Only tenants that hold their GPUs no longer than `seconds` may leave: a longer one would keep its new site on.
        """
        key = (site, seconds)
        if key not in self._offers_of:
            by_size: dict[int, list[Tenant]] = {}
            for tenant in self._residents[site]:
                if tenant.movable and min(tenant.remaining_seconds, self._empty_seconds) <= seconds:
                    by_size.setdefault(tenant.gpus, []).append(tenant)
            for alike in by_size.values():
                alike.sort(key=lambda tenant: (tenant.migration_joules, tenant.index))
            best: dict[Levels, Offer[Tenant]] = {}
            for leaving in subsets(list(by_size.values())):
                cells = cells_made(self._free[site], [tenant.gpus for tenant in leaving], self._levels)
                cost = (math.fsum(tenant.migration_joules for tenant in leaving), float(len(leaving)))
                if any(cells) and (cells not in best or cost < best[cells].cost):
                    best[cells] = Offer(cost, site, cells, leaving)
            self._offers_of[key] = list(best.values())
        return self._offers_of[key]

    def _arranged(self, site: int, evicted: Sequence[Tenant]) -> Clearance:
        """The moves of a clearance: everyone who is lifted takes the smallest cell that holds it, largest first."""
        seconds = self._occupied_seconds[site]
        lifted = [*self._residents[site], *evicted]
        freed = [0] * len(self._free)
        for tenant in evicted:
            freed[tenant.site] += tenant.gpus
        cells = FreeCells(
            [
                free + freed[other] if other != site and self._occupied_seconds[other] >= seconds else 0
                for other, free in enumerate(self._free)
            ]
        )
        moves = []
        for tenant in sorted(lifted, key=lambda tenant: (-tenant.gpus, tenant.index)):
            target = cells.take(level_of(tenant.gpus), tenant.gpus)
            assert target is not None  # noqa: S101 - the count said that everyone has a cell
            if target != tenant.site:
                moves.append(Move(tenant.index, tenant.site, target))
        paid = math.fsum(tenant.migration_joules for tenant in lifted)
        return Clearance(site, tuple(moves), self._sites[site].saved_watts * seconds, paid)


def _sum(left: Levels, right: Levels) -> Levels:
    return tuple(one + other for one, other in zip(left, right, strict=True))
