"""What pods outside Flyball get under a cap that limits them: as much as every GPU under it, and never more than fits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from flyball_api.gpu_node import read_gpu_node
from flyball_api.power_cap import ForeignWeight, PowerCap, PowerCapSpec
from flyball_api.values.units import NodeMilliwatts
from flyball_operator.power.bound import CapBudget
from flyball_operator.power.caps.foreign_shares import share_of_each_gpu, with_foreign_shares
from flyball_operator.power.caps.reserve import reserve_under
from flyball_operator.power.caps.state import CapStates
from flyball_operator.power.caps.tracker import CapTracker
from flyball_operator.power.nodes.info import ForeignPod, NodeInfo, read_nodes
from flyball_operator.power.nodes.reservations import (
    ForeignWeights,
    NodeRules,
    foreign_gpu_milliwatts,
    least_bound,
    node_rules,
    resting_bound,
)
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.operator_objects import (
    DEFAULT,
    FLOOR,
    NOW,
    cap_view,
    grant,
    node_view,
    raw_device,
    raw_gpu_node,
    running_pod,
)


def node(
    name: str, *, gpus: int = 8, foreign: int = 0, lost: int = 0, smallest: int = FLOOR, away: int = 0
) -> NodeInfo:
    """A node with so many GPUs, of which foreign pods hold some; `away`: its agent is silent with so many milliwatts."""
    devices = [raw_device(index, minMilliwatts=smallest, healthy=index >= lost) for index in range(gpus)]
    limits = away or gpus * smallest
    view = read_gpu_node(raw_gpu_node(name, grant(limits), devices=devices, limits=limits))
    pods = [running_pod(f"theirs-{name}", name, gpus=foreign)] if foreign else []
    silent = frozenset([name] if away else [])
    return read_nodes([node_view(name, gpus)], {name: view}, pods, silent)[name]


def read(*caps: PowerCap, **nodes: NodeInfo) -> CapStates:
    return CapTracker().step(caps, nodes, NOW + timedelta(seconds=1), 1.0)


def share_under(watts: int, wanted_gpus: int | None = None, **nodes: NodeInfo) -> int:
    budget = CapBudget("row", frozenset(nodes), NodeMilliwatts(watts * 1000))
    return share_of_each_gpu(budget, nodes, wanted_gpus=wanted_gpus).milliwatts


def test_each_gpu_has_the_same_share_whoever_holds_it() -> None:
    assert share_under(3200, a=node("a", foreign=8), b=node("b")) == 200_000
    assert share_under(3200, a=node("a", foreign=1), b=node("b")) == 200_000


@given(
    watts=st.integers(0, 8000),
    reserve=st.integers(1, 2),
    foreign=st.integers(0, 8),
    wanted=st.none() | st.integers(0, 16),
)
def test_the_share_leaves_what_is_held_back_for_nodes_that_jump_and_not_a_watt_more(
    watts: int, reserve: int, foreign: int, wanted: int | None
) -> None:
    nodes = {"a": node("a", foreign=foreign), "b": node("b"), "c": node("c", away=900_000)}
    held = reserve_under(nodes, reserve)
    budget = CapBudget("row", frozenset(nodes), NodeMilliwatts(watts * 1000), reserve=held)
    share = share_of_each_gpu(budget, nodes, wanted_gpus=wanted).milliwatts
    shared = [foreign, min(8 - foreign, 100 if wanted is None else wanted)]
    shared.append(8 if wanted is None else min(8, wanted - shared[1]))

    def needed(share: int) -> int:
        each = max(share, FLOOR)
        a = each * (shared[0] + shared[1]) + FLOOR * (8 - shared[0] - shared[1])
        draws = {"a": a, "b": each * shared[2] + FLOOR * (8 - shared[2]), "c": 900_000}
        return sum(draws.values()) + held.of((name, NodeMilliwatts(draw)) for name, draw in draws.items())

    if share > FLOOR:
        assert needed(share) <= watts * 1000
    if sum(shared) and share < DEFAULT:
        assert needed(share + 2000) > watts * 1000 or share <= FLOOR


@pytest.mark.parametrize(("watts", "share"), [(3500, 300), (3499, 299), (3300, 100), (3299, 0), (100, 0)])
def test_what_is_held_back_is_not_shared_out(watts: int, share: int) -> None:
    """2,300 W for the node that does not answer, which keeps 900 W."""
    nodes = {"a": node("a", gpus=1, foreign=1), "b": node("b", away=900_000)}
    budget = CapBudget("row", frozenset(nodes), NodeMilliwatts(watts * 1000), reserve=reserve_under(nodes, 1))
    found = share_of_each_gpu(budget, nodes).milliwatts
    assert found == share * 1000 if share >= 100 else found <= FLOOR


def test_where_all_can_be_at_their_largest_limits_nothing_is_held_back_of_the_share() -> None:
    nodes = {"a": node("a", gpus=1, foreign=1)}
    for watts, share in ((405, 405), (400, 400)):
        budget = CapBudget("row", frozenset(nodes), NodeMilliwatts(watts * 1000), reserve=reserve_under(nodes, 1))
        assert share_of_each_gpu(budget, nodes).milliwatts == share * 1000


def test_gpus_that_nobody_wants_take_their_smallest_limits_and_no_share() -> None:
    nodes = {"a": node("a", foreign=4), "b": node("b")}
    assert share_under(3200, 12, **nodes) == 200_000
    assert share_under(3200, 4, **nodes) == (3_200_000 - 8 * FLOOR) // 8
    assert share_under(3200, 0, **nodes) == (3_200_000 - 12 * FLOOR) // 4
    assert share_under(3200, 100, **nodes) == 200_000


def test_what_cannot_be_lowered_is_taken_off_first() -> None:
    assert share_under(3200, a=node("a"), b=node("b", away=2_000_000)) == 150_000
    assert share_under(3200, a=node("a"), b=node("b", away=2_000_000, foreign=4)) == 150_000
    assert share_under(1600, a=node("a", lost=2)) == (1_600_000 - 2 * DEFAULT) // 6 // 1000 * 1000


def test_gpus_that_need_more_than_the_share_have_more_and_the_others_less() -> None:
    assert share_under(1200, a=node("a", gpus=4), b=node("b", gpus=4, smallest=180_000)) == 120_000


def test_who_needs_just_the_share_is_not_passed_over_where_others_need_more() -> None:
    """Its watts are as much gone as theirs: what is left of 1,200 W is 80 W for the last four."""
    nodes: dict[str, Any] = {
        f"n{smallest}": node(f"n{smallest}", gpus=4, smallest=smallest * 1000) for smallest in (180, 100, 50)
    }
    assert share_under(1200, **nodes) == 20_000


def test_a_node_that_nobody_has_read_takes_no_part() -> None:
    nodes = {"a": node("a", foreign=4)}
    budget = CapBudget("row", frozenset(["a", "unread"]), NodeMilliwatts(1_600_000))
    assert share_of_each_gpu(budget, nodes).milliwatts == 200_000
    found = with_foreign_shares({"a": NodeRules()}, [(PowerCapSpec(watts=1600), budget)], nodes)
    assert [share.milliwatts for share in found["a"].foreign_shares] == [200_000]


def test_shares_take_the_place_of_those_that_were_found_before() -> None:
    nodes = {"a": node("a", foreign=4)}
    rules = {"a": NodeRules()}
    for watts in (1600, 2400):
        budget = CapBudget("row", frozenset(nodes), NodeMilliwatts(watts * 1000))
        rules = with_foreign_shares(rules, [(PowerCapSpec(watts=watts), budget)], nodes)
    assert [share.milliwatts for share in rules["a"].foreign_shares] == [300_000]
    assert with_foreign_shares(rules, [], nodes) == {"a": NodeRules()}


def test_a_share_is_in_whole_watts_so_that_it_does_not_change_with_each_milliwatt() -> None:
    assert share_under(1003, a=node("a")) == 125_000


@pytest.mark.parametrize(
    ("foreign_pods", "limit"),
    [({}, 200_000), ({"foreignPods": "Limit"}, 200_000), ({"foreignPods": "Reserve"}, DEFAULT)],
)
def test_a_cap_limits_foreign_pods_unless_told_otherwise(foreign_pods: dict[str, Any], limit: int) -> None:
    info = node("a", foreign=4)
    caps = read(cap_view("row", watts=1600, **foreign_pods), a=info)
    assert foreign_gpu_milliwatts(info, caps.rules["a"]) == limit


def test_under_several_caps_the_smallest_share_counts_and_never_less_than_the_smallest_limit() -> None:
    info = node("a", foreign=4)
    caps = read(cap_view("hall", watts=2400), cap_view("row", watts=1600), a=info)
    assert foreign_gpu_milliwatts(info, caps.rules["a"]) == 200_000
    caps = read(cap_view("hall", watts=2400), cap_view("row", watts=400), a=info)
    assert foreign_gpu_milliwatts(info, caps.rules["a"]) == FLOOR
    caps = read(cap_view("hall", watts=100_000), a=info)
    assert foreign_gpu_milliwatts(info, caps.rules["a"]) == DEFAULT


@pytest.mark.parametrize("watts", [(1600, 2400), (2400, 1600)])
def test_the_smallest_share_counts_whatever_the_caps_are_called(watts: tuple[int, int]) -> None:
    info = node("a", foreign=4)
    caps = read(*(cap_view(name, watts=each) for name, each in zip("xy", watts, strict=True)), a=info)
    assert foreign_gpu_milliwatts(info, caps.rules["a"]) == 200_000


@pytest.mark.parametrize("words", [("Limit", "Reserve"), ("Reserve", "Limit")])
def test_a_cap_that_limits_foreign_pods_does_so_beside_one_that_reserves_for_them_by_its_own_watts(
    words: tuple[str, str],
) -> None:
    info = node("a", foreign=4)
    watts = {"Limit": 2400, "Reserve": 1600}
    caps = read(*(cap_view(f"cap-{i}", watts=watts[word], foreignPods=word) for i, word in enumerate(words)), a=info)
    assert foreign_gpu_milliwatts(info, caps.rules["a"]) == 300_000


def test_an_emergency_takes_from_foreign_pods_also_under_a_cap_that_reserves_for_them() -> None:
    info = node("a", foreign=4)
    rules = node_rules([(PowerCapSpec(watts=3200, foreign_pods="Reserve"), frozenset("a"))], in_emergency="a")
    assert foreign_gpu_milliwatts(info, rules["a"]) == FLOOR
    assert least_bound(info, rules["a"]).limit_milliwatts == 8 * FLOOR


def test_a_raise_waits_for_the_published_watts() -> None:
    info = node("a", foreign=4)
    caps = read(cap_view("row", watts=3200, status={"effectiveWatts": 1600}), a=info)
    assert foreign_gpu_milliwatts(info, caps.rules["a"]) == 200_000


def test_a_cap_is_attainable_by_what_foreign_pods_can_be_lowered_to() -> None:
    (state,) = read(cap_view("row", watts=800), a=node("a", foreign=8)).states
    assert state.least_watts == 800
    assert state.attainable


def weighed_node(name: str, *pods: tuple[str, int, int]) -> NodeInfo:
    """A node of eight GPUs, with foreign pods by namespace, GPUs and what each asks for of its share, in thousandths."""
    view = read_gpu_node(raw_gpu_node(name, grant(8 * FLOOR), limits=8 * FLOOR))
    foreign = [
        replace(running_pod(f"p{index}", name, gpus=gpus), namespace=space, power_permille=permille)
        for index, (space, gpus, permille) in enumerate(pods)
    ]
    return read_nodes([node_view(name, 8)], {name: view}, foreign, frozenset())[name]


def weighed_limits(info: NodeInfo, watts: int, **weights: int) -> list[int]:
    given = [{"namespace": space, "permille": permille} for space, permille in weights.items()]
    rules = read(cap_view("row", watts=watts, foreignWeights=given), a=info).rules["a"]
    return [foreign_gpu_milliwatts(info, rules, pod) for pod in info.foreign_pods]


def test_namespaces_share_by_the_weights_that_the_cap_gives_them() -> None:
    info = weighed_node("a", ("batch", 2, 1000), ("served", 2, 1000))
    # 4 GPUs of weight 1, and of the pods' 4 two of 0.5 and two of 1.5: eighths of 1,600 W for a weight of one.
    assert weighed_limits(info, 1600) == [200_000, 200_000]
    assert weighed_limits(info, 1600, batch=500, served=1500) == [100_000, 300_000]
    # No weight takes a GPU below its smallest limit or above its default one.
    assert weighed_limits(info, 1600, batch=100) == [FLOOR, 200_000 + 200_000 // 6 // 1000 * 1000]
    assert weighed_limits(info, 3200, served=10_000)[1] == DEFAULT


BATCH = {"selector": {"matchLabels": {"tier": "batch"}}, "permille": 500}


def labelled_limits(watts: int, given: list[dict[str, Any]], *pods: tuple[str, dict[str, str]]) -> list[int]:
    """What a GPU of each pod gets, by its namespace and its labels; each holds two of a node's eight."""
    view = read_gpu_node(raw_gpu_node("a", grant(8 * FLOOR), limits=8 * FLOOR))
    foreign = [
        replace(running_pod(f"p{index}", "a", gpus=2), namespace=space, labels=tuple(labels.items()))
        for index, (space, labels) in enumerate(pods)
    ]
    info = read_nodes([node_view("a", 8)], {"a": view}, foreign, frozenset())["a"]
    rules = read(cap_view("row", watts=watts, foreignWeights=given), a=info).rules["a"]
    limits = {pod.name: foreign_gpu_milliwatts(info, rules, pod) for pod in info.foreign_pods}
    return [limits[f"p{index}"] for index in range(len(pods))]


def test_pods_of_a_namespace_share_by_the_weights_that_the_cap_gives_to_their_labels() -> None:
    weights = [{"namespace": "served", "permille": 1500, "pods": [BATCH]}]
    # 6 GPUs weigh 1, as the other namespace's do whatever their labels are, or 1.5 or 0.5: 1,600 W for eight in all.
    pods = ("served", {"tier": "web"}), ("served", {"tier": "batch"}), ("other", {"tier": "batch"})
    assert labelled_limits(1600, weights, *pods) == [300_000, 100_000, 200_000]
    # A pod that drops its label has what the cap gives to the namespace, and no more.
    assert labelled_limits(1600, weights, ("served", {}), ("served", {}), ("other", {})) == [240_000, 240_000, 160_000]


def test_of_the_weights_for_a_pods_labels_the_least_counts_and_never_more_than_its_namespaces() -> None:
    less = {"selector": {"matchExpressions": [{"key": "preemptible", "operator": "Exists"}]}, "permille": 250}
    for pods in ([BATCH, less], [less, BATCH]):
        weights = ForeignWeights.given_by(PowerCapSpec(watts=1, foreign_weights=convert_weights("served", 1000, pods)))
        both = ForeignPod("served", "p", 1, labels=(("tier", "batch"), ("preemptible", "")))
        assert weights.of(both) == 250
        assert weights.of(both._replace(permille=500)) == 125
        assert weights.of(both._replace(namespace="other")) == 1000
    # The API server refuses a label's weight above the namespace's; one that is stored all the same gives nobody more.
    more = ForeignWeights.given_by(
        PowerCapSpec(watts=1, foreign_weights=convert_weights("served", 800, [{**BATCH, "permille": 3000}]))
    )
    assert more.of(ForeignPod("served", "p", 1, labels=(("tier", "batch"),))) == 800


def convert_weights(namespace: str, permille: int, pods: list[dict[str, Any]]) -> tuple[ForeignWeight, ...]:
    raw = [{"namespace": namespace, "permille": permille, "pods": pods}]
    return msgspec.convert(raw, tuple[ForeignWeight, ...])


def test_a_pod_may_ask_for_less_than_its_share_and_the_others_have_more() -> None:
    info = weighed_node("a", ("batch", 4, 500), ("served", 4, 1000))
    assert weighed_limits(info, 1800) == [150_000, 300_000]


@given(
    watts=st.integers(1, 20_000),
    pods=st.lists(
        st.lists(
            st.tuples(st.sampled_from(["batch", "served", "web"]), st.integers(1, 4), st.integers(1, 1000)), max_size=4
        ),
        min_size=1,
        max_size=3,
    ),
    weights=st.dictionaries(st.sampled_from(["batch", "served"]), st.integers(1, 10_000)),
)
def test_weighed_shares_fit_wherever_the_smallest_limits_do(
    watts: int, pods: list[list[tuple[str, int, int]]], weights: dict[str, int]
) -> None:
    infos = {f"n{index}": weighed_node(f"n{index}", *some) for index, some in enumerate(pods)}
    given = [{"namespace": space, "permille": permille} for space, permille in weights.items()]
    caps = read(cap_view("row", watts=watts, foreignWeights=given), **infos)
    rest = sum(resting_bound(info, caps.rules[name]).limit_milliwatts for name, info in infos.items())
    if caps.states[0].attainable:
        assert rest <= watts * 1000
    for name, info in infos.items():
        limits = [foreign_gpu_milliwatts(info, caps.rules[name], pod) for pod in info.foreign_pods]
        assert all(FLOOR <= limit <= DEFAULT for limit in limits)


@given(
    watts=st.integers(1, 20_000),
    nodes=st.lists(
        st.tuples(
            st.integers(1, 8), st.integers(0, 8), st.integers(0, 2), st.sampled_from([100_000, 150_000, 200_000])
        ),
        min_size=1,
        max_size=4,
    ),
    away=st.integers(0, 3_200_000),
    wanted=st.none() | st.integers(0, 32),
)
def test_shares_fit_wherever_the_smallest_limits_do(
    watts: int, nodes: list[tuple[int, int, int, int]], away: int, wanted: int | None
) -> None:
    infos = {
        f"n{index}": node(f"n{index}", gpus=gpus, foreign=foreign, lost=min(lost, gpus), smallest=smallest)
        for index, (gpus, foreign, lost, smallest) in enumerate(nodes)
    }
    if away:
        infos["silent"] = node("silent", away=away)
    caps = CapTracker().step([cap_view("row", watts=watts)], infos, NOW + timedelta(seconds=1), 1.0, wanted_gpus=wanted)
    (state,) = caps.states
    rest = sum(resting_bound(info, caps.rules[name]).limit_milliwatts for name, info in infos.items())
    least = sum(least_bound(info, caps.rules[name]).limit_milliwatts for name, info in infos.items())
    assert least <= rest
    if state.attainable:
        assert rest <= watts * 1000
