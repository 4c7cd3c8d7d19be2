"""What the operator writes for jobs: their incarnations and pods, their plans, and what it says of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime

from flyball_api.energy.quota import EnergyQuota, EnergyQuotaStatus
from flyball_api.energy_aware_job import EnergyAwareJob, EnergyAwareJobStatus
from flyball_api.names import (
    ANNOTATION_PIPELINE_POINT,
    LABEL_HOSTNAME,
    LABEL_JOB_NAME,
    PLACEMENT_GATE,
)
from flyball_api.workloads import IncarnationView, PlainJob, PodView, read_service
from flyball_kube.errors import ApiError
from flyball_kube.resources import (
    CONFIG_MAPS,
    ENERGY_AWARE_JOBS,
    ENERGY_QUOTAS,
    JOBS,
    PODS,
    SERVICES,
    Resource,
)
from flyball_kube.session import JSON_PATCH, ApiSession, JsonObject

from flyball_operator.cluster.outcome import Outcome, WriteResult, combined
from flyball_operator.jobs.manifests import incarnation_job, incarnation_service, mended_service
from flyball_operator.jobs.pipeline_plans import PlanPipeline
from flyball_operator.jobs.pipeline_points import PointChange
from flyball_operator.jobs.runs.lifecycle import CreateService, OpenGates, RemovePods, StopIncarnation
from flyball_operator.writes.writer import Writer


class JobWrites(Writer):
    """The writes for training jobs, and for plain Jobs that wait to be admitted.

    `training_socket_directory`: where on their nodes agents serve training processes (empty: nowhere);
    `training_socket_resource`: what pods ask for instead, where the agents give sockets as devices; `gpu_resources`: the
    extended resources whose units are GPUs.
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
        super().__init__(session, check, absorb, count, observe_write=observe_write)
        self._training_socket_directory = training_socket_directory
        self._training_socket_resource = training_socket_resource
        self._gpu_resources = gpu_resources
        self._wall_clock = wall_clock

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
        """Have the API server check the Job that would be made, without making it (a dry run)."""
        try:
            batch_job = self._batch_job(job, job.last_incarnation + 1, (("node", job.spec.gpus.min),))
        except ValueError as error:
            return WriteResult(Outcome.REFUSED, invalid=str(error))

        async def ask() -> JsonObject:
            await self._session.create(JOBS.path(job.namespace), batch_job, fieldValidation="Strict", dryRun="All")
            return {}  # there is no such Job

        return await self._write("check-template", JOBS, ask)

    async def create_service(self, action: CreateService) -> WriteResult:
        """Make the Service of an incarnation, which goes with its Job; or put it right where somebody has changed it."""
        return await self._write("create-service", SERVICES, lambda: self._put_service(action.incarnation))

    async def _put_service(self, item: IncarnationView) -> JsonObject:
        service = incarnation_service(item)
        try:
            return await self._session.create(SERVICES.path(item.namespace), service)
        except ApiError as error:
            if not error.conflict:
                raise
            taken = error
        path = SERVICES.path(item.namespace, item.name)
        found = await self._session.get(path)
        mended = mended_service(item, found)
        if mended is None:
            raise taken
        self._check()
        answer = await self._session.replace(path, mended)
        if not read_service(answer).whole:  # what does so at once would do so at each attempt
            words = f"Service {item.name} was put right, and something changed it in the same moment"
            raise ApiError(409, "Conflict", words, f"PUT {path}")
        return answer

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
        """Write into pods the point of its plan that their pipeline is to run at; done where all took effect."""
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

    async def write_quota_status(self, quota: EnergyQuota, status: EnergyQuotaStatus) -> WriteResult:
        return await self._put_status("quota-status", ENERGY_QUOTAS, quota.metadata, status)

    async def delete_job(self, job: EnergyAwareJob) -> WriteResult:
        """Remove a finished EnergyAwareJob whose time to live is over."""
        path = ENERGY_AWARE_JOBS.path(job.namespace, job.name)
        options = {"propagationPolicy": "Background", "preconditions": {"uid": job.uid}}
        return await self._write("delete-finished-job", ENERGY_AWARE_JOBS, lambda: self._session.delete(path, options))

    async def admit_plain_job(self, job: PlainJob) -> WriteResult:
        """Let a suspended batch Job run, as it was read: its pods are then its own controller's business."""
        path = JOBS.path(job.namespace, job.name)
        patch: JsonObject = {"metadata": {"resourceVersion": job.resource_version}, "spec": {"suspend": False}}

        async def call() -> JsonObject:
            await self._session.patch(path, patch)
            return {}  # it is none of the Jobs that are known by the answers to writes

        return await self._write("admit-plain-job", JOBS, call)
