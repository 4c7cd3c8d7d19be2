"""Writes the statuses of caps and jobs, and records the Kubernetes Events that follow from what changed in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from flyball_api.energy.quota import EnergyQuota, EnergyQuotaStatus
from flyball_api.energy_aware_job import EnergyAwareJob, EnergyAwareJobStatus
from flyball_api.gpu_node import GpuNode, GpuReport
from flyball_api.power_cap import PowerCap, PowerCapStatus
from flyball_api.values.units import MILLIWATTS_PER_WATT

from flyball_operator.cluster.outcome import WriteResult
from flyball_operator.jobs.plain_jobs import REASONS, PlainJobVerdict
from flyball_operator.jobs.steps.step import LiveJob
from flyball_operator.power.caps.memberships import LabelSync
from flyball_operator.power.caps.status_writes import CapStatusWrite
from flyball_operator.power.cycle import PowerState
from flyball_operator.power.holds import HoldChange, is_held
from flyball_operator.power.nodes.info import NodeInfo
from flyball_operator.report.announcements.announcement import (
    Announcement,
    regarding_cap,
    regarding_gpu_node,
    regarding_job,
    regarding_node,
    regarding_quota,
)
from flyball_operator.report.announcements.caps import cap_announcements
from flyball_operator.report.announcements.jobs import job_announcements, quota_announcements
from flyball_operator.report.announcements.nodes import (
    deletion_announcement,
    gpu_announcements,
    hold_announcement,
    labels_announcement,
    node_announcement,
    node_readiness,
    refused_grant_announcement,
    unreadable_part_announcement,
)
from flyball_operator.report.events import Regarding
from flyball_operator.report.limited_pods import LimitedPods

JsonObject = dict[str, Any]


class StatusWrites(Protocol):
    """What the reporter needs of the executor."""

    async def write_cap_status(self, cap: PowerCap, status: PowerCapStatus) -> WriteResult: ...

    async def write_job_status(self, job: EnergyAwareJob, status: EnergyAwareJobStatus) -> WriteResult: ...

    async def write_quota_status(self, quota: EnergyQuota, status: EnergyQuotaStatus) -> WriteResult: ...


class EventSink(Protocol):
    """Where Events are recorded."""

    @property
    def room(self) -> int: ...

    def record(self, regarding: Regarding, reason: str, note: str, *, action: str, warning: bool = False) -> None: ...


class Reporter:
    """Writes statuses, and records the Events that follow from what changed in them."""

    def __init__(self, executor: StatusWrites, events: EventSink | None = None) -> None:
        self._executor = executor
        self._events = events
        self._node_states: dict[str, str] | None = None
        self._problems: dict[str, tuple[str, ...]] = {}  # by the GPUNode's UID
        self._gpus: dict[str, tuple[GpuReport, ...]] = {}  # as they were reported last, by the node's name
        self._limited_pods = LimitedPods()
        self._deleted: frozenset[str] = frozenset()  # UIDs of objects whose deletion has been told

    async def write_cap(self, item: CapStatusWrite) -> WriteResult:
        """Write a cap's new status, and record the Events that follow from what changed in it."""
        result = await self._executor.write_cap_status(item.cap, item.status)
        if result.done:
            self._announce(regarding_cap(item.cap), cap_announcements(item.cap.status, item.status))
        return result

    async def write_job(self, job: LiveJob, status: EnergyAwareJobStatus) -> WriteResult:
        """Write a job's new status, and record the Events that follow from what changed in it."""
        result = await self._executor.write_job_status(job.view, status)
        if result.done:
            self._announce(regarding_job(job.view), job_announcements(job.view, status))
        return result

    async def write_quota(self, quota: EnergyQuota, status: EnergyQuotaStatus) -> WriteResult:
        """Write a quota's new status, and record the Events that follow from what changed in it."""
        result = await self._executor.write_quota_status(quota, status)
        if result.done:
            self._announce(regarding_quota(quota), quota_announcements(quota.status, status))
        return result

    def announce_nodes(self, nodes: Mapping[str, NodeInfo]) -> None:
        """Record which nodes arrived, stopped answering or answer again; those that a new leader finds are not new."""
        states = {name: node_readiness(info) for name, info in nodes.items()}
        before, self._node_states = self._node_states, states
        if before is None:
            return
        for name, info in nodes.items():
            watts = info.power.committed.limit_milliwatts / MILLIWATTS_PER_WATT
            announcement = node_announcement(before.get(name, "new"), states[name], watts)
            if announcement is not None and info.node is not None:
                self._announce(regarding_node(info.node), [announcement])

    def announce_refused_grant(self, info: NodeInfo, message: str) -> None:
        """Record that the API server takes no grant of a node with the entries of its jobs, and what is sent instead."""
        if info.gpu_node is not None:
            self._announce(regarding_gpu_node(info.gpu_node), [refused_grant_announcement(message)])

    def announce_labels(self, sync: LabelSync) -> None:
        """Record that a node's labels, which have just been copied, take it out of caps."""
        announcement = labels_announcement(sync)
        if announcement is not None and sync.node.gpu_node is not None:
            self._announce(regarding_gpu_node(sync.node.gpu_node), [announcement])

    def announce_deletions(self, items: Iterable[PowerCap | GpuNode]) -> None:
        """Record which objects were deleted and go on holding, each once for as long as this operator leads."""
        deleted = {item.metadata.uid: item for item in items if item.metadata.deleting and is_held(item)}
        for uid in deleted.keys() - self._deleted:
            self._announce(_regarding(deleted[uid]), [deletion_announcement(deleted[uid])])
        self._deleted = frozenset(deleted)

    def announce_problems(self, gpu_nodes: Collection[GpuNode]) -> None:
        """Record what of the agents' reports cannot be read, each part once for as long as it is wrong."""
        problems = {item.metadata.uid: item.problems for item in gpu_nodes if item.problems}
        if problems == self._problems:
            return
        by_uid = {item.metadata.uid: item for item in gpu_nodes}
        for uid, found in problems.items():
            new = [problem for problem in found if problem not in self._problems.get(uid, ())]
            self._announce(regarding_gpu_node(by_uid[uid]), map(unreadable_part_announcement, new))
        self._problems = problems

    def announce_gpus(self, gpu_nodes: Mapping[str, GpuNode]) -> None:
        """Record what has befallen GPUs since the last call, by their agents' reports."""
        for name, gpu_node in gpu_nodes.items():
            known = self._gpus.get(name)
            if known is not gpu_node.gpus:
                before = {gpu.uuid: gpu for gpu in known or ()}
                for gpu in gpu_node.gpus:
                    if gpu.uuid in before:
                        self._announce(regarding_gpu_node(gpu_node), gpu_announcements(before[gpu.uuid], gpu))
        self._gpus = {name: gpu_node.gpus for name, gpu_node in gpu_nodes.items()}

    def announce_limited_pods(self, state: PowerState) -> None:
        """Record which pods outside Flyball may draw less than before, or as much as by default again.

        A cap that falls may limit thousands at once: no more of them now than leaves room for what is said of caps.
        """
        caps, most = state.caps, 0 if self._events is None else self._events.room
        for regarding, item in self._limited_pods.update(
            state.cluster.pods, state.nodes, caps.rules, caps.names_over_nodes(), most
        ):
            self._announce(regarding, [item])

    def announce_plain_job(self, verdict: PlainJobVerdict) -> None:
        """Record what became of a batch Job that waits for watts, or why it goes on waiting."""
        job = verdict.job
        warning = REASONS[verdict.reason]
        announcement = Announcement(verdict.reason, verdict.message, "AdmitJob", warning=warning)
        self._announce(Regarding("batch/v1", "Job", job.name, job.uid, job.namespace), [announcement])

    def announce_hold(self, change: HoldChange) -> None:
        """Record that an object's deletion has taken effect."""
        announcement = hold_announcement(change)
        if announcement is not None:
            self._announce(_regarding(change.item), [announcement])

    def _announce(self, regarding: Regarding, announcements: Iterable[Announcement]) -> None:
        if self._events is None:
            return
        for item in announcements:
            self._events.record(regarding, item.reason, item.note, action=item.action, warning=item.warning)


def _regarding(item: PowerCap | GpuNode) -> Regarding:
    return regarding_cap(item) if isinstance(item, PowerCap) else regarding_gpu_node(item)
