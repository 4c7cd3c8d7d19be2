"""Planning fails with some of the jobs: it's made around these, whichever they are, and everybody else has a plan."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

import pytest
from flyball_planner.models.gpu import gpu_model_for
from flyball_planner.models.priors import model_class_prior
from flyball_planner.planner import plan
from flyball_planner.planning_around import MOST_CHARACTERS, MOST_FAILURES, holding, plan_around
from flyball_planner.snapshot import (
    Admission,
    Allocation,
    CapConstraint,
    ClusterSnapshot,
    JobState,
    NodeState,
    Plan,
    PlanningFailure,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.support.plans import in_force

A100 = gpu_model_for("NVIDIA-A100-SXM4-40GB")
assert A100 is not None


def job(name: str, gpus: int = 1) -> JobState:
    assert A100 is not None
    return JobState(
        uid=name,
        name=f"team/{name}",
        gpus_min=gpus,
        gpus_max=gpus,
        global_batch_size=256,
        model=model_class_prior("vgg16", A100),
        submit_time_seconds=0.0,
        remaining_iterations=1e6,
    )


def cluster(jobs: int, nodes: int = 4) -> ClusterSnapshot:
    assert A100 is not None
    return ClusterSnapshot(
        tuple(NodeState(f"n{index}", A100, 4) for index in range(nodes)),
        tuple(job(f"{index}") for index in range(jobs)),
        (CapConstraint("all", frozenset(f"n{index}" for index in range(nodes)), 400.0 * 4 * nodes),),
    )


class Maker:
    """The real planner, which fails with any jobs that `fails` says, and counts how often it is asked."""

    def __init__(self, fails: Callable[[Collection[str]], bool]) -> None:
        self._fails = fails
        self.asked = 0

    def __call__(self, snapshot: ClusterSnapshot, policy: str) -> Plan:
        self.asked += 1
        if self._fails({job.uid for job in snapshot.jobs}):
            raise ZeroDivisionError("of a batch without a size")
        return plan(snapshot, policy)

    def asked_less_often_than(self, times: int) -> bool:
        return self.asked < times


def failing(*uids: str) -> Maker:
    return Maker(lambda present: any(uid in present for uid in uids))


def test_where_nothing_fails_it_is_the_plan_itself() -> None:
    case, maker = cluster(5), failing()
    assert plan_around(case, make=maker) == plan(case)
    assert maker.asked == 1


@given(st.integers(1, 40), st.data())
def test_any_few_jobs_cost_nobody_else_a_plan(jobs: int, data: st.DataObject) -> None:
    uids = [str(index) for index in range(jobs)]
    odd = data.draw(st.sets(st.sampled_from(uids), max_size=min(jobs, 3)))
    case, maker = cluster(jobs), failing(*odd)
    made = plan_around(case, make=maker)
    assert {failure.uid for failure in made.failures} == odd
    assert [decision.uid for decision in made.decisions] == uids
    others = plan(replace(case, jobs=tuple(each for each in case.jobs if each.uid not in odd)))
    assert [each for each in made.decisions if each.uid not in odd] == list(others.decisions)
    assert maker.asked <= 2 + len(odd) * (3 + math.ceil(math.log2(max(2, jobs))))


@given(st.integers(1, 40), st.data())
def test_whoever_is_suspected_the_same_jobs_cost_nobody_else_a_plan(jobs: int, data: st.DataObject) -> None:
    uids = [str(index) for index in range(jobs)]
    odd = data.draw(st.sets(st.sampled_from(uids), max_size=min(jobs, 3)))
    suspects = data.draw(st.sets(st.sampled_from([*uids, "gone"]), max_size=4))
    case, maker = cluster(jobs), failing(*odd)
    made = plan_around(case, make=maker, suspects=suspects)
    assert replace(made, failures=()) == replace(plan_around(case, make=failing(*odd)), failures=())
    assert {failure.uid for failure in made.failures} == odd
    if odd <= suspects:
        assert maker.asked <= 2 + len(suspects)


def test_those_that_it_failed_with_last_are_found_again_by_one_plan_more() -> None:
    """Tens of them at each plan of a large cluster would make all of them late, for as long as one odd job is there."""
    maker = failing("77")
    made = plan_around(cluster(100), make=maker, suspects=["77"])
    assert [failure.uid for failure in made.failures] == ["77"]
    assert maker.asked == 2


def test_where_time_is_over_the_suspects_are_left_out() -> None:
    maker = failing("3")
    made = plan_around(cluster(6), make=maker, may_go_on=partial(maker.asked_less_often_than, 2), suspects=["1", "3"])
    assert [failure.uid for failure in made.failures] == ["1", "3"]
    assert maker.asked == 2


def test_one_that_waits_is_told_what_planning_raised() -> None:
    made = plan_around(cluster(6), make=failing("2"))
    assert made.failures == (PlanningFailure("2", "ZeroDivisionError: of a batch without a size"),)
    decision = made.decision("2")
    assert decision is not None
    assert (decision.allocation, decision.admission) == (None, Admission.PLANNING_FAILED)
    assert "ZeroDivisionError: of a batch without a size" in decision.explanation
    assert "2" not in made.queue.order


@pytest.mark.parametrize(("budget_watts", "limit_watts"), [(8 * 150.0, 331.0), (8 * 125.0, 100.0), (8 * 90.0, 100.0)])
def test_one_that_runs_keeps_what_it_has_and_its_gpus_and_watts_are_nobody_elses(
    budget_watts: float, limit_watts: float
) -> None:
    """All others want every GPU that there is; the smallest limit is 100 W, and lowered it is where the cap needs that."""
    before = cluster(1, nodes=2)
    running = in_force(before, plan(before)).jobs[0]
    assert running.current is not None
    assert running.current.power_limit_watts == 331.0
    others = tuple(replace(job(f"other-{index}", 2), gpus_max=8) for index in range(4))
    cap = replace(before.caps[0], budget_watts=budget_watts)
    case = replace(before, jobs=(running, *others), caps=(cap,))
    made = plan_around(case, make=failing(running.uid))
    kept = made.decision(running.uid)
    assert kept is not None
    assert kept.allocation == replace(running.current, power_limit_watts=limit_watts)
    assert kept.admission is Admission.ADMITTED
    assert kept.predicted_gpu_watts == limit_watts
    assert "keeps its GPUs" in kept.explanation
    used: Counter[str] = Counter()
    watts = 0.0
    for decision in made.decisions:
        for name, gpus in () if decision.allocation is None else decision.allocation.nodes:
            used[name] += gpus
            watts += gpus * (0.0 if decision.allocation is None else decision.allocation.power_limit_watts)
    assert max(used.values()) <= 4
    (outcome,) = made.caps
    assert outcome.committed_watts == pytest.approx(watts + (8 - used.total()) * 100.0)
    assert outcome.feasible == (budget_watts >= 800.0)
    assert outcome.committed_watts <= max(budget_watts, 800.0)


@pytest.mark.parametrize("node", ["n0", "elsewhere"])
def test_one_of_which_no_status_says_its_limits_and_clock_has_the_smallest_limits_at_any_clock(node: str) -> None:
    """As after a change of leaders. At 0 MHz no grant of its node could be made, and at 0 W it would count for nothing."""
    case = cluster(1, nodes=1)
    case = replace(case, jobs=(replace(case.jobs[0], current=Allocation(((node, 4),), 0, 0.0)),))
    made = plan_around(case, make=failing("0"))
    (decision,) = made.decisions
    assert decision.allocation == Allocation(((node, 4),), 1410, 100.0)
    assert decision.predicted_gpu_watts == 100.0
    assert holding(case, ()).nodes[0].foreign_power_limit_watts == (100.0 if node == "n0" else 0.0)


def test_where_a_cap_cannot_be_held_and_time_is_over_there_is_a_plan_all_the_same() -> None:
    before = cluster(2, nodes=1)
    running = replace(before.jobs[0], current=Allocation((("n0", 1),), 1410, 331.0))
    cap = replace(before.caps[0], budget_watts=500.0)
    case, maker = replace(before, jobs=(running, before.jobs[1]), caps=(cap,)), failing("0")
    full = Maker(lambda present: "0" in present)
    plan_around(case, make=full)
    made = plan_around(case, make=maker, may_go_on=partial(maker.asked_less_often_than, full.asked - 1))
    assert maker.asked == full.asked - 1
    assert [failure.uid for failure in made.failures] == ["0"]
    kept = made.decision("0")
    assert kept is not None
    assert kept.allocation == replace(running.current, power_limit_watts=100.0)


def test_of_two_that_it_takes_together_the_one_that_runs_keeps_what_it_has() -> None:
    """Which is the odd one nothing says: one that runs loses nothing by being left out."""
    case = cluster(12)
    running = replace(case.jobs[9], current=Allocation((("n0", 1),), 1410, 250.0))
    case = replace(case, jobs=(*case.jobs[:9], running, *case.jobs[10:]))
    for together in ({"3", "9"}, {"9", "11"}):
        made = plan_around(case, make=Maker(together.issubset))
        assert [failure.uid for failure in made.failures] == ["9"]


def test_of_two_that_wait_the_later_one_goes_on_waiting() -> None:
    made = plan_around(cluster(12), make=Maker({"3", "7"}.issubset))
    assert [failure.uid for failure in made.failures] == ["7"]


@given(st.integers(0, 2**32))
def test_whatever_company_planning_fails_with_a_plan_or_the_error_comes_of_it(seed: int) -> None:
    """What fails with a set of jobs and works with a larger one is searched for, too, and the search ends."""
    maker = Maker(lambda present: bool(present) and random.Random(f"{seed} {sorted(present)}").random() < 0.5)
    case = cluster(9)
    try:
        made = plan_around(case, make=maker)
    except ZeroDivisionError:
        return
    assert [decision.uid for decision in made.decisions] == [each.uid for each in case.jobs]
    assert len(made.failures) <= MOST_FAILURES


def test_what_fails_without_any_job_is_raised() -> None:
    maker = Maker(lambda present: True)
    with pytest.raises(ZeroDivisionError):
        plan_around(cluster(6), make=maker)
    assert maker.asked == 2
    with pytest.raises(ValueError, match="unheard-of"):
        plan_around(cluster(6), "unheard-of")


def test_more_than_a_few_are_no_matter_of_jobs() -> None:
    many = [str(index) for index in range(MOST_FAILURES + 1)]
    with pytest.raises(ZeroDivisionError):
        plan_around(cluster(20), make=failing(*many))
    assert len(plan_around(cluster(20), make=failing(*many[1:])).failures) == MOST_FAILURES


def test_a_search_ends_where_it_may_not_go_on() -> None:
    for allowed in range(1, 9):
        maker = failing("7")
        with pytest.raises(ZeroDivisionError):
            plan_around(cluster(64), make=maker, may_go_on=partial(maker.asked_less_often_than, allowed))
        assert maker.asked == allowed


def test_of_an_error_without_end_its_beginning_is_told() -> None:
    def make(snapshot: ClusterSnapshot, policy: str) -> Plan:
        if snapshot.jobs:
            raise ValueError("9" * 100_000)
        return plan(snapshot, policy)

    (failure,) = plan_around(cluster(1), make=make).failures
    assert failure.error.startswith("ValueError: 999")
    assert failure.error.endswith("999...")
    assert len(failure.error) == MOST_CHARACTERS


def test_what_others_hold_counts_at_its_limits_with_what_foreign_pods_hold() -> None:
    assert A100 is not None
    case = cluster(3)
    nodes = (replace(case.nodes[0], foreign_gpus=1, foreign_power_limit_watts=400.0), *case.nodes[1:])
    held = tuple(
        replace(each, current=Allocation((("n0", 1), ("n1", 2)), 1410, watts))
        for each, watts in zip(case.jobs[:2], (100.0, 250.0), strict=True)
    )
    found = holding(replace(case, nodes=nodes, jobs=(*held, case.jobs[2])), case.jobs[2:])
    assert [(node.foreign_gpus, node.foreign_power_limit_watts) for node in found.nodes] == [
        (3, 250.0),
        (4, 175.0),
        (0, 0.0),
        (0, 0.0),
    ]
    assert found.jobs == case.jobs[2:]
