"""GPUNode: the grant that the operator writes, and what the node's agent acknowledges and reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from msgspec import field
from msgspec.structs import replace

from flyball_api.grant import Grant, GrantVersion, OfNode, PerGpu, grant_spec, read_grant
from flyball_api.names import ANNOTATION_FORMER_LABELS, ANNOTATION_RELEASE, FLYBALL_API_VERSION, HOLD_FINALIZER
from flyball_api.reading import (
    ApiStruct,
    Count,
    InvalidObject,
    JsonObject,
    ObjectMeta,
    Time,
    read_metadata,
    read_status,
)
from flyball_api.values.conditions import StoredCondition
from flyball_api.values.units import MilliwattsPerGpu, NodeMilliwatts, of_gpus

KIND = "GPUNode"

Labels = Mapping[str, str]


class DriverSession(NamedTuple):
    """From one load of a node's GPU driver to the next, which puts all limits back to their defaults."""

    boot_id: str = ""
    driver_load: str = ""


class Acknowledgement(ApiStruct, frozen=True):
    """An agent has applied a grant: the sum of the limits that it read back from the driver after that, and when.

    `bound_milliwatts` is the most that it lets them add up to until a later grant comes: the grant's bound, or less where a
    PowerBrake lowers it. None: the agent follows no PowerBrakes. `bound_by` is the version of the agent that holds to it.
    `digest` is that of the grant (empty: an agent that knows none, or a grant without one).
    Of two acknowledgements in one boot the one with the later `boottime_nanoseconds` counts.
    """

    epoch: Count
    generation: Count
    limits_milliwatts: OfNode
    boot_id: str = field(default="", name="bootID")
    driver_load: str = field(default="", name="driverSession")
    time: Time | None = None
    bound_milliwatts: OfNode | None = None
    bound_by: str = ""
    boottime_nanoseconds: Count = 0
    digest: str = ""

    def is_of(self, grant: Grant) -> bool:
        """Whether it is of that grant, and not of another of the same version."""
        return self.version == grant.version and (not self.digest or not grant.digest or self.digest == grant.digest)

    @property
    def version(self) -> GrantVersion:
        return GrantVersion(self.epoch, self.generation)

    @property
    def session(self) -> DriverSession:
        """The driver session that it was applied in."""
        return DriverSession(self.boot_id, self.driver_load)


class PowerLimits(ApiStruct, frozen=True):
    """One GPU's power limits as its driver gives them; 0 or None: not known."""

    min_milliwatts: PerGpu = MilliwattsPerGpu(0)
    max_milliwatts: PerGpu = MilliwattsPerGpu(0)
    default_milliwatts: PerGpu = MilliwattsPerGpu(0)
    requested_milliwatts: PerGpu | None = None
    enforced_milliwatts: PerGpu | None = None

    @property
    def held_milliwatts(self) -> MilliwattsPerGpu:
        """The most that the GPU may draw by its limit as it was read back; 0 where it could not be."""
        return max(self.requested_milliwatts or MilliwattsPerGpu(0), self.enforced_milliwatts or MilliwattsPerGpu(0))


class GpuClocks(ApiStruct, frozen=True):
    """The SM clocks that one GPU supports, in megahertz; all 0: not known."""

    min: Count = 0
    max: Count = 0
    step: Count = 0


class PodReference(ApiStruct, frozen=True):
    """The pod that holds a GPU."""

    namespace: str
    name: str


class GpuReport(ApiStruct, frozen=True, omit_defaults=True):
    """One GPU as its agent reports it; `uuid` is empty where the report of it cannot be read."""

    uuid: str = ""
    index: Count | None = None
    model: str = ""
    limits: PowerLimits = PowerLimits()
    clocks_megahertz: GpuClocks = GpuClocks()
    pod: PodReference | None = None
    energy_millijoules: Count | None = None
    power_milliwatts: PerGpu | None = None
    conditions: tuple[StoredCondition, ...] = ()

    @property
    def healthy(self) -> bool:
        """It can be read and set."""
        return self.uuid != "" and not any(item.type == "Healthy" and item.is_false for item in self.conditions)

    @property
    def limits_known(self) -> bool:
        """Its limits are such as a GPU can have; one that was lost before it was ever read has none."""
        limits = self.limits
        return 0 < limits.min_milliwatts <= limits.default_milliwatts <= limits.max_milliwatts


class StageReport(ApiStruct, frozen=True):
    """What was measured of one stage of a pipeline: lines of instruction, megahertz, seconds and joules, and what its GPU
    draws while it waits."""

    stage: Count
    waiting_milliwatts: Count
    rows: str


class PodReport(ApiStruct, frozen=True):
    """What the agent saw of one pod of a job: progress as the training process reports it, energy as GPUs count it."""

    namespace: str
    name: str
    uid: str
    incarnation: Count
    pod_name: str
    gpus: Count = 0
    iterations: Count = 0
    microseconds_per_iteration: Count = 0
    millijoules_per_iteration: Count = 0
    clock_megahertz: Count = 0
    local_batch_size: Count = 0
    energy_millijoules: Count = 0
    last_report_time: Time | None = None
    ended: bool = False
    stages: tuple[StageReport, ...] = ()


class GpuNodeSummary(ApiStruct, frozen=True):
    """A node's GPUs in the words of kubectl's columns."""

    limits: str = ""
    power: str = ""


class RoundTime(ApiStruct, frozen=True):
    """When an agent last looked at its GPUs, by its node's CLOCK_BOOTTIME; `by` is the version of the one that says so.

    `limits_milliwatts` is what their limits came to then, with what those held last that it cannot read.
    """

    boottime_nanoseconds: Count
    by: str
    limits_milliwatts: OfNode = NodeMilliwatts(0)


class GpuNodeStatus(ApiStruct, frozen=True):
    """GPUNode.status, which the node's agent writes."""

    boot_id: str = field(default="", name="bootID")
    driver_load: str = field(default="", name="driverSession")
    agent_version: str = ""
    last_round: RoundTime | None = None
    mode: str = ""
    devices: tuple[GpuReport, ...] = ()
    acknowledged: Acknowledgement | None = None
    jobs: tuple[PodReport, ...] = ()
    summary: GpuNodeSummary | None = None
    conditions: tuple[StoredCondition, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuNode:
    """One GPUNode; its labels are copies of its Node's, by which caps select it even when the Node is gone.

    `grant` is None where no grant was ever written; `problems` names the parts of the object that cannot be read.
    `former_labels` are sets of labels that it had before, under which it still counts.
    """

    metadata: ObjectMeta
    grant: Grant | None
    status: GpuNodeStatus
    problems: tuple[str, ...] = ()
    former_labels: tuple[Labels, ...] = ()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def labels(self) -> Mapping[str, str]:
        return self.metadata.labels

    @property
    def release_asked(self) -> bool:
        """Whether its annotation `flyball.dev/release` frees the node of what it was granted."""
        return self.metadata.annotations.get(ANNOTATION_RELEASE) == "true"

    @property
    def gpus(self) -> tuple[GpuReport, ...]:
        """The GPUs that the agent reports."""
        return self.status.devices

    @property
    def session(self) -> DriverSession:
        """The driver session that the agent runs in."""
        return DriverSession(self.status.boot_id, self.status.driver_load)

    @property
    def acknowledged(self) -> Acknowledgement | None:
        """The last acknowledgement, of whichever grant and driver session."""
        stored = self.status.acknowledged
        if stored is None or stored.bound_by == self.status.agent_version:
            return stored
        # An agent of a version that knows neither brakes nor digests has taken over, and leaves the fields as they were.
        return replace(stored, bound_milliwatts=None, digest="")

    @property
    def alive_nanoseconds(self) -> int | None:
        """When its agent was last alive as far as this object shows, by the CLOCK_BOOTTIME of the boot that it reports.

        None: an agent that says nothing of it; what one before it said stands there still.
        """
        status = self.status
        if status.last_round is None or status.last_round.by != status.agent_version:
            return None
        stored = status.acknowledged  # that of a brake comes between two reports
        acknowledged = 0 if stored is None or stored.boot_id != status.boot_id else stored.boottime_nanoseconds
        return max(status.last_round.boottime_nanoseconds, acknowledged)

    @property
    def read_back_since_milliwatts(self) -> NodeMilliwatts:
        """What the limits of its GPUs came to when its agent looked after it had acknowledged, where that is more.

        0 where it is not, where the agent has not looked since, or does not say when it did. An agent that finds more than
        it acknowledged may be unable to acknowledge anything: because a newer grant cannot be applied, or it ends before.
        """
        status, stored = self.status, self.status.acknowledged
        last = status.last_round
        if stored is None or last is None or last.by != status.agent_version or stored.session != self.session:
            return NodeMilliwatts(0)
        if stored.boottime_nanoseconds > last.boottime_nanoseconds:
            return NodeMilliwatts(0)
        found = last.limits_milliwatts
        if of_gpus(gpu.limits.held_milliwatts for gpu in status.devices) >= stored.limits_milliwatts:
            # What was acknowledged of those that cannot be read is not known by itself, only that it was more than nothing.
            most = of_gpus(gpu.limits.held_milliwatts or gpu.limits.max_milliwatts for gpu in status.devices)
            found = max(found, NodeMilliwatts(most))
        return found if found > stored.limits_milliwatts else NodeMilliwatts(0)

    def with_acknowledgement(self, other: Acknowledgement) -> GpuNode:
        """This GPUNode with another acknowledgement of the same agent in place of its own, where that is the later one."""
        own = self.status.acknowledged
        if (
            own is None
            or other.session != self.session
            or other.bound_by != self.status.agent_version
            or other.boottime_nanoseconds <= own.boottime_nanoseconds
            or own.session != other.session
        ):
            return self
        return dataclasses.replace(self, status=replace(self.status, acknowledged=other))

    @property
    def acknowledged_since_driver_load(self) -> bool:
        """The agent has acknowledged a grant in the present driver session, so that the node's limits are known."""
        status = self.status
        stored = status.acknowledged
        return stored is not None and stored.boot_id == status.boot_id and stored.driver_load == status.driver_load

    @property
    def acknowledged_current(self) -> bool:
        """The agent has applied, read back and acknowledged the very grant that stands, in the present driver session."""
        if self.grant is None or not self.acknowledged_since_driver_load:
            return False
        acknowledged = self.acknowledged
        return acknowledged is not None and acknowledged.is_of(self.grant)

    @property
    def braked_milliwatts(self) -> NodeMilliwatts | None:
        """What the agent holds its limits to until another grant comes, where a brake makes that less than the grant."""
        acknowledged = self.acknowledged
        bound = None if acknowledged is None else acknowledged.bound_milliwatts
        if self.grant is None or bound is None or not self.acknowledged_current:
            return None
        return bound if bound < self.grant.bound.limit_milliwatts else None


def read_gpu_node(raw: Mapping[str, Any]) -> GpuNode:
    """A GPUNode from its JSON; raises InvalidObject where its metadata or spec is not as the CRD has it."""
    metadata = read_metadata(KIND, raw)
    spec = raw.get("spec")
    try:
        grant = None if spec is None or spec == {} else read_grant(spec)
    except InvalidObject as error:
        raise InvalidObject(f"{KIND} {metadata.key}: {error}") from error
    status, problems = read_status(raw, GpuNodeStatus)
    try:
        former = read_former_labels(metadata.annotations.get(ANNOTATION_FORMER_LABELS, ""))
    except InvalidObject as error:
        former, problems = (), (*problems, str(error))
    return GpuNode(metadata, grant, status, problems, former)


def former_labels_annotation(former: Iterable[Labels]) -> str | None:
    """The sets of labels as the annotation has them, None for none; `read_former_labels` reads them back."""
    former = list(former)
    return msgspec.json.encode(former, order="sorted").decode() if former else None


def read_former_labels(annotation: str) -> tuple[Labels, ...]:
    """The sets of labels that an annotation has; raises InvalidObject where it has something else."""
    try:
        return tuple(msgspec.json.decode(annotation, type=list[dict[str, str]])) if annotation else ()
    except msgspec.DecodeError as error:
        raise InvalidObject(
            f"metadata.annotations[{ANNOTATION_FORMER_LABELS}] should read [{{label: value, ...}}, ...]: {error}"
        ) from error


def gpu_node_object(name: str, labels: Mapping[str, str], grant: Grant) -> JsonObject:
    """A new GPUNode with its first grant."""
    return {
        "apiVersion": FLYBALL_API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "labels": dict(labels), "finalizers": [HOLD_FINALIZER]},
        "spec": grant_spec(grant),
    }
