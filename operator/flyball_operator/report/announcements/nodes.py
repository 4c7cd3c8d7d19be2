"""The Events of nodes and their GPUs, and of caps and nodes that are held after their deletion."""

from __future__ import annotations

from flyball_api.gpu_node import GpuNode, GpuReport
from flyball_api.power_cap import DEFAULT_RELEASE_SECONDS, PowerCap

from flyball_operator.power.caps.memberships import LabelSync
from flyball_operator.power.holds import HoldAction, HoldChange
from flyball_operator.power.nodes.info import NodeInfo
from flyball_operator.report.announcements.announcement import Announcement


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
    """The Event of a node whose grant the API server refuses because of the entries for its jobs."""
    note = f"the API server refuses the grant of the jobs here; all their GPUs get the smallest limit: {message}"
    return Announcement("GrantRefused", note, "Grant", warning=True)
