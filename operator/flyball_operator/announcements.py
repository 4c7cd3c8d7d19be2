"""What is worth a Kubernetes Event: the moments that a user or an SRE would look for, told by what a status says newly.

An event follows from two statuses, the one before a write and the one after, so that every operator tells each moment
once, whoever led before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flyball_operator.events import Regarding
from flyball_operator.names import FLYBALL_API_VERSION
from flyball_operator.picture import NodePicture
from flyball_operator.requests import CapView, JobView
from flyball_operator.workloads import NodeView

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Announcement:
    """One event to be: why in one word, what in a sentence, and what was being done."""

    reason: str
    note: str
    action: str
    warning: bool = False


def regarding_job(job: JobView) -> Regarding:
    return Regarding(FLYBALL_API_VERSION, "EnergyAwareJob", job.name, job.uid, job.namespace)


def regarding_cap(cap: CapView) -> Regarding:
    return Regarding(FLYBALL_API_VERSION, "PowerCap", cap.name, cap.uid)


def regarding_node(node: NodeView) -> Regarding:
    return Regarding("v1", "Node", node.name, node.uid)


class _Change:
    """A condition before and after."""

    def __init__(self, before: Mapping[str, Any], after: Mapping[str, Any], kind: str) -> None:
        self._before, self._after = condition_of(before, kind), condition_of(after, kind)

    @property
    def message(self) -> str:
        return str(self._after.get("message") or "")

    def to_reason(self, reason: str) -> bool:
        return self._after.get("reason") == reason != self._before.get("reason")

    def to_status(self, status: str, *, after: str = "") -> bool:
        """It has become `status`; where `after` is given, only from that one."""
        was = self._before.get("status")
        return self._after.get("status") == status != was and after in ("", was)


def condition_of(status: Mapping[str, Any], kind: str) -> JsonObject:
    """A condition of a status, empty where it has none."""
    listed: list[JsonObject] = status.get("conditions") or []
    return next((item for item in listed if item.get("type") == kind), {})


def _placed(status: Mapping[str, Any]) -> tuple[int, list[str]]:
    allocation = status.get("allocation") or {}
    return allocation.get("gpus") or 0, [node["name"] for node in allocation.get("nodes") or ()]


def job_announcements(job: JobView, after: Mapping[str, Any], failure: str = "") -> list[Announcement]:
    """What a new status tells of a job that the one before did not; `failure` says how its last incarnation ended."""
    before = job.status
    said: list[Announcement] = []
    if job.unused_sections and before.get("observedGeneration") != job.generation:
        named = " and ".join(f"spec.{section}" for section in job.unused_sections)
        note = f"{named} cannot be made use of yet: the job is planned as if it were not there"
        said.append(Announcement("NotUsedYet", note, "Plan", warning=True))
    admitted = _Change(before, after, "Admitted")
    gpus, nodes = _placed(after)
    gpus_before, nodes_before = _placed(before)
    if admitted.to_reason("Admitted"):
        where = f"{gpus} GPUs on {', '.join(nodes)}: " if nodes else ""
        said.append(Announcement("Admitted", where + admitted.message, "Plan"))
    elif nodes and nodes_before and (gpus, nodes) != (gpus_before, nodes_before):
        was = f"{gpus_before} GPUs on {', '.join(nodes_before)}"
        note = f"from {was} to {gpus} GPUs on {', '.join(nodes)}: {admitted.message}"
        said.append(Announcement("Resized", note, "Resize"))
    if admitted.to_reason("Preempted"):
        said.append(Announcement("Preempted", admitted.message, "Plan"))
    if admitted.to_reason("InvalidSpec"):
        said.append(Announcement("InvalidSpec", admitted.message, "CreatePods", warning=True))
    failed, succeeded = _Change(before, after, "Failed"), _Change(before, after, "Succeeded")
    restarts = after.get("restarts") or 0
    if restarts > (before.get("restarts") or 0) and not failed.to_status("True"):
        note = f"incarnation {after.get('lastFailedIncarnation')} failed ({failure or 'no exit code'}); "
        note += f"restart {restarts} of {job.max_restarts}"
        said.append(Announcement("Restarting", note, "Restart", warning=True))
    if _Change(before, after, "DeadlineAtRisk").to_status("True"):
        note = _Change(before, after, "DeadlineAtRisk").message
        said.append(Announcement("DeadlineAtRisk", note, "Plan", warning=True))
    budget = _Change(before, after, "BudgetHealthy")
    if budget.to_reason("Exhausted"):
        note = f"{budget.message}; energy.onExhausted is {job.on_exhausted}"
        said.append(Announcement("BudgetExhausted", note, job.on_exhausted, warning=True))
    if succeeded.to_status("True"):
        said.append(Announcement("Succeeded", succeeded.message, "Finish"))
    if failed.to_status("True"):
        said.append(Announcement("Failed", failed.message, "Finish", warning=True))
    return said


def cap_announcements(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Announcement]:
    """What a new status tells of a cap that the one before did not.

    That a lower cap takes a moment to be enforced is no cause for alarm; that one that stood is not any more is.
    """
    said: list[Announcement] = []
    feasible, enforced = _Change(before, after, "Feasible"), _Change(before, after, "Enforced")
    breached = _Change(before, after, "Breached")
    if feasible.to_reason("Unreadable"):
        return [Announcement("Unreadable", feasible.message, "Read", warning=True)]
    if feasible.to_status("False"):
        said.append(Announcement("Infeasible", feasible.message, "Enforce", warning=True))
    if feasible.to_status("True", after="False"):
        said.append(Announcement("Feasible", feasible.message, "Enforce"))
    if enforced.to_status("False", after="True"):
        lowered = (after.get("effectiveWatts") or 0) < (before.get("effectiveWatts") or 0)
        if lowered:
            note = f"from {before.get('effectiveWatts')} W to {after.get('effectiveWatts')} W: {enforced.message}"
            said.append(Announcement("Lowering", note, "Enforce"))
        else:
            said.append(Announcement("NotEnforced", enforced.message, "Enforce", warning=True))
    if enforced.to_status("True", after="False"):
        said.append(Announcement("Enforced", enforced.message, "Enforce"))
    if breached.to_status("True"):
        said.append(Announcement("Breached", breached.message, "Measure", warning=True))
    return said


def node_state_word(picture: NodePicture) -> str:
    """A node's state, as far as anybody need be told of it: "new", "silent" or "ready"."""
    if not picture.acknowledged:
        return "new"
    return "ready" if picture.responsive else "silent"


def node_announcement(before: str, after: str, worst_watts: float) -> Announcement | None:
    """What is told of a node that goes from one state to another."""
    if after == before:
        return None
    if after == "silent":
        note = f"its agent has not acknowledged what it was granted; its {worst_watts:.0f} W stay reserved"
        return Announcement("NodeSilent", note, "Grant", warning=True)
    if after == "ready" and before == "silent":
        return Announcement("NodeAnswers", "its agent acknowledges its grants again", "Grant")
    if after == "ready":
        return Announcement("NodeArrived", "its agent has acknowledged its first grant: jobs may run there", "Grant")
    return None
