"""Cells, migrations and order of placement on small clusters."""

from __future__ import annotations

from dataclasses import dataclass

from flyball_simulator.cluster.nodes import Cells, Nodes
from hypothesis import given
from hypothesis import strategies as st


@dataclass(eq=False)
class Occupant:
    index: int
    gpus: int
    movable: bool = True
    cells: Cells = ()


def seated(nodes: Nodes, index: int, *cells: tuple[int, int], movable: bool = True) -> Occupant:
    occupant = Occupant(index, sum(gpus for _, gpus in cells), movable)
    nodes.occupy(occupant, cells)
    return occupant


def test_the_smallest_cell_that_holds_a_job_is_taken() -> None:
    nodes = Nodes(3, 8)
    resident = seated(nodes, 0, (1, 6))
    newcomer = Occupant(1, 0)
    assert nodes.settle([(newcomer, 2)], [resident], ()) == []
    assert newcomer.cells == ((1, 2),)


def test_powered_nodes_come_before_others() -> None:
    nodes = Nodes(3, 8)
    newcomer = Occupant(0, 0)
    nodes.settle([(newcomer, 8)], [], (2,))
    assert newcomer.cells == ((2, 8),)


def test_the_fewest_residents_move_for_a_whole_node() -> None:
    nodes = Nodes(2, 8)
    residents = [seated(nodes, 0, (0, 2)), seated(nodes, 1, (0, 2)), seated(nodes, 2, (1, 4))]
    newcomer = Occupant(3, 0)
    moved = nodes.settle([(newcomer, 8)], residents, ())
    assert moved == [residents[2]]
    assert newcomer.cells == ((1, 8),)
    assert residents[2].cells == ((0, 4),)


def test_who_may_not_move_moves_last() -> None:
    nodes = Nodes(2, 8)
    residents = [seated(nodes, 0, (0, 4), movable=False), seated(nodes, 1, (1, 2)), seated(nodes, 2, (1, 2))]
    newcomer = Occupant(3, 0)
    moved = nodes.settle([(newcomer, 8)], residents, ())
    assert moved == residents[1:]


def test_a_job_larger_than_a_node_takes_whole_ones() -> None:
    nodes = Nodes(3, 8)
    seated(nodes, 0, (0, 1), movable=False)
    newcomer = Occupant(1, 0)
    nodes.settle([(newcomer, 16)], [], ())
    assert newcomer.cells == ((1, 8), (2, 8))


def test_in_order_of_importance_nobody_moves_for_a_cell_but_lesser_jobs_make_room() -> None:
    nodes = Nodes(2, 8)
    small = [seated(nodes, 0, (0, 4)), seated(nodes, 1, (1, 4))]
    large = Occupant(2, 0)
    homeless, moved = nodes.settle_in_order([(small[0], 4), (small[1], 4), (large, 8)], ())
    assert (homeless, moved) == ([large], [])  # by count it fits; there is no cell, and nobody moves
    homeless, moved = nodes.settle_in_order([(large, 8), (small[0], 4), (small[1], 4)], ())
    assert homeless == []
    assert moved in ([small[0]], [small[1]])
    assert sum(nodes.free) == 0


@given(data=st.data())
def test_whatever_adds_up_has_cells(data: st.DataObject) -> None:
    nodes = Nodes(data.draw(st.integers(1, 4)), 8)
    occupants: list[Occupant] = []
    for step in range(data.draw(st.integers(1, 12))):
        free = sum(nodes.free)
        sizes = [size for size in (1, 2, 4, 8, 16) if size <= free]
        if occupants and (not sizes or data.draw(st.booleans())):
            leaving = occupants.pop(data.draw(st.integers(0, len(occupants) - 1)))
            nodes.release(leaving)
        else:
            newcomer = Occupant(step, 0)
            size = data.draw(st.sampled_from(sizes))
            nodes.settle([(newcomer, size)], occupants, ())
            newcomer.gpus = size
            occupants.append(newcomer)
        held = [0] * nodes.count
        for occupant in occupants:
            assert sum(gpus for _, gpus in occupant.cells) == occupant.gpus
            assert len({node for node, _ in occupant.cells}) == len(occupant.cells)
            for node, gpus in occupant.cells:
                held[node] += gpus
        assert [8 - count for count in held] == nodes.free
        assert min(nodes.free) >= 0
