"""Plans that come into force: what has not changed is known by its identity, and thousands that wait are one line."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from flyball_operator.planning.plans import Plans
from flyball_operator.report.metrics import OperatorMetrics
from flyball_planner.snapshot import Admission, ClusterSnapshot, JobDecision, Plan, PlanningFailure, Queue

from tests.support.operator_objects import NOW, decision, job_view

NAMES = [f"job-{index:03d}" for index in range(300)]
JOBS = {name: job_view(name, uid=name) for name in NAMES}
EMPTY = ClusterSnapshot((), ())


class Planner:
    """Gives the plan that it is told to."""

    def __init__(self) -> None:
        self.failures: tuple[PlanningFailure, ...] = ()
        self.decisions = tuple(JobDecision(name, None, Admission.WAITING_FOR_GPUS, "all are taken") for name in NAMES)

    async def plan(self, snapshot: ClusterSnapshot, policy: str) -> Plan:
        return Plan(tuple(replace(each) for each in self.decisions), queue=Queue(tuple(NAMES)), failures=self.failures)


async def taken(plans: Plans, monotonic: float) -> dict[str, JobDecision]:
    """What is in force once the next plan has been made and taken."""
    plans.start(lambda timeless: EMPTY, NOW, monotonic)
    await asyncio.sleep(0)
    plans.take(JOBS, monotonic + 1.0)
    return dict(plans.in_force.decisions)


async def test_decisions_that_are_the_same_stay_the_same_objects(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    planner = Planner()
    plans = Plans(planner, "powerflow-strict", 10.0, 1, lambda: None, OperatorMetrics())
    first = await taken(plans, 0.0)
    assert len(first) == len(NAMES)
    assert len(caplog.records) <= 3, "no line for each job that waits"
    assert "WaitingForGpus" in caplog.text
    caplog.clear()
    runs, waits = NAMES[3], NAMES[5]
    planner.decisions = tuple(
        decision(runs, ("a", 4))
        if each.uid == runs
        else replace(each, explanation="others have them")
        if each.uid == waits
        else each
        for each in planner.decisions
    )
    second = await taken(plans, 100.0)
    assert [name for name in NAMES if second[name] is not first[name]] == [runs, waits]
    assert second[waits].explanation == "others have them"
    assert [f"team/{runs}" in line for line in caplog.text.splitlines()] == [True]
    caplog.clear()
    third = await taken(plans, 200.0)
    assert all(third[name] is second[name] for name in NAMES)
    assert caplog.text == ""


async def test_a_job_that_is_gone_by_the_time_that_its_plan_is_there_has_no_decision() -> None:
    """Its GPUs would be held for it until the next plan, and what it is called is not known any more."""
    plans = Plans(Planner(), "powerflow-strict", 10.0, 1, lambda: None, OperatorMetrics())
    plans.start(lambda timeless: EMPTY, NOW, 0.0)
    await asyncio.sleep(0)
    plans.take({name: JOBS[name] for name in NAMES[1:]}, 1.0)
    assert sorted(plans.in_force.decisions) == NAMES[1:]


async def test_no_plan_is_in_force_before_the_first_one_is_there() -> None:
    plans = Plans(Planner(), "powerflow-strict", 10.0, 1, lambda: None, OperatorMetrics())
    plans.start(lambda timeless: EMPTY, NOW, 0.0)
    plans.take(JOBS, 0.0)
    assert not plans.in_force.made
    await taken(plans, 0.0)
    assert plans.in_force.made


async def test_after_a_slow_plan_the_next_one_waits_and_a_quick_one_is_followed_at_once() -> None:
    plans = Plans(Planner(), "powerflow-strict", 10.0, 1, lambda: None, OperatorMetrics())
    begun: list[float] = []

    async def made(at: float, seconds: float) -> bool:
        """Whether a plan is begun at a time; it takes so many seconds."""

        def snapshot(*, timeless: bool) -> ClusterSnapshot:
            begun.append(at)
            return replace(EMPTY, restart_seconds=at)  # what plans depend on is another each time

        before = len(begun)
        plans.start(snapshot, NOW, at)
        await asyncio.sleep(0)
        plans.take(JOBS, at + seconds)
        return len(begun) > before

    assert await made(0.0, 0.4)
    assert plans.next_seconds(0.4) == float("inf")
    assert await made(0.4, 1.6)  # until 2.0: two thirds of what it took are left to others
    assert not await made(2.5, 0.1)
    assert plans.next_seconds(2.5) == pytest.approx(0.6)
    assert await made(3.1, 20.0)
    assert plans.next_seconds(23.1) == pytest.approx(2.0)
    assert not await made(25.0, 0.1)
    assert await made(25.1, 0.1)


async def test_the_first_plan_is_said_once_though_there_is_nothing_to_plan(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    planner = Planner()
    planner.decisions = ()
    plans = Plans(planner, "powerflow-strict", 10.0, 1, lambda: None, OperatorMetrics())
    for round_ in range(3):
        assert await taken(plans, 100.0 * round_) == {}
    assert ["first plan" in line for line in caplog.text.splitlines()] == [True]


async def test_jobs_that_planning_fails_with_are_named_once_and_each_plan_around_them_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    planner, metrics = Planner(), OperatorMetrics()
    plans = Plans(planner, "powerflow-strict", 10.0, 1, lambda: None, metrics)
    planner.failures = (PlanningFailure(NAMES[7], "ZeroDivisionError: of a batch without a size"),)
    for turn in range(1, 4):
        await taken(plans, 100.0 * turn)
        assert metrics.registry.get_sample_value("flyball_plan_failures_total") == turn
    named = [record.getMessage() for record in caplog.records if "planning fails" in record.getMessage()]
    assert len(named) == 1
    assert f"team/{NAMES[7]}" in named[0]
    assert "ZeroDivisionError: of a batch without a size" in named[0]
    planner.failures = ()
    await taken(plans, 1000.0)
    assert metrics.registry.get_sample_value("flyball_plan_failures_total") == 3
