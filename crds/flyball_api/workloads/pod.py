"""A pod as Flyball sees it: the GPUs that it holds or wants, whose it is, what keeps it from running, how it ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import field

from flyball_api.names import (
    ANNOTATION_PIPELINE_POINT,
    ANNOTATION_POWER_PERMILLE,
    LABEL_COMPLETION_INDEX,
    LABEL_INCARNATION,
    LABEL_JOB_NAME,
    LABEL_JOB_UID,
    PLACEMENT_GATE,
)
from flyball_api.reading import ApiStruct, read_object
from flyball_api.workloads.metadata import Metadata, ObjectCondition, holds
from flyball_api.workloads.resources import (
    DEFAULT_GPU_RESOURCES,
    NO_NEEDS,
    SERVED_FROM_GPUS,
    Needs,
    Quantities,
    count,
    read_needs,
)


class _Named(ApiStruct, frozen=True):
    name: str = ""


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
    resource_claims: tuple[_Named, ...] = ()


class _PodStatus(ApiStruct, frozen=True):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    conditions: tuple[ObjectCondition, ...] = ()
    container_statuses: tuple[_ContainerStatus, ...] = ()
    init_container_statuses: tuple[_ContainerStatus, ...] = ()


class _Pod(ApiStruct, frozen=True):
    metadata: Metadata
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


# The restartPolicy of an init container that runs beside the others.
SIDECAR = "Always"
PERMILLE = 1000
Labels = tuple[tuple[str, str], ...]  # keys and values


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
    or never begun, for reasons that are not its program's: eviction, a lost node, the kubelet's admission. `owner` is kind
    and name of what it belongs to (empty: nothing). `power_permille` is how much of what its GPUs could have it asks for.
    `on_parts`: it asks for what may be a part of a GPU, of which its `gpus` say nothing: MIG instances, slices that have a
    name of their own, claims. `labels` are all of its labels, of a pod that holds or wants GPUs or may be on a part of one.
    `pipeline_point` is what it was told last of the point that its pipeline is to run at.
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
    owner: str = ""
    power_permille: int = PERMILLE
    pipeline_point: str = ""
    labels: Labels = ()
    on_parts: bool = False

    @property
    def holds_or_wants(self) -> bool:
        """It is on GPUs or parts of some, or is to be."""
        return self.gpus > 0 or self.on_parts

    @property
    def finished(self) -> bool:
        """Its containers have ended for good, so that it holds no GPU any more."""
        return self.phase in ("Succeeded", "Failed")

    def of_nobody(self) -> PodView:
        """The same pod as one that belongs to no job, whatever its labels say."""
        return msgspec.structs.replace(self, job_uid="")

    def with_gpus(self, gpus: int) -> PodView:
        """The same pod as one that holds or wants so many GPUs."""
        return self if gpus == self.gpus else msgspec.structs.replace(self, gpus=gpus)


def _pod_gpus(spec: _PodSpec, gpu_resources: Collection[str]) -> int:
    """GPUs that the kubelet sets aside for the pod: of each resource what its containers and sidecars have together, or the
    largest of its other init containers with the sidecars before it."""

    def of(container: _Container, resource: str) -> int:
        return count(container.resources.limits.get(resource, 0))

    gpus = 0
    for resource in gpu_resources:
        sidecars = starting = 0
        for container in spec.init_containers:
            if container.restart_policy == SIDECAR:
                sidecars += of(container, resource)
            else:
                starting = max(starting, sidecars + of(container, resource))
        gpus += max(starting, sidecars + sum(of(container, resource) for container in spec.containers))
    return gpus


def _on_parts(spec: _PodSpec, gpu_resources: Collection[str]) -> bool:
    return bool(spec.resource_claims) or any(
        name.startswith(SERVED_FROM_GPUS) and name not in gpu_resources and count(units)
        for container in (*spec.containers, *spec.init_containers)
        for name, units in container.resources.limits.items()
    )


def _pod_needs(spec: _PodSpec) -> Needs:
    """What the scheduler sets aside for a pod: what its containers and sidecars ask for together, or the largest of its
    other init containers with the sidecars before it."""
    sidecars, starting = NO_NEEDS, NO_NEEDS
    for container in spec.init_containers:
        asked = read_needs({**container.resources.limits, **container.resources.requests})
        if container.restart_policy == SIDECAR:
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


class _TemplateMetadata(ApiStruct, frozen=True):
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)


class _PodTemplate(ApiStruct, frozen=True):
    metadata: _TemplateMetadata = _TemplateMetadata()
    spec: _PodSpec = _PodSpec()


def gpus_of_template(template: Mapping[str, Any], gpu_resources: Collection[str]) -> int:
    """GPUs of these resources that each pod of a template holds; raises InvalidObject where it is no pod template."""
    return _pod_gpus(read_object("PodTemplate", template, _PodTemplate).spec, gpu_resources)


def power_permille_of_template(template: Mapping[str, Any]) -> int:
    """What the pods of a template ask for of what their GPUs could have; raises InvalidObject as above."""
    return _power_permille(read_object("PodTemplate", template, _PodTemplate).metadata.annotations)


def labels_of_template(template: Mapping[str, Any]) -> Labels:
    """The labels that the pods of a template have; raises InvalidObject as above."""
    return tuple(read_object("PodTemplate", template, _PodTemplate).metadata.labels.items())


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


def _unscheduled(conditions: Iterable[ObjectCondition]) -> Obstacle | None:
    for condition in conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return Obstacle(condition.reason, condition.message)
    return None


def _power_permille(annotations: Mapping[str, str]) -> int:
    """What the pod's annotation asks for: less than it could have, never more; all of it where nobody can read it."""
    asked = count(annotations.get(ANNOTATION_POWER_PERMILLE, PERMILLE))
    return min(PERMILLE, asked) if asked else PERMILLE


def read_pod(raw: Mapping[str, Any], gpu_resources: Collection[str] = DEFAULT_GPU_RESOURCES) -> PodView:
    """A `v1.Pod` as a PodView; raises InvalidObject where it is none."""
    pod = read_object("Pod", raw, _Pod)
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    labels, ended, gpus = metadata.labels, _exit(pod), _pod_gpus(spec, gpu_resources)
    on_parts = _on_parts(spec, gpu_resources)
    return PodView(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        node=spec.node_name,
        gpus=gpus,
        phase=status.phase,
        ready=holds(status.conditions, "Ready"),
        gated=any(gate.name == PLACEMENT_GATE for gate in spec.scheduling_gates),
        deleting=metadata.deletion_timestamp is not None,
        job_name=labels.get(LABEL_JOB_NAME, ""),
        job_uid=labels.get(LABEL_JOB_UID, ""),
        incarnation=count(labels.get(LABEL_INCARNATION, 0)),
        index=count(labels.get(LABEL_COMPLETION_INDEX, 0)),
        exit_code=ended.exit_code,
        controller_uid=metadata.controller_uid("batch", "Job"),
        unscheduled=_unscheduled(status.conditions),
        waiting=_waiting(status),
        disruption=_disruption(pod, ended),
        exit_reason=ended.reason,
        exit_message=ended.message,
        pipeline_point=metadata.annotations.get(ANNOTATION_PIPELINE_POINT, ""),
        needs=_pod_needs(spec),
        owner=metadata.owner,
        power_permille=_power_permille(metadata.annotations),
        labels=tuple(labels.items()) if gpus or on_parts else (),
        on_parts=on_parts,
    )
