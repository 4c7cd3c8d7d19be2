"""The pure decisions: what each GPU should be, in which order, and that no order of outcomes passes the bound."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from flyball_agent.enforce.decisions import (
    Mode,
    SetClockLock,
    SetLimit,
    Target,
    acknowledgement_due,
    clock_locks,
    drift_of,
    judge,
    limit_cuts,
    limit_raises,
    locks_of_jobs,
    mode_of,
    targets_of,
    total_held_milliwatts,
    worth_asking,
)
from flyball_agent.enforce.gpu_state import (
    UNLOCKED,
    ClockLock,
    GpuFailure,
    GpuState,
    Holders,
    LimitRefusal,
    PodName,
    TargetPurpose,
)
from flyball_agent.gpu.gpu import GpuLimits, PowerLimitReading
from flyball_api.gpu_node import Acknowledgement, DriverSession
from flyball_api.grant import ForeignPodLimit, Grant, GrantVersion, JobGrant, OtherGpuLimits, PowerBound
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.examples import examples

POD, OTHER = PodName("research", "gpt2-1-0"), PodName("kube-system", "daemon")
JOB = JobGrant("research", "gpt2", "u-1", 1, "gpt2-1-0", 2, MilliwattsPerGpu(250_000), 1000, 1300)


def limits(clocks: tuple[int, ...] = tuple(range(210, 1411, 15))) -> GpuLimits:
    return GpuLimits(MilliwattsPerGpu(100_000), MilliwattsPerGpu(400_000), MilliwattsPerGpu(400_000), clocks)


LIMITS = limits()


def gpu(
    name: str, held: int = 400_000, *, requested: int | None = None, usable: bool = True, **fields: Any
) -> GpuState:
    """A GPU whose limit is requested (as much as it holds, if nothing else is said), and holds `held` milliwatts."""
    wanted = MilliwattsPerGpu(held if requested is None else requested)
    limit = PowerLimitReading(wanted, MilliwattsPerGpu(held)) if usable else None
    return GpuState(name, 0, "A100", LIMITS, MilliwattsPerGpu(held), limit=limit, **fields)


def grant(bound: int = 800_000, *, jobs: tuple[JobGrant, ...] = (), **others: int) -> Grant:
    return Grant(1, 1, 30, PowerBound(NodeMilliwatts(bound)), other_gpus=OtherGpuLimits(**others), jobs=jobs)  # type: ignore[arg-type]


def job(number: int, limit: int) -> JobGrant:
    return replace(JOB, uid=f"u-{number}", pod_name=f"p-{number}", power_limit_milliwatts=MilliwattsPerGpu(limit))


def locks(targets: dict[str, Target]) -> dict[str, ClockLock | None]:
    return {uuid: target.lock for uuid, target in targets.items()}


HOLDINGS = st.sampled_from(((), (POD,), (OTHER,), (POD, OTHER), (PodName("research", "p-2"),)))


@given(
    held=st.lists(st.tuples(HOLDINGS, st.sampled_from(list(Holders)), st.integers(100, 400)), min_size=1, max_size=5),
    reserved=st.integers(0, 3),
    mode=st.sampled_from(list(Mode)),
    wished=st.integers(0, 1500),
    data=st.data(),
)
def test_the_lock_of_a_jobs_gpu_depends_on_none_of_the_nodes_other_gpus(
    held: list[tuple[tuple[PodName, ...], Holders, int]], reserved: int, mode: Mode, wished: int, data: st.DataObject
) -> None:
    """So that a clock that a computation waits for is decided on for its own GPU alone."""
    gpus = [
        gpu(str(number), 1000 * watts, pods=pods, holders=holders) for number, (pods, holders, watts) in enumerate(held)
    ]
    granted = grant(jobs=(JOB, replace(job(2, 200_000), clock_max_megahertz=1200)), foreign_gpus=reserved)
    wishes = {(POD, ""): wished, (PodName("research", "p-2"), "1"): wished}
    some = data.draw(st.lists(st.sampled_from(gpus), unique_by=lambda one: one.uuid))
    whole = targets_of(granted, gpus, mode, wishes)
    assert locks_of_jobs(granted, some, wishes) == {
        one.uuid: whole[one.uuid].lock for one in some if whole[one.uuid].purpose is TargetPurpose.JOB
    }


def test_modes() -> None:
    gpus = [gpu("a"), gpu("b")]
    assert mode_of(None, gpus, lease_valid=True) is Mode.ADOPTING
    assert mode_of(grant(), gpus, lease_valid=True) is Mode.GRANTED
    assert mode_of(grant(), gpus, lease_valid=False) is Mode.FAILSAFE
    assert mode_of(grant(), gpus, lease_valid=False, hold_valid=True) is Mode.HOLDING
    assert mode_of(grant(), gpus, lease_valid=True, hold_valid=True) is Mode.GRANTED
    for lease_valid in (True, False):
        assert mode_of(grant(200_000), gpus, lease_valid=lease_valid) is Mode.FLOOR


def test_each_gpu_gets_what_its_pods_are_granted() -> None:
    gpus = [gpu("job", pods=(POD,)), gpu("idle"), gpu("foreign", pods=(OTHER,))]
    targets = targets_of(grant(jobs=(JOB,)), gpus, Mode.GRANTED)
    assert (targets["job"].limit_milliwatts, targets["job"].lock) == (250_000, ClockLock(990, 1290))
    assert (targets["idle"].limit_milliwatts, targets["idle"].lock) == (100_000, UNLOCKED)
    assert (targets["foreign"].purpose, targets["foreign"].limit_milliwatts) == (TargetPurpose.UNTOUCHED, None)
    assert targets["foreign"].lock is None


def test_foreign_gpus_are_touched_only_as_far_as_they_are_reserved() -> None:
    gpus = [gpu("a", pods=(OTHER,)), gpu("b", pods=(OTHER,), lock=ClockLock(900, 900))]
    targets = targets_of(grant(foreign_gpus=1), gpus, Mode.GRANTED)
    assert targets["a"].limit_milliwatts == 400_000  # 0 in the grant: the GPU's default
    assert targets["b"].limit_milliwatts is None
    assert targets["b"].lock == UNLOCKED  # ours, left over from a job
    targets = targets_of(grant(foreign_gpus=2, foreign_power_limit_milliwatts=180_000), gpus, Mode.GRANTED)
    assert [targets[name].limit_milliwatts for name in "ab"] == [180_000, 180_000]


def test_a_foreign_pod_with_a_limit_of_its_own_has_that_one() -> None:
    named = ForeignPodLimit(OTHER.namespace, OTHER.name, MilliwattsPerGpu(150_000))
    third = PodName("research", "third")
    given_grant = grant(foreign_gpus=2, foreign_power_limit_milliwatts=180_000)
    given_grant = replace(given_grant, other_gpus=replace(given_grant.other_gpus, foreign_pods=(named,)))
    gpus = [gpu("a", pods=(OTHER,)), gpu("b", pods=(third,)), gpu("c", pods=(OTHER,))]
    targets = targets_of(given_grant, gpus, Mode.GRANTED)
    assert [targets[name].limit_milliwatts for name in "abc"] == [150_000, 180_000, None]  # two are reserved
    shared = [gpu("a", pods=(OTHER, third)), gpu("b", holders=Holders.UNRESOLVED)]
    targets = targets_of(given_grant, shared, Mode.GRANTED)
    assert [targets[name].limit_milliwatts for name in "ab"] == [150_000, 180_000]


def test_a_shared_gpu_gets_the_least_of_its_jobs_and_is_foreign_where_one_is() -> None:
    second = replace(JOB, uid="u-2", pod_name="bert-1-0", power_limit_milliwatts=MilliwattsPerGpu(200_000))
    shared = (POD, PodName("research", "bert-1-0"))
    targets = targets_of(grant(jobs=(JOB, second)), [gpu("a", pods=shared)], Mode.GRANTED)
    assert targets["a"].limit_milliwatts == 200_000
    targets = targets_of(grant(jobs=(JOB,)), [gpu("a", pods=shared)], Mode.GRANTED)
    assert targets["a"].purpose is TargetPurpose.UNTOUCHED


def test_failsafe_only_ever_lowers_a_target() -> None:
    gpus = [gpu("job", pods=(POD,)), gpu("idle"), gpu("foreign", pods=(OTHER,))]
    targets = targets_of(grant(jobs=(JOB,), failsafe_power_limit_milliwatts=180_000), gpus, Mode.FAILSAFE)
    assert targets["job"].limit_milliwatts == 180_000
    assert targets["idle"].limit_milliwatts == 100_000
    assert targets["foreign"].limit_milliwatts is None
    assert targets_of(grant(jobs=(JOB,)), gpus, Mode.FAILSAFE)["job"].limit_milliwatts == 100_000


def test_a_gpu_of_which_it_is_not_known_who_holds_it_is_never_idle() -> None:
    gpus = [gpu("a", holders=Holders.UNRESOLVED), gpu("b", 300_000, holders=Holders.UNRESOLVED)]
    targets = targets_of(grant(foreign_gpus=1, foreign_power_limit_milliwatts=180_000), gpus, Mode.GRANTED)
    assert (targets["a"].purpose, targets["a"].limit_milliwatts) == (TargetPurpose.FOREIGN, 180_000)
    assert (targets["b"].purpose, targets["b"].limit_milliwatts) == (TargetPurpose.UNTOUCHED, None)


def test_before_the_pods_are_listed_gpus_keep_what_they_have_within_the_bound() -> None:
    unlisted = Holders.NOT_LISTED
    gpus = [
        gpu("a", 400_000, holders=unlisted),
        gpu("b", 200_000, holders=unlisted),
        gpu("lost", 300_000, usable=False),
    ]
    targets = targets_of(grant(900_000, jobs=(JOB,)), gpus, Mode.GRANTED)
    assert [targets[name].limit_milliwatts for name in "ab"] == [400_000, 200_000]
    assert targets["a"].lock is None
    assert targets["a"].purpose is TargetPurpose.UNKNOWN
    targets = targets_of(grant(700_000), gpus, Mode.GRANTED)
    assert [targets[name].limit_milliwatts for name in "ab"] == [250_000, 150_000]  # 200 of the 400 W above the min
    targets = targets_of(grant(100_000), gpus, Mode.GRANTED)
    assert [targets[name].limit_milliwatts for name in "ab"] == [100_000, 100_000]
    targets = targets_of(grant(900_000, failsafe_power_limit_milliwatts=150_000), gpus, Mode.FAILSAFE)
    assert [targets[name].limit_milliwatts for name in "ab"] == [150_000, 150_000]
    lost_too = [*gpus[:2], gpu("lost", 300_000, usable=False, holders=unlisted)]
    assert targets_of(grant(700_000), lost_too, Mode.GRANTED)["a"].limit_milliwatts == 250_000
    known = [*gpus[:2], gpu("c", 300_000)]  # one whose pods are known counts at its target
    assert targets_of(grant(700_000), known, Mode.GRANTED)["a"].limit_milliwatts == 400_000
    least = [gpu(name, 100_000, holders=unlisted) for name in "ab"]  # there is nothing to lower
    targets = targets_of(grant(100_000), least, Mode.GRANTED)
    assert [targets[name].limit_milliwatts for name in "ab"] == [100_000, 100_000]


def test_watts_that_nobody_commands_come_off_the_others_targets() -> None:
    other = gpu("other", 400_000, pods=(OTHER,))
    gpus = [gpu("a", 400_000, pods=(POD,)), gpu("b", 400_000, pods=(PodName("research", "p-1"),)), gpu("idle"), other]
    wanted = grant(850_000, jobs=(JOB, job(1, 200_000)))  # of which 250 + 200 + 100 are for those three
    targets = targets_of(wanted, gpus, Mode.GRANTED)
    # The other is 100 W above what is left for it: of the 250 W above the smallest limits 150 stand.
    assert [targets[name].limit_milliwatts for name in ("a", "b", "idle", "other")] == [190_000, 160_000, 100_000, None]
    lost = [*gpus[:3], gpu("other", 400_000, usable=False)]
    stuck = [*gpus[:3], gpu("other", 400_000, stays_above=True)]
    hurled = [*gpus[:3], gpu("other", 900_000, pods=(OTHER,))]
    for held, limits in ((lost, [190_000, 160_000]), (stuck, [190_000, 160_000]), (hurled, [100_000, 100_000])):
        targets = targets_of(wanted, held, Mode.GRANTED)
        assert [targets[name].limit_milliwatts for name in "ab"] == limits
    # One that does not come down to what it is to have now has a target as low, and so stays named.
    stays = [gpu("a", 250_000, pods=(POD,), stays_above=True), *gpus[1:]]
    assert targets_of(wanted, stays, Mode.GRANTED)["a"].limit_milliwatts < 250_000
    late = [*gpus[:3], gpu("other", 400_000)]  # on its way to its own target
    assert targets_of(wanted, late, Mode.GRANTED)["a"].limit_milliwatts == 250_000


@given(
    st.lists(
        st.tuples(
            st.integers(100_000, 400_000),
            st.sampled_from([(), (POD,), (PodName("research", "p-1"),), (OTHER,)]),
            st.booleans(),
            st.sampled_from(list(Holders)),
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 3_200_000),
    st.integers(0, 3),
    st.integers(100_000, 400_000),
    st.sampled_from([Mode.GRANTED, Mode.HOLDING, Mode.FAILSAFE]),
)
def test_targets_with_what_nobody_sets_fit_the_bound_wherever_the_smallest_limits_do(
    gpu_draws: list[tuple[int, tuple[PodName, ...], bool, Holders]], bound: int, foreign: int, limit: int, mode: Mode
) -> None:
    gpus = [
        gpu(str(index), held, pods=pods, usable=usable, holders=holders)
        for index, (held, pods, usable, holders) in enumerate(gpu_draws)
    ]
    jobs = (JOB, job(1, limit))
    wide = targets_of(grant(10**9, jobs=jobs, foreign_gpus=foreign), gpus, mode)
    targets = targets_of(grant(bound, jobs=jobs, foreign_gpus=foreign), gpus, mode)
    least = total = 0
    for each in gpus:
        target, wished = targets[each.uuid].limit_milliwatts, wide[each.uuid].limit_milliwatts
        if target is None or wished is None or not each.usable:
            least, total = least + each.held_milliwatts, total + each.held_milliwatts
            continue
        assert LIMITS.min_milliwatts <= target <= wished
        assert target == wished or target % 1000 == 0
        least, total = least + LIMITS.min_milliwatts, total + target
    assert total <= max(bound, least)
    if total < bound - 1000 * len(gpus):  # no more is taken than there is need of, but for rounding
        assert targets == wide


def test_a_limit_that_settles_is_not_cut_for_twice() -> None:
    settling = gpu("a", 400_000, requested=250_000, holders=Holders.NOT_LISTED)
    assert targets_of(grant(250_000), [settling], Mode.GRANTED)["a"].limit_milliwatts == 250_000


def test_limits_out_of_the_gpus_range_are_clamped() -> None:
    gpus = [gpu("a", pods=(POD,))]
    low = replace(JOB, power_limit_milliwatts=MilliwattsPerGpu(1))
    assert targets_of(grant(jobs=(low,)), gpus, Mode.GRANTED)["a"].limit_milliwatts == 100_000
    high = replace(JOB, power_limit_milliwatts=MilliwattsPerGpu(10**9))
    assert targets_of(grant(jobs=(high,)), gpus, Mode.GRANTED)["a"].limit_milliwatts == 400_000


def test_limits_are_set_in_whole_watts_and_what_a_gpu_has_is_left_as_it_is() -> None:
    fraction = replace(JOB, power_limit_milliwatts=MilliwattsPerGpu(250_750))
    for held, limit in ((400_000, 250_000), (250_750, 250_750), (100_000, 250_000)):
        gpus = [gpu("a", held, pods=(POD,))]
        assert targets_of(grant(jobs=(fraction,)), gpus, Mode.GRANTED)["a"].limit_milliwatts == limit
    full = grant(250_750, jobs=(fraction,))  # what just fits is not lowered, nor rounded
    assert targets_of(full, [gpu("a", 250_750, pods=(POD,))], Mode.GRANTED)["a"].limit_milliwatts == 250_750
    raised = [gpu("a", 200_500, pods=(POD,)), gpu("b", 100_000, pods=(POD,))]
    targets = targets_of(grant(jobs=(JOB,)), raised, Mode.GRANTED)
    # 200 mW of room are none for the first, nor is what is left of the second's a part of a watt.
    assert limit_raises(raised, targets, NodeMilliwatts(300_700)) == []
    assert limit_raises(raised, targets, NodeMilliwatts(353_900)) == [
        set_limit("a", 200_500, 250_000),
        set_limit("b", 100_000, 103_000),
    ]


def test_cuts_come_first_then_raises_within_what_is_free() -> None:
    gpus = [gpu("idle", 400_000), gpu("job", 100_000, pods=(POD,))]
    wanted = grant(350_000, jobs=(JOB,))
    targets = targets_of(wanted, gpus, Mode.GRANTED)
    assert limit_cuts(gpus, targets) == [set_limit("idle", 400_000, 100_000)]
    assert limit_raises(gpus, targets, wanted.bound.limit_milliwatts) == []  # nothing before the cut is read back
    after = [gpu("idle", 100_000), gpus[1]]
    assert limit_raises(after, targets, wanted.bound.limit_milliwatts) == [set_limit("job", 100_000, 250_000)]


def set_limit(name: str, old: int, new: int) -> SetLimit:
    return SetLimit(name, MilliwattsPerGpu(old), MilliwattsPerGpu(new))


def above(gpus: list[GpuState], granted: Grant) -> list[str]:
    """The GPUs that are found to hold more than their targets."""
    targets = targets_of(granted, gpus, Mode.GRANTED)
    return [one.uuid for one in judge(gpus, targets, 0, 1).gpus if one.above_since_ns is not None]


def test_the_watts_of_a_gpu_whose_limit_stays_up_are_missing_for_the_raise() -> None:
    gpus = [gpu("stuck", 300_000), gpu("job", 100_000, pods=(POD,))]
    targets = targets_of(grant(jobs=(JOB,)), gpus, Mode.GRANTED)
    assert limit_raises(gpus, targets, NodeMilliwatts(450_000)) == [set_limit("job", 100_000, 150_000)]
    assert above(gpus, grant(jobs=(JOB,))) == ["stuck"]


def test_a_limit_that_still_settles_counts_as_the_old_one() -> None:
    settling = gpu("a", 400_000, requested=100_000)
    assert limit_cuts([settling], targets_of(grant(), [settling], Mode.GRANTED)) == []  # asked for already
    assert above([settling], grant()) == ["a"]  # but not there yet


def test_what_another_hand_has_raised_is_put_back_to_what_it_was_and_raised_by_the_rules_of_raises() -> None:
    """Its target is above that: another GPU still holds what it is to have."""
    before = MilliwattsPerGpu(200_000)
    drifted = gpu("drifted", 400_000, pods=(POD,), before_drift_milliwatts=before)
    gpus = [drifted, gpu("late", 300_000, requested=100_000)]
    targets = targets_of(grant(500_000, jobs=(JOB,)), gpus, Mode.GRANTED)
    assert limit_cuts(gpus, targets) == [set_limit("drifted", 400_000, 200_000)]
    put_back = [gpu("drifted", 200_000, pods=(POD,)), gpus[1]]
    assert limit_raises(put_back, targets, NodeMilliwatts(500_000)) == []
    arrived = [put_back[0], gpu("late", 100_000)]
    assert limit_raises(arrived, targets, NodeMilliwatts(500_000)) == [set_limit("drifted", 200_000, 250_000)]
    lowered = gpu("drifted", 400_000, pods=(POD,), before_drift_milliwatts=MilliwattsPerGpu(300_000))
    assert limit_cuts([lowered], targets) == [set_limit("drifted", 400_000, 250_000)]


def test_a_lost_gpu_keeps_its_watts_and_is_not_called() -> None:
    gpus = [gpu("lost", 400_000, usable=False), gpu("job", 100_000, pods=(POD,))]
    targets = targets_of(grant(jobs=(JOB,)), gpus, Mode.GRANTED)
    assert limit_cuts(gpus, targets) == []
    assert clock_locks(gpus, locks(targets)) == [SetClockLock("job", ClockLock(990, 1290))]
    assert limit_raises(gpus, targets, NodeMilliwatts(550_000)) == [set_limit("job", 100_000, 150_000)]
    assert above(gpus, grant(jobs=(JOB,))) == []


def test_a_job_that_is_granted_no_clock_has_none_bound() -> None:
    held = gpu("a", pods=(POD,), lock=ClockLock(900, 900))
    free = replace(JOB, clock_min_megahertz=0, clock_max_megahertz=0)
    assert targets_of(grant(jobs=(free,)), [held], Mode.GRANTED)["a"].lock == UNLOCKED


def test_locks_are_set_where_they_differ_or_nobody_knows() -> None:
    gpus = [gpu("new"), gpu("free", lock=UNLOCKED), gpu("ours", lock=ClockLock(900, 900))]
    targets = targets_of(grant(), gpus, Mode.GRANTED)
    assert clock_locks(gpus, locks(targets)) == [SetClockLock("new", UNLOCKED), SetClockLock("ours", UNLOCKED)]
    unlockable = gpus[0].changed(limits=limits(clocks=()))
    assert clock_locks([unlockable], locks(targets_of(grant(), [unlockable], Mode.GRANTED))) == []
    # What is to stay as it is, and what nothing is asked of, keeps its lock.
    assert clock_locks(gpus, {"ours": None}) == []


@pytest.mark.parametrize(("times", "pause_seconds"), [(10, 1), (11, 2), (30, 60)])
def test_a_limit_that_is_refused_again_and_again_is_asked_for_after_pauses(times: int, pause_seconds: int) -> None:
    limit, other = (
        SetLimit("a", LIMITS.max_milliwatts, LIMITS.min_milliwatts),
        SetLimit("a", *[LIMITS.max_milliwatts] * 2),
    )
    refusing = {"a": gpu("a", 400_000).changed(refusal=LimitRefusal(limit.new_milliwatts, times, asked_ns=5))}
    pause_ns = pause_seconds * 1_000_000_000
    assert worth_asking([limit, other], refusing, 5 + pause_ns - 1) == [other]
    assert worth_asking([limit, other], refusing, 5 + pause_ns) == [limit, other]
    seldom = {"a": gpu("a", 400_000).changed(refusal=LimitRefusal(limit.new_milliwatts, 9, asked_ns=5))}
    assert worth_asking([limit], seldom, 5) == [limit]


def test_a_limit_that_somebody_else_changed_is_drift_but_for_an_untouched_gpu() -> None:
    changed = gpu("a", 300_000, ours_milliwatts=MilliwattsPerGpu(250_000), purpose=TargetPurpose.JOB)
    assert drift_of(changed) == "a: limit 250000 mW was changed to 300000 mW"
    for same in (
        changed.changed(purpose=TargetPurpose.UNTOUCHED),
        changed.changed(ours_milliwatts=None),
        changed.changed(ours_milliwatts=MilliwattsPerGpu(300_000)),
        gpu("a", usable=False, ours_milliwatts=MilliwattsPerGpu(250_000), purpose=TargetPurpose.JOB),
    ):
        assert drift_of(same) is None


def test_a_limit_above_its_target_is_waited_for_and_then_stays() -> None:
    gpus = [gpu("a", 300_000)]
    targets = targets_of(grant(), gpus, Mode.GRANTED)
    first = judge(gpus, targets, 1000, 50)
    assert (first.settling, first.may_acknowledge) == (True, False)
    later = judge(first.gpus, targets, 1049, 50)
    assert later == first
    last = judge(later.gpus, targets, 1050, 50)
    assert (last.settling, last.may_acknowledge, last.gpus[0].stays_above) == (False, True, True)
    # One that has been waited for long enough hides no other that may still come down.
    both = [gpu("b", 300_000), last.gpus[0]]
    for order in (both, both[::-1]):
        judged = judge(order, targets_of(grant(), order, Mode.GRANTED), 1050, 50)
        assert (judged.settling, judged.may_acknowledge) == (True, False)
    down = judge([last.gpus[0].changed(held_milliwatts=MilliwattsPerGpu(100_000))], targets, 1051, 50)
    assert (down.gpus[0].above_since_ns, down.gpus[0].stays_above) == (None, False)


@pytest.mark.parametrize(("keeps_limits", "may"), [(True, True), (False, False)])
def test_nothing_is_acknowledged_while_a_gpu_may_hold_anything(keeps_limits: bool, may: bool) -> None:
    failed = gpu("a", usable=False, failure=GpuFailure("Lost", "it is gone", keeps_limits))
    judgement = judge([failed, gpu("b", 100_000)], {}, 0, 50)
    assert (judgement.settling, judgement.may_acknowledge) == (False, may)


VERSION, SESSION = GrantVersion(1, 2), DriverSession("boot-1", "1.0")


@pytest.mark.parametrize(
    ("acknowledged", "total", "may_acknowledge", "due"),
    [
        (None, 500, True, True),
        (None, 500, False, False),
        ((VERSION, SESSION, 500), 500, True, False),  # no news
        ((VERSION, SESSION, 500), 400, True, True),  # less is held
        ((VERSION, SESSION, 500), 400, False, False),
        ((VERSION, SESSION, 500), 600, False, True),  # more is held: published at once
        ((GrantVersion(1, 1), SESSION, 500), 600, False, False),  # of another grant: once it is in force
        ((GrantVersion(1, 1), SESSION, 500), 500, True, True),
        ((VERSION, DriverSession("boot-1", "1.1"), 500), 500, True, True),
        ((VERSION, SESSION, 500, 900), 500, True, True),  # a brake has lowered what may come
        ((VERSION, SESSION, 500, 900), 500, False, False),
        ((VERSION, SESSION, 500, None), 500, True, True),  # brakes are followed from now on
    ],
)
def test_what_is_acknowledged_when(
    acknowledged: tuple[Any, ...] | None, total: int, may_acknowledge: bool, due: bool
) -> None:
    bound, last = NodeMilliwatts(800), None
    if acknowledged is not None:
        version, session, milliwatts, before = (*acknowledged, bound)[:4]
        epoch, generation = version
        last = Acknowledgement(
            epoch, generation, NodeMilliwatts(milliwatts), session.boot_id, session.driver_load, bound_milliwatts=before
        )
    assert acknowledgement_due(last, VERSION, SESSION, NodeMilliwatts(total), bound, may_acknowledge) is due


MILLIWATTS = st.integers(100_000, 400_000)
LOW_OR_ANY = st.just(100_000) | MILLIWATTS
RARELY = st.sampled_from([False, False, False, True])


@settings(max_examples=examples(500))
@given(
    st.lists(st.tuples(LOW_OR_ANY, MILLIWATTS, RARELY, RARELY), min_size=1, max_size=8),
    st.floats(0, 1.2),
    st.lists(st.sampled_from(["done", "done", "lie", "late"]), min_size=16, max_size=16),
    st.randoms(use_true_random=False),
)
def test_no_order_of_sets_and_no_lie_passes_the_larger_of_grant_and_before(
    rows: list[tuple[int, int, bool, bool]], grant_share: float, outcomes: list[str], random: Random
) -> None:
    """Sets of one round in any order, each done, ignored, or enforced late: the true total stays within the bound."""
    requested = {f"g{i}": row[0] for i, row in enumerate(rows)}
    enforced = dict(requested)
    usable = {f"g{i}": not row[2] for i, row in enumerate(rows)}
    pods = {f"g{i}": () if row[3] else (PodName("research", f"p-{i}"),) for i, row in enumerate(rows)}

    def read() -> list[GpuState]:
        return [
            gpu(name, max(requested[name], enforced[name]), requested=requested[name], usable=ok, pods=pods[name])
            for name, ok in usable.items()
        ]

    jobs = tuple(job(i, row[1]) for i, row in enumerate(rows))
    targets = targets_of(grant(jobs=jobs), read(), Mode.GRANTED)
    granted = NodeMilliwatts(round(grant_share * sum(target.limit_milliwatts or 0 for target in targets.values())))
    bound = max(granted, total_held_milliwatts(read()))
    outcome = iter(outcomes)
    decisions: tuple[Callable[[], list[SetLimit]], ...] = (
        lambda: limit_cuts(read(), targets),
        lambda: limit_raises(read(), targets, granted),
    )
    for decide in decisions:
        sets = decide()
        random.shuffle(sets)
        for change in sets:
            what = next(outcome)
            if what == "lie":
                continue
            requested[change.uuid] = change.new_milliwatts
            if what == "done":
                enforced[change.uuid] = change.new_milliwatts
            true_total = sum(max(requested[name], enforced[name]) for name in requested)
            assert true_total <= bound
    if all(what == "done" for what in outcomes):
        wanted = {name: target.limit_milliwatts or 0 for name, target in targets.items()}
        below = [name for name, ok in usable.items() if ok and requested[name] < wanted[name]]
        room = granted - sum(requested.values())
        assert not below or room <= 0  # nothing is held back that the grant would allow


WHOLE_WATTS = st.integers(100, 400).map(lambda watts: watts * 1000)
# What a driver enforces above the limit that it was asked for, as long as it lives.
ABOVE_REQUESTED = st.sampled_from([0, 0, 0, 300, 5_000, 30_000])


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(MILLIWATTS, WHOLE_WATTS, ABOVE_REQUESTED), min_size=1, max_size=8), st.floats(0, 1.2))
def test_raises_give_all_that_is_granted_and_no_more_whatever_drivers_enforce_above_what_they_are_asked_for(
    rows: list[tuple[int, int, int]], grant_share: float
) -> None:
    requested = [row[0] for row in rows]
    above = [row[2] for row in rows]
    targets = {f"g{i}": Target(f"g{i}", TargetPurpose.JOB, MilliwattsPerGpu(row[1])) for i, row in enumerate(rows)}
    granted = NodeMilliwatts(round(grant_share * sum(row[1] for row in rows)))

    def read() -> list[GpuState]:
        return [gpu(f"g{i}", milliwatts + above[i], requested=milliwatts) for i, milliwatts in enumerate(requested)]

    before = total_held_milliwatts(read())
    for change in limit_raises(read(), targets, granted):
        requested[int(change.uuid[1:])] = change.new_milliwatts
    after = total_held_milliwatts(read())
    assert after <= max(granted, before)
    if granted - after >= 1000:  # limits are set in whole watts
        assert all(milliwatts >= row[1] for milliwatts, row in zip(requested, rows, strict=True))
