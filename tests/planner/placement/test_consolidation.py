"""Consolidation: the moves that save most, against every possible set of moves, and none that does not pay."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from flyball_planner.placement.consolidation import Clearance, Site, Tenant, consolidate
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples

HOLD_SECONDS = 3600.0


def packs(sizes: Sequence[int], capacities: Sequence[int]) -> bool:
    """Whether jobs of these sizes fit these nodes, by trying everything."""
    if not sizes:
        return True
    largest, rest = max(sizes), sorted(sizes)[:-1]
    for capacity in {capacity for capacity in capacities if capacity >= largest}:
        left = list(capacities)
        left[left.index(capacity)] -= largest
        if packs(rest, left):
            return True
    return False


def seconds_on(sites: Sequence[Site], tenants: Sequence[Tenant]) -> list[float]:
    """How long each site stays on if nothing else starts."""
    return [
        HOLD_SECONDS
        if site.stays_on
        else min(HOLD_SECONDS, max((one.remaining_seconds for one in tenants if one.site == index), default=0.0))
        for index, site in enumerate(sites)
    ]


def best_of_all(sites: Sequence[Site], tenants: Sequence[Tenant]) -> float:
    """The most that clearing one site can save net of its moves, over every site and every set of movable jobs."""
    lives = seconds_on(sites, tenants)
    best = 0.0
    for index, site in enumerate(sites):
        residents = [one for one in tenants if one.site == index]
        if not residents or site.stays_on or not all(one.movable for one in residents):
            continue
        open_sites = [other for other in range(len(sites)) if other != index and lives[other] >= lives[index]]
        others = [
            one
            for one in tenants
            if one.site in open_sites and one.movable and min(one.remaining_seconds, HOLD_SECONDS) <= lives[index]
        ]
        for count in range(len(others) + 1):
            for more in itertools.combinations(others, count):
                lifted = [*residents, *more]
                cost = sum(one.migration_joules for one in lifted)
                free = [
                    sites[other].free_gpus + sum(one.gpus for one in more if one.site == other) for other in open_sites
                ]
                if site.saved_watts * lives[index] - cost > best and packs([one.gpus for one in lifted], free):
                    best = site.saved_watts * lives[index] - cost
    return best


def after(
    sites: Sequence[Site], tenants: Sequence[Tenant], steps: Sequence[Clearance]
) -> tuple[list[Site], list[Tenant]]:
    """The cluster once the moves have been made, checked move by move."""
    where = {one.index: one.site for one in tenants}
    size = {one.index: one.gpus for one in tenants}
    free = [site.free_gpus for site in sites]
    for step in steps:
        for move in step.moves:
            assert where[move.tenant] == move.source != move.target
            where[move.tenant] = move.target
            free[move.source] += size[move.tenant]
            free[move.target] -= size[move.tenant]
        assert min(free) >= 0
        assert step.site not in where.values()
    left = [replace(site, free_gpus=count) for site, count in zip(sites, free, strict=True)]
    return left, [replace(one, site=where[one.index]) for one in tenants]


@st.composite
def clusters(draw: st.DrawFn, alike: bool = False) -> tuple[list[Site], list[Tenant]]:
    """Two to four nodes of 8 GPUs (some partly taken by others) with up to four jobs each; `alike`: equal costs."""
    sites: list[Site] = []
    tenants: list[Tenant] = []
    for index in range(draw(st.integers(2, 4))):
        left = draw(st.sampled_from([8, 8, 8, 8, 6, 4, 3]))
        for _ in range(draw(st.integers(0, 3))):
            size = draw(st.sampled_from([1, 1, 2, 2, 4, 8]))
            if size > left or len(tenants) >= 8:
                continue
            left -= size
            tenants.append(
                Tenant(
                    len(tenants),
                    index,
                    size,
                    movable=draw(st.sampled_from([True, True, True, True, True, False])),
                    migration_joules=1e4 if alike else draw(st.sampled_from([0.0, 1e4, 2e4, 1e5, 5e5, 2e6])),
                    remaining_seconds=1e5 if alike else draw(st.sampled_from([60.0, 600.0, 1800.0, 1e4, 1e5])),
                )
            )
        saved = 500.0 if alike else draw(st.sampled_from([500.0, 500.0, 900.0]))
        sites.append(Site(left, saved, stays_on=not alike and draw(st.sampled_from([False, False, False, True]))))
    return sites, tenants


@settings(max_examples=examples(400))
@given(clusters())
def test_each_clearance_is_the_best_of_all_sets_of_moves(case: tuple[list[Site], list[Tenant]]) -> None:
    sites, tenants = case
    steps = consolidate(sites, tenants, HOLD_SECONDS)
    event(f"{len(steps)} sites cleared")
    for position, step in enumerate(steps):
        now_sites, now_tenants = after(sites, tenants, steps[:position])
        net = step.saved_joules - step.migration_joules
        assert net == pytest.approx(best_of_all(now_sites, now_tenants))
    assert best_of_all(*after(sites, tenants, steps)) == 0.0, "and nothing that pays is left"


@settings(max_examples=examples(200))
@given(clusters(alike=True))
def test_at_equal_costs_the_moves_are_fewest(case: tuple[list[Site], list[Tenant]]) -> None:
    sites, tenants = case
    steps = consolidate(sites, tenants, HOLD_SECONDS)
    assume(steps)
    most = best_of_all(sites, tenants)
    event(f"{len(steps[0].moves)} moves")
    assert len(steps[0].moves) == pytest.approx((500.0 * HOLD_SECONDS - most) / 1e4)


@settings(max_examples=examples(300))
@given(clusters())
def test_the_watts_saved_really_pay_for_the_moves(case: tuple[list[Site], list[Tenant]]) -> None:
    """Reckoned from how long each site stays on before and after, not from what was promised."""
    sites, tenants = case
    steps = consolidate(sites, tenants, HOLD_SECONDS)
    now_sites, now_tenants = after(sites, tenants, steps)
    before, later = seconds_on(sites, tenants), seconds_on(now_sites, now_tenants)
    saved = sum(site.saved_watts * (old - new) for site, old, new in zip(sites, before, later, strict=True))
    moved = {move.tenant for step in steps for move in step.moves}
    paid = sum(one.migration_joules for one in tenants if one.index in moved)
    assert saved > paid or not steps
    assert all(one.movable for one in tenants if one.index in moved)
    for site, one in itertools.product(range(len(sites)), now_tenants):
        if one.site == site and one.index in moved:
            assert before[site] >= min(one.remaining_seconds, HOLD_SECONDS)


@settings(max_examples=examples(200))
@given(clusters())
def test_once_the_moves_are_made_nothing_more_is_proposed(case: tuple[list[Site], list[Tenant]]) -> None:
    sites, tenants = case
    steps = consolidate(sites, tenants, HOLD_SECONDS)
    assert consolidate(*after(sites, tenants, steps), HOLD_SECONDS) == []
    assert consolidate(sites, tenants[::-1], HOLD_SECONDS) == steps


def job(index: int, site: int, gpus: int, **keywords: object) -> Tenant:
    return replace(Tenant(index, site, gpus, True, 3e4, 1e6), **keywords)  # type: ignore[arg-type]


def test_a_cell_is_made_where_none_is_whole() -> None:
    """The job of 4 has no cell, although 4 GPUs are free: one job of 2 goes to the other gap first."""
    sites = [Site(4, 800.0), Site(2, 800.0), Site(2, 800.0)]
    tenants = [job(0, 0, 4), job(1, 1, 2), job(2, 1, 4), job(3, 2, 4), job(4, 2, 2, movable=False)]
    (step,) = consolidate(sites, tenants, HOLD_SECONDS)
    assert step.site == 0
    assert sorted(step.moves) == [(0, 0, 1), (1, 1, 2)]


def test_a_gang_over_several_nodes_is_never_touched() -> None:
    sites = [Site(0, 800.0), Site(0, 800.0), Site(7, 800.0), Site(7, 800.0)]
    gang = [job(0, 0, 8, movable=False), job(0, 1, 8, movable=False)]
    (step,) = consolidate(sites, [*gang, job(1, 2, 1), job(2, 3, 1)], HOLD_SECONDS)
    assert {move.tenant for move in step.moves} <= {1, 2}


def test_a_long_job_is_not_moved_beside_one_that_is_about_to_end() -> None:
    sites = [Site(7, 800.0), Site(7, 800.0)]
    assert consolidate(sites, [job(0, 0, 1, movable=False, remaining_seconds=300.0), job(1, 1, 1)], HOLD_SECONDS) == []
    (step,) = consolidate(sites, [job(0, 0, 1, remaining_seconds=300.0), job(1, 1, 1)], HOLD_SECONDS)
    assert step.moves == ((0, 0, 1),)
    assert step.saved_joules == pytest.approx(800.0 * 300.0)


def test_a_move_that_costs_more_than_it_saves_is_not_made() -> None:
    sites = [Site(7, 100.0), Site(7, 100.0)]
    assert consolidate(sites, [job(0, 0, 1, migration_joules=4e5), job(1, 1, 1, migration_joules=4e5)], 3600.0) == []
    assert consolidate(sites, [job(0, 0, 1, migration_joules=4e5), job(1, 1, 1, migration_joules=4e5)], 7200.0)


def test_a_node_that_others_keep_on_is_a_place_to_go_and_not_one_to_clear() -> None:
    sites = [Site(7, 800.0), Site(3, 800.0, stays_on=True)]
    (step,) = consolidate(sites, [job(0, 0, 1)], HOLD_SECONDS)
    assert step.moves == ((0, 0, 1),)
    assert consolidate([Site(7, 800.0, stays_on=True), Site(7, 800.0)], [job(0, 0, 1)], HOLD_SECONDS) == []


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="tenant 3 is on site 2, and there are 1"):
        consolidate([Site(8, 800.0)], [job(3, 2, 1)], HOLD_SECONDS)
    with pytest.raises(ValueError, match="must be finite"):
        consolidate([Site(8, 800.0)], [], math.inf)
