"""What is worth a Kubernetes Event: the moments that a user or an SRE would look for.

An Event follows from two statuses, the one before a write and the one after, so that each moment is recorded once,
however often the leader changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from flyball_api.conditions import StoredCondition
from flyball_api.energy_aware_job import EnergyAwareJob, EnergyAwareJobStatus
from flyball_api.energy_quota import EnergyQuota, EnergyQuotaStatus
from flyball_api.gpu_node import GpuNode, GpuReport
from flyball_api.names import FLYBALL_API_VERSION
from flyball_api.power_cap import DEFAULT_RELEASE_SECONDS, PowerCap, PowerCapStatus
from flyball_api.workloads import NodeView
from flyball_planner.decisions.texts import gpus_text
from flyball_planner.models.priors import is_known_model_class, nearest_model_classes
from flyball_planner.snapshot import Admission
from msgspec.structs import replace

from flyball_operator.jobs.starts.obstacles import PLACED_OBSTACLES, READY_OBSTACLES
from flyball_operator.jobs.starts.pauses import NOT_STARTED, POWER_PAUSED
from flyball_operator.jobs.status.contents import LONG_WAIT_SECONDS
from flyball_operator.power.caps.memberships import LabelSync
from flyball_operator.power.holds import HoldAction, HoldChange
from flyball_operator.power.nodes.info import NodeInfo
from flyball_operator.report.events import Regarding

Status = EnergyAwareJobStatus | EnergyQuotaStatus | PowerCapStatus


@dataclass(frozen=True, slots=True)
class Announcement:
    """One Event to be recorded: its reason in one word, what happened in a sentence, and what was being done."""

    reason: str
    note: str
    action: str
    warning: bool = False


def regarding_job(job: EnergyAwareJob) -> Regarding:
    return Regarding(FLYBALL_API_VERSION, "EnergyAwareJob", job.name, job.uid, job.namespace)


def regarding_cap(cap: PowerCap) -> Regarding:
    return Regarding(FLYBALL_API_VERSION, "PowerCap", cap.name, cap.uid)


def regarding_quota(quota: EnergyQuota) -> Regarding:
    return Regarding(FLYBALL_API_VERSION, "EnergyQuota", quota.name, quota.uid, quota.namespace)


def regarding_node(node: NodeView) -> Regarding:
    return Regarding("v1", "Node", node.name, node.uid)


def regarding_gpu_node(gpu_node: GpuNode) -> Regarding:
    return Regarding(FLYBALL_API_VERSION, "GPUNode", gpu_node.name, gpu_node.metadata.uid)


class _Change:
    """A condition before and after."""

    def __init__(self, before: Status, after: Status, kind: str) -> None:
        self._before, self._after = _condition(before, kind), _condition(after, kind)

    @property
    def message(self) -> str:
        return self._after.message

    def to_reason(self, reason: str) -> bool:
        return self._after.reason == reason != self._before.reason

    def to_status(self, status: str, *, after: str = "") -> bool:
        """It has become `status`; where `after` is given, only from that one."""
        was = self._before.status
        return self._after.status == status != was and after in ("", was)

    @property
    def proven_again(self) -> bool:
        """It is true, and was unknown because the proof of it had become stale."""
        return self._after.is_true and self._before.reason == "ProofStale"


def _condition(status: Status, kind: str) -> StoredCondition:
    """A condition of a status, with an empty status and reason where it has none."""
    return next((item for item in status.conditions if item.type == kind), StoredCondition(kind, ""))


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
}


def quota_announcements(before: EnergyQuotaStatus, after: EnergyQuotaStatus) -> list[Announcement]:
    """The Events between a quota's status and the next one."""
    within = _Change(before, after, "WithinQuota")
    if within.to_status("False"):
        return [Announcement("EnergySpent", within.message, "Plan", warning=True)]
    if within.to_status("True", after="False"):
        return [Announcement("EnergyAvailable", "the namespace's jobs may use energy again", "Plan")]
    return []


def job_announcements(job: EnergyAwareJob, after: EnergyAwareJobStatus) -> list[Announcement]:
    """The Events between a job's status and the next one, `after`."""
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
    admitted = _Change(before, after, "Admitted")
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
    failed, succeeded = _Change(before, after, "Failed"), _Change(before, after, "Succeeded")
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
    for kind, reasons in (("Placed", PLACED_OBSTACLES), ("PodsReady", READY_OBSTACLES)):
        change = _Change(before, after, kind)
        found += [
            Announcement(reason, change.message, "Start", warning=True)
            for reason in sorted(reasons)
            if change.to_reason(reason)
        ]
    if admitted.to_reason(NOT_STARTED):
        note = f"its GPUs and watts are given back: {admitted.message}"
        found.append(Announcement("StartTimedOut", note, "GiveBack", warning=True))
    if _Change(before, after, "DeadlineAtRisk").to_status("True"):
        note = _Change(before, after, "DeadlineAtRisk").message
        found.append(Announcement("DeadlineAtRisk", note, "Plan", warning=True))
    bounds = _Change(before, after, "BoundsKept")
    if bounds.to_status("False"):
        found.append(Announcement("BoundsOutOfRange", bounds.message, "Plan", warning=True))
    budget = _Change(before, after, "BudgetHealthy")
    if budget.to_reason("ProjectedOverBudget"):
        found.append(Announcement("ProjectedOverBudget", budget.message, "Plan", warning=True))
    if budget.to_reason("Exhausted"):
        note = f"{budget.message}; energy.onExhausted is {job.spec.energy.on_exhausted}"
        found.append(Announcement("BudgetExhausted", note, job.spec.energy.on_exhausted, warning=True))
    plan, plan_before = after.measured_plan, before.measured_plan
    if plan is not None and (plan_before is None or plan != replace(plan_before, time=plan.time)):
        if plan.outcome == "Made":
            found.append(Announcement("PipelinePlanned", plan.message, "Plan"))
        else:
            found.append(Announcement("PipelineNotPlanned", plan.message, "Plan", warning=True))
    if succeeded.to_status("True"):
        found.append(Announcement("Succeeded", succeeded.message, "Finish"))
    if failed.to_status("True"):
        found.append(Announcement("Failed", failed.message, "Finish", warning=True))
    return found


def cap_announcements(before: PowerCapStatus, after: PowerCapStatus) -> list[Announcement]:
    """The Events between a cap's status and the next one, `after`.

    A cap that was lowered takes a moment to be enforced: no warning. One that was not and is exceeded is worth one.
    """
    found: list[Announcement] = []
    feasible, enforced = _Change(before, after, "Feasible"), _Change(before, after, "Enforced")
    breached = _Change(before, after, "Breached")
    if feasible.to_reason("Unreadable"):
        return [Announcement("Unreadable", feasible.message, "Read", warning=True)]
    if feasible.to_status("False"):
        found.append(Announcement("Infeasible", feasible.message, "Enforce", warning=True))
    if feasible.to_status("True", after="False"):
        found.append(Announcement("Feasible", feasible.message, "Enforce"))
    if enforced.to_status("False", after="True"):
        lowered = (after.effective_watts or 0) < (before.effective_watts or 0)
        if lowered:
            note = f"from {before.effective_watts} W to {after.effective_watts} W: {enforced.message}"
            found.append(Announcement("Lowering", note, "Enforce"))
        else:
            found.append(Announcement("NotEnforced", enforced.message, "Enforce", warning=True))
    if enforced.to_reason("ProofStale"):
        found.append(Announcement("ProofStale", enforced.message, "Enforce", warning=True))
    if enforced.to_status("True", after="False") or enforced.proven_again:
        found.append(Announcement("Enforced", enforced.message, "Enforce"))
    if breached.to_status("True"):
        found.append(Announcement("Breached", breached.message, "Measure", warning=True))
    silent = _Change(before, after, "MeterSilent")
    if silent.to_status("True"):
        found.append(Announcement("MeterSilent", silent.message, "Measure", warning=True))
    if silent.to_status("False", after="True"):
        found.append(Announcement("MeterReads", silent.message, "Measure"))
    schedule = _Change(before, after, "ScheduleInvalid")
    if schedule.to_status("True"):
        found.append(Announcement("ScheduleInvalid", schedule.message, "Read", warning=True))
    if enforced.to_reason("NoNodes"):
        found.append(Announcement("NoNodes", enforced.message, "Enforce", warning=True))
    emergency = _Change(before, after, "Emergency")
    if emergency.to_status("True"):
        found.append(Announcement("EmergencyDeclared", emergency.message, "Enforce", warning=True))
    if emergency.to_status("False", after="True"):
        found.append(Announcement("EmergencyEnded", emergency.message, "Enforce"))
    return found


def node_readiness(info: NodeInfo) -> str:
    """A node's state, as far as Events go: "new", "doubted", "unresponsive" or "ready"."""
    if not info.acknowledged:
        return "new"
    if info.doubt:
        return "doubted"
    return "ready" if info.responsive else "unresponsive"


def node_announcement(before: str, after: str, committed_watts: float) -> Announcement | None:
    """The Event of a node that goes from one state to another; None where that is not worth one."""
    if after == before:
        return None
    if after == "unresponsive":
        note = f"its agent has not acknowledged what it was granted; its {committed_watts:.0f} W stay reserved"
        return Announcement("NodeUnresponsive", note, "Grant", warning=True)
    if after == "doubted":
        note = "what its agent acknowledged may not be true any more; "
        note += f"{committed_watts:.0f} W are reserved, the most that it can draw"
        return Announcement("NodeProofStale", note, "Grant", warning=True)
    if after == "ready" and before in ("unresponsive", "doubted"):
        return Announcement("NodeAnswers", "its agent acknowledges its grants again", "Grant")
    if after == "ready":
        return Announcement("NodeArrived", "its agent has acknowledged its first grant: jobs may run there", "Grant")
    return None


def gpu_announcements(before: GpuReport, after: GpuReport) -> list[Announcement]:
    """The Events of one GPU between two reports of its agent: it fails or is well again, or its driver reports an error."""
    last = {item.type: item for item in before.conditions}
    new = {
        item.type: item
        for item in after.conditions
        if item.type not in last or (last[item.type].status, last[item.type].reason) != (item.status, item.reason)
    }
    found = []
    health, error = new.get("Healthy"), new.get("XidError")
    if health is not None and health.is_false:
        note = health.message or f"{after.uuid}: {health.reason}"
        found.append(Announcement("GpuUnhealthy", note, "Govern", warning=True))
    elif health is not None and not before.healthy:
        found.append(Announcement("GpuHealthy", f"{after.uuid} can be governed again", "Govern"))
    if error is not None and error.is_true:
        note = error.message or f"{after.uuid}: {error.reason}"
        found.append(Announcement("XidError", note, "Govern", warning=True))
    return found


def labels_announcement(sync: LabelSync) -> Announcement | None:
    """The Event of a node whose labels take it out of caps; None where they do not."""
    if sync.left:
        why = "by the word of its annotation" if sync.by_annotation else "it has acknowledged the smallest limits"
        note = f"it counts under {', '.join(sync.left)} no more: its labels are others, and {why}"
        return Announcement("LeftCap", note, "Grant")
    if sync.former_labels:
        note = "by its labels of now it would leave a cap; it counts there until it has been at the smallest limits"
        return Announcement("LeavesCap", note, "Grant", warning=True)
    return None


def hold_announcement(change: HoldChange) -> Announcement | None:
    """The Event of an object that its deletion has not ended, once it is released; None where it is only held."""
    if change.action is HoldAction.HOLD:
        return None
    why = "by the word of its annotation" if change.item.release_asked else "its releaseSeconds are over"
    return Announcement("Released", f"it was deleted, and is held no more: {why}", "Release")


def deletion_announcement(item: PowerCap | GpuNode) -> Announcement:
    """The Event of an object that somebody has deleted, and which goes on holding."""
    until = 'until its annotation flyball.dev/release is "true"'
    if isinstance(item, PowerCap):
        seconds = DEFAULT_RELEASE_SECONDS if item.spec is None else item.spec.release_seconds
        until = f"for {seconds} s more, or {until}"
    note = f"it was deleted; what it holds is held {until}"
    return Announcement("HeldAfterDeletion", note, "Release", warning=True)


def unreadable_part_announcement(problem: str) -> Announcement:
    """The Event of a part of a status that cannot be read; `problem` has its path."""
    return Announcement("PartLeftOut", f"left out: {problem}; the rest counts", "Read", warning=True)


def refused_grant_announcement(message: str) -> Announcement:
    """The Event of a node whose grant the API server refuses for what it says of the jobs there."""
    note = f"the API server refuses the grant of the jobs here; all their GPUs get the smallest limit: {message}"
    return Announcement("GrantRefused", note, "Grant", warning=True)
