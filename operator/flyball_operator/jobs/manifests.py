"""The objects that one incarnation of a training job consists of: an Indexed Job of gated pods and a headless Service.

The environment given to the containers is the pod contract of docs/api.md: what Flyball's own client reads, and what
torchrun and JAX read.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from datetime import datetime
from typing import Any

from flyball_api.energy_aware_job import EnergyAwareJob, PlanSource
from flyball_api.names import (
    ANNOTATION_ALLOCATION,
    ANNOTATION_PIPELINE_POINT,
    FLYBALL_API_VERSION,
    LABEL_COMPLETION_INDEX,
    LABEL_HOSTNAME,
    LABEL_INCARNATION,
    LABEL_JOB_NAME,
    LABEL_JOB_UID,
    PLACEMENT_GATE,
    RENDEZVOUS_PORT,
    SOCKET_VOLUME,
)
from flyball_api.values.times import format_time
from flyball_api.workloads import DEFAULT_GPU_RESOURCES, IncarnationView, placement_annotation

from flyball_operator.jobs.pipeline_points import iteration_seconds, pipeline_objective, wanted_point

JsonObject = dict[str, Any]

# A volume of this name, where the template mounts one, is where checkpoints go.
CHECKPOINT_VOLUME = "checkpoint"
# Where a pod finds the agent's socket: its own folder of the node's, named by its UID, so that no other pod's is in sight.
SOCKET_MOUNT = "/run/flyball"
SOCKET_NAME = "flyball.sock"
POD_UID_VARIABLE = "FLYBALL_POD_UID"
# Where a pod finds the plan of its pipeline.
PLAN_VOLUME = "flyball-plan"
PLAN_MOUNT = "/etc/flyball"
PLAN_NAME = "plan.json"
POINT_NAME = "point.json"


def incarnation_name(job: EnergyAwareJob, incarnation: int) -> str:
    return f"{job.name}-{incarnation}"


def incarnation_labels(job: EnergyAwareJob, incarnation: int) -> dict[str, str]:
    return {LABEL_JOB_NAME: job.name, LABEL_JOB_UID: job.uid, LABEL_INCARNATION: str(incarnation)}


def _owner(job: EnergyAwareJob) -> JsonObject:
    return {
        "apiVersion": FLYBALL_API_VERSION,
        "kind": "EnergyAwareJob",
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _environment(
    job: EnergyAwareJob,
    incarnation: int,
    nodes: tuple[tuple[str, int], ...],
    container: JsonObject,
    with_folder: bool,
    now: datetime,
) -> list[Any]:
    name = incarnation_name(job, incarnation)
    gpus_per_node = nodes[0][1]
    rank = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{LABEL_COMPLETION_INDEX}']"}}}
    master = f"{name}-0.{name}.{job.namespace}"
    values: list[JsonObject] = [
        {"name": "FLYBALL_JOB", "value": job.key},
        {"name": "FLYBALL_JOB_UID", "value": job.uid},
        {"name": "FLYBALL_INCARNATION", "value": str(incarnation)},
        {"name": "FLYBALL_WORLD_SIZE", "value": str(sum(gpus for _, gpus in nodes))},
        {"name": "FLYBALL_LOCAL_GPUS", "value": str(gpus_per_node)},
        {"name": "PET_NNODES", "value": str(len(nodes))},
        {"name": "PET_NPROC_PER_NODE", "value": str(gpus_per_node)},
        {"name": "PET_NODE_RANK", **rank},
        {"name": "PET_MASTER_ADDR", "value": master},
        {"name": "PET_MASTER_PORT", "value": str(RENDEZVOUS_PORT)},
        {"name": "JAX_COORDINATOR_ADDRESS", "value": f"{master}:{RENDEZVOUS_PORT}"},
        {"name": "JAX_NUM_PROCESSES", "value": str(len(nodes))},
        {"name": "JAX_PROCESS_ID", **rank},
    ]
    recurrence = job.spec.recurrence
    training = {
        "FLYBALL_BASE_BATCH_SIZE": None if recurrence is None else job.default_batch_size,
        "FLYBALL_TARGET_METRIC": None if recurrence is None else recurrence.target_metric,
        "FLYBALL_GLOBAL_BATCH_SIZE": job.spec.training.global_batch_size,
        "FLYBALL_MAX_LOCAL_BATCH_SIZE": job.spec.training.max_local_batch_size,
        "FLYBALL_ITERATIONS": job.spec.training.iterations,
        "FLYBALL_BUDGET_KILOJOULES": job.spec.energy.budget_kilojoules,
        "FLYBALL_USED_KILOJOULES": 0 if job.status.energy is None else job.status.energy.consumed_kilojoules,
        "FLYBALL_DUE": None if job.due is None else format_time(job.due),
    }
    training |= _pipeline_variables(job, now)
    values += [{"name": variable, "value": str(value)} for variable, value in training.items() if value is not None]
    mounts = [
        mount["mountPath"] for mount in container.get("volumeMounts") or () if mount.get("name") == CHECKPOINT_VOLUME
    ]
    if mounts:
        values.append({"name": "FLYBALL_CHECKPOINT_DIR", "value": mounts[0]})
    if with_folder:
        values += [
            {"name": POD_UID_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            {"name": "FLYBALL_SOCKET", "value": f"{SOCKET_MOUNT}/{SOCKET_NAME}"},
        ]
    # What the user set by hand wins: a launcher with other ideas about ports or ranks must not be overruled. But not by
    # which folder of the node's a pod mounts: another UID would be another pod's, and none would be all of them.
    set_by_hand = [
        item for item in container.get("env") or () if not with_folder or item.get("name") != POD_UID_VARIABLE
    ]
    own = {variable.get("name") for variable in set_by_hand}
    return [*set_by_hand, *(value for value in values if value["name"] not in own)]


def _pipeline_variables(job: EnergyAwareJob, now: datetime) -> dict[str, str | int | None]:
    """By which plan the computations of a job's pipelines run, and which point of its frontier they are to take."""
    pipeline = job.spec.pipeline
    if pipeline is None:
        return {}
    seconds = iteration_seconds(job, _iterations_done(job), now)
    return {
        "FLYBALL_PIPELINE_PLAN": f"{PLAN_MOUNT}/{PLAN_NAME}",
        "FLYBALL_PIPELINE_POINT": f"{PLAN_MOUNT}/{POINT_NAME}",
        "FLYBALL_PIPELINE_STAGES": pipeline.stages,
        "FLYBALL_PIPELINE_MICROBATCHES": pipeline.microbatches,
        "FLYBALL_PIPELINE_OBJECTIVE": pipeline_objective(job),
        "FLYBALL_PIPELINE_SECONDS": None if seconds is None else f"{seconds:.6g}",
        "FLYBALL_PIPELINE_MEASURE": _measured_clocks(job),
    }


def _measured_clocks(job: EnergyAwareJob) -> str | None:
    """At which clocks its stages are measured as long as there is no plan; those of an observed job are left alone."""
    plan = None if job.spec.pipeline is None else job.spec.pipeline.plan
    if plan is None or plan.measure is None or job.observed:
        return None
    return ",".join(map(str, plan.measure.megahertz))


def _iterations_done(job: EnergyAwareJob) -> int:
    return 0 if job.status.progress is None else job.status.progress.iterations


def incarnation_job(
    job: EnergyAwareJob,
    incarnation: int,
    nodes: tuple[tuple[str, int], ...],
    socket_directory: str = "",
    gpu_resources: Collection[str] = DEFAULT_GPU_RESOURCES,
    *,
    now: datetime,
    socket_resource: str = "",
) -> JsonObject:
    """The Indexed Job of one incarnation on `(node, gpus)`, one pod a node, every pod gated.

    `socket_directory` is where on their nodes the agents serve training processes; empty: pods get no socket. Where there
    is a `socket_resource`, the trainer asks for one of it instead, and its node's agent mounts the socket's folder.
    Of a job with a pipeline the trainer has its plan, and what is left at `now` of the time to its deadline; the point that
    is wanted of the plan is an annotation and a file of the pods, which change while they train.
    `gpu_resources` names the extended resources whose units are GPUs, of which a pod gets none but the job's.
    Raises ValueError where the nodes' shares differ (an Indexed Job has one template) or the template cannot be used.
    """
    shares = {gpus for _, gpus in nodes}
    if len(shares) != 1:
        raise ValueError(f"EnergyAwareJob {job.key}: every node must give the same number of GPUs, not {nodes}")
    try:
        template = _template(
            job, incarnation, nodes, "" if socket_resource else socket_directory, gpu_resources, socket_resource, now
        )
    except (KeyError, TypeError, AttributeError) as error:
        # The schema leaves the template free, and only the API server knows what a pod is; this much must hold before.
        raise ValueError(f"EnergyAwareJob {job.key}: spec.template is no PodTemplateSpec: {error!r}") from error
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": incarnation_name(job, incarnation),
            "namespace": job.namespace,
            "labels": incarnation_labels(job, incarnation),
            "annotations": {ANNOTATION_ALLOCATION: placement_annotation(nodes)},
            "ownerReferences": [_owner(job)],
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": len(nodes),
            "parallelism": len(nodes),
            # One lost rank ends the whole step: the operator starts the next incarnation from the checkpoint.
            "backoffLimit": 0,
            "template": template,
        },
    }


def _template(
    job: EnergyAwareJob,
    incarnation: int,
    nodes: tuple[tuple[str, int], ...],
    socket_directory: str,
    gpu_resources: Collection[str],
    socket_resource: str,
    now: datetime,
) -> JsonObject:
    template = copy.deepcopy(job.spec.template)
    metadata = template["metadata"] = template.get("metadata") or {}
    metadata["labels"] = {**(metadata.get("labels") or {}), **incarnation_labels(job, incarnation)}
    spec = template["spec"] = template.get("spec") or {}
    containers, everyone = _checked_containers(job, spec, gpu_resources, socket_resource)
    spec["restartPolicy"] = "Never"
    spec["subdomain"] = incarnation_name(job, incarnation)
    spec["schedulingGates"] = [
        *(gate for gate in spec.get("schedulingGates") or () if gate.get("name") != PLACEMENT_GATE),
        {"name": PLACEMENT_GATE},
    ]
    for container in everyone:
        container["env"] = _environment(job, incarnation, nodes, container, bool(socket_directory), now)
        if socket_directory:
            container["volumeMounts"] = [
                *(container.get("volumeMounts") or ()),
                # To connect is no write to the file system: a pod that is root can leave nothing on the node.
                {
                    "name": SOCKET_VOLUME,
                    "mountPath": SOCKET_MOUNT,
                    "subPathExpr": f"$({POD_UID_VARIABLE})",
                    "readOnly": True,
                },
            ]
    if socket_directory:
        volume = {"name": SOCKET_VOLUME, "hostPath": {"path": socket_directory, "type": "DirectoryOrCreate"}}
        spec["volumes"] = [*(spec.get("volumes") or ()), volume]
    if job.spec.pipeline is not None and job.spec.pipeline.plan is not None:
        _mount_plan(spec, job.spec.pipeline.plan)
        point = wanted_point(job, _iterations_done(job), None, now)
        metadata["annotations"] = {**(metadata.get("annotations") or {}), ANNOTATION_PIPELINE_POINT: point}
    # The first container is the trainer; a GPU cannot be shared between containers of a pod.
    resources = containers[0]["resources"] = containers[0].get("resources") or {}
    gpus = {job.spec.gpus.resource_name: str(nodes[0][1])}
    sockets = {socket_resource: "1"} if socket_resource else {}
    resources["limits"] = {**(resources.get("limits") or {}), **gpus, **sockets}
    if job.spec.gpus.resource_name in (resources.get("requests") or {}):
        resources["requests"] |= gpus  # the API server wants the two to be equal
    return template


def _checked_containers(
    job: EnergyAwareJob, spec: JsonObject, gpu_resources: Collection[str], socket_resource: str
) -> tuple[list[JsonObject], list[JsonObject]]:
    """A pod template's containers, and all of them with its init containers.

    Raises ValueError where the template has what the operator puts there itself: nodes, sockets, GPUs of other containers.
    """
    containers = spec.get("containers")
    if not containers:
        raise ValueError(f"EnergyAwareJob {job.key}: spec.template.spec.containers must name at least one container")
    if LABEL_HOSTNAME in (spec.get("nodeSelector") or {}):
        raise ValueError(
            f"EnergyAwareJob {job.key}: spec.template.spec.nodeSelector must not name {LABEL_HOSTNAME}, "
            "by which Flyball gives each pod its node (use labels that several nodes share)"
        )
    everyone = [*containers, *(spec.get("initContainers") or ())]
    for container in everyone:
        limits = (container.get("resources") or {}).get("limits") or {}
        for name in sorted({job.spec.gpus.resource_name, *gpu_resources}):
            if name in limits and not (container is everyone[0] and name == job.spec.gpus.resource_name):
                raise ValueError(
                    f"EnergyAwareJob {job.key}: container {container.get('name')} asks for {name}, but only the first "
                    f"container gets GPUs, by {job.spec.gpus.resource_name} (take the limit out; spec.gpus says how many)"
                )
        if socket_resource in limits:
            raise ValueError(
                f"EnergyAwareJob {job.key}: container {container.get('name')} asks for {socket_resource}, of which the "
                "first container gets one by itself (take the limit out)"
            )
        if any(mount.get("name") == SOCKET_VOLUME for mount in container.get("volumeMounts") or ()):
            raise ValueError(
                f"EnergyAwareJob {job.key}: container {container.get('name')} mounts {SOCKET_VOLUME}, the volume of the "
                f"agents' sockets, which each container gets at {SOCKET_MOUNT} (take the mount out)"
            )
    taken = {volume.get("name") for volume in spec.get("volumes") or ()}
    for name in (SOCKET_VOLUME, PLAN_VOLUME):
        if name in taken and (name == SOCKET_VOLUME or job.spec.pipeline is not None):
            raise ValueError(f"EnergyAwareJob {job.key}: the volume name {name} is taken (choose another name)")
    return containers, everyone


def _mount_plan(spec: JsonObject, plan: PlanSource) -> None:
    """Give the trainer the plan of its pipeline, and the point that is wanted of it.

    The kubelet reads both, and says of the pod what is not there; a plan that is made of what the job measures itself may
    not be.
    """
    trainer = spec["containers"][0]
    mount = {"name": PLAN_VOLUME, "mountPath": PLAN_MOUNT, "readOnly": True}
    trainer["volumeMounts"] = [*(trainer.get("volumeMounts") or ()), mount]
    field = {"fieldPath": f"metadata.annotations['{ANNOTATION_PIPELINE_POINT}']"}
    config_map: JsonObject = {"name": plan.config_map, "items": [{"key": plan.key, "path": PLAN_NAME}]}
    if plan.measure is not None:
        config_map["optional"] = True
    sources = [
        {"configMap": config_map},
        {"downwardAPI": {"items": [{"path": POINT_NAME, "fieldRef": field}]}},
    ]
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": PLAN_VOLUME, "projected": {"sources": sources}}]


def incarnation_service(incarnation: IncarnationView) -> JsonObject:
    """The headless Service that gives the ranks of one incarnation their names before they are ready.

    It belongs to the incarnation's Job, and goes with it whoever deletes that.
    """
    labels = {
        LABEL_JOB_NAME: incarnation.job_name,
        LABEL_JOB_UID: incarnation.job_uid,
        LABEL_INCARNATION: str(incarnation.incarnation),
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": incarnation.name,
            "namespace": incarnation.namespace,
            "labels": labels,
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": incarnation.name,
                    "uid": incarnation.uid,
                    "controller": True,
                }
            ],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels,
            "ports": [{"name": "rendezvous", "port": RENDEZVOUS_PORT}],
        },
    }


def mended_service(incarnation: IncarnationView, found: JsonObject) -> JsonObject | None:
    """The Service `found` under the incarnation's name as it was made; None where it is another's, or about to go.

    Labels, annotations and owners that others have added to it stay.
    """
    metadata, made = found["metadata"], incarnation_service(incarnation)
    labels, owners = metadata.get("labels") or {}, metadata.get("ownerReferences") or []
    others = [owner for owner in owners if owner.get("uid") != incarnation.uid]
    is_ours = labels.get(LABEL_JOB_UID) == incarnation.job_uid or len(others) < len(owners)
    if not is_ours or metadata.get("deletionTimestamp"):
        return None
    own = made["metadata"]
    own_labels, (owner,) = own["labels"], own["ownerReferences"]
    return {
        **made,
        "metadata": {**metadata, "labels": {**labels, **own_labels}, "ownerReferences": [*others, owner]},
    }
