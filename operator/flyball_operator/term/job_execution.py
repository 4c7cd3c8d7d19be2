"""Executes what the job controller decides: each job's steps in the background, and behind them what is said of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from typing import Any

from flyball_operator.cluster.outcome import DONE, WriteResult, combined
from flyball_operator.jobs.controller import JobController
from flyball_operator.jobs.pipeline_plans import PlanMaking, PlanPipeline
from flyball_operator.jobs.runs.lifecycle import CreateIncarnation
from flyball_operator.jobs.status_lanes import Lane
from flyball_operator.jobs.steps.step import JobAction, JobsStep
from flyball_operator.learning.recurrences import Recurrences
from flyball_operator.planning.pipeline_planner import NoPlan, PipelinePlanner
from flyball_operator.power.cycle import PowerInstructions
from flyball_operator.power.nodes.info import NodeInfo
from flyball_operator.report.reporter import Reporter
from flyball_operator.writes.background import Background
from flyball_operator.writes.job_actions import take_action
from flyball_operator.writes.job_writes import JobWrites
from flyball_operator.writes.slots import PacedSlots

# Figures are worth less than steps: few of their writes at a time, so that they never crowd out the others; and what
# happens to a job, which its next step may wait for, has room of its own beside them. A cut gives every job another clock
# at once: one that starts or ends meanwhile is not behind all of those. Thousands that are told that they wait make an API
# server slower for everybody, the renewal of our own Lease included: they are told as it bears it.
NEWS_AT_ONCE, WAITING_AT_ONCE, POWER_AT_ONCE, FIGURES_AT_ONCE = 16, 12, 8, 4
# What one job is denied (a quota, a policy) others are denied too: learned from a few, not from all of them.
CREATES_AT_ONCE = 16
# A cut changes the points of every pipeline, and no other write may queue behind them.
POINTS_AT_ONCE = 16
# The planner service makes a few at a time; the rest is asked for when these are there.
PLANS_AT_ONCE = 4


class JobExecution:
    """Starts the writes of one leader's job controller: one step of each job at a time, statuses in lanes of their own."""

    def __init__(
        self,
        jobs: JobController,
        recurrences: Recurrences,
        executor: JobWrites,
        reporter: Reporter,
        background: Background,
        wall_clock: Callable[[], datetime],
        pipeline_planner: PipelinePlanner,
    ) -> None:
        self._jobs = jobs
        self._recurrences = recurrences
        self._executor = executor
        self._reporter = reporter
        self._background = background
        self._wall_clock = wall_clock
        self._pipeline_planner = pipeline_planner
        self._creating: set[str] = set()  # uids of jobs whose next incarnation is being made
        self._statuses_may_write = asyncio.Event()
        self.status_slots: dict[Lane, asyncio.Semaphore | PacedSlots] = {
            Lane.NEWS: asyncio.Semaphore(NEWS_AT_ONCE),
            Lane.WAITING: PacedSlots(WAITING_AT_ONCE),
            Lane.POWER: PacedSlots(POWER_AT_ONCE),
            Lane.FIGURES: asyncio.Semaphore(FIGURES_AT_ONCE),
        }

    def start(self, jobs: JobsStep, instructions: PowerInstructions, nodes: Mapping[str, NodeInfo]) -> None:
        """Start one safe step for each job, the checks of new templates, and the writes of pipelines' points."""
        self._start_actions(jobs, instructions, nodes)
        self._start_checks(jobs)
        self._write_points(jobs)
        self._make_plans(jobs)

    def _start_actions(self, jobs: JobsStep, instructions: PowerInstructions, nodes: Mapping[str, NodeInfo]) -> None:
        hostnames = {name: info.node.hostname for name, info in nodes.items() if info.node is not None}

        async def take(uid: str, actions: list[JobAction]) -> WriteResult:
            results = []
            try:
                for item in actions:
                    results.append(await take_action(self._executor, item, hostnames))
                    self._jobs.answered(item, results[-1], self._wall_clock())
            finally:
                self._creating.discard(uid)
            return combined(results)

        for uid, actions in jobs.actions_of(instructions.is_reserved, instructions.held_up).items():
            creates = any(isinstance(item.action, CreateIncarnation) for item in actions)
            if self._background.busy(("job", uid)) or (creates and len(self._creating) >= CREATES_AT_ONCE):
                continue
            if creates:
                self._creating.add(uid)
            self._background.start(("job", uid), take(uid, actions))

    def _start_checks(self, jobs: JobsStep) -> None:
        """Have the API server check new templates, so that a mistake shows before there are GPUs for the job."""
        background = self._background
        room = CREATES_AT_ONCE - background.under_way("check")
        for job in jobs.checks:
            if room > 0 and not background.busy(("check", job.uid)):
                room -= 1
                background.start(
                    ("check", job.uid),
                    self._executor.check_template(job),
                    lambda result, job=job: self._jobs.checked(job, result),  # type: ignore[misc]
                )

    def _write_points(self, jobs: JobsStep) -> None:
        """Write to pods the points that their pipelines are to run at; what has no room now is due again soon."""
        background = self._background
        room = POINTS_AT_ONCE - background.under_way("point")
        for change in jobs.points:
            if room > 0 and not background.busy(("point", change.job.uid)):
                room -= 1
                background.start(("point", change.job.uid), self._executor.write_point(change))

    def _make_plans(self, jobs: JobsStep) -> None:
        """Have plans made of what jobs have measured of their pipelines, by another process, which may take its time."""
        background = self._background
        room = PLANS_AT_ONCE - background.under_way("pipeline-plan")
        for plan in jobs.plans:
            if room > 0 and not background.busy(("pipeline-plan", plan.job.uid)):
                room -= 1
                background.start(("pipeline-plan", plan.job.uid), self._make_plan(plan))

    async def _make_plan(self, plan: PlanPipeline) -> WriteResult:
        where = f"ConfigMap {plan.source.config_map}"
        try:
            result = await self._executor.create_pipeline_plan(plan, await self._pipeline_planner.plan(plan))
        except NoPlan as error:
            self._jobs.plan_ended(plan, PlanMaking(str(error), final=error.final), self._wall_clock())
            return DONE  # the next try is not due yet
        if result.done:
            message = f"{where} has the plan of what was measured; the next start trains by it"
            making = PlanMaking(message, made=True)
        elif result.conflict:
            message = f"{where} is there already, and is not overwritten: delete it to have another plan made"
            making = PlanMaking(message)
        else:
            making = PlanMaking(f"{where} cannot be made: {result.message or 'no answer'}", final=False)
        self._jobs.plan_ended(plan, making, self._wall_clock())
        return DONE

    def start_statuses(self, jobs: JobsStep, *, cutting: bool) -> None:
        """Start the writes of statuses, and of what goes behind them; none begins while caps are `cutting`."""
        (self._statuses_may_write.clear if cutting else self._statuses_may_write.set)()

        async def in_turn(
            write: Coroutine[Any, Any, WriteResult], slots: asyncio.Semaphore | PacedSlots
        ) -> WriteResult:
            try:
                async with slots:
                    await self._statuses_may_write.wait()  # those that queued up before a cap fell wait for it too
                    if isinstance(slots, PacedSlots):
                        slots.begin()
                    return await write
            finally:
                write.close()

        background, slots_of = self._background, self.status_slots
        news, figures = slots_of[Lane.NEWS], slots_of[Lane.FIGURES]
        for live, status in jobs.statuses:
            slots = slots_of[jobs.lanes.get(live.view.uid, Lane.NEWS)]
            background.start(("status", live.view.uid), in_turn(self._reporter.write_job(live, status), slots))
        for quota, written in jobs.quota_statuses:
            background.start(("quota", quota.uid), in_turn(self._reporter.write_quota(quota, written), news))
        for job, status in jobs.late_energy:
            background.start(("status", job.uid), in_turn(self._executor.write_job_status(job, status), figures))
        for job in jobs.expired:
            if not background.busy(("expiry", job.uid)) and self._recurrences.is_kept(job):
                background.start(("expiry", job.uid), in_turn(self._executor.delete_job(job), figures))
