"""The Events of training jobs and of the energy quotas that they count against."""

from __future__ import annotations

from flyball_api.energy.quota import EnergyQuotaStatus
from flyball_api.energy_aware_job import EnergyAwareJob, EnergyAwareJobStatus
from flyball_planner.decisions.texts import gpus_text
from flyball_planner.models.priors import is_known_model_class, nearest_model_classes
from flyball_planner.snapshot import Admission
from msgspec.structs import replace

from flyball_operator.jobs.starts.obstacles import PLACED_OBSTACLES, READY_OBSTACLES
from flyball_operator.jobs.starts.pauses import NOT_STARTED, POWER_PAUSED
from flyball_operator.jobs.status.contents import LONG_WAIT_SECONDS
from flyball_operator.report.announcements.announcement import Announcement, ConditionChange


def _placed(status: EnergyAwareJobStatus) -> tuple[int, list[str]]:
    allocation = status.allocation
    return (0, []) if allocation is None else (allocation.gpus, [node.name for node in allocation.nodes])


def _waited_long(status: EnergyAwareJobStatus) -> bool:
    since, time = status.waiting_since, status.time
    return since is not None and time is not None and (time - since).total_seconds() >= LONG_WAIT_SECONDS


def _lost(status: EnergyAwareJobStatus) -> int:
    return 0 if status.progress is None else status.progress.iterations_lost or 0


def _how_it_ended(status: EnergyAwareJobStatus) -> str:
    """The end of the last incarnation, in a few words."""
    if not status.failures:
        return "nobody knows how"
    failure = status.failures[0]
    where = f"pod {failure.pod}{f' on {failure.node}' if failure.node else ''}: " if failure.pod else ""
    code = "" if failure.exit_code is None else f", exit code {failure.exit_code}"
    return f"{where}{failure.reason}{code}{f': {failure.message}' if failure.message else ''}"


# Why a job gives its GPUs back, where no Event of that name says so.
PAUSES = (str(Admission.WAITING_FOR_POWER), str(Admission.WAITING_FOR_GPUS), POWER_PAUSED)
# Why a job is not admitted, with what its Event says was being done.
REFUSALS = {
    "InvalidSpec": "CreatePods",
    "UnknownGpuResource": "Plan",
    "NotSupported": "Plan",
    "BudgetTooSmall": "Plan",
    "NoNodeFits": "Plan",
    "ExceedsCluster": "Plan",
    "QuotaExceeded": "Plan",
    str(Admission.PLANNING_FAILED): "Plan",
}


def quota_announcements(before: EnergyQuotaStatus, after: EnergyQuotaStatus) -> list[Announcement]:
    """The Events between a quota's status and the next one."""
    within = ConditionChange(before, after, "WithinQuota")
    if within.to_status("False"):
        return [Announcement("EnergySpent", within.message, "Plan", warning=True)]
    if within.to_status("True", after="False"):
        return [Announcement("EnergyAvailable", "the namespace's jobs may use energy again", "Plan")]
    return []


def job_announcements(job: EnergyAwareJob, after: EnergyAwareJobStatus) -> list[Announcement]:
    """The Events between a job's status and the next one, `after`."""
    before = job.status
    found = (
        _choices(job, after) + _placements(before, after) + _stops_and_refusals(before, after) + _failures(job, after)
    )
    found += _start_obstacles(before, after) + _bounds_at_risk(job, after) + _pipeline_plans(before, after)
    succeeded, failed = ConditionChange(before, after, "Succeeded"), ConditionChange(before, after, "Failed")
    if succeeded.to_status("True"):
        found.append(Announcement("Succeeded", succeeded.message, "Finish"))
    if failed.to_status("True"):
        found.append(Announcement("Failed", failed.message, "Finish", warning=True))
    return found


def _choices(job: EnergyAwareJob, after: EnergyAwareJobStatus) -> list[Announcement]:
    """What was chosen for a job before it is planned: the model that it is guessed by, and its batch size."""
    before = job.status
    found: list[Announcement] = []
    model_class = job.spec.training.model_class
    if before.observed_generation != job.generation and model_class and not is_known_model_class(model_class):
        near = ", ".join(nearest_model_classes(model_class))
        note = f"spec.training.modelClass {model_class} is not known (near it: {near}); "
        note += "until the job is measured, time and energy are guessed as of a model in the middle of those known"
        found.append(Announcement("UnknownModelClass", note, "Plan", warning=True))
    run, run_before = after.recurrence, before.recurrence
    if run is not None and (run_before is None or run_before.decision != run.decision):
        found.append(Announcement("BatchSizeChosen", f"decision {run.decision}: {run.message}", "Plan"))
    return found


def _placements(before: EnergyAwareJobStatus, after: EnergyAwareJobStatus) -> list[Announcement]:
    """That a job has GPUs, or others than before."""
    found: list[Announcement] = []
    admitted = ConditionChange(before, after, "Admitted")
    gpus, nodes = _placed(after)
    gpus_before, nodes_before = _placed(before)
    if admitted.to_reason("Admitted"):
        where = f"{gpus_text(gpus)} on {', '.join(nodes)}: " if nodes else ""
        if before.start_time is None:
            found.append(Announcement("Admitted", where + admitted.message, "Plan"))
        else:
            found.append(Announcement("Resumed", where + admitted.message, "Plan"))
    elif nodes and nodes_before and (gpus, nodes) != (gpus_before, nodes_before):
        was = f"{gpus_text(gpus_before)} on {', '.join(nodes_before)}"
        note = f"from {was} to {gpus_text(gpus)} on {', '.join(nodes)}: {admitted.message}"
        found.append(Announcement("Resized", note, "Resize"))
    return found


def _stops_and_refusals(before: EnergyAwareJobStatus, after: EnergyAwareJobStatus) -> list[Announcement]:
    """That a job gives its GPUs back or gets none, and why."""
    found: list[Announcement] = []
    gpus_before, nodes_before = _placed(before)
    _, nodes = _placed(after)
    admitted = ConditionChange(before, after, "Admitted")
    if admitted.to_reason("Preempted"):
        found.append(Announcement("Preempted", admitted.message, "Plan"))
    given_back = f"its {gpus_text(gpus_before)} on {', '.join(nodes_before)} are given back: "
    if nodes_before and not nodes and any(map(admitted.to_reason, PAUSES)):
        # Whoever sees its pods go looks for a word of it.
        found.append(Announcement("Paused", given_back + admitted.message, "Stop"))
    if admitted.to_reason("Suspended"):
        note = (given_back if nodes_before else "it holds nothing: ") + admitted.message
        found.append(Announcement("Suspended", note, "Stop"))
    if after.waiting_since is not None and _waited_long(after) and not _waited_long(before):
        place = (
            "" if after.queue is None else f"; it is number {after.queue.position} of {after.queue.waiting} that wait"
        )
        note = f"for more than a minute: {admitted.message.removesuffix('.')}{place}"
        found.append(Announcement("Waiting", note, "Plan"))
    found += [
        Announcement(reason, admitted.message, action, warning=True)
        for reason, action in REFUSALS.items()
        if admitted.to_reason(reason)
    ]
    return found


def _failures(job: EnergyAwareJob, after: EnergyAwareJobStatus) -> list[Announcement]:
    """Incarnations that ended before the job did, and the iterations that were lost with them."""
    before = job.status
    found: list[Announcement] = []
    failed = ConditionChange(before, after, "Failed")
    restarts = after.restarts or 0
    if restarts > (before.restarts or 0) and not failed.to_status("True"):
        note = f"incarnation {after.last_failed_incarnation} failed: {_how_it_ended(after)}; "
        note += f"restart {restarts} of {job.spec.failure_policy.max_restarts}"
        found.append(Announcement("Restarting", note, "Restart", warning=True))
    newest = (after.failures or (None,))[0]
    if newest is not None and not newest.counted and newest != (before.failures or (None,))[0]:
        note = f"incarnation {newest.incarnation} was ended by others, which does not count: {_how_it_ended(after)}"
        found.append(Announcement("Disrupted", note, "Restart", warning=True))
    lost, lost_before = _lost(after), _lost(before)
    if lost > lost_before and after.progress is not None:
        note = (
            f"{lost - lost_before} iterations have to be done again: incarnation {after.progress.incarnation} goes on "
        )
        note += f"from {after.progress.iterations} at the most, an older checkpoint or none"
        found.append(Announcement("IterationsLost", note, "Restart", warning=True))
    return found


def _start_obstacles(before: EnergyAwareJobStatus, after: EnergyAwareJobStatus) -> list[Announcement]:
    """What keeps the pods of a job that has GPUs from running."""
    found: list[Announcement] = []
    for kind, reasons in (("Placed", PLACED_OBSTACLES), ("PodsReady", READY_OBSTACLES)):
        change = ConditionChange(before, after, kind)
        found += [
            Announcement(reason, change.message, "Start", warning=True)
            for reason in sorted(reasons)
            if change.to_reason(reason)
        ]
    admitted = ConditionChange(before, after, "Admitted")
    if admitted.to_reason(NOT_STARTED):
        note = f"its GPUs and watts are given back: {admitted.message}"
        found.append(Announcement("StartTimedOut", note, "GiveBack", warning=True))
    return found


def _bounds_at_risk(job: EnergyAwareJob, after: EnergyAwareJobStatus) -> list[Announcement]:
    """A job's deadline, bounds and energy budget that are not kept, or will not be."""
    before = job.status
    found: list[Announcement] = []
    deadline = ConditionChange(before, after, "DeadlineAtRisk")
    if deadline.to_status("True"):
        found.append(Announcement("DeadlineAtRisk", deadline.message, "Plan", warning=True))
    bounds = ConditionChange(before, after, "BoundsKept")
    if bounds.to_status("False"):
        found.append(Announcement("BoundsOutOfRange", bounds.message, "Plan", warning=True))
    budget = ConditionChange(before, after, "BudgetHealthy")
    if budget.to_reason("ProjectedOverBudget"):
        found.append(Announcement("ProjectedOverBudget", budget.message, "Plan", warning=True))
    if budget.to_reason("Exhausted"):
        note = f"{budget.message}; energy.onExhausted is {job.spec.energy.on_exhausted}"
        found.append(Announcement("BudgetExhausted", note, job.spec.energy.on_exhausted, warning=True))
    return found


def _pipeline_plans(before: EnergyAwareJobStatus, after: EnergyAwareJobStatus) -> list[Announcement]:
    """The plans that were made of what a job measured of its pipeline."""
    found: list[Announcement] = []
    plan, plan_before = after.measured_plan, before.measured_plan
    if plan is not None and (plan_before is None or plan != replace(plan_before, time=plan.time)):
        if plan.outcome == "Made":
            found.append(Announcement("PipelinePlanned", plan.message, "Plan"))
        else:
            found.append(Announcement("PipelineNotPlanned", plan.message, "Plan", warning=True))
    return found
