"""What the leading operator does in each cycle: read the cluster, let the controllers decide, execute their decisions.

Everything a cycle decides follows from API objects (and from a few timers), so a cycle that fails, an operator that dies
and one that takes over all lead to the same end. What the controllers remember ends with the term and could be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from flyball_planner.snapshot import ClusterSnapshot

from flyball_operator.cluster.state import ClusterState
from flyball_operator.cluster.watches import Watches
from flyball_operator.jobs.controller import JobController
from flyball_operator.jobs.steps.step import JobsCycle, JobsStep
from flyball_operator.learning.learner import Learner
from flyball_operator.learning.recurrences import Recurrences
from flyball_operator.meters.grid_signal import SignalFile, emitted_grams_per_kilowatt_hour
from flyball_operator.meters.meters import Meters
from flyball_operator.planning.pipeline_planner import PipelinePlanner
from flyball_operator.planning.plans import Plans
from flyball_operator.planning.snapshot import JobStates, build_snapshot
from flyball_operator.power.controller import PowerController
from flyball_operator.power.cycle import PowerCycle, PowerInstructions, PowerState
from flyball_operator.power.observing import ObservingController
from flyball_operator.power.patience import PLAN_GRACE_SECONDS
from flyball_operator.report.energy_reports import EnergyReports
from flyball_operator.report.metrics import OperatorMetrics
from flyball_operator.report.reporter import Reporter
from flyball_operator.report.seen import energy_seen
from flyball_operator.settings import OBSERVE, Settings
from flyball_operator.term.energy_book_keeping import EnergyBookKeeping
from flyball_operator.term.job_execution import JobExecution
from flyball_operator.term.plain_job_execution import PlainJobExecution
from flyball_operator.term.power_execution import PowerExecution
from flyball_operator.term.trials import Trials
from flyball_operator.writes.background import Background
from flyball_operator.writes.executor import Executor
from flyball_operator.writes.profiles import write_profiles

SHORTEST_PAUSE_SECONDS = 0.05
# For so long a cap's status is held back by the one before it, whose answer does not come: what is lost with its connection
# would be waited for for ten seconds, and a claim that something makes untrue is to be withdrawn within two.
CLAIM_UNANSWERED_SECONDS = 1.0
# While what is known of jobs is being read, power alone is decided on, as often as this.
LOADING_PAUSE_SECONDS = 0.25


@dataclass(frozen=True)
class Deciders:
    """What decides in a term: on power, on jobs and on their plan, with what has been learned of jobs."""

    power: PowerController | ObservingController
    jobs: JobController
    plans: Plans
    learner: Learner
    recurrences: Recurrences


@dataclass(frozen=True)
class Writers:
    """What carries out what was decided: the requests, the statuses with their Events, the books, and the tasks of all."""

    executor: Executor
    reporter: Reporter
    energy_reports: EnergyReports
    background: Background


class LeaderTerm:
    """The cycles of one leader under one epoch; a new term starts with new controllers."""

    def __init__(
        self,
        epoch: int,
        settings: Settings,
        watches: Watches,
        meters: Meters,
        deciders: Deciders,
        writers: Writers,
        metrics: OperatorMetrics,
        wall_clock: Callable[[], datetime],
    ) -> None:
        power, jobs, recurrences = deciders.power, deciders.jobs, deciders.recurrences
        executor, reporter, background = writers.executor, writers.reporter, writers.background
        self._epoch = epoch
        self._settings = settings
        self._watches = watches
        self._meters = meters
        self._signal = SignalFile(settings.signal_file)
        self._power = power
        self._jobs = jobs
        self._plans = deciders.plans
        self._job_states = JobStates()
        self._learner = deciders.learner
        self._recurrences = recurrences
        self._trials = Trials(deciders.learner, settings)
        self._executor = executor
        self._reporter = reporter
        self._energy_reports = writers.energy_reports
        self._background = background
        self._metrics = metrics
        self._power_execution = PowerExecution(power, executor, reporter, background)
        planner = PipelinePlanner(settings.planner_url, settings.planner_token_file)
        self._job_execution = JobExecution(jobs, recurrences, executor, reporter, background, wall_clock, planner)
        self._plain_job_execution = PlainJobExecution(executor, reporter, background)
        self._energy_book_keeping = EnergyBookKeeping(writers.energy_reports, executor, background, wall_clock)
        self._stopping: Collection[tuple[str, int]] = ()  # of the last cycle in which jobs were decided on
        self.soonest_change_seconds = 0.0  # until power has to be decided on again; 0 while limits are being lowered
        self.power_decided = False  # in the last cycle, also where it failed
        self.only_braked = False  # the last cycle ended with its brakes: the next one is due once they are on their way

    def cycle(self, now: datetime, monotonic: float) -> float:
        """One cycle; returns the seconds after which the next is due even if nothing changes.

        It awaits nothing: all that it starts follows from one state of the cluster, and no answer that hangs holds up the
        next cycle's cuts.
        """
        # No two in a row end with their brakes, or a cap that falls all the time would have nothing else decided.
        ends, self.only_braked, self.power_decided = not self.only_braked, False, False
        # 1. Read what stands, and what every node may draw now.
        cluster = self._watches.cluster()
        self._power_execution.give_up_lost(cluster.gpu_nodes, monotonic)
        self._background.leave_unanswered("cap", CLAIM_UNANSWERED_SECONDS)
        # A finished plan is taken before anything is derived from the one in force: the next one must start from it.
        self._plans.take(cluster.jobs, monotonic)
        self._meters.follow(cluster.caps)
        state = self._power.observe(cluster, now, monotonic, self._meters.readings())
        # 2. Brakes need none of what follows, which takes several times as long, and no write leaves before a cycle ends:
        # so this one ends here.
        before_jobs = PowerCycle(
            state, self._plans.in_force, now, monotonic, self._status_writes(cluster), self._stopping
        )
        brakes = self._power.brake(before_jobs, ends=ends)
        self._start(brakes, monotonic)
        if brakes.brakes and ends:
            self.power_decided = self.only_braked = True
            return 0.0
        if self._learner.loading:
            # Nothing is chosen, planned or learned of jobs before what is known of them has been read.
            self._observe_power(state, self._decide_on_power(before_jobs))
            return LOADING_PAUSE_SECONDS
        # 3. Decide on the jobs, and plan in another process if what plans depend on has changed.
        try:
            jobs = self._decide_on_jobs(cluster, state, now, monotonic)
            plan = self._plans.in_force
            self._metrics.count_explored(self._trials.step(plan.decisions, cluster, jobs, state, monotonic))
            plan = replace(plan, decisions=self._trials.granted(plan.decisions))
        except Exception:
            # A mistake about jobs is no reason to let a cap wait: power is decided on by what was planned before it.
            self._decide_on_power(before_jobs)
            raise
        self._stopping = jobs.stopping
        # 4. Decide on power: what each node should be granted, and what of it may be sent now; grants are sent first.
        instructions = self._decide_on_power(replace(before_jobs, plan=plan, stopping=jobs.stopping))
        # 5. Execute the rest, and show what there is to see.
        self._execute_rest(cluster, state, jobs, instructions, now, monotonic)
        self._announce(cluster, state)
        self._observe_power(state, instructions)
        self._observe_jobs(cluster, state, jobs)
        self._metrics.observe_signal(self._signal.read(monotonic), now)
        self.soonest_change_seconds = self._soonest_change_seconds(state)
        return self._pause(state, jobs, instructions, monotonic)

    def _execute_rest(
        self,
        cluster: ClusterState,
        state: PowerState,
        jobs: JobsStep,
        instructions: PowerInstructions,
        now: datetime,
        monotonic: float,
    ) -> None:
        """Start one safe step for each job, then the statuses and what is learned; the rest waits behind what cuts."""
        self._job_execution.start(jobs, instructions, state.nodes)
        self._job_execution.start_statuses(jobs, cutting=state.cutting)
        if not state.cutting and not self._background.busy("profiles"):
            profiles = self._learner.due_writes(monotonic)
            if profiles:
                self._background.start("profiles", write_profiles(self._executor, self._learner, profiles))
        self._keep_energy_books(cluster, state, jobs, now, monotonic)
        if not state.cutting and self._settings.mode != OBSERVE:  # behind everything that cuts
            self._plain_job_execution.start(state, self._plans.in_force.decisions, monotonic)
            self._reporter.announce_limited_pods(state)

    def _announce(self, cluster: ClusterState, state: PowerState) -> None:
        self._reporter.announce_nodes(state.nodes)
        self._reporter.announce_problems(cluster.gpu_nodes.values())
        self._reporter.announce_gpus(cluster.gpu_nodes)
        self._reporter.announce_deletions([*cluster.caps, *cluster.gpu_nodes.values()])

    def _soonest_change_seconds(self, state: PowerState) -> float:
        """After how many seconds power has to be decided on again; 0 while limits are being lowered."""
        # A cap that cannot be met is never enforced: it hurries while what can be lowered is.
        lowers = self._background.under_way("grant") > 0
        hurries = any((lowers or cap.attainable) and not cap.enforced for cap in state.caps.states)
        changes = (state.next_silence_seconds, *(cap.next_change_seconds for cap in state.caps.states))
        return 0.0 if hurries else min(changes)

    def _decide_on_jobs(self, cluster: ClusterState, state: PowerState, now: datetime, monotonic: float) -> JobsStep:
        """What to do for the jobs; has a new plan begun where one is due."""
        self._learner.observe(cluster, state.nodes)
        cycle = JobsCycle(
            cluster,
            state.nodes,
            self._trials.explained(self._plans.in_force.decisions),
            self._epoch,
            now,
            monotonic,
            queue=self._plans.queue,
            signal=self._signal.read(monotonic),
            statuses_wait=state.cutting,
            figures_wait=state.figures_wait,
            status_writes={
                *(uid for uid in cluster.jobs if self._background.busy(("status", uid))),
                *(quota.uid for quota in cluster.energy_quotas if self._background.busy(("quota", quota.uid))),
            },
            runs=self._recurrences.step(cluster.jobs, state.nodes),
        )
        jobs = self._jobs.step(cycle)
        if state.all_read:
            planned_on = self._power.planned_on(state)
            self._plans.start(partial(self._snapshot, planned_on, jobs, now), now, monotonic)
        return jobs

    def _decide_on_power(self, cycle: PowerCycle) -> PowerInstructions:
        """Decide on every node's grant, and start to send what may be sent, and the caps' statuses."""
        instructions = self._power.step(cycle)
        self._start(instructions, cycle.monotonic)
        self.power_decided = True
        return instructions

    def _start(self, instructions: PowerInstructions, monotonic: float) -> None:
        self._power_execution.start(instructions, monotonic)
        for write in instructions.cap_statuses:
            self._background.start(("cap", write.cap.uid), self._reporter.write_cap(write))

    def _status_writes(self, cluster: ClusterState) -> set[str]:
        """The uids of the caps whose statuses are being written."""
        return {cap.uid for cap in cluster.caps if self._background.busy(("cap", cap.uid))}

    async def close(self) -> None:
        """Give up the plan that is being made and the writes that are under way."""
        self._plans.cancel()
        await self._meters.close()
        await self._background.stop()

    def _snapshot(self, state: PowerState, jobs: JobsStep, now: datetime, *, timeless: bool) -> ClusterSnapshot:
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

    def _keep_energy_books(
        self, cluster: ClusterState, state: PowerState, jobs: JobsStep, now: datetime, monotonic: float
    ) -> None:
        """Count what every GPU has used; the book is written behind everything else."""
        emitted = emitted_grams_per_kilowatt_hour(self._signal.read(monotonic), now)
        decisions, everything = self._plans.in_force.decisions, self._settings.mode == OBSERVE
        self._energy_book_keeping.start(
            lambda: energy_seen(
                cluster, state, jobs, decisions, self._learner, emitted, everything_observed=everything
            ),
            now,
            monotonic,
            may_write=not state.cutting,
        )

    def _observe_power(self, state: PowerState, instructions: PowerInstructions) -> None:
        self._metrics.observe_convergence(instructions.owing)
        self._metrics.observe_caps(state.caps.states, self._plans.in_force.infeasible)
        self._metrics.observe_nodes(state.nodes.values())
        self._metrics.observe_ages(self._watches.ages())
        self._metrics.observe_clock(state.cluster.clock_ahead_seconds)

    def _observe_jobs(self, cluster: ClusterState, state: PowerState, jobs: JobsStep) -> None:
        self._metrics.observe_jobs(
            jobs.jobs.values(),
            self._plans.in_force.decisions,
            lambda job: self._learner.model_for(job, state.nodes),
            self._plans.queue,
        )
        if not self._energy_reports.unread:
            self._metrics.observe_owners(self._energy_reports.largest_owners())
        self._metrics.observe_quotas(cluster.energy_quotas)
        self._metrics.observe_waiting_batch_jobs(self._plain_job_execution.waiting)

    def _pause(self, state: PowerState, jobs: JobsStep, instructions: PowerInstructions, monotonic: float) -> float:
        pauses = [self._settings.replan_seconds, self._settings.status_interval_seconds, jobs.next_seconds]
        pauses += [cap.next_change_seconds for cap in state.caps.states]
        pauses += [instructions.next_cut_seconds, state.next_silence_seconds, self._plans.next_seconds(monotonic)]
        pauses.append(self._power_execution.next_seconds(state.cluster.gpu_nodes, monotonic))
        pauses.append(self._background.next_unanswered_seconds("cap", CLAIM_UNANSWERED_SECONDS))
        if self._plans.in_force.next_is_near:
            pauses.append(PLAN_GRACE_SECONDS)
        return max(SHORTEST_PAUSE_SECONDS, min(pauses))
