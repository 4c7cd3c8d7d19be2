"""What an Event says, of which object, and what it follows from: a condition before and after."""

from __future__ import annotations

from dataclasses import dataclass

from flyball_api.energy.quota import EnergyQuota, EnergyQuotaStatus
from flyball_api.energy_aware_job import EnergyAwareJob, EnergyAwareJobStatus
from flyball_api.gpu_node import GpuNode
from flyball_api.names import FLYBALL_API_VERSION
from flyball_api.power_cap import PowerCap, PowerCapStatus
from flyball_api.values.conditions import StoredCondition
from flyball_api.workloads import NodeView

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


class ConditionChange:
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
