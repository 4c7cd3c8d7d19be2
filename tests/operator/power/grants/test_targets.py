"""What each node should be granted while pods come and go: never more than the plan gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from flyball_api.grant import Grant, JobGrant
from flyball_api.power_cap import ForeignWeight
from flyball_api.values.units import MilliwattsPerGpu
from flyball_api.workloads import IncarnationView, PodView
from flyball_operator.power.grants.admission import GrantTarget
from flyball_operator.power.grants.targets import ANY_CLOCK_MEGAHERTZ, grant_targets
from flyball_operator.power.nodes.failsafe import Failsafe
from flyball_operator.power.nodes.info import NodeInfo, read_nodes
from flyball_operator.power.nodes.reservations import ForeignShare, ForeignWeights, NodeRules
from flyball_planner.snapshot import JobDecision
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.examples import examples
from tests.support.milliwatts import power_bound
from tests.support.operator_objects import (
    DEFAULT,
    FLOOR,
    decision,
    gpu_node_view,
    grant,
    incarnation_view,
    job_grant,
    node_view,
    pod_view,
    raw_device,
    ready_node,
    running_pod,
)

A, B = ("a", 4), ("b", 4)
LIMIT = 300_000  # the plan's


def wanted(
    nodes: Sequence[NodeInfo],
    decisions: Sequence[JobDecision] = (),
    incarnations: Sequence[IncarnationView] = (),
    pods: Sequence[PodView] = (),
    rules: Mapping[str, NodeRules] | None = None,
    guard: float = 0.05,
    before: Mapping[str, Grant] | None = None,
) -> dict[str, GrantTarget]:
    grants = grant_targets(
        {info.name: info for info in nodes},
        {item.uid: item for item in decisions},
        incarnations,
        pods,
        rules or {},
        60,
        guard,
        before,
    )
    assert [item.node for item in grants] == sorted(info.name for info in nodes)
    return {item.node: item for item in grants}


def limits(item: GrantTarget) -> dict[str, int]:
    return {job.pod_name: job.power_limit_milliwatts for job in item.jobs}


def gated(name: str, index: int = 0, **keywords: int) -> PodView:
    return pod_view(name, uid="uid-train", index=index, gpus=4, gated=True, **keywords)


# --- pods that run -----------------------------------------------------------------------------------------------


def test_a_running_pod_gets_what_the_plan_says() -> None:
    item = wanted(
        [ready_node("a")],
        [decision("uid-train", A, watts=300.0, clock=1200, predicted_watts=200.0)],
        [incarnation_view("uid-train", 1, A)],
        [running_pod("p", "a", uid="uid-train", gpus=4)],
    )["a"]
    job = item.jobs[0]
    assert (job.namespace, job.name, job.uid, job.incarnation, job.pod_name, job.gpus) == (
        "team",
        "train",
        "uid-train",
        1,
        "p",
        4,
    )
    assert (job.power_limit_milliwatts, job.clock_min_megahertz, job.clock_max_megahertz) == (LIMIT, 0, 1200)
    assert item.job_bounds == (power_bound(4 * LIMIT, 4 * 210_000),)  # predicted draw and the guard
    assert item.rest.limit_milliwatts == 4 * FLOOR
    assert item.rest.expected_milliwatts == 4 * 58_000  # an idle A100
    assert item.min_limit_milliwatts == FLOOR
    assert item.lease_seconds == 60


def test_the_predicted_draw_is_never_above_the_limit() -> None:
    item = wanted(
        [ready_node("a")],
        [decision("uid-train", A, watts=300.0, predicted_watts=299.0)],
        [incarnation_view("uid-train", 1, A)],
        [running_pod("p", "a", uid="uid-train", gpus=4)],
    )["a"]
    assert item.job_bounds == (power_bound(4 * LIMIT),)


@pytest.mark.parametrize(("watts", "milliwatts"), [(300.0, 300_000), (299.9999, 299_999), (1.0, FLOOR)])
def test_limits_are_whole_milliwatts_rounded_down_and_never_below_the_smallest(watts: float, milliwatts: int) -> None:
    item = wanted(
        [ready_node("a")],
        [decision("uid-train", A, watts=watts)],
        [incarnation_view("uid-train", 1, A)],
        [running_pod("p", "a", uid="uid-train", gpus=4)],
    )["a"]
    assert item.jobs[0].power_limit_milliwatts == milliwatts


def test_finished_pods_hold_nothing() -> None:
    item = wanted(
        [ready_node("a")],
        [decision("uid-train", A)],
        [incarnation_view("uid-train", 1, A)],
        [pod_view("p", uid="uid-train", gpus=4, node="a", phase="Succeeded")],
    )["a"]
    assert item.jobs == ()
    assert item.rest.limit_milliwatts == 8 * FLOOR


# --- before a leader's first plan ----------------------------------------------------------------------------------


ENTRY = job_grant("uid-train", LIMIT, 4, pod="p", clock=1200)
RUNNING, PLACED = running_pod("p", "a", uid="uid-train", gpus=4), incarnation_view("uid-train", 1, A)


def before(*entries: JobGrant, expected: int = 8 * FLOOR) -> dict[str, Grant]:
    """What the leader before has granted node a: 1.6 kW."""
    return {"a": grant(1_600_000, jobs=entries, expected=expected)}


def test_pods_keep_what_they_have_while_there_is_no_plan() -> None:
    item = wanted([ready_node("a")], (), [PLACED], [RUNNING], before=before(ENTRY))["a"]
    assert limits(item) == {"p": LIMIT}
    assert item.jobs[0].clock_max_megahertz == 1200
    # Of 800 W, four idle GPUs are predicted to draw 58 W each.
    assert item.job_bounds == (power_bound(4 * LIMIT, 800_000 - 4 * 58_000),)
    odd = wanted([ready_node("a")], (), [PLACED], [RUNNING], before=before(ENTRY, expected=800_001))["a"]
    assert odd.job_bounds == (power_bound(4 * LIMIT, 800_000 - 4 * 58_000 + 4),)  # rounded up, for each GPU
    all_of_it = wanted([ready_node("a")], (), [PLACED], [RUNNING], before=before(ENTRY, expected=1_600_000))["a"]
    assert all_of_it.job_bounds == (power_bound(4 * LIMIT),)
    nothing = grant(0, jobs=(ENTRY,))
    assert limits(wanted([ready_node("a")], (), [PLACED], [RUNNING], before={"a": nothing})["a"]) == {"p": LIMIT}


@given(
    first=st.integers(1, 4),
    second=st.integers(1, 3),
    elsewhere=st.integers(0, 1),
    watts=st.floats(100.0, 400.0),
    predicted=st.floats(60.0, 400.0),
)
@settings(deadline=None, max_examples=examples(50))
def test_a_new_leader_expects_of_a_grant_what_the_one_before_it_expected(
    first: int, second: int, elsewhere: int, watts: float, predicted: float
) -> None:
    """Were it more, a cap on what is expected would lower everything until the first plan; less, and it would be passed."""
    foreign = (running_pod("other", "a", gpus=1),) if elsewhere else ()
    node = ready_node("a", pods=foreign)
    sizes = {"uid-x": first, "uid-y": second}
    decided = [decision(uid, ("a", gpus), watts=watts, predicted_watts=predicted) for uid, gpus in sizes.items()]
    placed = [incarnation_view(uid, 1, ("a", gpus)) for uid, gpus in sizes.items()]
    pods = [running_pod(uid, "a", uid=uid, gpus=gpus) for uid, gpus in sizes.items()]
    planned = wanted([node], decided, placed, pods)["a"]
    stands = Grant(1, 1, 60, planned.bound, jobs=planned.jobs)
    item = wanted([node], (), placed, pods, before={"a": stands})["a"]
    assert item.jobs == planned.jobs
    assert item.rest == planned.rest
    expected, was = item.bound.expected_milliwatts, planned.bound.expected_milliwatts
    # GPUs of other pods are expected to draw all that they may: the grant does not say how much of it is theirs.
    unknown = sum(pod.gpus for pod in foreign) * node.default_limit_milliwatts
    assert was <= expected <= min(item.bound.limit_milliwatts, was + unknown + first + second)


@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    watts=st.tuples(st.floats(100.0, 400.0), st.floats(100.0, 400.0)),
    predicted=st.tuples(st.floats(60.0, 400.0), st.floats(60.0, 400.0)),
    leaves=st.sampled_from(["gone", "deleting"]),
)
@settings(deadline=None, max_examples=examples(50))
def test_a_new_leader_expects_no_less_of_the_pods_that_stay_once_another_leaves(
    sizes: tuple[int, int], watts: tuple[float, float], predicted: tuple[float, float], leaves: str
) -> None:
    """A grant says what its whole node draws, not which of its pods: the one that leaves may draw least."""
    node = ready_node("a")
    named = list(zip(("uid-x", "uid-y"), sizes, watts, predicted, strict=True))
    decided = [decision(uid, ("a", gpus), watts=each, predicted_watts=draws) for uid, gpus, each, draws in named]
    placed = [incarnation_view(uid, 1, ("a", gpus)) for uid, gpus, *_ in named]
    pods = [running_pod(uid, "a", uid=uid, gpus=gpus) for uid, gpus, *_ in named]
    planned = wanted([node], decided, placed, pods)["a"]
    stands = {"a": Grant(1, 1, 60, planned.bound, jobs=planned.jobs)}
    staying = pods[:1] if leaves == "gone" else [pods[0], replace(pods[1], deleting=True)]
    by_plan = wanted([node], decided, placed, staying)["a"].bound
    as_granted = wanted([node], (), placed, staying, before=stands)["a"].bound
    assert as_granted.limit_milliwatts == by_plan.limit_milliwatts
    # Nor more than of all together: that would lower others under a cap that is full.
    before = planned.bound.expected_milliwatts
    assert min(by_plan.expected_milliwatts, before) <= as_granted.expected_milliwatts <= before + sizes[0]


@pytest.mark.parametrize(
    ("entry", "incarnations", "pod"),
    [
        (None, [PLACED], RUNNING),
        (job_grant("uid-train", LIMIT, 4, pod="q"), [PLACED], RUNNING),
        (job_grant("uid-other", LIMIT, 4, pod="p"), [PLACED], RUNNING),
        (ENTRY, [PLACED], replace(RUNNING, uid="another-of-that-name")),
        (ENTRY, [incarnation_view("uid-train", 2, A)], replace(RUNNING, incarnation=2)),
        (ENTRY, [PLACED], replace(RUNNING, deleting=True)),
        (ENTRY, [replace(PLACED, deleting=True)], RUNNING),
        (ENTRY, [], RUNNING),
    ],
)
def test_pods_that_were_granted_nothing_or_leave_have_the_smallest_limit_while_there_is_no_plan(
    entry: JobGrant | None, incarnations: list[IncarnationView], pod: PodView
) -> None:
    stands = before() if entry is None else before(entry)
    assert limits(wanted([ready_node("a")], (), incarnations, [pod], before=stands)["a"]) == {"p": FLOOR}
    assert limits(wanted([ready_node("a")], (), incarnations, [pod], before={"b": stands["a"]})["a"]) == {"p": FLOOR}


def test_no_pod_comes_while_there_is_no_plan_and_what_an_emergency_or_a_doubt_takes_is_taken() -> None:
    stands = before(ENTRY)
    assert limits(wanted([ready_node("a")], (), [PLACED], [gated("p")], before=stands)["a"]) == {}
    emergency = {"a": NodeRules(emergency=True)}
    assert limits(wanted([ready_node("a")], (), [PLACED], [RUNNING], emergency, before=stands)["a"]) == {"p": FLOOR}
    doubted = replace(ready_node("a"), doubt="it has booted")
    assert limits(wanted([doubted], (), [PLACED], [RUNNING], before=stands)["a"]) == {"p": FLOOR}


# --- pods that leave ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "incarnations", "deleting"),
    [
        ([], [incarnation_view("uid-train", 1, A)], False),  # no plan for it: not yet, or not any more
        ([decision("uid-train")], [incarnation_view("uid-train", 1, A)], False),  # the plan gives it nothing
        ([decision("uid-train", B)], [incarnation_view("uid-train", 1, A)], False),  # it is to move
        ([decision("uid-train", ("a", 8))], [incarnation_view("uid-train", 1, A)], False),  # it is to grow
        ([decision("uid-train", A)], [incarnation_view("uid-train", 1, A)], True),  # someone deletes the pod
        ([decision("uid-train", A)], [incarnation_view("uid-train", 1, A, deleting=True)], False),
        ([decision("uid-train", A)], [], False),  # its Job is gone already
    ],
)
def test_a_leaving_pod_is_held_at_the_smallest_limit_at_once(
    plan: list[JobDecision], incarnations: list[IncarnationView], deleting: bool
) -> None:
    pods = [running_pod("p", "a", uid="uid-train", gpus=4, deleting=deleting)]
    item = wanted([ready_node("a"), ready_node("b")], plan, incarnations, pods)["a"]
    assert limits(item) == {"p": FLOOR}
    assert item.jobs[0].clock_max_megahertz == ANY_CLOCK_MEGAHERTZ  # it should be gone soon
    assert item.bound.limit_milliwatts == 8 * FLOOR


# --- pods that come ----------------------------------------------------------------------------------------------


def test_coming_pods_get_their_watts_when_every_node_has_room() -> None:
    items = wanted(
        [ready_node("a"), ready_node("b")],
        [decision("uid-train", A, B)],
        [incarnation_view("uid-train", 1, A, B)],
        [gated("p0"), gated("p1", 1)],
    )
    assert limits(items["a"]) == {"p0": LIMIT}
    assert limits(items["b"]) == {"p1": LIMIT}


def test_coming_pods_get_nothing_while_one_node_has_no_room() -> None:
    items = wanted(
        [ready_node("a"), ready_node("b", gpus=6)],
        [decision("uid-train", A, B)],
        [incarnation_view("uid-train", 1, A, B)],
        [gated("p0"), gated("p1", 1), running_pod("old", "b", uid="uid-other", gpus=4)],
    )
    assert limits(items["a"]) == {}
    assert limits(items["b"]) == {"old": FLOOR}


@pytest.mark.parametrize(
    "nodes",
    [
        [ready_node("a"), ready_node("b", unschedulable=True)],
        [ready_node("a"), ready_node("b", ready=False)],
        [ready_node("a")],  # the other one is gone
        [ready_node("a"), ready_node("b", pods=(running_pod("other", "b", gpus=5),))],  # foreign pods
        [ready_node("a"), ready_node("b", devices=[raw_device(index, healthy=index > 4) for index in range(8)])],
    ],
)
def test_coming_pods_get_nothing_where_one_of_them_could_not_start(nodes: list[NodeInfo]) -> None:
    items = wanted(
        nodes,
        [decision("uid-train", A, B)],
        [incarnation_view("uid-train", 1, A, B)],
        [gated("p0"), gated("p1", 1)],
    )
    assert all(limits(item) == {} for item in items.values())


@pytest.mark.parametrize(
    ("plan", "incarnation", "pod"),
    [
        (decision("uid-train", B), incarnation_view("uid-train", 1, A), gated("p")),
        (decision("uid-train"), incarnation_view("uid-train", 1, A), gated("p")),
        (decision("uid-train", A), incarnation_view("uid-train", 1, A, deleting=True), gated("p")),
        (decision("uid-train", A), incarnation_view("uid-train", 2, A), gated("p")),  # an older incarnation's pod
        (decision("uid-train", A), incarnation_view("uid-train", 1, A), gated("p", index=1)),  # no such rank
        (decision("uid-train", A), incarnation_view("uid-train", 1, A), gated("p", deleting=True)),
    ],
)
def test_pods_that_are_not_to_come_get_nothing(plan: JobDecision, incarnation: IncarnationView, pod: PodView) -> None:
    assert limits(wanted([ready_node("a"), ready_node("b")], [plan], [incarnation], [pod])["a"]) == {}


def test_two_coming_jobs_never_share_the_same_gpus() -> None:
    items = wanted(
        [ready_node("a", gpus=4)],
        [decision("uid-one", A), decision("uid-two", A)],
        [incarnation_view("uid-one", 1, A), incarnation_view("uid-two", 1, A)],
        [
            pod_view("one", uid="uid-one", gpus=4, gated=True),
            pod_view("two", uid="uid-two", gpus=4, gated=True),
        ],
    )
    assert limits(items["a"]) == {"one": LIMIT}


def test_a_pod_with_an_open_gate_keeps_its_place_until_the_scheduler_has_bound_it() -> None:
    opened = pod_view("one", uid="uid-one", gpus=4)
    items = wanted(
        [ready_node("a", gpus=4)],
        [decision("uid-one", A), decision("uid-two", A)],
        [incarnation_view("uid-one", 1, A), incarnation_view("uid-two", 1, A)],
        [opened, pod_view("two", uid="uid-two", gpus=4, gated=True)],
    )
    assert limits(items["a"]) == {"one": LIMIT}


def test_pods_that_claim_more_than_a_node_has_get_no_more_than_that() -> None:
    ghost = pod_view("ghost", uid="uid-ghost", gpus=64)
    item = wanted(
        [ready_node("a")],
        [decision("uid-train", A)],
        [incarnation_view("uid-train", 1, A), incarnation_view("uid-ghost", 1, ("a", 64))],
        [running_pod("p", "a", uid="uid-train", gpus=4), ghost],
    )["a"]
    assert {job.pod_name: job.gpus for job in item.jobs} == {"p": 4, "ghost": 4}
    assert item.bound.limit_milliwatts == 4 * LIMIT + 4 * FLOOR
    bound_ghost = running_pod("ghost", "a", uid="uid-ghost", gpus=64)
    item = wanted([ready_node("a")], pods=[bound_ghost])["a"]
    assert [job.gpus for job in item.jobs] == [8]


def test_pods_that_wait_for_the_scheduler_share_what_is_left() -> None:
    places = [incarnation_view(f"uid-{name}", 1, ("a", 5)) for name in ("x", "y")]
    pods = [pod_view(name, uid=f"uid-{name}", gpus=5) for name in ("x", "y")]
    item = wanted([ready_node("a")], incarnations=places, pods=pods)["a"]
    assert {job.pod_name: job.gpus for job in item.jobs} == {"x": 5, "y": 3}


def test_pods_that_wait_for_the_scheduler_get_no_foreign_and_no_lost_gpu() -> None:
    foreign = running_pod("theirs", "a", gpus=2)
    devices = [raw_device(index, healthy=index > 0) for index in range(8)]
    waiting = pod_view("p", uid="uid-train", gpus=8)
    item = wanted(
        [ready_node("a", pods=(foreign,), devices=devices)],
        incarnations=[incarnation_view("uid-train", 1, ("a", 8))],
        pods=[waiting, foreign],
    )["a"]
    assert [job.gpus for job in item.jobs] == [5]


def test_a_pod_that_is_deleted_before_the_scheduler_has_bound_it_holds_nothing() -> None:
    leaving = pod_view("p", uid="uid-train", gpus=4, deleting=True)
    item = wanted([ready_node("a")], [decision("uid-train", A)], [incarnation_view("uid-train", 1, A)], [leaving])["a"]
    assert item.jobs == ()


def test_a_pod_of_a_plan_that_is_over_keeps_what_its_own_node_was_to_give_it() -> None:
    placed = incarnation_view("uid-train", 1, ("a", 2), ("b", 6))
    item = wanted([ready_node("a"), ready_node("b")], [], [placed], [pod_view("p", uid="uid-train", gpus=8)])["a"]
    assert [job.gpus for job in item.jobs] == [2]


def test_ranks_whose_gates_are_open_take_no_room_twice() -> None:
    items = wanted(
        [ready_node("a", gpus=4), ready_node("b", gpus=4)],
        [decision("uid-train", A, B)],
        [incarnation_view("uid-train", 1, A, B)],
        [pod_view("p0", uid="uid-train", gpus=4), gated("p1", 1)],
    )
    assert (limits(items["a"]), limits(items["b"])) == ({"p0": LIMIT}, {"p1": LIMIT})


def test_a_pod_that_waits_for_the_scheduler_keeps_what_it_was_placed_with_whatever_is_planned_now() -> None:
    for planned in (2, 6):
        item = wanted(
            [ready_node("a")],
            [decision("uid-train", ("a", planned))],
            [incarnation_view("uid-train", 1, A)],
            [pod_view("p", uid="uid-train", gpus=8)],
        )["a"]
        assert [job.gpus for job in item.jobs] == [4]
        assert limits(item) == {"p": FLOOR}


def test_pods_that_wait_for_the_scheduler_and_were_placed_nowhere_hold_nothing() -> None:
    of_nothing, of_no_rank = pod_view("x", uid="uid-other", gpus=4), pod_view("y", uid="uid-train", index=7, gpus=4)
    item = wanted([ready_node("a")], [], [incarnation_view("uid-train", 1, A)], [of_nothing, of_no_rank])["a"]
    assert item.jobs == ()


def test_a_pod_without_gpus_has_no_entry() -> None:
    pods = [running_pod("helper", "a", uid="uid-train", gpus=0)]
    assert wanted([ready_node("a")], pods=pods)["a"].jobs == ()


def test_a_pending_pod_reserves_no_more_than_the_plan_gives_it() -> None:
    item = wanted(
        [ready_node("a")],
        [decision("uid-train", ("a", 2))],
        [incarnation_view("uid-train", 1, ("a", 2))],
        [pod_view("p", uid="uid-train", gpus=8)],
    )["a"]
    assert [job.gpus for job in item.jobs] == [2]


def test_a_pending_pod_reserves_no_more_than_it_asks_for() -> None:
    item = wanted(
        [ready_node("a")],
        [decision("uid-train", ("a", 4))],
        [incarnation_view("uid-train", 1, ("a", 4))],
        [pod_view("p", uid="uid-train", gpus=1)],
    )["a"]
    assert [job.gpus for job in item.jobs] == [1]


def test_a_replaced_pod_waits_until_the_one_before_it_has_left() -> None:
    leaving = running_pod("old", "a", uid="uid-train", gpus=2, deleting=True)
    coming = pod_view("new", uid="uid-train", gpus=2, gated=True)
    items = wanted(
        [ready_node("a")],
        [decision("uid-train", ("a", 2))],
        [incarnation_view("uid-train", 1, ("a", 2))],
        [coming, leaving],
    )
    assert limits(items["a"]) == {"old": FLOOR}


# --- GPUs that are not ours to give --------------------------------------------------------------------------------


def foreign_item(rules: NodeRules) -> GrantTarget:
    pods = (running_pod("theirs", "a", gpus=3), running_pod("also-theirs", "a", gpus=1))
    return wanted([ready_node("a", pods=pods)], pods=pods, rules={"a": rules})["a"]


def test_foreign_pods_are_reserved_at_the_default() -> None:
    item = foreign_item(NodeRules())
    assert (item.other_gpus.foreign_gpus, item.other_gpus.foreign_power_limit_milliwatts) == (4, 0)
    assert item.rest == power_bound(4 * DEFAULT + 4 * FLOOR, 4 * DEFAULT + 4 * 58_000)


def test_or_limited_where_a_cap_says_so() -> None:
    item = foreign_item(NodeRules(limit_foreign_pods=True))
    assert (item.other_gpus.foreign_gpus, item.other_gpus.foreign_power_limit_milliwatts) == (4, FLOOR)
    assert item.rest.limit_milliwatts == 8 * FLOOR
    share = MilliwattsPerGpu(250_000)
    item = foreign_item(NodeRules(limit_foreign_pods=True, foreign_shares=(ForeignShare(share),)))
    assert item.other_gpus.foreign_power_limit_milliwatts == share
    assert item.rest.limit_milliwatts == 4 * FLOOR + 4 * share
    item = foreign_item(NodeRules(limit_foreign_pods=True, foreign_shares=(ForeignShare(share),), emergency=True))
    assert item.rest.limit_milliwatts == 8 * FLOOR


def test_foreign_pods_of_other_weights_have_limits_of_their_own_within_the_same_bound() -> None:
    share = ForeignShare(MilliwattsPerGpu(200_000), ForeignWeights({"inference": ForeignWeight("inference", 1500)}))
    pods = (
        running_pod("ordinary", "a", gpus=2),
        replace(running_pod("served", "a", gpus=2), namespace="inference"),
        replace(running_pod("modest", "a", gpus=1), power_permille=600),
    )
    rules = NodeRules(limit_foreign_pods=True, foreign_shares=(share,))
    item = wanted([ready_node("a", pods=pods)], pods=pods, rules={"a": rules})["a"]
    assert item.other_gpus.foreign_power_limit_milliwatts == 200_000
    assert {(pod.pod_name, pod.power_limit_milliwatts) for pod in item.other_gpus.foreign_pods} == {
        ("served", 300_000),
        ("modest", 120_000),
    }
    assert item.other_gpus.foreign_gpus == 5
    assert item.rest.limit_milliwatts == 2 * 200_000 + 2 * 300_000 + 120_000 + 3 * FLOOR
    emergency = wanted([ready_node("a", pods=pods)], pods=pods, rules={"a": replace(rules, emergency=True)})["a"]
    assert emergency.other_gpus.foreign_pods == ()
    assert emergency.rest.limit_milliwatts == 8 * FLOOR


def test_lost_gpus_stay_reserved_at_the_default_that_a_reset_puts() -> None:
    info = ready_node("a", devices=[raw_device(index, healthy=index > 1) for index in range(8)])
    assert wanted([info])["a"].rest.limit_milliwatts == 2 * DEFAULT + 6 * FLOOR


def test_gpus_that_the_agent_does_not_see_stay_reserved_at_their_default() -> None:
    assert wanted([ready_node("a", devices=6)])["a"].rest.limit_milliwatts == 2 * DEFAULT + 6 * FLOOR


def test_the_failsafe_is_passed_on() -> None:
    failsafe = Failsafe(MilliwattsPerGpu(200_000), hold_seconds=900)
    item = wanted([ready_node("a")], rules={"a": NodeRules(failsafe=failsafe)})["a"]
    assert item.other_gpus.failsafe_power_limit_milliwatts == 200_000
    assert item.other_gpus.failsafe_hold_seconds == 900


# --- nodes that cannot be planned with -----------------------------------------------------------------------------


def late_node(*jobs: JobGrant) -> NodeInfo:
    """A node with these jobs' entries in its grant, which its agent has owed an acknowledgement of for too long."""
    view = gpu_node_view("a", grant(8 * DEFAULT, generation=2, jobs=jobs), limits=8 * FLOOR, acknowledged=(1, 1))
    info = read_nodes([node_view("a")], {"a": view}, [], frozenset(["a"]))["a"]
    assert info.late
    return info


def test_pods_that_leave_a_node_that_does_not_answer_are_held_at_the_smallest_limit() -> None:
    pods = [running_pod("p", "a", uid="uid-train", gpus=4)]
    item = wanted([late_node(job_grant("uid-train", LIMIT, 4, pod="p"))], [decision("uid-train")], (), pods)["a"]
    assert limits(item) == {"p": FLOOR}


def test_a_coming_pod_keeps_its_entry_where_its_node_turns_late_and_gets_none_there() -> None:
    pods, placed = [gated("p")], [incarnation_view("uid-train", 1, A)]
    entry = job_grant("uid-train", LIMIT, 4, pod="p")
    assert limits(wanted([late_node(entry)], [decision("uid-train", A)], placed, pods)["a"]) == {"p": LIMIT}
    assert limits(wanted([late_node()], [decision("uid-train", A)], placed, pods)["a"]) == {}
    closed = replace(late_node(entry), node=node_view("a", unschedulable=True))
    assert limits(wanted([closed], [decision("uid-train", A)], placed, pods)["a"]) == {}


def test_pods_on_a_node_that_is_not_believed_are_held_at_the_smallest_limit() -> None:
    entry = job_grant("uid-train", LIMIT, 4, pod="p")
    pods = [running_pod("p", "a", uid="uid-train", gpus=4)]
    doubted = replace(late_node(entry), doubt="it has booted")
    item = wanted([doubted], [decision("uid-train", A)], [incarnation_view("uid-train", 1, A)], pods)["a"]
    assert limits(item) == {"p": FLOOR}


def test_a_limit_is_never_zero_even_where_nobody_knows_the_gpus() -> None:
    pods = [running_pod("p", "a", uid="uid-train", gpus=4)]
    info = read_nodes([node_view("a", product="Unheard-Of")], {}, pods, frozenset())["a"]
    for rules in (NodeRules(), NodeRules(limit_foreign_pods=True)):
        item = wanted([info], [decision("uid-train", A)], [incarnation_view("uid-train", 1, A)], pods, {"a": rules})[
            "a"
        ]
        assert limits(item) == {"p": 1}
        assert item.min_limit_milliwatts == 1
        assert item.other_gpus.foreign_power_limit_milliwatts == 0  # there are none
    theirs = running_pod("theirs", "a", gpus=4)
    info = read_nodes([node_view("a", product="Unheard-Of")], {}, [theirs], frozenset())["a"]
    item = wanted([info], pods=[theirs], rules={"a": NodeRules(limit_foreign_pods=True)})["a"]
    assert item.other_gpus.foreign_power_limit_milliwatts == 1


# --- the promise -------------------------------------------------------------------------------------------------

JOBS = ("one", "two", "three")
states = st.sampled_from(["absent", "gated", "opened", "running", "leaving", "finished"])


@given(
    gpus=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    watts=st.lists(st.integers(100, 400), min_size=3, max_size=3),
    planned=st.lists(st.booleans(), min_size=3, max_size=3),
    old=st.lists(states, min_size=3, max_size=3),
    new=st.lists(st.sampled_from(["absent", "gated", "opened", "running"]), min_size=3, max_size=3),
    foreign=st.integers(0, 2),
    lost=st.integers(0, 2),
)
@settings(max_examples=examples(300))
def test_the_sum_over_a_node_never_passes_what_the_plan_gives_it(
    gpus: list[int],
    watts: list[int],
    planned: list[bool],
    old: list[str],
    new: list[str],
    foreign: int,
    lost: int,
) -> None:
    """Whatever pods of a former plan are still there, and whichever of the new one have come."""
    total = 8
    foreign_pods = [running_pod(f"foreign-{index}", "a", gpus=1) for index in range(foreign)]
    devices = [raw_device(index, healthy=index >= lost) for index in range(total)]
    info = ready_node("a", pods=tuple(foreign_pods), devices=devices)
    free = total - foreign - lost
    decisions, incarnations, pods = [], [], list(foreign_pods)
    plan_milliwatts = foreign * DEFAULT + lost * DEFAULT + free * FLOOR
    held = foreign + lost
    for name, size, limit, is_planned, before, after in zip(JOBS, gpus, watts, planned, old, new, strict=True):
        uid = f"uid-{name}"
        nodes = (("a", size),)
        placed = is_planned and size <= free
        if placed:
            free -= size
            decisions.append(decision(uid, *nodes, watts=float(limit)))
            plan_milliwatts += size * (limit * 1000 - FLOOR)
            if after != "absent":
                incarnations.append(incarnation_view(uid, 2, *nodes))
        # Old pods held GPUs under the former plan; the kubelet never gave out more than there are.
        for incarnation, state, is_new in ((1, before, False), (2, after, True)):
            if state == "absent" or (is_new and not placed):
                continue
            if state in ("running", "leaving", "opened"):
                if held + size > total:
                    continue
                held += size
            pods.append(
                pod_view(
                    f"{name}-{incarnation}",
                    uid=uid,
                    incarnation=incarnation,
                    gpus=size,
                    node="a" if state in ("running", "leaving", "finished") else "",
                    gated=state == "gated",
                    deleting=state == "leaving",
                    phase="Succeeded" if state == "finished" else "Running" if state == "running" else "Pending",
                )
            )
    item = wanted([info], decisions, incarnations, pods)["a"]
    assert item.bound.limit_milliwatts <= plan_milliwatts
    assert item.bound.limit_milliwatts >= total * FLOOR
    assert len({job.uid for job in item.jobs}) == len(item.jobs)
    assert item.bound.expected_milliwatts <= item.bound.limit_milliwatts
