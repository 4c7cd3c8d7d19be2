"""Placement: buddy cells by count, few migrations, and nothing refused that repacking could place."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from flyball_planner.ledger.pools import build_pools, cell_of, level_of, shape
from flyball_planner.ledger.slots import Slots
from flyball_planner.models.gpu import GpuModel, gpu_model_for
from flyball_planner.models.priors import model_class_prior
from flyball_planner.placement.buddy import FreeCells, smallest_cell
from flyball_planner.planner import plan
from flyball_planner.snapshot import Allocation, ClusterSnapshot, JobState, NodeState, Objective, Plan
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples


def a100() -> GpuModel:
    model = gpu_model_for("NVIDIA-A100-SXM4-40GB")
    assert model is not None
    return model


def node(name: str, gpus: int = 8, **keywords: object) -> NodeState:
    return replace(NodeState(name, a100(), gpus), **keywords)  # type: ignore[arg-type]


def rigid(name: str, gpus: int, on: Sequence[tuple[str, int]] = (), **keywords: object) -> JobState:
    """A job of one size, running on `on` if that is given."""
    job = JobState(
        uid=name,
        name=f"default/{name}",
        gpus_min=gpus,
        gpus_max=gpus,
        global_batch_size=256,
        model=model_class_prior("vgg16", a100()),
        submit_time_seconds=0.0,
        remaining_iterations=1e6,
        objective=Objective.TIME,
        current=Allocation(tuple(on), 1410, 300.0) if on else None,
    )
    return replace(job, **keywords)  # type: ignore[arg-type]


def nodes_of(made: Plan, uid: str) -> tuple[tuple[str, int], ...]:
    decision = made.decision(uid)
    assert decision is not None
    assert decision.allocation is not None, decision.explanation
    return decision.allocation.nodes


def packings(sizes: Sequence[int], capacities: Sequence[int]) -> bool:
    """Whether jobs of these sizes fit these nodes, by trying everything."""
    if not sizes:
        return True
    largest, rest = max(sizes), sorted(sizes)[:-1]
    for capacity in set(capacities):
        if capacity >= largest:
            left = list(capacities)
            left[left.index(capacity)] -= largest
            if packings(rest, left):
                return True
    return False


def test_free_cells_are_the_binary_digits_of_the_free_count() -> None:
    assert [smallest_cell(6, level) for level in range(4)] == [2, 2, 4, 0]
    assert [smallest_cell(7, level) for level in range(4)] == [1, 2, 4, 0]
    assert [smallest_cell(8, level) for level in range(4)] == [8, 8, 8, 8]
    assert [cell_of(gpus) for gpus in (0, 1, 6, 8, 10, 16)] == [0, 1, 4, 8, 8, 16]
    assert [level_of(gpus) for gpus in (1, 2, 3, 4, 8)] == [0, 1, 2, 2, 3]


def test_a_job_takes_the_same_number_from_each_of_its_nodes() -> None:
    assert shape(4, 8) == (1, 4)
    assert shape(8, 8) == (1, 8)
    assert shape(32, 8) == (4, 8)
    assert shape(12, 8) == (2, 6)
    assert shape(7, 4) == (7, 1)


def test_the_smallest_sufficient_cell_is_taken_and_large_ones_stay_whole() -> None:
    free = FreeCells([8, 6, 5, 3])
    assert free.take(0, 1) == 3, "3 free is a cell of 1 and one of 2; 5 free has a cell of 1 too, but more besides"
    assert free.take(0, 1) == 2
    assert free.take(1, 2) == 3
    assert free.take(2, 4) == 2
    assert free.take(2, 4) == 1
    assert free.take(3, 8) == 0
    assert free.take(1, 2) == 1
    assert free.take(0, 1) is None


def test_of_equal_nodes_the_preferred_one_is_taken() -> None:
    assert FreeCells([4, 4, 4]).take(1, 2, preferred=[2]) == 2
    assert FreeCells([4, 4, 4]).take(1, 2, preferred=()) == 0
    assert FreeCells([4, 2, 4]).take(1, 2, preferred=[0]) == 1, "but never at the price of a larger cell"


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=4),
    st.lists(st.sampled_from([1, 1, 2, 4, 8]), max_size=8),
)
def test_counting_cells_decides_packing_exactly(capacities: list[int], sizes: list[int]) -> None:
    members = [node(f"n{index}", 8, lost_gpus=8 - capacity) for index, capacity in enumerate(capacities)]
    pools, _ = build_pools(members, (), ())
    assert len(pools) == 1
    slots = Slots(pools)
    fits = True
    for size in sizes:
        if not slots.fits(0, level_of(size), 1, migrate=False):
            fits = False
            break
        slots.demand(0, level_of(size), 1)
    assert fits == packings(sizes, capacities)


def test_occupying_and_demanding_are_undone_exactly() -> None:
    pools, _ = build_pools([node("a"), node("b", 4)], (), ())
    slots = Slots(pools)
    before = ([list(room) for room in slots.free_room], [list(room) for room in slots.open_room])
    for movable in (True, False):
        slots.hold(0, 0, 3, movable)
        slots.demand(0, 2, 1)
        assert (slots.free_room, slots.open_room) != before
        slots.demand(0, 2, -1)
        slots.release(0, 0, 3, movable)
        assert (slots.free_room, slots.open_room) == before


def test_small_jobs_are_packed_together_and_a_large_one_finds_whole_nodes() -> None:
    members = tuple(node(f"n{index}") for index in range(4))
    jobs = (*(rigid(f"small-{index}", 1) for index in range(5)), rigid("middle", 2), rigid("large", 24))
    made = plan(ClusterSnapshot(members, jobs))
    small = {nodes_of(made, f"small-{index}")[0][0] for index in range(5)} | {nodes_of(made, "middle")[0][0]}
    assert len(small) == 1
    assert nodes_of(made, "large") == tuple((name, 8) for name in sorted({item.name for item in members} - small))


def test_jobs_of_several_nodes_never_share_one() -> None:
    members = tuple(node(f"n{index}", 10) for index in range(4))
    made = plan(ClusterSnapshot(members, (rigid("first", 16), rigid("second", 16), rigid("odd", 2))))
    first, second = nodes_of(made, "first"), nodes_of(made, "second")
    assert all(gpus == 8 for _, gpus in first + second)
    assert not {name for name, _ in first} & {name for name, _ in second}
    assert len(nodes_of(made, "odd")) == 1, "the two GPUs beside the cell of eight are free for small jobs"


def test_the_node_that_yields_the_cell_with_the_fewest_moves_is_evacuated() -> None:
    """n0 has three jobs of one GPU in the way, n1 one of two GPUs; n2 can take them."""
    members = tuple(node(f"n{index}") for index in range(3))
    running = (
        *(rigid(f"one-{index}", 1, [("n0", 1)]) for index in range(3)),
        rigid("two", 2, [("n1", 2)]),
        rigid("four", 4, [("n2", 4)]),
    )
    made = plan(ClusterSnapshot(members, (*running, rigid("whole", 8))))
    assert made.migrations == ("two",)
    assert nodes_of(made, "whole") == (("n1", 8),)
    assert nodes_of(made, "two") == (("n2", 2),)


def test_moves_are_counted_over_all_levels_and_not_from_the_largest_cell_down() -> None:
    """n0 would be whole after two moves, but then two more must make a cell of 4; emptying n1 takes three in all."""
    members = (node("n0"), node("n1"), node("n2", foreign_gpus=1))
    running = (
        rigid("a", 4, [("n0", 4)]),
        rigid("b", 4, [("n0", 4)]),
        rigid("c", 4, [("n1", 4)]),
        rigid("d", 1, [("n1", 1)]),
        rigid("e", 1, [("n1", 1)]),
    )
    made = plan(ClusterSnapshot(members, (*running, rigid("whole", 8))))
    assert made.migrations == ("c", "d", "e")
    assert nodes_of(made, "whole") == (("n1", 8),)


def test_nobody_is_moved_where_a_free_cell_will_do() -> None:
    members = (node("n0"), node("n1"))
    running = (rigid("a", 1, [("n0", 1)]), rigid("b", 1, [("n1", 1)]))
    made = plan(ClusterSnapshot(members, (*running, rigid("new", 4))))
    assert made.migrations == ()
    assert nodes_of(made, "a") == (("n0", 1),)
    assert nodes_of(made, "b") == (("n1", 1),)


def test_a_job_that_may_not_move_is_worked_around_or_waited_for() -> None:
    members = (node("n0"), node("n1"))
    first = rigid("a", 1, [("n0", 1)], resizable=False)
    second = rigid("b", 1, [("n1", 1)], resizable=False)
    made = plan(ClusterSnapshot(members, (first, second, rigid("new", 8))))
    decision = made.decision("new")
    assert decision is not None
    assert decision.allocation is None
    assert "14 are free" in decision.explanation
    made = plan(ClusterSnapshot(members, (first, replace(second, resizable=True), rigid("new", 8))))
    assert made.migrations == ("b",)
    assert nodes_of(made, "new") == (("n1", 8),)


@st.composite
def crowded(draw: st.DrawFn) -> tuple[tuple[NodeState, ...], tuple[JobState, ...], JobState]:
    """Two or three nodes with running jobs of one to four GPUs, some of them immovable, and one new job."""
    members = tuple(
        node(f"n{index}", 8, foreign_gpus=draw(st.sampled_from([0, 0, 0, 1, 2])))
        for index in range(draw(st.integers(2, 3)))
    )
    running = []
    for place, member in enumerate(members):
        left = member.usable_gpus
        for index in range(draw(st.integers(0, 3))):
            size = draw(st.sampled_from([size for size in (1, 2, 4) if size <= max(1, left)]))
            if size > left:
                break
            left -= size
            movable = draw(st.sampled_from([True, True, True, False]))
            running.append(rigid(f"run-{place}-{index}", size, [(member.name, size)], resizable=movable))
    return members, tuple(running), rigid("new", draw(st.sampled_from([2, 4, 8])))


def is_on(job: JobState, member: NodeState) -> bool:
    return job.current is not None and member.name in dict(job.current.nodes)


def fewest_moves(members: Sequence[NodeState], running: Sequence[JobState], size: int) -> int | None:
    """The smallest number of running jobs whose leaving lets everything fit, by trying every set; None: none does."""
    movable = [job for job in running if job.resizable]
    for count in range(len(movable) + 1):
        for moved in itertools.combinations(movable, count):
            left = {member.name: member.usable_gpus for member in members}
            for job in running:
                if job not in moved and job.current is not None:
                    left[job.current.nodes[0][0]] -= job.gpus_min
            if packings([size, *(job.gpus_min for job in moved)], list(left.values())):
                return count
    return None


@settings(max_examples=examples(300))
@given(crowded())
def test_fragmentation_never_blocks_a_job_and_moves_are_fewest(
    case: tuple[tuple[NodeState, ...], tuple[JobState, ...], JobState],
) -> None:
    members, running, new = case
    made = plan(ClusterSnapshot(members, (*running, new)))
    decision = made.decision("new")
    assert decision is not None
    least = fewest_moves(members, running, new.gpus_min)
    assert (decision.allocation is not None) == (least is not None)
    assert len(made.migrations) == (least or 0)
    for job in running:
        assert job.current is not None
        assert (nodes_of(made, job.uid) != job.current.nodes) == (job.uid in made.migrations)


@settings(max_examples=examples(100))
@given(crowded(), st.lists(st.sampled_from([1, 2, 4, 8]), max_size=4))
def test_several_new_jobs_move_no_more_jobs_than_need_be(
    case: tuple[tuple[NodeState, ...], tuple[JobState, ...], JobState], sizes: list[int]
) -> None:
    members, running, _ = case
    news = tuple(rigid(f"new-{index}", size) for index, size in enumerate(sizes))
    made = plan(ClusterSnapshot(members, (*running, *news)))
    placed = [job.gpus_min for job in news if (found := made.decision(job.uid)) and found.allocation is not None]
    assume(placed)
    movable = [job for job in running if job.resizable]
    least = next(
        count
        for count in range(len(movable) + 1)
        for moved in itertools.combinations(movable, count)
        if packings(
            [*placed, *(job.gpus_min for job in moved)],
            [
                member.usable_gpus - sum(job.gpus_min for job in running if job not in moved and is_on(job, member))
                for member in members
            ],
        )
    )
    assert len(made.migrations) == least


def test_a_cordon_leaves_running_jobs_alone_and_takes_no_new_ones() -> None:
    members = (node("n0", schedulable=False), node("n1"))
    made = plan(ClusterSnapshot(members, (rigid("a", 2, [("n0", 2)]), rigid("b", 8), rigid("c", 4))))
    assert nodes_of(made, "a") == (("n0", 2),)
    assert nodes_of(made, "b") == (("n1", 8),) or nodes_of(made, "c")[0][0] == "n1"
    assert sum(item.allocation is not None for item in made.decisions) == 2


def test_an_evacuated_node_is_left_even_by_jobs_that_may_not_be_resized() -> None:
    members = (node("n0", evacuate=True), node("n1"))
    made = plan(ClusterSnapshot(members, (rigid("a", 2, [("n0", 2)], resizable=False),)))
    assert nodes_of(made, "a") == (("n1", 2),)


def test_a_node_that_is_gone_costs_its_jobs_their_place_and_no_more() -> None:
    made = plan(ClusterSnapshot((node("n1"),), (rigid("a", 2, [("n0", 2)]), rigid("b", 2, [("n1", 2)]))))
    assert nodes_of(made, "a") == (("n1", 2),)
    assert nodes_of(made, "b") == (("n1", 2),)


def test_where_a_gpu_is_lost_the_least_job_of_the_node_moves() -> None:
    members = (node("n0", lost_gpus=1), node("n1"))
    jobs = (rigid("low", 4, [("n0", 4)], priority=0), rigid("high", 4, [("n0", 4)], priority=1))
    made = plan(ClusterSnapshot(members, jobs))
    assert nodes_of(made, "high") == (("n0", 4),)
    assert nodes_of(made, "low") == (("n1", 4),)


def test_where_the_last_gpu_of_a_node_is_lost_its_job_moves() -> None:
    members = (node("n0", 1, lost_gpus=1), node("n1"))
    made = plan(ClusterSnapshot(members, (rigid("a", 1, [("n0", 1)]),)))
    assert nodes_of(made, "a") == (("n1", 1),)


def test_gangs_keep_to_one_gpu_model_and_to_nodes_of_one_size() -> None:
    v100 = gpu_model_for("Tesla-V100-SXM2-16GB")
    assert v100 is not None
    members = (node("a0"), node("a1", 4), NodeState("v0", v100, 8), NodeState("v1", v100, 8))
    made = plan(ClusterSnapshot(members, (rigid("wide", 16),)))
    assert nodes_of(made, "wide") == (("v0", 8), ("v1", 8))


def test_the_faster_gpu_is_preferred() -> None:
    v100 = gpu_model_for("Tesla-V100-SXM2-16GB")
    assert v100 is not None
    members = (NodeState("a", v100, 8), node("b"))
    assert nodes_of(plan(ClusterSnapshot(members, (rigid("job", 8),))), "job") == (("b", 8),)


def test_boards_of_one_product_with_other_limits_still_form_one_gang() -> None:
    tighter = replace(a100(), min_power_limit_watts=150.0, max_power_limit_watts=250.0, default_power_limit_watts=250.0)
    members = (node("n0"), NodeState("n1", tighter, 8))
    made = plan(ClusterSnapshot(members, (rigid("wide", 16),)))
    assert nodes_of(made, "wide") == (("n0", 8), ("n1", 8))
    decision = made.decision("wide")
    assert decision is not None
    assert decision.allocation is not None
    assert 150 <= decision.allocation.power_limit_watts <= 250


def test_a_selector_is_kept_and_does_not_split_other_jobs() -> None:
    members = tuple(node(f"n{index}") for index in range(3))
    bound = rigid("bound", 8, eligible_nodes=frozenset({"n2", "elsewhere"}))
    made = plan(ClusterSnapshot(members, (bound, rigid("free", 8))))
    assert nodes_of(made, "bound") == (("n2", 8),)
    nowhere = rigid("nowhere", 1, eligible_nodes=frozenset({"elsewhere"}))
    decision = plan(ClusterSnapshot(members, (nowhere,))).decision("nowhere")
    assert decision is not None
    assert decision.allocation is None


def test_jobs_that_wait_for_nodes_of_their_choice_part_no_other_job() -> None:
    """Whatever their priority, and though they can never be placed: nodes that they tell apart are alike to all others."""
    names = [f"n{index}" for index in range(8)]
    members = tuple(node(name) for name in names)
    choices = (names[:4], names[::2], [names[0], names[3], names[5], names[6]])
    waiting = [
        rigid(f"odd-{index}", 64, eligible_nodes=frozenset(choice), priority=-1) for index, choice in enumerate(choices)
    ]
    made = plan(ClusterSnapshot(members, (rigid("wide", 32), *waiting)))
    assert len(nodes_of(made, "wide")) == 4


def test_a_running_job_of_an_unusual_shape_is_kept_as_it_is() -> None:
    members = (node("n0"), node("n1"))
    running = rigid("odd", 4, [("n0", 3), ("n1", 1)])
    assert nodes_of(plan(ClusterSnapshot(members, (running,))), "odd") == (("n0", 3), ("n1", 1))
    made = plan(ClusterSnapshot(members, (running, rigid("whole", 8))))
    assert nodes_of(made, "whole")[0][1] == 8
    assert len(nodes_of(made, "odd")) == 1


def test_ranks_keep_their_order() -> None:
    members = (node("n0"), node("n1"))
    running = rigid("wide", 16, [("n1", 8), ("n0", 8)])
    assert nodes_of(plan(ClusterSnapshot(members, (running,))), "wide") == (("n1", 8), ("n0", 8))


@pytest.mark.parametrize("gpus", [3, 6, 12])
def test_sizes_that_are_no_powers_of_two_are_placed_without_sharing(gpus: int) -> None:
    members = (node("n0"), node("n1"), node("n2", 4))
    made = plan(ClusterSnapshot(members, (rigid("odd", gpus), rigid("one", 1))))
    assert sum(count for _, count in nodes_of(made, "odd")) == gpus
    used = dict(nodes_of(made, "odd"))
    for name, count in nodes_of(made, "one"):
        used[name] = used.get(name, 0) + count
    assert all(count <= {"n0": 8, "n1": 8, "n2": 4}[name] for name, count in used.items())
