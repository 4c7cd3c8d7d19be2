"""Nodes, pods and batch Jobs as Flyball sees them: the few facts it decides on, out of Kubernetes' own objects."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import field

from flyball_api.names import (
    ANNOTATION_ALLOCATION,
    GPU_RESOURCE,
    GROUP,
    LABEL_COMPLETION_INDEX,
    LABEL_GPU_COUNT,
    LABEL_GPU_PRESENT,
    LABEL_GPU_PRODUCT,
    LABEL_GPU_REPLICAS,
    LABEL_HOSTNAME,
    LABEL_INCARNATION,
    LABEL_JOB_NAME,
    LABEL_JOB_UID,
    PLACEMENT_GATE,
    STARTUP_TAINT,
)
from flyball_api.quantities import thousandths
from flyball_api.reading import ApiStruct, read_object

Quantities = dict[str, Any]

# The extended resources whose units are GPUs, unless the operator is set otherwise.
DEFAULT_GPU_RESOURCES = (GPU_RESOURCE,)
# Extended resources that are served from GPUs, whatever a unit of theirs is: time slices, MIG instances.
_SERVED_FROM_GPUS = ("nvidia.com/gpu", "nvidia.com/mig-")
# Node feature discovery: a PCI device of NVIDIA (10de), of any class, or a display (0300) or 3D controller (0302).
_GPU_ON_THE_BUS = re.compile(r"feature\.node\.kubernetes\.io/pci-(030[02]_)?10de(_[0-9a-f_]+)?\.present")
# GPUs of a Node of which nobody says how many it has: as many as the servers that are sold most.
ASSUMED_GPUS = 8


def _count(value: Any) -> int:
    """An extended resource's quantity: always a whole number by Kubernetes' own validation."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0


class Owner(ApiStruct, frozen=True):
    """An entry of metadata.ownerReferences; at most one of an object's is its controller."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class _Metadata(ApiStruct, frozen=True):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    owner_references: tuple[Owner, ...] = ()

    def controller_uid(self, group: str, kind: str) -> str:
        """The UID of the object's controller where that is of this API group and kind; else an empty string."""
        for owner in self.owner_references:
            if owner.controller and owner.kind == kind and owner.api_version.startswith(f"{group}/"):
                return owner.uid
        return ""


class _Condition(ApiStruct, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class Taint(ApiStruct, frozen=True):
    """What keeps pods from a Node that do not tolerate it."""

    key: str = ""
    value: str = ""
    effect: str = ""


class Needs(ApiStruct, frozen=True):
    """What a pod asks of a Node beside GPUs, or a Node has of it, in thousandths: CPUs, and bytes of memory and storage."""

    cpu: int = 0
    memory: int = 0
    storage: int = 0

    def __add__(self, other: Needs) -> Needs:
        return Needs(self.cpu + other.cpu, self.memory + other.memory, self.storage + other.storage)

    def __sub__(self, other: Needs) -> Needs:
        return Needs(self.cpu - other.cpu, self.memory - other.memory, self.storage - other.storage)

    def largest(self, other: Needs) -> Needs:
        """The larger of each."""
        return Needs(max(self.cpu, other.cpu), max(self.memory, other.memory), max(self.storage, other.storage))


NO_NEEDS = Needs()


def read_needs(quantities: Mapping[str, Any]) -> Needs:
    """The needs in a list of resources."""
    return Needs(
        thousandths(quantities.get("cpu", 0)),
        thousandths(quantities.get("memory", 0)),
        thousandths(quantities.get("ephemeral-storage", 0)),
    )


class _Named(ApiStruct, frozen=True):
    name: str = ""


def _true(conditions: Iterable[_Condition], kind: str) -> bool:
    for condition in conditions:
        if condition.type == kind:
            return condition.status == "True"
    return False


# --- nodes ---------------------------------------------------------------------------------------------------------


class _NodeSpec(ApiStruct, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class _NodeInfo(ApiStruct, frozen=True):
    boot_id: str = field(default="", name="bootID")


class _NodeStatus(ApiStruct, frozen=True):
    capacity: Quantities = field(default_factory=dict)
    allocatable: Quantities | None = None
    conditions: tuple[_Condition, ...] = ()
    node_info: _NodeInfo = _NodeInfo()


class _Node(ApiStruct, frozen=True):
    metadata: _Metadata
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


class NodeView(ApiStruct, frozen=True):
    """A Kubernetes Node; `gpus` by its capacity, and `gpu_resources` the extended resources that it offers them under.

    `hidden_gpus` is how many it may have besides, though it offers none: its device plugin is not up yet, they are offered
    as MIG instances, time slices or by dynamic resource allocation. They draw power like any other.

    `ready` is False also where its kubelet has ceased to say (the condition is Unknown then). `boot_id` is that of the
    boot in which its kubelet reported last; empty where it reports none.

    `allocatable_gpus` are those that pods may have, fewer than `gpus` while its device plugin withholds some, and
    `allocatable` what else they may have (None: its kubelet does not say).
    """

    name: str
    uid: str
    hostname: str
    labels: dict[str, str]
    gpus: int
    product: str
    ready: bool
    cordoned: bool
    startup_taint: bool
    gpu_resources: frozenset[str] = frozenset()
    boot_id: str = ""
    hidden_gpus: int = 0
    allocatable_gpus: int = 0
    allocatable: Needs | None = None
    taints: tuple[Taint, ...] = ()


def _hidden_gpus(labels: Mapping[str, str], capacity: Quantities) -> int:
    """GPUs that a Node has by its labels or by what is served from them; 0 where nothing speaks of any."""
    if (
        labels.get(LABEL_GPU_PRESENT) == "true"
        or labels.get(LABEL_GPU_PRODUCT)
        or _count(labels.get(LABEL_GPU_COUNT))
        or any(name.startswith(_SERVED_FROM_GPUS) and _count(units) for name, units in capacity.items())
        or any(value == "true" and _GPU_ON_THE_BUS.fullmatch(label) for label, value in labels.items())
    ):
        return max(0, _count(labels.get(LABEL_GPU_COUNT))) or ASSUMED_GPUS
    return 0


def read_node(raw: Mapping[str, Any], gpu_resources: Collection[str] = DEFAULT_GPU_RESOURCES) -> NodeView:
    """A `v1.Node` as a NodeView; raises InvalidObject where it is none.

    `gpu_resources` names the extended resources whose units are GPUs, here and for pods.
    """
    node = read_object("Node", raw, _Node)
    labels, capacity = node.metadata.labels, node.status.capacity
    allocatable = capacity if node.status.allocatable is None else node.status.allocatable
    gpus = sum(_count(capacity.get(name)) for name in gpu_resources)
    hidden_gpus = 0 if gpus else _hidden_gpus(labels, capacity)
    replicas = _count(labels.get(LABEL_GPU_REPLICAS))
    if replicas > 1:  # what it offers are time slices, of which no pod has a GPU to itself
        gpus, hidden_gpus = 0, max(hidden_gpus, -(-gpus // replicas))
    return NodeView(
        name=node.metadata.name,
        uid=node.metadata.uid,
        hostname=labels.get(LABEL_HOSTNAME, node.metadata.name),
        labels=labels,
        gpus=gpus,
        product=labels.get(LABEL_GPU_PRODUCT, ""),
        ready=_true(node.status.conditions, "Ready"),
        cordoned=node.spec.unschedulable,
        startup_taint=any(taint.key == STARTUP_TAINT for taint in node.spec.taints),
        gpu_resources=frozenset(name for name in gpu_resources if name in capacity),
        boot_id=node.status.node_info.boot_id,
        hidden_gpus=hidden_gpus,
        allocatable_gpus=min(gpus, sum(_count(allocatable.get(name)) for name in gpu_resources)),
        allocatable=None if node.status.allocatable is None else read_needs(allocatable),
        taints=node.spec.taints,
    )


# --- pods ----------------------------------------------------------------------------------------------------------


class _Resources(ApiStruct, frozen=True):
    limits: Quantities = field(default_factory=dict)
    requests: Quantities = field(default_factory=dict)


class _Container(ApiStruct, frozen=True):
    name: str = ""
    resources: _Resources = _Resources()
    restart_policy: str = ""


class _Terminated(ApiStruct, frozen=True):
    exit_code: int | None = None
    reason: str = ""
    message: str = ""


class _Waiting(ApiStruct, frozen=True):
    reason: str = ""
    message: str = ""


class _ContainerState(ApiStruct, frozen=True):
    terminated: _Terminated | None = None
    waiting: _Waiting | None = None


class _ContainerStatus(ApiStruct, frozen=True):
    name: str = ""
    state: _ContainerState = _ContainerState()


class _PodSpec(ApiStruct, frozen=True):
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] = ()
    node_name: str = ""
    scheduling_gates: tuple[_Named, ...] = ()
    overhead: Quantities = field(default_factory=dict)


class _PodStatus(ApiStruct, frozen=True):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: tuple[_Condition, ...] = ()
    container_statuses: tuple[_ContainerStatus, ...] = ()
    init_container_statuses: tuple[_ContainerStatus, ...] = ()


class _Pod(ApiStruct, frozen=True):
    metadata: _Metadata
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


class Obstacle(ApiStruct, frozen=True):
    """What keeps a pod from running, in the words of the component that says so; `reason` is that component's own."""

    reason: str
    message: str


class PodView(ApiStruct, frozen=True):
    """A pod that holds or wants GPUs, or belongs to a Flyball job; `job_uid` is empty for a foreign pod.

    The fields about its job are by its labels, which anybody may set; `controller_uid` is the UID of the batch Job that
    controls it (empty: none).

    `unscheduled` is why the scheduler has found it no node, `waiting` why the kubelet cannot start one of its containers.
    Of a pod that has failed, `exit_reason` and `exit_message` go with `exit_code`; `disruption` is set where it was ended,
    or never begun, for reasons that are not its program's: eviction, a lost node, the kubelet's admission.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    node: str
    gpus: int
    phase: str
    ready: bool
    gated: bool
    deleting: bool
    job_name: str = ""
    job_uid: str = ""
    incarnation: int = 0
    index: int = 0
    exit_code: int | None = None
    controller_uid: str = ""
    unscheduled: Obstacle | None = None
    waiting: Obstacle | None = None
    disruption: Obstacle | None = None
    exit_reason: str = ""
    exit_message: str = ""
    needs: Needs = NO_NEEDS

    @property
    def finished(self) -> bool:
        """Its containers have ended for good, so that it holds no GPU any more."""
        return self.phase in ("Succeeded", "Failed")

    def of_nobody(self) -> PodView:
        """The same pod as one that belongs to no job, whatever its labels say."""
        return msgspec.structs.replace(self, job_uid="")

    def of_incarnation(self, incarnation: IncarnationView) -> PodView:
        """The same pod as one of an incarnation, whatever its labels say."""
        return msgspec.structs.replace(
            self, job_name=incarnation.job_name, job_uid=incarnation.job_uid, incarnation=incarnation.incarnation
        )

    def with_gpus(self, gpus: int) -> PodView:
        """The same pod as one that holds or wants so many GPUs."""
        return self if gpus == self.gpus else msgspec.structs.replace(self, gpus=gpus)


def _pod_gpus(spec: _PodSpec, gpu_resources: Collection[str]) -> int:
    """GPUs that the kubelet sets aside for the pod: of each resource the sum over its containers, or the largest init
    container."""

    def of(containers: Iterable[_Container], resource: str) -> list[int]:
        return [_count(container.resources.limits.get(resource, 0)) for container in containers]

    return sum(
        max([sum(of(spec.containers, resource)), *of(spec.init_containers, resource)]) for resource in gpu_resources
    )


def _pod_needs(spec: _PodSpec) -> Needs:
    """What the scheduler sets aside for a pod: what its containers and sidecars ask for together, or the largest of its
    other init containers with the sidecars before it."""
    sidecars, starting = NO_NEEDS, NO_NEEDS
    for container in spec.init_containers:
        asked = read_needs({**container.resources.limits, **container.resources.requests})
        if container.restart_policy == "Always":
            sidecars += asked
            starting = starting.largest(sidecars)
        else:
            starting = starting.largest(sidecars + asked)
    running = sidecars
    for container in spec.containers:
        running += read_needs({**container.resources.limits, **container.resources.requests})
    needs = running.largest(starting) + read_needs(spec.overhead)
    return NO_NEEDS if needs == NO_NEEDS else needs


def needs_of_template(template: Mapping[str, Any]) -> Needs:
    """What each pod of a template asks of its node beside GPUs; raises InvalidObject where it is no pod template."""
    return _pod_needs(read_object("PodTemplate", {"metadata": {"name": ""}, **template}, _PodTemplate).spec)


class _PodTemplate(ApiStruct, frozen=True):
    spec: _PodSpec = _PodSpec()


def _exit(pod: _Pod) -> _Terminated:
    """How the trainer ended; how another container did where the trainer has no exit code.

    A sidecar that is asked to leave ends with a code of its own, which says nothing of the training. Where an init
    container failed, none of the others ever ran.
    """

    def exits(statuses: Iterable[_ContainerStatus]) -> dict[str, _Terminated]:
        return {
            container.name: container.state.terminated
            for container in statuses
            if container.state.terminated is not None and container.state.terminated.exit_code is not None
        }

    ended = exits(pod.status.container_statuses)
    trainer = next((container.name for container in pod.spec.containers), "")
    if trainer in ended:
        return ended[trainer]
    inits = exits(pod.status.init_container_statuses).values() if pod.status.phase == "Failed" else ()
    failed = [item for item in inits if item.exit_code]
    return max([*ended.values(), *failed], key=lambda item: item.exit_code or 0, default=_Terminated())


# A kubelet that has lost sight of a container (its node was rebooted, say) gives it exit code 137 and this reason.
_CONTAINER_LOST = "ContainerStatusUnknown"
# The one reason of a pod without any exit code that is the template's own doing (activeDeadlineSeconds).
_DEADLINE_EXCEEDED = "DeadlineExceeded"


def _disruption(pod: _Pod, ended: _Terminated) -> Obstacle | None:
    """What ended the pod, or kept it from starting at all, where that was not its own program.

    The condition DisruptionTarget is what Kubernetes' own podFailurePolicy goes by (evictions, preemption, taints, a Node
    that is gone); a pod that failed before any container of it ran was refused by its kubelet.
    """
    status = pod.status
    for condition in status.conditions:
        if condition.type == "DisruptionTarget" and condition.status == "True":
            return Obstacle(condition.reason or "DisruptionTarget", condition.message or status.message)
    if status.phase != "Failed":
        return None
    if ended.reason == _CONTAINER_LOST:
        return Obstacle(ended.reason, ended.message or status.message)
    if ended.exit_code is None and status.reason != _DEADLINE_EXCEEDED:
        return Obstacle(status.reason or "NeverRan", status.message or "none of its containers ever ran")
    return None


# What a container waits for on an ordinary start.
_ORDINARY_WAITS = frozenset({"", "ContainerCreating", "PodInitializing"})


def _waiting(status: _PodStatus) -> Obstacle | None:
    for container in (*status.init_container_statuses, *status.container_statuses):
        waiting = container.state.waiting
        if waiting is not None and waiting.reason not in _ORDINARY_WAITS:
            return Obstacle(waiting.reason, waiting.message or f"container {container.name} waits")
    return None


def _unscheduled(conditions: Iterable[_Condition]) -> Obstacle | None:
    for condition in conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return Obstacle(condition.reason, condition.message)
    return None


def read_pod(raw: Mapping[str, Any], gpu_resources: Collection[str] = DEFAULT_GPU_RESOURCES) -> PodView:
    """A `v1.Pod` as a PodView; raises InvalidObject where it is none."""
    pod = read_object("Pod", raw, _Pod)
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    labels, ended = metadata.labels, _exit(pod)
    return PodView(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        node=spec.node_name,
        gpus=_pod_gpus(spec, gpu_resources),
        phase=status.phase,
        ready=_true(status.conditions, "Ready"),
        gated=any(gate.name == PLACEMENT_GATE for gate in spec.scheduling_gates),
        deleting=metadata.deletion_timestamp is not None,
        job_name=labels.get(LABEL_JOB_NAME, ""),
        job_uid=labels.get(LABEL_JOB_UID, ""),
        incarnation=_count(labels.get(LABEL_INCARNATION, 0)),
        index=_count(labels.get(LABEL_COMPLETION_INDEX, 0)),
        exit_code=ended.exit_code,
        controller_uid=metadata.controller_uid("batch", "Job"),
        unscheduled=_unscheduled(status.conditions),
        waiting=_waiting(status),
        disruption=_disruption(pod, ended),
        exit_reason=ended.reason,
        exit_message=ended.message,
        needs=_pod_needs(spec),
    )


# --- batch Jobs ----------------------------------------------------------------------------------------------------


class _JobStatus(ApiStruct, frozen=True):
    conditions: tuple[_Condition, ...] = ()


class _JobMetadata(_Metadata, frozen=True):
    annotations: dict[str, str] = field(default_factory=dict)


class _Job(ApiStruct, frozen=True):
    metadata: _JobMetadata
    status: _JobStatus = _JobStatus()


class _Placement(ApiStruct, frozen=True):
    nodes: tuple[tuple[str, int], ...]


class IncarnationView(ApiStruct, frozen=True):
    """One start of a training job: the batch Job made for it, with the `(node, gpus)` of each rank.

    `controller_uid` is the UID of the EnergyAwareJob that controls the batch Job (empty: none); the other fields about its
    job are by its labels, which anybody may set.
    """

    namespace: str
    name: str
    uid: str
    job_name: str
    job_uid: str
    incarnation: int
    nodes: tuple[tuple[str, int], ...]
    deleting: bool
    complete: bool
    failed: bool
    failure: str
    controller_uid: str = ""

    @property
    def gpus(self) -> int:
        return sum(gpus for _, gpus in self.nodes)

    def node_of(self, pod: PodView) -> str | None:
        """The node that the plan gave to a pod's rank; None for an index outside the incarnation."""
        return self.nodes[pod.index][0] if 0 <= pod.index < len(self.nodes) else None


def read_incarnation(raw: Mapping[str, Any]) -> IncarnationView:
    """A `batch/v1.Job` that Flyball made; raises InvalidObject where it is none.

    Somebody may have damaged its allocation annotation: then it has no `nodes`, and so is not what the plan wants.
    """
    job = read_object("Job", raw, _Job)
    metadata = job.metadata
    try:
        nodes = msgspec.json.decode(metadata.annotations.get(ANNOTATION_ALLOCATION, ""), type=_Placement).nodes
    except msgspec.DecodeError:
        nodes = ()
    conditions = {condition.type: condition for condition in job.status.conditions if condition.status == "True"}
    failure = conditions.get("Failed") or conditions.get("FailureTarget")
    return IncarnationView(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        job_name=metadata.labels.get(LABEL_JOB_NAME, ""),
        job_uid=metadata.labels.get(LABEL_JOB_UID, ""),
        incarnation=_count(metadata.labels.get(LABEL_INCARNATION, 0)),
        nodes=nodes,
        deleting=metadata.deletion_timestamp is not None,
        complete="Complete" in conditions or "SuccessCriteriaMet" in conditions,
        failed=failure is not None,
        failure="" if failure is None else failure.message,
        controller_uid=metadata.controller_uid(GROUP, "EnergyAwareJob"),
    )


def placement_annotation(nodes: Iterable[tuple[str, int]]) -> str:
    """The `(node, gpus)` of each rank as the allocation annotation has them; `read_incarnation` reads them back."""
    return msgspec.json.encode({"nodes": list(nodes)}).decode()


# --- Services, and what the Job controller says ---------------------------------------------------------------------


class _Service(ApiStruct, frozen=True):
    metadata: _Metadata


class ServiceView(ApiStruct, frozen=True):
    """A Service with Flyball's labels, by which the ranks of an incarnation find each other."""

    namespace: str
    name: str
    job_uid: str
    deleting: bool


def read_service(raw: Mapping[str, Any]) -> ServiceView:
    """A `v1.Service` as a ServiceView; raises InvalidObject where it is none."""
    metadata = read_object("Service", raw, _Service).metadata
    return ServiceView(
        namespace=metadata.namespace,
        name=metadata.name,
        job_uid=metadata.labels.get(LABEL_JOB_UID, ""),
        deleting=metadata.deletion_timestamp is not None,
    )


class _InvolvedObject(ApiStruct, frozen=True):
    uid: str = ""


class _Event(ApiStruct, frozen=True):
    metadata: _Metadata
    involved_object: _InvolvedObject = _InvolvedObject()
    message: str = ""
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None


class PodsRefused(ApiStruct, frozen=True):
    """The Job controller's word that it cannot make the pods of a batch Job, and when it last said so (RFC 3339)."""

    batch_uid: str
    message: str
    time: str


# An Event of the Job controller for a pod that it could not make, as a selector of v1 Events.
PODS_REFUSED_SELECTOR = "involvedObject.kind=Job,reason=FailedCreate"


def read_pods_refused(raw: Mapping[str, Any]) -> PodsRefused:
    """A `v1.Event` that PODS_REFUSED_SELECTOR selects; raises InvalidObject where it is none."""
    event = read_object("Event", raw, _Event)
    said = event.last_timestamp or event.event_time or event.first_timestamp or ""
    return PodsRefused(event.involved_object.uid, event.message.removeprefix("Error creating: "), said)


# --- quotas --------------------------------------------------------------------------------------------------------


class _QuotaSpec(ApiStruct, frozen=True):
    hard: Quantities = field(default_factory=dict)
    scopes: tuple[str, ...] = ()
    scope_selector: dict[str, Any] | None = None


class _ResourceQuota(ApiStruct, frozen=True):
    metadata: _Metadata
    spec: _QuotaSpec = _QuotaSpec()


class GpuQuota(ApiStruct, frozen=True):
    """How many GPUs of one resource the pods of a namespace may have together."""

    namespace: str
    name: str
    resource_name: str
    hard: int


def read_gpu_quotas(
    raw: Mapping[str, Any], gpu_resources: Collection[str] = DEFAULT_GPU_RESOURCES
) -> tuple[GpuQuota, ...]:
    """What a `v1.ResourceQuota` says of GPUs, nothing where it is for some pods only; InvalidObject where it is none."""
    quota = read_object("ResourceQuota", raw, _ResourceQuota)
    if quota.spec.scopes or quota.spec.scope_selector:
        return ()
    hard = quota.spec.hard
    return tuple(
        GpuQuota(quota.metadata.namespace, quota.metadata.name, name, _count(hard[f"requests.{name}"]))
        for name in gpu_resources
        if f"requests.{name}" in hard
    )
