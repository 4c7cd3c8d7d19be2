"""Every write that the operator makes to the API server, each sent only while this process still leads.

All of them are idempotent. An object that another writer changed first, that exists already or that is gone already is no
failure: the next cycle decides anew from what is then there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from flyball_api.energy_aware_job import EnergyAwareJob, EnergyAwareJobStatus
from flyball_api.energy_profile import EnergyProfileStatus
from flyball_api.energy_quota import EnergyQuota, EnergyQuotaStatus
from flyball_api.gpu_node import former_labels_annotation, gpu_node_object
from flyball_api.grant import Grant, grant_spec
from flyball_api.names import (
    ANNOTATION_FORMER_LABELS,
    ANNOTATION_PIPELINE_POINT,
    ANNOTATION_RELEASE,
    HOLD_FINALIZER,
    LABEL_HOSTNAME,
    LABEL_JOB_NAME,
    PLACEMENT_GATE,
    STARTUP_TAINT,
)
from flyball_api.power_brake import power_brake_object
from flyball_api.power_cap import PowerCap, PowerCapStatus
from flyball_api.reading import ObjectMeta, to_json, to_patch
from flyball_api.workloads import PlainJob, PodView
from flyball_kube.errors import ApiError, ApiUnreachable
from flyball_kube.logs import get_logger
from flyball_kube.resources import (
    CONFIG_MAPS,
    CRDS,
    ENERGY_AWARE_JOBS,
    ENERGY_PROFILES,
    ENERGY_QUOTAS,
    ENERGY_REPORTS,
    GPU_NODES,
    JOBS,
    NODES,
    PODS,
    POWER_BRAKES,
    POWER_CAPS,
    SERVICES,
    Resource,
)
from flyball_kube.session import JSON_PATCH, ApiSession, JsonObject

from flyball_operator.cluster.outcome import DONE, UNKNOWN, Outcome, WriteResult, combined
from flyball_operator.jobs.lifecycle import CreateService, OpenGates, RemovePods, StopIncarnation
from flyball_operator.jobs.manifests import incarnation_job, incarnation_service
from flyball_operator.jobs.pipeline_plans import PlanPipeline
from flyball_operator.jobs.pipeline_points import PointChange
from flyball_operator.power.brakes import SendBrake
from flyball_operator.power.holds import HoldAction, HoldChange
from flyball_operator.power.memberships import LabelSync
from flyball_operator.power.node_info import NodeInfo
from flyball_operator.writes.lease import LeadershipLost

logger = get_logger(__name__)

# The API server stops tracking who set which field of an object whose list is overwritten with one empty entry, until
# someone applies it server-side. A GPUNode has one writer for its spec and one for its status, and the tracking is more
# than half of what a write of one costs the server (docs/decisions.md).
UNTRACKED_FIELDS: list[JsonObject] = [{}]


# Tells a startup taint that was put back from the one that a node is registered with.
PROOF_STALE_VALUE = "proof-stale"


class Executor:
    """Sends writes under one epoch; `check` raises LeadershipLost, `absorb` takes in what a write returned.

    `training_socket_directory`: where on their nodes agents serve training processes (empty: nowhere);
    `training_socket_resource`: what pods ask for instead, where the agents give sockets as devices; `gpu_resources`: the
    extended resources whose units are GPUs. `observe_write` is told what became of each write, and after how many
    seconds.
    """

    def __init__(
        self,
        session: ApiSession,
        check: Callable[[], None],
        absorb: Callable[[Resource, JsonObject], None],
        count: Callable[[str], None] = lambda kind: None,
        training_socket_directory: str = "",
        *,
        training_socket_resource: str = "",
        gpu_resources: Collection[str],
        observe_write: Callable[[Outcome, float], None] = lambda outcome, seconds: None,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._session = session
        self._check = check
        self._absorb = absorb
        self._count = count
        self._training_socket_directory = training_socket_directory
        self._training_socket_resource = training_socket_resource
        self._gpu_resources = gpu_resources
        self._observe_write = observe_write
        self._wall_clock = wall_clock

    async def _write(
        self,
        kind: str,
        resource: Resource,
        call: Callable[[], Awaitable[JsonObject]],
    ) -> WriteResult:
        """Make one write. Raises LeadershipLost before anything is sent."""
        # Nothing is counted as written that is not: the session checks once more when the request has its turn.
        self._check()
        self._count(kind)
        began_at = time.monotonic()
        result = await self._answered(kind, resource, call)
        self._observe_write(result.outcome, time.monotonic() - began_at)
        return result

    async def _answered(self, kind: str, resource: Resource, call: Callable[[], Awaitable[JsonObject]]) -> WriteResult:
        try:
            answer = await call()
        except ApiError as error:
            level = logging.DEBUG if error.conflict or error.not_found else logging.WARNING
            logger.log(level, "write refused", write=kind, error=str(error), request_id=error.request_id)
            outcome = Outcome.REFUSED if error.status < 500 else Outcome.UNKNOWN
            return WriteResult(
                outcome,
                invalid=error.message if error.invalid else "",
                not_found=error.not_found,
                conflict=error.conflict,
                message=error.message if outcome is Outcome.REFUSED else "",
            )
        except ApiUnreachable as error:
            logger.warning("write unanswered", write=kind, error=str(error), request_id=error.request_id)
            return UNKNOWN
        if answer.get("kind") == resource.kind:
            self._absorb(resource, answer)
        return DONE

    async def all(self, writes: Iterable[Coroutine[Any, Any, WriteResult]]) -> list[WriteResult]:
        """Make independent writes side by side; raises LeadershipLost once all of them have ended, if any did."""
        results = await asyncio.gather(*writes, return_exceptions=True)
        for result in results:
            if isinstance(result, LeadershipLost):
                raise result
        for result in results:
            if isinstance(result, BaseException):
                logger.error("a write failed unexpectedly", exc_info=result)
        return [UNKNOWN if isinstance(result, BaseException) else result for result in results]

    async def write_grant(self, info: NodeInfo, grant: Grant) -> WriteResult:
        """Put a grant into the node's GPUNode, which must not have changed since it was read; make it where missing."""
        gpu_node = info.gpu_node
        if gpu_node is None:
            labels = {} if info.node is None else dict(info.node.labels)
            body = gpu_node_object(info.name, labels, grant)
            return await self._write("create-gpunode", GPU_NODES, lambda: self._session.create(GPU_NODES.path(), body))
        patch: JsonObject = {
            "metadata": {"resourceVersion": gpu_node.metadata.resource_version, "managedFields": UNTRACKED_FIELDS},
            "spec": grant_spec(grant),
        }
        before = 0 if gpu_node.grant is None else gpu_node.grant.bound.limit_milliwatts
        kind = "lower-grant" if grant.bound.limit_milliwatts < before else "write-grant"
        path = GPU_NODES.path(name=info.name)
        return await self._write(kind, GPU_NODES, lambda: self._session.patch(path, patch))

    async def admit_plain_job(self, job: PlainJob) -> WriteResult:
        """Let a suspended batch Job run, as it was read: its pods are then its own controller's business."""
        path = JOBS.path(job.namespace, job.name)
        patch: JsonObject = {"metadata": {"resourceVersion": job.resource_version}, "spec": {"suspend": False}}

        async def call() -> JsonObject:
            await self._session.patch(path, patch)
            return {}  # it is none of the Jobs that are known by the answers to writes

        return await self._write("admit-plain-job", JOBS, call)

    async def sync_labels(self, sync: LabelSync) -> WriteResult:
        """Put a node's labels, and the former ones that still count, into its GPUNode as it was read."""
        gpu_node, labels = sync.node.gpu_node, sync.node.labels
        if gpu_node is None:
            return DONE
        annotations: JsonObject = {ANNOTATION_FORMER_LABELS: former_labels_annotation(sync.former_labels)}
        if sync.by_word:  # it has been taken at its word, and says nothing of the next time
            annotations[ANNOTATION_RELEASE] = None
        patch = {
            "metadata": {
                "resourceVersion": gpu_node.metadata.resource_version,
                "managedFields": UNTRACKED_FIELDS,
                "labels": {**{key: None for key in gpu_node.labels if key not in labels}, **labels},
                "annotations": annotations,
            }
        }
        path = GPU_NODES.path(name=sync.node.name)
        return await self._write("sync-labels", GPU_NODES, lambda: self._session.patch(path, patch))

    async def write_hold(self, change: HoldChange) -> WriteResult:
        """Put our finalizer on an object as it was read, or take it away."""
        item = change.item
        resource = POWER_CAPS if isinstance(item, PowerCap) else GPU_NODES
        others = [name for name in item.metadata.finalizers if name != HOLD_FINALIZER]
        finalizers = [*others, HOLD_FINALIZER] if change.action is HoldAction.HOLD else others
        metadata = {
            "uid": item.metadata.uid,
            "resourceVersion": item.metadata.resource_version,
            "finalizers": finalizers or None,
        }

        async def patch() -> JsonObject:
            if change.action is HoldAction.RELEASE_UNLESS_KIND_GOES and await self._kind_goes(resource):
                raise ApiError(409, "KindGoes", f"the CRD of {resource.plural} is being deleted", "not sent")
            self._check()
            return await self._session.patch(resource.path(name=item.metadata.name), {"metadata": metadata})

        return await self._write(f"{change.action.name.lower().partition('_')[0]}-deletion", resource, patch)

    async def _kind_goes(self, resource: Resource) -> bool:
        """Whether the resource's CRD is being deleted, and every object of it with it, which nobody may have meant."""
        crd = await self._session.get(CRDS.path(name=f"{resource.plural}.{resource.group}"))
        return crd["metadata"].get("deletionTimestamp") is not None

    async def write_brake(self, send: SendBrake) -> WriteResult:
        """Put a brake in place of the one that was read; make it where there was none."""
        body = power_brake_object(send.cap, send.spec, send.resource_version)
        body["metadata"]["managedFields"] = UNTRACKED_FIELDS
        if not send.resource_version:
            return await self._write("brake", POWER_BRAKES, lambda: self._session.create(POWER_BRAKES.path(), body))
        return await self._write(
            "brake", POWER_BRAKES, lambda: self._session.replace(POWER_BRAKES.path(name=send.cap), body)
        )

    async def set_startup_taint(self, info: NodeInfo, *, closed: bool) -> WriteResult:
        """Close a node for pods, or open it now that its agent has acknowledged its grant; other taints stay."""
        path = NODES.path(name=info.name)

        async def patch() -> JsonObject:
            node = await self._session.get(path)
            taints = [taint for taint in node["spec"].get("taints") or () if taint.get("key") != STARTUP_TAINT]
            if closed:
                taints.append({"key": STARTUP_TAINT, "effect": "NoSchedule", "value": PROOF_STALE_VALUE})
            body = {
                "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
                "spec": {"taints": taints or None},
            }
            self._check()
            return await self._session.patch(path, body)

        return await self._write("add-taint" if closed else "remove-taint", NODES, patch)

    def _batch_job(self, job: EnergyAwareJob, incarnation: int, nodes: tuple[tuple[str, int], ...]) -> JsonObject:
        return incarnation_job(
            job,
            incarnation,
            nodes,
            self._training_socket_directory,
            self._gpu_resources,
            now=self._wall_clock(),
            socket_resource=self._training_socket_resource,
        )

    async def create_incarnation(
        self, job: EnergyAwareJob, incarnation: int, nodes: tuple[tuple[str, int], ...]
    ) -> WriteResult:
        """Make the gated Job of an incarnation; refused where the template has a field that no pod has."""
        try:
            batch_job = self._batch_job(job, incarnation, nodes)
        except ValueError as error:
            return WriteResult(Outcome.REFUSED, invalid=str(error))
        return await self._write(
            "create-incarnation",
            JOBS,
            # A misspelt field would else be dropped in silence, and the job run without its checkpoint volume, say.
            lambda: self._session.create(JOBS.path(job.namespace), batch_job, fieldValidation="Strict"),
        )

    async def check_template(self, job: EnergyAwareJob) -> WriteResult:
        """Ask the API server what it says of the Job that would be made; nothing is."""
        try:
            batch_job = self._batch_job(job, job.last_incarnation + 1, (("node", job.spec.gpus.min),))
        except ValueError as error:
            return WriteResult(Outcome.REFUSED, invalid=str(error))

        async def ask() -> JsonObject:
            await self._session.create(JOBS.path(job.namespace), batch_job, fieldValidation="Strict", dryRun="All")
            return {}  # there is no such Job

        return await self._write("check-template", JOBS, ask)

    async def create_service(self, action: CreateService) -> WriteResult:
        """Make the Service of an incarnation, which goes with its Job."""
        item = action.incarnation
        service = incarnation_service(item)
        return await self._write(
            "create-service", SERVICES, lambda: self._session.create(SERVICES.path(item.namespace), service)
        )

    async def stop_incarnation(self, action: StopIncarnation) -> WriteResult:
        """Delete an incarnation's Job, and with it, by the garbage collector, its pods and their Service."""
        item = action.incarnation
        options = {"propagationPolicy": "Background", "preconditions": {"uid": item.uid}}
        return await self._write(
            "stop-incarnation",
            JOBS,
            lambda: self._session.delete(JOBS.path(item.namespace, item.name), options),
        )

    async def remove_pods(self, action: RemovePods) -> WriteResult:
        """Delete each of these very pods; done where all took effect."""
        return combined(await self.all(self._remove_pod(pod) for pod in action.pods))

    async def _remove_pod(self, pod: PodView) -> WriteResult:
        options = {"preconditions": {"uid": pod.uid}}
        path = PODS.path(pod.namespace, pod.name)
        return await self._write("remove-pod", PODS, lambda: self._session.delete(path, options))

    async def open_gates(self, action: OpenGates, hostnames: Mapping[str, str]) -> WriteResult:
        """Give each pod its node, by the node's hostname label, and take its gate away; done where all took effect."""
        return combined(await self.all(self._open_gate(pod, hostnames.get(node, node)) for pod, node in action.pods))

    async def _open_gate(self, pod: PodView, hostname: str) -> WriteResult:
        path = PODS.path(pod.namespace, pod.name)

        async def patch() -> JsonObject:
            raw = await self._session.get(path)
            gates = raw["spec"].get("schedulingGates") or []
            if raw["metadata"]["uid"] == pod.uid and PLACEMENT_GATE not in (gate.get("name") for gate in gates):
                return raw  # the answer was lost, or our copy is behind
            selector = raw["spec"].get("nodeSelector") or {}
            body = [
                # The pod that was decided on: not one of the same name made since, and not one changed by another.
                {"op": "test", "path": "/metadata/uid", "value": pod.uid},
                {"op": "test", "path": "/metadata/resourceVersion", "value": raw["metadata"]["resourceVersion"]},
                {"op": "add", "path": "/spec/nodeSelector", "value": {**selector, LABEL_HOSTNAME: hostname}},
                {
                    "op": "replace",
                    "path": "/spec/schedulingGates",
                    "value": [gate for gate in gates if gate.get("name") != PLACEMENT_GATE],
                },
            ]
            self._check()
            return await self._session.patch(path, body, JSON_PATCH)

        return await self._write("open-gate", PODS, patch)

    async def write_point(self, change: PointChange) -> WriteResult:
        """Tell pods which point of its plan their pipeline is to run at; done where all took effect."""
        return combined(await self.all(self._write_point(pod, change.point) for pod in change.pods))

    async def _write_point(self, pod: PodView, point: str) -> WriteResult:
        # One of the same name made since is another pod, and is told for itself.
        body = {"metadata": {"uid": pod.uid, "annotations": {ANNOTATION_PIPELINE_POINT: point}}}
        path = PODS.path(pod.namespace, pod.name)
        return await self._write("tell-pipeline-point", PODS, lambda: self._session.patch(path, body))

    async def create_pipeline_plan(self, plan: PlanPipeline, document: str) -> WriteResult:
        """Make the ConfigMap of a job's plan; a conflict where there is one of its name, which is never overwritten."""
        body = {
            "metadata": {
                "name": plan.source.config_map,
                "namespace": plan.job.namespace,
                "labels": {"app.kubernetes.io/managed-by": "flyball", LABEL_JOB_NAME: plan.job.name},
            },
            "data": {plan.source.key: document},
        }
        path = CONFIG_MAPS.path(plan.job.namespace)
        return await self._write("create-pipeline-plan", CONFIG_MAPS, lambda: self._session.create(path, body))

    async def write_job_status(self, job: EnergyAwareJob, status: EnergyAwareJobStatus) -> WriteResult:
        return await self._put_status("job-status", ENERGY_AWARE_JOBS, job.metadata, status)

    async def write_cap_status(self, cap: PowerCap, status: PowerCapStatus) -> WriteResult:
        return await self._put_status("cap-status", POWER_CAPS, cap.metadata, status)

    async def write_quota_status(self, quota: EnergyQuota, status: EnergyQuotaStatus) -> WriteResult:
        return await self._put_status("quota-status", ENERGY_QUOTAS, quota.metadata, status)

    async def _put_status(self, kind: str, resource: Resource, read: ObjectMeta, status: msgspec.Struct) -> WriteResult:
        """Put a status in the place of the one of an object as it was `read`.

        One that arrives late, or of an earlier leader, must not stand over a newer one, nor over that of an object that was
        made anew under the name. Whole, and not as a patch: that is less work for the API server (docs/decisions.md).
        """
        metadata = {"name": read.name, "uid": read.uid, "resourceVersion": read.resource_version}
        if read.namespace:
            metadata["namespace"] = read.namespace
        body = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": metadata,
            "status": to_json(status),
        }
        path = resource.path(read.namespace or None, read.name, "status")
        return await self._write(kind, resource, lambda: self._session.replace(path, body))

    async def write_energy_report(
        self, day: str, body: JsonObject | None, resource_version: str, stored: Callable[[JsonObject], None]
    ) -> WriteResult:
        """Put an EnergyReport in the place of the one of that version, or make it; delete it where `body` is None.

        `stored` is called with the object that was written.
        """
        path = ENERGY_REPORTS.path(name=day)
        if body is None:
            return await self._write("energy-report", ENERGY_REPORTS, lambda: self._session.delete(path))

        async def put() -> JsonObject:
            if resource_version:
                answer = await self._session.replace(path, body)
            else:
                answer = await self._session.create(ENERGY_REPORTS.path(), body)
            stored(answer)
            return answer

        return await self._write("energy-report", ENERGY_REPORTS, put)

    async def write_profile(
        self, profile: JsonObject, status: EnergyProfileStatus, *, exists: bool, disowned: bool = False
    ) -> WriteResult:
        """Put what was learned into an EnergyProfile, made first unless it `exists`; `disowned`: it has no owner more."""
        metadata = profile["metadata"]
        if disowned:
            whole = ENERGY_PROFILES.path(metadata["namespace"], metadata["name"])
            nobody = {"metadata": {"ownerReferences": None}}
            result = await self._write("disown-profile", ENERGY_PROFILES, lambda: self._session.patch(whole, nobody))
            if not result.done:
                return result
        if not exists:
            collection = ENERGY_PROFILES.path(metadata["namespace"])
            await self._write("create-profile", ENERGY_PROFILES, lambda: self._session.create(collection, profile))
        path = ENERGY_PROFILES.path(metadata["namespace"], metadata["name"], "status")
        return await self._write(
            "profile-status", ENERGY_PROFILES, lambda: self._session.patch(path, {"status": to_patch(status)})
        )

    async def delete_job(self, job: EnergyAwareJob) -> WriteResult:
        """Remove a finished EnergyAwareJob whose time to live is over."""
        path = ENERGY_AWARE_JOBS.path(job.namespace, job.name)
        options = {"propagationPolicy": "Background", "preconditions": {"uid": job.uid}}
        return await self._write("delete-finished-job", ENERGY_AWARE_JOBS, lambda: self._session.delete(path, options))
