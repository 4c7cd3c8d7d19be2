"""How far the limits that are planned are lowered, so that every cap fits them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from flyball_operator.power.bound import CapBudget, NodePower
from flyball_operator.power.grants import throttling as throttling_module
from flyball_operator.power.grants.admission import GrantTarget, admit_grants
from flyball_operator.power.grants.throttling import throttle
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.examples import examples
from tests.support.grant_targets import FLOOR, cap, holding, want
from tests.support.operator_objects import grant, power

NODES = ("a", "b", "c")
node_wants = st.fixed_dictionaries(
    {
        node: st.tuples(
            st.lists(st.tuples(st.integers(FLOOR, 500), st.integers(0, 500)), max_size=3),
            st.integers(0, 400),
            st.integers(1, 8),
        )
        for node in NODES
    }
)
cap_budgets = st.lists(
    st.tuples(st.sets(st.sampled_from(NODES), min_size=1), st.integers(0, 12_000), st.booleans()),
    min_size=1,
    max_size=3,
)


@given(wants=node_wants, budgets=cap_budgets, fixed=st.sets(st.sampled_from(NODES), max_size=1))
@settings(max_examples=examples(200))
def test_squeezed_under_every_cap_that_can_be_held(
    wants: dict[str, tuple[list[tuple[int, int]], int, int]],
    budgets: list[tuple[set[str], int, bool]],
    fixed: set[str],
) -> None:
    wanted = [
        want(
            node,
            *(limit for limit, _ in jobs),
            rest=rest,
            expected=tuple(min(limit, draw) for limit, draw in jobs),
            gpus=gpus,
        )
        for node, (jobs, rest, gpus) in wants.items()
    ]
    caps = [
        cap(budget, *sorted(nodes), name=str(index), expected=expected)
        for index, (nodes, budget, expected) in enumerate(budgets)
    ]
    gpus_of = {node: gpus for node, (_, _, gpus) in wants.items()}
    holds = {item.node: power(None, 300) for item in wanted}
    throttled = throttle(wanted, holds, caps, frozenset(fixed))
    assert [item.node for item in throttled] == [item.node for item in wanted]
    for item, before in zip(throttled, wanted, strict=True):
        assert item.rest == before.rest
        for job, asked, hold in zip(item.jobs, before.jobs, item.job_bounds, strict=True):
            assert FLOOR <= job.power_limit_milliwatts <= asked.power_limit_milliwatts
            assert hold.limit_milliwatts == job.power_limit_milliwatts * job.gpus
        assert before.bound.covers(item.bound)
        if item.node in fixed:
            assert item == before
    for each in caps:
        under = [item for item in throttled if item.node in each.nodes]
        least = sum(
            each.counted(holds[item.node].committed | item.bound)
            if item.node in fixed
            else each.counted(item.rest)
            + sum(min(FLOOR * gpus_of[item.node], each.counted(hold)) for hold in item.job_bounds)
            for item in under
        )
        found = sum(
            each.counted(holds[item.node].committed | item.bound if item.node in fixed else item.bound)
            for item in under
        )
        assert found <= max(each.budget_milliwatts, least)
    if all(
        sum(each.counted(holds[item.node].committed | item.bound) for item in wanted if item.node in each.nodes)
        <= each.budget_milliwatts
        for each in caps
    ):
        assert throttled == wanted


def test_what_just_fits_is_left_as_it_is() -> None:
    wanted = [want("a", 300, expected=(200,))]
    assert throttle(wanted, {"a": power(None, 0)}, [cap(200, "a", "gone", expected=True)], frozenset()) == wanted


@pytest.fixture
def watts_of_one_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of these tests are whole watts as they are."""
    monkeypatch.setattr(throttling_module, "in_whole_watts", lambda milliwatts: milliwatts)


@given(budget=st.integers(450_000, 900_000))
def test_what_is_throttled_is_of_whole_watts_and_no_more_than_fits(budget: int) -> None:
    """As agents set it; grants that differ by less would follow each other for as long as a share moves."""
    wanted = [want("a", 300_000), want("b", 200_500), want("c", 100_000)]
    holds = {node: power(None, 0) for node in NODES}
    found = [
        item.jobs[0].power_limit_milliwatts for item in throttle(wanted, holds, [cap(budget, *NODES)], frozenset())
    ]
    assert budget - 3000 <= sum(map(int, found)) <= budget or found == [300_000, 200_500, 100_000]
    assert all(limit % 1000 == 0 or limit == 200_500 for limit in found)


@pytest.mark.usefixtures("watts_of_one_unit")
def test_everybody_gives_the_same_share() -> None:
    wanted = [want("a", 300), want("b", 200), want("c", 100)]
    holds = {node: power(None, 0) for node in NODES}
    throttled = throttle(wanted, holds, [cap(450, *NODES)], frozenset())
    assert [item.jobs[0].power_limit_milliwatts for item in throttled] == [200, 150, 100]


@pytest.mark.usefixtures("watts_of_one_unit")
def test_a_node_that_cannot_be_commanded_counts_with_what_stands_and_with_what_it_should_have() -> None:
    def left_to_b(standing: int, wanted: int) -> int:
        holds = {"a": power(None, standing), "b": power(None, 0)}
        throttled = throttle([want("a", wanted), want("b", 300)], holds, [cap(400, "a", "b")], frozenset("a"))
        return throttled[1].jobs[0].power_limit_milliwatts

    assert left_to_b(250, 100) == left_to_b(100, 250) == 150


@pytest.mark.usefixtures("watts_of_one_unit")
def test_what_a_gpu_holds_that_does_not_take_its_limit_is_paid_by_the_others_at_once() -> None:
    wanted = [want("a", 100), want("b", 300), want("c", 300)]
    standing = grant(100)
    caps = [cap(600, *NODES)]

    def limits(committed: int = 300, **stuck: Any) -> list[int]:
        holds = {node: power(None, 0) for node in NODES} | {"a": power(standing, committed, **stuck)}
        return [item.jobs[0].power_limit_milliwatts for item in throttle(wanted, holds, caps, frozenset())]

    assert limits(accepted=standing.version) == [100, 150, 150]  # with the 200 above its grant that is the cap
    # What is only yet to be acknowledged may still come down.
    assert limits() == limits(accepted=standing.version, unsettled=True) == [100, 250, 250]
    assert limits(50, accepted=standing.version) == [100, 250, 250]  # under a brake: it frees nothing of the grant


@given(
    draws=st.lists(st.tuples(st.integers(100, 450), st.integers(100, 400)), min_size=3, max_size=3),
    row=st.integers(400, 1700),
    budgets=st.lists(st.integers(600, 2600), min_size=2, max_size=2).map(sorted),
)
@example(draws=[(240, 400)] * 3, row=1260, budgets=[2413, 2603])
def test_more_room_under_a_cap_on_limits_lowers_nothing(
    draws: list[tuple[int, int]], row: int, budgets: list[int]
) -> None:
    """Else what is left under one cap, and what is lowered for another, would follow each other round and round."""
    watt = 1000
    wanted = [
        want(node, 450 * watt, 400 * watt, expected=(one * watt, other * watt))
        for node, (one, other) in zip("abc", draws, strict=True)
    ]
    holds = {item.node: power(None, 0) for item in wanted}
    found = []
    for budget in budgets:
        caps = [cap(budget * watt, *"abc", name="hall"), cap(row * watt, "a", "b", name="row", expected=True)]
        throttled = throttle(wanted, holds, caps, frozenset())
        found.append([job.power_limit_milliwatts for item in throttled for job in item.jobs])
    assert all(less <= more for less, more in zip(*found, strict=True))


def test_where_not_even_the_smallest_limits_fit_everything_goes_to_them() -> None:
    throttled = throttle([want("a", 300, 200)], {"a": power(None, 0)}, [cap(50, "a")], frozenset())
    assert [job.power_limit_milliwatts for job in throttled[0].jobs] == [FLOOR, FLOOR]


# --- who pays first --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("watts_of_one_unit")
def test_a_cut_by_priority_takes_all_of_the_low_before_any_of_the_high() -> None:
    wanted = [
        want("a", 300, 300, gpus=2),
        want("b", 300, 300, gpus=2),
    ]
    nodes = {item.node: holding(item) for item in wanted}
    names = {"a-0": "low", "a-1": "high", "b-0": "middle", "b-1": "unknown"}
    priorities = {"a-0": -5, "b-0": 0, "a-1": 7}

    def limits(watts: int) -> dict[str, int]:
        fitting = throttle(wanted, nodes, [replace(cap(watts, "a", "b"), by_priority=True)], frozenset(), priorities)
        return {names[job.uid]: job.power_limit_milliwatts for item in fitting for job in item.jobs}

    assert limits(2400) == {"low": 300, "middle": 300, "high": 300, "unknown": 300}
    # A job that nobody knows any more goes first.
    assert limits(2100) == {"low": 300, "middle": 300, "high": 300, "unknown": 150}
    assert limits(1700) == {"low": 150, "middle": 300, "high": 300, "unknown": 100}
    assert limits(1200) == {"low": 100, "middle": 100, "high": 300, "unknown": 100}
    assert limits(1000) == {"low": 100, "middle": 100, "high": 200, "unknown": 100}
    assert limits(10) == {"low": 100, "middle": 100, "high": 100, "unknown": 100}


# --- caps that hold back for nodes that jump --------------------------------------------------------------------------

reserving = st.fixed_dictionaries(
    {
        "limits": st.lists(st.tuples(st.integers(100, 450), st.integers(100, 400)), min_size=3, max_size=3),
        "reserve": st.integers(1, 3),
        "row": st.integers(300, 3000),
        "hall": st.integers(300, 3000),
        "expected": st.booleans(),
    }
)
LARGEST = 900_000  # of a node of two GPUs


def reserved_caps(case: Mapping[str, Any]) -> tuple[list[GrantTarget], list[CapBudget]]:
    """Three nodes with a job each; a cap with nodes in reserve over two of them, one without over all."""
    wanted = [
        want(node, limit * 1000, gpus=2, expected=(draw * 1000,))
        for node, (limit, draw) in zip(NODES, case["limits"], strict=True)
    ]
    row = cap(
        case["row"] * 1000,
        "a",
        "b",
        reserve=case["reserve"],
        largest=dict.fromkeys("ab", LARGEST),
        expected=case["expected"],
    )
    return wanted, [row, cap(case["hall"] * 1000, *NODES, name="hall")]


def needed(budget: CapBudget, targets: Iterable[GrantTarget]) -> int:
    draws = [(item.node, budget.counted(item.bound)) for item in targets if item.node in budget.nodes]
    return sum(draw for _, draw in draws) + budget.reserve.of(draws)


@given(case=reserving)
def test_lowered_targets_leave_what_is_held_back_free_where_the_smallest_limits_do(case: Mapping[str, Any]) -> None:
    wanted, caps = reserved_caps(case)
    holds = {node: power(None, 0) for node in NODES}
    throttled = throttle(wanted, holds, caps, frozenset())
    for budget in caps:
        least = needed(budget, throttle(wanted, holds, [replace(budget, budget_milliwatts=0)], frozenset()))
        assert needed(budget, throttled) <= max(budget.budget_milliwatts, least)
        if all(needed(each, wanted) <= each.budget_milliwatts for each in caps):
            assert throttled == wanted


@pytest.mark.usefixtures("watts_of_one_unit")
def test_no_more_is_lowered_than_what_is_held_back_takes() -> None:
    """Of two nodes, one of which may jump to 900: to lower the higher one frees all, the other one nothing."""
    wanted = [want("a", 900), want("b", 500)]
    holds = {node: power(None, 0) for node in NODES}
    (high, low) = throttle(
        wanted, holds, [cap(1400, "a", "b", reserve=1, largest=dict.fromkeys("ab", 900))], frozenset()
    )
    assert (high.bound.limit_milliwatts, low.bound.limit_milliwatts) == (500, 300)


@pytest.mark.usefixtures("watts_of_one_unit")
def test_a_cut_by_priority_leaves_what_is_held_back_free_too() -> None:
    """Lowering `b`, which may jump the farthest, frees nothing; so the high one pays, too, and the lowest has nothing."""
    wanted = [want("a", 500), want("b", 400), want("c", FLOOR)]
    holds = {node: power(None, 0) for node in NODES}
    priorities = {"a-0": 2, "b-0": 1, "c-0": 0}
    reserved = replace(cap(1300, *NODES, reserve=1, largest={"a": 500, "b": 900}), by_priority=True)
    throttled = throttle(wanted, holds, [reserved], frozenset(), priorities)
    assert [item.bound.limit_milliwatts for item in throttled] == [300, 100, 100]


@given(
    case=reserving, deaf=st.sampled_from([None, *NODES]), before=st.lists(st.integers(200, 900), min_size=3, max_size=3)
)
@settings(max_examples=examples(200))
def test_grants_come_to_rest_at_the_targets_wherever_they_began(
    case: Mapping[str, Any], deaf: str | None, before: list[int]
) -> None:
    """Also where one node acknowledges nothing: what it may draw stands, and moves nobody up and down."""
    wanted, caps = reserved_caps(case)
    nodes = {node: holding(want(node, watts * 500, gpus=2)) for node, watts in zip(NODES, before, strict=True)}
    for _ in range(8):
        fitting = throttle(wanted, nodes, caps, frozenset())
        admitted = admit_grants(fitting, nodes, caps, epoch=1)
        if not admitted.grants:
            break
        for node, given_grant in admitted.grants.items():
            committed = given_grant.committed if node == deaf else given_grant.bound
            nodes[node] = NodePower(
                given_grant, committed, nodes[node].accepted if node == deaf else given_grant.version
            )
    else:
        pytest.fail("grants follow each other")
    if deaf is None and all(needed(each, fitting) <= each.budget_milliwatts for each in caps):
        assert {item.node: nodes[item.node].committed for item in fitting} == {
            item.node: item.bound for item in fitting
        }
