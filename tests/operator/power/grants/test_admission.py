"""Which grants may be sent now: down before up, under every cap, whatever waits."""

from __future__ import annotations

import pytest
from flyball_api.grant import ForeignPodLimit, GrantVersion, OtherGpuLimits
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts
from flyball_operator.power.bound import MOST_GRANTS_UNKNOWN, JumpReserve, NodePower
from flyball_operator.power.grants.admission import (
    AdmittedReserve,
    GrantAdmission,
    GrantTarget,
    admit_grants,
    without_entries,
    without_raises,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.examples import examples
from tests.support.grant_targets import FLOOR, cap, holding, standing, want
from tests.support.milliwatts import power_bound
from tests.support.operator_objects import grant, job_grant, power


def limits(admission: GrantAdmission, node: str) -> list[int]:
    return [job.power_limit_milliwatts for job in admission.grants[node].jobs]


# --- down before up ------------------------------------------------------------------------------------------------


def test_a_raise_waits_until_the_cut_that_pays_for_it_is_acknowledged() -> None:
    caps = [cap(600, "a", "b")]
    before = {"a": holding(want("a", 400)), "b": holding(want("b", 200))}
    wanted = [want("a", 200), want("b", 400)]

    first = admit_grants(wanted, before, caps, epoch=1)
    assert limits(first, "a") == [200]
    assert first.grants["a"].committed == power_bound(400)  # the higher one stands until the cut is acknowledged
    assert "b" not in first.grants
    assert first.waiting == ("b",)

    cut_sent = {"a": NodePower(first.grants["a"], power_bound(400), GrantVersion(1, 1)), "b": before["b"]}
    assert admit_grants(wanted, cut_sent, caps, epoch=1).grants == {}

    cut_done = {"a": holding(want("a", 200), generation=2), "b": before["b"]}
    last = admit_grants(wanted, cut_done, caps, epoch=1)
    assert limits(last, "b") == [400]
    assert last.waiting == ()


def test_a_raise_uses_what_was_held_back_for_its_own_node() -> None:
    """With all at 100, 300 are in reserve; and they still are with one node raised, but less once both are."""
    before = {node: holding(want(node, 100)) for node in "abc"}
    largest = dict.fromkeys("ab", 400)
    for budget, raised in ((699, []), (700, ["a"]), (799, ["a"]), (800, ["a", "b"])):
        caps = [cap(budget, *"abc", reserve=1, largest=largest)]
        admission = admit_grants([want("a", 200), want("b", 300)], before, caps, epoch=1)
        assert list(admission.grants) == raised


def test_a_reserve_that_is_all_in_use_holds_nothing_back() -> None:
    in_use = replace(cap(400, "a", "b"), reserve=JumpReserve(0, {"a": NodeMilliwatts(900), "b": NodeMilliwatts(900)}))
    before = {node: holding(want(node, 100)) for node in "ab"}
    assert list(admit_grants([want("a", 300)], before, [in_use], epoch=1).grants) == ["a"]


@given(
    draws=st.lists(st.integers(0, 9), min_size=2, max_size=6),
    largest=st.lists(st.none() | st.integers(0, 9), min_size=6, max_size=6),
    reserve=st.integers(1, 4),
    commits=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=5),
    last=st.tuples(st.integers(0, 5), st.integers(0, 9)),
)
@example(draws=[0, 5, 7], largest=[9, 9, 9, None, None, None], reserve=1, commits=[], last=(2, 9))
@example(draws=[0, 1, 8], largest=[9, 9, 9, None, None, None], reserve=2, commits=[], last=(2, 9))
def test_the_reserve_that_is_kept_up_to_date_is_the_one_that_is_reckoned_anew(
    draws: list[int],
    largest: list[int | None],
    reserve: int,
    commits: list[tuple[int, int]],
    last: tuple[int, int],
) -> None:
    now = {str(index): draw for index, draw in enumerate(draws)}
    known = {name: most for name, most in zip(now, largest, strict=False) if most is not None}
    row = cap(0, *now, reserve=reserve, largest=known)
    kept = AdmittedReserve(row, {name: power(None, draw) for name, draw in now.items()})
    for index, draw in commits:
        node = str(index % len(draws))
        now[node] = draw
        kept.commit(node, NodeMilliwatts(draw))
    node = str(last[0] % len(draws))
    then = {name: NodeMilliwatts(draw) for name, draw in (now | {node: last[1]}).items()}
    assert kept.with_draw(node, NodeMilliwatts(last[1])) == row.reserve.of(then.items())


def test_no_two_raises_share_the_same_room() -> None:
    before = {"a": holding(want("a", 100)), "b": holding(want("b", 100))}
    admission = admit_grants([want("a", 300), want("b", 300)], before, [cap(400, "a", "b")], epoch=1)
    assert limits(admission, "a") == [300]
    assert admission.waiting == ("b",)


def test_every_cap_over_a_node_counts() -> None:
    before = {"a": holding(want("a", 100)), "b": holding(want("b", 100))}
    caps = [cap(1000, "a", "b", name="cluster"), cap(150, "a", name="rack-a"), cap(300, "b", name="rack-b")]
    admission = admit_grants([want("a", 300), want("b", 300)], before, caps, epoch=1)
    assert list(admission.grants) == ["b"]
    assert admission.waiting == ("a",)


def test_a_node_under_no_cap_is_raised_freely() -> None:
    admission = admit_grants([want("a", 300)], {"a": holding(want("a", 100))}, [cap(0, "b")], epoch=1)
    assert limits(admission, "a") == [300]


def test_the_cut_of_a_node_goes_even_where_its_raise_must_wait() -> None:
    before = {"a": holding(want("a", 400, 100))}
    admission = admit_grants([want("a", 200, 400)], before, [cap(500, "a")], epoch=1)
    assert limits(admission, "a") == [200, 100]
    assert admission.waiting == ("a",)


def braked(milliwatts: int, *limits: int) -> NodePower:
    """A node of which a brake has lowered what stands to so much."""
    stands = replace(standing(want("a", *limits)), min_power_limit_milliwatts=FLOOR)
    return NodePower(stands, power_bound(milliwatts), stands.version, braked_milliwatts=NodeMilliwatts(milliwatts))


def test_what_a_brake_has_taken_comes_back_as_any_other_raise() -> None:
    before = {"a": braked(400, 300, 300)}
    admission = admit_grants([want("a", 250, 300)], before, [cap(400, "a")], epoch=1)
    assert limits(admission, "a") == [200, 200]  # as the brake left them, and no longer by the brake
    assert admission.waiting == ("a",)


def test_a_grant_that_a_brake_has_lowered_is_sent_again_though_it_says_the_same() -> None:
    stands = standing(want("a", 300, 300))
    before = NodePower(stands, power_bound(400), stands.version, braked_milliwatts=NodeMilliwatts(400))
    admission = admit_grants([want("a", 300, 300)], {"a": before}, [cap(600, "a")], epoch=1)
    assert limits(admission, "a") == [300, 300]
    assert admission.grants["a"].same_content(stands)


def test_a_new_entry_waits_at_the_smallest_limit() -> None:
    before = {"a": holding(want("a", 300, rest=FLOOR))}
    admission = admit_grants([want("a", 300, 300)], before, [cap(450, "a")], epoch=1)
    assert limits(admission, "a") == [300, FLOOR]
    assert admission.grants["a"].bound == power_bound(400)


def test_the_same_state_gives_the_same_grants_whatever_the_order() -> None:
    before = {node: holding(want(node, 100)) for node in "abc"}
    wanted = [want(node, 300) for node in "abc"]
    caps = [cap(700, *"abc")]
    assert admit_grants(wanted, before, caps, 1) == admit_grants(wanted[::-1], before, caps, 1)


def test_what_stands_is_not_sent_again() -> None:
    admission = admit_grants([want("a", 300)], {"a": holding(want("a", 300))}, [cap(300, "a")], epoch=1)
    assert (admission.grants, admission.waiting) == ({}, ())


def test_what_may_stand_or_not_is_sent_again() -> None:
    unsettled = replace(holding(want("a", 300)), unsettled=True)
    assert list(admit_grants([want("a", 300)], {"a": unsettled}, [], epoch=1).grants) == ["a"]


def test_a_cut_goes_under_a_cap_that_is_passed_already() -> None:
    before = {"a": holding(want("a", 400)), "b": holding(want("b", 400))}
    admission = admit_grants([want("a", 200), want("b", 450)], before, [cap(300, "a", "b")], epoch=1)
    assert limits(admission, "a") == [200]
    assert admission.waiting == ("b",)


# --- a raise of one thing never keeps the cut of another --------------------------------------------------------------


def test_a_foreign_pod_that_needs_room_does_not_keep_a_cut() -> None:
    reserved = OtherGpuLimits(foreign_gpus=1)
    before = {"a": holding(want("a", 400, rest=FLOOR))}
    admission = admit_grants([want("a", 200, rest=400, other_gpus=reserved)], before, [cap(400, "a")], epoch=1)
    sent = admission.grants["a"]
    assert sent.jobs[0].power_limit_milliwatts == 200
    assert sent.other_gpus.foreign_gpus == 0  # its GPU stays as it is until its watts are there
    assert sent.bound.limit_milliwatts <= before["a"].committed.limit_milliwatts
    assert admission.waiting == ("a",)


def test_a_foreign_pod_gets_the_room_that_a_cut_on_its_own_node_makes() -> None:
    reserved = OtherGpuLimits(foreign_gpus=1)
    before = {"a": holding(want("a", 400, rest=FLOOR))}
    admission = admit_grants([want("a", 100, rest=400, other_gpus=reserved)], before, [cap(500, "a")], epoch=1)
    assert admission.grants["a"].other_gpus.foreign_gpus == 1
    assert admission.waiting == ()


@pytest.mark.parametrize(
    ("wanted", "before", "left"),
    [
        ((2, 0), (1, 0), (1, 0)),
        ((1, 0), (2, 0), (1, 0)),
        ((1, 0), (1, FLOOR), (1, FLOOR)),  # 0 is the default: from the smallest to that is a raise
        ((1, FLOOR), (1, 0), (1, FLOOR)),
        ((3, 0), None, (0, 0)),
    ],
)
def test_foreign_pods_are_given_no_more_than_they_had(
    wanted: tuple[int, int], before: tuple[int, int] | None, left: tuple[int, int]
) -> None:
    def devices(pair: tuple[int, int]) -> OtherGpuLimits:
        return OtherGpuLimits(foreign_gpus=pair[0], foreign_power_limit_milliwatts=MilliwattsPerGpu(pair[1]))

    current = None if before is None else replace(grant(300), other_gpus=devices(before))
    held = without_raises(want("a", 100, rest=900, other_gpus=devices(wanted)), current, power_bound(300))
    assert (held.other_gpus.foreign_gpus, held.other_gpus.foreign_power_limit_milliwatts) == left
    assert held.bound == power_bound(300)


def test_no_foreign_pod_has_a_higher_limit_than_it_had() -> None:
    def others(ordinary: int, **pods: int) -> OtherGpuLimits:
        limits = tuple(ForeignPodLimit("team", name, MilliwattsPerGpu(limit)) for name, limit in sorted(pods.items()))
        ordinary_limit = MilliwattsPerGpu(ordinary)
        return OtherGpuLimits(foreign_gpus=4, foreign_power_limit_milliwatts=ordinary_limit, foreign_pods=limits)

    before, wanted = others(200, kept=150, named=120), others(250, kept=300, new=180, raised=400)
    current = replace(grant(300), other_gpus=before)
    held = without_raises(want("a", 100, rest=900, other_gpus=wanted), current, power_bound(300)).other_gpus
    assert held == others(200, kept=150, named=120, new=180)
    assert without_entries(want("a", 100, other_gpus=wanted)).other_gpus.foreign_pods == ()


def test_a_higher_clock_does_not_keep_a_cut_under_a_cap_on_predicted_draw() -> None:
    before = {"a": holding(want("a", 300, 300, expected=(150, 250), clock=900))}
    wanted = want("a", 300, 200, expected=(280, 150), clock=1410)
    admission = admit_grants([wanted], before, [cap(400, "a", expected=True)], epoch=1)
    sent = admission.grants["a"]
    assert [job.power_limit_milliwatts for job in sent.jobs] == [300, 200]
    assert [job.clock_max_megahertz for job in sent.jobs] == [900, 900]
    assert sent.bound.expected_milliwatts <= 400
    assert admission.waiting == ("a",)


def test_limits_are_free_under_a_cap_on_predicted_draw() -> None:
    before = {"a": holding(want("a", 300, expected=(150,)))}
    admission = admit_grants([want("a", 400, expected=(200,))], before, [cap(200, "a", expected=True)], epoch=1)
    assert limits(admission, "a") == [400]


# --- new leaders, new nodes, lost objects ----------------------------------------------------------------------------


def test_a_new_leader_adopts_every_grant_and_raises_none() -> None:
    before = {"a": holding(want("a", 200)), "b": holding(want("b", 200)), "c": power(None, 800)}
    wanted = [want("a", 400), want("b", 100), want("c", 100)]
    admission = admit_grants(wanted, before, [cap(5000, *"abc")], epoch=2, raises_allowed=False)
    assert {node: limits(admission, node) for node in "abc"} == {"a": [200], "b": [100], "c": [FLOOR]}
    assert {sent.epoch for sent in admission.grants.values()} == {2}


def test_a_new_leader_adopts_a_node_whose_foreign_pods_need_room() -> None:
    """Else its epoch would never stand everywhere, and nothing would be raised on any node again."""
    before = {"a": holding(want("a", 200))}
    wanted = [want("a", 200, rest=400, other_gpus=OtherGpuLimits(foreign_gpus=1))]
    admission = admit_grants(wanted, before, [], epoch=2, raises_allowed=False)
    assert admission.grants["a"].epoch == 2


def test_an_adopted_grant_is_written_even_if_it_says_the_same() -> None:
    assert list(admit_grants([want("a", 200)], {"a": holding(want("a", 200))}, [], epoch=2).grants) == ["a"]


def test_a_first_grant_is_covered_by_the_defaults_that_a_node_starts_at() -> None:
    admission = admit_grants([want("a", 100, rest=100)], {"a": power(None, 800)}, [cap(300, "a")], epoch=1)
    assert admission.grants["a"].bound == power_bound(200)
    assert admission.grants["a"].committed == power_bound(800)
    assert admission.grants["a"].generation == 1


@pytest.mark.parametrize(
    ("sent", "accepted", "epoch", "generation"),
    [
        (None, (0, 0), 1, 1),
        (None, (3, 9), 3, 10),  # the GPUNode was deleted and made again: its agent has accepted this much
        ((3, 2), (3, 9), 3, 10),
        ((3, 9), (3, 2), 3, 10),
        ((2, 9), (2, 9), 3, 10),  # counts on through epochs
        (None, (2, 9), 3, 1),
        ((3, 2), (3, 2 + MOST_GRANTS_UNKNOWN), 3, 3 + MOST_GRANTS_UNKNOWN),
        ((3, 2), (3, 3 + MOST_GRANTS_UNKNOWN), 3, 3),  # nobody has sent so many
    ],
)
def test_generations_pass_whatever_was_sent_or_accepted(
    sent: tuple[int, int] | None, accepted: tuple[int, int], epoch: int, generation: int
) -> None:
    given_grant = None if sent is None else grant(100, epoch=sent[0], generation=sent[1])
    assert power(given_grant, 100, accepted=GrantVersion(*accepted)).next_generation(epoch) == generation


def test_a_grant_behind_what_the_agent_has_accepted_is_sent_anew() -> None:
    item = want("a", 200)
    behind = NodePower(standing(item), power_bound(200), GrantVersion(1, 7))
    admission = admit_grants([item], {"a": behind}, [cap(200, "a")], epoch=1)
    assert admission.grants["a"].version == (1, 8)


@pytest.mark.parametrize("accepted", [(2, 1), (1, 8 + MOST_GRANTS_UNKNOWN)])
def test_what_no_next_grant_passes_has_none_sent_anew_that_asks_the_same(accepted: tuple[int, int]) -> None:
    """As whoever has its agent's token says it: a grant in each cycle would be a storm of writes that nobody hears."""
    item = want("a", 200)
    told = NodePower(standing(item), power_bound(200), GrantVersion(*accepted))
    assert admit_grants([item], {"a": told}, [cap(200, "a")], epoch=1).grants == {}
    less = admit_grants([want("a", 150)], {"a": told}, [cap(200, "a")], epoch=1)
    assert limits(less, "a") == [150], "a cut is sent all the same"


def test_a_limit_does_not_rise_under_a_cap_on_predicted_draw_that_is_passed() -> None:
    """The target is predicted to draw less, but until it is acknowledged the node may draw as before."""
    before = {"a": holding(want("a", 300, expected=(300,)))}
    admission = admit_grants([want("a", 400, expected=(200,))], before, [cap(250, "a", expected=True)], epoch=1)
    assert limits(admission, "a") == [300]
    assert admission.waiting == ("a",)


@pytest.mark.parametrize(
    ("predicted", "committed", "expected"),
    [
        ((150,), 500, [150]),  # as the plan predicts
        ((250,), 500, [200]),  # no more than its limit
        ((150,), 120, [120]),  # no more than was predicted before
        ((80, 90), 120, [80, 40]),  # of all of them together
    ],
)
def test_what_is_held_back_is_expected_to_draw_no_more_than_before(
    predicted: tuple[int, ...], committed: int, expected: list[int]
) -> None:
    target = want("a", *[300] * len(predicted), expected=predicted)
    held = without_raises(target, standing(want("a", *[200] * len(predicted))), power_bound(600, committed))
    assert [bound.expected_milliwatts for bound in held.job_bounds] == expected


def test_what_needs_no_room_keeps_its_foreign_pods() -> None:
    target = want("a", 300, rest=100, other_gpus=OtherGpuLimits(foreign_gpus=1))
    held = without_raises(target, grant(300), power_bound(300))
    assert held.other_gpus.foreign_gpus == 1
    assert held.rest == power_bound(100)


def test_without_entries_every_pod_counts_as_foreign_at_the_smallest_limit() -> None:
    target = want("a", 300, 250, rest=40, expected=(60, 200), gpus=2, other_gpus=OtherGpuLimits(foreign_gpus=1))
    bare = without_entries(target)
    assert (bare.jobs, bare.job_bounds) == ((), ())
    assert bare.other_gpus == OtherGpuLimits(foreign_gpus=5, foreign_power_limit_milliwatts=MilliwattsPerGpu(FLOOR))
    assert bare.rest == power_bound(40 + 4 * FLOOR, 40 + 2 * 60 + 2 * FLOOR)


# --- held back, in general -------------------------------------------------------------------------------------------

one_job = st.tuples(st.integers(100, 500), st.integers(0, 500), st.integers(210, 1410))


@given(
    wanted=st.lists(one_job, min_size=1, max_size=3),
    current=st.lists(one_job, max_size=3),
    rest=st.integers(0, 800),
    worst_above=st.integers(0, 300),
)
@settings(max_examples=examples(150))
def test_what_is_held_back_raises_nothing(
    wanted: list[tuple[int, int, int]],
    current: list[tuple[int, int, int]],
    rest: int,
    worst_above: int,
) -> None:
    def of(entries: list[tuple[int, int, int]], rest_milliwatts: int) -> GrantTarget:
        jobs = tuple(job_grant(f"a-{index}", limit, clock=clock) for index, (limit, _, clock) in enumerate(entries))
        holds = tuple(power_bound(limit, min(limit, draw)) for limit, draw, _ in entries)
        rest_hold = power_bound(rest_milliwatts)
        return GrantTarget("a", OtherGpuLimits(), 60, jobs, holds, rest_hold, MilliwattsPerGpu(FLOOR))

    # As any grant does, the standing one covers the smallest limit of GPUs that no pod holds yet.
    standing_grant = standing(of(current, max(0, len(wanted) - len(current)) * FLOOR))
    worst = standing_grant.bound + power_bound(worst_above)
    held = without_raises(of(wanted, rest), standing_grant, worst)
    assert worst.covers(held.bound)
    before = {job.pod_name: job for job in standing_grant.jobs}
    for job, asked in zip(held.jobs, of(wanted, rest).jobs, strict=True):
        assert job.power_limit_milliwatts <= asked.power_limit_milliwatts
        assert job.power_limit_milliwatts >= min(FLOOR, asked.power_limit_milliwatts)
        if job.pod_name in before:
            assert job.power_limit_milliwatts <= before[job.pod_name].power_limit_milliwatts
            assert job.clock_max_megahertz <= before[job.pod_name].clock_max_megahertz
        else:
            assert job.power_limit_milliwatts <= FLOOR


# --- throttled under caps ---------------------------------------------------------------------------------------------


def test_committed_sums_worst_holds_of_the_nodes_that_exist() -> None:
    holds = {"a": power(None, 300, expected=200), "b": power(None, 100)}
    assert cap(0, "a", "b", "gone").committed(holds) == 400
    assert cap(0, "a", "b", expected=True).committed(holds) == 300
