"""Consolidation: the moves that save most, against every possible set of moves, and none that does not pay."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from flyball_planner.placement.consolidation import Clearance, Occupant, PackedNode, consolidate
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


def seconds_on(nodes: Sequence[PackedNode], occupants: Sequence[Occupant]) -> list[float]:
    """How long each node stays on if nothing else starts."""
    return [
        HOLD_SECONDS
        if node.stays_on
        else min(HOLD_SECONDS, max((one.remaining_seconds for one in occupants if one.node == index), default=0.0))
        for index, node in enumerate(nodes)
    ]


def best_of_all(nodes: Sequence[PackedNode], occupants: Sequence[Occupant]) -> float:
    """The most that clearing one node can save net of its moves, over every node and every set of movable jobs."""
    lives = seconds_on(nodes, occupants)
    best = 0.0
    for index, node in enumerate(nodes):
        residents = [one for one in occupants if one.node == index]
        if not residents or node.stays_on or not all(one.movable for one in residents):
            continue
        open_sites = [other for other in range(len(nodes)) if other != index and lives[other] >= lives[index]]
        others = [
            one
            for one in occupants
            if one.node in open_sites and one.movable and min(one.remaining_seconds, HOLD_SECONDS) <= lives[index]
        ]
        for count in range(len(others) + 1):
            for more in itertools.combinations(others, count):
                lifted = [*residents, *more]
                cost = sum(one.migration_joules for one in lifted)
                free = [
                    nodes[other].free_gpus + sum(one.gpus for one in more if one.node == other) for other in open_sites
                ]
                if node.saved_watts * lives[index] - cost > best and packs([one.gpus for one in lifted], free):
                    best = node.saved_watts * lives[index] - cost
    return best


def after(
    nodes: Sequence[PackedNode], occupants: Sequence[Occupant], steps: Sequence[Clearance]
) -> tuple[list[PackedNode], list[Occupant]]:
    """The cluster once the moves have been made, checked move by move."""
    where = {one.index: one.node for one in occupants}
    size = {one.index: one.gpus for one in occupants}
    free = [node.free_gpus for node in nodes]
    for step in steps:
        for move in step.moves:
            assert where[move.occupant] == move.source != move.target
            where[move.occupant] = move.target
            free[move.source] += size[move.occupant]
            free[move.target] -= size[move.occupant]
        assert min(free) >= 0
        assert step.node not in where.values()
    left = [replace(node, free_gpus=count) for node, count in zip(nodes, free, strict=True)]
    return left, [replace(one, node=where[one.index]) for one in occupants]


@st.composite
def clusters(draw: st.DrawFn, alike: bool = False) -> tuple[list[PackedNode], list[Occupant]]:
    """Two to four nodes of 8 GPUs (some partly taken by others) with up to four jobs each; `alike`: equal costs."""
    nodes: list[PackedNode] = []
    occupants: list[Occupant] = []
    for index in range(draw(st.integers(2, 4))):
        left = draw(st.sampled_from([8, 8, 8, 8, 6, 4, 3]))
        for _ in range(draw(st.integers(0, 3))):
            size = draw(st.sampled_from([1, 1, 2, 2, 4, 8]))
            if size > left or len(occupants) >= 8:
                continue
            left -= size
            occupants.append(
                Occupant(
                    len(occupants),
                    index,
                    size,
                    movable=draw(st.sampled_from([True, True, True, True, True, False])),
                    migration_joules=1e4 if alike else draw(st.sampled_from([0.0, 1e4, 2e4, 1e5, 5e5, 2e6])),
                    remaining_seconds=1e5 if alike else draw(st.sampled_from([60.0, 600.0, 1800.0, 1e4, 1e5])),
                )
            )
        saved = 500.0 if alike else draw(st.sampled_from([500.0, 500.0, 900.0]))
        nodes.append(PackedNode(left, saved, stays_on=not alike and draw(st.sampled_from([False, False, False, True]))))
    return nodes, occupants


@settings(max_examples=examples(400))
@given(clusters())
def test_each_clearance_is_the_best_of_all_sets_of_moves(case: tuple[list[PackedNode], list[Occupant]]) -> None:
    nodes, occupants = case
    steps = consolidate(nodes, occupants, HOLD_SECONDS)
    event(f"{len(steps)} nodes cleared")
    for position, step in enumerate(steps):
        now_sites, now_tenants = after(nodes, occupants, steps[:position])
        net = step.saved_joules - step.migration_joules
        assert net == pytest.approx(best_of_all(now_sites, now_tenants))
    assert best_of_all(*after(nodes, occupants, steps)) == 0.0, "and nothing that pays is left"


@settings(max_examples=examples(200))
@given(clusters(alike=True))
def test_at_equal_costs_the_moves_are_fewest(case: tuple[list[PackedNode], list[Occupant]]) -> None:
    nodes, occupants = case
    steps = consolidate(nodes, occupants, HOLD_SECONDS)
    assume(steps)
    most = best_of_all(nodes, occupants)
    event(f"{len(steps[0].moves)} moves")
    assert len(steps[0].moves) == pytest.approx((500.0 * HOLD_SECONDS - most) / 1e4)


@settings(max_examples=examples(300))
@given(clusters())
def test_the_watts_saved_really_pay_for_the_moves(case: tuple[list[PackedNode], list[Occupant]]) -> None:
    """Reckoned from how long each node stays on before and after, not from what was promised."""
    nodes, occupants = case
    steps = consolidate(nodes, occupants, HOLD_SECONDS)
    now_sites, now_tenants = after(nodes, occupants, steps)
    before, later = seconds_on(nodes, occupants), seconds_on(now_sites, now_tenants)
    saved = sum(node.saved_watts * (old - new) for node, old, new in zip(nodes, before, later, strict=True))
    moved = {move.occupant for step in steps for move in step.moves}
    paid = sum(one.migration_joules for one in occupants if one.index in moved)
    assert saved > paid or not steps
    assert all(one.movable for one in occupants if one.index in moved)
    for node, one in itertools.product(range(len(nodes)), now_tenants):
        if one.node == node and one.index in moved:
            assert before[node] >= min(one.remaining_seconds, HOLD_SECONDS)


@settings(max_examples=examples(200))
@given(clusters())
def test_once_the_moves_are_made_nothing_more_is_proposed(case: tuple[list[PackedNode], list[Occupant]]) -> None:
    nodes, occupants = case
    steps = consolidate(nodes, occupants, HOLD_SECONDS)
    assert consolidate(*after(nodes, occupants, steps), HOLD_SECONDS) == []
    assert consolidate(nodes, occupants[::-1], HOLD_SECONDS) == steps


def job(index: int, node: int, gpus: int, **keywords: object) -> Occupant:
    return replace(Occupant(index, node, gpus, True, 3e4, 1e6), **keywords)  # type: ignore[arg-type]


def test_a_cell_is_made_where_none_is_whole() -> None:
    """The job of 4 has no cell, although 4 GPUs are free: one job of 2 goes to the other gap first."""
    nodes = [PackedNode(4, 800.0), PackedNode(2, 800.0), PackedNode(2, 800.0)]
    occupants = [job(0, 0, 4), job(1, 1, 2), job(2, 1, 4), job(3, 2, 4), job(4, 2, 2, movable=False)]
    (step,) = consolidate(nodes, occupants, HOLD_SECONDS)
    assert step.node == 0
    assert sorted(step.moves) == [(0, 0, 1), (1, 1, 2)]


def test_a_gang_over_several_nodes_is_never_touched() -> None:
    nodes = [PackedNode(0, 800.0), PackedNode(0, 800.0), PackedNode(7, 800.0), PackedNode(7, 800.0)]
    gang = [job(0, 0, 8, movable=False), job(0, 1, 8, movable=False)]
    (step,) = consolidate(nodes, [*gang, job(1, 2, 1), job(2, 3, 1)], HOLD_SECONDS)
    assert {move.occupant for move in step.moves} <= {1, 2}


def test_a_long_job_is_not_moved_beside_one_that_is_about_to_end() -> None:
    nodes = [PackedNode(7, 800.0), PackedNode(7, 800.0)]
    assert consolidate(nodes, [job(0, 0, 1, movable=False, remaining_seconds=300.0), job(1, 1, 1)], HOLD_SECONDS) == []
    (step,) = consolidate(nodes, [job(0, 0, 1, remaining_seconds=300.0), job(1, 1, 1)], HOLD_SECONDS)
    assert step.moves == ((0, 0, 1),)
    assert step.saved_joules == pytest.approx(800.0 * 300.0)


def test_a_move_that_costs_more_than_it_saves_is_not_made() -> None:
    nodes = [PackedNode(7, 100.0), PackedNode(7, 100.0)]
    assert consolidate(nodes, [job(0, 0, 1, migration_joules=4e5), job(1, 1, 1, migration_joules=4e5)], 3600.0) == []
    assert consolidate(nodes, [job(0, 0, 1, migration_joules=4e5), job(1, 1, 1, migration_joules=4e5)], 7200.0)


def test_a_node_that_others_keep_on_is_a_place_to_go_and_not_one_to_clear() -> None:
    nodes = [PackedNode(7, 800.0), PackedNode(3, 800.0, stays_on=True)]
    (step,) = consolidate(nodes, [job(0, 0, 1)], HOLD_SECONDS)
    assert step.moves == ((0, 0, 1),)
    assert consolidate([PackedNode(7, 800.0, stays_on=True), PackedNode(7, 800.0)], [job(0, 0, 1)], HOLD_SECONDS) == []


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="occupant 3 is on node 2, and there are 1"):
        consolidate([PackedNode(8, 800.0)], [job(3, 2, 1)], HOLD_SECONDS)
    with pytest.raises(ValueError, match="must be finite"):
        consolidate([PackedNode(8, 800.0)], [], math.inf)
