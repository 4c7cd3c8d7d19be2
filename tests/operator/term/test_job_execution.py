"""What is written for jobs: never more of a kind at once than there is room for, and each job's one after the other."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from flyball_api.energy_aware_job import EnergyAwareJob, PlanSource
from flyball_operator.cluster.outcome import DONE, WriteResult
from flyball_operator.jobs.pipeline_plans import PlanMaking, PlanPipeline
from flyball_operator.jobs.pipeline_points import PointChange
from flyball_operator.jobs.runs.lifecycle import CreateIncarnation, StopIncarnation
from flyball_operator.jobs.steps.step import JobAction, JobsStep
from flyball_operator.power.cycle import PowerInstructions
from flyball_operator.report.reporter import Reporter
from flyball_operator.term.job_execution import CREATES_AT_ONCE, PLANS_AT_ONCE, POINTS_AT_ONCE, JobExecution
from flyball_operator.writes.background import Background

from tests.support.operator_objects import NOW, incarnation_view, job_view

NO_INSTRUCTIONS = PowerInstructions()


class Writes:
    """In the executor's place: takes everything, in order, and answers once `answer` is set."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.answer = asyncio.Event()
        self.error: BaseException | None = None

    async def _made(self, kind: str, name: str) -> WriteResult:
        self.made.append(f"{kind} {name}")
        await self.answer.wait()
        if self.error is not None:
            raise self.error
        return DONE

    async def create_incarnation(self, job: EnergyAwareJob, number: int, nodes: object) -> WriteResult:
        return await self._made("create", job.name)

    async def stop_incarnation(self, action: StopIncarnation) -> WriteResult:
        return await self._made("stop", action.incarnation.job_uid)

    async def check_template(self, job: EnergyAwareJob) -> WriteResult:
        return await self._made("check", job.name)

    async def write_point(self, change: PointChange) -> WriteResult:
        return await self._made("point", change.job.name)

    async def create_pipeline_plan(self, plan: PlanPipeline, document: str) -> WriteResult:
        return await self._made("put-plan", plan.job.name)

    async def delete_job(self, job: EnergyAwareJob) -> WriteResult:
        return await self._made("delete", job.name)

    def count(self, kind: str) -> int:
        return sum(write.startswith(f"{kind} ") for write in self.made)


class Planner:
    """In the planner service's place: a plan is there once `made` is set."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.made = asyncio.Event()

    async def plan(self, plan: PlanPipeline) -> str:
        self.asked.append(plan.job.name)
        await self.made.wait()
        return "{}"


class Controller:
    """In the job controller's place: remembers what it is answered."""

    def __init__(self) -> None:
        self.made: list[PlanMaking] = []
        self.checked_uids: list[str] = []

    def answered(self, *arguments: object) -> None: ...

    def checked(self, job: EnergyAwareJob, result: WriteResult) -> None:
        self.checked_uids.append(job.uid)

    def plan_ended(self, plan: PlanPipeline, making: PlanMaking, now: object) -> None:
        self.made.append(making)


class Bench:
    """What executes a job controller's steps, over an API server that answers when it is asked to."""

    def __init__(self) -> None:
        self.writes, self.planner, self.controller = Writes(), Planner(), Controller()
        self.background = Background(lambda: None)
        self.kept: set[str] = set()  # uids of the ended jobs whose runs are stored
        doubles: Any = self
        self.execution = JobExecution(
            doubles.controller,
            doubles,
            doubles.writes,
            Reporter(doubles.writes, None),
            self.background,
            lambda: NOW,
            doubles.planner,
        )

    def is_kept(self, job: EnergyAwareJob) -> bool:
        return job.uid in self.kept

    async def start(self, **step: Any) -> None:
        """Execute one step; what it has started has begun when this returns."""
        jobs = JobsStep(
            **{"jobs": {}, "actions": (), "gates": (), "statuses": (), "late_energy": (), "expired": (), **step}
        )
        self.execution.start(jobs, NO_INSTRUCTIONS, {})
        self.execution.start_statuses(jobs, cutting=False)
        for _ in range(3):
            await asyncio.sleep(0)

    async def settle(self) -> None:
        """Have everything answered that is under way, and wait for its end."""
        self.writes.answer.set()
        self.planner.made.set()
        await asyncio.gather(*self.background._tasks.values())
        await asyncio.sleep(0)
        self.writes.answer.clear()
        self.planner.made.clear()


def jobs(count: int) -> list[EnergyAwareJob]:
    return [job_view(f"job-{index}", uid=f"uid-{index}") for index in range(count)]


def create(job: EnergyAwareJob) -> JobAction:
    return JobAction(job, CreateIncarnation(job.uid, 1, (("a", 1),)))


def plan_of(job: EnergyAwareJob) -> PlanPipeline:
    return PlanPipeline(job, PlanSource(config_map=f"plan-of-{job.name}"), 8, "stage,...", 80.0, "digest")


async def test_few_jobs_are_made_at_once_and_the_next_ones_as_those_are_there() -> None:
    bench = Bench()
    wanted = [create(job) for job in jobs(3 * CREATES_AT_ONCE)]
    await bench.start(actions=wanted)
    await bench.start(actions=wanted)
    assert bench.writes.count("create") == CREATES_AT_ONCE
    await bench.settle()
    await bench.start(actions=wanted[CREATES_AT_ONCE:])
    assert bench.writes.count("create") == 2 * CREATES_AT_ONCE
    await bench.settle()


async def test_no_stop_waits_for_jobs_that_are_being_made() -> None:
    bench = Bench()
    leaving = job_view("leaves", uid="uid-leaves")
    stop = JobAction(leaving, StopIncarnation(incarnation_view(leaving.uid, 1, ("a", 1)), "preempted"))
    await bench.start(actions=[*(create(job) for job in jobs(2 * CREATES_AT_ONCE)), stop])
    assert bench.writes.count("stop") == 1
    await bench.settle()


@pytest.mark.parametrize("error", [RuntimeError("a defect"), asyncio.CancelledError()])
async def test_a_job_that_could_not_be_made_keeps_no_other_from_it(error: BaseException) -> None:
    bench = Bench()
    bench.writes.error = error
    wanted = [create(job) for job in jobs(2 * CREATES_AT_ONCE)]
    await bench.start(actions=wanted)
    bench.writes.answer.set()
    await asyncio.gather(*bench.background._tasks.values(), return_exceptions=True)
    bench.writes.error = None
    await bench.start(actions=wanted[CREATES_AT_ONCE:])
    assert bench.writes.count("create") == 2 * CREATES_AT_ONCE
    await bench.settle()


async def test_few_templates_are_checked_at_once_and_none_twice() -> None:
    bench = Bench()
    wanted = jobs(3 * CREATES_AT_ONCE)
    for _ in range(2):
        await bench.start(checks=wanted)
    assert bench.writes.count("check") == len(set(bench.writes.made)) == CREATES_AT_ONCE
    await bench.settle()
    assert bench.controller.checked_uids == [job.uid for job in wanted[:CREATES_AT_ONCE]]


async def test_few_pipelines_are_given_another_point_at_once_and_none_twice() -> None:
    """A cut changes the points of all of them."""
    bench = Bench()
    wanted = [PointChange(job, (), "{}") for job in jobs(3 * POINTS_AT_ONCE)]
    for _ in range(2):
        await bench.start(points=wanted)
    assert bench.writes.count("point") == len(set(bench.writes.made)) == POINTS_AT_ONCE
    await bench.settle()


async def test_few_plans_of_pipelines_are_asked_for_at_once_and_none_twice() -> None:
    bench = Bench()
    wanted = [plan_of(job) for job in jobs(3 * PLANS_AT_ONCE)]
    for _ in range(2):
        await bench.start(plans=wanted)
    assert bench.planner.asked == [plan.job.name for plan in wanted[:PLANS_AT_ONCE]]
    await bench.settle()
    assert [making.made for making in bench.controller.made] == [True] * PLANS_AT_ONCE


async def test_an_ended_run_is_not_removed_before_its_profile_has_it() -> None:
    bench = Bench()
    ended = SimpleNamespace(uid="uid-ended", name="ended")
    await bench.start(expired=[ended])
    assert bench.writes.made == []
    bench.kept.add("uid-ended")
    await bench.start(expired=[ended])
    await bench.start(expired=[ended])
    assert bench.writes.made == ["delete ended"]
    await bench.settle()
