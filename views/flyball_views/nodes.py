"""A GPUNode as a row: its GPUs, what they draw and may draw, and whether its agent serves it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from flyball_api.gpu_node import GpuNode, GpuReport
from flyball_api.names import LABEL_GPU_PRODUCT
from flyball_api.workloads import NodeView
from msgspec import field

from flyball_views.row import Aspect, Row, aspect, watts

# Agents publish at least every half minute; three times missed is silence.
SILENT_SECONDS = 90.0
# What an agent does where all is well: Floor is a grant of no more than the smallest limits, as an idle node's is.
SERVING_MODES = ("Granted", "Floor")
# The labels by which clusters say where a node stands, the nearest first; the first that a node has is its row.
ROW_LABELS = (
    "flyball.dev/row",
    "topology.kubernetes.io/row",
    "row",
    "topology.kubernetes.io/rack",
    "rack",
    "topology.kubernetes.io/zone",
    "zone",
)
_NANOSECONDS_PER_MICROSECOND = 1000


class GpuRow(Row, frozen=True):
    """One GPU, in watts; `limit_watts` is what it is held to, as read back: the larger of requested and enforced."""

    uuid: str
    healthy: Aspect
    index: int | None = None
    model: str = ""
    measured_watts: float | None = None
    limit_watts: float | None = None
    min_watts: float | None = None
    max_watts: float | None = None
    default_watts: float | None = None
    pod: str = ""


class NodeRow(Row, frozen=True):
    """One node, in watts, all GPUs together.

    `gpus` is how many its agent reports, or where it reports none how many its Node offers (None: nobody says, or only by
    a resource that the operator was told to count, which is not known here).
    `measured_watts` adds up the GPUs that say what they draw; `unread_gpus` is how many do not. `limit_watts` is what the
    limits add up to as read back, `granted_watts` what the operator allows it, `committed_watts` the most that it may
    still be holding. `acknowledged` is when it applied the grant that stands (`acknowledged_current`) or an earlier one,
    `booted` when the boot of that began. `reported` is when its agent's status was last seen to change (None: it was not
    seen to, since somebody looks); `silent` whether that is too long ago (None: nobody has looked for long enough).
    `kubelet_ready` and `cordoned` are the Node's word (None: the Node is not known).
    """

    name: str
    ready: Aspect
    drifted: Aspect
    degraded: Aspect
    row: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    product: str = ""
    mode: str = ""
    agent_version: str = ""
    gpus: int | None = None
    devices: tuple[GpuRow, ...] = ()
    unread_gpus: int = 0
    measured_watts: float | None = None
    limit_watts: float | None = None
    granted_watts: float | None = None
    committed_watts: float | None = None
    min_watts: float | None = None
    max_watts: float | None = None
    acknowledged: datetime | None = None
    acknowledged_current: bool = False
    booted: datetime | None = None
    reported: datetime | None = None
    silent: bool | None = None
    kubelet_ready: bool | None = None
    cordoned: bool | None = None
    caps: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    deleting: bool = False
    problems: tuple[str, ...] = ()


def row_of(labels: Mapping[str, str], row_labels: Sequence[str] = ROW_LABELS) -> str:
    """Where a node stands, by the first of `row_labels` that it has; empty: it does not say."""
    return next((labels[label] for label in row_labels if labels.get(label)), "")


def node_row(
    name: str,
    gpu_node: GpuNode | None,
    node: NodeView | None,
    caps: Iterable[str],
    reported: datetime | None,
    silent: bool | None,
    row_labels: Sequence[str] = ROW_LABELS,
) -> NodeRow:
    """One node's row, from its GPUNode and its Node, of which one may be missing."""
    labels = dict(node.labels) if node is not None else dict(gpu_node.labels) if gpu_node is not None else {}
    conditions = () if gpu_node is None else gpu_node.status.conditions
    devices = () if gpu_node is None else tuple(_gpu_row(gpu) for gpu in gpu_node.gpus)
    grant = None if gpu_node is None else gpu_node.grant
    acknowledged = None if gpu_node is None else gpu_node.acknowledged
    known = [device.measured_watts for device in devices if device.measured_watts is not None]
    limits = [device.limit_watts for device in devices]
    return NodeRow(
        name=name,
        ready=aspect(conditions, "Ready"),
        drifted=aspect(conditions, "Drifted"),
        degraded=aspect(conditions, "Degraded"),
        row=row_of(labels, row_labels),
        labels=labels,
        product=labels.get(LABEL_GPU_PRODUCT) or next((device.model for device in devices if device.model), ""),
        mode="" if gpu_node is None else gpu_node.status.mode,
        agent_version="" if gpu_node is None else gpu_node.status.agent_version,
        gpus=len(devices) or (None if node is None else node.gpus or node.hidden_gpus or None),
        devices=devices,
        unread_gpus=len(devices) - len(known),
        measured_watts=sum(known) if known else None,
        limit_watts=_sum(limits),
        granted_watts=None if grant is None else watts(grant.bound.limit_milliwatts),
        committed_watts=None if grant is None else watts(grant.committed.limit_milliwatts),
        min_watts=_sum([device.min_watts for device in devices]),
        max_watts=_sum([device.max_watts for device in devices]),
        acknowledged=None if acknowledged is None else acknowledged.time,
        acknowledged_current=gpu_node is not None and gpu_node.acknowledged_current,
        booted=None if gpu_node is None else _booted(gpu_node),
        reported=reported,
        silent=silent,
        kubelet_ready=None if node is None else node.ready,
        cordoned=None if node is None else node.cordoned,
        caps=tuple(sorted(caps)),
        jobs=() if grant is None else tuple(sorted({f"{job.namespace}/{job.name}" for job in grant.jobs})),
        deleting=gpu_node is not None and gpu_node.metadata.deleting,
        problems=() if gpu_node is None else gpu_node.problems,
    )


def _gpu_row(gpu: GpuReport) -> GpuRow:
    limits = gpu.limits
    held = None
    if limits.requested_milliwatts is not None and limits.enforced_milliwatts is not None:
        held = max(limits.requested_milliwatts, limits.enforced_milliwatts)
    return GpuRow(
        uuid=gpu.uuid,
        healthy=aspect(gpu.conditions, "Healthy"),
        index=gpu.index,
        model=gpu.model,
        measured_watts=watts(gpu.power_milliwatts),
        limit_watts=watts(held),
        min_watts=watts(limits.min_milliwatts or None),
        max_watts=watts(limits.max_milliwatts or None),
        default_watts=watts(limits.default_milliwatts or None),
        pod="" if gpu.pod is None else f"{gpu.pod.namespace}/{gpu.pod.name}",
    )


def _sum(values: Sequence[float | None]) -> float | None:
    """The sum; None where there is nothing, or any of it is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _booted(gpu_node: GpuNode) -> datetime | None:
    """When the boot began in which the agent acknowledged last: the acknowledgement has both clocks."""
    acknowledged = gpu_node.acknowledged
    if (
        acknowledged is None
        or acknowledged.time is None
        or not acknowledged.boottime_nanoseconds
        or acknowledged.boot_id != gpu_node.status.boot_id
    ):
        return None
    try:
        return acknowledged.time - timedelta(
            microseconds=acknowledged.boottime_nanoseconds // _NANOSECONDS_PER_MICROSECOND
        )
    except OverflowError:
        return None
