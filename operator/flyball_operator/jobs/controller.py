"""What to do for each training job now, and what its status should say: one pure step a cycle.

`JobController.step` takes in what the API server has and what the plan wants, and answers with actions and statuses; what
became of an action comes back by `answered`. It reads no clock and writes nothing itself.

All that it remembers between cycles it could lose: a new leader starts with an empty controller and reads from the statuses
how far each job has come, how often it has failed, and whether the API server refuses its pods.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from flyball_api.energy.quota import EnergyQuota, EnergyQuotaStatus
from flyball_api.energy_aware_job import EnergyAwareJob, EnergyAwareJobStatus
from flyball_api.gpu_node import PodReport
from flyball_api.values.times import whole_second
from flyball_kube.process.logs import get_logger

from flyball_operator.cluster.outcome import Outcome, WriteResult
from flyball_operator.cluster.state import ClusterState
from flyball_operator.jobs.feasibility.allowances import Allowances
from flyball_operator.jobs.feasibility.budget_check import budget_too_small
from flyball_operator.jobs.feasibility.fitting import NO_BOUNDS, Fit, withheld_gpus
from flyball_operator.jobs.feasibility.put_off import put_off
from flyball_operator.jobs.frontier import LargestNode
from flyball_operator.jobs.pipeline_plans import PlanMaking, PlanPipeline
from flyball_operator.jobs.runs.consumption import Consumptions
from flyball_operator.jobs.runs.energy_history import EnergyHistories
from flyball_operator.jobs.runs.lifecycle import (
    Action,
    CreateIncarnation,
    JobPhase,
    OpenGates,
    next_step,
)
from flyball_operator.jobs.runs.memory import (
    Refusal,
    damaged_template,
    recorded_allocation,
    unknown_gpu_resource,
    wants_gpus,
    without_batch_size,
    without_plan,
)
from flyball_operator.jobs.starts.attempts import RestartRules
from flyball_operator.jobs.starts.create_limit import CreateLimit
from flyball_operator.jobs.starts.obstacles import lost_nodes_of
from flyball_operator.jobs.status.updates import PaceSource
from flyball_operator.jobs.status_lanes import Lane
from flyball_operator.jobs.steps.ended import EndedJobs
from flyball_operator.jobs.steps.outcomes import failure_is_recorded, out_of_restarts
from flyball_operator.jobs.steps.pipelines import plan_ended, plans_to_make, take_point_changes
from flyball_operator.jobs.steps.quota_books import QuotaBooks
from flyball_operator.jobs.steps.record import JobRecord
from flyball_operator.jobs.steps.statuses import JobStatuses
from flyball_operator.jobs.steps.step import JobAction, JobsCycle, JobsStep, LiveJob
from flyball_operator.jobs.steps.template_checks import TemplateChecks
from flyball_operator.power.nodes.info import NodeInfo

logger = get_logger(__name__)

# Before it is worked out anew when a job that can wait should start.
LOOK_SECONDS = 15.0


class JobController:
    """All jobs during one leader's term.

    `models` gives the models for what users are told that time costs; `gpu_resources` names the extended resources by which
    jobs can ask for GPUs; `rules` say how long starts may take and how long to wait after those that fail; a job that is
    put off begins `start_seconds` sooner than it would have to. With `observe` nothing is done for any job: its status
    says what would be.
    """

    def __init__(
        self,
        status_interval_seconds: float,
        models: PaceSource,
        gpu_resources: Collection[str],
        rules: RestartRules | None = None,
        *,
        start_seconds: float = 0.0,
        observe: bool = False,
    ) -> None:
        self._observe = observe
        self._start_seconds = start_seconds
        self._gpu_resources = gpu_resources
        self._rules = rules or RestartRules()
        self._creates = CreateLimit()
        self._checks = TemplateChecks()
        self._models = models
        self._largest_node = LargestNode()
        self._fitting = Allowances(gpu_resources)
        self._monotonic = 0.0  # at the last step
        self._statuses = JobStatuses(status_interval_seconds, models, observe=observe)
        self._records: dict[str, JobRecord] = {}
        self._energy = EnergyHistories()  # of ended jobs, too
        self._ended = EndedJobs(status_interval_seconds, self._energy)
        self._consumptions = Consumptions(self._energy)
        self._quotas = QuotaBooks(status_interval_seconds)

    def step(self, cycle: JobsCycle) -> JobsStep:
        """Take in what stands, and decide what to do for every job."""
        cluster, nodes, now, monotonic = cycle.cluster, cycle.nodes, cycle.now, cycle.monotonic
        self._monotonic = monotonic
        jobs = self._live_jobs(cycle)
        progress = {uid: job.memory.progress for uid, job in jobs.items()}
        consumptions = self._consumptions.observe(cluster, progress, nodes, monotonic)
        self._quotas.charge(cluster.energy_quotas, consumptions, now)
        actions, gates = self._take_steps(jobs, cycle)
        acting = {item.job.uid for item in actions}
        checks = self._checks.step(jobs.values(), self._records, acting, monotonic)
        statuses: list[tuple[LiveJob, EnergyAwareJobStatus]] = []
        lanes: Mapping[str, Lane] = {}
        late_energy: list[tuple[EnergyAwareJob, EnergyAwareJobStatus]] = []
        expired: list[EnergyAwareJob] = []
        quotas: list[tuple[EnergyQuota, EnergyQuotaStatus]] = []
        if not cycle.statuses_wait:
            statuses, lanes = self._statuses.step(jobs.values(), self._records, cycle)
            late_energy = [
                item
                for item in self._ended.late_energy(cluster, nodes, monotonic)
                if item[0].uid not in cycle.status_writes
            ]
            expired = self._ended.take_expired(cluster.jobs.values(), now)
            quotas = self._quotas.step(cluster.energy_quotas, jobs.values(), now, monotonic, cycle.status_writes)
        shown = JobsStep(
            jobs,
            (),
            (),
            statuses,
            late_energy,
            (),
            withheld_gpus=withheld_gpus(nodes.values(), cluster.pods),
            checks=checks,
            quota_statuses=quotas,
            consumptions=consumptions,
            lanes=lanes,
        )
        if self._observe:
            return shown
        pipelines = [(job, self._records[uid]) for uid, job in jobs.items() if job.view.spec.pipeline is not None]
        return replace(
            shown,
            actions=actions,
            gates=gates,
            expired=expired,
            next_seconds=self._next_seconds(jobs, cycle),
            points=take_point_changes(pipelines, now, monotonic),
            plans=plans_to_make(pipelines, cluster, monotonic),
        )

    def _next_seconds(self, jobs: Mapping[str, LiveJob], cycle: JobsCycle) -> float:
        """After how many seconds something follows from time alone."""
        monotonic = cycle.monotonic
        times = [
            min(record.attempts.next_seconds(job.view, monotonic), record.seconds_put_off(job.view, monotonic))
            for uid, job in jobs.items()
            if (record := self._records[uid]).waited is None  # else nothing follows from time
        ]
        if not cycle.statuses_wait:
            times.append(self._statuses.next_seconds)
        return min([self._creates.next_seconds(monotonic), self._fitting.next_seconds, *times])

    def plan_ended(self, plan: PlanPipeline, making: PlanMaking, now: datetime) -> None:
        """Take in what became of a plan: its job's status says it, and what may still come of it is tried again later."""
        record = self._records.get(plan.job.uid)
        if record is not None:
            plan_ended(record, plan, making, now, self._monotonic)

    def answered(self, item: JobAction, result: WriteResult, now: datetime) -> None:
        """Take in what became of an action: a Job that was made is a resize, what is refused is not tried again soon."""
        record = self._records.get(item.job.uid)
        if record is None:
            return
        kind, making = type(item.action), isinstance(item.action, CreateIncarnation)
        if result.done and isinstance(item.action, CreateIncarnation):
            record.attempts.given(item.action.incarnation)
        if making and result.invalid:
            record.note_refused(item.job, result.invalid, self._monotonic)
        else:
            record.attempts.answered(kind, result, self._monotonic)
        if making and (result.done or result.message):
            denied = not result.done and not result.invalid
            self._creates.answered(item.job.namespace, self._monotonic, denied=denied)
        if making and result.outcome is not Outcome.UNKNOWN:
            record.checked_generation = item.job.generation  # its template was looked at, too
        if making and result.done:
            record.last_resize = whole_second(now)

    def checked(self, job: EnergyAwareJob, result: WriteResult) -> None:
        """Take in the API server's answer to a trial of a job's template."""
        record = self._records.get(job.uid)
        if record is not None:
            self._checks.answered(record, job, result, self._monotonic)

    # --- one job -----------------------------------------------------------------------------------------------------

    def _live_jobs(self, cycle: JobsCycle) -> dict[str, LiveJob]:
        jobs = {}
        cluster = cycle.cluster
        fits = self._fits(cluster, cycle.nodes, cycle.now)
        for uid, job in cluster.jobs.items():
            if job.finished or job.deleting or not job.managed_by_flyball:
                continue  # of a job that another controller manages, not one word is ours
            try:
                reports = self._energy.believe(job, cluster.reports_of.get(uid, ()), cycle.nodes, cycle.monotonic)
                jobs[uid] = self._live_job(cycle, job, reports, fits.get(uid, NO_BOUNDS))
            except Exception:
                # One job that cannot be understood must not end the cycle that holds the caps for everybody.
                logger.exception("job left out of this cycle", job=job.key)
        for uid in self._records.keys() - jobs.keys():
            del self._records[uid]
        self._energy.forget_all_but({*cluster.jobs, *self._consumptions.departed})
        return jobs

    def _fits(self, cluster: ClusterState, nodes: Mapping[str, NodeInfo], now: datetime) -> Mapping[str, Fit]:
        """Where the pods of every job that wants GPUs can go."""
        wanting = [
            job
            for uid, job in cluster.jobs.items()
            if job.wants_gpus and ((record := self._records.get(uid)) is None or not record.attempts.gives_back)
        ]

        def resized(job: EnergyAwareJob) -> datetime | None:
            record = self._records.get(job.uid)
            return job.status.last_resize_time if record is None else record.last_resize

        return self._fitting.fits(cluster, nodes, wanting, resized, self._quotas.spent(cluster.energy_quotas), now)

    def _judge_budget(self, record: JobRecord, job: EnergyAwareJob, nodes: Mapping[str, NodeInfo]) -> Refusal | None:
        """`budget_too_small`, looked at once for each generation."""
        generation, found = record.budget_checked
        if generation != job.generation and nodes:
            per_node = self._largest_node.gpus_of(nodes)
            found = budget_too_small(job, record.progress.iterations, nodes, self._models, per_node)
            record.budget_checked = (job.generation, found)
        return found if generation == job.generation or nodes else None

    def _judge_put_off(self, cycle: JobsCycle, record: JobRecord, job: EnergyAwareJob) -> Refusal | None:
        """`put_off`, looked at now and then, when the job's time has come, and for each generation and signal."""
        signal, nodes = cycle.signal, cycle.nodes
        if job.spec.flexible_until is None or signal is None:
            return None
        known, looked_for = record.put_off, (job.generation, signal)
        if known is None or known[0] != looked_for or cycle.monotonic >= record.put_off_until:
            per_node, done = self._largest_node.gpus_of(nodes), record.progress.iterations
            found = put_off(job, done, nodes, self._models, per_node, signal, cycle.now, self._start_seconds)
            known = record.put_off = (looked_for, None if found is None else found.refusal)
            ahead = LOOK_SECONDS if found is None else (found.start - cycle.now).total_seconds()
            record.put_off_until = cycle.monotonic + min(LOOK_SECONDS, max(0.0, ahead))
        return known[1]

    def _judge(
        self, cycle: JobsCycle, record: JobRecord, job: EnergyAwareJob, fit: Fit, *, begun: bool
    ) -> Refusal | None:
        """Why the job cannot have GPUs, the first reason that there is; one that has begun is not judged by its budget."""
        return (
            damaged_template(job)
            or unknown_gpu_resource(job, self._gpu_resources)
            or without_plan(job)
            or record.refusal(job)
            or fit.refusal
            or without_batch_size(job)
            or (None if begun else self._judge_budget(record, job, cycle.nodes))
            or (None if begun else self._judge_put_off(cycle, record, job))
        )

    def _live_job(
        self, cycle: JobsCycle, job: EnergyAwareJob, reports: Sequence[tuple[str, PodReport]], fit: Fit
    ) -> LiveJob:
        cluster, nodes, now, monotonic = cycle.cluster, cycle.nodes, cycle.now, cycle.monotonic
        decision = cycle.decisions.get(job.uid)
        record = self._records.get(job.uid)
        if record is None:
            record = self._records[job.uid] = JobRecord.of(job, self._rules, now, monotonic)
        attempts = record.attempts
        incarnations = cluster.incarnations.get(job.uid, [])
        pods = cluster.pods_of.get(job.uid, [])
        untouched = not (incarnations or pods or reports)
        waits = record.still_waiting(job, decision, fit) if untouched else None
        if waits is not None:
            record.updated_at = monotonic
            return waits
        attempts.take_in(job, incarnations, pods, monotonic)
        if decision is not None:
            record.take_in_decision(job, decision, pods, now, monotonic)
        current = recorded_allocation(job, incarnations) if decision is None else decision.allocation
        begun = bool(incarnations or pods) or job.status.start_time is not None
        refusal = self._judge(cycle, record, job, fit, begun=begun)
        wanted = wants_gpus(job, record.progress, refusal) and not attempts.gives_back
        record.note_stop_reason(refusal)
        step = next_step(
            job_uid=job.uid,
            desired=current.nodes if current is not None and wanted else None,
            last_incarnation=attempts.highest_incarnation,
            recorded_incarnation=job.last_incarnation,
            incarnations=incarnations,
            pods=pods,
            services=cluster.services_of.get(job.uid, ()),
            evidence=attempts.evidence,
            stop_reason=record.stop_reason,
        )
        attempts.follow(
            job,
            step,
            pods,
            "" if step.current is None else cluster.pods_refused.get(step.current.uid, ""),
            lost_nodes_of(pods, nodes),
            wanted=wanted and not self._observe and decision is not None and bool(current and current.nodes),
            elapsed_seconds=max(0.0, monotonic - record.updated_at),
            now=now,
            monotonic=monotonic,
        )
        record.take_in_reports(job, reports, step, decision, monotonic)
        run = job.run or cycle.runs.get(job.uid)
        live = LiveJob(job, record.memory(job, step, pods, current, refusal, fit, run, nodes), step, pods)
        record.note_waiting(live, decision, fit, untouched=untouched)
        return live

    def _take_steps(
        self, jobs: Mapping[str, LiveJob], cycle: JobsCycle
    ) -> tuple[list[JobAction], list[tuple[EnergyAwareJob, OpenGates]]]:
        """What is to be done for the jobs now, and the gates to open, the oldest jobs' first."""
        actions: list[JobAction] = []
        gates: list[tuple[EnergyAwareJob, OpenGates]] = []
        acted_on = [(uid, job) for uid, job in jobs.items() if job.step.actions or job.step.gates is not None]
        for uid, job in sorted(acted_on, key=lambda item: (item[1].view.created, item[0])):
            taken = self._take_actions(job, cycle.monotonic, planned=uid in cycle.decisions)
            actions += [JobAction(job.view, action) for action in taken]
            if job.step.gates is not None and not self._records[uid].attempts.holds_back(OpenGates, cycle.monotonic):
                gates.append((job.view, job.step.gates))
        return actions, gates

    def _take_actions(self, job: LiveJob, monotonic: float, *, planned: bool) -> list[Action]:
        """What is to be done for the job now, each new start in a place of those that there are."""
        step, attempts = job.step, self._records[job.view.uid].attempts
        if step.phase == JobPhase.FAILED:
            if out_of_restarts(job, attempts) or not failure_is_recorded(job):
                return []  # without a restart its pods stay, with their logs
            if attempts.pause is not None and not job.view.spec.suspend:
                return []  # and so they do until the next start is due
        return [action for action in step.actions if self._take(job, action, monotonic, planned=planned)]

    def _take(self, job: LiveJob, action: Action, monotonic: float, *, planned: bool) -> bool:
        if self._records[job.view.uid].attempts.holds_back(type(action), monotonic):
            return False
        if not isinstance(action, CreateIncarnation):
            return True
        # A new leader starts nothing before its first plan.
        return planned and self._creates.take(job.view.namespace, monotonic)
