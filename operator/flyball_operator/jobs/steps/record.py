"""What the job controller remembers of one job from cycle to cycle, all of which it could lose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from flyball_api.energy_aware_job import EnergyAwareJob, MeasuredPlan, PipelineParallelism, RecurringRun, Straggler
from flyball_api.gpu_node import PodReport, StageReport
from flyball_api.workloads import PodView
from flyball_planner.shifting import Signal
from flyball_planner.snapshot import Admission, Allocation, JobDecision

from flyball_operator.jobs.feasibility.fitting import Fit, on_gpu_model
from flyball_operator.jobs.pipeline_plans import PlanPipeline
from flyball_operator.jobs.preemption import preempted_for, still_preempted
from flyball_operator.jobs.runs.lifecycle import JobPhase, JobStep
from flyball_operator.jobs.runs.memory import JobMemory, Refusal
from flyball_operator.jobs.runs.progress import JobProgress, ProgressReader, recorded_progress
from flyball_operator.jobs.starts.attempts import Attempts, RestartRules
from flyball_operator.jobs.starts.pauses import refusal_seconds
from flyball_operator.jobs.status.updates import StatusHistory
from flyball_operator.jobs.steps.step import LiveJob
from flyball_operator.power.nodes.info import NodeInfo


@dataclass(frozen=True, slots=True)
class Waited:
    """A job that waits, and has nothing yet: as long as all this is the same, so is what follows from it."""

    live: LiveJob
    decision: JobDecision | None
    fit: Fit
    invalid: str


class Idle(NamedTuple):
    """What a job's status followed from when it last did nothing but wait."""

    live: LiveJob
    decision: JobDecision | None
    ranges: object
    values: tuple[object, ...]


@dataclass(slots=True)
class JobRecord:
    """What is remembered of one job from cycle to cycle."""

    reader: ProgressReader
    known_since: float
    updated_at: float
    attempts: Attempts
    last_resize: datetime | None
    invalid: str  # the API server's message where it refuses the pods of generation `invalid_generation`
    invalid_generation: int
    refused_times: int = 0  # how often its pods were refused on end, and when the API server is asked again
    ask_again_at: float = float("-inf")
    stop_reason: str = "the plan gives it no GPUs for now"
    checked_generation: int = 0  # the last one whose template the API server was asked about
    check_at: float = float("-inf")
    # When its pipeline's pods were sent their point last, and which straggler was in it.
    point_sent_at: float = float("-inf")
    straggler_sent: Straggler | None = None
    plan_at: float = float("-inf")  # not before this is a plan made again of what it has measured of its pipeline
    measured_plan: MeasuredPlan | None = None  # what became of the last one
    # By which pipeline and measurements it was looked at whether one is to be made, and which one (None: none).
    to_plan: tuple[tuple[PipelineParallelism, tuple[StageReport, ...]], PlanPipeline | None] | None = None
    preempted: str = ""  # for whom it was paused, as long as it has not been given GPUs again
    budget_checked: tuple[int, Refusal | None] = (0, None)  # the generation that was looked at, and what was found
    # For which generation and signal it was looked at whether the job is put off, what was found, and from when on that
    # has to be looked at again.
    put_off: tuple[tuple[int, Signal], Refusal | None] | None = None
    put_off_until: float = float("-inf")
    status: StatusHistory = field(default_factory=StatusHistory)
    # Of a job that did nothing but wait in the last cycle, all that followed from what stood, and from what it did.
    waited: Waited | None = None
    idle: Idle | None = None

    @staticmethod
    def of(job: EnergyAwareJob, rules: RestartRules, now: datetime, monotonic: float) -> JobRecord:
        """What the operator before this one knew of a job, by its status."""
        return JobRecord(
            reader=ProgressReader(recorded_progress(job)),
            known_since=monotonic,
            updated_at=monotonic,
            attempts=Attempts.of(job, rules, now, monotonic),
            last_resize=job.status.last_resize_time,
            invalid=job.refusal,
            invalid_generation=job.generation,
            ask_again_at=monotonic + refusal_seconds(0),
            preempted=preempted_for(job),
            measured_plan=job.status.measured_plan,
            checked_generation=job.status.observed_generation or 0,
        )

    @property
    def progress(self) -> JobProgress:
        return self.reader.progress

    def refusal(self, job: EnergyAwareJob) -> Refusal | None:
        """Why the API server refuses the pods of the job's present spec; None where it has not."""
        if self.invalid and self.invalid_generation == job.generation:
            return Refusal("InvalidSpec", self.invalid)
        return None

    def note_refused(self, job: EnergyAwareJob, words: str, monotonic: float) -> None:
        """Remember why the API server refuses the job's pods, until it is asked again: after longer each time.

        Nothing in the job need change for that to be over: whose admission policy it was may mend that.
        """
        if self.invalid_generation != job.generation:
            self.refused_times = 0
        self.invalid, self.invalid_generation = words, job.generation
        self.ask_again_at = monotonic + refusal_seconds(self.refused_times)
        self.refused_times += 1

    def asks_again(self, job: EnergyAwareJob, monotonic: float) -> bool:
        """Whether it is time to ask the API server anew about pods that it has refused."""
        return self.refusal(job) is not None and monotonic >= self.ask_again_at

    def seconds_put_off(self, job: EnergyAwareJob, monotonic: float) -> float:
        """After how many seconds it has to be looked at again whether the job is put off; infinite where it is not, and
        where that was due before this cycle: then the signal is gone, or something else keeps the job from starting."""
        put_off = job.spec.flexible_until is not None and self.put_off is not None and self.put_off[1] is not None
        return self.put_off_until - monotonic if put_off and self.put_off_until >= monotonic else float("inf")

    def template_is_unanswered(self, job: EnergyAwareJob) -> bool:
        """Whether the API server has not answered yet to a trial of the present template."""
        return self.checked_generation != job.generation and self.check_at == float("-inf")

    def still_waiting(self, job: EnergyAwareJob, decision: JobDecision | None, fit: Fit) -> LiveJob | None:
        """A job of which nothing stands, as it was worked out in the last cycle; None where that is to be done anew."""
        before = self.waited
        if before is None or before.live.view is not job or before.decision is not decision:
            return None
        same = (before.fit is fit or before.fit == fit) and before.invalid == self.invalid
        return before.live if same else None

    def note_waiting(
        self,
        live: LiveJob,
        decision: JobDecision | None,
        fit: Fit,
        *,
        untouched: bool,
    ) -> None:
        """Remember a waiting job's decision and fit, so that later cycles need not work them out while nothing has changed.

        Only of a job that is `untouched` (without pods, batch Jobs and reports), and of which nothing follows from the time
        or from the nodes.
        """
        spec = live.view.spec
        budget_known = spec.energy.budget_kilojoules is None or self.budget_checked[0] == live.view.generation
        rests = live.step.phase == JobPhase.WAITING and self.attempts.at_rest and self.progress.at_rest
        timeless = spec.flexible_until is None and spec.recurrence is None and budget_known
        keep = untouched and rests and timeless
        self.waited = Waited(live, decision, fit, self.invalid) if keep else None

    def take_in_decision(
        self, job: EnergyAwareJob, decision: JobDecision, pods: Sequence[PodView], now: datetime, monotonic: float
    ) -> None:
        """Remember what the plan has decided: why its pods would be stopped, for whom, and whether it waits for watts."""
        self.stop_reason = decision.explanation
        # Of every plan, also where no status is due by it: the next one knows no more for whom the job was paused.
        _, self.preempted = still_preempted(self.preempted, decision)
        begun_to_run = any(not pod.gated and not pod.finished and not pod.deleting for pod in pods)
        if begun_to_run and decision.admission is Admission.WAITING_FOR_POWER:
            self.attempts.paused_for_power(job, self.last_resize, decision.explanation, now, monotonic)

    def note_stop_reason(self, refusal: Refusal | None) -> None:
        """Remember why its pods would be stopped where that is not the plan's decision."""
        if refusal is not None:
            self.stop_reason = refusal.message
        if self.attempts.pause is not None and self.attempts.gives_back:
            self.stop_reason = self.attempts.pause.message

    def take_in_reports(
        self,
        job: EnergyAwareJob,
        reports: Sequence[tuple[str, PodReport]],
        step: JobStep,
        decision: JobDecision | None,
        monotonic: float,
    ) -> None:
        """Bring the progress up to date: by the `(node, report)` of its pods, else by what the plan's model says."""
        running = step.phase == JobPhase.RUNNING and step.current is not None
        rate = 0.0
        if running and decision is not None and decision.predicted_iteration_seconds > 0:
            rate = 1.0 / decision.predicted_iteration_seconds
        self.reader.take_in(
            reports,
            incarnation=step.current.incarnation if step.current is not None else job.last_incarnation,
            running_gpus=step.current.gpus if running and step.current is not None else 0,
            elapsed_seconds=max(0.0, monotonic - self.updated_at),
            model_iterations_per_second=rate,
        )
        self.updated_at = monotonic

    def memory(
        self,
        job: EnergyAwareJob,
        step: JobStep,
        pods: Sequence[PodView],
        current: Allocation | None,
        refusal: Refusal | None,
        fit: Fit,
        run: RecurringRun | None,
        nodes: Mapping[str, NodeInfo],
    ) -> JobMemory:
        """What plans and statuses are made from beside the job's spec, after this `step`; `current` is what it has."""
        return JobMemory(
            self.progress,
            current,
            running=step.phase == JobPhase.RUNNING,
            holds_gpus=any(not pod.gated and not pod.finished for pod in pods),
            refusal=refusal,
            given_back=self.attempts.gives_back,
            eligible_nodes=on_gpu_model(fit.eligible_nodes, job.run, nodes),
            gpus_max=fit.gpus_max,
            bounded_by=fit.bounded_by,
            passed_over=fit.passed_over,
            watts_per_gpu=fit.watts_per_gpu,
            run=run,
        )
