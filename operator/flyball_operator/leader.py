"""What the leading operator does in each cycle: read the cluster, let the controllers decide, execute their decisions.

Everything a cycle decides follows from API objects (and from a few timers), so a cycle that fails, an operator that dies
and one that takes over all lead to the same end. What the controllers remember ends with the term and could be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from flyball_api.units import MILLIWATTS_PER_WATT
from flyball_kube.logs import get_logger
from flyball_planner.snapshot import ClusterSnapshot

from flyball_operator.jobs.controller import JobController
from flyball_operator.jobs.jobs_step import JobAction, JobsStep
from flyball_operator.jobs.lifecycle import CreateIncarnation, Phase
from flyball_operator.jobs.status_lanes import Lane
from flyball_operator.learning.exploration import Explorations, Running
from flyball_operator.learning.learner import Learner
from flyball_operator.learning.recurrences import Recurrences
from flyball_operator.meters.grid_signal import SignalFile, emitted_grams_per_kilowatt_hour
from flyball_operator.meters.meters import Meters
from flyball_operator.outcome import WriteResult, combined
from flyball_operator.plain_jobs import PlainJobs, Verdict
from flyball_operator.planning.plans import Plans
from flyball_operator.planning.snapshot import JobStates, build_snapshot
from flyball_operator.power.brakes import SendBrake
from flyball_operator.power.controller import PowerController
from flyball_operator.power.cycle import Answered, BrakeAnswered, PowerInstructions, PowerState, SendGrant
from flyball_operator.power.holds import HoldChange
from flyball_operator.power.memberships import LabelSync
from flyball_operator.power.node_info import NodeInfo
from flyball_operator.power.observing import ObservingController
from flyball_operator.power.patience import PLAN_GRACE_SECONDS
from flyball_operator.report.energy_reports import EnergyReports
from flyball_operator.report.metrics import OperatorMetrics
from flyball_operator.report.reporter import Reporter
from flyball_operator.report.seen import energy_seen
from flyball_operator.settings import OBSERVE, Settings
from flyball_operator.watches import ClusterState, Watches
from flyball_operator.writes.background import Background
from flyball_operator.writes.executor import Executor
from flyball_operator.writes.job_actions import take_action
from flyball_operator.writes.profiles import write_profiles
from flyball_operator.writes.slots import PacedSlots

logger = get_logger(__name__)

# Figures are worth less than steps: few of their writes at a time, so that they never crowd out the others; and what
# happens to a job, which its next step may wait for, has room of its own beside them. A cut gives every job another clock
# at once: one that starts or ends meanwhile is not behind all of those. Thousands that are told that they wait make an API
# server slower for everybody, the renewal of our own Lease included: they are told as it bears it.
NEWS_AT_ONCE, WAITING_AT_ONCE, POWER_AT_ONCE, FIGURES_AT_ONCE = 16, 12, 8, 4
# Labels and finalizers may change on a thousand nodes at once, and the next cut must not queue behind them.
HOUSEKEEPING_AT_ONCE = 16
# What one job is denied (a quota, a policy) others are denied too: learned from a few, not from all of them.
CREATES_AT_ONCE = 16
SHORTEST_PAUSE_SECONDS = 0.05


class LeaderTerm:
    """The cycles of one leader under one epoch; a new term starts with new controllers."""

    def __init__(
        self,
        epoch: int,
        settings: Settings,
        watches: Watches,
        power: PowerController | ObservingController,
        jobs: JobController,
        plans: Plans,
        learner: Learner,
        recurrences: Recurrences,
        executor: Executor,
        reporter: Reporter,
        metrics: OperatorMetrics,
        background: Background,
        meters: Meters,
        wall_clock: Callable[[], datetime],
        energy_reports: EnergyReports,
    ) -> None:
        self._epoch = epoch
        self._energy_reports = energy_reports
        self._plain_jobs = PlainJobs()
        self._signal = SignalFile(settings.signal_file)
        self._settings = settings
        self._watches = watches
        self._power = power
        self._jobs = jobs
        self._plans = plans
        self._job_states = JobStates()
        self._learner = learner
        self._recurrences = recurrences
        self._explorations = Explorations(learner, settings.exploration_permille)
        self._executor = executor
        self._reporter = reporter
        self._metrics = metrics
        self._background = background
        self._meters = meters
        self._wall_clock = wall_clock
        self._creating: set[str] = set()  # uids of jobs whose next incarnation is being made
        self._statuses_may_write = asyncio.Event()
        self._status_slots: dict[Lane, asyncio.Semaphore | PacedSlots] = {
            Lane.NEWS: asyncio.Semaphore(NEWS_AT_ONCE),
            Lane.WAITING: PacedSlots(WAITING_AT_ONCE),
            Lane.POWER: PacedSlots(POWER_AT_ONCE),
            Lane.FIGURES: asyncio.Semaphore(FIGURES_AT_ONCE),
        }

    def cycle(self, now: datetime, monotonic: float) -> float:
        """One cycle; returns the seconds after which the next is due even if nothing changes.

        It awaits nothing: all that it starts follows from one state of the cluster, and no answer that hangs holds up the
        next cycle's cuts.
        """
        # 1. Read what stands, and what every node may draw now.
        cluster = self._watches.cluster()
        # A finished plan is taken before anything is derived from the one in force: the next one must start from it.
        self._plans.take(cluster.jobs, monotonic)
        self._meters.follow(cluster.caps)
        state = self._power.observe(cluster, now, monotonic, self._meters.readings())
        # 2. Decide on the jobs, and plan in another process if what plans depend on has changed.
        self._learner.observe(cluster, state.nodes)
        jobs = self._jobs.step(
            cluster,
            state.nodes,
            self._explorations.told(self._plans.in_force.decisions),
            epoch=self._epoch,
            now=now,
            monotonic=monotonic,
            queue=self._plans.queue,
            signal=self._signal.read(monotonic),
            statuses_wait=state.cutting,
            status_writes={
                *(uid for uid in cluster.jobs if self._background.busy(("status", uid))),
                *(quota.uid for quota in cluster.energy_quotas if self._background.busy(("quota", quota.uid))),
            },
            runs=self._recurrences.step(cluster.jobs, state.nodes),
        )
        if state.all_read:
            planned_on = self._power.planned_on(state)
            self._plans.start(partial(self._snapshot, planned_on, jobs, now), now, monotonic)
        # 3. Decide on power: what each node should be granted, and what of it may be sent now.
        status_writes = {cap.uid for cap in cluster.caps if self._background.busy(("cap", cap.uid))}
        plan = self._plans.in_force
        self._metrics.count_explored(self._explorations.step(self._running(jobs, state), cluster.jobs, monotonic))
        plan = replace(plan, decisions=self._explorations.granted(plan.decisions))
        instructions = self._power.step(state, plan, now, monotonic, status_writes, jobs.stopping)
        # 4. Execute: grants first, then one safe step for each job, then the statuses.
        for brake in instructions.brakes:
            self._send_brake(brake)
        for send in instructions.sends:
            self._send_grant(send)
        room = HOUSEKEEPING_AT_ONCE - self._background.under_way("labels", "hold")
        for sync in instructions.label_syncs:
            if room > 0 and not self._background.busy(("labels", sync.node.name)):
                self._sync_labels(sync)
                room -= 1
        for change in instructions.holds:
            # Never beside another write of the same GPUNode, of which only one would be taken: it could be a cut.
            busy = any(self._background.busy((kind, change.item.name)) for kind in ("grant", "labels", "hold"))
            if room > 0 and not busy:
                self._write_hold(change)
                room -= 1
        for closed, infos in ((True, instructions.taint), (False, instructions.untaint)):
            for info in infos:
                if not self._background.busy(("taint", info.name)):
                    setting = self._executor.set_startup_taint(info, closed=closed)
                    self._background.start(("taint", info.name), setting)
        self._start_job_actions(jobs, instructions, state.nodes)
        self._start_checks(jobs)
        self._tell_points(jobs)
        for write in instructions.cap_statuses:
            self._background.start(("cap", write.cap.uid), self._reporter.write_cap(write))
        (self._statuses_may_write.clear if state.cutting else self._statuses_may_write.set)()
        self._start_statuses(jobs)
        if not state.cutting and not self._background.busy("profiles"):
            profiles = self._learner.due_writes(monotonic)
            if profiles:
                self._background.start("profiles", write_profiles(self._executor, self._learner, profiles))
        self._keep_energy_books(cluster, state, jobs, now, monotonic)
        self._admit_plain_jobs(state, monotonic)
        self._reporter.announce_nodes(state.nodes)
        self._reporter.announce_problems(cluster.gpu_nodes.values())
        self._reporter.announce_gpus(cluster.gpu_nodes)
        self._reporter.announce_deletions([*cluster.caps, *cluster.gpu_nodes.values()])
        self._observe(cluster, state, jobs, instructions)
        self._metrics.observe_signal(self._signal.read(monotonic), now)
        return self._pause(state, jobs)

    async def close(self) -> None:
        """Give up the plan that is being made and the writes that are under way."""
        self._plans.cancel()
        await self._meters.close()
        await self._background.stop()

    def _snapshot(self, state: PowerState, jobs: JobsStep, now: datetime, timeless: bool) -> ClusterSnapshot:
        return build_snapshot(
            nodes=state.nodes,
            rules=state.caps.rules,
            budgets=state.planning_budgets(),
            jobs=[(job.view, job.memory) for job in jobs.jobs.values()],
            models_of=lambda job: self._learner.models_for(job, state.nodes),
            now=now,
            restart_seconds=self._settings.restart_seconds,
            guard_fraction=self._settings.guard_fraction,
            consolidation=self._settings.consolidation,
            withheld=jobs.withheld_gpus,
            evacuate_after_seconds=self._settings.evacuate_after_seconds,
            timeless=self._job_states if timeless else None,
        )

    def _send_grant(self, send: SendGrant) -> None:
        name, grant = send.node.name, send.grant
        logger.info(
            "grant",
            node=name,
            epoch=grant.epoch,
            generation=grant.generation,
            grant_watts=grant.bound.limit_milliwatts / MILLIWATTS_PER_WATT,
            committed_watts=grant.committed.limit_milliwatts / MILLIWATTS_PER_WATT,
            reason="waiting for freed watts" if send.waits else "as planned",
        )
        self._background.start(
            ("grant", name),
            self._executor.write_grant(send.node, grant),
            lambda result: self._grant_answered(send, result),
        )

    def _sync_labels(self, sync: LabelSync) -> None:
        name = sync.node.name
        logger.info(
            "labels",
            node=name,
            former=len(sync.former_labels),
            left=list(sync.left),
            reason="by somebody's word" if sync.by_word else "its Node's labels changed",
        )
        self._background.start(
            ("labels", name),
            self._executor.sync_labels(sync),
            lambda result: self._reporter.announce_labels(sync) if result.done else None,
        )

    def _write_hold(self, change: HoldChange) -> None:
        name, kind = change.item.name, type(change.item).__name__
        logger.info("finalizer", object=name, kind=kind, action=change.action.value)
        self._background.start(
            ("hold", name),
            self._executor.write_hold(change),
            lambda result: self._reporter.announce_hold(change) if result.done else None,
        )

    def _send_brake(self, send: SendBrake) -> None:
        spec = send.spec
        logger.info(
            "brake", cap=send.cap, epoch=spec.epoch, sequence=spec.sequence, kept_millionths=spec.kept_millionths
        )
        self._background.start(
            ("brake", send.cap),
            self._executor.write_brake(send),
            lambda result: self._brake_answered(send.cap, result),
        )

    def _brake_answered(self, cap: str, result: WriteResult) -> None:
        self._power.handle_brake(BrakeAnswered(cap, result.outcome))
        if not result.done:
            self._background.wake()  # the grants that a cut needs then must not wait for the next try

    def _grant_answered(self, send: SendGrant, result: WriteResult) -> None:
        invalid = send.grant if result.invalid else None
        if self._power.handle(Answered(send.node.name, result.outcome, invalid)):
            self._reporter.announce_refused_grant(send.node, result.invalid)
            self._background.wake()  # a cut must not wait for the next try

    def _start_job_actions(
        self, jobs: JobsStep, instructions: PowerInstructions, nodes: Mapping[str, NodeInfo]
    ) -> None:
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
        """Have the API server look at new templates, so that a mistake is told before there are GPUs for the job."""
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

    def _running(self, jobs: JobsStep, state: PowerState) -> Iterator[Running]:
        """The jobs all of whose pods run as planned, with what they run on."""
        decisions = self._plans.in_force.decisions
        for uid, job in jobs.jobs.items():
            current, decision = job.step.current, decisions.get(uid)
            if current is not None and decision is not None and job.step.phase is Phase.RUNNING:
                info = state.nodes.get(current.nodes[0][0])
                if info is not None and info.gpu_model is not None:
                    yield Running(job.view, current, decision, info.gpu_model)

    def _tell_points(self, jobs: JobsStep) -> None:
        """Tell pods of pipelines that are to run otherwise; who is not told now is looked at again in a few seconds."""
        background = self._background
        room = HOUSEKEEPING_AT_ONCE - background.under_way("point")
        for told in jobs.points:
            if room > 0 and not background.busy(("point", told.job.uid)):
                room -= 1
                background.start(("point", told.job.uid), self._executor.tell_point(told))

    def _start_statuses(self, jobs: JobsStep) -> None:
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

        background, slots_of = self._background, self._status_slots
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

    def _keep_energy_books(
        self, cluster: ClusterState, state: PowerState, jobs: JobsStep, now: datetime, monotonic: float
    ) -> None:
        """Count what every GPU has used; the book is written behind everything else."""
        reports, key = self._energy_reports, "energy-report"
        busy = self._background.busy(key)
        if reports.unread:
            if not busy and reports.load_due(monotonic):
                self._background.start(key, reports.load(now, monotonic))
            return
        emitted = emitted_grams_per_kilowatt_hour(self._signal.read(monotonic), now)
        decisions, everything = self._plans.in_force.decisions, self._settings.mode == OBSERVE
        reports.observe(
            lambda: energy_seen(
                cluster, state, jobs, decisions, self._learner, emitted, everything_observed=everything
            ),
            now,
        )
        self._metrics.observe_owners(reports.largest_owners())
        write = None if busy or state.cutting else reports.due(now, monotonic)
        if write is None:
            return
        stored: dict[str, Any] = {}
        self._background.start(
            key,
            self._executor.write_energy_report(write.day, write.body, write.resource_version, stored.update),
            lambda result: reports.answered(write, result, stored, self._wall_clock(), monotonic),
        )

    def _admit_plain_jobs(self, state: PowerState, monotonic: float) -> None:
        """Let batch Jobs run that wait for watts, behind everything that cuts; say why the others wait."""
        if state.cutting or self._settings.mode == OBSERVE:
            return
        for verdict in self._plain_jobs.step(state, self._plans.in_force.decisions, monotonic):
            key = ("plain-job", verdict.job.uid)
            if not verdict.admitted:
                self._reporter.announce_plain_job(verdict)
            elif not self._background.busy(key):
                announce = partial(self._tell_admitted, verdict)
                self._background.start(key, self._executor.admit_plain_job(verdict.job), announce)

    def _tell_admitted(self, verdict: Verdict, result: WriteResult) -> None:
        if result.done:
            self._reporter.announce_plain_job(verdict)

    def _observe(
        self, cluster: ClusterState, state: PowerState, jobs: JobsStep, instructions: PowerInstructions
    ) -> None:
        self._metrics.observe_convergence(instructions.owing)
        self._metrics.observe_caps(state.caps.states, self._plans.in_force.infeasible)
        self._metrics.observe_jobs(
            jobs.jobs.values(),
            self._plans.in_force.decisions,
            lambda job: self._learner.model_for(job, state.nodes),
            self._plans.queue,
        )
        self._metrics.observe_quotas(cluster.energy_quotas)
        self._metrics.observe_waiting_batch_jobs(self._plain_jobs.waiting)
        self._metrics.observe_nodes(state.nodes.values())
        self._metrics.observe_ages(self._watches.ages())

    def _pause(self, state: PowerState, jobs: JobsStep) -> float:
        pauses = [self._settings.replan_seconds, self._settings.status_interval_seconds, jobs.next_seconds]
        pauses += [cap.next_change_seconds for cap in state.caps.states]
        pauses.append(state.next_silence_seconds)
        if self._plans.in_force.next_is_near:
            pauses.append(PLAN_GRACE_SECONDS)
        return max(SHORTEST_PAUSE_SECONDS, min(pauses))
